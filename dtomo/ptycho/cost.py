"""What a ptychographic run takes: memory of a worker and of the client, bytes and time, said before it starts."""

import dataclasses
import math
from collections.abc import Callable, Mapping

from dtomo.distributed.clusters import Resources
from dtomo.distributed.devices import described
from dtomo.distributed.plan import Peaks, size
from dtomo.distributed.progress import duration
from dtomo.errors import UserError
from dtomo.ptycho.blocks import PIXELS
from dtomo.ptycho.setup import Data
from dtomo.ptycho.start import Place
from dtomo.settings import PtychoSettings

PROGRAMS = 320_000_000
"""Python, libraries and compiled kernels in a worker, as measured for other runs and rounded up."""
CLIENT = 300_000_000
"""The same of the client."""
CUDA_PROGRAMS = 1_200_000_000
"""What CUDA and its libraries take in a worker's host memory beside this (a guess on the safe side)."""
COMPLEX, POSITION = 8, 16

STATES = {"lsqml": 3.0, "epie": 1.0, "rpie": 1.0, "dm": 2.0, "raar": 2.0, "adam": 2.5, "cg": 5.0}
"""Arrays of the object's size that a solver holds, its gradient not counted."""
PASSES = {"lsqml": 2.0, "epie": 1.0, "rpie": 1.0, "dm": 1.0, "raar": 1.0, "adam": 1.0, "cg": 3.0}
"""How often the frames are evaluated in an epoch, about."""
KEEPING = ("dm", "raar")
"""Solvers that keep an exit wave for each frame."""
TILED = ("adam",)
"""Solvers that take an object in tiles, where positions are not refined."""
TILE = 256
"""Tiles have a multiple of so many rows."""
NODES = 3
"""Sums of the tree in a worker at the worst moment, each up to the object's size."""
WAVES = 4
"""Arrays of a block's exit waves at the worst moment."""

