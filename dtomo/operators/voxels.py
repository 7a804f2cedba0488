"""Voxel-driven back projection of any geometry of vectors, a slab of the volume at a time."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, empty_aligned
from dtomo.errors import UserError
from dtomo.geometry import VectorGeometry
from dtomo.kernels import voxels
from dtomo.kernels.layout import projections_inside_out


def rows_seen(geometry: VectorGeometry, slices: tuple[int, int]) -> tuple[int, int]:
    """Rows (first, last + 1) of the detector, at least one, that slices of the volume are seen in in any view.

    Raises
    ------
    UserError
        A volume that reaches behind a source.
    """
    numbers, depth = _corners(geometry, slices)
    row = numbers[:, 1] / (1.0 if geometry.beam == "fan" else depth)
    first, last = int(np.floor(max(row.min(), 0))), int(np.floor(min(row.max(), geometry.rows))) + 2
    first = min(first, geometry.rows - 1)
    return first, max(first + 1, min(last, geometry.rows))


def _corners(geometry: VectorGeometry, slices: tuple[int, int]) -> tuple[Any, Any]:
    """What matrices make of the outermost voxels, ``(views, 3, 8)``, and their depths."""
    _, height, width = geometry.shape
    points = np.array(
        [(x, y, z, 1) for x in (0, width - 1) for y in (0, height - 1) for z in (slices[0], slices[1] - 1)]
    )
    numbers = geometry.voxel_matrices() @ points.T
    depth = numbers[:, 2]
    if (depth <= 1e-6).any():
        view = int(np.argmax((depth <= 1e-6).any(1)))
        raise UserError(f"view {view}: the volume reaches behind the source; make the volume smaller")
    return numbers, depth


def lines_of(projections: Any, lacking: tuple[int, int]) -> Any:
    """A copy in the order of memory ``[view, column, row]``, with zeros for columns that are lacking."""
    xp = array_module(projections)
    views, rows, columns = projections.shape
    lines = empty_aligned((views, sum(lacking) + columns, rows), np.float32, xp)
    lines[:, : lacking[0]] = 0
    lines[:, lacking[0] + columns :] = 0
    lines[:, lacking[0] : lacking[0] + columns] = projections_inside_out(projections)
    return lines


def voxel_volume(geometry: VectorGeometry, slices: tuple[int, int], like: Any = None) -> NDArray[np.float32]:
    """Zeros for slices of the volume, ``[y, x, z]``, where `like` lies."""
    _, height, width = geometry.shape
    volume = empty_aligned((height, width, slices[1] - slices[0]), np.float32, array_module(like))
    volume[:] = 0
    return volume


def add_backprojection(
    projections: Any, volume: Any, geometry: VectorGeometry, views: slice, slices: tuple[int, int], first_row: int
) -> None:
    """Add views, interpolated linearly at every voxel and over the square of its depth, to slices of the volume.

    Parameters
    ----------
    projections
        ``[view, column, row]`` of these views, from row `first_row` on, C-contiguous float32.
    volume
        ``[y, x, z]``, those slices.
    geometry
        All of it: the numbers of slices, rows and views are of the whole.
    """
    voxels.backproject(
        projections,
        volume,
        np.ascontiguousarray(geometry.voxel_matrices()[views]),
        plain=geometry.beam == "fan",
        first=slices[0],
        slices=geometry.shape[0],
        first_row=first_row,
    )
