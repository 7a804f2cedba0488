"""The value of empty space in views whose background is not 0."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

HISTOGRAM = 128
"""Bins in which the value of empty space is looked for."""
LOOKED_AT = 2**16
"""Pixels of a view that are looked at for it."""


def empty_level(view: NDArray[Any]) -> float:
    """The value of empty space in a view: the middle of what lies in the fullest part of its histogram.

    Where the sample fills the view it is the commonest value of the sample, which does as well: an alignment needs
    what stands out.
    """
    step = max(1, int(np.sqrt(view.size / LOOKED_AT)))
    values = view[::step, ::step].astype(np.float64).ravel()
    values = values[np.isfinite(values)]
    if not values.size:
        return 0.0
    low, high = np.percentile(values, [0.5, 99.5])
    if not high > low:
        return float(low)
    counts, edges = np.histogram(values, HISTOGRAM, (low, high))
    fullest = int(counts.argmax())
    inside = values[(values >= edges[fullest]) & (values <= edges[fullest + 1])]
    return float(np.median(inside))
