"""Sums from which views are registered to their reprojections: the normal equations of a step of Gauss and Newton.

A view a and its reprojection r differ by a small displacement e: a(p) = r(p + e), so that a - r = e · ∇r to first
order. Sums over pixels add up over bands of rows, so no view has to be in one place (B. D. Lucas and T. Kanade, Proc.
7th IJCAI (1981) 674; the gradient is taken of the reprojection, which has less noise).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.kernels.compiling import kernel
from dtomo.threads import run_jobs

NUMBERS = 8
"""Sums of a view: three of the symmetric matrix, two of the right side, of (a - r)², of a², and how many pixels."""


def registration_sums(views: NDArray[Any], again: NDArray[Any], covered: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Sums over some rows; both end columns are left out, and derivatives at the first and last row are one-sided.

    Parameters
    ----------
    views, again
        Aligned views and their reprojections, float32 ``(view, row, column)``.
    covered
        Which pixels count, ``(view, row, column)``; one counts if its four neighbours do, too.

    Returns
    -------
    float64 ``(view, 8)`` of the derivatives of the reprojections by row and column: row·row, row·column,
    column·column; row and column with a - r; (a - r)², a², pixels.
    """
    out = np.zeros((len(views), NUMBERS))
    arrays = [np.ascontiguousarray(array) for array in (views, again, covered)]
    run_jobs(lambda span: _sums(span, *arrays, out), len(out))
    return out


@kernel
def _sums(jobs, views, again, covered, out):  # type: ignore[no-untyped-def]
    """A job is a view."""
    _, rows, columns = views.shape
    for view in range(jobs[0], jobs[1]):
        a, r, good, total = views[view], again[view], covered[view], out[view]
        for i in range(rows):
            low, high = max(i - 1, 0), min(i + 1, rows - 1)
            for j in range(1, columns - 1):
                if not (good[i, j] and good[low, j] and good[high, j] and good[i, j - 1] and good[i, j + 1]):
                    continue
                by_row = (np.float64(r[high, j]) - np.float64(r[low, j])) / max(high - low, 1)
                by_column = 0.5 * (np.float64(r[i, j + 1]) - np.float64(r[i, j - 1]))
                apart = np.float64(a[i, j]) - np.float64(r[i, j])
                total[0] += by_row * by_row
                total[1] += by_row * by_column
                total[2] += by_column * by_column
                total[3] += by_row * apart
                total[4] += by_column * apart
                total[5] += apart * apart
                total[6] += np.float64(a[i, j]) * np.float64(a[i, j])
                total[7] += 1.0
