"""Takes an engine through its epochs: in this process, or on a cluster, with the same bits.

The loop here knows epochs, history, callbacks, checkpoints and what to do when workers are lost; a `Runner` does the
steps of an epoch: `LocalRunner` here, `dtomo.ptycho.cluster_driver.ClusterRunner` on workers.
"""

import abc
import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo.device import to_host
from dtomo.distributed.clusters import TRIES
from dtomo.distributed.sums import sum_of_parts
from dtomo.errors import StoppedError, UserError
from dtomo.io.checkpoints import Checkpoints
from dtomo.io.sources import Source
from dtomo.ptycho.blocks import Blocks, cut_frames, regrouped
from dtomo.ptycho.engine import Engine, Parameters
from dtomo.ptycho.evaluator import Evaluator, Problem, Share, sent_of, steps_of
from dtomo.ptycho.frame_store import Arrange
from dtomo.ptycho.frames import to_model_order
from dtomo.ptycho.nested import bytes_of, flatten, mapped, unflatten

if TYPE_CHECKING:
    from distributed import Client

    from dtomo.ptycho.tiles import Bands

COPY_EPOCHS, COPY_SECONDS, COPY_BYTES = 10, 60.0, 2**28
"""A copy of the state is held for when a worker is lost: after so many epochs or seconds, if it is not larger."""


@dataclasses.dataclass(frozen=True, eq=False)
class EpochReport:
    """What a callback is told after an epoch.

    Attributes
    ----------
    epoch, epochs
        Epochs done, and how many there will be.
    loss, count
        Sum of the losses, and of what they were counted over.
    seconds
        That the epoch took.
    parameters
        Called, it fetches what is reconstructed so far.
    """

    epoch: int
    epochs: int
    loss: float
    count: float
    seconds: float
    parameters: Callable[[], Parameters]


OnEpoch = Callable[[EpochReport], bool | None]


@dataclasses.dataclass(frozen=True, eq=False)
class DriverResult:
    """What came of a run.

    Attributes
    ----------
    parameters
        What was reconstructed, on the host.
    history
        Sum of the losses of each epoch, and what it was counted over, float64 ``(epoch, 2)``; of the first pass of each
        step, so that each frame counts once.
    epochs
        Epochs done.
    reason
        ``"epochs"`` or ``"callback"``: why it ended.
    setbacks
        How often it went back to a copy of the state because workers were lost.
    """

    parameters: Parameters
    history: NDArray[np.float64]
    epochs: int
    reason: str
    setbacks: int = 0

    @property
    def losses(self) -> NDArray[np.float64]:
        """Loss per unit of the count, of each epoch; NaN where nothing was counted."""
        return losses_of(self.history)


def losses_of(history: NDArray[np.float64]) -> NDArray[np.float64]:
    """Loss per unit of the count from a history ``(epoch, 2)``; NaN where nothing was counted."""
    counted = history[:, 1] != 0
    return np.divide(history[:, 0], history[:, 1], out=np.full(len(history), np.nan), where=counted)


class Setback(Exception):
    """Workers were lost, and with them the state: go back to a copy of it."""


class Runner(abc.ABC):
    """Does the epochs of a problem, wherever its blocks are."""

    copies: bool = False
    """Whether the state can be lost, so that copies are to be held."""

    cut: list[int] | None = None
    """Borders between the tiles of the object, if it is cut."""

    @abc.abstractmethod
    def begin(self, parameters: Parameters) -> None:
        """Before the first epoch; also after a `Setback`."""

    @abc.abstractmethod
    def restore(self, state: dict[str, Any], kept: dict[int, Any]) -> None:
        """Go on from a snapshot; also after a `Setback`."""

    @abc.abstractmethod
    def epoch(self, number: int) -> tuple[float, float]:
        """Do one; sum of losses and counts."""

    @abc.abstractmethod
    def snapshot(self) -> tuple[dict[str, Any], dict[int, Any]]:
        """The state, and what blocks keep, on the host; not changed later."""

    @abc.abstractmethod
    def result(self) -> Parameters:
        """What is reconstructed so far, on the host; not changed later."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of everything."""


