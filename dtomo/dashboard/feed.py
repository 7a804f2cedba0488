"""What a run tells the page while it goes on: small events, sent by the client and by the workers.

The topic is ``dtomo``. Nothing is sent where no page is there to take it.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from dtomo.dashboard.thumbnails import Grid, pack
from dtomo.device import to_host
from dtomo.distributed.slabs import Slab

if TYPE_CHECKING:
    from distributed import Client

    from dtomo.algorithms import Checkpointer, State

TOPIC = "dtomo"
RESIDUALS_APART = 1.0
"""Seconds between two messages about the residuals of a slab."""
PICTURES_APART = 5.0
"""Seconds between two pictures of a slab that is not done yet, at least."""
PATIENCE = 5.0
"""Seconds that the end of a run waits for the scheduler to hear of it."""
SHARE = 1 / 250
"""Part of a slab's time that pictures of it may take before it is done."""

Send = Callable[[dict[str, Any]], None]


@dataclasses.dataclass(frozen=True)
class Feed:
    """Goes with the tasks of a run, which hand it to `watch_slab`.

    Attributes
    ----------
    run
        Identifies the run.
    shape
        Of the volume: (z, y, x).
    """

    run: str
    shape: tuple[int, int, int]


@contextlib.contextmanager
def watch_slab(feed: Feed | None, slab: Slab) -> Iterator["SlabFeed"]:
    """Report that `slab` is worked on, and at the end that it is done, if nothing was raised.

    Without a feed, or outside of a worker, nothing is sent and nothing is made to be sent.
    """
    send = None if feed is None else _worker_sender(feed.run, slab.index)
    reports = SlabFeed(Grid(feed.shape if feed else (1, 1, 1)), slab, send)
    reports.send({"kind": "running"})
    yield reports
    reports.flush()
    reports.send({"kind": "done"})


class SlabFeed:
    """Reports from one slab; with `send` None it does nothing."""

    def __init__(self, grid: Grid, slab: Slab, send: Send | None) -> None:
        self._grid, self._slab, self._send = grid, slab, send
        self._norms: list[float] = []
        self._block, self._first, self._slices = 0, 0, 0
        self._last_sent = -np.inf
        self._next_picture = time.monotonic() + PICTURES_APART

    def send(self, message: dict[str, Any]) -> None:
        """Send a message about the slab."""
        if self._send is not None:
            self._send(message)

    def solving(self, block: Slab, checkpoints: "Checkpointer | None" = None, scale: float = 1.0) -> "Solving":
        """What an iterative algorithm on the slices of `block` gets as its callback and checkpoints.

        Parameters
        ----------
        block
            Slices that are solved together.
        checkpoints
            What it would have got.
        scale
            From the algorithm's voxels to those of the output.
        """
        self.flush()
        self._block, self._slices, self._last_sent = block.start, len(block), -np.inf
        return Solving(self, block, checkpoints, scale)

    def residual(self, iteration: int, norms: NDArray[np.float64]) -> None:
        """Note the residual norms (one per slice) at the start of an iteration; sent now and then."""
        if self._send is None:
            return
        if not self._norms:
            self._first = iteration
        self._norms.append(float(np.sqrt(np.sum(np.square(norms)))))
        if time.monotonic() - self._last_sent >= RESIDUALS_APART:
            self.flush()

    def flush(self) -> None:
        """Send the residuals that wait."""
        if self._norms:
            block = {"start": self._block, "slices": self._slices, "first": self._first}
            self.send({"kind": "residuals", **block, "norms": self._norms})
            self._norms = []
            self._last_sent = time.monotonic()

    def picture(self, part: NDArray[Any], start: int | None = None, *, scale: float = 1.0, final: bool = True) -> None:
        """Send what finished slices `part` ``(z, y, x)``, from number `start` on, hold of the middle slices.

        Their values are multiplied by `scale`.

        With ``final=False``, for a solution under way, it is sent only if the last one was long enough ago
        for it to cost no time that matters.
        """
        now = time.monotonic()
        if self._send is None or (not final and now < self._next_picture):
            return
        start = self._slab.start if start is None else start
        pictures = self._grid.cut(part, start, also_xy=self._xy_of(start, start + len(part)))
        rows = self._grid.rows(start, start + len(part))
        for plane, image in pictures.items():
            where = {"slice": self._xy_of(start, start + len(part))} if plane == "xy" else {"row": rows.start}
            self.send({"kind": "picture", "plane": plane, **where, **pack(to_host(image), scale)})
        done = time.monotonic()
        self._next_picture = done + max(PICTURES_APART, (done - now) / SHARE)

    def _xy_of(self, start: int, stop: int) -> int | None:
        """The volume's middle slice, or until that is there the middle of the first slab."""
        middle = self._grid.middle[0]
        if start <= middle < stop:
            return middle
        return (start + stop) // 2 if self._slab.index == 0 and start == self._slab.start else None


