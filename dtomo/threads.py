"""Threads for kernels that release the GIL: jobs are handed out in small spans to whoever is free."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_count = int(os.environ.get("DTOMO_THREADS", "0")) or len(os.sched_getaffinity(0))
_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()


def get_threads() -> int:
    """How many threads a kernel uses: DTOMO_THREADS, else the cores this process may run on."""
    return _count


def set_threads(count: int) -> None:
    """Give every kernel of this process so many threads (a worker is told its share of the cores)."""
    global _count
    _count = max(1, int(count))


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
    if threads <= 1:
        work((0, jobs))
        return
    span = max(1, jobs // (threads * 8))
    starts = iter(range(0, jobs, span))
    taking = threading.Lock()

    def drain() -> None:
        while True:
            with taking:
                start = next(starts, None)
            if start is None:
                return
            work((start, min(jobs, start + span)))

    for future in [_pool(threads).submit(drain) for _ in range(threads)]:
        future.result()
