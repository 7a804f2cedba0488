"""Epochs of joint ptycho-tomography on Dask workers, with the bits of one process.

Consecutive slabs lie on one worker, in its process, outside Dask (`slab_store`). In each pass a slab has three tasks:
`_show` prepares it and hands out its borders, `_meet` goes through its frames, `_absorb` takes in what the frames of
its neighbours say of its rows and ends the pass. Between workers only borders, their derivatives and planes of
regularisers travel, and the partial sums of a tree over slabs; what comes of the sums is made once and goes to every
worker (`_advance`). The passes of an epoch are submitted at once where the engine takes one for each step.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo.device import to_host
from dtomo.distributed import graph
from dtomo.distributed.graph import Key, PinnedTask, Ref
from dtomo.distributed.slab_array import sum_tasks
from dtomo.ptycho.driver import Setback
from dtomo.ptycho.frame_store import FrameStore
from dtomo.ptycho.nested import mapped
from dtomo.ptycho.workers import Lost, Workers, expected
from dtomo.ptychotomo import slab as slabs
from dtomo.ptychotomo.driver import JointProblem, JointRunner, finished_sums
from dtomo.ptychotomo.engine import Common, JointEngine, SlabPlace
from dtomo.ptychotomo.slab_checkpoints import Damaged, epochs_kept, load_common, load_slab, save_common, save_slab
from dtomo.ptychotomo.slab_store import SlabStore

if TYPE_CHECKING:
    from distributed import Client


@dataclasses.dataclass
class _Here:
    """What a worker holds of a run: slabs, frames, derivatives of borders, and the pass each slab is in.

    And what all slabs share in a pass, where they are computed, with the pass's number.
    """

    slabs: SlabStore
    frames: FrameStore
    passes: dict[int, int] = dataclasses.field(default_factory=dict)
    edges: dict[int, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    shared: tuple[int, Common] | None = None

    def common(self, problem: JointProblem, number: int, common: Common) -> Common:
        """Moved once in a pass."""
        if self.shared is None or self.shared[0] != number:
            self.shared = None  # first the memory of the last pass's
            self.shared = number, problem.common_there(common)
        return self.shared[1]


_RUNS: dict[str, _Here] = {}
"""Runs that this process works for, by name."""


def _here(name: str, problem: JointProblem) -> _Here:
    expected(name)
    if name not in _RUNS:
        from distributed import get_worker

        worker = get_worker()
        frames = problem.store(worker.memory_manager.memory_limit)
        _RUNS[name] = _Here(problem.slab_store(Path(worker.local_directory)), frames)
    return _RUNS[name]


def _slab(name: str, problem: JointProblem, slab: int, number: int) -> tuple[_Here, SlabPlace, dict[str, Any]]:
    """The slab, if it is here and in this pass."""
    found = _RUNS.get(name)
    if found is None or found.passes.get(slab) != number:
        raise Lost("a slab of the volume is not here")
    return found, problem.layout.places[slab], found.slabs.open(slab)


def _begin(name: str, problem: JointProblem, slab: int) -> int:
    here = _here(name, problem)
    place = problem.layout.places[slab]
    here.slabs.put(slab, problem.begin_slab(place))
    here.passes[slab] = 0
    return slab


def _restore(name: str, problem: JointProblem, slab: int, folder: Path, epoch: int, made_with: Any) -> bool:
    here = _here(name, problem)
    try:
        here.slabs.put(slab, load_slab(folder, slab, epoch, made_with))
    except Damaged:
        return False
    here.passes[slab] = 0
    return True


def _show(
    name: str, problem: JointProblem, slab: int, number: int, angles: Any, common: Common, after: Any
) -> slabs.Borders:
    here, place, local = _slab(name, problem, slab, number)
    common = here.common(problem, number, common)
    problem.engine.prepare(place, local, common)
    shown = slabs.borders(problem.engine, problem.layout, place, local, common, angles)
    here.slabs.close(slab, problem.engine.prepared)
    return shown


def _piece(shown: slabs.Borders, first: bool) -> tuple[Any, Any]:
    """What a neighbour needs of a slab: images, and planes of the volume."""
    return (shown.first, shown.first_planes) if first else (shown.last, shown.last_planes)


def _meet(
    name: str,
    problem: JointProblem,
    slab: int,
    number: int,
    angles: Any,
    common: Common,
    shown: Any,
    above: tuple[Any, Any] | None,
    below: tuple[Any, Any] | None,
) -> dict[str, Any]:
    here, place, local = _slab(name, problem, slab, number)
    common = here.common(problem, number, common)
    images = [None if piece is None else piece[0] for piece in (above, below)]
    met = slabs.meet(problem.engine, problem.layout, place, local, common, angles, here.frames, images[0], images[1])
    here.edges[slab] = met.above, met.below
    here.slabs.close(slab, problem.engine.gathered)
    return met.sums


def _edge(name: str, slab: int, below: bool, met: Any) -> Any:
    """Derivatives by the rows of a neighbour."""
    found = _RUNS.get(name)
    if found is None or slab not in found.edges:
        raise Lost("derivatives of a border are not here")
    return found.edges[slab][int(below)]


def _absorb(
    name: str,
    problem: JointProblem,
    slab: int,
    number: int,
    angles: Any,
    common: Common,
    met: Any,
    edges: list[Any],
    pieces: list[Any],
) -> Any:
    here, place, local = _slab(name, problem, slab, number)
    engine, common = problem.engine, here.common(problem, number, common)
    slabs.take_in(engine, place, local, common, angles, edges[0], edges[1])
    planes = [None if piece is None else problem.there(piece[1]) for piece in pieces]
    sums = engine.absorb(place, local, common, planes[0], planes[1])
    here.slabs.close(slab)
    here.passes[slab] = number + 1
    return sums


def _advance(problem: JointProblem, angles: Any, common: Common, met: dict[str, Any], absorbed: Any) -> Common:
    own = mapped(common, lambda array: array.copy())  # other tasks of this process hold the same
    return problem.engine.advance(own, finished_sums(met, absorbed, angles, problem.engine))


def _report(problem: JointProblem, met: dict[str, Any], common: Common) -> tuple[float, float, bool]:
    return float(met["loss"]), float(met["count"]), bool(problem.engine.more(common))


def _common_of(name: str, problem: JointProblem, parameters: Mapping[str, Any]) -> Common:
    return problem.engine.begin_common({key: np.array(value) for key, value in parameters.items()})


def _each(
    name: str, problem: JointProblem, slab: int, number: int, common: Common, function: Callable[..., Any]
) -> Any:
    here, place, local = _slab(name, problem, slab, number)
    found = function(place, problem.engine.volume(place, local, common))
    here.slabs.close(slab, ())
    return found


def _save(
    name: str, problem: JointProblem, slab: int, number: int, folder: Path, epoch: int, made_with: Any, after: Any
) -> int:
    here, _, _ = _slab(name, problem, slab, number)
    save_slab(folder, slab, epoch, here.slabs.whole(slab), made_with)
    here.slabs.close(slab, ())
    return slab


def _forget(name: str) -> None:
    found = _RUNS.pop(name, None)
    if found is not None:
        found.slabs.clear()


class ClusterJointRunner(Workers, JointRunner):
    """Slabs on the workers of a cluster.

    Parameters
    ----------
    client
        Of a cluster.
    problem
        Of which.
    """

    def __init__(self, client: "Client", problem: JointProblem) -> None:
        Workers.__init__(self, client, problem)
        self._layout = problem.layout
        self._homes: tuple[str, ...] = ()
        self._common: Any = None
        self._ends: list[Any] = []

    @property
    def _engine(self) -> JointEngine:
        engine: JointEngine = self._problem.engine
        return engine

    def begin(self, parameters: Mapping[str, Any]) -> None:
        """Slabs made where they will stay."""
        self._set_up()
        self._ends = [self._submit(_begin, home, self._placed, slab) for slab, home in enumerate(self._homes)]
        self._common = self._submit(_common_of, self._workers[0], self._placed, dict(parameters))
        for future in (*self._ends, self._common):
            self._wait(future, fetch=False)

    def epoch(self, number: int) -> tuple[float, float]:
        """Its passes, at once or one after another."""
        steps = self._problem.steps(number)
        if type(self._engine).more is JointEngine.more:
            reports = [self._go(angles) for angles in steps]
            found = [self._wait(report) for report in reports]
            return sum(loss for loss, _, _ in found), sum(count for _, count, _ in found)
        totals = np.zeros(2)
        for angles in steps:
            loss, count, more = self._wait(self._go(angles))
            totals += loss, count
            while more:
                _, _, more = self._wait(self._go(angles))
        return float(totals[0]), float(totals[1])

    def parameters(self) -> dict[str, Any]:
        """From the first worker."""
        found = self._engine.parameters(self._wait(self._common))
        return {name: np.array(to_host(value)) for name, value in found.items()}

    def each(self, function: Callable[[SlabPlace, NDArray[Any]], Any]) -> list[Any]:
        """Of each slab, on its worker."""
        common, number = self._common, self._passes
        tasks = [
            self._submit(_each, home, self._placed, slab, number, common, function)
            for slab, home in enumerate(self._homes)
        ]
        return [self._wait(task) for task in tasks]

    def save(self, folder: Path, epoch: int, history: NDArray[np.float64], made_with: Mapping[str, Any]) -> None:
        """By the workers, what they share by this process."""
        given = folder, epoch, dict(made_with)
        tasks = [
            self._submit(_save, home, self._placed, slab, self._passes, *given, self._ends[slab])
            for slab, home in enumerate(self._homes)
        ]
        for task in tasks:
            self._wait(task)
        save_common(folder, epoch, history, mapped(self._wait(self._common), to_host), made_with)

    def load(self, folder: Path, made_with: Mapping[str, Any]) -> tuple[int, NDArray[np.float64]] | None:
        """The last epoch that is whole."""
        for epoch in epochs_kept(folder):
            try:
                common, history = load_common(folder, epoch, made_with)
            except Damaged:
                continue
            self._set_up()
            given = folder, epoch, dict(made_with)
            self._ends = [
                self._submit(_restore, home, self._placed, slab, *given) for slab, home in enumerate(self._homes)
            ]
            if all(self._wait(end) for end in self._ends):
                self._common = self._scatter(common, self._workers[0])
                return epoch, history
        return None

    def close(self) -> None:
        """Let the workers forget the run."""
        self._ends, self._common = [], None
        self._leave(_forget)

    def _set_up(self) -> None:
        self._gather()
        self._homes = graph.spread(self._layout.slabs, self._workers)

    def _go(self, angles: NDArray[np.int64]) -> Any:
        """Submit one pass; a future of its report."""
        report: Key = (f"{self._name}-report", self._passes)
        tasks = self._tasks(angles, report)
        ends = [(f"{self._name}-absorb-{slab}", self._passes) for slab in range(self._layout.slabs)]
        keys = [*ends, (f"{self._name}-advance", self._passes), report]
        try:
            *self._ends, self._common, waited = graph.submit(self._client, tasks, keys)
        except (TimeoutError, OSError) as error:
            raise Setback("the scheduler did not take a pass") from error
        self._passes += 1
        return waited

    def _tasks(self, angles: NDArray[np.int64], report: Key) -> list[PinnedTask]:
        """Those of one pass."""
        name, number, problem, count = self._name, self._passes, Ref(self._placed.key), self._layout.slabs
        common = Ref(self._common.key)
        tasks: list[PinnedTask] = []

        def key(kind: str, slab: int) -> Key:
            return f"{name}-{kind}-{slab}", number

        def add(key: Key, home: str, function: Callable[..., Any], *arguments: Any, first: bool = False) -> Ref:
            tasks.append(PinnedTask(key, home, function, arguments, first))
            return Ref(key)

        of = [(name, problem, slab, number, angles, common) for slab in range(count)]
        shown = [add(key("show", s), self._homes[s], _show, *of[s], Ref(self._ends[s].key)) for s in range(count)]
        firsts = [add(key("first", s), self._homes[s], _piece, shown[s], True, first=True) for s in range(1, count)]
        lasts = [add(key("last", s), self._homes[s], _piece, shown[s], False, first=True) for s in range(count - 1)]
        above, below = [None, *lasts], [*firsts, None]
        met = [add(key("meet", s), self._homes[s], _meet, *of[s], shown[s], above[s], below[s]) for s in range(count)]
        ups = [add(key("up", s), self._homes[s], _edge, name, s, False, met[s], first=True) for s in range(1, count)]
        downs = [
            add(key("down", s), self._homes[s], _edge, name, s, True, met[s], first=True) for s in range(count - 1)
        ]
        from_before, from_after = [None, *downs], [*ups, None]
        absorbed = [
            add(
                key("absorb", s), self._homes[s], _absorb, *of[s],
                met[s], [from_before[s], from_after[s]], [above[s], below[s]],
            )
            for s in range(count)
        ]  # fmt: skip
        totals = []
        for kind, parts in (("met", met), ("absorbed", absorbed)):
            sums = sum_tasks(f"{name}-{kind}-{number}", [part.key for part in parts], self._homes, None)
            tasks += sums
            totals.append(Ref(sums[-1].key) if sums else parts[0])
        home = self._workers[0]
        after = add((f"{name}-advance", number), home, _advance, problem, angles, common, *totals, first=True)
        add(report, home, _report, problem, totals[0], after, first=True)
        return tasks
