"""Epochs of a ptychographic solver on Dask workers, with the bits of one process.

In each pass every worker gets one task, which evaluates its blocks of the step and adds up whole nodes of the sum tree;
one task on the first worker puts the nodes together and updates the state, which stays there; what it returns (what is
sent to the blocks) is the future that the tasks of the next pass start from. All steps of an epoch are submitted at
once, unless the engine decides after each pass whether another one follows. A step of one block is no work for two
workers: if all are such, the first worker does whole epochs alone.

What a worker holds (frames, what blocks keep, the state) lies in its process, outside Dask: nothing copies or
computes it again behind the driver's back. Tasks that miss it say so, and the run goes back to a copy of the state.
"""

import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dtomo.arrays import writeable_view
from dtomo.distributed import graph
from dtomo.distributed.graph import Key, PinnedTask, Ref
from dtomo.distributed.sums import Node, sum_of_parts
from dtomo.ptycho.driver import LocalRunner
from dtomo.ptycho.engine import Engine, Parameters
from dtomo.ptycho.evaluator import Problem, Share, sent_of, steps_of
from dtomo.ptycho.nested import mapped
from dtomo.ptycho.workers import Lost, WorkersRunner

if TYPE_CHECKING:
    from distributed import Client, Future

UNEVEN, NOTICED = 1.2, 0.1
"""How much longer than the mean, and how many seconds, a worker takes in an epoch before blocks are shared out anew."""


@dataclasses.dataclass
class _Here:
    """What a worker holds of a run."""

    runner: LocalRunner
    passes: int = 0
    kept_by: dict[int, int] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Report:
    """What the client waits for: sums of the epoch so far, seconds of each worker, whether another pass follows."""

    loss: float
    count: float
    seconds: dict[str, float]
    more: bool


@dataclasses.dataclass(frozen=True)
class _Pass:
    """Number of a pass in the run, and whether it is the first of its step, and of its epoch."""

    number: int
    first: bool
    begins: bool


_RUNS: dict[str, _Here] = {}
"""Runs that this process works for, by name."""


def _here(name: str, problem: Problem) -> _Here:
    if name not in _RUNS:
        from distributed import get_worker

        limit = get_worker().memory_manager.memory_limit
        _RUNS[name] = _Here(LocalRunner(problem, limit))
    return _RUNS[name]


def _with_state(name: str, number: int | None = None) -> _Here:
    here = _RUNS.get(name)
    if here is None or not here.runner.state or number not in (None, here.passes):
        raise Lost("the state is not here")
    return here


def _begin(name: str, problem: Problem, parameters: Parameters) -> dict[str, Any]:
    here = _here(name, problem)
    here.runner.begin(parameters)
    return sent_of(here.runner.state)


def _restore(name: str, problem: Problem, state: dict[str, Any]) -> dict[str, Any]:
    here = _here(name, problem)
    here.runner.state = mapped(state, problem.own)
    return sent_of(here.runner.state)


def _put_kept(name: str, problem: Problem, kept: dict[int, Any]) -> None:
    here = _here(name, problem)
    here.runner.evaluator.kept = mapped(kept, problem.own)
    here.kept_by = dict.fromkeys(kept, -1)


def _evaluate(
    name: str, problem: Problem, sent: dict[str, Any], share: Share, at: _Pass, known: tuple[int, ...], worker: str
) -> tuple[dict[Node, Any], str, float]:
    """Sums of a share of blocks; `known` are those of them that must have kept something by now."""
    here = _here(name, problem)
    evaluator = here.runner.evaluator
    if at.first:
        evaluator.step_is_over()
    for block in share.blocks:
        if here.kept_by.get(block, -1) >= at.number or (block in known and block not in evaluator.kept):
            raise Lost("what a block kept is not here")
    started = time.perf_counter()
    sums = evaluator.sums(mapped(sent, writeable_view), share)
    here.kept_by.update(dict.fromkeys(share.blocks, at.number))
    return sums, worker, time.perf_counter() - started


