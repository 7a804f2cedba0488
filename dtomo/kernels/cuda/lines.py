"""Kernels that work on one detector line (angle, row) at a time, a block of threads each: no atomics, no other line.

The forms for devices of what ``prep.line_kernels`` does on the CPU: the same decisions, in float32 throughout. Good
lines are read once and written; only lines with something to repair take reductions over the block.
"""

import math
from typing import Any

import numba
import numpy as np
from numba import cuda
from numpy.typing import NDArray

from dtomo.kernels.cuda.compiling import cuda_kernel, device_function

THREADS = 128
"""Of a block; any smaller power of two is right."""
BLOCKS = 1 << 16
"""At most; a block strides over lines."""

COUNTS = ("uint8", "uint16", "uint32", "int16", "int32", "float32")
"""Types that counts may have."""

_TINY = np.float32(1.1754944e-38)
_INFINITY = np.float32(np.inf)


def _over_block(join: Any) -> Any:
    """A device function that joins a value of every thread of a block, in a fixed order, for all of them."""

    @device_function
    def joined(value, scratch):  # type: ignore[no-untyped-def]
        thread = cuda.threadIdx.x
        scratch[thread] = value  # shared
        cuda.syncthreads()
        half = cuda.blockDim.x // 2
        while half > 0:
            if thread < half:
                scratch[thread] = join(scratch[thread], scratch[thread + half])
            cuda.syncthreads()
            half //= 2
        result = scratch[0]
        cuda.syncthreads()
        return result

    return joined


@device_function
def _added(one, other):  # type: ignore[no-untyped-def]
    return one + other


@device_function
def _smaller(one, other):  # type: ignore[no-untyped-def]
    return min(one, other)


sum_of_block, least_of_block = _over_block(_added), _over_block(_smaller)


@device_function
def _fill_line(line, before, after):  # type: ignore[no-untyped-def]
    """Values that are not finite take the straight line between their nearest finite neighbours; one is finite.

    Each thread repairs a run of columns, and reads others only where they are finite. `before` and `after` are shared:
    the last and the first finite column of each thread's run, -1 where there is none.
    """
    thread, threads, columns = cuda.threadIdx.x, cuda.blockDim.x, line.size
    first, last = thread * columns // threads, (thread + 1) * columns // threads
    before[thread] = -1
    after[thread] = -1
    for k in range(first, last):
        if abs(line[k]) < _INFINITY:
            before[thread] = k
            if after[thread] < 0:
                after[thread] = k
    cuda.syncthreads()
    previous, other = -1, thread - 1
    while other >= 0 and previous < 0:
        previous = before[other]
        other -= 1
    following, other = -1, thread + 1
    while other < threads and following < 0:
        following = after[other]
        other += 1
    k = first
    while k < last:
        if abs(line[k]) < _INFINITY:
            previous = k
            k += 1
        else:
            end = k + 1
            while end < last and not abs(line[end]) < _INFINITY:
                end += 1
            right = end if end < last else following
            for j in range(k, end):
                if previous < 0:
                    line[j] = line[right]
                elif right < 0:
                    line[j] = line[previous]
                else:
                    weight = np.float32(j - previous) / np.float32(right - previous)
                    line[j] = line[previous] * (np.float32(1) - weight) + line[right] * weight
            k = end
    cuda.syncthreads()


@device_function
def _level_air(line, left, right, scratch):  # type: ignore[no-untyped-def]
    """Divide a line by the straight line through the means of its edges; False where that is not positive."""
    thread, threads, columns = cuda.threadIdx.x, cuda.blockDim.x, line.size
    part = np.float32(0)
    for k in range(thread, left, threads):
        part += line[k]
    first = sum_of_block(part, scratch)
    part = np.float32(0)
    for k in range(columns - right + thread, columns, threads):
        part += line[k]
    last = sum_of_block(part, scratch)
    first = first / np.float32(left) if left > 0 else last / np.float32(right)
    last = last / np.float32(right) if right > 0 else first
    begin = np.float32(left - 1) / np.float32(2) if left > 0 else np.float32(0)
    end = np.float32(columns - 1) - (np.float32(right - 1) / np.float32(2) if right > 0 else np.float32(0))
    slope = (last - first) / (end - begin) if end > begin else np.float32(0)
    base = first - slope * begin
    positive = base > np.float32(0) and base + slope * np.float32(columns - 1) > np.float32(0)
    if positive:
        for k in range(thread, columns, threads):
            line[k] = line[k] / (base + slope * np.float32(k))
        cuda.syncthreads()
    return positive


@device_function
def _minus_log_line(line, repaired, scratch):  # type: ignore[no-untyped-def]
    """In place -ln; in a line `repaired`, values that are not positive take its smallest one that is.

    Returns False where none is: the line then becomes 0.
    """
    thread, threads, columns = cuda.threadIdx.x, cuda.blockDim.x, line.size
    least = _TINY
    if repaired:
        smallest = _INFINITY
        for k in range(thread, columns, threads):
            if line[k] >= _TINY:
                smallest = min(smallest, line[k])
        least = least_of_block(smallest, scratch)
    for k in range(thread, columns, threads):
        value = np.float32(1) if least == _INFINITY else max(line[k], least)
        line[k] = np.float32(0) - math.log(value)  # not -0.0 for 1
    return least < _INFINITY


