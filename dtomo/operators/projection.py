"""Projectors: from a volume to its projections, with the exactly matched back-projector."""

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dtomo.arrays import array_module, empty_aligned, on_device, single_precision
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.kernels import parallel
from dtomo.kernels.layout import projections_inside_out, volume_inside_out
from dtomo.kernels.sums import dot_slices
from dtomo.kernels.weights import Rays, interpolation, rays
from dtomo.operators.base import LinearOperator
from dtomo.operators.coarser import Coarser


@lru_cache(maxsize=128)
def joseph_rays(geometry: ParallelBeam) -> Rays:
    """Ray tables of a geometry (a few numbers of each angle), kept for the last ones: also for those of subsets."""
    g = geometry
    return rays(g.radians, g.center, g.columns, g.width, g.height, g.pitch)


@lru_cache(maxsize=8)
def interpolation_rays(geometry: ParallelBeam) -> Rays:
    """The same for the back projection of filtered back projection."""
    return interpolation(joseph_rays(geometry))


class Projector(LinearOperator):
    """Volumes ``(z, y, x)`` and projections ``(view, row, column)``, both with z (row) innermost in memory.

    Attributes
    ----------
    separable
        Whether every slice is projected by itself, so that inner products are taken slice by slice.
    """

    separable = True

    def zeros(self) -> NDArray[Any]:
        slices, height, width = self.shape_in
        out = empty_aligned((height, width, slices), self.dtype, self.xp)
        out[:] = 0
        return np.moveaxis(out, -1, 0)

    def arrange(self, data: NDArray[Any]) -> NDArray[Any]:
        return np.swapaxes(projections_inside_out(data.astype(self.dtype, copy=False)), 1, 2)

    def dot_in(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        return self._dot(*(volume_inside_out(a.astype(self.dtype, copy=False)) for a in (x, y)))

    def dot_out(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        return self._dot(*(projections_inside_out(a.astype(self.dtype, copy=False)) for a in (x, y)))

    def _dot(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        sums = dot_slices(*(_lanes(a).reshape(-1, a.shape[-1] * (a.itemsize // 4)) for a in (x, y)))
        sums = sums.reshape(-1, 2).sum(1) if self.dtype.kind == "c" else sums
        return sums if self.separable else sums.sum(keepdims=True)


class ParallelProjector(Projector):
    """Line integrals of a volume in parallel beam about z, by Joseph's method; lengths in voxels.

    Maps a volume ``(z, y, x)`` to projections ``(angle, row, column)``. Results have these shapes and z (row)
    innermost in memory; arrays in that layout are taken without a copy.

    Parameters
    ----------
    geometry
        Angles, detector and size of a slice.
    slices
        Rows of the detector and slices of the volume.
    dtype
        float32 or complex64.
    like
        An array of the kind that `zeros`, `row_sums` and their like shall return: None or NumPy's for the host,
        CuPy's for a GPU. `forward` and `adjoint` go by their arguments.

    Notes
    -----
    P. M. Joseph, IEEE Trans. Med. Imaging 1, 192-196 (1982). The adjoint uses the same weights to the last bit. A
    slice has the same bits alone, in any slab and on any number of threads (or in any grid of a GPU, whose sums are
    rounded in another order than the CPU's).
    """

    def __init__(
        self, geometry: ParallelBeam, slices: int, dtype: DTypeLike = np.float32, like: Any | None = None
    ) -> None:
        self.geometry, self.dtype, self.device = geometry, np.dtype(dtype), on_device(like)
        if self.dtype not in (np.dtype(np.float32), np.dtype(np.complex64)):
            raise UserError(f"a projector works in float32 or complex64, not {self.dtype}")
        if slices < 1:
            raise UserError(f"a projector needs at least one slice, not {slices}")
        self.shape_in = (int(slices), geometry.height, geometry.width)
        self.shape_out = (len(geometry.angles), int(slices), geometry.columns)

    def of_views(self, numbers: Sequence[int] | NDArray[np.integer[Any]]) -> "ParallelProjector":
        """The projector of some of the angles, in that order."""
        some = copy.copy(self)
        some.geometry = self.geometry.replace(angles=self.geometry.angles[self._view_numbers(numbers)])
        some.shape_out = (len(some.geometry.angles), *self.shape_out[1:])
        return some

    def coarser(self, factor: int) -> Coarser:
        """On voxels `factor` times as large within slices, and as many slices: each stays a problem of its own."""
        other = copy.copy(self)
        geometry = other.geometry = self.geometry.coarser(factor)
        other.shape_in = (self.shape_in[0], geometry.height, geometry.width)
        other.shape_out = (*self.shape_out[:2], geometry.columns)
        return Coarser(other, int(factor), self.shape_in, scale=1 / factor, centered=True)

    def norm(self, iterations: int = 30, seed: int = 0) -> float:
        """The largest singular value, from below, by the power method: that of a single slice, as all are alike."""
        if self.shape_in[0] == 1:
            return super().norm(iterations, seed)
        one = ParallelProjector(self.geometry, 1)
        one.device = self.device
        return one.norm(iterations, seed)

    def _forward(self, x: NDArray[Any]) -> NDArray[Any]:
        angles, slices, columns = self.shape_out
        out = empty_aligned((angles, columns, slices), self.dtype, array_module(x))
        parallel.forward(_lanes(volume_inside_out(x)), _lanes(out), joseph_rays(self.geometry))
        return np.swapaxes(out, 1, 2)

    def _adjoint(self, y: NDArray[Any]) -> NDArray[Any]:
        return _back(y, joseph_rays(self.geometry), self.shape_in, self.dtype)

    def adjoint_into(self, y: NDArray[Any], work: Callable[..., object], *volumes: Any) -> None:
        y = self._checked(y, self.shape_out, "adjoint")
        lanes = self.dtype.itemsize // 4
        moved = [_inside_out(volume, self.shape_in) for volume in volumes]
        slices, height, width = self.shape_in

        def finish(tile: NDArray[np.float32], at: tuple[slice, slice, slice]) -> None:
            place = (*at[:2], slice(at[2].start // lanes, at[2].stop // lanes))
            work(tile.view(self.dtype), *(v if np.ndim(v) == 0 else v[place] for v in moved))

        shape = (height, width, slices * lanes)
        if not parallel.adjoint_tiles(_lanes(projections_inside_out(y)), shape, joseph_rays(self.geometry), finish):
            super().adjoint_into(y, work, *volumes)

    def row_sums(self) -> NDArray[Any]:
        """Length of every ray in the volume, ``(angle, 1, column)``."""
        one = ParallelProjector(self.geometry, 1)
        return one.forward(self.xp.ones(one.shape_in, np.float32))

    def column_sums(self, weights: NDArray[Any] | None = None) -> NDArray[Any]:
        """Back projection of ones, ``(1, y, x)``, or of real weights, ``(z, y, x)``."""
        one = ParallelProjector(self.geometry, 1 if weights is None else self.shape_in[0])
        return one.adjoint(self.xp.ones(one.shape_out, np.float32) if weights is None else weights)


def _inside_out(volume: Any, shape: tuple[int, ...]) -> Any:
    """``[y, x, z]`` of a volume, or of what broadcasts to one; numbers as they are."""
    if np.ndim(volume) == 0:
        return volume
    return np.moveaxis(volume if volume.shape == shape else np.broadcast_to(volume, shape), 0, -1)


def backproject(projections: NDArray[Any], geometry: ParallelBeam) -> NDArray[Any]:
    """Sum over angles of projections ``(angle, row, column)`` interpolated linearly at every voxel: ``(z, y, x)``.

    The back projection of filtered back projection; not the adjoint of `ParallelProjector`.

    Raises
    ------
    UserError
        Projections that do not fit the geometry.
    """
    projections = check_projections(projections, geometry)
    shape = (projections.shape[1], geometry.height, geometry.width)
    return _back(projections, interpolation_rays(geometry), shape, projections.dtype)


def check_projections(projections: NDArray[Any], geometry: ParallelBeam) -> NDArray[Any]:
    """Projections in single precision, refused where their shape is not that of the geometry."""
    angles, columns = len(geometry.angles), geometry.columns
    shape = np.shape(projections)
    if len(shape) != 3 or (shape[0], shape[2]) != (angles, columns) or shape[1] < 1:
        raise UserError(
            f"projections of shape {shape} do not fit a geometry of {angles} angles and {columns} columns; the order "
            "of axes is (angle, row, column)"
        )
    return single_precision(projections if on_device(projections) else np.asarray(projections))


def _back(y: NDArray[Any], table: Rays, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    slices, height, width = shape
    out = empty_aligned((height, width, slices), dtype, array_module(y))
    parallel.adjoint(_lanes(projections_inside_out(y)), _lanes(out), table)
    return np.moveaxis(out, -1, 0)


def _lanes(array: NDArray[Any]) -> NDArray[np.float32]:
    """Complex data as two real slices each."""
    return array.view(np.float32)
