"""Sums slice by slice, in an order that does not depend on how many slices there are."""

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, on_device
from dtomo.kernels.compiling import kernel
from dtomo.threads import run_jobs

_BLOCK = 4096


@kernel
def _dot_blocks(jobs, x, y, sums):  # type: ignore[no-untyped-def]
    count, slices = x.shape
    for job in range(jobs[0], jobs[1]):
        total = sums[job]
        for i in range(job * _BLOCK, min(count, (job + 1) * _BLOCK)):
            for z in range(slices):
                total[z] += np.float64(x[i, z]) * np.float64(y[i, z])


def dot_slices(x: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.float64]:
    """``sum over i of x[i, z] y[i, z]`` in float64, for every z: blocks of 4096, then the blocks in order.

    `x` and `y` are float32 ``(count, slices)``, both on the host or both on a device (there C-contiguous). The result,
    ``(slices,)``, is on the host in any case: step lengths are made from it.

    Raises
    ------
    TypeError
        One array lies on the host and the other on a device.
    """
    array_module(x, y)
    if on_device(x):
        from dtomo.kernels.cuda.sums import dot_slices as dot_on_device

        return dot_on_device(x, y, _BLOCK)
    blocks = -(-x.shape[0] // _BLOCK)
    sums = np.zeros((blocks, x.shape[1]))
    run_jobs(lambda span: _dot_blocks(span, x, y, sums), blocks)
    total = np.zeros(x.shape[1])
    for block in sums:
        total += block
    return total