@cuda_kernel(
    *(
        f"void({counts}[:, :, ::1], float32[:, ::1], float32[:, ::1], int64, int64, int64, float32[:, :, ::1],"
        " int64[:, ::1])"
        for counts in COUNTS
    ),
    threads=(THREADS,),
)
def normalize_counts(counts, dark, signal, left, right, minus_log, out, found):  # type: ignore[no-untyped-def]
    """Counts (angle, row, column) to transmission or attenuation; `found` has a line for each block of threads."""
    numbers = cuda.shared.array(THREADS, numba.int32)
    others = cuda.shared.array(THREADS, numba.int32)
    values = cuda.shared.array(THREADS, numba.float32)
    angles, rows, columns = counts.shape
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    all_bad, all_low, empty, airless = 0, 0, 0, 0
    for number in range(cuda.blockIdx.x, angles * rows, cuda.gridDim.x):
        angle, row = number // rows, number % rows
        line = out[angle, row]
        bad, low = 0, 0
        for k in range(thread, columns, threads):
            value = (np.float32(counts[angle, row, k]) - dark[row, k]) / signal[row, k]
            line[k] = value
            if not abs(value) < _INFINITY:
                bad += 1
            elif minus_log and value < _TINY:
                low += 1
        if cuda.syncthreads_or(bad + low):
            bad = sum_of_block(bad, numbers)
            low = sum_of_block(low, numbers)
            all_bad += bad
            all_low += low
        if bad == columns:
            for k in range(thread, columns, threads):
                line[k] = np.float32(1)
            cuda.syncthreads()
            empty += 1
        elif bad > 0:
            _fill_line(line, numbers, others)
        if left + right > 0 and not _level_air(line, left, right, values):
            airless += 1
        if minus_log and not _minus_log_line(line, bad + low > 0, values):
            empty += 1
    if thread == 0:
        found[cuda.blockIdx.x, 0] = all_bad
        found[cuda.blockIdx.x, 1] = all_low
        found[cuda.blockIdx.x, 2] = empty
        found[cuda.blockIdx.x, 3] = airless


def normalize_lines(
    counts: Any, dark: Any, signal: Any, left: int, right: int, minus_log: bool, out: Any
) -> NDArray[np.int64]:
    """Counts (angle, row, column) to transmission or attenuation in `out`, line by line; all are CuPy arrays.

    Parameters
    ----------
    counts
        C-contiguous, of one of the types `COUNTS`.
    dark, signal
        (row, column) float32; `signal` is flat minus dark, NaN where the pixel is dead.
    left, right
        Columns of air at the edges.
    minus_log
        Attenuation, the negative logarithm, in place of transmission.
    out
        C-contiguous float32; may be `counts`.

    Returns
    -------
    (4,) int64 on the device: values that were not finite (dead pixels included), values that were not positive, lines
    without any usable value, lines without positive air.
    """
    import cupy

    blocks = min(counts.shape[0] * counts.shape[1], BLOCKS)
    found = cupy.zeros((blocks, 4), np.int64)
    normalize_counts.launch(blocks, counts, dark, signal, left, right, int(minus_log), out, found)
    return found.sum(axis=0)


@device_function
def _median_of_nine(values, angle, row, left, k, right):  # type: ignore[no-untyped-def]
    """Of the columns left, k, right in three successive views, by counting: seldom needed, and takes no memory."""
    middle = values[angle + 1, row, k]
    for i in range(9):
        a, c = i // 3, left if i % 3 == 0 else (k if i % 3 == 1 else right)
        value = values[angle + a, row, c]
        less, equal = 0, 0
        for j in range(9):
            b, d = j // 3, left if j % 3 == 0 else (k if j % 3 == 1 else right)
            other = values[angle + b, row, d]
            less += 1 if other < value else 0
            equal += 1 if other == value else 0
        if less <= 4 < less + equal:
            middle = value
    return middle


@cuda_kernel("void(float32[:, :, ::1], float32, int64, int64, float32[:, :, ::1], int64[::1])", threads=(THREADS,))
def replace_by_median(values, threshold, bright, dark, out, found):  # type: ignore[no-untyped-def]
    """Selective median over 3 x 3 (angle, column); `values` has one view more at each end than `out`."""
    numbers = cuda.shared.array(THREADS, numba.int32)
    angles, rows, columns = out.shape
    replaced = 0
    for number in range(cuda.blockIdx.x, angles * rows, cuda.gridDim.x):
        angle, row = number // rows, number % rows
        for k in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            left, right = max(k - 1, 0), min(k + 1, columns - 1)
            value = values[angle + 1, row, k]
            n0, n1 = values[angle, row, k], values[angle + 2, row, k]
            n2, n3 = values[angle + 1, row, left], values[angle + 1, row, right]
            # cheap test first: an outlier differs from all four neighbours
            above = bright and value > min(min(n0, n1), min(n2, n3)) + threshold
            below = dark and value < max(max(n0, n1), max(n2, n3)) - threshold
            if above or below:
                middle = _median_of_nine(values, angle, row, left, k, right)
                if (bright and value > middle + threshold) or (dark and value < middle - threshold):
                    value = middle
                    replaced += 1
            out[angle, row, k] = value
    replaced = sum_of_block(replaced, numbers)
    if cuda.threadIdx.x == 0:
        found[cuda.blockIdx.x] = replaced


def replace_outliers(values: Any, threshold: float, bright: bool, dark: bool, out: Any) -> NDArray[np.int64]:
    """Selective median over 3 x 3 (angle, column) in each row; all are C-contiguous float32 CuPy arrays.

    Parameters
    ----------
    values
        (angle + 2, row, column): one view more at each end than `out`; other memory than `out`.
    threshold
        A value is replaced when it differs from the median by more.
    bright, dark
        Which outliers to replace.
    out
        (angle, row, column).

    Returns
    -------
    0-d int64 on the device: how many values were replaced.
    """
    import cupy

    blocks = min(out.shape[0] * out.shape[1], BLOCKS)
    found = cupy.zeros(blocks, np.int64)
    replace_by_median.launch(blocks, values, np.float32(threshold), int(bright), int(dark), out, found)
    return found.sum()
