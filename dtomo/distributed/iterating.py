"""Iterations of a problem whose state lies on the workers: what lost workers held is computed again."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtomo.distributed import graph
from dtomo.distributed.checkpoints import plain, restore, save
from dtomo.distributed.clusters import TRIES, WAIT_FOR_WORKERS
from dtomo.distributed.queue import TaskFailed, retired, wait_for_worker
from dtomo.distributed.slab_array import SlabArray
from dtomo.distributed.slabs import Slab
from dtomo.errors import StoppedError, UserError

if TYPE_CHECKING:
    from distributed import Client

Step = Callable[[SlabArray, int], SlabArray]
Create = Callable[[tuple[Slab, ...], tuple[str, ...]], SlabArray]


def iterate(
    client: "Client",
    slabs: Sequence[Slab],
    create: Create,
    step: Step,
    iterations: int,
    *,
    folder: Path | str | None = None,
    every: int = 10,
    made_with: Mapping[str, Any] | None = None,
    resume: bool = False,
    separable: bool = False,
    on_iteration: Callable[[int, SlabArray], None] | None = None,
) -> SlabArray:
    """Take a state through iterations; what lost workers held is computed again from the last checkpoint.

    The result has the same bits whatever was lost, if `create` and `step` depend on nothing but their arguments
    (random numbers keyed by slab and iteration).

    Parameters
    ----------
    client
        Of a cluster.
    slabs
        Of the problem.
    create
        ``create(slabs, homes)``: the state before iteration 0. Called again when workers are lost before the first
        checkpoint; for a separable problem with some of the slabs.
    step
        ``step(state, iteration)``: the state after it, by `SlabArray.update`.
    iterations
        How many in all, those done before (`resume`) counted.
    folder
        For checkpoints, seen by all workers; None: no checkpoints, a loss begins anew.
    every
        Iterations from one checkpoint to the next.
    made_with
        JSON values that decide the result; a checkpoint made with others is refused.
    resume
        Go on from the newest checkpoint in `folder`, if there is one.
    separable
        `step` computes each slab from that slab alone: then only lost slabs go back to the checkpoint.
    on_iteration
        Called with the iterations done and the state; after a loss, again for those that are repeated.

    Raises
    ------
    TaskFailed
        A slab whose task raised, or that killed its worker `clusters.TRIES` times (``killed``).
    UserError
        A checkpoint made with other values.
    StoppedError
        Workers lost again and again without progress, or a folder that cannot be written to.
    """
    if iterations < 0 or every < 1:
        raise UserError(f"iterations count from 0 and checkpoints from every 1; got {iterations} and every {every}")
    origin = _Origin(client, tuple(slabs), create, None if folder is None else Path(folder), plain(made_with))
    losses = _Losses(client)
    state, done = (origin.newest() if resume else None) or origin.first()
    while done < iterations:
        try:
            new = step(state, done)
            lost, killed = _settle(new)
            while lost and separable:
                losses.count(done, killed)
                new, lost, killed = _repeat(new, lost, origin, step, done, losses)
            if lost:
                raise _Setback(killed)
            if origin.folder is not None and (done + 1) % every == 0 and done + 1 < iterations:
                new = save(new, origin.folder, done + 1, made_with)
        except _setbacks() as error:
            if isinstance(error, _GivenUp) or (isinstance(error, TaskFailed) and not error.killed):
                raise
            losses.count(done, _killed(error))
            new = state = None  # type: ignore[assignment]
            losses.wait_for_workers()
            state, done = origin.newest() or origin.first()
            continue
        state, done = new, done + 1
        if on_iteration is not None:
            on_iteration(done, state)
    return state


class _Setback(Exception):
    """Slabs were lost with their workers; the argument: those that were being computed, or waited for it."""


class _GivenUp(TaskFailed):
    """A slab that killed too many workers."""


def _setbacks() -> tuple[type[BaseException], ...]:
    """What comes of lost workers."""
    from distributed import CancelledError
    from distributed.scheduler import KilledWorker

    return (_Setback, TaskFailed, KilledWorker, CancelledError)


def _killed(error: BaseException) -> set[Slab]:
    if isinstance(error, _Setback):
        return set(error.args[0])
    return {error.item} if isinstance(error, TaskFailed) and isinstance(error.item, Slab) else set()


@dataclasses.dataclass(frozen=True)
class _Origin:
    """Where a state comes from: the newest checkpoint, or the beginning."""

    client: "Client"
    slabs: tuple[Slab, ...]
    create: Create
    folder: Path | None
    made_with: Any

    def newest(self, only: Sequence[int] | None = None, most: int | None = None) -> tuple[SlabArray, int] | None:
        if self.folder is None:
            return None
        found = restore(self.client, self.folder, made_with=self.made_with, only=only, most=most)
        if found is not None and only is None and found[0].slabs != self.slabs:
            raise UserError(f"the checkpoint in {self.folder} was made with other slabs; remove it to begin anew")
        return found

    def first(self, only: Sequence[int] | None = None) -> tuple[SlabArray, int]:
        homes = graph.spread(len(self.slabs), graph.workers_in_order(self.client))
        chosen = [i for i, slab in enumerate(self.slabs) if only is None or slab.index in only]
        return self.create(tuple(self.slabs[i] for i in chosen), tuple(homes[i] for i in chosen)), 0


class _Losses:
    """Counts losses without progress, and knows which slabs were part of all of them."""

    def __init__(self, client: "Client") -> None:
        self._client, self._furthest, self._losses, self._deaths = client, -1, 0, 0
        self._suspects: set[Slab] = set()
        self.workers = len(graph.workers_in_order(client))

    def count(self, iteration: int, killed: set[Slab]) -> None:
        """Workers died in an iteration with tasks of the slabs `killed` on them (none: only data was lost).

        Raises
        ------
        TaskFailed
            A slab was part of `TRIES` deaths of workers in an iteration.
        StoppedError
            No progress for long.
        """
        if iteration > self._furthest:
            self._furthest, self._losses, self._deaths, self._suspects = iteration, 0, 0, set()
        self._losses += 1
        if killed:
            common = self._suspects & killed
            self._suspects, self._deaths = (common, self._deaths + 1) if common else (set(killed), 1)
        if self._deaths >= TRIES:
            # a worker takes its slabs in order: the first of those that were never done is what it died on
            cause = ConnectionError(f"{self._deaths} workers died on it")
            raise _GivenUp(min(self._suspects), cause, killed=True)
        if self._losses >= 4 * TRIES:
            raise StoppedError(
                f"workers were lost {self._losses} times in iteration {iteration + 1} without any progress; "
                "give them more --memory, or fewer of them"
            )

    def wait_for_workers(self) -> None:
        """Wait until as many workers are there as at the start, for a while; for the first one longer."""
        deadline = time.monotonic() + WAIT_FOR_WORKERS
        while time.monotonic() < deadline:
            if len(graph.workers_in_order(self._client)) >= self.workers:
                return
            time.sleep(0.1)
        wait_for_worker(self._client)


def _settle(state: SlabArray) -> tuple[set[int], set[Slab]]:
    """Wait until every part is there or lost: the numbers of the lost ones, and those whose task a worker died with.

    Raises
    ------
    TaskFailed
        A task that raised.
    """
    from distributed import CancelledError, wait
    from distributed.scheduler import KilledWorker

    waiting = {part: (slab, home) for slab, part, home in zip(state.slabs, state.parts, state.homes)}
    lost: set[int] = set()
    killed: set[Slab] = set()
    while waiting:
        dead: set[str] = set()
        try:
            with suppress(CancelledError):  # seen below, future by future
                wait(list(waiting), timeout=1.0, return_when="ALL_COMPLETED")
        except TimeoutError:
            gone = set(state.homes).difference(graph.workers_in_order(state.client))
            dead = {home for home in gone if not retired(state.client, home)}
        for part, (slab, home) in list(waiting.items()):
            cause = part.exception(timeout=10) if part.status == "error" else None
            if cause is not None and not isinstance(cause, KilledWorker):
                raise TaskFailed(slab, cause, killed=False)
            if cause is not None:
                killed.add(slab)
            if cause is not None or part.status in ("cancelled", "lost") or (part.status == "pending" and home in dead):
                lost.add(slab.index)
                del waiting[part]
            elif part.status == "finished":
                del waiting[part]
    return lost, killed


def _repeat(
    new: SlabArray, lost: set[int], origin: _Origin, step: Step, done: int, losses: _Losses
) -> tuple[SlabArray, set[int], set[Slab]]:
    """Take lost slabs alone from the last checkpoint to the end of iteration `done`."""
    losses.wait_for_workers()
    only = sorted(lost)
    found = origin.newest(only, done)
    part, at = found if found is not None else origin.first(only)
    for iteration in range(at, done + 1):
        part = step(part, iteration)
    return new.replaced(part), *_settle(part)
