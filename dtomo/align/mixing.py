"""Anderson's acceleration of a fixed-point iteration: errors that are smooth over the tilts would go away slowly.

D. G. Anderson, J. ACM 12 (1965) 547; H. F. Walker and P. Ni, SIAM J. Numer. Anal. 49 (2011) 1715.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DEPTH = 5
"""Steps before the present one that are looked at."""
REGULAR = 1e-10
"""Added to the squared lengths of changes, which are 1: changes that are all alike say nothing."""

Pair = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Where a step began, and the step."""


def mixed(pairs: Sequence[Pair]) -> NDArray[np.float64]:
    """The step from the last place that the steps so far suggest.

    Parameters
    ----------
    pairs
        In order, of arrays of one shape; the last `DEPTH` + 1 count.

    Returns
    -------
    array
        A step of that shape; of a single pair, its step.
    """
    places, steps = (np.stack([pair[k].ravel() for pair in pairs[-DEPTH - 1 :]]) for k in range(2))
    last = steps[-1]
    if len(steps) == 1:
        return last.reshape(pairs[-1][1].shape)
    place_changes, step_changes = np.diff(places, axis=0), np.diff(steps, axis=0)
    scale = np.sqrt((step_changes**2).sum(1, keepdims=True)) + 1e-300
    place_changes, step_changes = place_changes / scale, step_changes / scale
    matrix = (step_changes[:, None] * step_changes[None]).sum(2)  # no BLAS, whose bits depend on its threads
    right = (step_changes * last).sum(1)
    weights = np.linalg.solve(matrix + REGULAR * np.eye(len(matrix)), right)
    step = last - ((place_changes + step_changes) * weights[:, None]).sum(0)
    return np.asarray(step.reshape(pairs[-1][1].shape))
