"""Numba kernels of the stripe filters: one sinogram at a time."""

from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True, error_model="numpy")
def column_roughness(sinogram: Any) -> Any:
    """Mean absolute second difference along the angle of each column of (angle, column), float64."""
    angles, columns = sinogram.shape
    result = np.zeros(columns, np.float64)
    for k in range(1, angles - 1):
        before, line, after = sinogram[k - 1], sinogram[k], sinogram[k + 1]
        for c in range(columns):
            result[c] += abs(before[c] - 2 * line[c] + after[c])
    return result / max(angles - 2, 1)


@njit(nogil=True, cache=True, error_model="numpy")
def block_means(sinogram: Any, blocks: int) -> Any:
    """Means over `blocks` runs of angles, as equal as can be, of (angle, column): (column, block) float32."""
    angles, columns = sinogram.shape
    result = np.empty((columns, blocks), np.float32)
    total = np.empty(columns, np.float64)
    for b in range(blocks):
        start = b * angles // blocks
        stop = (b + 1) * angles // blocks
        total[:] = 0
        for k in range(start, stop):
            line = sinogram[k]
            for c in range(columns):
                total[c] += line[c]
        for c in range(columns):
            result[c, b] = np.float32(total[c] / (stop - start))
    return result


@njit(nogil=True, cache=True, error_model="numpy")
def fill_columns(sinogram: Any, bad: Any) -> None:
    """Replace bad columns of (angle, column) by linear interpolation between the nearest good ones."""
    count = sinogram.shape[1]
    previous = -1
    for c in range(count + 1):
        if c < count and bad[c]:
            continue
        left = previous if previous >= 0 else c
        right = c if c < count else previous
        for j in range(previous + 1, c):
            weight = np.float32(0) if left == right else np.float32((j - left) / (right - left))
            for k in range(sinogram.shape[0]):
                sinogram[k, j] = sinogram[k, left] + weight * (sinogram[k, right] - sinogram[k, left])
        previous = c


@njit(nogil=True, cache=True, error_model="numpy")
def quantile_means(ordered: Any, knots: int) -> Any:
    """Means of `knots` runs of equal length along each line of sorted values: (column, knot) float32."""
    columns, angles = ordered.shape
    result = np.empty((columns, knots), np.float32)
    for c in range(columns):
        for q in range(knots):
            start = q * angles // knots
            stop = (q + 1) * angles // knots
            total = 0.0
            for k in range(start, stop):
                total += ordered[c, k]
            result[c, q] = np.float32(total / (stop - start))
    return result


@njit(nogil=True, cache=True, error_model="numpy")
def _mirrored(index: int, size: int) -> int:
    """Index of the symmetric extension (edge repeated), for any distance."""
    index = index % (2 * size)
    return index if index < size else 2 * size - 1 - index


@njit(nogil=True, cache=True, error_model="numpy")
def running_median(values: Any, size: int) -> Any:
    """Median over `size` (odd) neighbouring lines of (column, knot) float32, mirrored at the ends."""
    columns, knots = values.shape
    result = np.empty((columns, knots), np.float32)
    window = np.empty(size, np.float32)
    half = size // 2
    for q in range(knots):
        count = 0
        for enters in range(-half, columns + half):
            if count == size:
                leaves = values[_mirrored(enters - size, columns), q]
                count -= 1
                for k in range(np.searchsorted(window, leaves), count):
                    window[k] = window[k + 1]
            value = values[_mirrored(enters, columns), q]
            k = count
            while k > 0 and window[k - 1] > value:
                window[k] = window[k - 1]
                k -= 1
            window[k] = value
            count += 1
            if count == size:
                result[enters - half, q] = window[half]
    return result


@njit(nogil=True, cache=True, error_model="numpy")
def correct_by_value(columns: Any, knots: Any, target: Any) -> None:
    """Add to each value of (column, angle) the shift target - knot, linear in the value between the knots.

    `knots` and `target` are (column, knot), `knots` ascending; beyond the first and last knot the shift is
    constant. The shift is a sum of clipped ramps, one per interval: no search, so that the compiler
    vectorises it.
    """
    shift = np.empty(columns.shape[1], np.float32)
    for c in range(columns.shape[0]):
        line = columns[c]
        shift[:] = target[c, 0] - knots[c, 0]
        for q in range(knots.shape[1] - 1):
            low = knots[c, q]
            high = knots[c, q + 1]
            rise = (target[c, q + 1] - high) - (target[c, q] - low)
            if not high > low:
                continue
            slope = rise / (high - low)
            for k in range(line.size):
                shift[k] += slope * (min(max(line[k], low), high) - low)
        for k in range(line.size):
            line[k] += shift[k]
