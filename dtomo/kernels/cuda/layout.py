"""The transposition of `kernels.layout` on devices: tiles in shared memory, coalesced on both sides."""

from typing import Any

import numba
import numpy as np
from numba import cuda

from dtomo.kernels.cuda.compiling import cuda_kernel, device_function

TILE, PITCH = 32, 33
"""Side of a tile, and length of its rows in shared memory: values of a column lie in different banks."""


@device_function
def _turn(source, target, tile):  # type: ignore[no-untyped-def]
    """``target[k, j, i] = source[k, i, j]``, tile by tile; the block strides over the tiles of all k."""
    batch, high, wide = source.shape
    down, across = (high + TILE - 1) // TILE, (wide + TILE - 1) // TILE
    for job in range(cuda.blockIdx.x, batch * down * across, cuda.gridDim.x):
        k, i0, j0 = job // (down * across), job // across % down * TILE, job % across * TILE
        rows, columns = min(TILE, high - i0), min(TILE, wide - j0)
        for i in range(cuda.threadIdx.y, rows, cuda.blockDim.y):
            for j in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
                tile[i, j] = source[k, i0 + i, j0 + j]
        cuda.syncthreads()
        for j in range(cuda.threadIdx.y, columns, cuda.blockDim.y):
            for i in range(cuda.threadIdx.x, rows, cuda.blockDim.x):
                target[k, j0 + j, i0 + i] = tile[i, j]
        cuda.syncthreads()


@cuda_kernel("void(float32[:, :, ::1], float32[:, :, ::1])", threads=(32, 8))
def turn_words(source, target):  # type: ignore[no-untyped-def]
    """Transpose values of 4 bytes."""
    _turn(source, target, cuda.shared.array((TILE, PITCH), numba.float32))


@cuda_kernel("void(float64[:, :, ::1], float64[:, :, ::1])", threads=(32, 8))
def turn_double_words(source, target):  # type: ignore[no-untyped-def]
    """Transpose values of 8 bytes."""
    _turn(source, target, cuda.shared.array((TILE, PITCH), numba.float64))


_KERNELS = {4: (np.float32, turn_words), 8: (np.float64, turn_double_words)}


def transpose_pairs(source: Any) -> Any:
    """A C-contiguous copy with the last two axes of a device array ``[k, i, j]`` exchanged.

    Values of 4 and 8 bytes (complex64 among them) are moved by the kernels, others by CuPy.
    """
    import cupy

    if source.itemsize not in _KERNELS:
        return cupy.ascontiguousarray(source.swapaxes(1, 2))
    word, kernel = _KERNELS[source.itemsize]
    batch, high, wide = source.shape
    target = cupy.empty((batch, wide, high), source.dtype)
    tiles = batch * -(-high // TILE) * -(-wide // TILE)
    if tiles:
        kernel.launch(tiles, cupy.ascontiguousarray(source).view(word), target.view(word))
    return target
