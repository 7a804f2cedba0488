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
    alike: list[Any] = [None] * len(views)
    if xp is np and pieces > 1:
        alike = [_alike(view, arrays[0], axis, step) for view in views]
    before = (slice(None),) * axis

    def work(span: tuple[int, int]) -> None:
        for job in range(*span):
            start, stop = job * step, min((job + 1) * step, shape[axis])
            cut, first = (*before, slice(start, stop)), (*before, slice(stop - start))
            function(*(
                view if _is_number(view) else view[cut] if same is None else same[first]
                for view, same in zip(views, alike)
            ))  # fmt: skip

    if xp is np:
        run_jobs(work, pieces)
    else:
        work((0, pieces))


def _alike(view: Any, like: Any, axis: int, step: int) -> Any:
    """What is the same in all pieces but differs within them, written out as they lie in memory; else None.

    NumPy then takes long runs in place of many short ones, one for each row of a factor of slices.
    """
    if _is_number(view) or view.strides[axis] != 0 or all(view.strides):
        return None
    cut = (slice(None),) * axis + (slice(step),)
    piece = np.empty_like(like[cut], dtype=view.dtype)
    piece[...] = view[cut]
    return piece


def _is_number(value: Any) -> bool:
    """Numbers and arrays without axes."""
    return getattr(value, "shape", ()) == ()
