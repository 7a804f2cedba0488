"""Spread work over the threads that this process was given, without Numba's parallel layer.

Numba's default layer aborts when two Python threads enter it at once. Kernels of this package that release
the GIL are run by plain threads instead, which any caller may nest.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numba

Result = TypeVar("Result")


def run_blocks(function: Callable[[int, int], Result], count: int, block: int) -> list[Result]:
    """Call ``function(start, stop)`` for consecutive blocks of ``range(count)``, results in block order.

    The blocks depend on `count` and `block` only, never on the number of threads, which is
    ``numba.get_num_threads()``.
    """
    starts = range(0, count, max(block, 1))
    threads = min(numba.get_num_threads(), len(starts))
    if threads <= 1:
        return [function(start, min(start + block, count)) for start in starts]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda start: function(start, min(start + block, count)), starts))
