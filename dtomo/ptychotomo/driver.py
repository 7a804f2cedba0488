"""Takes an engine through its epochs: all slabs in this process, or spread over workers, with the same bits."""

import abc
import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo.device import to_host
from dtomo.distributed.clusters import TRIES
from dtomo.distributed.sums import tree_sum
from dtomo.errors import StoppedError
from dtomo.ptycho.driver import Setback, losses_of
from dtomo.ptychotomo import slab as slabs
from dtomo.ptychotomo.engine import Common, JointEngine, Local, SlabPlace
from dtomo.ptychotomo.problem import JointProblem
from dtomo.ptychotomo.slab_checkpoints import Damaged, epochs_kept, load_common, load_slab, save_common, save_slab

if TYPE_CHECKING:
    from distributed import Client


@dataclasses.dataclass(frozen=True, eq=False)
class JointReport:
    """What a callback is told after an epoch.

    Attributes
    ----------
    epoch, epochs
        Epochs done, and how many there will be.
    loss, count
        Sum of the losses, and of what they were counted over.
    seconds
        That the epoch took.
    """

    epoch: int
    epochs: int
    loss: float
    count: float
    seconds: float


@dataclasses.dataclass(frozen=True, eq=False)
class JointResult:
    """What came of a run, beside the volume, which stays with the slabs.

    Attributes
    ----------
    parameters
        All but the volume.
    history
        Sum of the losses of each epoch, and what it was counted over, float64 ``(epoch, 2)``; of the first pass of each
        step.
    epochs
        Done.
    setbacks
        How often it went back to a checkpoint because workers were lost.
    """

    parameters: dict[str, Any]
    history: NDArray[np.float64]
    epochs: int
    setbacks: int = 0

    @property
    def losses(self) -> NDArray[np.float64]:
        """Loss per pixel of each epoch."""
        return losses_of(self.history)


class JointRunner(abc.ABC):
    """Does the epochs of a problem, wherever its slabs are."""

    @abc.abstractmethod
    def begin(self, parameters: Mapping[str, Any]) -> None:
        """Before the first epoch; also after a `Setback`."""

    @abc.abstractmethod
    def epoch(self, number: int) -> tuple[float, float]:
        """Do one; sum of losses and counts."""

    @abc.abstractmethod
    def parameters(self) -> dict[str, Any]:
        """All but the volume, on the host; not changed later."""

    @abc.abstractmethod
    def each(self, function: Callable[[SlabPlace, NDArray[Any]], Any]) -> list[Any]:
        """``function(place, rows of the volume)`` for each slab, where it is; results in their order."""

    @abc.abstractmethod
    def save(self, folder: Path, epoch: int, history: NDArray[np.float64], made_with: Mapping[str, Any]) -> None:
        """Keep everything, each slab from where it is."""

    @abc.abstractmethod
    def load(self, folder: Path, made_with: Mapping[str, Any]) -> tuple[int, NDArray[np.float64]] | None:
        """Go on from what `save` kept last, if there is something: epochs done, and history."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of everything."""


class LocalJointRunner(JointRunner):
    """All slabs in this process, one after another.

    Parameters
    ----------
    problem
        Of which.
    memory
        Bytes that the process may use; decides how many frames are kept.
    """

    def __init__(self, problem: JointProblem, memory: int | None = None) -> None:
        self.problem, self._memory = problem, memory
        self.common: Common = {}
        self._store = problem.store(memory)
        self._slabs = problem.slab_store()

    @property
    def locals(self) -> list[Local]:
        """Arrays of the slabs, where they are computed."""
        return [self._slabs.open(place.index) for place in self.problem.layout.places]

    def begin(self, parameters: Mapping[str, Any]) -> None:
        """Slabs from the start, and a copy of the parameters."""
        engine, layout = self.problem.engine, self.problem.layout
        self.common = engine.begin_common({name: np.array(value) for name, value in parameters.items()})
        for place in layout.places:
            self._slabs.put(place.index, self.problem.begin_slab(place))

    def epoch(self, number: int) -> tuple[float, float]:
        """One pass after another over all slabs."""
        engine, totals = self.problem.engine, np.zeros(2)
        for angles in self.problem.steps(number):
            first = True
            while first or engine.more(self.common):
                sums = self._run_pass(angles)
                if first:
                    totals += float(sums["loss"]), float(sums["count"])
                self.common = engine.advance(self.common, sums)
                first = False
        return float(totals[0]), float(totals[1])

    def _run_pass(self, angles: NDArray[np.int64]) -> dict[str, Any]:
        engine, layout, common = self.problem.engine, self.problem.layout, self.problem.common_there(self.common)
        all_slabs = list(zip(layout.places, self.locals))
        shown = []
        for place, local in all_slabs:
            engine.prepare(place, local, common)
            shown.append(slabs.borders(engine, layout, place, local, common, angles))
            self._slabs.close(place.index, engine.prepared)
        met = []
        for place, local in all_slabs:
            i = place.index
            above = shown[i - 1].last if i else None
            below = shown[i + 1].first if i + 1 < layout.slabs else None
            met.append(slabs.meet(engine, layout, place, local, common, angles, self._store, above, below))
            self._slabs.close(i, engine.gathered)
        done = []
        for place, local in all_slabs:
            i = place.index
            before, after = i > 0, i + 1 < layout.slabs
            given = met[i - 1].below if before else None, met[i + 1].above if after else None
            slabs.take_in(engine, place, local, common, angles, *given)
            planes = shown[i - 1].last_planes if before else None, shown[i + 1].first_planes if after else None
            done.append(engine.absorb(place, local, common, *map(self.problem.there, planes)))
            self._slabs.close(i)
        return finished_sums(tree_sum([one.sums for one in met]), tree_sum(done), angles, engine)

    def parameters(self) -> dict[str, Any]:
        """A copy."""
        found = self.problem.engine.parameters(self.common)
        return {name: np.array(to_host(value)) for name, value in found.items()}

    def each(self, function: Callable[[SlabPlace, NDArray[Any]], Any]) -> list[Any]:
        """Of each slab."""
        engine = self.problem.engine
        found = []
        for place, local in zip(self.problem.layout.places, self.locals):
            found.append(function(place, engine.volume(place, local, self.common)))
            self._slabs.close(place.index, ())
        return found

    def save(self, folder: Path, epoch: int, history: NDArray[np.float64], made_with: Mapping[str, Any]) -> None:
        """One slab after another."""
        for place in self.problem.layout.places:
            save_slab(folder, place.index, epoch, self._slabs.whole(place.index), made_with)
            self._slabs.close(place.index, ())
        save_common(folder, epoch, history, self.common, made_with)

    def load(self, folder: Path, made_with: Mapping[str, Any]) -> tuple[int, NDArray[np.float64]] | None:
        """The last epoch that was kept whole."""
        for epoch in epochs_kept(folder):
            with contextlib.suppress(Damaged):
                self.common, history = load_common(folder, epoch, made_with)
                for place in self.problem.layout.places:
                    self._slabs.put(place.index, load_slab(folder, place.index, epoch, made_with))
                return epoch, history
        return None

    def close(self) -> None:
        """Files are removed; all else goes with this object."""
        self._slabs.clear()


