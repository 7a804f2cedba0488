"""Iterations of a problem whose state lies on the workers: checkpoints that are new roots, and lost workers.

A checkpoint is a folder ``iteration-0000000020`` with the state of each slab (`dtomo.io.checkpoints`) and
``slabs.json``; it gets its name when all slabs are in it, and the last two are kept. The folder must be one that all
workers and the client see.
"""

import dataclasses
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dtomo.distributed import graph
from dtomo.distributed.clusters import TRIES, WAIT_FOR_WORKERS
from dtomo.distributed.graph import PinnedTask
from dtomo.distributed.queue import TaskFailed, retired, wait_for_worker
from dtomo.distributed.slab_array import SlabArray
from dtomo.distributed.slabs import Slab
from dtomo.errors import StoppedError, UserError, shown
from dtomo.io.checkpoints import Checkpoints

if TYPE_CHECKING:
    from distributed import Client

GENERATIONS = 2
"""Checkpoints that are kept."""

_MANIFEST = "slabs.json"
_NAME = re.compile(r"iteration-(\d{10})")
_ARRAY = "array"

Step = Callable[[SlabArray, int], SlabArray]
Create = Callable[[tuple[Slab, ...], tuple[str, ...]], SlabArray]


class DamagedState(Exception):
    """A slab's part of a checkpoint that is not whole."""


def save(state: SlabArray, folder: Path | str, iteration: int, made_with: Mapping[str, Any] | None = None) -> SlabArray:
    """Write a checkpoint, each slab from its worker, and return the state as new roots.

    The returned parts are the same memory, but depend on nothing: drop `state`, and what made it is forgotten by the
    scheduler. A part that is lost later is read from the checkpoint.

    Parameters
    ----------
    state
        Parts are arrays, or dicts of arrays, numbers and `numpy.random.Generator`.
    folder
        Of all checkpoints of this problem, and of nothing else.
    iteration
        How many are done.
    made_with
        JSON values that decide the result; `restore` refuses others.

    Raises
    ------
    TaskFailed
        A slab that could not be computed or written.
    StoppedError
        The folder cannot be written to.
    """
    folder = Path(folder)
    target, part = folder / f"iteration-{iteration:010d}", folder / f".part-iteration-{iteration:010d}"
    try:
        for old in (target, *folder.glob(".part-*")):
            shutil.rmtree(old, ignore_errors=True)
        part.mkdir(parents=True)
    except OSError as error:
        raise StoppedError(f"no checkpoint could be written to {folder} ({error.strerror})") from error
    try:
        state.update(_save_part, part).wait()
    except TaskFailed as failed:
        if isinstance(failed.cause, StoppedError):
            raise failed.cause from failed
        raise
    content = {"iteration": iteration, "axis": state.axis, "made_with": _plain(made_with)}
    content["slabs"] = [dataclasses.astuple(slab) for slab in state.slabs]
    try:
        (part / _MANIFEST).write_text(json.dumps(content), encoding="utf-8")
        os.rename(part, target)
    except OSError as error:
        raise StoppedError(f"no checkpoint could be written to {folder} ({error.strerror})") from error
    for number in _iterations(folder)[:-GENERATIONS]:
        shutil.rmtree(folder / f"iteration-{number:010d}", ignore_errors=True)
    return _as_roots(state, target).wait()


