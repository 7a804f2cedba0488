"""What the page knows of the runs on its scheduler, put together from their events."""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.dashboard.thumbnails import PLANES, Grid, Plane, unpack

KEPT = 4
"""Runs that are kept, with their pictures."""

MOST_SLABS = 100_000


class SlabState:
    """One slab: where it is, how far, and its residuals by block of slices."""

    def __init__(self, start: int, stop: int, *, done: bool = False) -> None:
        self.start, self.stop = start, stop
        self.state = "done" if done else "waiting"
        self.before = done
        self.worker = ""
        self.began = self.ended = math.nan
        self.norms: dict[int, list[float]] = {}
        self._slices: dict[int, int] = {}

    def run_on(self, worker: str, now: float) -> None:
        """A worker began (perhaps once more)."""
        self.state, self.worker, self.began, self.ended = "running", worker, now, math.nan
        self.norms, self._slices = {}, {}

    def finish(self, now: float) -> None:
        """It is done."""
        self.state, self.ended = "done", now

    def lose(self) -> None:
        """Its worker is gone."""
        self.state, self.worker = "waiting", ""

    def add_norms(self, block: int, slices: int, first: int, norms: list[float]) -> None:
        """Residual norms of iterations from number `first` on, of `slices` slices from `block` on.

        What is known of these iterations is replaced; iterations nobody told of are NaN.
        """
        known = self.norms.setdefault(block, [])
        del known[first:]
        known += [math.nan] * (first - len(known)) + norms
        self._slices[block] = slices

    def part_done(self, iterations: int | None) -> float:
        """0 to 1; by iterations while it runs."""
        if self.state != "running":
            return float(self.state == "done")
        if not iterations:
            return 0.0
        made = sum((len(norms) - 1) / iterations * self._slices[block] for block, norms in self.norms.items())
        return min(1.0, made / (self.stop - self.start))

    def curves(self) -> list[list[float]]:
        """Residuals over the first known one, of each block."""
        found = []
        for norms in self.norms.values():
            first = next((norm for norm in norms if math.isfinite(norm)), 0.0)
            if first > 0:
                found.append([norm / first for norm in norms])
        return found


