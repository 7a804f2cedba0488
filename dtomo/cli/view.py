"""``dtomo view``: a volume in napari."""

from pathlib import Path
from typing import Annotated

import typer

from dtomo.errors import UserError


def view(output: Annotated[Path, typer.Argument(metavar="OUT", help="Volume, best as OME-Zarr.")]) -> None:
    """Open the volume OUT in napari, level by level where it has levels; nothing is read that is not looked at."""
    from dtomo.report.page.stacks import levels_of

    volumes = levels_of(output)
    try:
        import napari
    except ImportError as error:
        raise UserError(
            "dtomo view needs napari: pip install 'dtomo[viewer]'; dtomo report makes a page that needs a browser only"
        ) from error
    finest = volumes[0]
    viewer = napari.Viewer(title=f"dtomo: {output.name}")
    viewer.add_image(
        [volume.array for volume in volumes] if len(volumes) > 1 else finest.array,
        multiscale=len(volumes) > 1,
        name=output.stem,
        scale=finest.voxel_size_um or (1.0, 1.0, 1.0),
        translate=finest.origin_um,
    )
    viewer.dims.axis_labels = ("z", "y", "x")
    if finest.voxel_size_um is not None:
        viewer.scale_bar.visible, viewer.scale_bar.unit = True, "um"
    napari.run()
