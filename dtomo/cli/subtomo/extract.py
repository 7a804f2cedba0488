"""``dtomo subtomo extract``: boxes about the positions of a list, from tomograms into one store."""

from pathlib import Path
from typing import Annotated

import typer

from dtomo.cli import options


def extract(
    particle_list: Annotated[
        Path, typer.Argument(metavar="LIST", help="Particle list with positions.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Argument(metavar="OUT", help="Store of the boxes: OUT.zarr; a list OUT.star lies beside it.")
    ],
    tomograms: Annotated[
        Path, typer.Option(help="A volume (MRC, Zarr …), or a YAML table of names and volumes.", show_default=False)
    ],
    box: Annotated[int, typer.Option(help="Side of the boxes, voxels.", show_default=False)],
    workers: options.Workers = None,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
) -> None:
    """Cut a box about each position of LIST out of its tomogram; boxes that leave it are skipped and listed."""
    from dtomo.subtomo.extract import extract_boxes

    extract_boxes(particle_list, output, tomograms, box, workers=workers, overwrite=overwrite, quiet=quiet)
