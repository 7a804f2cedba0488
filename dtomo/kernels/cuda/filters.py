"""Lines filtered on a device: continued and transposed into a batch of fixed size, filtered by cuFFT, transposed back.

CuPy copies, without coalescing, what is transformed along any axis but the last, so that z innermost has to be turned
anyhow. To continue a line takes a copy as well: one kernel does both. Of all that a filter reads and writes (17 times
the lines: the transforms and the product act on lines of twice the length) the copies there and back are less than a
third, coalesced on both sides.
"""

from typing import Any

import numba
import numpy as np
from numba import cuda

from dtomo.kernels.cuda.compiling import cuda_kernel
from dtomo.kernels.cuda.layout import PITCH, TILE
from dtomo.kernels.filters import line_continuation

WORKSPACE = 256 * 2**20
"""Bytes: a batch of continued lines, their spectra, the filtered lines, and as much again for cuFFT."""


def lines_at_once(length: int) -> int:
    """Lines in a batch: by their length alone, so that one plan of cuFFT filters all of them, in any slab."""
    return max(1, WORKSPACE // (16 * length))


@cuda_kernel(
    "void(float32[:, :, ::1], int64, int64, int64, float32[::1], int64, float32[:, ::1])", threads=(32, 8)
)  # fmt: skip
def continue_lines(lines, first, z0, slices, continuation, left, padded):  # type: ignore[no-untyped-def]
    """``padded[k]`` = line first + k of ``lines[angle, :, z0 : z0 + slices]``, numbered angle by angle.

    Column 0 comes to lie at `left`; beyond the detector edge values are multiplied by `continuation`. Past the last
    line there are zeros.
    """
    tile = cuda.shared.array((TILE, PITCH), numba.float32)
    angles, columns, _ = lines.shape
    count, length = padded.shape
    across = (length + TILE - 1) // TILE
    for job in range(cuda.blockIdx.x, (count + TILE - 1) // TILE * across, cuda.gridDim.x):
        k0, p0 = job // across * TILE, job % across * TILE
        rows, places = min(TILE, count - k0), min(TILE, length - p0)
        for k in range(cuda.threadIdx.x, rows, cuda.blockDim.x):
            line = first + k0 + k
            angle, z = line // slices, z0 + line % slices
            for p in range(cuda.threadIdx.y, places, cuda.blockDim.y):
                if angle < angles:
                    column = min(max(p0 + p - left, 0), columns - 1)
                    tile[p, k] = lines[angle, column, z] * continuation[p0 + p]
                else:
                    tile[p, k] = np.float32(0)
        cuda.syncthreads()
        for k in range(cuda.threadIdx.y, rows, cuda.blockDim.y):
            for p in range(cuda.threadIdx.x, places, cuda.blockDim.x):
                padded[k0 + k, p0 + p] = tile[p, k]
        cuda.syncthreads()


@cuda_kernel("void(float32[:, ::1], int64, int64, float32[:, ::1])", threads=(256,))
def multiply_spectra(spectra, first, slices, responses):  # type: ignore[no-untyped-def]
    """Spectrum first + k, real and imaginary parts in turn, times the response of its angle."""
    count, wide = spectra.shape
    for k in range(cuda.blockIdx.y, count, cuda.gridDim.y):
        angle = (first + k) // slices
        if angle < responses.shape[0]:
            for f in range(cuda.grid(2)[0], wide, cuda.gridsize(2)[0]):
                spectra[k, f] *= responses[angle, f // 2]


@cuda_kernel("void(float32[:, ::1], int64, int64, float32[:, :, ::1])", threads=(32, 8))
def take_lines(filtered, first, left, out):  # type: ignore[no-untyped-def]
    """The columns of the detector of ``filtered[k]`` back to line first + k of ``out[angle, column, z]``."""
    tile = cuda.shared.array((TILE, PITCH), numba.float32)
    angles, columns, slices = out.shape
    count = min(filtered.shape[0], angles * slices - first)
    across = (columns + TILE - 1) // TILE
    for job in range(cuda.blockIdx.x, (count + TILE - 1) // TILE * across, cuda.gridDim.x):
        k0, c0 = job // across * TILE, job % across * TILE
        rows, places = min(TILE, count - k0), min(TILE, columns - c0)
        for k in range(cuda.threadIdx.y, rows, cuda.blockDim.y):
            for c in range(cuda.threadIdx.x, places, cuda.blockDim.x):
                tile[k, c] = filtered[k0 + k, left + c0 + c]
        cuda.syncthreads()
        for k in range(cuda.threadIdx.x, rows, cuda.blockDim.x):
            line = first + k0 + k
            angle, z = line // slices, line % slices
            for c in range(cuda.threadIdx.y, places, cuda.blockDim.y):
                out[angle, c0 + c, z] = tile[k, c]
        cuda.syncthreads()


def _tiles(rows: int, columns: int) -> int:
    return -(-rows // TILE) * -(-columns // TILE)


class Continuation:
    """Device lines ``[angle, column, z]`` times `scale`, continued to `length` as `kernels.filters.pad_lines` does."""

    def __init__(self, lines: Any, length: int, extend: bool, scale: float = 1.0) -> None:
        import cupy

        self.lines, self.length = cupy.ascontiguousarray(lines), length
        self.left = (length - lines.shape[1]) // 2
        self._factors = cupy.asarray(line_continuation(lines.shape[1], length, extend) * np.float32(scale))

    def spectra(self, first: int, count: int, z0: int, slices: int) -> Any:
        """Spectra ``[line, frequency]`` of `count` lines of slices z0 : z0 + slices, numbered angle by angle."""
        import cupy
        import cupyx.scipy.fft

        padded = cupy.empty((count, self.length), np.float32)
        continue_lines.launch(
            _tiles(count, self.length), self.lines, first, z0, slices, self._factors, self.left, padded
        )
        return cupyx.scipy.fft.rfft(padded, axis=1, overwrite_x=True)


def filter_lines(lines: Any, responses: Any, length: int, extend: bool, out: Any = None) -> Any:
    """`kernels.filters.filter_lines` on a device; takes `WORKSPACE` besides the lines and the result.

    Every batch is one of the same plan of cuFFT, filled up with zeros: a line has the same bits in any slab as far as
    cuFFT treats the lines of a batch alike.
    """
    import cupy
    import cupyx.scipy.fft

    angles, columns, slices = lines.shape
    out = cupy.empty(lines.shape, np.float32) if out is None else out
    # the factor of the inverse transform, which leaves it out ("forward"): a pass over the result less
    continued, batch = Continuation(lines, length, extend, 1 / length), lines_at_once(length)
    responses = cupy.ascontiguousarray(responses)
    for first in range(0, angles * slices, batch):
        spectra = continued.spectra(first, batch, 0, slices)
        parts = spectra.view(np.float32)
        multiply_spectra.launch((-(-parts.shape[1] // 256), batch), parts, first, slices, responses)
        filtered = cupyx.scipy.fft.irfft(spectra, length, axis=1, norm="forward", overwrite_x=True)
        take_lines.launch(_tiles(batch, columns), filtered, first, continued.left, out)
    return out
