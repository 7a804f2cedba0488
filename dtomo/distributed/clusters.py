"""One way to get a cluster: processes here, a scheduler's address, or a YAML file that says either.

Processes × threads = cores. A worker process runs one task at a time and gives it all its threads.
"""

import contextlib
import dataclasses
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dtomo.distributed.forkserver import AVAILABLE, start_forkserver
from dtomo.errors import UserError, shown

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

TRIES = 3
"""Workers that may die on a task before it is given up."""

RESERVED = ("cuda", "slurm")
WAIT_FOR_WORKERS = 30.0
"""Seconds to wait for a remote scheduler and its first worker."""

_YAML_KEYS = ("cluster", "address", "workers", "threads", "memory", "dashboard")
_THREAD_VARIABLES = (
    "DTOMO_THREADS",
    "NUMBA_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)
_CONFIGURATION = {
    # `queue.run_tasks` tries again itself, on a worker that has nothing else to do
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.worker-saturation": 1.0,
    # a compilation or a long kernel may hold a worker's event loop for minutes: that is not death
    "distributed.scheduler.worker-ttl": None,
    # results of tasks are small: spilling or pausing frees nothing, while killing protects the machine
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": 1.0,
    "distributed.worker.profile.enabled": False,
    "distributed.worker.preload": ["dtomo.distributed.worker"],
    "distributed.admin.large-graph-warning-threshold": "64MiB",
}


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a run may use: `workers` processes with `threads` each, and `memory` bytes for each worker.

    `shared`: the memory is a share of what is free, and fewer workers would have more.
    """

    workers: int
    threads: int
    memory: int
    address: str | None = None
    dashboard: str | None = ":8787"
    shared: bool = False

    @property
    def cores(self) -> int:
        """Compute threads of all workers together."""
        return self.workers * self.threads


def parse_memory(text: str | int) -> int:
    """Bytes meant by ``"4GB"``, ``"1.5 GiB"`` or a number.

    Raises
    ------
    UserError
        Not a size, or not positive.
    """
    from dask.utils import parse_bytes

    try:
        size = int(parse_bytes(text)) if str(text).strip() else 0
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(f"--memory is a size such as 4GB; got {shown(repr(str(text)))}") from error
    if size <= 0:
        raise UserError(f"--memory is a size such as 4GB; got {shown(repr(str(text)))}")
    return size


def machine() -> tuple[int, int]:
    """Cores and bytes of memory that this process may use (cgroup limits and affinity counted).

    The memory is nine tenths of what is free now, so that workers sized by it do not push out others.
    """
    import psutil
    from dask.system import CPU_COUNT
    from distributed.system import MEMORY_LIMIT

    return max(1, CPU_COUNT), int(0.9 * min(MEMORY_LIMIT, psutil.virtual_memory().available))


def resources(
    cluster: str = "local",
    *,
    workers: int | None = None,
    threads: int | None = None,
    memory: str | int | None = None,
) -> Resources:
    """Workers, threads and memory that a request comes to, before anything is started.

    Parameters
    ----------
    cluster
        ``"local"``, a scheduler's address (``tcp://…``, ``tls://…``), or a YAML file with the keys
        ``cluster`` or ``address``, ``workers``, ``threads``, ``memory``, ``dashboard``.
    workers, threads
        Processes and threads of each. Default: as many as the cores allow, with 1 thread each up to 4 cores.
    memory
        Limit of each worker, such as ``"4GB"``. Default: an equal share of nine tenths of the free memory.

    Raises
    ------
    UserError
        An unknown cluster, a malformed file, or numbers that are not positive.
    """
    request: dict[str, Any] = {"cluster": cluster, "dashboard": ":8787"}
    if cluster.endswith((".yaml", ".yml")):
        request |= {"cluster": "local"} | _read_yaml(Path(cluster))
    given = {"workers": workers, "threads": threads, "memory": memory}
    request |= {name: value for name, value in given.items() if value is not None}
    address = _address(str(request["cluster"]))
    for name in ("workers", "threads"):
        value = request.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise UserError(f"--{name} is a whole number from 1; got {shown(repr(value))}")
    cores, free = machine()
    per_worker = request.get("threads") or _threads(cores, request.get("workers"))
    count = request.get("workers") or max(1, cores // per_worker)
    shared = request.get("memory") is None
    limit = free // count if shared else parse_memory(request["memory"])
    return Resources(count, per_worker, limit, address, request["dashboard"], shared and address is None)


def _threads(cores: int, workers: int | None) -> int:
    if workers is not None:
        return max(1, cores // workers)
    return 1 if cores <= 4 else 2 if cores <= 16 else 4


def _address(cluster: str) -> str | None:
    if cluster == "local":
        return None
    if cluster in RESERVED:
        raise UserError(
            f"--cluster {cluster} is not available in this version of dtomo; "
            "use local, a scheduler's address or a YAML file"
        )
    if "://" in cluster:
        return cluster
    raise UserError(
        f"--cluster is local, a scheduler's address such as tcp://host:8786, or a YAML file; got {shown(repr(cluster))}"
    )


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not text"
        raise UserError(f"cannot read the cluster file {path}: {reason}") from error
    except yaml.YAMLError as error:
        raise UserError(f"the cluster file {path} is not valid YAML") from error
    if not isinstance(read, dict):
        raise UserError(f"the cluster file {path} must hold keys and values ({', '.join(_YAML_KEYS)})")
    unknown = sorted(str(key) for key in read if key not in _YAML_KEYS)
    if unknown:
        raise UserError(
            f"the cluster file {path} has unknown keys {shown(', '.join(unknown))}; known are {', '.join(_YAML_KEYS)}"
        )
    if "address" in read:
        read["cluster"] = read.pop("address")
    return read


@contextlib.contextmanager
def connect(
    cluster: str | Resources = "local",
    workers: int | None = None,
    memory: str | int | None = None,
    threads: int | None = None,
    say: Callable[[str], None] | None = None,
) -> Iterator["Client"]:
    """A Dask client, whose cluster is closed on leaving if it was started here.

    Parameters
    ----------
    cluster, workers, threads, memory
        As for `resources`, or what `resources` returned.
    say
        Called with one line that says where the dashboard is.

    Raises
    ------
    UserError
        A cluster that cannot be reached, or that has no worker.
    """
    wanted = (
        cluster
        if isinstance(cluster, Resources)
        else resources(cluster, workers=workers, threads=threads, memory=memory)
    )
    with _remote(wanted) if wanted.address else _local(wanted) as client:
        if say is not None and client.dashboard_link and wanted.dashboard:
            say(f"dashboard: {client.dashboard_link}")
        yield client


@contextlib.contextmanager
def _local(wanted: Resources) -> Iterator["Client"]:
    import dask
    from distributed import Client

    environment = {name: str(wanted.threads) for name in _THREAD_VARIABLES}
    start_forkserver()
    method = "forkserver" if AVAILABLE else "spawn"
    configuration = (
        _CONFIGURATION
        | {"distributed.worker.multiprocessing-method": method}
        | {f"distributed.nanny.pre-spawn-environ.{name}": int(value) for name, value in environment.items()}
    )
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="dtomo-", ignore_cleanup_errors=True))
        stack.enter_context(dask.config.set(configuration))
        stack.enter_context(_quiet_logs())
        local = stack.enter_context(_local_cluster(wanted, scratch, environment))
        yield stack.enter_context(Client(local))


def _local_cluster(wanted: Resources, scratch: str, environment: dict[str, str]) -> "LocalCluster":
    from distributed import LocalCluster

    with warnings.catch_warnings():
        # the port of the dashboard is taken: dask falls back to a free one, and we say which
        warnings.filterwarnings("ignore", message="Port .* is already in use")
        try:
            return LocalCluster(
                n_workers=wanted.workers,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                memory_limit=wanted.memory,
                dashboard_address=wanted.dashboard,
                local_directory=scratch,
                env=environment,
                silence_logs=logging.CRITICAL,
            )
        except RuntimeError as error:
            raise UserError(
                "the worker processes cannot be started; a script that starts them must be a file, with its "
                f"work under if __name__ == '__main__': ({error})"
            ) from error


@contextlib.contextmanager
def _quiet_logs() -> Iterator[None]:
    """Silence what dask logs about workers that die: the run reports that itself, in a sentence."""
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


@contextlib.contextmanager
def _remote(wanted: Resources) -> Iterator["Client"]:
    from distributed import Client

    with contextlib.ExitStack() as stack:
        stack.enter_context(_quiet_logs())
        try:
            client = stack.enter_context(Client(wanted.address, timeout=WAIT_FOR_WORKERS))
        except (OSError, ValueError) as error:
            raise UserError(f"no scheduler answers at {wanted.address}; check the address and that it runs") from error
        try:
            client.wait_for_workers(1, timeout=WAIT_FOR_WORKERS)
        except TimeoutError as error:
            raise UserError(
                f"the scheduler at {wanted.address} has no worker after {WAIT_FOR_WORKERS:.0f} s"
            ) from error
        yield client


def measured(client: "Client", wanted: Resources) -> Resources:
    """`wanted` with the workers, threads and memory of the cluster that answered (a local one: unchanged)."""
    if wanted.address is None:
        return wanted
    found = client.scheduler_info(n_workers=-1)["workers"].values()
    limits = [worker["memory_limit"] for worker in found if worker["memory_limit"]]
    threads = min(worker["nthreads"] for worker in found)
    return dataclasses.replace(
        wanted, workers=len(found), threads=threads, memory=min(limits) if limits else wanted.memory
    )
