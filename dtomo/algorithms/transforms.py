"""Priors of sparse coefficients: of wavelets, and of singular values."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.algorithms.proximal import Proximal, check_strength, per_slice
from dtomo.arrays import array_module, single_precision
from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.operators import WaveletTransform


class Wavelets(Proximal):
    """``strength · Σ |fine coefficients|`` of an orthogonal wavelet transform; what is coarsest is free.

    Parameters
    ----------
    strength
        From 0.
    moments
        Vanishing moments of Daubechies' filter: 1 (Haar) for pieces of one value, 2 or more for smoother ones.
    levels
        Of the transform, at most.
    dimensions
        2: of each slice by itself, 3: of the volume.
    spins
        Means over so many shifts of the volume along the diagonal (cycle spinning): fewer blocks. With more than one
        it is no exact proximal map any more.

    Raises
    ------
    UserError
        Numbers out of range.

    Notes
    -----
    D. L. Donoho, IEEE Trans. Inf. Theory 41, 613-627 (1995), for soft thresholds; R. R. Coifman and D. L. Donoho,
    Lect. Notes Stat. 103, 125-150 (1995), for cycle spinning.
    """

    def __init__(self, strength: float, moments: int = 2, levels: int = 4, dimensions: int = 2, spins: int = 1) -> None:
        check_strength(strength, "the wavelets' prior")
        if spins < 1 or spins != int(spins):
            raise UserError(f"the number of shifts of the wavelets is a whole number from 1; got {spins}")
        WaveletTransform((1, 1, 1), moments, levels, dimensions)
        self.strength, self.moments, self.levels, self.dimensions = strength, moments, levels, dimensions
        self.spins, self.separable = int(spins), dimensions == 2

    def apply(self, x: NDArray[Any], step: Any) -> NDArray[Any]:
        """See `Proximal`."""
        limit = per_slice(x, self.strength, step)
        if self.spins == 1:
            return self._shrunk(x, limit)
        axes = (0, 1, 2)[3 - self.dimensions :]
        total = array_module(x).zeros_like(x)
        for shift in range(self.spins):
            moved = self._shrunk(np.roll(x, (shift,) * len(axes), axes), limit)
            total += np.roll(moved, (-shift,) * len(axes), axes)
        total *= np.float32(1 / self.spins)
        return total

    def value(self, x: NDArray[Any]) -> float:
        """See `Proximal`; without shifts."""
        transform = self._transform(x)
        fine = np.abs(transform.forward(x))
        fine[tuple(slice(n) for n in transform.corners[-1])] = 0
        return self.strength * float(fine.sum(dtype=np.float64))

    def _shrunk(self, x: NDArray[Any], limit: Any) -> NDArray[Any]:
        """In the place of the volume."""
        transform = self._transform(x)
        coefficients = transform.take_apart(single_precision(x))
        corner = tuple(slice(n) for n in transform.corners[-1])
        coarse = coefficients[corner].copy()
        in_pieces(_shrink, coefficients, limit)
        coefficients[corner] = coarse
        return transform.put_together(coefficients)

    def _transform(self, x: NDArray[Any]) -> WaveletTransform:
        return WaveletTransform(
            x.shape, self.moments, self.levels, self.dimensions, x.dtype, array_module(x) is not np
        )  # fmt: skip


class NuclearNorm(Proximal):
    """``strength · Σ singular values`` of the matrix that has a slice (a channel, a moment of time) in each row.

    The slices are taken to be alike up to a few patterns, as those of spectral and of time-resolved scans are, where
    each channel is a slice of the operator.

    Parameters
    ----------
    strength
        From 0.
    patch
        None: one matrix of whole slices. Else one matrix for each square of so many voxels: alike locally.

    Raises
    ------
    UserError
        Numbers out of range.

    Notes
    -----
    J.-F. Cai, E. J. Candès and Z. Shen, SIAM J. Optim. 20, 1956-1982 (2010). Singular values come from the matrix of
    inner products of slices, in float64, so that no volume is ever decomposed.
    """

    def __init__(self, strength: float, patch: int | None = None) -> None:
        check_strength(strength, "the nuclear norm")
        if patch is not None and (patch < 1 or patch != int(patch)):
            raise UserError(f"patches of the nuclear norm are a whole number of voxels wide; got {patch}")
        self.strength, self.patch = strength, patch

    def apply(self, x: NDArray[Any], step: Any) -> NDArray[Any]:
        """See `Proximal`."""
        limit = float(per_slice(x, self.strength, step))
        xp, columns = array_module(x), self._columns(x)
        values, vectors = xp.linalg.eigh(_inner(columns))
        sizes = np.sqrt(np.maximum(values, 0))
        there = sizes > limit
        kept = np.where(there, 1 - limit / np.where(there, sizes, 1), 0)
        mixing = (vectors * kept[:, None, :]) @ np.conj(np.swapaxes(vectors, 1, 2))
        return self._volume(columns @ mixing.astype(x.dtype), x)

    def value(self, x: NDArray[Any]) -> float:
        """See `Proximal`."""
        values = array_module(x).linalg.eigvalsh(_inner(self._columns(x)))
        return self.strength * float(np.sqrt(np.maximum(values, 0)).sum())

    def _columns(self, x: NDArray[Any]) -> NDArray[Any]:
        """``(patch, voxel, slice)``: no copy of whole slices where z is innermost in memory.

        Patches beyond the edge are filled with zeros, which change no singular value.
        """
        slices, height, width = x.shape
        inside = np.moveaxis(x, 0, -1)
        if self.patch is None:
            return inside.reshape(1, height * width, slices)
        p = self.patch
        down, across = -(-height // p), -(-width // p)
        whole = array_module(x).zeros((down * p, across * p, slices), x.dtype)
        whole[:height, :width] = inside
        return whole.reshape(down, p, across, p, slices).transpose(0, 2, 1, 3, 4).reshape(down * across, p * p, slices)

    def _volume(self, columns: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
        """The way back."""
        slices, height, width = x.shape
        if self.patch is None:
            return np.moveaxis(columns.reshape(height, width, slices), -1, 0)
        p = self.patch
        down, across = -(-height // p), -(-width // p)
        whole = columns.reshape(down, across, p, p, slices).transpose(0, 2, 1, 3, 4)
        whole = whole.reshape(down * p, across * p, slices)[:height, :width]
        return np.moveaxis(array_module(x).ascontiguousarray(whole), -1, 0)


def _inner(columns: NDArray[Any]) -> NDArray[Any]:
    """``columnsᴴ columns`` in double precision, a few voxels at a time."""
    double = np.complex128 if np.iscomplexobj(columns) else np.float64
    patches, voxels, slices = columns.shape
    total = array_module(columns).zeros((patches, slices, slices), double)
    step = max(1, (1 << 20) // (patches * slices))
    for first in range(0, voxels, step):
        part = columns[:, first : first + step].astype(double)
        other = np.conj(part) if np.iscomplexobj(part) else part  # itself: then BLAS forms half of the products
        total += np.swapaxes(other, 1, 2) @ part
    return total


def _shrink(values: NDArray[Any], limit: Any) -> None:
    """Magnitudes less `limit`, not below 0, in place."""
    if not np.iscomplexobj(values):
        within = np.minimum(values, limit)
        np.maximum(within, -limit, out=within)
        values -= within
        return
    size = np.abs(values)
    values *= np.maximum(size - limit, 0) / np.maximum(size, np.float32(1e-30))
