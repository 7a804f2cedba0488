"""What a run will take, said before it starts: tasks, memory, bytes and time."""

import dataclasses
from collections.abc import Sequence

from dtomo.distributed.clusters import Resources
from dtomo.distributed.devices import described
from dtomo.distributed.progress import duration
from dtomo.distributed.slabs import Slab
from dtomo.errors import UserError


def size(count: float) -> str:
    """``"1.5 GB"``: bytes in decimal units."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.{1 if count < 10 * scale else 0}f} {unit}"
    return f"{count:.0f} B"


class Peaks:
    """Sums over the parts of a plan, and whether they fit: what plans of all kinds of runs share.

    Attributes
    ----------
    resources
        Workers, threads and the limit of memory.
    worker_parts, client_parts, device_parts
        What is in memory at the worst moment, in bytes by name.
    """

    resources: Resources
    worker_parts: dict[str, int]
    client_parts: dict[str, int]
    device_parts: dict[str, int]

    @property
    def device_memory(self) -> int:
        """Peak of one worker on its device in bytes; 0 on the CPU."""
        return sum(self.device_parts.values())

    @property
    def worker_memory(self) -> int:
        """Peak of one worker in bytes."""
        return sum(self.worker_parts.values())

    @property
    def client_memory(self) -> int:
        """Peak of the process that starts the run, in bytes."""
        return sum(self.client_parts.values())

    @property
    def fits(self) -> bool:
        """Whether a worker stays within its limits."""
        share = self.resources.device_share
        return self.worker_memory <= self.resources.memory and (share is None or self.device_memory <= share)


@dataclasses.dataclass(frozen=True)
class Plan(Peaks):
    """Cost of a run.

    Attributes
    ----------
    slabs
        One task each, the first the largest.
    block
        Slices worked on at a time inside a task.
    resources
        Workers, threads and the limit of memory.
    worker_parts, client_parts
        What is in memory at the worst moment, in bytes by name.
    bytes_read, bytes_written
        From and to the disk, uncompressed.
    seconds
        Wall time by stage, roughly.
    scratch
        Bytes on disk while it runs, beside the output, by name.
    notes
        Further lines for people.
    ahead
        Whether there is memory for reading ahead.
    device_parts
        What is in a device's memory at the worst moment of one worker, in bytes by name; empty on the CPU.
    """

    slabs: Sequence[Slab]
    block: int
    resources: Resources
    worker_parts: dict[str, int]
    client_parts: dict[str, int]
    bytes_read: int
    bytes_written: int
    seconds: dict[str, float]
    scratch: dict[str, int] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    ahead: bool = False
    device_parts: dict[str, int] = dataclasses.field(default_factory=dict)

    def lines(self) -> list[str]:
        """The plan for people."""
        wide = len(self.slabs[0])
        parts = ", ".join(f"{name} {size(count)}" for name, count in self.worker_parts.items())
        client = ", ".join(f"{name} {size(count)}" for name, count in self.client_parts.items())
        stages = ", ".join(f"{name} {duration(value)}" for name, value in self.seconds.items())
        at_once = "" if self.block >= wide else f", {self.block} slices at a time"
        workers, threads = self.resources.workers, self.resources.threads
        scratch = ", ".join(f"{name} {size(count)}" for name, count in self.scratch.items())
        takes = f"about {duration(sum(self.seconds.values()))} ({stages}), within a factor of 2 or so"
        if self.resources.device_share is not None:
            takes += ", and what the devices take, which is not estimated"
        return [
            f"tasks: {len(self.slabs)}, each a slab of {wide} slice{'s' * (wide > 1)}{at_once}",
            f"workers: {workers} with {threads} thread{'s' * (threads > 1)} each",
            *([] if self.resources.devices is None else [f"devices: {described(self.resources.devices, workers)}"]),
            f"memory per worker: {size(self.worker_memory)} of {size(self.resources.memory)} ({parts})",
            *self._device_lines(),
            f"memory of the client: {size(self.client_memory)} ({client})",
            f"read: {size(self.bytes_read)}, written: {size(self.bytes_written)} before compression",
            f"time: {takes}",
            *([f"on disk while it runs, beside the output: {scratch}"] if scratch else []),
            *self.notes,
        ]

    def _device_lines(self) -> list[str]:
        if self.resources.device_share is None:
            return []
        parts = ", ".join(f"{name} {size(count)}" for name, count in self.device_parts.items())
        whole = f"{size(self.device_memory)} of {size(self.resources.device_share)}"
        return [f"device memory per worker: {whole} ({parts})"]


def refuse_if_too_big(plan: Plan, smaller: Plan | None) -> None:
    """Raise if `plan` does not fit its workers' memory, naming what would.

    Parameters
    ----------
    plan
        The plan asked for.
    smaller
        A plan with smaller slabs that fits, or None if there is none.

    Raises
    ------
    UserError
        The plan does not fit.
    """
    if plan.fits:
        return
    share = plan.resources.device_share
    if share is not None and plan.device_memory > share:
        slices = f"{plan.block} slice{'s' * (plan.block > 1)} at a time"
        raise UserError(
            f"a worker needs {size(plan.device_memory)} of its device's memory for {slices} but may take "
            f"{size(share)}; give more --device-memory, fewer --workers-per-device, --bin 2, or --cluster local"
        )
    need = f"a worker needs {size(plan.worker_memory)} but is limited to {size(plan.resources.memory)}"
    fewer = int(plan.resources.memory * plan.resources.workers / (1.05 * plan.worker_memory))
    if plan.resources.shared and 1 <= fewer < plan.resources.workers:
        raise UserError(f"{need}, its share of the free memory; give --workers {fewer} or fewer")
    if smaller is not None:
        raise UserError(f"{need}; --slab {len(smaller.slabs[0])} would fit, or give more --memory")
    enough = size(1.05 * plan.worker_memory).replace(" ", "")
    raise UserError(f"{need} and no smaller slab fits; give --memory {enough} or more, or --bin 2")
