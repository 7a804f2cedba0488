"""Correlations of volumes at a few lags only, from their transforms: cheaper than an inverse transform of all.

With half transforms A and B of real volumes a and b, ``c(s) = sum over r of a(r + s) b(r)`` is the inverse transform
of A conj(B). Its sums over kx, ky and kz are done one after another, each for the few lags along its axis.
"""

from typing import NamedTuple

import numpy as np
import scipy.fft
from numpy.typing import ArrayLike, NDArray

from dtomo.arrays import array_module, on_device
from dtomo.kernels.compiling import kernel

_VECTOR = 8  # lags along x are filled up to a multiple of it


class Waves(NamedTuple):
    """Waves of each frequency at the lags of its axis, complex64 ``(frequency, lag)``; those along x carry the factors.

    ``across`` is the number of lags along x; the others there are filling.
    """

    z: NDArray[np.complex64]
    y: NDArray[np.complex64]
    x: NDArray[np.complex64]
    across: int


def waves_of(shape: tuple[int, int, int], columns: int, lags: tuple[ArrayLike, ArrayLike, ArrayLike]) -> Waves:
    """The waves of some lags.

    Parameters
    ----------
    shape
        ``(z, y, x)`` of the volumes.
    columns
        How many frequencies along x the transforms have, at most ``x // 2 + 1``.
    lags
        Along z, y and x, in voxels; need not be whole.
    """
    places = [np.asarray(axis, np.float64) for axis in lags]
    along = [
        np.exp(2j * np.pi * scipy.fft.fftfreq(n)[:, None] * place).astype(np.complex64)
        for n, place in zip(shape[:2], places)
    ]
    rate = scipy.fft.rfftfreq(shape[2])[:columns]
    factor = np.where((rate == 0) | (rate == 0.5), 1, 2)[:, None] / np.prod(shape, dtype=np.float64)
    last = np.zeros((columns, -(-len(places[2]) // _VECTOR) * _VECTOR), np.complex64)
    last[:, : len(places[2])] = factor * np.exp(2j * np.pi * rate[:, None] * places[2])
    return Waves(along[0], along[1], last, len(places[2]))


def correlate_at(
    first: NDArray[np.complex64], second: NDArray[np.complex64], ranges: NDArray[np.int32], waves: Waves
) -> NDArray[np.float32]:
    """Correlations at the lags of the waves.

    Parameters
    ----------
    first
        Half transform A ``(z, y, x)``.
    second
        Half transforms B ``(volume, z, y, x)``.
    ranges
        ``(z, y, 2)``: in each row the first frequency where A is not 0, and the one after the last.
    waves
        From `waves_of`; on the host.

    Returns
    -------
    ndarray
        float32 ``(volume, z, y, x)``, where the transforms lie.
    """
    xp = array_module(first, second)
    if not on_device(second):
        out = np.empty((len(second), waves.z.shape[1], waves.y.shape[1], waves.across), np.float32)
        tables = [_parts(table) for table in waves[:3]]
        for one, target in zip(second, out):
            _correlate(first, one, ranges, *tables, target)
        return out
    data = xp.matmul(first * xp.conj(second), xp.asarray(waves.x[:, : waves.across]))  # (volume, z, y, lag)
    data = xp.matmul(xp.swapaxes(data, 2, 3), xp.asarray(waves.y))  # (volume, z, lag x, lag y)
    data = xp.matmul(xp.moveaxis(data, 1, -1), xp.asarray(waves.z))  # (volume, lag x, lag y, lag z)
    return xp.ascontiguousarray(data.real.transpose(0, 3, 2, 1))


def _parts(table: NDArray[np.complex64]) -> NDArray[np.float32]:
    """Real and imaginary parts apart, ``(frequency, 2, lag)``: kernels run along lags."""
    return np.stack([table.real, table.imag], 1)


@kernel
def _correlate(a, b, ranges, wz, wy, wx, out):  # type: ignore[no-untyped-def]
    """Sums along x in registers of lags, then along y into a plane of lags, then along z."""
    depth, height, _ = a.shape
    width = wx.shape[2]
    high, wide, many = wz.shape[2], wy.shape[2], out.shape[2]
    total = np.zeros((high, wide, width), np.float32)
    plane = np.empty((2, wide, width), np.float32)
    real, imaginary = np.empty(width, np.float32), np.empty(width, np.float32)
    for z in range(depth):
        plane[:] = 0
        for y in range(height):
            first, last = ranges[z, y, 0], ranges[z, y, 1]
            if first >= last:
                continue
            real[:] = 0
            imaginary[:] = 0
            for x in range(first, last):
                value = a[z, y, x] * np.conj(b[z, y, x])
                p, q = value.real, value.imag
                for s in range(width):
                    real[s] += p * wx[x, 0, s] - q * wx[x, 1, s]
                    imaginary[s] += p * wx[x, 1, s] + q * wx[x, 0, s]
            for t in range(wide):
                c, d = wy[y, 0, t], wy[y, 1, t]
                for s in range(width):
                    plane[0, t, s] += c * real[s] - d * imaginary[s]
                    plane[1, t, s] += c * imaginary[s] + d * real[s]
        for u in range(high):
            c, d = wz[z, 0, u], wz[z, 1, u]
            for t in range(wide):
                for s in range(width):
                    total[u, t, s] += c * plane[0, t, s] - d * plane[1, t, s]
    for u in range(high):
        for t in range(wide):
            for s in range(many):
                out[u, t, s] = total[u, t, s]