# Seconds per unit on one core (rough: machines differ by a factor of 2 and more).
READING = 1 / 1.0e9  # per byte
TRANSFORMING = 1 / 2.0e9  # per 5 N² log₂ N² of a Fourier transform
FACTOR = 2.5  # of all work, beside the Fourier transforms alone
STARTING = 3.0
SMALL = 2.0
"""Seconds of one core in an epoch, below which workers cost more (tasks, sums sent to and fro) than they save."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What decides the cost of a run.

    Attributes
    ----------
    frames
        Their number, rows and columns as the model sees them.
    itemsize
        Bytes of a pixel of a frame in memory.
    object_shape
        Rows and columns.
    """

    settings: PtychoSettings
    frames: tuple[int, int, int]
    itemsize: int
    object_shape: tuple[int, int]

    @property
    def frame(self) -> int:
        """Bytes of a frame."""
        return self.frames[1] * self.frames[2] * self.itemsize

    @property
    def all_frames(self) -> int:
        """Bytes of all of them."""
        return self.frames[0] * self.frame

    @property
    def block(self) -> int:
        """Frames of a block at most."""
        return min(self.frames[0], max(4, PIXELS // (self.frames[1] * self.frames[2])))

    @property
    def object(self) -> int:
        """Bytes of the object."""
        return self.settings.object_modes * self.settings.slices * math.prod(self.object_shape) * COMPLEX

    @property
    def probe(self) -> int:
        """Bytes of the probe, the variable one, and the background."""
        pixels = self.frames[1] * self.frames[2] * self.settings.oversampling**2
        return (1 + self.settings.opr) * self.settings.modes * pixels * COMPLEX + pixels * COMPLEX // 2

    @property
    def per_frame(self) -> int:
        """Bytes of tables that have a row for each frame."""
        return self.frames[0] * (POSITION + COMPLEX + self.settings.opr * COMPLEX)

    @property
    def exit_waves(self) -> int:
        """Bytes of the exit waves of a frame."""
        modes = self.settings.modes * self.settings.object_modes
        return modes * self.frames[1] * self.frames[2] * self.settings.oversampling**2 * COMPLEX


def sizes_of(settings: PtychoSettings, data: Data, place: Place) -> Sizes:
    """Of a scan, as it is opened."""
    return Sizes(settings, data.source.shape, data.source.dtype.itemsize, place.shape)


@dataclasses.dataclass(frozen=True)
class PtychoPlan(Peaks):
    """Cost of a run.

    Attributes
    ----------
    resources
        Workers, threads, memory.
    sizes
        Of the problem.
    frame_memory
        Bytes of frames that each worker keeps; what does not fit is read again in each epoch.
    worker_parts, client_parts, device_parts
        What is in memory at the worst moment, in bytes by name; the last is empty on the CPU.
    bytes_read, bytes_written
        From and to the disk.
    seconds
        Wall time by stage, roughly.
    notes
        Further lines for people.
    tile
        Rows of the tiles that the object is cut into; None: it is whole on each worker.
    """

    resources: Resources
    sizes: Sizes
    frame_memory: int
    worker_parts: dict[str, int]
    client_parts: dict[str, int]
    device_parts: dict[str, int]
    bytes_read: int
    bytes_written: int
    seconds: dict[str, float]
    notes: tuple[str, ...] = ()
    tile: int | None = None

    @property
    def here(self) -> bool:
        """Whether the process that starts the run also does the work: one worker on the CPU of this machine."""
        return runs_here(self.resources)

    def _lies(self) -> str:
        if self.tile is None:
            return "on each worker"
        return f"in {tiles(self.sizes, self.tile)} tiles of {self.tile} rows, each on its worker"

    def lines(self) -> list[str]:
        """The plan for people."""
        count, rows, columns = self.sizes.frames
        workers, threads = self.resources.workers, self.resources.threads
        where = ", this process" if self.here else ""
        takes = f"about {duration(sum(self.seconds.values()))} ({_listed(self.seconds, duration)}), within a factor of "
        takes += "3 or so" if self.resources.device_share is None else "3 or so of the CPU; devices are faster"
        height, width = self.sizes.object_shape
        device = f"device memory per worker: {size(self.device_memory)} of {size(self.resources.device_share or 0)}"
        return [
            f"frames: {count} of {rows} × {columns}, {size(self.sizes.all_frames)}, in blocks of {self.sizes.block}",
            f"object: {height} × {width} pixels, {size(self.sizes.object)}, {self._lies()}",
            f"workers: {workers} with {threads} thread{'s' * (threads > 1)} each{where}",
            *([] if self.resources.devices is None else [f"devices: {described(self.resources.devices, workers)}"]),
            f"memory per worker: {size(self.worker_memory)} of {size(self.resources.memory)} "
            f"({_listed(self.worker_parts, size)})",
            *([f"{device} ({_listed(self.device_parts, size)})"] if self.device_parts else []),
            *([] if self.here else [_client_line(self)]),
            f"read: {size(self.bytes_read)}, written: {size(self.bytes_written)}",
            f"time: {takes}",
            *self.notes,
        ]


def _listed(parts: Mapping[str, float], put: Callable[[float], str]) -> str:
    return ", ".join(f"{name} {put(value)}" for name, value in parts.items())


def _client_line(plan: PtychoPlan) -> str:
    return f"memory of the client: {size(plan.client_memory)} ({_listed(plan.client_parts, size)})"


def runs_here(resources: Resources) -> bool:
    """Whether no other process is needed: one worker on this machine, on the CPU."""
    return resources.kind == "local" and resources.workers == 1 and not resources.devices


def suited(settings: PtychoSettings, sizes: Sizes, resources: Resources) -> Resources:
    """One process with all threads in the place of several workers, where nobody asked for these and work is small.

    Parameters
    ----------
    settings, sizes, resources
        See `make_plan`.
    """
    asked = settings.workers is not None or settings.cluster != "local" or isinstance(settings.tile, int)
    if asked or resources.kind != "local" or resources.devices or resources.workers == 1:
        return resources
    threads = resources.threads if settings.threads is not None else resources.cores
    free = resources.memory * resources.workers if resources.shared else resources.memory
    alone = dataclasses.replace(resources, workers=1, threads=threads, memory=free)
    of_an_epoch = _once(settings, sizes) * PASSES[settings.engine]
    return alone if of_an_epoch < SMALL and _plan(settings, sizes, alone, None).fits else resources


def make_plan(
    settings: PtychoSettings, sizes: Sizes, resources: Resources, before: int | str | None = None
) -> PtychoPlan:
    """The plan of a run: frames are kept as far as memory goes, and the object is cut only where it must be.

    Parameters
    ----------
    settings
        Of the run.
    sizes
        Of the problem.
    resources
        Of the cluster.
    before
        How an interrupted run had cut the object: rows of a tile, or "no".

    Raises
    ------
    UserError
        Tiles for a solver that does not take them, or lower than a frame.
    """
    asked = before or settings.tile
    if isinstance(asked, int):
        _check_tile(settings, sizes, resources, asked)
        return _plan(settings, sizes, resources, asked)
    whole = _plan(settings, sizes, resources, None)
    if asked == "no" or whole.fits or not _takes_tiles(settings, resources):
        return whole
    height = -(-4 * _probe_rows(sizes) // TILE) * TILE
    cut = _plan(settings, sizes, resources, height)
    return cut if cut.fits and tiles(sizes, height) > 1 else whole


def tiles(sizes: Sizes, height: int) -> int:
    """How many; the last is higher."""
    return max(1, sizes.object_shape[0] // height)


def _probe_rows(sizes: Sizes) -> int:
    return sizes.frames[1] * sizes.settings.oversampling + 1


def _takes_tiles(settings: PtychoSettings, resources: Resources) -> bool:
    able = settings.engine in TILED and "positions" not in settings.refine and not settings.frc
    penalized = settings.total_variation is not None or settings.smoothness is not None
    return able and not penalized and not runs_here(resources)


def _check_tile(settings: PtychoSettings, sizes: Sizes, resources: Resources, height: int) -> None:
    if not _takes_tiles(settings, resources):
        raise UserError(
            f"--tile takes --engine {' or '.join(TILED)} on two workers or more, without --refine positions, "
            "--total-variation, --smoothness and --frc"
        )
    if height < _probe_rows(sizes):
        raise UserError(
            f"--tile: tiles are at least {_probe_rows(sizes)} rows high, a frame and one more; got {height}"
        )


def _plan(settings: PtychoSettings, sizes: Sizes, resources: Resources, tile: int | None) -> PtychoPlan:
    share = -(-sizes.all_frames // resources.workers)
    state = _state(settings, sizes, _here(sizes, resources, tile))
    work = _work(settings, sizes, resources)
    on_device = resources.device_share is not None
    limit = resources.device_share if resources.device_share is not None else resources.memory
    programs = {} if on_device else {"programs": PROGRAMS}
    rest = {**programs, **state, **work}
    room = max(0, limit - sum(rest.values()))
    kept = min(share, room)
    if kept < share:
        kept = kept * 9 // 10 // max(1, sizes.block * sizes.frame) * sizes.block * sizes.frame
    there = {**rest, "frames": kept}
    host = {
        "programs": PROGRAMS + CUDA_PROGRAMS,
        "frames on their way": 3 * sizes.block * sizes.frame,
        "state": 2 * sum(state.values()),
    }
    rounds = settings.epochs * PASSES[settings.engine] * (2 if settings.frc else 1)
    again = 0.0 if kept >= share else (share - kept) / share
    read = round(sizes.all_frames * (1 + (1 if settings.frc else 0) + max(0.0, rounds - 1) * again))
    return PtychoPlan(
        resources,
        sizes,
        kept,
        host if on_device else there,
        {
            "programs": CLIENT,
            "state": 4 * (sizes.object + sizes.probe + sizes.per_frame) + _kept_waves(settings, sizes),
        },
        there if on_device else {},
        read,
        sizes.object + sizes.probe + 2 * sizes.per_frame,
        _seconds(settings, sizes, resources, read),
        _notes(settings, resources, kept, share),
        tile,
    )


def _here(sizes: Sizes, resources: Resources, tile: int | None) -> int:
    """Bytes of the object that are on a worker, the halos of its tiles among them."""
    if tile is None:
        return sizes.object
    most = -(-tiles(sizes, tile) // resources.workers)
    rows = most * (tile + _probe_rows(sizes)) + sizes.object_shape[0] % tile
    return min(sizes.object, sizes.object * rows // sizes.object_shape[0])


def _state(settings: PtychoSettings, sizes: Sizes, here: int) -> dict[str, int]:
    """What the solver holds, and sums on their way to it; `here`: bytes of the object on the worker."""
    return {
        "object": round((1 + STATES[settings.engine]) * here),
        "probe": round((2 + STATES[settings.engine]) * sizes.probe) + sizes.per_frame,
        "sums": NODES * (here + sizes.probe) + sizes.per_frame,
    }


def _work(settings: PtychoSettings, sizes: Sizes, resources: Resources) -> dict[str, int]:
    """Blocks on their way, and exit waves: those worked on, and those kept."""
    waves = WAVES * min(settings.slices + 1, 8) * sizes.block * sizes.exit_waves
    found = {"blocks": 3 * sizes.block * sizes.frame, "exit waves": waves}
    kept = -(-_kept_waves(settings, sizes) // resources.workers)
    return {**found, "kept waves": kept} if kept else found


def _kept_waves(settings: PtychoSettings, sizes: Sizes) -> int:
    return sizes.frames[0] * sizes.exit_waves if settings.engine in KEEPING else 0


def _once(settings: PtychoSettings, sizes: Sizes) -> float:
    """Seconds that one core takes to evaluate all frames once."""
    pixels = sizes.exit_waves / COMPLEX
    transforms = 2 * settings.slices * 5 * pixels * math.log2(max(2.0, sizes.frames[1] * sizes.frames[2]))
    return sizes.frames[0] * transforms * TRANSFORMING * FACTOR


def _seconds(settings: PtychoSettings, sizes: Sizes, resources: Resources, read: int) -> dict[str, float]:
    once = _once(settings, sizes)
    sequential = settings.engine in ("epie", "rpie") and settings.batch in (None, 1)
    cores = 1 if sequential else resources.cores
    repeats = settings.epochs * PASSES[settings.engine] * (2 if settings.frc else 1)
    return {
        **({} if runs_here(resources) else {"starting": STARTING}),
        "reading": read * READING / resources.workers,
        "computing": repeats * once / cores,
    }


def _notes(settings: PtychoSettings, resources: Resources, kept: int, share: int) -> tuple[str, ...]:
    notes = []
    if kept < share:
        notes.append(f"frames beyond {size(kept)} of each worker are read again in each epoch; --memory keeps more")
    if settings.engine in ("epie", "rpie") and settings.batch in (None, 1) and resources.workers > 1:
        notes.append(f"{settings.engine} takes one frame after another: one worker works; --batch 32 gives all work")
    return tuple(notes)


def refuse_if_too_big(plan: PtychoPlan) -> None:
    """Raise if a worker's memory does not hold what it must, naming what would do.

    Raises
    ------
    UserError
        It does not fit.
    """
    if plan.fits:
        return
    share = plan.resources.device_share
    if share is not None and plan.device_memory > share:
        raise UserError(
            f"a worker needs {size(plan.device_memory)} of its device's memory but may take {size(share)}; give more "
            "--device-memory, fewer --workers-per-device, or --cluster local"
        )
    enough = size(1.05 * plan.worker_memory).replace(" ", "")
    need = f"a worker needs {size(plan.worker_memory)} but is limited to {size(plan.resources.memory)}"
    fewer = int(plan.resources.memory * plan.resources.workers / (1.05 * plan.worker_memory))
    if plan.resources.shared and 1 <= fewer < plan.resources.workers:
        raise UserError(f"{need}, its share of the free memory; give --workers {fewer} or fewer")
    raise UserError(f"{need} ({_listed(plan.worker_parts, size)}); give --memory {enough} or more{_smaller(plan)}")


def _smaller(plan: PtychoPlan) -> str:
    settings = plan.sizes.settings
    if "kept waves" in plan.worker_parts:
        return f", more --workers, or a solver that keeps no exit waves, as --engine lsqml instead of {settings.engine}"
    if settings.engine in ("cg", "adam", "lsqml"):
        return ", or --engine rpie, which holds fewer copies of the object"
    return ", a smaller --crop, or fewer --modes"