class LocalRunner(Runner):
    """Epochs in this process.

    Attributes
    ----------
    state
        Of the engine.
    totals
        Sum of losses and counts, of the epoch that runs.
    """

    def __init__(self, problem: Problem, memory: int | None = None) -> None:
        self.problem, self.evaluator = problem, Evaluator(problem, memory)
        self.state: dict[str, Any] = {}
        self.totals = np.zeros(2)

    def begin(self, parameters: Parameters) -> None:
        """The engine's state from a copy of the parameters, where it computes."""
        self.state = self.problem.engine.begin(mapped(parameters, self.problem.own))
        self.evaluator.kept = {}

    def restore(self, state: dict[str, Any], kept: dict[int, Any]) -> None:
        """Copies of both."""
        self.state, self.evaluator.kept = mapped(state, self.problem.own), mapped(kept, self.problem.own)

    def epoch(self, number: int) -> tuple[float, float]:
        """One after another, the blocks of each step."""
        self.totals = np.zeros(2)
        steps = steps_of(self.problem, number)
        for blocks, after in zip(steps, [*steps[1:], None]):
            share = Share(tuple(range(len(blocks))), tuple(blocks), len(blocks), after[0] if after else None)
            first = True
            while first or self.problem.engine.more(self.state):
                sums = sum_of_parts([self.evaluator.sums(sent_of(self.state), share)], len(blocks))
                self.update(sums, first)
                first = False
            self.evaluator.step_is_over()
        return float(self.totals[0]), float(self.totals[1])

    def update(self, sums: dict[str, Any], first: bool) -> None:
        """The state after a pass; `first`: of its step."""
        if first:
            self.totals += float(sums["loss"]), float(sums["count"])
        self.state = self.problem.engine.update(self.state, sums)

    def snapshot(self) -> tuple[dict[str, Any], dict[int, Any]]:
        """Copies of both."""
        kept = self.evaluator.kept if self.problem.engine.keeps else {}
        return mapped(self.state, _host_copy), mapped(kept, _host_copy)

    def result(self) -> Parameters:
        """A copy."""
        return mapped(self.problem.engine.finish(self.state), _host_copy)

    def close(self) -> None:
        """Nothing is held beyond this object."""


def _host_copy(array: Any) -> Any:
    return np.array(array) if isinstance(array, np.ndarray) else to_host(array)


def run(
    engine: Engine,
    source: Source,
    parameters: Parameters,
    epochs: int,
    *,
    client: "Client | None" = None,
    blocks: Blocks | None = None,
    seed: int = 0,
    on_epoch: OnEpoch | None = None,
    checkpoints: Checkpoints | None = None,
    frame_memory: int | None = None,
    arrange: Arrange = to_model_order,
    device_memory: int | None = None,
    tile: int | None = None,
) -> DriverResult:
    """Take an engine through its epochs.

    The result has the same bits with any number of workers and threads, and after whatever was lost or resumed.

    Parameters
    ----------
    engine
        The solver.
    source
        Frames ``(frame, row, column)``, as many as positions.
    parameters
        First guesses; see `dtomo.ptycho.model`. They are copied.
    epochs
        How many in all, those before a checkpoint counted.
    client
        Of a cluster; None: in this process.
    blocks
        How the frames, or some of them, are cut (with `tile`, only the batches count); default: by
        ``parameters["positions"]``, the size of a frame, the engine's batch and `seed`.
    seed
        Of the batches.
    on_epoch
        Called after each epoch; True ends the run there. Epochs that are repeated after a loss are reported again.
    checkpoints
        Where the state is kept, as its schedule says (iterations are epochs); if it holds one, the run goes on from
        there. On a cluster the client must have memory for the state and what blocks keep.
    frame_memory
        Bytes of frames that each process keeps; default: a quarter of its memory. The others are read in each epoch.
    arrange
        What is done to frames as they are read; default: detector order becomes model order.
    device_memory
        Bytes that each process may take of its device; None: the CPU computes.
    tile
        Rows of the bands that the object is cut into, see `dtomo.ptycho.tiles`; for objects too large to be on each
        worker. Default: it is not cut.

    Raises
    ------
    UserError
        No frames for the positions, or a checkpoint that was made with other settings.
    StoppedError
        Workers were lost again and again.
    """
    if epochs < 0:
        raise UserError(f"epochs count from 0; got {epochs}")
    positions = np.asarray(to_host(parameters["positions"]))
    if len(positions) != source.shape[0]:
        raise UserError(f"{source.location} has {source.shape[0]} frames for {len(positions)} positions")
    bands = None
    if tile is not None:
        from dtomo.ptycho.tiles import cut_bands

        bands = cut_bands(parameters["object"].shape[-2], parameters["probe"].shape[-2], tile)
    groups = None if bands is None else bands.of_frames(positions)
    if blocks is None:
        blocks = cut_frames(positions, source.shape[1:], engine.batch, seed=seed, groups=groups)
    elif groups is not None:
        blocks = regrouped(blocks, positions, source.shape[1:], groups)
    problem = Problem(engine, source, blocks, frame_memory, arrange, device_memory)
    runner = _runner(problem, client, bands)
    try:
        return _Loop(runner, parameters, epochs, on_epoch, checkpoints).run()
    finally:
        runner.close()


