"""What a job of a projector touches, so that it can be packed into a buffer."""

import math

import numpy as np
from numba import njit

from dtomo.kernels.compiling import kernel
from dtomo.kernels.weights import FRACTION


@kernel
def room(buffer, size):  # type: ignore[no-untyped-def]
    """(buffer with room for `size` values, index of its first value on a 64-byte border)."""
    if buffer.size < size + 16:
        buffer = np.empty(size + 16, np.float32)
    return buffer, ((-buffer.ctypes.data) % 64) // 4


@kernel
def strip_bounds(i0, i1, d0, d1, m0, m1, a, b, c, starts):  # type: ignore[no-untyped-def]
    """Fill starts[row - m0] with the first sample that rays of a job touch; returns how many samples, at most.

    Columns, rows and samples count from the middle.
    """
    width = 0
    for m in range(m0, m1):
        p = b[i0] * m + c[i0] + a[i0] * d0
        least, most = p, p
        for i in range(i0, i1):
            p = b[i] * m + c[i]
            one, two = p + a[i] * d0, p + a[i] * (d1 - 1)
            least = min(least, one, two)
            most = max(most, one, two)
        starts[m - m0] = least >> FRACTION
        width = max(width, (most >> FRACTION) + 2 - (least >> FRACTION))
    return width


@njit(inline="always")
def inside(origin, inverse, across, m0, m1):  # type: ignore[no-untyped-def]
    """Rows low : high of m0 : m1 in which a ray can touch a sample 0 … across - 1; low is even counted from m0.

    `inverse` is how many rows it takes to cross one sample; 0 if it never does.
    """
    low, high = m0, m1
    if inverse != 0.0:
        t0, t1 = (-1.0 - origin) * inverse, (across - origin) * inverse
        low = max(m0, int(min(max(min(t0, t1), m0 - 1.0), m1 + 1.0)))
        high = min(m1, int(min(max(max(t0, t1), m0 - 1.0), m1 + 1.0)) + 1)
    return low - (low - m0) % 2, high


@kernel
def tile_tables(i0, i1, m0, t0, tile, a, b, c, t, scale, pairs, starts, tables):  # type: ignore[no-untyped-def]
    """Fill the tables of a tile, rows m0 : m0 + tile and samples t0 : t0 + tile.

    starts[k] becomes the first column that the tile touches at angle k. Columns, rows and samples count from the
    middle. Returns how many columns the tile touches, at most.
    """
    reach = 0
    for i in range(i0, i1):
        least, most = np.inf, -np.inf
        for m in (m0, m0 + tile - 1):
            for s in (t0, t0 + tile - 1):
                u = -(b[i] * m + c[i] + t[i] * s) / a[i]
                least, most = min(least, u), max(most, u)
        starts[i - i0] = math.floor(least) - pairs
        reach = max(reach, math.floor(most) + pairs + 2 - starts[i - i0])
    for i in range(i0, i1):
        k = i - i0
        gap = b[i] * m0 + c[i] + t[i] * t0
        tables.column[k] = -gap / a[i] - starts[k]
        tables.column_row[k] = -b[i] / a[i]
        tables.column_sample[k] = -t[i] / a[i]
        tables.gap[k] = np.int32(gap + a[i] * starts[k])
        tables.gap_row[k] = b[i]
        tables.gap_sample[k] = t[i]
        tables.gap_column[k] = a[i]
        tables.place[k] = k * reach
        tables.scale[k] = scale[i]
    return reach
