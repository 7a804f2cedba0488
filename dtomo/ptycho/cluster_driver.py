"""Epochs of a ptychographic solver on Dask workers, with the bits of one process.

In each pass every worker gets one task, which evaluates its blocks of the step and adds up whole nodes of the sum tree;
one task on the first worker puts the nodes together and updates the state, which stays there; what it returns (what is
sent to the blocks) is the future that the tasks of the next pass start from. The passes of an epoch are submitted at
once. Which step a pass is for is found out by the workers, as the engine decides after each pass whether another one
follows for the same frames: as many are submitted as the last epoch took, more if that was not enough, and those that
find the epoch done do nothing. A step of one block is no work for two workers: if all are such, the first worker does
whole epochs alone.

What a worker holds (frames, what blocks keep, the state) lies in its process, outside Dask: nothing copies or
computes it again behind the driver's back. Tasks that miss it say so, and the run goes back to a copy of the state.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dtomo.arrays import writeable_view
from dtomo.distributed import graph
from dtomo.distributed.graph import Key, PinnedTask, Ref
from dtomo.distributed.sums import Node, sum_of_parts
from dtomo.ptycho.driver import LocalRunner
from dtomo.ptycho.engine import Parameters
from dtomo.ptycho.evaluator import Problem, Share, sent_of, steps_of
from dtomo.ptycho.nested import mapped
from dtomo.ptycho.workers import Lost, WorkersRunner, all_owners, expected, shares_of

if TYPE_CHECKING:
    from distributed import Client, Future

UNEVEN, NOTICED = 1.2, 0.1
"""How much longer than the mean, and how many seconds, a worker takes in an epoch before blocks are shared out anew."""


@dataclasses.dataclass(frozen=True)
class _At:
    """Where a run is: the epoch, the step in it, and whether this is the first pass of the step."""

    epoch: int
    step: int = 0
    first: bool = True


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What all passes of an epoch have in common: its number, and where each worker's part of the blocks ends."""

    epoch: int
    ends: tuple[float, ...]


@dataclasses.dataclass
class _Here:
    """What a worker holds of a run.

    Attributes
    ----------
    runner
        Frames, what blocks keep; on the first worker the state.
    passes
        How many the state has seen.
    used
        How many of them in this epoch.
    at
        Where the state is.
    kept_by
        The last pass that evaluated a block.
    seconds
        That workers took for their blocks in this epoch, by address.
    steps
        Of the epoch whose number stands before.
    owned
        The owner of each block, for the ends that stand before.
    """

    runner: LocalRunner
    passes: int = 0
    used: int = 0
    at: _At | None = None
    kept_by: dict[int, int] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    steps: tuple[int, list[list[int]]] = (-1, [])
    owned: tuple[tuple[float, ...], dict[int, int]] = ((), {})

    def steps_in(self, plan: _Plan) -> list[list[int]]:
        """Blocks of each step."""
        if self.steps[0] != plan.epoch:
            self.steps = plan.epoch, steps_of(self.runner.problem, plan.epoch)
        return self.steps[1]

    def share(self, plan: _Plan, at: _At, worker: int) -> Share:
        """What a worker has to do in a pass."""
        if self.owned[0] != plan.ends:
            self.owned = plan.ends, all_owners(self.runner.problem.blocks, plan.ends)
        owner, steps = self.owned[1], self.steps_in(plan)
        blocks = steps[at.step]
        places = tuple(place for place, block in enumerate(blocks) if owner[block] == worker)
        coming = steps[at.step + 1] if at.step + 1 < len(steps) else []
        following = next((block for block in coming if owner[block] == worker), None)
        return Share(places, tuple(blocks[place] for place in places), len(blocks), following)


@dataclasses.dataclass(frozen=True)
class _Report:
    """What the client waits for.

    Attributes
    ----------
    loss, count
        Sums of the epoch so far.
    seconds
        That each worker took for its blocks.
    used
        Passes of the epoch so far.
    left
        Steps that are not over.
    """

    loss: float
    count: float
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    used: int = 0
    left: int = 0


_Part = tuple[dict[Node, Any], str, float]
"""Sums over nodes, by whom, and seconds that they took."""

_RUNS: dict[str, _Here] = {}
"""Runs that this process works for, by name."""


def _here(name: str, problem: Problem) -> _Here:
    if name not in _RUNS:
        expected(name)
        from distributed import get_worker

        limit = get_worker().memory_manager.memory_limit
        _RUNS[name] = _Here(LocalRunner(problem, limit))
    return _RUNS[name]


def _address() -> str:
    from distributed import get_worker

    return str(get_worker().address)


def _with_state(name: str, number: int | None = None) -> _Here:
    here = _RUNS.get(name)
    if here is None or not here.runner.state or number not in (None, here.passes):
        raise Lost("the state is not here")
    return here


def _begin(name: str, problem: Problem, parameters: Parameters) -> dict[str, Any]:
    here = _here(name, problem)
    here.runner.begin(parameters)
    return _sent_of(here)


def _restore(name: str, problem: Problem, state: dict[str, Any]) -> dict[str, Any]:
    here = _here(name, problem)
    here.runner.state = mapped(state, problem.own)
    return _sent_of(here)