def finished_sums(met: dict[str, Any], absorbed: Any, angles: NDArray[np.int64], engine: JointEngine) -> dict[str, Any]:
    """What `JointEngine.advance` takes."""
    return {**met, "slabs": absorbed, "angles": angles, "fraction": len(angles) / engine.model.angles}


OnEpoch = Callable[[JointReport], bool | None]


def run(
    problem: JointProblem,
    parameters: Mapping[str, Any],
    epochs: int,
    *,
    client: "Client | None" = None,
    finish: Callable[[SlabPlace, NDArray[Any]], Any] | None = None,
    on_epoch: OnEpoch | None = None,
    folder: Path | None = None,
    every: int = 10,
    made_with: Mapping[str, Any] | None = None,
    memory: int | None = None,
) -> tuple[JointResult, list[Any]]:
    """Take an engine through its epochs.

    The result has the same bits on any number of workers and threads, and after whatever was lost or resumed; it does
    depend on how the volume is cut.

    Parameters
    ----------
    problem
        What to solve.
    parameters
        First guesses of all but the volume.
    epochs
        How many in all, those before a checkpoint counted.
    client
        Of a cluster; None: in this process.
    finish
        ``finish(place, rows of the volume)`` is called for each slab at the end, where it is; default: its rows.
    on_epoch
        Called after each epoch; True ends the run there. Epochs that are repeated after a loss are reported again.
    folder
        Where checkpoints are kept; if it holds one, the run goes on from there. On a cluster, all workers see it.
    every
        Epochs from one checkpoint to the next; there is one at the end, too.
    made_with
        What a checkpoint has to be made with to be taken; one made with something else is refused.
    memory
        Bytes that this process may use, without a client.

    Returns
    -------
    result
        Parameters and history.
    slabs
        What `finish` returned, one for each slab.

    Raises
    ------
    StoppedError
        Workers are lost again and again.
    UserError
        A checkpoint made with something else.
    """
    made_with = made_with or {}
    runner: JointRunner
    if client is None:
        runner = LocalJointRunner(problem, memory)
    else:
        from dtomo.ptychotomo.cluster_driver import ClusterJointRunner

        runner = ClusterJointRunner(client, problem)
    setbacks, best, tries = 0, -1, 0
    try:
        while True:
            try:
                done, history = _begin(runner, parameters, folder, made_with)
                while done < epochs:
                    started = time.monotonic()
                    loss, count = runner.epoch(done)
                    history = np.concatenate([history, [[loss, count]]])
                    done += 1
                    due = done % every == 0 or done == epochs
                    if folder is not None and due:
                        runner.save(folder, done, history, made_with)
                    if done > best:
                        best, tries = done, 0
                    seconds = time.monotonic() - started
                    if on_epoch is not None and on_epoch(JointReport(done, epochs, loss, count, seconds)):
                        if folder is not None and not due:
                            runner.save(folder, done, history, made_with)
                        break
                found = runner.each(finish or _rows)
                return JointResult(runner.parameters(), history, done, setbacks), found
            except Setback as loss_of_workers:
                setbacks, tries = setbacks + 1, tries + 1
                if tries >= TRIES:
                    raise StoppedError(f"workers were lost {TRIES} times without getting further") from loss_of_workers
    finally:
        runner.close()


def _begin(
    runner: JointRunner, parameters: Mapping[str, Any], folder: Path | None, made_with: Mapping[str, Any]
) -> tuple[int, NDArray[np.float64]]:
    found = runner.load(folder, made_with) if folder is not None else None
    if found is not None:
        return found
    runner.begin(parameters)
    return 0, np.zeros((0, 2))


def _rows(place: SlabPlace, rows: NDArray[Any]) -> NDArray[Any]:
    return np.array(to_host(rows))
