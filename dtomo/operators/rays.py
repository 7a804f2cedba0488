"""The projector of any `VectorGeometry`, with the exactly matched back-projector."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dtomo.arrays import array_module, empty_aligned, on_device
from dtomo.errors import UserError
from dtomo.geometry import VectorGeometry
from dtomo.kernels import rays
from dtomo.kernels.layout import projections_inside_out, volume_inside_out
from dtomo.operators.coarser import Coarser
from dtomo.operators.projection import Projector


@lru_cache(maxsize=64)
def ray_plan(geometry: VectorGeometry) -> rays.RayPlan:
    """The rays of a geometry, and how they are projected."""
    slices, height, width = geometry.shape
    return rays.plan(ray_tables(geometry), (width, height, slices), geometry.columns, geometry.rows)


def ray_tables(geometry: VectorGeometry) -> rays.RayTables:
    """The rays of a geometry in voxels."""
    g = geometry
    voxel = np.array(g.voxel[::-1])
    corner = np.array(g.middle) - (np.array(g.shape[::-1]) - 1) / 2 * voxel
    column, row = g.column_step / voxel, g.row_step / voxel
    point = (g.detector - corner) / voxel - (g.columns - 1) / 2 * column - (g.rows - 1) / 2 * row
    still = np.zeros_like(column)
    if g.beam == "parallel":
        length = np.linalg.norm(g.source, axis=1, keepdims=True)
        return rays.RayTables(point, column, row, g.source / length / voxel, still, still, voxel, -np.inf)
    source = (g.source - corner) / voxel
    if g.beam == "fan":
        source = source - (g.rows - 1) / 2 * row
        return rays.RayTables(point, column, row, point - source, column, still, voxel, -1.0)
    return rays.RayTables(point, column, row, point - source, column, row, voxel, -1.0)


class RayProjector(Projector):
    """Line integrals of a volume along the rays of any geometry, by Joseph's method; lengths in the geometry's unit.

    Maps a volume ``(z, y, x)`` to projections ``(view, row, column)``. Results have these shapes and z (row) innermost
    in memory; arrays in that layout are taken without a copy. Outside the volume there is nothing; behind the source
    nothing is seen.

    Parameters
    ----------
    geometry
        Rays and volume.
    dtype
        float32 or complex64.
    like
        An array of the kind that `zeros`, `row_sums` and their like shall return (see `ParallelProjector`).

    Raises
    ------
    UserError
        Another dtype; in use: arrays of other shapes, or complex where the operator is real.

    Notes
    -----
    See `dtomo.kernels.rays`. The same bits on any number of threads. Projections of slabs of a volume
    (`VectorGeometry.of_slices`) add up to those of the whole, to the rounding of float32.
    """

    separable = False

    def __init__(self, geometry: VectorGeometry, dtype: DTypeLike = np.float32, like: Any | None = None) -> None:
        self.geometry, self.dtype, self.device = geometry, np.dtype(dtype), on_device(like)
        if self.dtype not in (np.dtype(np.float32), np.dtype(np.complex64)):
            raise UserError(f"a projector works in float32 or complex64, not {self.dtype}")
        self.shape_in, self.length = geometry.shape, geometry.voxel[2]
        self.shape_out = (geometry.views, geometry.rows, geometry.columns)

    def of_views(self, numbers: Sequence[int] | NDArray[np.integer[Any]]) -> "RayProjector":
        """The projector of some views (see `LinearOperator.of_views`)."""
        return self._of(self.geometry.of_views(self._view_numbers(numbers)))

    def coarser(self, factor: int) -> Coarser:
        """On voxels and pixels `factor` times as large (see `VectorGeometry.coarser`)."""
        return Coarser(self._of(self.geometry.coarser(factor)), int(factor), self.shape_in)

    def _of(self, geometry: VectorGeometry) -> "RayProjector":
        other = RayProjector(geometry, self.dtype)
        other.device = self.device
        return other

    def _forward(self, x: NDArray[Any]) -> NDArray[Any]:
        views, rows, columns = self.shape_out
        out = empty_aligned((views, columns, rows), self.dtype, array_module(x))
        for part, result in self._parts(volume_inside_out(x), out):
            rays.forward(part, result, ray_plan(self.geometry))
        return np.swapaxes(out, 1, 2)

    def _adjoint(self, y: NDArray[Any]) -> NDArray[Any]:
        slices, height, width = self.shape_in
        out = empty_aligned((height, width, slices), self.dtype, array_module(y))
        for part, result in self._parts(projections_inside_out(y), out):
            rays.adjoint(part, result, ray_plan(self.geometry))
        return np.moveaxis(out, -1, 0)

    def _parts(self, given: NDArray[Any], out: NDArray[Any]) -> Any:
        """Real arrays to read and to write; of complex ones the real and the imaginary parts, one after the other."""
        if self.dtype.kind != "c":
            yield given, out
            return
        xp = array_module(given)
        result = xp.empty(out.shape, np.float32)
        for name in ("real", "imag"):
            yield xp.ascontiguousarray(getattr(given, name)), result
            setattr(out, name, result)
