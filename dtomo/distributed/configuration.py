"""Dask's configuration while a cluster of dtomo runs, the same for all kinds of clusters."""

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

CONFIGURATION: dict[str, Any] = {
    # `queue.run_tasks` tries again itself, on a worker that has nothing else to do
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.worker-saturation": 1.0,
    # tasks are sent to whoever is free, or to where their slab is: taking them from there would move the slab
    "distributed.scheduler.work-stealing": False,
    # a compilation or a long kernel may hold a worker's event loop for minutes: that is not death
    "distributed.scheduler.worker-ttl": None,
    # a worker that starts again on a busy machine is waited for
    "distributed.deploy.lost-worker-timeout": "5 minutes",
    # results of tasks are small: spilling or pausing frees nothing, while killing protects the machine
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": 1.0,
    "distributed.worker.profile.enabled": False,
    "distributed.worker.preload": ["dtomo.distributed.worker"],
    "distributed.admin.large-graph-warning-threshold": "64MiB",
}

_THREAD_VARIABLES = (
    "DTOMO_THREADS",
    "NUMBA_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)


def thread_variables(threads: int) -> dict[str, str]:
    """The environment that gives every library of a worker `threads` threads."""
    return {name: str(threads) for name in _THREAD_VARIABLES}


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """Silence what Dask logs about workers that die, unless DTOMO_DEBUG is set: the run says that itself."""
    if os.environ.get("DTOMO_DEBUG"):
        yield
        return
    loggers = [logging.getLogger(name) for name in ("distributed", "tornado.application", "asyncio")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before):
            logger.setLevel(level)