def _runner(problem: Problem, client: "Client | None", bands: "Bands | None") -> Runner:
    if bands is not None:
        from dtomo.ptycho.tiles import TileRunner

        if client is None:
            raise UserError("an object in tiles is for the workers of a cluster; start one, or do not cut it")
        return TileRunner(client, problem, bands)
    if client is None:
        return LocalRunner(problem)
    from dtomo.ptycho.cluster_driver import ClusterRunner

    return ClusterRunner(client, problem)


@dataclasses.dataclass(frozen=True, eq=False)
class _Saved:
    """A copy of the state after some epochs."""

    epoch: int
    state: dict[str, Any]
    kept: dict[int, Any]
    history: list[tuple[float, float]]


class _Loop:
    """Epochs of a runner, with all that happens between two of them."""

    def __init__(
        self,
        runner: Runner,
        parameters: Parameters,
        epochs: int,
        on_epoch: OnEpoch | None,
        checkpoints: Checkpoints | None,
    ) -> None:
        self._runner, self._parameters, self._epochs = runner, parameters, epochs
        self._on_epoch, self._checkpoints = on_epoch, checkpoints
        self._copies, self._copied_at = runner.copies, time.monotonic()
        self._copy: _Saved | None = None
        self._history: list[tuple[float, float]] = []
        self._furthest, self._losses, self._setbacks = -1, 0, 0

    def run(self) -> DriverResult:
        """Until the end, whatever is lost on the way."""
        while True:
            try:
                self._restart()
                reason = self._epochs_left()
                parameters = self._runner.result()
                history = np.asarray(self._history, np.float64).reshape(-1, 2)
                return DriverResult(parameters, history, len(self._history), reason, self._setbacks)
            except Setback as error:
                self._count(error)

    def _restart(self) -> None:
        """From the newest copy there is, or the beginning."""
        saved = self._copy or self._loaded()
        self._history = [] if saved is None else list(saved.history)
        if saved is None:
            self._runner.begin(self._parameters)
        else:
            self._runner.restore(saved.state, saved.kept)

    def _epochs_left(self) -> str:
        while len(self._history) < self._epochs:
            started = time.perf_counter()
            loss, count = self._runner.epoch(len(self._history))
            self._history.append((loss, count))
            done = len(self._history)
            self._keep(done)
            if self._on_epoch is not None:
                seconds = time.perf_counter() - started
                if self._on_epoch(EpochReport(done, self._epochs, loss, count, seconds, self._runner.result)):
                    return "callback"
        return "epochs"

    def _keep(self, done: int) -> None:
        """Save the state, or a copy of it, if it is time to."""
        due = self._checkpoints is not None and done < self._epochs and self._checkpoints.schedule.due(done)
        passed = time.monotonic() - self._copied_at
        if not due and not (self._copies and (done % COPY_EPOCHS == 0 or passed >= COPY_SECONDS)):
            return
        saved = _Saved(done, *self._runner.snapshot(), list(self._history))
        self._copies = self._copies and bytes_of([saved.state, saved.kept]) <= COPY_BYTES
        self._copy, self._copied_at = saved if self._copies else None, time.monotonic()
        if due:
            self._save(saved)

    def _save(self, saved: _Saved) -> None:
        """A disk that is full is noted and stops nothing."""
        assert self._checkpoints is not None
        form, leaves = flatten({"state": saved.state, "kept": saved.kept}, "run")
        history = np.asarray(saved.history, np.float64)
        try:
            self._checkpoints.save(
                {**leaves, "history": history}, {"epoch": saved.epoch, "form": form, "cut": self._runner.cut}
            )
        except StoppedError as error:
            self._checkpoints.notes.append(f"{error}; the run goes on without it")
        self._checkpoints.schedule.tried()

    def _loaded(self) -> _Saved | None:
        found = None if self._checkpoints is None else self._checkpoints.load()
        if found is None:
            return None
        if "form" not in found.info:
            raise UserError("the folder for checkpoints holds the state of another algorithm; remove it")
        if found.info["cut"] != self._runner.cut:
            raise UserError("the checkpoint was made with the object in other tiles; give the same, or remove it")
        history = [(float(loss), float(count)) for loss, count in found.state.pop("history")]
        whole = unflatten(found.info["form"], found.state)
        return _Saved(int(found.info["epoch"]), whole["state"], whole["kept"], history)

    def _count(self, error: Setback) -> None:
        done = len(self._history)
        if done > self._furthest:
            self._furthest, self._losses = done, 0
        self._losses, self._setbacks = self._losses + 1, self._setbacks + 1
        if self._losses >= TRIES:
            raise StoppedError(
                f"workers were lost {self._losses} times in epoch {done + 1} ({error}); give them more --memory, "
                "or fewer of them"
            ) from error
