"""Which worker owns which CUDA device, and how much of its memory; nothing here touches CUDA.

Worker i has device ``devices[i % len(devices)]`` for life: its environment names it, and a worker that the
nanny starts again has the same environment.
"""

import os
import re
from collections.abc import Sequence

from dtomo.errors import UserError, shown

OWN_DEVICE = "DTOMO_DEVICE"
"""Variable of a worker's environment with the device that it was given ("": it computes on the CPU)."""
POOL = "DTOMO_RMM_POOL"
"""Variable of a worker's environment with the bytes of its pool of device memory (RMM)."""

_INDEX = re.compile(r"[0-9]{1,4}")
_IDENTIFIER = re.compile(
    r"(GPU|MIG)-[0-9a-fA-F][0-9a-fA-F-]{0,35}|MIG-GPU-[0-9a-fA-F][0-9a-fA-F-]{0,35}/[0-9]{1,3}/[0-9]{1,3}"
)


def parse_devices(given: str | int | Sequence[str | int]) -> tuple[str, ...]:
    """Devices in ``"3,1"``, ``"GPU-8932f937-…"``, ``"MIG-…"`` or a list of such; none in an empty text or list.

    Raises
    ------
    UserError
        An entry that is neither an index nor an identifier.
    """
    if isinstance(given, str):
        entries: list[object] = list(given.split(",")) if given.strip() else []
    else:
        entries = list(given) if isinstance(given, Sequence) else [given]
    devices = [_device(entry) for entry in entries]
    if None in devices:
        raise UserError(
            "--devices takes indices and identifiers of CUDA devices between commas, such as 0,1 or GPU-8932f937 "
            f"or MIG-41b3359c; got {shown(repr(given))}"
        )
    return tuple(device for device in devices if device is not None)


def _device(entry: object) -> str | None:
    """The entry as CUDA_VISIBLE_DEVICES has it; None if it is no device."""
    if isinstance(entry, bool) or not isinstance(entry, str | int):
        return None
    text = str(entry).strip()
    if _INDEX.fullmatch(text):
        return str(int(text))
    return text if _IDENTIFIER.fullmatch(text) else None


def visible_devices() -> tuple[str, ...] | None:
    """Devices that CUDA_VISIBLE_DEVICES of the environment allows; None if it is not set.

    As CUDA reads it: what follows an entry that is no device (``-1``, ``NoDevFiles``) does not count.
    """
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    devices: list[str] = []
    for entry in text.split(","):
        device = _device(entry)
        if device is None:
            break
        devices.append(device)
    return tuple(devices)


def check_visible(devices: Sequence[str]) -> None:
    """Refuse devices outside a CUDA_VISIBLE_DEVICES that is not empty.

    Raises
    ------
    UserError
        A device that the environment does not list, or lists by another kind of name.
    """
    text = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    allowed = visible_devices() or ()
    wrong = [device for device in devices if not any(same_device(device, other) for other in allowed)]
    if text and wrong:
        raise UserError(
            f"--devices names {shown(wrong[0])}, but CUDA_VISIBLE_DEVICES of the environment allows only "
            f"{shown(text)}; choose among these, named as there"
        )


def same_device(first: str, second: str) -> bool:
    """Whether two entries name one device; an identifier may be given by its beginning."""
    one, other = first.lower(), second.lower()
    if one.isdigit() or other.isdigit():
        return one == other
    return one.startswith(other) or other.startswith(one)


def owned(devices: Sequence[str], workers: int) -> list[tuple[str, int]]:
    """For each worker its device, and how many workers this device has in all."""
    own = [devices[index % len(devices)] for index in range(workers)]
    count = {device: sum(same_device(device, other) for other in own) for device in set(own)}
    return [(device, count[device]) for device in own]


def device_environments(
    devices: Sequence[str] | None, workers: int, memory: int | None = None, pool: int | None = None
) -> list[dict[str, str]]:
    """Variables of each worker's environment that give it its device and its share of the device's memory.

    Parameters
    ----------
    devices
        None: the environment is left as it is; empty: no device is seen.
    workers
        Number of workers.
    memory
        Bytes of a device's memory that its workers may use together; default: all, where they share it.
    pool
        Bytes of a device's memory that RMM pools of its workers take at their start.
    """
    if devices is None:
        return [{} for _ in range(workers)]
    if not devices:
        return [{OWN_DEVICE: "", "CUDA_VISIBLE_DEVICES": ""} for _ in range(workers)]
    environments = []
    for device, sharing in owned(devices, workers):
        variables = {OWN_DEVICE: device, "CUDA_VISIBLE_DEVICES": device}
        # indices in the order of nvidia-smi, whatever the speed of the cards
        variables["CUDA_DEVICE_ORDER"] = os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        if memory is not None:
            variables["CUPY_GPU_MEMORY_LIMIT"] = str(memory // sharing)
        elif sharing > 1 and "CUPY_GPU_MEMORY_LIMIT" not in os.environ:
            variables["CUPY_GPU_MEMORY_LIMIT"] = f"{10000 // sharing / 100:.2f}%"
        if pool is not None:
            variables[POOL] = str(pool // sharing)
        environments.append(variables)
    return environments


def described(devices: Sequence[str], workers: int) -> str:
    """``"worker 0 on 3, worker 1 on 1"`` for people; not more than eight by name."""
    if not devices:
        return "none listed, computing on the CPU"
    named = [f"worker {index} on {device}" for index, (device, _) in enumerate(owned(devices, min(workers, 8)))]
    return ", ".join(named) + (f" and so on for {workers} workers" if workers > 8 else "")
