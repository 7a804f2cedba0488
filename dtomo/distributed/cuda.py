"""Workers that own GPUs: dask-cuda's cluster where each has a device of its own, else our own workers."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dtomo.device import SHARE
from dtomo.distributed.devices import OWN_DEVICE, POOL, owned, parse_devices, same_device, visible_devices
from dtomo.distributed.local import HOST, kept_here, local_client, pinned_cluster
from dtomo.errors import UserError, shown

if TYPE_CHECKING:
    from distributed import Client, SpecCluster

    from dtomo.distributed.clusters import Resources

KEPT = 0.8
"""Part of its share of a device that a worker fills with what it keeps; dask-cuda moves more to the host."""

_INSTALL = "install it with pip install 'dtomo[cuda12]' (or dtomo[cuda13]), or use --cluster local"


def check_cuda(devices: Sequence[str] = (), pool: bool = False) -> int:
    """How many GPUs there are; refuses where a library, the driver or a device is missing.

    The driver is asked through NVML, which creates no CUDA context.

    Parameters
    ----------
    devices
        Devices that are wanted; only indices can be checked.
    pool
        Whether RMM is needed, too.

    Raises
    ------
    UserError
        Names what is missing and how to get it.
    """
    for module, name in (("cupy", "CuPy"), ("dask_cuda", "dask-cuda"), ("pynvml", "nvidia-ml-py")):
        if find_spec(module) is None:
            raise UserError(f"--cluster cuda needs {name}, which is not installed: {_INSTALL}")
    if pool and find_spec("rmm") is None:
        raise UserError(
            "rmm_pool_size needs RMM, which is not installed: pip install rmm-cu12 (or rmm-cu13), or leave the key out"
        )
    count = _count_devices()
    missing = [device for device in devices if device.isdigit() and int(device) >= count]
    if missing:
        raise UserError(f"--devices names {missing[0]}, but this machine has {count} GPUs, counted from 0")
    return count


@contextmanager
def _nvml() -> Iterator[Any]:
    """The driver's management library; refuses where there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise UserError(
            f"--cluster cuda finds no NVIDIA driver that works on this machine ({error}); install one, "
            "or use --cluster local"
        ) from error


def _count_devices() -> int:
    with _nvml() as nvml:
        count = int(nvml.nvmlDeviceGetCount())
    if not count:
        raise UserError("--cluster cuda finds no GPU on this machine; use --cluster local")
    return count


