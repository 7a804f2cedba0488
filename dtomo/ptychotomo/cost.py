"""What a joint run takes: slabs, memory of a worker, bytes and time, said before it starts and from metadata alone."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from dtomo.device import STAGE
from dtomo.distributed.clusters import Resources
from dtomo.distributed.devices import described
from dtomo.distributed.graph import spread
from dtomo.distributed.plan import Peaks, size
from dtomo.distributed.progress import duration
from dtomo.errors import UserError
from dtomo.ptycho.cost import CLIENT, CUDA_PROGRAMS, FACTOR, PROGRAMS, READING, STARTING, TRANSFORMING
from dtomo.ptychotomo.device_cost import OnDevice, on_device
from dtomo.ptychotomo.engines.admm import ROWS
from dtomo.ptychotomo.layout import REACH
from dtomo.ptychotomo.setup import ENGINES, JointData
from dtomo.ptychotomo.slab import BLOCK_BYTES
from dtomo.ptychotomo.slab_checkpoints import KEPT
from dtomo.settings import JointSettings

COMPLEX = 8
PROJECTING = 1 / 10e9
"""Seconds of a core for a complex voxel and angle, to project or to project back (docs/benchmarks.md)."""
FILES = 1 / 0.5e9
"""Seconds for a byte of slabs that lie in files, written or read."""
TASK = 3e-3
"""Seconds for a task on a cluster, whatever it does."""
TASKS = 9
"""Of a slab, in a pass."""
ROUND = 16
"""Slabs have a multiple of so many rows, where there is room."""
PASSES = {"adam": 1.0, "cg": 2.0, "admm": 2.0}
"""Over the frames in an epoch."""
PROJECTIONS = {"adam": 2.2, "cg": 2.2, "admm": 3.7}
"""Of the volume, or back, in a pass."""


@dataclasses.dataclass(frozen=True)
class JointSizes:
    """What decides the cost of a run.

    Attributes
    ----------
    settings
        Of the run.
    frames
        Their number, rows and columns.
    itemsize
        Bytes of a pixel of a frame.
    angles
        How many.
    rows, columns
        Of the images; the volume has rows × columns × columns voxels.
    """

    settings: JointSettings
    frames: tuple[int, int, int]
    itemsize: int
    angles: int
    rows: int
    columns: int

    @property
    def all_frames(self) -> int:
        """Bytes of the frames."""
        return math.prod(self.frames) * self.itemsize

    @property
    def reach(self) -> int:
        """Pixels that shifts may go."""
        return REACH if "shifts" in self.settings.refine else 0

    @property
    def least_rows(self) -> int:
        """Of a slab."""
        return min(self.rows, self.frames[1] + self.reach)

    @property
    def voxel(self) -> int:
        """Bytes of the volume and of what the engine holds of its shape, for a voxel."""
        return ENGINES[self.settings.engine].bytes_per_voxel(self.settings.total_variation > 0)

    @property
    def row(self) -> int:
        """Bytes of a row of the volume with all that, and of what the engine holds of a row of the images."""
        pixel = ENGINES[self.settings.engine].bytes_per_pixel()
        return self.columns**2 * self.voxel + self.angles * self.columns * pixel

    @property
    def fitting(self) -> int:
        """Bytes of what there is for a moment while ADMM fits the volume to waves."""
        return ROWS * 6 * COMPLEX * self.columns * (self.columns + self.angles) if self.settings.engine == "admm" else 0

    @property
    def on_disk(self) -> int:
        """Bytes of the result, and of the checkpoints that lie beside it at once at most."""
        volume = self.rows * self.columns**2 * COMPLEX
        return volume + (0 if self.settings.checkpoint_every == "never" else (KEPT + 1) * self.rows * self.row)

    @property
    def subset(self) -> int:
        """Angles of a step."""
        subsets = self.settings.subsets or (6 if self.settings.engine == "adam" else 1)
        return -(-self.angles // min(subsets, self.angles))

    @property
    def slices(self) -> int:
        """Along the beam."""
        return self.settings.slices or 1

    @property
    def border(self) -> int:
        """Bytes of what crosses one border between slabs in a pass: images out and derivatives back."""
        rows = 2 * self.seen
        planes = 2 * self.columns**2 * COMPLEX if self.settings.total_variation else 0
        return self.subset * self.slices * rows * self.columns * COMPLEX + planes

    @property
    def shared(self) -> int:
        """Bytes of the parameters that all slabs share."""
        own = self.angles if self.settings.own_probes else 1
        return own * self.probe + 4 * self.frames[1] * self.frames[2] + 40 * self.angles

    @property
    def probe(self) -> int:
        """Bytes of the probe of an angle."""
        return self.settings.modes * self.frames[1] * self.frames[2] * COMPLEX

    @property
    def exit_waves(self) -> int:
        """Bytes of those of a frame."""
        return self.probe

    @property
    def seen(self) -> int:
        """Rows of its neighbours that frames of a slab see."""
        return self.frames[1] + 2 * self.reach

    @property
    def passes(self) -> float:
        """Over all frames, in the whole run; coarse ones count by their pixels, the two halves of the angles as one."""
        coarse = sum(self.settings.coarse_epochs_wanted / factor**2 for factor in self.settings.coarse)
        return self.of_epoch * (self.settings.epochs_wanted + coarse) * (2 if self.settings.halves else 1)

    @property
    def of_epoch(self) -> float:
        """Passes over all frames in an epoch."""
        if self.settings.engine == "admm":
            return float(self.settings.options.get("inner", PASSES["admm"]))
        return PASSES[self.settings.engine]


def sizes_of(settings: JointSettings, data: JointData) -> JointSizes:
    """Of a scan, as it is opened."""
    source = data.frames.source
    return JointSizes(settings, source.shape, source.dtype.itemsize, len(data.angles), *data.image_shape)


@dataclasses.dataclass(frozen=True)
class JointPlan(Peaks):
    """Cost of a run.

    Attributes
    ----------
    resources, sizes
        What there is, and what is asked for.
    slab_rows
        Of a slab; all rows: there is one.
    slab_memory
        Bytes of slabs that a worker holds in memory; None: all of them, the others lie in files.
    frame_memory
        Bytes of frames that a worker keeps.
    worker_parts, client_parts, device_parts
        What is in memory at the worst moment, by name.
    moved
        Bytes between workers in an epoch.
    bytes_read, bytes_written
        From and to the disk in the whole run.
    seconds
        Wall time by stage, roughly.
    device_slabs
        Bytes of slabs that stay on a worker's device; None: all of them.
    """

    resources: Resources
    sizes: JointSizes
    slab_rows: int
    slab_memory: int | None
    frame_memory: int
    worker_parts: dict[str, int]
    client_parts: dict[str, int]
    device_parts: dict[str, int]
    moved: int
    bytes_read: int
    bytes_written: int
    seconds: dict[str, float]
    device_slabs: int | None = None

    @property
    def slabs(self) -> int:
        """How many."""
        return max(1, self.sizes.rows // self.slab_rows)

    @property
    def here(self) -> bool:
        """Whether the process that starts the run also does the work."""
        return self.resources.kind == "local" and self.resources.workers == 1 and not self.resources.devices

    def lines(self) -> list[str]:
        """The plan for people."""
        sizes, workers, threads = self.sizes, self.resources.workers, self.resources.threads
        count, rows, columns = sizes.frames
        volume = sizes.rows * sizes.columns**2
        where = ", this process" if self.here else ""
        parts = ", ".join(f"{name} {size(value)}" for name, value in self.worker_parts.items())
        stages = ", ".join(f"{name} {duration(value)}" for name, value in self.seconds.items())
        held = (
            "in memory" if self.slab_memory is None else f"{size(self.slab_memory)} of them in memory, others in files"
        )
        takes = f"about {duration(sum(self.seconds.values()))} ({stages}), within a factor of 3 or so"
        if self.device_parts:
            held = "on the device" if self.device_slabs is None else f"brought to the device one at a time, {held}"
            takes += " of the CPU; what devices take is not known"
        return [
            f"frames: {count} of {rows} × {columns} at {sizes.angles} angles, {size(sizes.all_frames)}",
            f"volume: {sizes.rows} × {sizes.columns} × {sizes.columns} voxels, {size(volume * COMPLEX)}, with the "
            f"solver's arrays {size(sizes.rows * sizes.row)}",
            f"slabs: {self.slabs} of {self.slab_rows} rows, {held}",
            f"workers: {workers} with {threads} thread{'s' * (threads > 1)} each{where}",
            *([] if self.resources.devices is None else [f"devices: {described(self.resources.devices, workers)}"]),
            f"memory per worker: {size(self.worker_memory)} of {size(self.resources.memory)} ({parts})",
            *self._device_lines(),
            f"between workers: {size(self.moved)} in an epoch (borders, sums of what all slabs share)",
            f"read: {size(self.bytes_read)}, written: {size(self.bytes_written)}",
            f"time: {takes}",
        ]

    def _device_lines(self) -> list[str]:
        if not self.device_parts:
            return []
        parts = ", ".join(f"{name} {size(value)}" for name, value in self.device_parts.items())
        share = self.resources.device_share or 0
        return [f"device memory per worker: {size(self.device_memory)} of {size(share)} ({parts})"]


def make_plan(sizes: JointSizes, resources: Resources, slab_rows: int | None = None) -> JointPlan:
    """What a run takes, with the highest slabs that workers have memory for.

    Parameters
    ----------
    sizes, resources
        What is asked for, and what there is.
    slab_rows
        Rows of a slab; None: as the settings say.
    """
    wanted = slab_rows if slab_rows is not None else sizes.settings.slab_rows
    if wanted != "auto":
        return _plan(sizes, resources, min(int(wanted), sizes.rows))
    workers = resources.workers
    even = -(-sizes.rows // workers)
    height = max(sizes.least_rows, _rounded(even))
    plan = _plan(sizes, resources, min(height, sizes.rows))
    while not plan.fits and height > sizes.least_rows:
        height = max(sizes.least_rows, _rounded(height // 2))
        plan = _plan(sizes, resources, height)
    return plan


def _rounded(rows: int) -> int:
    return max(1, rows // ROUND) * ROUND if rows > ROUND else rows


def _plan(sizes: JointSizes, resources: Resources, height: int) -> JointPlan:
    slabs, workers = max(1, sizes.rows // height), resources.workers
    homes = spread(slabs, [str(worker) for worker in range(workers)])
    per_worker = max(homes.count(home) for home in set(homes))
    last = sizes.rows - (slabs - 1) * height
    one = last * sizes.row
    frame = sizes.frames[1] * sizes.frames[2] * sizes.itemsize
    most = max(1, math.ceil(sizes.frames[0] / sizes.angles / slabs * 2))
    share = sizes.all_frames // workers
    device = None
    if resources.device_share is not None:
        device = on_device(sizes, resources.device_share, last, per_worker, most, share)
    fixed = _fixed(sizes, 3 * sizes.border * min(per_worker + 1, slabs), device is not None)
    fixed["frames on the way"] = 3 * most * frame + sizes.frames[0] * 32
    free = int(0.9 * resources.memory) - sum(fixed.values())
    whole = _on_host(device, per_worker, one)
    working = one // 8 if device is None else 0
    slab_memory = None if whole + working <= free else max(0, min(free - one - working, whole))
    held = whole if slab_memory is None else slab_memory + one
    fixed["slabs"] = held + working
    frame_memory = int(max(0, min(share, free - fixed["slabs"]))) if device is None else device.frames
    parts = fixed | ({"frames kept": frame_memory} if frame_memory and device is None else {})
    crossings = sum(a != b for a, b in itertools.pairwise(homes))
    steps = -(-sizes.angles // sizes.subset)
    passes = sizes.of_epoch
    moved = int(passes * (crossings * sizes.border * steps + steps * 2 * (len(set(homes)) - 1) * sizes.shared))
    read, written, seconds = _work(
        sizes, resources, per_worker, share, frame_memory, whole - (held if slab_memory else whole)
    )
    if resources.kind != "local" or workers > 1:
        seconds["tasks"] = sizes.passes * steps * slabs * TASKS * TASK
    client = {"programs": CLIENT, "shared": 6 * sizes.shared, "positions": sizes.frames[0] * 48}
    return JointPlan(
        resources, sizes, height, slab_memory, frame_memory, parts, client, {} if device is None else device.parts,
        moved, read, written, seconds, None if device is None else device.slabs,
    )  # fmt: skip


def _fixed(sizes: JointSizes, borders: int, device: bool) -> dict[str, int]:
    """What is in a worker's memory whatever else is."""
    if device:
        return {
            "programs": PROGRAMS + CUDA_PROGRAMS, "copies": 4 * STAGE, "borders": borders, "shared": 6 * sizes.shared
        }  # fmt: skip
    images = max(BLOCK_BYTES, sizes.fitting) + sizes.subset * sizes.columns * 64
    return {"programs": PROGRAMS, "images": images, "borders": borders, "shared": 6 * sizes.shared}


