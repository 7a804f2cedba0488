"""Views joined with their mirrored partners on devices, in one pass: a block of threads for each line of the result."""

from typing import Any

import numpy as np
from numba import cuda

from dtomo.kernels.cuda.compiling import cuda_kernel, device_function

THREADS = 128


@device_function
def _between(values, first, second, part, row, column):  # type: ignore[no-untyped-def]
    """A column, or that at the edge, of the view between two."""
    column = min(max(column, 0), values.shape[2] - 1)
    value = values[first, row, column]
    if part > np.float32(0):
        value += part * (values[second, row, column] - value)
    return value


@cuda_kernel(
    *(
        f"void({numbers}[:, :, :], int64[:, ::1], float32[::1], int64, int64, float32[::1], float32[::1],"
        f" {numbers}[:, :, ::1])"
        for numbers in ("float32", "complex64")
    ),
    threads=(THREADS,),
)
def fold_lines(values, views, share, offset, whole, taps, direct, out):  # type: ignore[no-untyped-def]
    """A line of `out` is that of a view, by `direct`, and the mirrored one of its partner, by what is left of 1.

    `views` has for each joined view the direct one and the two around its partner; `share` is the second's weight.
    Column j takes the partner at column ``whole - j`` and its neighbours, weighted by `taps`.
    """
    rows, columns, wide = values.shape[1], values.shape[2], out.shape[2]
    for number in range(cuda.blockIdx.x, out.shape[0] * rows, cuda.gridDim.x):
        joined, row = number // rows, number % rows
        view, first, second, part = views[joined, 0], views[joined, 1], views[joined, 2], share[joined]
        for j in range(cuda.threadIdx.x, wide, cuda.blockDim.x):
            source = whole - j - (taps.size - 1) // 2
            total = taps[0] * _between(values, first, second, part, row, source)
            for t in range(1, taps.size):
                total += taps[t] * _between(values, first, second, part, row, source + t)
            total = total * (np.float32(1) - direct[j])
            if offset <= j < offset + columns:
                total += direct[j] * values[view, row, j - offset]
            out[joined, row, j] = total


def fold(values: Any, views: Any, share: Any, offset: int, whole: int, taps: Any, direct: Any, out: Any) -> None:
    """Join the views of a full turn with their mirrored partners.

    Parameters
    ----------
    values
        (angle, row, column) float32 or complex64, a CuPy array of any strides.
    views
        (joined view, 3), host: numbers of the direct view and of the two around its partner.
    share
        (joined view,), host: weight of the second of these two.
    offset
        Column of the result where the direct view begins.
    whole
        Column of the partner that comes to column 0 of the result.
    taps
        Host: weights of the columns from ``whole - (size - 1) // 2`` on.
    direct
        (wide column,), host: weight of the direct view.
    out
        (joined view, row, wide column), C-contiguous CuPy array of the type of `values`; other memory.
    """
    import cupy

    tables = [np.ascontiguousarray(table, np.float32) for table in (share, taps, direct)]
    share, taps, direct = (cupy.asarray(table) for table in tables)
    views = cupy.asarray(np.ascontiguousarray(views, np.int64))
    fold_lines.launch(out.shape[0] * out.shape[1], values, views, share, offset, whole, taps, direct, out)