class Solving:
    """Stands between an iterative algorithm and what keeps its states, and reports what passes by.

    A `Checkpointer`; its `callback` is to be the algorithm's.
    """

    def __init__(self, feed: SlabFeed, block: Slab, checkpoints: "Checkpointer | None", scale: float) -> None:
        self._feed, self._block, self._checkpoints, self._scale = feed, block, checkpoints, scale

    def callback(self, iteration: int, norms: NDArray[np.float64]) -> None:
        """Report the residuals."""
        self._feed.residual(iteration, norms)

    def restore(self) -> "State | None":
        """The state that was kept, its residuals reported."""
        state = None if self._checkpoints is None else self._checkpoints.restore()
        if state is not None:
            for iteration, norms in enumerate(state.residuals):
                self._feed.residual(iteration, norms)
        return state

    def offer(self, state: "State") -> None:
        """Report what the solution looks like, and hand it on."""
        self._feed.picture(state.parts["solution"], self._block.start, scale=self._scale, final=False)
        if self._checkpoints is not None:
            self._checkpoints.offer(state)


def _worker_sender(run: str, index: int) -> Send | None:
    """Sends messages about a slab through the worker that this thread computes for."""
    from distributed import get_worker

    try:
        worker = get_worker()
    except ValueError:  # not in a task
        return None
    return lambda message: worker.log_event(TOPIC, {"run": run, "slab": index, "worker": worker.address, **message})


@contextlib.contextmanager
def show_run(
    client: "Client",
    *,
    name: str,
    shape: Sequence[int],
    slabs: Sequence[Slab],
    done: Sequence[int] = (),
    algorithm: str = "",
    iterations: int | None = None,
    unit: str = "",
    planned_memory: int | None = None,
    settings: dict[str, Any] | None = None,
) -> Iterator[Feed | None]:
    """Put a run on the page for as long as it goes, and say how it ended.

    Parameters
    ----------
    client
        Of the cluster that the run uses.
    name
        Of the output.
    shape
        Of the volume: (z, y, x).
    slabs, done
        All slabs, and the numbers of those that were done before.
    algorithm, iterations
        What is done; iterations of each slab, None if there are none.
    unit
        Of the voxels.
    planned_memory
        Bytes that a worker was said to need.
    settings
        Names and plain values.

    Yields
    ------
    Feed or None
        To go with the tasks; None where there is no page.
    """
    from dtomo.dashboard.plugin import install

    if install(client) is not None:
        yield None
        return
    sizes = [int(size) for size in shape]
    feed = Feed(uuid4().hex, (sizes[0], sizes[1], sizes[2]))
    begin = {
        "kind": "begin",
        "client": client.id,
        "name": name,
        "shape": sizes,
        "slabs": [[slab.start, slab.stop] for slab in slabs],
        "done": [int(index) for index in done],
        "algorithm": algorithm,
        "iterations": iterations,
        "unit": unit,
        "planned_memory": planned_memory,
        "settings": {key: str(value) for key, value in (settings or {}).items()},
    }
    client.log_event(TOPIC, {"run": feed.run, **begin})
    try:
        yield feed
    except BaseException as error:
        _end(client, feed, "stopped", str(error).strip() or type(error).__name__)
        raise
    _end(client, feed, "done", "")


def _end(client: "Client", feed: Feed, state: str, why: str) -> None:
    """Tell the page; if the scheduler is gone there is nobody to tell."""
    message = {"run": feed.run, "kind": "end", "state": state, "why": why[:2000]}
    scheduler = client.scheduler
    with contextlib.suppress(OSError):
        if scheduler is not None:
            client.sync(scheduler.log_event, topic=TOPIC, msg=message, callback_timeout=PATIENCE)
