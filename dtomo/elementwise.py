"""Element-wise work in pieces: those fit the cache and go to all threads, or need little memory on a device."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dtomo.arrays import array_module
from dtomo.threads import run_jobs

_PIECE = 1 << 17  # elements: half a megabyte of float32
DEVICE_PIECE = 1 << 25  # what temporary arrays on a device hold at most; a launch is nothing beside it


def in_pieces(function: Callable[..., object], *arrays: Any) -> None:
    """Call ``function(piece, piece, …)`` on matching pieces of arrays (or numbers) that broadcast against the first.

    The function works in place on pieces of the first array (and of others of its shape). Pieces are cut along the
    first array's slowest axis in memory, so any layout is fine; every element must be computed by itself.

    Arrays on a device are cut into a few large pieces, which the present stream takes in order, without a wait.

    Raises
    ------
    TypeError
        Some arrays lie on the host and some on a device. Numbers lie anywhere.
    """
    shape = arrays[0].shape
    axis = int(np.argmax(np.where(np.array(shape) > 1, np.abs(arrays[0].strides), -1)))
    xp = array_module(*arrays)
    views = [a if _is_number(a) or a.shape == shape else xp.broadcast_to(a, shape) for a in arrays]
    step = max(1, (_PIECE if xp is np else DEVICE_PIECE) // max(1, arrays[0].size // shape[axis]))
    pieces = -(-shape[axis] // step)

    def work(span: tuple[int, int]) -> None:
        for job in range(*span):
            cut = (slice(None),) * axis + (slice(job * step, (job + 1) * step),)
            function(*(view if _is_number(view) else view[cut] for view in views))

    if xp is np:
        run_jobs(work, pieces)
    else:
        work((0, pieces))


def _is_number(value: Any) -> bool:
    """Numbers and arrays without axes."""
    return getattr(value, "shape", ()) == ()
