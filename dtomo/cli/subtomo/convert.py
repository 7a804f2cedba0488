"""``dtomo subtomo convert``: particle lists from one program to another."""

from pathlib import Path
from typing import Annotated

import typer

from dtomo.cli import options
from dtomo.errors import UserError

_IN = "Of the list that is read"
_OUT = "Of the list that is written"
Sizes = tuple[float, float, float] | dict[str, tuple[float, float, float]] | None


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="PyTom .xml, RELION .star, Dynamo .tbl, AV3 .em.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The same formats, by the suffix.")],
    pixel_size: Annotated[
        float | None,
        typer.Option(help="Voxel of the boxes and of the tomogram that positions count in, Å.", rich_help_panel=_IN),
    ] = None,
    binning: Annotated[
        float | None, typer.Option(help="Unbinned voxels in one of those; default: as IN says.", rich_help_panel=_IN)
    ] = None,
    tomogram_size: Annotated[
        str | None,
        typer.Option(
            help="Unbinned size X,Y,Z of the tomograms, or RELION's tomograms.star: where RELION 5 counts from.",
            rich_help_panel=_IN,
        ),
    ] = None,
    center_offset: Annotated[
        float,
        typer.Option(help="IN counts from size/2 plus this many unbinned voxels: 0, or -1.", rich_help_panel=_IN),
    ] = 0.0,
    pytom_origin_sign: Annotated[
        bool,
        typer.Option("--pytom-origin-sign", help="IN is STAR of PyTom's own converter.", rich_help_panel=_IN),
    ] = False,
    frame: Annotated[
        str,
        typer.Option(help="Orientations in the tomogram, or in RELION's turned box: box.", rich_help_panel=_IN),
    ] = "tomogram",
    particle_names: Annotated[
        str | None,
        typer.Option(help="Names where IN has only numbers, such as particle_#####.em.", rich_help_panel=_IN),
    ] = None,
    relion: Annotated[str | None, typer.Option(help="Version of STAR: 3.1, 4 or 5.", rich_help_panel=_OUT)] = None,
    output_center_offset: Annotated[
        float, typer.Option(help="As --center-offset, of OUT; RELION extracts with 0.", rich_help_panel=_OUT)
    ] = 0.0,
    box_size: Annotated[int | None, typer.Option(help="Voxels of a box.", rich_help_panel=_OUT)] = None,
    voltage: Annotated[float | None, typer.Option(help="kV.", rich_help_panel=_OUT)] = None,
    spherical_aberration: Annotated[float | None, typer.Option(help="mm.", rich_help_panel=_OUT)] = None,
    amplitude_contrast: Annotated[float | None, typer.Option(help="Such as 0.1.", rich_help_panel=_OUT)] = None,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
) -> None:
    """Write the particle list IN for another program, as OUT."""
    from dtomo.io.particles import (
        PROGRAMS,
        particle_format,
        read_particles,
        reading_notes,
        what_is_lost,
        write_particles,
    )

    kind = particle_format(target)
    sizes = tomogram_sizes(tomogram_size)
    particles = read_particles(
        source,
        pixel_size=pixel_size,
        binning=binning,
        tomogram_sizes=sizes,
        center_offset=center_offset,
        pytom_origin_sign=pytom_origin_sign,
        frame=frame,
        particle_names=particle_names,
    )
    write_particles(
        target,
        particles,
        overwrite=overwrite,
        inputs=[source],
        binning=binning or 1.0,
        tomogram_sizes=sizes,
        center_offset=output_center_offset,
        box_size=box_size,
        relion=relion,
        voltage=voltage,
        spherical_aberration=spherical_aberration,
        amplitude_contrast=amplitude_contrast,
    )
    if quiet:
        return
    print(f"{target}: {len(particles)} particles, {PROGRAMS[kind]}")
    for note in reading_notes(particles):
        print(f"  read: {note}")
    if output_center_offset or center_offset:
        print(f"  written: from the middle size/2 {output_center_offset:+g} of a tomogram")
    lost = what_is_lost(particles, kind)
    if lost:
        print(f"  not kept: {', '.join(lost)}")


def tomogram_sizes(text: str | None) -> Sizes:
    """Sizes (x, y, z) of tomograms from X,Y,Z or a ``tomograms.star``.

    Raises
    ------
    UserError
        Neither.
    """
    from dtomo.io.particles import read_tomogram_sizes

    if text is None:
        return None
    if Path(text).is_file():
        return read_tomogram_sizes(Path(text))
    try:
        x, y, z = (float(part) for part in text.replace("x", ",").split(","))
    except ValueError as error:
        raise UserError(
            f"--tomogram-size is X,Y,Z in unbinned voxels, such as 4096,4096,1200, or a file; got {text}"
        ) from error
    return x, y, z
