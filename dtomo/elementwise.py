"""Element-wise work in pieces that fit the cache, on all threads."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.threads import run_jobs

_PIECE = 1 << 17  # elements: half a megabyte of float32


def in_pieces(function: Callable[..., object], *arrays: NDArray[Any]) -> None:
    """Call ``function(piece, piece, …)`` on matching pieces of arrays that broadcast against the first.

    The function works in place on pieces of the first array (and of others of its shape). Pieces are cut along the
    first array's slowest axis in memory, so any layout is fine; every element must be computed by itself.
    """
    shape = arrays[0].shape
    axis = int(np.argmax(np.where(np.array(shape) > 1, np.abs(arrays[0].strides), -1)))
    views = [np.broadcast_to(a, shape) if i else a for i, a in enumerate(arrays)]
    for i, (a, view) in enumerate(zip(arrays, views)):
        if i and a.shape == shape:
            views[i] = a
        elif i:
            views[i] = view
    step = max(1, _PIECE // max(1, arrays[0].size // shape[axis]))
    pieces = -(-shape[axis] // step)

    def work(span: tuple[int, int]) -> None:
        for job in range(*span):
            cut = (slice(None),) * axis + (slice(job * step, (job + 1) * step),)
            function(*(view[cut] for view in views))

    run_jobs(work, pieces)
