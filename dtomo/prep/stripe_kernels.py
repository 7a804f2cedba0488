"""Numba kernels of the stripe filters: one sinogram at a time, stored (column, angle)."""

from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True, error_model="numpy")
def column_roughness(columns: Any) -> Any:
    """Mean absolute second difference along the angle of each line of (column, angle), float64."""
    result = np.zeros(columns.shape[0], np.float64)
    angles = columns.shape[1]
    if angles < 3:
        return result
    for c in range(columns.shape[0]):
        line = columns[c]
        total = 0.0
        for k in range(1, angles - 1):
            total += abs(line[k - 1] - 2 * line[k] + line[k + 1])
        result[c] = total / (angles - 2)
    return result


@njit(nogil=True, cache=True, error_model="numpy")
def fill_columns(columns: Any, bad: Any) -> None:
    """Replace bad lines of (column, angle) by linear interpolation between the nearest good ones."""
    count = columns.shape[0]
    previous = -1
    for c in range(count + 1):
        if c < count and bad[c]:
            continue
        for j in range(previous + 1, c):
            if previous < 0 and c == count:
                continue
            if previous < 0:
                columns[j] = columns[c]
            elif c == count:
                columns[j] = columns[previous]
            else:
                weight = np.float32((j - previous) / (c - previous))
                for k in range(columns.shape[1]):
                    columns[j, k] = columns[previous, k] + weight * (columns[c, k] - columns[previous, k])
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
