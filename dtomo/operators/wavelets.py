"""Orthogonal wavelet transforms of volumes, for any array module."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, single_precision
from dtomo.elementwise import DEVICE_PIECE
from dtomo.errors import UserError
from dtomo.kernels import wavelets
from dtomo.operators.base import LinearOperator
from dtomo.threads import run_jobs

_PIECE = 1 << 17  # elements of one job
_SHORTEST = 4  # values along the innermost axis of memory that are worth a kernel


@lru_cache(maxsize=16)
def daubechies(moments: int) -> NDArray[np.float64]:
    """The 2 · `moments` coefficients of the orthogonal low-pass filter with so many vanishing moments (1: Haar).

    I. Daubechies, Commun. Pure Appl. Math. 41, 909-996 (1988): the factor of the half-band polynomial with all roots
    inside of the unit circle, times (1 + z) to the power of `moments`; their sum is √2.
    """
    halfband = [math.comb(moments - 1 + k, k) for k in range(moments)]
    filter_ = np.ones(1, np.complex128)
    for y in np.roots(halfband[::-1]):
        pair = np.roots([1.0, 4 * y - 2, 1.0])
        filter_ = np.convolve(filter_, [1.0, -pair[np.argmin(np.abs(pair))]])
    for _ in range(moments):
        filter_ = np.convolve(filter_, [1.0, 1.0])
    real = filter_.real
    return real * (math.sqrt(2) / real.sum())


class WaveletTransform(LinearOperator):
    """From a volume to its wavelet coefficients, in an array of the same shape; the adjoint is the inverse.

    After each level what is coarse, ``ceil(n / 2)`` values along each axis, lies first, what is fine behind it; the
    next level goes on with the coarse corner. Borders are periodic. Where n is odd the last value counts as coarse as
    it is: so the transform is orthogonal for any size.

    Parameters
    ----------
    shape
        ``(z, y, x)``
    moments
        Vanishing moments of Daubechies' filter, 1 (Haar) to 8.
    levels
        At most so many; as many as have room for the filter are done.
    dimensions
        2: each slice by itself, 3: all axes.
    dtype
        float32 or complex64.
    device
        Whether arrays that the operator makes lie on a GPU.

    Raises
    ------
    UserError
        Numbers out of range.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        moments: int = 2,
        levels: int = 4,
        dimensions: int = 2,
        dtype: Any = np.float32,
        device: bool = False,
    ) -> None:
        if not 1 <= moments <= 8 or levels < 1 or dimensions not in (2, 3):
            raise UserError(
                "wavelets have 1 to 8 vanishing moments, at least 1 level and 2 or 3 dimensions; got "
                f"{moments}, {levels} and {dimensions}"
            )
        self.shape_in = self.shape_out = tuple(shape)
        self.dtype, self.device, self.moments = np.dtype(dtype), device, int(moments)
        axes = (0, 1, 2)[3 - dimensions :]
        self.corners: list[tuple[int, ...]] = [self.shape_in]
        """Shapes of what is coarse, before the first level and after each one."""
        for _ in range(int(levels)):
            sizes = self.corners[-1]
            if any(1 < sizes[axis] < 2 * moments for axis in axes) or all(sizes[axis] == 1 for axis in axes):
                break
            self.corners.append(tuple(-(-n // 2) if axis in axes else n for axis, n in enumerate(sizes)))
        self.axes = axes

    def _forward(self, x: NDArray[Any]) -> NDArray[Any]:
        return self.take_apart(single_precision(x).copy(order="K"))

    def _adjoint(self, y: NDArray[Any]) -> NDArray[Any]:
        return self.put_together(single_precision(y).copy(order="K"))

    def take_apart(self, volume: NDArray[Any]) -> NDArray[Any]:
        """`forward` in the place of the volume, which is of the operator's dtype."""
        for corner in self.corners[:-1]:
            for axis in self.axes:
                self._along(_split, wavelets.split, volume, corner, axis)
        return volume

    def put_together(self, coefficients: NDArray[Any]) -> NDArray[Any]:
        """`adjoint` in the place of the coefficients."""
        for corner in self.corners[-2::-1]:
            for axis in self.axes:
                self._along(_join, wavelets.join, coefficients, corner, axis)
        return coefficients

    def _along(
        self,
        work: Callable[..., None],
        kernel: Callable[..., None],
        out: NDArray[Any],
        corner: tuple[int, ...],
        axis: int,
    ) -> None:
        """One level along one axis, in place: by a kernel where it can, else in pieces across the axis."""
        if corner[axis] < 2:
            return
        low = daubechies(self.moments).astype(np.float32)
        on_host = array_module(out) is np
        order = sorted(range(3), key=lambda k: (out.strides[k], -k), reverse=True)
        memory = out.transpose(order)
        if on_host and memory.flags.c_contiguous and order[2] != axis and corner[order[2]] >= _SHORTEST:
            kernel(memory.view(np.float32), _lanes(corner, order, out.dtype), order.index(axis), low)
            return
        part = out[tuple(slice(n) for n in corner)]
        lines = np.moveaxis(part, axis, 0)
        others = [lines.strides[k] if lines.shape[k] > 1 else -1 for k in (1, 2)]
        cut = 1 + int(np.argmax(others))
        lines = np.moveaxis(lines, cut, 1)
        high = wavelets.high_pass(low)
        step = max(1, (_PIECE if on_host else DEVICE_PIECE) * lines.shape[1] // max(lines.size, 1))

        def job(span: tuple[int, int]) -> None:
            for number in range(*span):
                work(lines[:, number * step : (number + 1) * step], low, high)

        pieces = -(-lines.shape[1] // step)
        if on_host:
            run_jobs(job, pieces)
        else:
            job((0, pieces))


def _lanes(corner: tuple[int, ...], order: list[int], dtype: np.dtype[Any]) -> tuple[int, int, int]:
    """A corner by the axes of memory, complex numbers as two values."""
    one, two, three = (corner[k] for k in order)
    return one, two, three * (2 if dtype.kind == "c" else 1)


def _split(lines: NDArray[Any], low: NDArray[np.float32], high: NDArray[np.float32]) -> None:
    """Lines along the first axis into what is coarse and what is fine."""
    half = len(lines) // 2
    even, odd = _wrapped(lines[0 : 2 * half : 2], len(low) // 2), _wrapped(lines[1 : 2 * half : 2], len(low) // 2)
    coarse, fine = (
        sum(f[2 * i] * even[i : i + half] + f[2 * i + 1] * odd[i : i + half] for i in range(len(f) // 2))
        for f in (low, high)
    )
    if len(lines) % 2:
        lines[half] = lines[-1].copy()
    lines[:half] = coarse
    lines[len(lines) - half :] = fine


def _join(lines: NDArray[Any], low: NDArray[np.float32], high: NDArray[np.float32]) -> None:
    """The way back."""
    half, taps = len(lines) // 2, len(low) // 2
    coarse, fine = (_wrapped(part, taps, before=True) for part in (lines[:half], lines[len(lines) - half :]))
    # entry k of what is wrapped stands for entry k - taps + 1
    even, odd = (
        sum(
            low[2 * i + odd] * coarse[taps - 1 - i : taps - 1 - i + half]
            + high[2 * i + odd] * fine[taps - 1 - i : taps - 1 - i + half]
            for i in range(taps)
        )
        for odd in (0, 1)
    )
    if len(lines) % 2:
        lines[-1] = lines[half].copy()
    lines[0 : 2 * half : 2], lines[1 : 2 * half : 2] = even, odd


def _wrapped(part: NDArray[Any], taps: int, before: bool = False) -> NDArray[Any]:
    """A copy that goes on periodically for `taps` - 1 entries, behind or before."""
    xp, count = array_module(part), len(part)
    places = np.arange(count + taps - 1) - (taps - 1 if before else 0)
    return part[xp.asarray(places % count)]
