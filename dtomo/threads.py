"""Threads for kernels that release the GIL: jobs are handed out in small spans to whoever is free."""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from dtomo.errors import UserError


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _threads_wanted() -> int:
    text = os.environ.get("DTOMO_THREADS", "").strip()
    if text and not (text.isdigit() and int(text)):
        raise UserError(f"DTOMO_THREADS is a number of threads, such as 4, not {text!r}")
    return int(text) if text else available_cores()


_count = _threads_wanted()
_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()
_here = threading.local()

Item = TypeVar("Item")
Result = TypeVar("Result")


def _forget_pools() -> None:
    """A forked process inherits the pools but not their threads."""
    global _lock
    _pools.clear()
    _lock = threading.Lock()
    _here.busy = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)


def get_threads() -> int:
    """How many threads a kernel uses: DTOMO_THREADS, else the cores this process may run on."""
    return _count


def set_threads(count: int) -> None:
    """Give every kernel of this process so many threads (a worker is told its share of the cores)."""
    global _count
    _count = max(1, int(count))


def take_share() -> None:
    """Use as many threads as DTOMO_THREADS says now: for workers, whose share is set after their program's imports."""
    set_threads(_threads_wanted())


@contextlib.contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """So many threads for kernels until it ends; None: as many as before."""
    before = get_threads()
    if count is not None:
        set_threads(count)
    try:
        yield
    finally:
        set_threads(before)


def _pool(threads: int) -> ThreadPoolExecutor:
    with _lock:
        if threads not in _pools:
            _pools[threads] = ThreadPoolExecutor(threads, thread_name_prefix="dtomo-kernel")
        return _pools[threads]


def run_jobs(work: Callable[[tuple[int, int]], object], jobs: int, threads: int | None = None) -> None:
    """Call ``work((start, stop))`` until all jobs 0 … jobs - 1 are done, on `threads` threads.

    Which thread takes which jobs is not fixed: `work` must write to places of its own for each job.
    """
    threads = min(threads or _count, jobs)
    if threads <= 1 or getattr(_here, "busy", False):
        if jobs > 0:
            work((0, jobs))
        return
    span = max(1, jobs // (threads * 8))
    starts = iter(range(0, jobs, span))
    taking = threading.Lock()

    def drain() -> None:
        _here.busy = True  # work that comes here again from a thread of the pool stays on it
        try:
            while True:
                with taking:
                    start = next(starts, None)
                if start is None:
                    return
                work((start, min(jobs, start + span)))
        finally:
            _here.busy = False

    for future in [_pool(threads).submit(drain) for _ in range(threads)]:
        future.result()


def run_blocks(function: Callable[[int, int], Result], count: int, block: int) -> list[Result]:
    """Call ``function(start, stop)`` for consecutive blocks of ``range(count)``; results in block order.

    The blocks depend on `count` and `block` only, never on the number of threads.
    """
    block = max(block, 1)
    results: dict[int, Result] = {}

    def work(span: tuple[int, int]) -> None:
        for job in range(*span):
            results[job] = function(job * block, min((job + 1) * block, count))

    run_jobs(work, -(-count // block))
    return [results[job] for job in range(len(results))]


def map_in_order(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """``function(item)`` of each item, in order, on as many threads as there are; what it calls stays on its thread.

    Items are taken, and results waited for, by the caller's thread; about one of each per thread is held at a time.
    """
    if _count <= 1 or getattr(_here, "busy", False):
        yield from map(function, items)
        return

    def work(item: Item) -> Result:
        _here.busy = True
        try:
            return function(item)
        finally:
            _here.busy = False

    pool, running = _pool(_count), deque[Future[Result]]()
    try:
        for item in items:
            running.append(pool.submit(work, item))
            if len(running) > _count:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        for future in running:
            future.cancel()
        for future in running:
            if not future.cancelled():
                future.exception()
