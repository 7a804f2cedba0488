"""Views turned, scaled and moved in one interpolation, rows at a time, with the same bits whichever rows are asked for.

Cubic convolution with four taps a side, exact for polynomials of degree 2 (R. G. Keys, IEEE Trans. Acoust. Speech
Signal Process. 29 (1981) 1153, a = -1/2).
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dtomo.kernels.compiling import kernel
from dtomo.threads import run_jobs

REACH = 2
"""Pixels to each side that a place may need."""


def resample(
    views: NDArray[np.float32],
    matrices: NDArray[np.float64],
    offsets: NDArray[np.float64],
    rows: slice,
    columns: slice,
    corner: tuple[int, int] = (0, 0),
    shape: tuple[int, int] | None = None,
) -> NDArray[np.float32]:
    """Pixels of new views: pixel p = (row, column) of view k lies at ``matrices[k] @ p + offsets[k]`` of the given one.

    Parameters
    ----------
    views
        ``(view, row, column)`` float32, contiguous.
    matrices, offsets
        float64 ``(view, 2, 2)`` and ``(view, 2)``.
    rows, columns
        Of the new views, start:stop.
    corner
        Row and column of the whole given views that `views` begin at, if they are a part of them.
    shape
        (rows, columns) of the whole given views; places outside take the nearest pixel. What `box` says must be there.

    Returns
    -------
    float32 ``(view, row, column)``.
    """
    whole = views.shape[1:] if shape is None else shape
    out = np.empty((len(views), rows.stop - rows.start, columns.stop - columns.start), np.float32)
    height = out.shape[1]
    given = np.ascontiguousarray(views)
    table = np.ascontiguousarray(np.concatenate([matrices, offsets[:, :, None]], 2), np.float64)
    bounds = np.array([rows.start, columns.start, *corner, *whole], np.int64)
    run_jobs(lambda span: _resample(span, given, table, bounds, out), len(out) * height)
    return out


def box(
    matrices: NDArray[np.float64],
    offsets: NDArray[np.float64],
    rows: slice,
    columns: slice,
    shape: tuple[int, int],
) -> tuple[slice, slice]:
    """Rows and columns of the given views, of `shape`, that `resample` needs for these of the new ones."""
    corners = np.array([(r, c) for r in (rows.start, rows.stop - 1) for c in (columns.start, columns.stop - 1)])
    places = np.einsum("vij,pj->vpi", matrices, corners) + offsets[:, None]
    low, high = places.min((0, 1)), places.max((0, 1))
    spans = []
    for first, last, size in zip(low, high, shape):
        start = int(np.clip(np.floor(first) - REACH, 0, size - 1))
        spans.append(slice(start, int(np.clip(np.floor(last) + REACH + 1, start + 1, size))))
    return spans[0], spans[1]


def covered(
    matrices: NDArray[np.float64],
    offsets: NDArray[np.float64],
    rows: slice,
    columns: slice,
    shape: tuple[int, int],
) -> NDArray[np.bool_]:
    """Which pixels of new views lie within the given ones, of `shape`: ``(view, row, column)``."""
    r = np.arange(rows.start, rows.stop)[:, None]
    c = np.arange(columns.start, columns.stop)
    out = np.empty((len(matrices), r.size, c.size), np.bool_)
    for view, (m, o) in enumerate(zip(matrices, offsets)):
        y, x = (m[i, 0] * r + m[i, 1] * c + o[i] for i in range(2))
        out[view] = (y >= -0.5) & (y <= shape[0] - 0.5) & (x >= -0.5) & (x <= shape[1] - 0.5)
    return out


@njit(inline="always")
def _weights(t):  # type: ignore[no-untyped-def]
    """Of the pixels at -1, 0, 1, 2 from a place between 0 and 1."""
    t2, t3 = t * t, t * t * t
    return (
        -0.5 * t3 + t2 - 0.5 * t,
        1.5 * t3 - 2.5 * t2 + 1.0,
        -1.5 * t3 + 2.0 * t2 + 0.5 * t,
        0.5 * t3 - 0.5 * t2,
    )


@kernel
def _resample(jobs, views, table, bounds, out):  # type: ignore[no-untyped-def]
    """A job is one row of one new view."""
    _, height, width = out.shape
    top, left = bounds[2], bounds[3]
    last_row, last_column = bounds[4] - 1, bounds[5] - 1
    for job in range(jobs[0], jobs[1]):
        view, i = job // height, job % height
        image, m = views[view], table[view]
        r = float(bounds[0] + i)
        for j in range(width):
            c = float(bounds[1] + j)
            y = m[0, 0] * r + m[0, 1] * c + m[0, 2]
            x = m[1, 0] * r + m[1, 1] * c + m[1, 2]
            y = min(max(y, 0.0), float(last_row))
            x = min(max(x, 0.0), float(last_column))
            y0, x0 = np.int64(np.floor(y)), np.int64(np.floor(x))
            wy, wx = _weights(y - y0), _weights(x - x0)
            total = 0.0
            for a in range(4):
                row = image[min(max(y0 + a - 1, 0), last_row) - top]
                line = 0.0
                for b in range(4):
                    line += wx[b] * row[min(max(x0 + b - 1, 0), last_column) - left]
                total += wy[a] * line
            out[view, i, j] = total
