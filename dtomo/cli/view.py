"""``dtomo view``: a volume in napari."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dtomo.errors import UserError

if TYPE_CHECKING:
    from dtomo.io import Volume


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
    viewer = napari.Viewer(title=f"dtomo: {output.name}")
    show(viewer, volumes, output.stem)
    napari.run()


def show(viewer: Any, levels: "Sequence[Volume]", name: str) -> None:
    """Add a volume to a viewer of napari, at its voxel size and place.

    Parameters
    ----------
    viewer
        ``napari.Viewer``, or its model without a window.
    levels
        Of the volume, the finest first; they stay lazy.
    name
        Of the layer.
    """
    finest = levels[0]
    viewer.add_image(
        [volume.array for volume in levels] if len(levels) > 1 else finest.array,
        multiscale=len(levels) > 1,
        name=name,
        scale=finest.voxel_size_um or (1.0, 1.0, 1.0),
        translate=finest.origin_um,
        units=("pixel" if finest.voxel_size_um is None else "micrometer",) * 3,
    )
    viewer.dims.axis_labels = ("z", "y", "x")