def _update(name: str, at: _Pass, count: int, parts: list[tuple[dict[Node, Any], str, float]]) -> dict[str, Any]:
    here = _with_state(name, at.number)
    if at.begins:
        here.runner.totals, here.seconds = np.zeros(2), {}
    for _, worker, seconds in parts:
        here.seconds[worker] = here.seconds.get(worker, 0.0) + seconds
    total = mapped(sum_of_parts([sums for sums, _, _ in parts], count), writeable_view)
    here.runner.update(total, at.first)
    here.passes += 1
    return sent_of(here.runner.state)


def _report(name: str, number: int, after: Any) -> _Report:
    here = _with_state(name, number)
    runner = here.runner
    more = bool(runner.problem.engine.more(runner.state))
    return _Report(float(runner.totals[0]), float(runner.totals[1]), dict(here.seconds), more)


def _whole_epoch(name: str, epoch: int, number: int, after: Any) -> _Report:
    here = _with_state(name, number)
    loss, count = here.runner.epoch(epoch)
    here.passes += 1
    return _Report(loss, count, {}, False)


def _state_of(name: str) -> dict[str, Any]:
    return _with_state(name).runner.snapshot()[0]


def _kept_of(name: str) -> dict[int, Any]:
    if name not in _RUNS:
        raise Lost("what blocks kept is not here")
    return _RUNS[name].runner.snapshot()[1]


def _result_of(name: str) -> Parameters:
    return _with_state(name).runner.result()


def _retain(name: str, numbers: frozenset[int]) -> None:
    if name in _RUNS:
        _RUNS[name].runner.evaluator.frames.retain(numbers)


def _forget(name: str) -> None:
    _RUNS.pop(name, None)


def shares_of(speeds: Sequence[float]) -> list[float]:
    """Where each worker's part of the blocks ends, as a fraction of all; the last one is 1."""
    ends = np.cumsum(np.asarray(speeds, np.float64)) / np.sum(speeds)
    return [*map(float, ends[:-1]), 1.0]


def owners(batch: Sequence[int], ends: Sequence[float]) -> dict[int, int]:
    """The worker (by place) of each block of a batch: consecutive blocks, in proportion to the workers' parts."""
    borders = [round(len(batch) * end) for end in ends]
    found: dict[int, int] = {}
    for worker, (first, last) in enumerate(itertools.pairwise([0, *borders])):
        found |= dict.fromkeys(batch[first:last], worker)
    return found