class RunState:
    """One run."""

    def __init__(self, message: dict[str, Any], now: float) -> None:
        sizes = [int(size) for size in message["shape"]]
        if len(sizes) != 3 or min(sizes) < 1 or not 0 < len(message["slabs"]) <= MOST_SLABS:
            raise ValueError("not a run's shape and slabs")
        self.grid = Grid((sizes[0], sizes[1], sizes[2]))
        self.client, self.name = str(message["client"]), str(message["name"])
        self.algorithm, self.unit = str(message["algorithm"]), str(message["unit"])
        self.iterations = None if message["iterations"] is None else int(message["iterations"])
        planned = message["planned_memory"]
        self.planned_memory = None if planned is None else int(planned)
        self.settings = {str(key): str(value) for key, value in dict(message["settings"]).items()}
        done = set(message["done"])
        self.slabs = [SlabState(int(a), int(b), done=i in done) for i, (a, b) in enumerate(message["slabs"])]
        self.began, self.ended = now, math.nan
        self.state, self.why = "running", ""
        self.pictures: dict[Plane, NDArray[Any]] = {}
        self.xy_slice: int | None = None
        self.picture_version = 0
        self.history: list[tuple[float, int]] = [(0.0, self.slices_done)]

    @property
    def slices_done(self) -> int:
        """Slices in the output."""
        return sum(slab.stop - slab.start for slab in self.slabs if slab.state == "done")

    @property
    def slabs_done(self) -> int:
        """Slabs in the output."""
        return sum(slab.state == "done" for slab in self.slabs)

    def elapsed(self, now: float) -> float:
        """Seconds from its beginning to now, or to its end."""
        return (now if self.state == "running" else self.ended) - self.began

    def throughput(self, now: float) -> float:
        """Slices per second so far, with those under way; NaN as long as there is nothing to go by."""
        elapsed, made = self.elapsed(now), self._made()
        return made / elapsed if made > 0 and elapsed > 0 else math.nan

    def seconds_left(self, now: float) -> float:
        """Seconds to the end at the pace so far; NaN if not known."""
        left = sum((slab.stop - slab.start) * (1 - slab.part_done(self.iterations)) for slab in self.slabs)
        return left / self.throughput(now)

    def _made(self) -> float:
        """Slices made in this run, with parts of those under way."""
        slabs = (slab for slab in self.slabs if not slab.before)
        return sum((slab.stop - slab.start) * slab.part_done(self.iterations) for slab in slabs)

    def end(self, state: str, why: str, now: float) -> None:
        """It came to an end; the first word counts, but the run's own goes over the loss of its client."""
        if self.state in ("running", "lost"):
            self.state, self.why, self.ended = state, why, now
            for slab in self.slabs:
                if slab.state == "running":
                    slab.lose()

    def take(self, message: dict[str, Any], now: float) -> None:
        """Take in an event of this run."""
        kind = message["kind"]
        if kind == "end":
            self.end("done" if message["state"] == "done" else "stopped", str(message["why"]), now)
            return
        index = int(message["slab"])
        if not 0 <= index < len(self.slabs):
            raise ValueError(f"there is no slab {index}")
        slab = self.slabs[index]
        if kind == "running":
            slab.run_on(str(message["worker"]), now)
        elif kind == "done":
            slab.worker = str(message["worker"])
            slab.finish(now)
            self.history.append((now - self.began, self.slices_done))
        elif kind == "residuals":
            norms = [float(norm) for norm in message["norms"]]
            first = int(message["first"])
            if not 0 <= first <= 1_000_000:
                raise ValueError(f"{first} is no iteration")
            slab.add_norms(int(message["start"]), int(message["slices"]), first, norms)
        elif kind == "picture":
            self._take_picture(message)

    def _take_picture(self, message: dict[str, Any]) -> None:
        plane, image = message["plane"], unpack(message)
        if plane not in PLANES:
            raise ValueError(f"{plane} is no plane")
        shape = self.grid.pixels(plane)
        picture = self.pictures.get(plane)
        if picture is None or picture.dtype != image.dtype:
            picture = np.full(shape, np.nan, image.dtype)
        if plane == "xy":
            middle, new = self.grid.middle[0], int(message["slice"])
            if self.xy_slice == middle and new != middle:
                return
            picture[...] = image
            self.xy_slice = new
        else:
            row = int(message["row"])
            if not 0 <= row <= shape[0] - len(image):
                raise ValueError(f"there is no row {row}")
            picture[row : row + len(image)] = image
        self.pictures[plane] = picture
        self.picture_version += 1


class Runs:
    """The last runs on a scheduler.

    Parameters
    ----------
    clock
        Seconds, for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.by_id: dict[str, RunState] = {}

    def take(self, message: dict[str, Any]) -> None:
        """Take in an event.

        Raises
        ------
        KeyError, TypeError, ValueError
            A message that no run sends; nothing has changed but what came before the mistake.
        """
        name, now = str(message["run"]), self.clock()
        if message["kind"] == "begin":
            self.by_id[name] = RunState(message, now)
            while len(self.by_id) > KEPT:
                del self.by_id[next(iter(self.by_id))]
        elif name in self.by_id:
            self.by_id[name].take(message, now)

    def lose_worker(self, address: str) -> None:
        """What a worker had under way waits again."""
        for run in self.by_id.values():
            for slab in run.slabs:
                if slab.state == "running" and slab.worker == address:
                    slab.lose()

    def lose_client(self, client: str) -> None:
        """The process that led a run is gone."""
        for run in self.by_id.values():
            if run.client == client and run.state == "running":
                run.end("lost", "the process that led it is gone", self.clock())
