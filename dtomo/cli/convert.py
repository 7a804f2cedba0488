"""``dtomo convert``: volumes from one format to another."""

from pathlib import Path
from typing import Annotated

import typer

from dtomo.cli import options


def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="OME-Zarr, MRC, EM, TIFF, or FILE.h5:/dataset.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="Volume: .zarr, .mrc, .em or .tif.")],
    voxel_size: Annotated[float | None, typer.Option(help="Voxel size in µm, in place of what the file says.")] = None,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
) -> None:
    """Copy the volume IN to OUT, in the format of OUT's suffix."""
    from dtomo import io

    written = io.convert(source, target, voxel_size_um=voxel_size, overwrite=overwrite)
    if not quiet:
        volume = io.open_volume(written)
        print(f"{target}: {' × '.join(map(str, volume.shape))} (z, y, x) {volume.dtype}")