def restore(
    client: "Client",
    folder: Path | str,
    *,
    made_with: Mapping[str, Any] | None = None,
    only: Sequence[int] | None = None,
    most: int | None = None,
) -> tuple[SlabArray, int] | None:
    """The newest whole checkpoint as (state on the present workers, iterations done), None if there is none.

    Parameters
    ----------
    client, folder
        As for `save`.
    made_with
        What the checkpoint must have been made with.
    only
        Numbers of the slabs to restore; default: all.
    most
        The latest iteration that may be restored.

    Raises
    ------
    UserError
        It was made with other values.
    TaskFailed
        Workers that died.
    """
    folder = Path(folder)
    for number in reversed(_iterations(folder)):
        if most is not None and number > most:
            continue
        path = folder / f"iteration-{number:010d}"
        try:
            slabs, axis, before = _read_manifest(path / _MANIFEST)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not whole: the one before it
        _refuse_other(path, before, _plain(made_with))
        homes = graph.spread(len(slabs), graph.workers_in_order(client))
        chosen = [place for place, slab in enumerate(slabs) if only is None or slab.index in only]
        wanted, where = [slabs[place] for place in chosen], [homes[place] for place in chosen]
        try:
            return SlabArray.create(client, _load_part, path, wanted, where, axis=axis).wait(), number
        except TaskFailed as failed:
            if not isinstance(failed.cause, DamagedState):
                raise
    return None


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
    origin = _Origin(client, tuple(slabs), create, None if folder is None else Path(folder), _plain(made_with))
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
            wait(list(waiting), timeout=1.0, return_when="ALL_COMPLETED")
        except TimeoutError:
            gone = set(state.homes).difference(graph.workers_in_order(state.client))
            dead = {home for home in gone if not retired(state.client, home)}
        except CancelledError:
            pass  # seen below, future by future
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


def _as_roots(state: SlabArray, path: Path) -> SlabArray:
    """The same parts under new keys that depend on nothing but the checkpoint."""
    name = graph.unique("root")
    tasks = [
        PinnedTask((name, slab.index), home, _adopt, (part.key, path, slab))
        for slab, home, part in zip(state.slabs, state.homes, state.parts)
    ]
    return dataclasses.replace(state, parts=tuple(graph.submit(state.client, tasks)))


def _adopt(key: Any, path: Path, slab: Slab) -> Any:
    """What this worker holds under `key`; if it is gone (this task runs again after a loss), what was saved."""
    from distributed import get_worker

    held = get_worker().data.get(key)
    return held if held is not None else _load_part(path, slab)


def _slab_folder(path: Path, slab: Slab) -> Path:
    return path / f"slab-{slab.index:06d}"


def _save_part(path: Path, slab: Slab, part: Any) -> None:
    if isinstance(part, np.ndarray):
        part = {_ARRAY: part}
    elif not isinstance(part, dict) or set(part) == {_ARRAY}:
        raise UserError(f"a checkpoint keeps arrays and dicts of arrays, not {type(part).__name__}")
    Checkpoints(_slab_folder(path, slab)).save(part)


def _load_part(path: Path, slab: Slab) -> Any:
    kept = Checkpoints(_slab_folder(path, slab))
    found = kept.load()
    if found is None:
        raise DamagedState(f"{path} has no whole state of {slab}: {'; '.join(kept.notes)}")
    return found.state[_ARRAY] if set(found.state) == {_ARRAY} else found.state


def _iterations(folder: Path) -> list[int]:
    found = (_NAME.fullmatch(item.name) for item in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(match[1]) for match in found if match)


def _read_manifest(path: Path) -> tuple[tuple[Slab, ...], int, dict[str, Any]]:
    """Slabs, axis and what the checkpoint was made with; raises what damaged JSON raises."""
    content = json.loads(path.read_text(encoding="utf-8"))
    slabs = tuple(Slab(*slab) for slab in content["slabs"])
    borders = [0, *(number for slab in slabs for number in (slab.start, slab.stop))]
    if not slabs or sorted(map(int, borders)) != borders or not isinstance(content["made_with"], dict):
        raise ValueError(f"{path} is not what was written")
    return slabs, int(content["axis"]), content["made_with"]


def _plain(made_with: Mapping[str, Any] | None) -> Any:
    return json.loads(json.dumps(dict(made_with or {})))


def _refuse_other(path: Path, before: Any, now: Any) -> None:
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise UserError(
                f"the checkpoint {path} was made with {name} {shown(before.get(name))} and not {shown(now.get(name))}: "
                "give the same, or remove it to begin anew"
            )
