"""Loops of the stripe filters on devices: many sinograms at once, a thread for each column of each.

The functions of ``prep.stripe_kernels`` under the same names, on arrays with a row axis more. What a row becomes does
not depend on the others: every sum is taken in one order by one thread.
"""

from typing import Any

import numpy as np
from numba import cuda
from numpy.typing import NDArray

from dtomo.kernels.cuda.compiling import CudaKernel, cuda_kernel, device_function

THREADS = 128


def _launch(kernel: CudaKernel, rows: int, columns: int, *arguments: Any) -> None:
    """A thread for each column of each row; none where there are none."""
    if rows and columns:
        kernel.launch((-(-columns // kernel.threads[0]), rows), *arguments)


@cuda_kernel("void(float32[:, :, :], float64[:, ::1])", threads=(THREADS,))
def second_differences(values, result):  # type: ignore[no-untyped-def]
    """Mean absolute second difference along the angle of (angle, row, column)."""
    angles, rows, columns = values.shape
    for row in range(cuda.blockIdx.y, rows, cuda.gridDim.y):
        for c in range(cuda.grid(1), columns, cuda.gridsize(1)):
            total = np.float64(0)
            for k in range(1, angles - 1):
                bend = np.float64(values[k - 1, row, c]) - np.float64(2) * np.float64(values[k, row, c])
                total += abs(bend + np.float64(values[k + 1, row, c]))
            result[row, c] = total / np.float64(max(angles - 2, 1))


def column_roughness(values: Any) -> NDArray[np.float64]:
    """Mean absolute second difference along the angle of (angle, row, column): (row, column) float64."""
    import cupy

    _, rows, columns = values.shape
    result = cupy.empty((rows, columns), np.float64)
    _launch(second_differences, rows, columns, values, result)
    return result


@cuda_kernel("void(float32[:, :, :], float64[:, :, ::1])", threads=(THREADS,))
def run_means(values, result):  # type: ignore[no-untyped-def]
    """Means over runs of angles, as equal as can be: ``result[run, row, column]``."""
    angles, rows, columns = values.shape
    runs = result.shape[0]
    for job in range(cuda.blockIdx.y, runs * rows, cuda.gridDim.y):
        run, row = job // rows, job % rows
        start, stop = run * angles // runs, (run + 1) * angles // runs
        for c in range(cuda.grid(1), columns, cuda.gridsize(1)):
            total = np.float64(0)
            for k in range(start, stop):
                total += np.float64(values[k, row, c])
            result[run, row, c] = total / np.float64(stop - start)


def block_means(values: Any, blocks: int) -> NDArray[np.float32]:
    """Means over `blocks` runs of angles, as equal as can be, of (angle, row, column): (row, column, block) float32."""
    import cupy

    _, rows, columns = values.shape
    result = cupy.empty((blocks, rows, columns), np.float64)
    _launch(run_means, blocks * rows, columns, values, result)
    return cupy.moveaxis(result, 0, 2).astype(np.float32, order="C")


def quantile_means(ordered: Any, knots: int) -> NDArray[np.float32]:
    """Means of `knots` runs along the angles of sorted values (angle, row, column): (row, column, knot) float32."""
    return block_means(ordered, knots)


@cuda_kernel("void(float32[:, :, :], boolean[:, ::1])", threads=(THREADS,))
def interpolate_columns(values, bad):  # type: ignore[no-untyped-def]
    """Bad columns take the straight line between the nearest good ones; a row without good columns stays."""
    angles, rows, columns = values.shape
    for row in range(cuda.blockIdx.y, rows, cuda.gridDim.y):
        for c in range(cuda.grid(1), columns, cuda.gridsize(1)):
            if bad[row, c]:
                left, right = c - 1, c + 1
                while left >= 0 and bad[row, left]:
                    left -= 1
                while right < columns and bad[row, right]:
                    right += 1
                if left < 0:
                    left = right
                if right >= columns:
                    right = left
                if left < columns and right >= 0:
                    weight = np.float32(0)
                    if right > left:
                        weight = np.float32(c - left) / np.float32(right - left)
                    for k in range(angles):
                        value = values[k, row, left]
                        values[k, row, c] = value + weight * (values[k, row, right] - value)


def fill_columns(values: Any, bad: Any) -> None:
    """Replace `bad` columns (row, column) of (angle, row, column) by interpolation between the nearest good ones."""
    _launch(interpolate_columns, *bad.shape, values, bad)


def running_median(values: Any, size: int) -> NDArray[Any]:
    """Median over `size` (odd) neighbouring columns of (…, column, knot), mirrored at the ends."""
    from cupyx.scipy import ndimage

    return ndimage.median_filter(values, size=(*(1,) * (values.ndim - 2), size, 1), mode="reflect")


@device_function
def _median(line, start, stop, middle, deviations):  # type: ignore[no-untyped-def]
    """Median of a few values, or of their deviations from `middle`, by counting: takes no memory."""
    count = stop - start
    low, high = np.float64(0), np.float64(0)
    for i in range(start, stop):
        value = abs(line[i] - middle) if deviations else line[i]
        rank = 0
        for j in range(start, stop):
            other = abs(line[j] - middle) if deviations else line[j]
            if other < value or (other == value and j < i):
                rank += 1
        if rank == (count - 1) // 2:
            low = value
        if rank == count // 2:
            high = value
    return (low + high) / np.float64(2)


@cuda_kernel("void(float64[:, ::1], float64, float64, float64[::1], float64[::1], float64[:, ::1])", threads=(THREADS,))
def robust_means(lines, tuning, tiny, location, spread, parts):  # type: ignore[no-untyped-def]
    """Of each line: location by one step of Tukey's biweight, scaled median deviation, medians of equal parts."""
    count, size = lines.shape
    groups = parts.shape[1]
    for number in range(cuda.grid(1), count, cuda.gridsize(1)):
        line = lines[number]
        middle = _median(line, 0, size, np.float64(0), False)
        deviation = np.float64(1.4826) * _median(line, 0, size, middle, True)
        reach = tuning * deviation + tiny
        weights, total = np.float64(0), np.float64(0)
        for k in range(size):
            beside = line[k] - middle
            weight = max(np.float64(1) - (beside / reach) * (beside / reach), np.float64(0))
            weights += weight * weight
            total += weight * weight * beside
        location[number] = middle + total / weights
        spread[number] = deviation
        for group in range(groups):
            start, stop = group * size // groups, (group + 1) * size // groups
            parts[number, group] = _median(line, start, stop, np.float64(0), False)


def biweight(values: Any, groups: int, tuning: float) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Robust means over the last axis of a float64 CuPy array (…, value); all results are float64.

    Parameters
    ----------
    values
        A few per mean: medians are found by counting.
    groups
        Equal parts of the last axis.
    tuning
        Deviations from which a value is ignored.

    Returns
    -------
    location, spread
        (…): one step of Tukey's biweight from the median; 1.4826 times the median absolute deviation.
    parts
        (…, group): medians of the parts.
    """
    import cupy

    shape, size = values.shape[:-1], values.shape[-1]
    lines = cupy.ascontiguousarray(values).reshape(-1, size)
    location, spread = cupy.empty(len(lines), np.float64), cupy.empty(len(lines), np.float64)
    parts = cupy.empty((len(lines), groups), np.float64)
    tiny = float(np.finfo(np.float32).tiny)
    _launch(robust_means, 1, len(lines), lines, tuning, tiny, location, spread, parts)
    return location.reshape(shape), spread.reshape(shape), parts.reshape(*shape, groups)


@cuda_kernel(
    "void(float32[:, :, :], float32[:, :, ::1], float32[:, :, ::1], float32[:, ::1])", threads=(THREADS,)
)  # fmt: skip
def add_shifts(values, knots, slopes, shifts):  # type: ignore[no-untyped-def]
    """Add to each value (angle, row, column) a shift that is linear in it between the knots (knot, row, column)."""
    angles, rows, columns = values.shape
    for row in range(cuda.blockIdx.y, rows, cuda.gridDim.y):
        for c in range(cuda.grid(1), columns, cuda.gridsize(1)):
            for k in range(angles):
                value = values[k, row, c]
                shift = shifts[row, c]
                for q in range(slopes.shape[0]):
                    low = knots[q, row, c]
                    shift += slopes[q, row, c] * (min(max(value, low), knots[q + 1, row, c]) - low)
                values[k, row, c] = value + shift


def correct_by_value(values: Any, knots: Any, target: Any) -> None:
    """Add to each value of (angle, row, column) the shift target - knot, linear in the value between the knots.

    `knots` and `target` are (row, column, knot), `knots` ascending; beyond the first and last knot the shift is
    constant.
    """
    import cupy

    knots = cupy.ascontiguousarray(cupy.moveaxis(knots, 2, 0))
    shifts = cupy.ascontiguousarray(cupy.moveaxis(target, 2, 0)) - knots
    widths = knots[1:] - knots[:-1]
    slopes = cupy.where(widths > 0, (shifts[1:] - shifts[:-1]) / cupy.where(widths > 0, widths, 1), 0)
    _launch(add_shifts, *values.shape[1:], values, knots, slopes.astype(np.float32, copy=False), shifts[0])
