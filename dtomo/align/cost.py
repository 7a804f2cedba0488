"""What an alignment takes: memory of a worker and of the client, bytes and time, said before it starts."""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from dtomo.align.driver import SEARCH_SIDE, SEARCH_STEP, Options, axis_binning
from dtomo.align.reprojection import BAND
from dtomo.align.views import BLOCK, HELD, held_binning
from dtomo.distributed.clusters import Resources
from dtomo.distributed.plan import Peaks, size
from dtomo.distributed.progress import duration
from dtomo.errors import UserError
from dtomo.geometry import Alignment
from dtomo.io.tilts.aligned import TOGETHER

PROGRAMS, CLIENT = 330_000_000, 400_000_000
"""Python, libraries and compiled kernels in a worker and in the client, as measured, rounded up."""
DATA_ARRAYS, VOLUMES = 8.5, 4
"""Arrays of a band's views, and of its volume, at the worst moment."""
READING = 3
"""Arrays of the raw views that are read together."""
ROUNDS, TURNING = 8, 25
"""Reprojections at a binning, rounds and positions of the axis; and for each refinement of its direction."""
APPLICATIONS, RATE, STARTING = 50, 4e9, 3.0
"""Of the projector or its adjoint in a reprojection; voxels times views that one core takes in a second; seconds until
workers are there."""
FLOAT = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Sizes:
    """What decides the cost.

    Attributes
    ----------
    begin, options
        Of the alignment.
    itemsize
        Bytes of a raw value.
    written
        Whether aligned views are.
    """

    begin: Alignment
    options: Options
    itemsize: int
    written: bool = True

    @property
    def held(self) -> int:
        """The finest binning whose views the client holds."""
        return held_binning((len(self.begin), *self.begin.shape), HELD)

    @property
    def here(self) -> bool:
        """Whether the client holds all that is worked on."""
        return self.options.finest % self.held == 0

    def band(self, binning: int) -> dict[str, int]:
        """Bytes that a band takes at a binning."""
        rows, columns = (max(1, n // binning) for n in self.begin.size)
        high = -(-rows // max(1, round(rows / BAND)))
        thick = columns if self.options.thickness is None else max(1, self.options.thickness // binning)
        views = len(self.begin) * high * columns * FLOAT
        return {"views": int(DATA_ARRAYS * views), "volumes": VOLUMES * high * columns * thick * FLOAT}

    def effort(self) -> dict[int, float]:
        """Reprojections expected at each binning."""
        found = dict.fromkeys(self.options.binnings(self.begin), float(ROUNDS)) if self.options.rounds else {}
        if self.options.axis != "keep":
            turns = 2 if self.options.rounds else 0
            at = axis_binning(self.begin, self.options)
            found[at] = found.get(at, 0) + turns * TURNING + (turns - 1) * ROUNDS
        if self.options.axis == "search":
            at = axis_binning(self.begin, self.options, SEARCH_SIDE)
            found[at] = found.get(at, 0) + 180 / SEARCH_STEP * 6
        return found

    def work(self, binning: int) -> float:
        """Voxels times views of a reprojection at a binning."""
        rows, columns = (max(1, n // binning) for n in self.begin.size)
        thick = columns if self.options.thickness is None else max(1, self.options.thickness // binning)
        return float(len(self.begin)) * rows * columns * thick


@dataclasses.dataclass(frozen=True, eq=False)
class AlignPlan(Peaks):
    """What a run takes, in bytes and seconds."""

    sizes: Sizes
    resources: Resources
    worker_parts: dict[str, int]
    client_parts: dict[str, int]
    bytes_read: int
    bytes_written: int
    seconds: float
    device_parts: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def here(self) -> bool:
        """Whether no other process is needed."""
        return _is_here(self.sizes, self.resources)

    def lines(self) -> list[str]:
        """The plan for people."""
        count, (rows, columns) = len(self.sizes.begin), self.sizes.begin.shape
        binnings = ", ".join(map(str, self.sizes.options.binnings(self.sizes.begin)))
        each = f"with {self.resources.threads} thread{'s' * (self.resources.threads > 1)} each"
        where = "workers: none, this process does it" if self.here else f"workers: {self.resources.workers} "
        own = _listed(self.worker_parts, size)
        return [
            f"views: {count} of {rows} × {columns}, in rounds at binning {binnings}",
            where if self.here else where + each,
            *([] if self.here else [f"memory per worker: {size(self.worker_memory)} of {size(self.resources.memory)} "
                                    f"({own})"]),
            f"memory of the client: {size(self.client_memory)} ({_listed(self.client_parts, size)})",
            f"read: {size(self.bytes_read)}, written: {size(self.bytes_written)}",
            f"time: about {duration(self.seconds)}, within a factor of 3 or so",
        ]  # fmt: skip


def _listed(parts: Mapping[str, float], put: Callable[[float], str]) -> str:
    return ", ".join(f"{name} {put(value)}" for name, value in parts.items())


def _is_here(sizes: Sizes, resources: Resources) -> bool:
    """Small series need no workers, and a single one of this machine may be this process."""
    return resources.kind == "local" and (sizes.here or (resources.workers == 1 and not resources.devices))


def make_plan(sizes: Sizes, resources: Resources) -> AlignPlan:
    """The plan of a run."""
    views = len(sizes.begin) * sizes.begin.shape[0] * sizes.begin.shape[1]
    held = views // sizes.held**2 * FLOAT
    mine = sizes.band(sizes.options.finest if _is_here(sizes, resources) else sizes.held)
    parts = sizes.band(sizes.options.finest)
    fine = {b: n for b, n in sizes.effort().items() if b % sizes.held}
    passes = 2 + sum(fine.values())
    shared = max(1, resources.workers) if fine else 1
    seconds = STARTING + sum(
        n * sizes.work(b) * APPLICATIONS / RATE / (resources.threads * (shared if b in fine else resources.workers))
        for b, n in sizes.effort().items()
    )
    written = len(sizes.begin) * sizes.begin.size[0] * sizes.begin.size[1] * FLOAT if sizes.written else 0
    return AlignPlan(
        sizes,
        resources,
        {"programs": PROGRAMS, "reading": READING * max(TOGETHER, BLOCK), **parts},
        {"programs": CLIENT, "binned views": 2 * held, **mine, "blocks of views": READING * BLOCK},
        int(views * sizes.itemsize * passes),
        written,
        seconds,
    )


def refuse_if_too_big(plan: AlignPlan) -> None:
    """Refuse a run whose workers could not hold their bands.

    Raises
    ------
    UserError
        What would do.
    """
    if plan.here or plan.fits:
        return
    enough = size(1.05 * plan.worker_memory).replace(" ", "")
    raise UserError(
        f"a worker needs {size(plan.worker_memory)} but is limited to {size(plan.resources.memory)}; give --memory "
        f"{enough} or more, fewer --workers, a coarser --finest, or --thickness of the specimen"
    )


class Effort:
    """How far a run has come, in percent, from the reprojections done at each binning."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes, self._expected = sizes, sizes.effort()
        self._done = dict.fromkeys(self._expected, 0.0)
        self._most = 0

    def skip(self, binnings: set[int]) -> None:
        """What was done at these in a run before."""
        for binning in binnings & set(self._done):
            self._done[binning] = self._expected[binning]

    def add(self, binning: int, part: float) -> int:
        """A part of a reprojection more; percent of all, at most 99."""
        self._done[binning] = self._done.get(binning, 0.0) + part
        for other in self._done:
            if other > binning and self._done[other]:
                self._done[other] = max(self._done[other], self._expected.get(other, 0.0))
        weights = {b: n * self._sizes.work(b) for b, n in self._expected.items()}
        whole = sum(weights.values()) or 1.0
        parts = sum(weights[b] * min(self._done[b] / n, 0.97) for b, n in self._expected.items() if n)
        self._most = max(self._most, min(99, int(np.floor(100 * parts / whole))))
        return self._most
