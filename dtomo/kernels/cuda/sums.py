"""Sums slice by slice on devices: the order, and so the bits, of `kernels.sums`."""

from typing import Any

import numpy as np
from numba import cuda
from numpy.typing import NDArray

from dtomo.kernels.cuda.compiling import cuda_kernel

LANES, GROUPS = 32, 4  # threads of a block along z, and blocks of the sum


@cuda_kernel("void(float32[:, ::1], float32[:, ::1], int64, float64[:, ::1])", threads=(LANES, GROUPS))
def dot_blocks(x, y, size, sums):  # type: ignore[no-untyped-def]
    """``sums[block, z]``: x y over rows of number `size` block to `size` (block + 1), one after the other."""
    count, slices = x.shape
    z0, z_step = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x, cuda.gridDim.y * cuda.blockDim.x
    first, step = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y, cuda.gridDim.x * cuda.blockDim.y
    for block in range(first, sums.shape[0], step):
        for z in range(z0, slices, z_step):
            total = np.float64(0)
            for i in range(size * block, min(count, size * (block + 1))):
                total += np.float64(x[i, z]) * np.float64(y[i, z])
            sums[block, z] = total


@cuda_kernel("void(float64[:, ::1], float64[::1])", threads=(LANES,))
def add_blocks(sums, totals):  # type: ignore[no-untyped-def]
    """``totals[z]``: the blocks in order."""
    for z in range(cuda.grid(1), totals.size, cuda.gridsize(1)):
        total = np.float64(0)
        for block in range(sums.shape[0]):
            total += sums[block, z]
        totals[z] = total


def dot_slices(x: Any, y: Any, size: int) -> NDArray[np.float64]:
    """``sum over i of x[i, z] y[i, z]`` in float64 for every z, on the host: blocks of `size`, then these in order.

    `x` and `y` are C-contiguous float32 CuPy arrays of one shape. Products of two float32 are exact, so that the
    result has the bits of the CPU's.
    """
    import cupy

    blocks, slices = -(-x.shape[0] // size), x.shape[1]
    sums, totals = cupy.zeros((blocks, slices), np.float64), cupy.zeros(slices, np.float64)
    across = -(-slices // LANES)
    dot_blocks.launch((-(-blocks // GROUPS), across), x, y, size, sums)
    add_blocks.launch(across, sums, totals)
    return np.asarray(totals.get())
