"""Workers are forked from a server that has imported what they need: once, and while the client goes on.

Each worker would otherwise import the same libraries by itself, one to two seconds after the cluster's start.
"""

import multiprocessing
import multiprocessing.forkserver
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

AVAILABLE = "forkserver" in multiprocessing.get_all_start_methods()

_MODULES = ("dtomo.distributed.forked", "distributed.nanny", "distributed.worker", "distributed.comm.tcp")


def start_forkserver(modules: Sequence[str] = ()) -> None:
    """Start the server, unless it runs, with `modules` imported beside those of the cluster; returns at once."""
    if not AVAILABLE:
        return
    multiprocessing.set_forkserver_preload([*_MODULES, *modules])
    with _one_thread_for_blas():
        multiprocessing.forkserver.ensure_running()


@contextmanager
def _one_thread_for_blas() -> Iterator[None]:
    """A process that is to be forked must not have threads, and OpenBLAS starts its own when imported."""
    name = "OPENBLAS_NUM_THREADS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
