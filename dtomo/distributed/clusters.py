"""One way to get a cluster: processes here, jobs of a batch system, a scheduler's address, or a YAML file.

Processes × threads = cores. A worker process runs one task at a time and gives it all its threads.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtomo.distributed.cluster_file import BATCH_SYSTEMS, DEVICE_KEYS, read_cluster_file
from dtomo.distributed.configuration import quiet_logs
from dtomo.distributed.devices import check_visible, described, parse_devices
from dtomo.errors import UserError, shown

if TYPE_CHECKING:
    from distributed import Client

TRIES = 3
"""Workers that may die on a task before it is given up."""

WAIT_FOR_WORKERS = 30.0
"""Seconds to wait for a remote scheduler and its first worker."""

WAIT_FOR_RETURN = 120.0
"""Seconds to wait for a worker when the last one died: one that starts anew loads its libraries on a busy machine."""

_BATCH_MEMORY = "4GB"


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a run may use: `workers` processes with `threads` each, and `memory` bytes for each worker.

    Attributes
    ----------
    workers, threads, memory
        Processes, compute threads of each, and the limit of each in bytes.
    address
        Of a scheduler that runs already.
    dashboard
        Where the dashboard listens; None: nowhere. Of a cluster on this machine, a port alone (``":8787"``) is for this
        machine alone.
    shared
        The memory is a share of what is free, and fewer workers would have more.
    kind
        ``"local"``, ``"cuda"``, ``"address"``, or one of `BATCH_SYSTEMS`.
    options
        What is asked of the batch system or of dask-cuda beside this.
    devices
        CUDA devices; worker i owns ``devices[i % len(devices)]``. Empty: the CPU, None: the environment's.
    workers_per_device
        As asked for; None: what `workers` comes to.
    device_memory
        Bytes of each device that its workers share; None: all of it.
    device_share
        Bytes of its device that each worker takes at most; None: it computes on the CPU.
    """

    workers: int
    threads: int
    memory: int
    address: str | None = None
    dashboard: str | None = ":8787"
    shared: bool = False
    kind: str = "local"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    devices: tuple[str, ...] | None = None
    workers_per_device: int | None = None
    device_memory: int | None = None
    device_share: int | None = None

    @property
    def cores(self) -> int:
        """Compute threads of all workers together."""
        return self.workers * self.threads


def parse_memory(text: str | int, option: str = "--memory") -> int:
    """Bytes meant by ``"4GB"``, ``"1.5 GiB"`` or a number.

    Raises
    ------
    UserError
        Not a size, or not positive; the message names `option`.
    """
    from dask.utils import parse_bytes

    try:
        size = int(parse_bytes(text)) if str(text).strip() else 0
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(f"{option} is a size such as 4GB; got {shown(repr(str(text)))}") from error
    if size <= 0:
        raise UserError(f"{option} is a size such as 4GB; got {shown(repr(str(text)))}")
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
    devices: str | int | Sequence[str | int] | None = None,
    workers_per_device: int | None = None,
    device_memory: str | int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Resources:
    """Workers, threads, memory and devices that a request comes to, before anything is started.

    Parameters
    ----------
    cluster
        ``"local"``, ``"cuda"``, ``"slurm"`` (or another of `BATCH_SYSTEMS`), a scheduler's address
        (``tcp://…``, ``tls://…``), or a YAML file with the keys ``cluster`` or ``address``, ``workers``,
        ``threads``, ``memory``, ``dashboard``, ``devices``, ``workers_per_device``, ``device_memory_limit``,
        ``rmm_pool_size``, and one named as the batch system.
    workers, threads
        Processes and threads of each. Default: one process with one thread for each device, else as many as the
        cores allow, with 1 thread each up to 4 cores.
    memory
        Limit of each worker, such as ``"4GB"``. Default: an equal share of nine tenths of the free memory.
    devices
        CUDA devices as ``"0,1"``, ``"GPU-…"``, ``"MIG-…"``, or a list. Default: with ``"cuda"`` those of
        CUDA_VISIBLE_DEVICES or all, else none.
    workers_per_device
        Processes that share each device.
    device_memory
        What the workers of a device may use of its memory together, such as ``"20GB"``.
    options
        What is asked of the batch system, over what the YAML file asks.

    Raises
    ------
    UserError
        An unknown cluster, a malformed file, numbers that are not positive, or devices that cannot be had.
    """
    request: dict[str, Any] = {"cluster": cluster, "dashboard": ":8787"}
    if cluster.endswith((".yaml", ".yml")):
        request |= {"cluster": "local"} | read_cluster_file(Path(cluster))
    given = {
        "workers": workers,
        "threads": threads,
        "memory": memory,
        "devices": devices,
        "workers_per_device": workers_per_device,
        "device_memory_limit": device_memory,
    }
    request |= {name: value for name, value in given.items() if value is not None}
    kind = _kind(str(request["cluster"]))
    for name in ("workers", "threads", "workers_per_device"):
        _check_count(name, request.get(name))
    if options and kind not in BATCH_SYSTEMS:
        raise UserError(f"--{next(iter(options)).replace('_', '-')} is for batch systems such as --cluster slurm")
    if kind in BATCH_SYSTEMS:
        return _batch(kind, request, {**(request.get(kind) or {}), **(options or {})})
    listed = _devices(kind, request)
    if kind == "cuda" and not listed:
        kind = "local"
    return _sized(kind, request, listed)


