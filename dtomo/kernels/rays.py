"""Straight rays of any direction through a volume, by Joseph's method, with the exactly matched back-projector.

A ray meets the planes of its main axis (the one along which it crosses most voxels) once each; there the four voxels
around it are interpolated (P. M. Joseph, IEEE Trans. Med. Imaging 1, 192-196, 1982, in three dimensions).

Views whose rays lie, column by column, in planes along an axis are left to `rays_upright`; where that axis is not z,
on a copy of the volume with its axes exchanged. The others go ray by ray (`rays_cpu`), as all do on devices
(`cuda.rays`).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, on_device
from dtomo.kernels import rays_cpu, rays_upright
from dtomo.kernels.rays_cpu import RayTables

__all__ = ["RayPlan", "RayTables", "adjoint", "forward", "plan"]

FEWEST = 4
"""Rows of a detector from which on lines along an axis are worth it."""

UPRIGHTS = ((0, 1, 2), (0, 2, 1), (2, 1, 0))
"""Axes that take the places of x, y, z: the last is the one along which columns of rays lie."""


class Upright(NamedTuple):
    """Views that `rays_upright` takes with axes exchanged, with their tables."""

    axes: tuple[int, int, int]
    numbers: NDArray[np.int64]
    apart: NDArray[np.int64]
    tables: RayTables

    def turned(self, volume: NDArray[np.float32]) -> NDArray[np.float32]:
        """A volume ``[y, x, z]`` as a view of it with axes exchanged."""
        return volume.transpose(1, 0, 2).transpose(self.axes).transpose(1, 0, 2)


class RayPlan(NamedTuple):
    """Rays, and which views are projected how."""

    tables: RayTables
    uprights: tuple[Upright, ...]
    others: NDArray[np.int64]


def _taken(tables: RayTables, views: Any, axes: list[int]) -> RayTables:
    """Tables of some views, with axes exchanged."""
    index = np.ix_(np.arange(len(tables.point))[views], axes)
    changed: dict[str, Any] = {name: getattr(tables, name)[index] for name in RayTables._fields[:-2]}
    return tables._replace(**changed, voxel=tables.voxel[axes])


def plan(tables: RayTables, shape: tuple[int, int, int], columns: int, rows: int) -> RayPlan:
    """Find how each view is projected; `shape` is (x, y, z) of the volume."""
    left, uprights = np.arange(len(tables.point)), []
    for axes in UPRIGHTS if rows >= FEWEST else ():
        order = list(axes)
        turned = _taken(tables, slice(None), order)
        apart = rays_upright.upright(
            _taken(tables, left, order), (shape[order[0]], shape[order[1]], shape[order[2]]), columns, rows
        )
        if apart.any():
            uprights.append(Upright(axes, left[apart > 0], apart[apart > 0], turned))
        left = left[apart == 0]
    return RayPlan(tables, tuple(uprights), left)


def forward(volume: Any, projections: Any, rays: RayPlan, threads: int | None = None) -> None:
    """Project ``volume[y, x, z]`` into ``projections[view, column, row]`` (overwritten), both C-contiguous float32.

    Every ray is summed by itself: no result depends on the number of threads.
    """
    array_module(volume, projections)
    if on_device(volume):
        from dtomo.kernels.cuda import rays as there

        return there.forward(volume, projections, rays.tables)
    for part in rays.uprights:
        turned = np.ascontiguousarray(part.turned(volume))
        rays_upright.forward(turned, projections, part.tables, part.numbers, threads)
    rays_cpu.forward(volume, projections, rays.tables, rays.others, threads)


def adjoint(projections: Any, volume: Any, rays: RayPlan, threads: int | None = None) -> None:
    """Back-project ``projections[view, column, row]`` into ``volume[y, x, z]`` (overwritten): the exact transpose.

    A voxel is summed in a fixed order: no result depends on the number of threads.
    """
    array_module(volume, projections)
    if on_device(volume):
        from dtomo.kernels.cuda import rays as there

        return there.adjoint(projections, volume, rays.tables)
    volume[...] = 0
    for part in rays.uprights:
        view = part.turned(volume)
        turned = volume if part.axes == UPRIGHTS[0] else np.zeros(view.shape, np.float32)
        rays_upright.adjoint(projections, turned, part.tables, part.numbers, part.apart, threads)
        if turned is not volume:
            view += turned
    rays_cpu.adjoint(projections, volume, rays.tables, rays.others, threads)