def _sent_of(here: _Here) -> dict[str, Any]:
    return {**sent_of(here.runner.state), "at": here.at}


def _now(at: _At | None, plan: _Plan) -> _At:
    return at if at is not None and at.epoch == plan.epoch else _At(plan.epoch)


def _put_kept(name: str, problem: Problem, kept: dict[int, Any]) -> None:
    here = _here(name, problem)
    here.runner.evaluator.kept = mapped(kept, problem.own)
    here.kept_by = dict.fromkeys(kept, -1)


def _evaluate(
    name: str, problem: Problem, sent: dict[str, Any], plan: _Plan, number: int, worker: int, address: str
) -> _Part:
    """A worker's part of pass `number`."""
    here, at = _here(name, problem), _now(sent["at"], plan)
    if at.step >= len(here.steps_in(plan)):
        return {}, address, 0.0
    evaluator, share = here.runner.evaluator, here.share(plan, at, worker)
    if at.first:
        evaluator.step_is_over()
    if (problem.engine.keeps or not at.first) and address != _address():
        raise Lost("what blocks kept is not here")
    if any(here.kept_by.get(block, -1) >= number for block in share.blocks):
        raise Lost("what blocks kept is that of a later pass")
    started = time.perf_counter()
    sums = evaluator.sums(mapped(sent, writeable_view), share)
    here.kept_by.update(dict.fromkeys(share.blocks, number))
    return sums, address, time.perf_counter() - started


def _update(name: str, plan: _Plan, number: int, parts: list[_Part]) -> dict[str, Any]:
    """The state after pass `number`; what is sent to the next."""
    here = _with_state(name, number)
    here.passes += 1
    at, steps = _now(here.at, plan), here.steps_in(plan)
    if at == _At(plan.epoch):
        here.runner.totals, here.seconds, here.used = np.zeros(2), {}, 0
    if at.step < len(steps):
        for _, worker, seconds in parts:
            here.seconds[worker] = here.seconds.get(worker, 0.0) + seconds
        sums = sum_of_parts([nodes for nodes, _, _ in parts], len(steps[at.step]))
        here.runner.update(mapped(sums, writeable_view), at.first)
        here.used += 1
        more = here.runner.problem.engine.more(here.runner.state)
        here.at = _At(plan.epoch, at.step, False) if more else _At(plan.epoch, at.step + 1)
    return _sent_of(here)


def _report(name: str, plan: _Plan, number: int, after: Any) -> _Report:
    here = _with_state(name, number)
    loss, count = (float(total) for total in here.runner.totals)
    left = len(here.steps_in(plan)) - _now(here.at, plan).step
    return _Report(loss, count, dict(here.seconds), here.used, left)


def _whole_epoch(name: str, epoch: int, number: int, after: Any) -> _Report:
    here = _with_state(name, number)
    loss, count = here.runner.epoch(epoch)
    here.passes += 1
    return _Report(loss, count)


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
        self._ends: tuple[float, ...] = ()
        self._used = 0
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
        self._sent = self._start(_restore, state)

    def epoch(self, number: int) -> tuple[float, float]:
        """Submit its steps and wait for the sums of losses and counts."""
        if self._alone:
            report = self._wait(self._submit(_whole_epoch, self._workers[0], number, self._passes, self._sent))
            self._passes += 1
            return report.loss, report.count
        plan = _Plan(number, self._ends)
        report = self._go(plan, max(self._used, len(steps_of(self._problem, number))))
        while report.left:
            report = self._go(plan, report.left)
        self._used = report.used
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
        self._used = 0
        self._alone = self._problem.blocks.sequential or len(self._workers) == 1
        self._assign([1.0] * len(self._workers))

    def _assign(self, speeds: Sequence[float]) -> None:
        self._ends = (1.0,) if self._alone else tuple(shares_of(speeds))
        self._owners = all_owners(self._problem.blocks, self._ends)

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

    def _go(self, plan: _Plan, passes: int) -> _Report:
        """Submit passes and wait for the report after the last of them."""
        tasks: list[PinnedTask] = []
        sent = self._sent_key
        for number in range(self._passes, self._passes + passes):
            parts: list[Ref] = []
            for worker, address in enumerate(self._workers):
                key: Key = (f"{self._name}-evaluate-{worker}", number)
                given = (self._name, Ref(self._placed.key), Ref(sent), plan, number, worker, address)
                tasks.append(PinnedTask(key, address, _evaluate, given))
                parts.append(Ref(key))
            sent = (f"{self._name}-update", number)
            tasks.append(PinnedTask(sent, self._workers[0], _update, (self._name, plan, number, parts)))
        self._passes += passes
        last: Key = (f"{self._name}-report", self._passes)
        tasks.append(PinnedTask(last, self._workers[0], _report, (self._name, plan, self._passes, Ref(sent))))
        self._sent, waited = graph.submit(self._client, tasks, [sent, last])
        self._sent_key = sent
        found: _Report = self._wait(waited)
        return found

    def _start(self, function: Any, value: Any) -> "Future":
        home = self._workers[0]
        sent = self._submit(function, home, self._placed, self._scatter(value, home))
        self._wait(sent, fetch=False)
        self._sent_key = sent.key
        return sent