def _on_host(device: OnDevice | None, slabs: int, one: int) -> int:
    """Bytes of the slabs of a worker that are not on its device."""
    if device is None:
        return slabs * one
    return 0 if device.slabs is None else (slabs - min(slabs, device.slabs // one)) * one


def _work(
    sizes: JointSizes, resources: Resources, per_worker: int, share: int, kept: int, filed: int
) -> tuple[int, int, dict[str, float]]:
    """Bytes read and written, and seconds by stage."""
    count, rows, columns = sizes.frames
    cores = resources.workers * resources.threads
    everything = sizes.all_frames
    again = max(0.0, 1 - kept / max(1, share))
    read = int(everything * (1 + again * (sizes.passes - 1)))
    volume = sizes.rows * sizes.columns**2
    in_files = max(0, filed) * resources.workers
    steps = -(-sizes.angles // sizes.subset) * sizes.passes
    transforms = 4 * 5 * rows * columns * math.log2(max(2, rows * columns)) * count * sizes.settings.modes
    projected = PROJECTIONS[sizes.settings.engine] * volume * sizes.angles * sizes.slices
    seconds = {
        "starting": STARTING,
        "reading": read * READING / resources.workers,
        "frames": sizes.passes * transforms * FACTOR * TRANSFORMING / cores,
        "projecting": sizes.passes * projected * PROJECTING / cores,
    }
    if in_files:
        seconds["slabs in files"] = 3 * steps * in_files * FILES / resources.workers
    return read, 2 * volume * 4 + sizes.shared, seconds


def refuse_if_too_big(plan: JointPlan) -> None:
    """Refuse what does not fit, with what would.

    Raises
    ------
    UserError
        A worker has too little memory for one slab.
    """
    if plan.fits:
        return
    least = _plan(plan.sizes, plan.resources, plan.sizes.least_rows)
    share = plan.resources.device_share
    if share is not None and plan.device_memory > share:
        raise UserError(
            f"a worker needs {size(plan.device_memory)} of its device's memory for slabs of {plan.slab_rows} rows but "
            f"may take {size(share)}; {_smaller(plan, least, share)}"
        )
    needs = min(plan.worker_memory, least.worker_memory)
    raise UserError(
        f"a worker needs {size(needs)} and has {size(plan.resources.memory)}; give more --memory or fewer workers, "
        "more --subsets, or use fewer columns (bin the frames' images)"
    )


def _smaller(plan: JointPlan, least: JointPlan, share: int) -> str:
    """What would fit the device."""
    if least.device_memory <= share:
        return f"give --slab-rows {least.slab_rows}, more --device-memory, or fewer --workers-per-device"
    return (
        f"slabs of {least.slab_rows} rows, the lowest, take {size(least.device_memory)}: give so much --device-memory, "
        "fewer --workers-per-device, fewer columns (bin the frames' images), or --cluster local"
    )


def as_numbers(plan: JointPlan) -> dict[str, Any]:
    """For the summary."""
    return {
        "planned_memory": plan.worker_memory,
        "planned_seconds": round(float(np.sum(list(plan.seconds.values()))), 1),
    }
