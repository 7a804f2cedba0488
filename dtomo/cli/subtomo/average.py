"""``dtomo subtomo average`` and ``fsc``: what the particles of a list give as they lie, and how two volumes agree."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dtomo.cli import options
from dtomo.cli.report import after_run


@options.on_workers
def average(
    particle_list: Annotated[Path, typer.Argument(metavar="LIST", help="Particle list.", show_default=False)],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Folder of the results.", show_default=False)],
    particle_diameter: Annotated[
        float | None, typer.Option(help="Å; of the sphere that halves are compared in.")
    ] = None,
    mask: Annotated[str | None, typer.Option(help="Volume from 0 to 1, in place of the sphere.")] = None,
    pixel_size: Annotated[float | None, typer.Option(help="Å; default: as the list or the boxes say.")] = None,
    symmetry: Annotated[str | None, typer.Option(help="C1 (default), C2 …, D2 …, T, O or I.")] = None,
    tilts: Annotated[
        str | None, typer.Option(help="First and last tilt, such as -60:60, if the list has none.")
    ] = None,
    tomograms: Annotated[
        Path | None, typer.Option(help="Cut boxes from here: a volume, or a YAML table of names and volumes.")
    ] = None,
    box: Annotated[int | None, typer.Option(help="Side of these boxes, voxels.")] = None,
    halves: Annotated[str | None, typer.Option(help="Of a list that has none: random (default) or parity.")] = None,
    where: Any = None,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    report: options.Report = True,
) -> None:
    """Average the particles of LIST in their poses: two halves, their FSC, and all of them."""
    given = {
        name: value for name, value in locals().items() if name not in ("particle_list", "overwrite", "quiet", "report")
    }
    from dtomo.settings import AlignSettings
    from dtomo.subtomo.job import average_run

    given |= {"scan": particle_list, "adaptive": False}
    settings = options.settings_of(AlignSettings, "subtomo average:LIST and OUT", None, given, "scan", "output")
    average_run(settings, overwrite=overwrite, quiet=quiet)
    after_run(settings.output, report, quiet)


def fsc(
    first: Annotated[Path, typer.Argument(help="Average of one half.", show_default=False)],
    second: Annotated[Path, typer.Argument(help="Average of the other.", show_default=False)],
    mask: Annotated[Path | None, typer.Option(help="Volume from 0 to 1.")] = None,
    pixel_size: Annotated[float | None, typer.Option(help="Å; default: as the first volume says.")] = None,
    threshold: Annotated[float, typer.Option(help="Of the resolution.")] = 0.143,
    output: Annotated[Path | None, typer.Option(help="Write the curves here, as text.")] = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Fourier shell correlation of two volumes, corrected for the mask by random phases, and the resolution."""
    from dtomo.subtomo.compare_files import compare_files

    for line in compare_files(first, second, mask, pixel_size, threshold, output, overwrite=overwrite):
        typer.echo(line)
