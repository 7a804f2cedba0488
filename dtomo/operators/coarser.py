"""A problem on larger voxels: its operator, its data, and the way of volumes there and back."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module

if TYPE_CHECKING:
    from dtomo.operators.base import LinearOperator


@dataclasses.dataclass(frozen=True)
class Coarser:
    """What `LinearOperator.coarser` returns.

    Attributes
    ----------
    operator
        Of the coarse problem.
    factor
        How many times larger voxels and pixels are, along axes that differ.
    shape
        Of the fine volume.
    scale
        What coarse projections of one body are times the fine ones: 1, or 1 / factor where lengths are in voxels.
    centered
        Whether both volumes have their middles in one place; else their first corners.
    """

    operator: "LinearOperator"
    factor: int
    shape: tuple[int, ...]
    scale: float = 1.0
    centered: bool = False

    def data(self, fine: NDArray[Any], weights: NDArray[Any] | None = None) -> NDArray[Any]:
        """Projections of the coarse problem: (weighted) means of pixels, in its units; 0 where nothing has a weight."""
        if weights is None:
            return self.means(fine) * np.float32(self.scale)
        xp = array_module(fine)
        weights = xp.broadcast_to(weights, fine.shape)
        seen = self.means(weights)
        sums = self.means(np.where(weights > 0, fine * weights, 0))
        return sums * np.where(seen > 0, np.float32(self.scale) / np.where(seen > 0, seen, 1), 0)

    def means(self, fine: NDArray[Any]) -> NDArray[Any]:
        """Means of the pixels in each coarse one, of what broadcasts to projections (weights); axes of 1 stay."""
        target = self.operator.shape_out[len(self.operator.shape_out) - fine.ndim :]
        for axis, size in enumerate(target):
            count = fine.shape[axis]
            if count <= size:
                continue
            first = np.arange(0, count, self.factor)
            lengths = np.minimum(self.factor, count - first).astype(np.float32)
            fine = _sums(fine, axis, self.factor, len(first))
            fine = fine / array_module(fine).asarray(
                lengths.reshape([-1 if k == axis else 1 for k in range(fine.ndim)])
            )
        return fine

    def volume(self, fine: NDArray[Any]) -> NDArray[Any]:
        """A fine volume (or what broadcasts to one) at the middles of coarse voxels."""
        target = self.operator.shape_in[len(self.operator.shape_in) - fine.ndim :]
        for axis, size in enumerate(target):
            if fine.shape[axis] not in (1, size):
                fine = _sampled(fine, axis, self._places(size, fine.shape[axis], self.factor))
        return fine

    def refined(self, coarse: NDArray[Any]) -> NDArray[Any]:
        """A coarse volume at the middles of fine voxels, interpolated linearly."""
        for axis, size in enumerate(self.shape):
            if coarse.shape[axis] != size:
                coarse = _sampled(coarse, axis, self._places(size, coarse.shape[axis], 1 / self.factor))
        return coarse

    def _places(self, count: int, other: int, ratio: float) -> NDArray[np.float64]:
        """Where `count` voxels, `ratio` times as large as the `other` ones, have their middles among those."""
        if self.centered:
            return (np.arange(count, dtype=np.float64) - (count - 1) / 2) * ratio + (other - 1) / 2
        return (np.arange(count, dtype=np.float64) + 0.5) * ratio - 0.5


def _sums(values: NDArray[Any], axis: int, factor: int, groups: int) -> NDArray[Any]:
    """Sums of `factor` neighbours; the last group may have fewer."""
    cut = (slice(None),) * axis
    shape = list(values.shape)
    shape[axis] = groups
    total = array_module(values).zeros(shape, values.dtype if values.dtype.kind in "fc" else np.float32)
    for start in range(factor):
        part = values[(*cut, slice(start, None, factor))]
        total[(*cut, slice(0, part.shape[axis]))] += part
    return total


def _sampled(values: NDArray[Any], axis: int, places: NDArray[np.float64]) -> NDArray[Any]:
    """Values at places along an axis, interpolated linearly; beyond the ends those at the ends."""
    xp, count = array_module(values), values.shape[axis]
    places = np.clip(places, 0, count - 1)
    first = np.minimum(places.astype(np.int64), max(count - 2, 0))
    rest = (places - first).astype(np.float32).reshape([-1 if k == axis else 1 for k in range(values.ndim)])
    near, far = (xp.take(values, xp.asarray(np.minimum(at, count - 1)), axis) for at in (first, first + 1))
    far -= near
    far *= xp.asarray(rest)
    far += near
    return far