class ClusterRunner(WorkersRunner):
    """Epochs on the workers of a cluster.

    Parameters
    ----------
    client
        Of a cluster with at least one worker; those there at the beginning (after a loss: then) are used.
    problem
        Placed on each worker.
    """

    def __init__(self, client: "Client", problem: Problem) -> None:
        super().__init__(client, problem)
        self._alone = False
        self._owners: dict[int, int] = {}
        self._evaluated: set[int] = set()
        self._sent: Any = None
        self._sent_key: Any = None

    def begin(self, parameters: Parameters) -> None:
        """On the workers that are there."""
        self._set_up()
        self._sent = self._start(_begin, parameters)

    def restore(self, state: dict[str, Any], kept: dict[int, Any]) -> None:
        """On the workers that are there."""
        self._set_up()
        for worker, address in enumerate(self._workers):
            own = {block: value for block, value in kept.items() if self._owners[block] == worker}
            if own:
                self._wait(self._submit(_put_kept, address, self._placed, self._scatter(own, address)))
        self._evaluated = set(kept)
        self._sent = self._start(_restore, state)

    def epoch(self, number: int) -> tuple[float, float]:
        """Submit its steps and wait for the sums of losses and counts."""
        engine = self._problem.engine
        if self._alone:
            report = self._wait(self._submit(_whole_epoch, self._workers[0], number, self._passes, self._sent))
            self._passes += 1
            return report.loss, report.count
        steps = steps_of(self._problem, number)
        if type(engine).more is Engine.more:
            tasks: list[PinnedTask] = []
            for index, blocks in enumerate(steps):
                tasks += self._tasks(blocks, True, index == 0)
            report = self._go(tasks)
        else:
            for index, blocks in enumerate(steps):
                report = self._go(self._tasks(blocks, True, index == 0))
                while report.more:
                    report = self._go(self._tasks(blocks, False, False))
        self._share_out(report.seconds)
        return report.loss, report.count

    def snapshot(self) -> tuple[dict[str, Any], dict[int, Any]]:
        """From the workers, one after another."""
        state = self._wait(self._submit(_state_of, self._workers[0]))
        kept: dict[int, Any] = {}
        if self._problem.engine.keeps:
            for address in self._workers[: 1 if self._alone else None]:
                kept |= self._wait(self._submit(_kept_of, address))
        return state, kept

    def result(self) -> Parameters:
        """From the first worker."""
        found: Parameters = self._wait(self._submit(_result_of, self._workers[0]))
        return found

    def close(self) -> None:
        """Let the workers forget the run."""
        self._sent = None
        self._leave(_forget)

    def _set_up(self) -> None:
        """A new run on the workers that are there now."""
        self._gather()
        self._evaluated = set()
        self._alone = self._problem.blocks.sequential or len(self._workers) == 1
        self._assign([1.0] * len(self._workers))

    def _assign(self, speeds: Sequence[float]) -> None:
        ends = [1.0] if self._alone else shares_of(speeds)
        self._owners = {}
        for batch in self._problem.blocks.batches:
            self._owners |= owners(batch, ends)

    def _share_out(self, seconds: Mapping[str, float]) -> None:
        """Blocks for the next epoch in proportion to what workers did in a second, if they were far from equal.

        Blocks that keep something stay where that is.
        """
        taken = [seconds.get(address, 0.0) for address in self._workers]
        even = min(taken) <= 0 or max(taken) <= max(NOTICED, UNEVEN * float(np.mean(taken)))
        if even or self._problem.engine.keeps:
            return
        frames = np.zeros(len(self._workers))
        for block, worker in self._owners.items():
            frames[worker] += len(self._problem.blocks.frames[block])
        self._assign([float(speed) for speed in frames / taken])
        for worker, address in enumerate(self._workers):
            own = frozenset(block for block, owner in self._owners.items() if owner == worker)
            self._wait(self._submit(_retain, address, own))

    def _tasks(self, blocks: Sequence[int], first: bool, begins: bool) -> list[PinnedTask]:
        """Those of one pass over the blocks of a step, the update last; the next pass starts from it."""
        at = _Pass(self._passes, first, begins)
        known = self._evaluated if self._problem.engine.keeps else set() if first else set(blocks)
        sent = self._sent_key
        tasks = []
        for worker, address in enumerate(self._workers):
            places = tuple(place for place, block in enumerate(blocks) if self._owners[block] == worker)
            if places:
                own = tuple(blocks[place] for place in places)
                share = Share(places, own, len(blocks))
                expected = tuple(block for block in own if block in known)
                key = (f"{self._name}-evaluate-{worker}", at.number)
                arguments = (self._name, Ref(self._placed.key), Ref(sent), share, at, expected, address)
                tasks.append(PinnedTask(key, address, _evaluate, arguments))
        update: Key = (f"{self._name}-update", at.number)
        parts = [Ref(task.key) for task in tasks]
        tasks.append(PinnedTask(update, self._workers[0], _update, (self._name, at, len(blocks), parts)))
        self._passes += 1
        self._sent_key = update
        self._evaluated.update(blocks)
        return tasks

    def _go(self, tasks: list[PinnedTask]) -> _Report:
        """Submit passes and wait for the report after the last of them."""
        key: Key = (f"{self._name}-report", self._passes)
        arguments = (self._name, self._passes, Ref(self._sent_key))
        report = PinnedTask(key, self._workers[0], _report, arguments)
        sent, waited = graph.submit(self._client, [*tasks, report], [self._sent_key, key])
        found: _Report = self._wait(waited)
        self._sent = sent
        return found

    def _start(self, function: Any, value: Any) -> "Future":
        home = self._workers[0]
        sent = self._submit(function, home, self._placed, self._scatter(value, home))
        self._wait(sent, fetch=False)
        self._sent_key = sent.key
        return sent
