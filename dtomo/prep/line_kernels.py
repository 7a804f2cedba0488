"""Numba kernels that work on one detector line (angle, row) at a time: nothing crosses to another slice."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)


@intrinsic
def _float_bits(context: Any, value: Any) -> Any:
    """The 32 bits of a float32 as int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


@intrinsic
def _bits_float(context: Any, value: Any) -> Any:
    """The float32 that has these 32 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@njit(nogil=True, cache=True, error_model="numpy")
def minus_log_line(line: Any) -> None:
    """In place -ln of positive, finite, normal float32 values, to about one unit in the last place.

    Mantissa m in [1/sqrt(2), sqrt(2)), ln(m) = 2 artanh((m - 1)/(m + 1)) by its series; no branches, so
    that the compiler vectorises it, and no library call whose bits would depend on the vector length.
    """
    for k in range(line.size):
        bits = _float_bits(line[k])
        # 0x3F3504F3 is 1/sqrt(2): the shift puts the mantissa into [1/sqrt(2), sqrt(2))
        shifted = np.int32(bits - np.int32(0x3F3504F3))
        exponent = np.int32(shifted >> np.int32(23))
        mantissa = _bits_float(np.int32(bits - np.int32(exponent << np.int32(23))))
        f = mantissa - np.float32(1)
        s = f / (mantissa + np.float32(1))
        z = s * s
        series = z * (np.float32(2 / 3) + z * (np.float32(2 / 5) + z * (np.float32(2 / 7) + z * np.float32(2 / 9))))
        # 2 s = f - s f keeps f exact
        power = np.float32(exponent)
        logarithm = power * _LN2_HIGH + (f + (s * series + (power * _LN2_LOW - s * f)))
        line[k] = np.float32(0) - logarithm  # not -0.0 for 1


@njit(nogil=True, cache=True, error_model="numpy")
def fill_line(line: Any) -> bool:
    """Replace NaN and infinity by linear interpolation between the nearest finite values of the line.

    Beyond the first and last finite value the nearest one is repeated. Returns False, and leaves the line,
    where no value is finite.
    """
    size = line.size
    previous = -1
    for k in range(size):
        if np.isfinite(line[k]):
            if previous < 0:
                for j in range(k):
                    line[j] = line[k]
            elif k - previous > 1:
                step = (np.float64(line[k]) - np.float64(line[previous])) / (k - previous)
                for j in range(previous + 1, k):
                    line[j] = np.float32(line[previous] + step * (j - previous))
            previous = k
    if previous < 0:
        return False
    for j in range(previous + 1, size):
        line[j] = line[previous]
    return True


@njit(nogil=True, cache=True, error_model="numpy")
def raise_to_smallest_positive(line: Any) -> bool:
    """Replace values below the smallest normal float32 by the smallest larger value of the line.

    Returns False, and leaves the line, where no value is large enough.
    """
    tiny = np.float32(1.1754944e-38)
    smallest = np.float32(np.inf)
    for k in range(line.size):
        if line[k] >= tiny and line[k] < smallest:
            smallest = line[k]
    if smallest == np.float32(np.inf):
        return False
    for k in range(line.size):
        if line[k] < tiny:
            line[k] = smallest
    return True


@njit(nogil=True, cache=True, error_model="numpy")
def level_air(line: Any, left: int, right: int) -> bool:
    """Divide a line of transmissions by a straight line through the means of its `left` and `right` columns.

    Returns False, and leaves the line, where that is not positive.
    """
    size = line.size
    first = 0.0
    for k in range(left):
        first += line[k]
    last = 0.0
    for k in range(size - right, size):
        last += line[k]
    if left > 0:
        first /= left
    if right > 0:
        last /= right
    if left == 0:
        first = last
    if right == 0:
        last = first
    begin = (left - 1) / 2 if left > 0 else 0.0
    end = size - 1 - ((right - 1) / 2 if right > 0 else 0.0)
    slope = (last - first) / (end - begin) if end > begin else 0.0
    base = first - slope * begin
    if not (base > 0.0 and base + slope * (size - 1) > 0.0):
        return False
    for k in range(size):
        line[k] = np.float32(line[k] / (base + slope * k))
    return True


@njit(nogil=True, cache=True, error_model="numpy")
def normalize_lines(
    counts: Any, dark: Any, signal: Any, left: int, right: int, minus_log: bool, out: Any, found: Any
) -> None:
    """Counts (angle, row, column) to transmission or attenuation in `out`, line by line.

    `signal` is flat minus dark, NaN where the pixel is dead. `found` (5 int64) is added to: values that
    were not finite (outside dead pixels), values that were not positive, lines without any usable value,
    lines without positive air, values in dead pixels.
    """
    angles, rows, columns = counts.shape
    tiny = np.float32(1.1754944e-38)
    for row in range(rows):
        dead = 0
        for k in range(columns):
            if np.isnan(signal[row, k]):
                dead += 1
        for angle in range(angles):
            line = out[angle, row]
            source = counts[angle, row]
            bad = 0
            low = 0
            for k in range(columns):
                value = (np.float32(source[k]) - dark[row, k]) / signal[row, k]
                line[k] = value
                bad += not (abs(value) < np.float32(np.inf))
                low += (value < tiny) and (value > -np.float32(np.inf))
            if bad > 0:
                found[0] += bad - dead
                found[4] += dead
                if not fill_line(line):
                    line[:] = np.float32(1)
                    found[2] += 1
            if left + right > 0 and not level_air(line, left, right):
                found[3] += 1
            if minus_log:
                found[1] += low
                if (low > 0 or bad > 0) and not raise_to_smallest_positive(line):
                    line[:] = np.float32(1)
                    found[2] += 1
                minus_log_line(line)


@njit(nogil=True, cache=True, error_model="numpy")
def median_of_nine(values: Any) -> Any:
    """Median of nine float32 values (sorted in place)."""
    for i in range(1, 9):
        value = values[i]
        j = i - 1
        while j >= 0 and values[j] > value:
            values[j + 1] = values[j]
            j -= 1
        values[j + 1] = value
    return values[4]


@njit(nogil=True, cache=True, error_model="numpy")
def replace_outliers(sinograms: Any, threshold: float, bright: bool, dark: bool, out: Any) -> int:
    """Selective median over 3 x 3 (angle, column) in each row of (angle, row, column); returns the count."""
    angles, rows, columns = sinograms.shape
    window = np.empty(9, np.float32)
    replaced = 0
    for angle in range(angles):
        before = max(angle - 1, 0)
        after = min(angle + 1, angles - 1)
        for row in range(rows):
            for k in range(columns):
                value = sinograms[angle, row, k]
                left = max(k - 1, 0)
                right = min(k + 1, columns - 1)
                # cheap test first: an outlier differs from all four neighbours
                n0 = sinograms[before, row, k]
                n1 = sinograms[after, row, k]
                n2 = sinograms[angle, row, left]
                n3 = sinograms[angle, row, right]
                suspect_bright = bright and value > min(min(n0, n1), min(n2, n3)) + threshold
                suspect_dark = dark and value < max(max(n0, n1), max(n2, n3)) - threshold
                out[angle, row, k] = value
                if suspect_bright or suspect_dark:
                    position = 0
                    for a in (before, angle, after):
                        for c in (left, k, right):
                            window[position] = sinograms[a, row, c]
                            position += 1
                    middle = median_of_nine(window)
                    if (bright and value > middle + threshold) or (dark and value < middle - threshold):
                        out[angle, row, k] = middle
                        replaced += 1
    return replaced
