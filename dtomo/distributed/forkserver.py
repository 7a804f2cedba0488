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

# A process that is to be forked must not have threads, and OpenBLAS starts its own when imported; glibc is told
# to give back freed memory, as Dask does for workers that it spawns.
_VARIABLES = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": "65536"}


def start_forkserver(modules: Sequence[str] = ()) -> None:
    """Start the server, unless it runs, with `modules` imported beside those of the cluster; returns at once."""
    if not AVAILABLE:
        return
    multiprocessing.set_forkserver_preload([*_MODULES, *modules])
    with _environment(_VARIABLES):
        multiprocessing.forkserver.ensure_running()


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