def _memory_of(devices: Sequence[str]) -> int:
    """Bytes of the smallest of these devices, indices in the order of the bus; of an identifier all GPUs count."""
    with _nvml() as nvml:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        sizes = [int(nvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles]
    return min([sizes[int(device)] for device in devices if device.isdigit() and int(device) < len(sizes)] or sizes)


def device_share(wanted: "Resources") -> int | None:
    """Bytes of its device that each worker may take where workers compute on devices; None where they do not.

    They do on a cluster of kind "cuda", and on a local one with devices where CuPy and the driver are there. CUDA
    itself is not touched. Of a device without a limit of the user's a part is left to CUDA and to libraries.

    Raises
    ------
    UserError
        A cluster of kind "cuda" without driver or device.
    """
    if not wanted.devices or any(find_spec(module) is None for module in ("cupy", "pynvml")):
        return None
    try:
        total = int(SHARE * _memory_of(wanted.devices))
    except UserError:
        if wanted.kind == "cuda":
            raise
        return None
    sizes = [total, wanted.device_memory or total, wanted.options.get("rmm_pool_size") or total]
    return min(sizes) // max(sharing for _, sharing in owned(wanted.devices, wanted.workers))


def cuda_devices(asked: Sequence[str] | None, pool: bool = False) -> tuple[str, ...]:
    """Devices of a cluster of GPUs, checked: those asked for, of CUDA_VISIBLE_DEVICES, or all; none: the CPU.

    Raises
    ------
    UserError
        As for `check_cuda`; not where the list is empty.
    """
    listed = visible_devices() if asked is None else tuple(asked)
    if listed is None:
        return parse_devices(list(range(check_cuda(pool=pool))))
    if listed:
        check_cuda(listed, pool)
    return listed


def check_protocol(protocol: Any) -> None:
    """Refuse what workers cannot talk by: ``"tcp"`` (also None) goes through the host, ``"ucx"`` from device to device.

    Raises
    ------
    UserError
        Another name, or UCX that is not installed.
    """
    if protocol not in (None, "tcp", "ucx"):
        raise UserError(f"protocol is tcp or ucx; got {shown(repr(protocol))}")
    if protocol == "ucx" and find_spec("distributed_ucxx") is None:
        raise UserError(
            "protocol: ucx needs distributed-ucxx, which is not installed: pip install distributed-ucxx-cu12 "
            "(or distributed-ucxx-cu13), or leave the key out"
        )


def cuda_client(wanted: "Resources") -> AbstractContextManager["Client"]:
    """A client of workers on this machine that own the devices `wanted.devices`.

    Raises
    ------
    UserError
        UCX between workers that share devices.
    """
    alone = one_worker_per_device(wanted)
    if wanted.options.get("protocol") == "ucx" and not alone:
        raise UserError("protocol: ucx is for one worker on each device; leave the key out where workers share one")
    return local_client(wanted, _dask_cuda_cluster if alone else pinned_cluster)


def one_worker_per_device(wanted: "Resources") -> bool:
    """Whether dask-cuda's cluster fits: all workers have devices of their own, named in one way."""
    devices = wanted.devices or ()
    if wanted.workers > len(devices):
        return False
    used = devices[: wanted.workers]
    alone = all(not same_device(one, other) for at, one in enumerate(used) for other in used[:at])
    return alone and len({device.isdigit() for device in used}) == 1


def _dask_cuda_cluster(wanted: "Resources", scratch: str, environments: Sequence[dict[str, str]]) -> "SpecCluster":
    """`LocalCUDACluster`, in which each worker has our environment and sees its own device only."""
    from dask_cuda import LocalCUDACluster

    from dtomo.distributed.worker import OwnDevice

    own = {_key(variables[OWN_DEVICE]): variables for variables in environments}

    class Cluster(LocalCUDACluster):
        """dask-cuda names a worker by its device and replaces its environment: ours is put back."""

        def new_worker_spec(self) -> dict[Any, dict[str, Any]]:
            ((name, spec),) = super().new_worker_spec().items()
            options = spec["options"]
            options["env"] = {**options.get("env", {}), **own[name]}
            options["plugins"] = [*options.get("plugins", ()), OwnDevice()]
            return {name: spec}

    return Cluster(**_keywords(wanted, scratch, list(own), environments))


def _key(device: str) -> int | str:
    """A device as dask-cuda names its worker."""
    return int(device) if device.isdigit() else device


def _keywords(
    wanted: "Resources", scratch: str, devices: list[int | str], environments: Sequence[dict[str, str]]
) -> dict[str, Any]:
    """What `LocalCUDACluster` is told; its pool takes the place of ours."""
    pools = [int(variables.pop(POOL)) for variables in environments if POOL in variables]
    keywords: dict[str, Any] = {
        "CUDA_VISIBLE_DEVICES": devices,
        "n_workers": len(devices),
        "threads_per_worker": 1,
        "memory_limit": wanted.memory,
        "local_directory": scratch,
        "host": HOST,
        "dashboard_address": kept_here(wanted.dashboard),
        "silence_logs": logging.CRITICAL,
        "preload": ["dtomo.distributed.worker"],
        "log_spilling": False,
    }
    if wanted.device_memory is not None:
        keywords["device_memory_limit"] = int(KEPT * wanted.device_memory)
    if wanted.options.get("protocol") == "ucx":
        keywords["protocol"] = "ucx"
    if pools:
        keywords |= {"rmm_pool_size": pools[0], "rmm_allocator_external_lib_list": ["cupy"]}
    return keywords
