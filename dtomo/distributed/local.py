"""Workers on this machine: one process each, started again when it dies, with an environment of its own."""

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dtomo.distributed.configuration import CONFIGURATION, quiet_logs, thread_variables
from dtomo.distributed.devices import device_environments
from dtomo.distributed.forkserver import AVAILABLE, start_forkserver
from dtomo.errors import UserError

if TYPE_CHECKING:
    from distributed import Client, SpecCluster

    from dtomo.distributed.clusters import Resources

HOST = "127.0.0.1"
STARTS = 3
"""Times that a cluster is started before it is given up."""

Start = Callable[["Resources", str, Sequence[dict[str, str]]], "SpecCluster"]
"""Starts a cluster with a folder for scratch files and the environment of each worker."""


def kept_here(dashboard: str | None) -> str | None:
    """Where a dashboard listens: at a bare port only for this machine, since it asks for no password."""
    return f"{HOST}{dashboard}" if dashboard and dashboard.startswith(":") else dashboard


def environments(wanted: "Resources") -> list[dict[str, str]]:
    """Variables that each worker gets beside those of this process: its threads and its device."""
    devices = device_environments(
        wanted.devices, wanted.workers, wanted.device_memory, wanted.options.get("rmm_pool_size")
    )
    return [thread_variables(wanted.threads) | own for own in devices]


@contextlib.contextmanager
def local_client(wanted: "Resources", start: Start | None = None) -> Iterator["Client"]:
    """A client of `wanted.workers` new processes on this machine, which end with it.

    Parameters
    ----------
    wanted
        Workers, threads, memory and devices.
    start
        What starts the cluster; default: `pinned_cluster`.

    Raises
    ------
    UserError
        The processes cannot be started.
    """
    import dask
    from distributed import Client

    start_forkserver()
    method = "forkserver" if AVAILABLE else "spawn"
    threads = thread_variables(wanted.threads)
    configuration = (
        CONFIGURATION
        | {"distributed.worker.multiprocessing-method": method}
        | {f"distributed.nanny.pre-spawn-environ.{name}": int(value) for name, value in threads.items()}
    )
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="dtomo-", ignore_cleanup_errors=True))
        stack.enter_context(dask.config.set(configuration))
        stack.enter_context(quiet_logs())
        cluster = stack.enter_context(_started(wanted, scratch, start or pinned_cluster))
        yield stack.enter_context(Client(cluster))


def _started(wanted: "Resources", scratch: str, start: Start) -> "SpecCluster":
    with warnings.catch_warnings():
        # the port of the dashboard is taken: dask falls back to a free one, and we say which
        warnings.filterwarnings("ignore", message="Port .* is already in use")
        try:
            return _start_again(wanted, scratch, start)
        except RuntimeError as error:
            first = _first_cause(error)
            if str(first).startswith("CUDA"):
                raise UserError(f"the worker processes cannot be started: {first}") from error
            raise UserError(
                "the worker processes cannot be started; a script that starts them must be a file, with its "
                f"work under if __name__ == '__main__': ({first})"
            ) from error


def _start_again(wanted: "Resources", scratch: str, start: Start) -> "SpecCluster":
    """Start a cluster, `STARTS` times if need be: a worker that dies before it is up takes the others with it."""
    for left in reversed(range(STARTS)):
        try:
            return start(wanted, scratch, environments(wanted))
        except RuntimeError as error:
            if not left or str(_first_cause(error)) != "Nanny failed to start worker process":
                raise
    raise AssertionError


def _first_cause(error: BaseException) -> BaseException:
    """What went wrong first: Dask wraps what a worker raised."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def pinned_cluster(wanted: "Resources", scratch: str, environments: Sequence[dict[str, str]]) -> "SpecCluster":
    """A cluster with one worker for each of `environments`, named by its index.

    A worker's nanny keeps its name and environment, and starts it again with both.
    """
    from distributed import Nanny, Scheduler, SpecCluster

    from dtomo.distributed.worker import OwnDevice

    common: dict[str, Any] = {
        "host": HOST,
        "protocol": "tcp://",
        "nthreads": 1,
        "memory_limit": wanted.memory,
        "local_directory": scratch,
        "silence_logs": logging.CRITICAL,
        "dashboard": False,
        "plugins": [OwnDevice()] if wanted.devices else [],
    }
    workers = {
        index: {"cls": Nanny, "options": common | {"env": environment}}
        for index, environment in enumerate(environments)
    }
    scheduler = {
        "cls": Scheduler,
        "options": {
            "host": HOST,
            "protocol": "tcp://",
            "port": 0,
            "dashboard": wanted.dashboard is not None,
            "dashboard_address": kept_here(wanted.dashboard),
        },
    }
    return SpecCluster(workers=workers, scheduler=scheduler, name="dtomo", silence_logs=logging.CRITICAL)