def _sized(kind: str, request: dict[str, Any], devices: tuple[str, ...] | None) -> Resources:
    """`Resources` of a cluster that is not a batch system's."""
    cores, free = machine()
    if devices:
        count = _workers_on(devices, request)
        threads = request.get("threads") or 1
    else:
        threads = request.get("threads") or _threads(cores, request.get("workers"))
        count = request.get("workers") or max(1, cores // threads)
    given = request.get("memory")
    device_memory = request.get("device_memory_limit")
    pool = request.get("rmm_pool_size")
    options: dict[str, Any] = {} if pool is None else {"rmm_pool_size": parse_memory(pool, "rmm_pool_size")}
    if request.get("protocol") is not None:
        options["protocol"] = request["protocol"]
    return Resources(
        workers=count,
        threads=threads,
        memory=free // count if given is None else parse_memory(given),
        address=str(request["cluster"]) if kind == "address" else None,
        dashboard=request["dashboard"],
        shared=given is None and kind != "address",
        kind=kind,
        options=options,
        devices=devices,
        workers_per_device=request.get("workers_per_device"),
        device_memory=None if device_memory is None else parse_memory(device_memory, "--device-memory"),
    )


def _batch(kind: str, request: dict[str, Any], options: dict[str, Any]) -> Resources:
    """`Resources` of jobs: what is not given comes from dask-jobqueue's configuration of the site."""
    from dtomo.distributed.batch import parse_request
    from dtomo.distributed.slurm import site_settings

    for name in DEVICE_KEYS:
        if request.get(name) is not None:
            raise UserError(
                f"{_option(name)} is for clusters on this machine (local, cuda); {kind} gives a job its devices"
            )
    parse_request(kind, options)
    site = site_settings(kind)
    processes = site.get("processes") or 1
    threads = request.get("threads") or max(1, (site.get("cores") or 1) // processes)
    if request.get("memory") is not None:
        memory = parse_memory(request["memory"])
    elif site.get("memory"):
        memory = parse_memory(site["memory"], f"jobqueue.{kind}.memory") // processes
    else:
        memory = parse_memory(_BATCH_MEMORY)
    return Resources(
        request.get("workers") or 1, threads, memory, dashboard=request["dashboard"], kind=kind, options=options
    )


def _check_count(name: str, value: Any) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise UserError(f"{_option(name)} is a whole number from 1; got {shown(repr(value))}")


def _option(name: str) -> str:
    """A key of the YAML file as an option of the command line, where it is one."""
    options = {"device_memory_limit": "--device-memory", "rmm_pool_size": "rmm_pool_size", "protocol": "protocol"}
    return options.get(name, "--" + name.replace("_", "-"))


def _threads(cores: int, workers: int | None) -> int:
    if workers is not None:
        return max(1, cores // workers)
    return 1 if cores <= 4 else 2 if cores <= 16 else 4


def _devices(kind: str, request: dict[str, Any]) -> tuple[str, ...] | None:
    """The devices asked for, or those of ``cuda``; None if there is no word of any."""
    asked = [name for name in DEVICE_KEYS if request.get(name) is not None]
    if kind == "address":
        if asked:
            raise UserError(
                f"{_option(asked[0])} is for clusters that dtomo starts; the workers of a scheduler that runs "
                "already have their devices"
            )
        return None
    of_cuda = {"rmm_pool_size", "protocol"} & set(asked)
    if kind == "local" and asked and (request.get("devices") is None or of_cuda):
        wanted = "--cluster cuda" if of_cuda else "--devices or --cluster cuda"
        raise UserError(f"{_option(asked[-1])} is for workers that own CUDA devices; give {wanted}")
    devices = None
    if request.get("devices") is not None:
        devices = parse_devices(request["devices"])
        check_visible(devices)
    if kind == "cuda":
        from dtomo.distributed.cuda import check_protocol, cuda_devices

        check_protocol(request.get("protocol"))
        devices = cuda_devices(devices, pool="rmm_pool_size" in asked)
    return devices


def _workers_on(devices: Sequence[str], request: dict[str, Any]) -> int:
    """Workers that `devices` come to."""
    workers, each = request.get("workers"), request.get("workers_per_device")
    count = len(devices) * (each or 1)
    if workers is not None and each is not None and workers != count:
        raise UserError(
            f"--workers {workers} and --workers-per-device {each} contradict each other: {len(devices)} "
            f"device{'s' * (len(devices) > 1)} would have {count} workers; give one of the two"
        )
    return int(workers or count)


def _kind(cluster: str) -> str:
    """The kind of cluster that a name or an address asks for."""
    if cluster in ("local", "cuda", *BATCH_SYSTEMS):
        return cluster
    if "://" in cluster:
        return "address"
    raise UserError(
        "--cluster is local, cuda, slurm, a scheduler's address such as tcp://host:8786, or a YAML file; "
        f"got {shown(repr(cluster))}"
    )


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
        Called with lines that say which worker owns which device, how jobs fare, and where the dashboard is.

    Raises
    ------
    UserError
        A cluster that cannot be started or reached, or that has no worker.
    """
    wanted = (
        cluster
        if isinstance(cluster, Resources)
        else resources(cluster, workers=workers, threads=threads, memory=memory)
    )
    if say is not None and wanted.devices is not None:
        say(f"devices: {described(wanted.devices, wanted.workers)}")
    with _client(wanted, say) as client:
        if say is not None and client.dashboard_link and wanted.dashboard:
            from dtomo.dashboard import link

            say(f"dashboard: {link(client)}")
        yield client


def _client(wanted: Resources, say: Callable[[str], None] | None) -> AbstractContextManager["Client"]:
    if wanted.kind in BATCH_SYSTEMS:
        from dtomo.distributed.slurm import slurm_client

        return slurm_client(wanted, wanted.options, say)
    if wanted.address is not None:
        return _remote(wanted)
    if wanted.kind == "cuda":
        from dtomo.distributed.cuda import cuda_client

        return cuda_client(wanted)
    from dtomo.distributed.local import local_client

    return local_client(wanted)


@contextlib.contextmanager
def _remote(wanted: Resources) -> Iterator["Client"]:
    from distributed import Client

    with contextlib.ExitStack() as stack:
        stack.enter_context(quiet_logs())
        # one that found no scheduler is closed here and now: left to the garbage collector, it may wait for a lock
        # that is held where the collector happens to run, for ever
        client = Client.__new__(Client)
        stack.callback(_close, client)
        try:
            Client.__init__(client, wanted.address, timeout=WAIT_FOR_WORKERS)
            stack.enter_context(client)
        except (OSError, ValueError, RuntimeError, TypeError) as error:
            keys = client.status == "newly-created"  # keys and certificates whose files are not there
            if isinstance(error, OSError | ValueError) and not keys:
                raise UserError(
                    f"no scheduler answers at {wanted.address}; check the address and that it runs"
                ) from error
            reason = shown(str(error).strip().split("\n")[0], 200)
            raise UserError(
                f"no connection to {wanted.address} ({reason}); keys, certificates and require-encryption are settings "
                "of Dask (distributed.comm)"
            ) from error
        try:
            client.wait_for_workers(1, timeout=WAIT_FOR_WORKERS)
        except TimeoutError as error:
            raise UserError(
                f"the scheduler at {wanted.address} has no worker after {WAIT_FOR_WORKERS:.0f} s"
            ) from error
        yield client


def _close(client: "Client") -> None:
    """Close a client that may not have come as far as to have something to close (keys that are not there)."""
    if client.status != "newly-created":
        client.close()


def measured(client: "Client", wanted: Resources) -> Resources:
    """`wanted` with the workers, threads and memory of the cluster that answered (one started here: unchanged)."""
    if wanted.address is None:
        return wanted
    found = client.scheduler_info(n_workers=-1)["workers"].values()
    limits = [worker["memory_limit"] for worker in found if worker["memory_limit"]]
    threads = min(worker["nthreads"] for worker in found)
    return dataclasses.replace(
        wanted, workers=len(found), threads=threads, memory=min(limits) if limits else wanted.memory
    )
