"""Workers are forked from a server that has imported what they need: once, and while the client goes on.

Each worker would otherwise import the same libraries by itself, one to two seconds after the cluster's start.
"""

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dtomo.threads import get_threads

AVAILABLE = "forkserver" in multiprocessing.get_all_start_methods()

_MODULES = ("dtomo.distributed.forked", "distributed.nanny", "distributed.worker", "distributed.comm.tcp")

# A process that is to be forked must not have threads, and OpenBLAS starts its own when imported. glibc is told to
# use the memory of arrays below 32 MB again at once, and to give back only what is much (see `dtomo.memory`).
_VARIABLES = {
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(16 * 2**20),
    "MALLOC_ARENA_MAX": "1",
}


def start_forkserver(modules: Sequence[str] = ()) -> None:
    """Start the server, unless it runs, with `modules` imported beside those of the cluster; returns at once.

    Raises
    ------
    UserError
        The environment has a number of threads that is none, on which the server would fail.
    """
    get_threads()
    if not AVAILABLE:
        return
    multiprocessing.set_forkserver_preload([*_MODULES, *modules])
    multiprocessing.resource_tracker.ensure_running()  # the server starts it else, and unblocks signals
    with _environment(_VARIABLES), _without_interrupts():
        multiprocessing.forkserver.ensure_running()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C waits until the end here, and never reaches processes started meanwhile: they inherit the mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
