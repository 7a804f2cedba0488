"""Between the public layout of arrays and the kernels', which has z (rows) innermost."""

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, empty_aligned, on_device, writeable_view
from dtomo.kernels.compiling import kernel
from dtomo.threads import run_jobs

_TILE = 32


@kernel
def _transpose(jobs, source, target):  # type: ignore[no-untyped-def]
    """``target[k, j, i] = source[k, i, j]`` for stripes jobs[0] <= job < jobs[1] of `_TILE` values of j."""
    _, high, wide = source.shape
    stripes = (wide + _TILE - 1) // _TILE
    for job in range(jobs[0], jobs[1]):
        k, j0 = job // stripes, (job % stripes) * _TILE
        j1 = min(wide, j0 + _TILE)
        for i0 in range(0, high, _TILE):
            i1 = min(high, i0 + _TILE)
            for j in range(j0, j1):
                for i in range(i0, i1):
                    target[k, j, i] = source[k, i, j]


def transpose_pairs(source: NDArray[np.generic]) -> NDArray[np.generic]:
    """A C-contiguous, aligned copy with the last two axes of ``[k, i, j]`` exchanged, on all threads or the device."""
    if on_device(source):
        from dtomo.kernels.cuda.layout import transpose_pairs as transpose_on_device

        return transpose_on_device(source)
    batch, high, wide = source.shape
    target = empty_aligned((batch, wide, high), source.dtype)
    stripes = batch * ((wide + _TILE - 1) // _TILE)
    run_jobs(lambda span: _transpose(span, source, target), stripes)
    return target


def volume_inside_out(volume: NDArray[np.generic]) -> NDArray[np.generic]:
    """``[y, x, z]`` memory of a volume ``(z, y, x)``: the same memory where z is innermost already."""
    volume = writeable_view(volume)
    inside = np.moveaxis(volume, 0, -1)
    if inside.flags.c_contiguous:
        return inside
    slices, height, width = volume.shape
    flat = array_module(volume).ascontiguousarray(volume).reshape(1, slices, height * width)
    return transpose_pairs(flat).reshape(height, width, slices)


def projections_inside_out(projections: NDArray[np.generic]) -> NDArray[np.generic]:
    """``[angle, column, row]`` memory of projections ``(angle, row, column)``, likewise."""
    projections = writeable_view(projections)
    inside = np.swapaxes(projections, 1, 2)
    if inside.flags.c_contiguous:
        return inside
    return transpose_pairs(projections)
