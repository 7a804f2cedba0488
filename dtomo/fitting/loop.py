"""The loop of a fit: epochs of steps, the validation after each, checkpoints; on the client, with reduced numbers.

What a fit computes is decided by the model, the data, the settings and the seed: which samples are held out, the order
of an epoch, the cut into blocks and the random numbers of each are functions of these. What goes from one step to the
next is parameters, buffers, optimizer and scheduler, the history, and the sums of the epoch that runs: with these, a
fit that was killed goes on with the same bits.
"""

import dataclasses
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.distributed.sums import divide
from dtomo.errors import StoppedError, UserError
from dtomo.fitting.callbacks import Callback, name_of
from dtomo.fitting.checks import Arrays, not_finite, refuse_not_finite
from dtomo.fitting.data import Columns, Index, Split, block_size, blocks_of
from dtomo.fitting.history import Epoch, History
from dtomo.fitting.model import Trainable
from dtomo.fitting.runner import Runner, Work
from dtomo.io.checkpoints import Checkpoints

_GROUPS = ("values", "best", "steps")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Numbers of a fit.

    Attributes
    ----------
    epochs
        In all, those before a checkpoint counted.
    batch
        Samples of a step; None: all.
    block
        Samples that are evaluated at once.
    gradient_clip
        Largest norm of all gradients together; None: any.
    best
        Whether the parameters of the smallest validation are kept, and not the last.
    seed
        Of the order of samples, and of random numbers of blocks.

    Raises
    ------
    UserError
        Numbers out of their range.
    """

    epochs: int
    batch: int | None
    block: int
    gradient_clip: float | None = None
    best: bool = False
    seed: int = 0

    @classmethod
    def of(
        cls,
        epochs: int,
        batch: int | None,
        block: int | None,
        gradient_clip: float | None,
        best: bool,
        seed: int,
        samples: int,
    ) -> "Plan":
        """With a size of the blocks that suits the batch, where none is given."""
        for name, value, least in (("epochs", epochs, 0), ("batch", batch, 1), ("block", block, 1), ("seed", seed, 0)):
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= least
            if not whole and not (value is None and name in ("batch", "block")):
                raise UserError(f"{name} of a fit is a whole number from {least}; got {value!r}")
        if gradient_clip is not None and not 0 < gradient_clip < math.inf:
            raise UserError(f"gradient_clip is the largest norm of the gradients, above 0; got {gradient_clip}")
        return cls(
            epochs=int(epochs),
            batch=None if batch is None else int(batch),
            block=int(block) if block is not None else block_size(batch, samples),
            gradient_clip=gradient_clip,
            best=bool(best),
            seed=int(seed),
        )


@dataclasses.dataclass
class _Sums:
    """Of the batches of an epoch so far."""

    loss: float = 0.0
    count: float = 0.0
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)

    def add(self, sums: Mapping[str, Any]) -> None:
        """One more batch, or the held-out set."""
        self.loss, self.count = self.loss + float(sums["loss"]), self.count + float(sums["count"])
        for name, value in sums.get("metrics", {}).items():
            self.metrics[name] = self.metrics.get(name, 0.0) + float(value)

    def means(self) -> dict[str, float]:
        """Metrics divided by the count."""
        return {name: value / self.count for name, value in self.metrics.items()}


class Loop:
    """A fit that runs.

    Parameters
    ----------
    trainable, steps
        Model and optimizer; see `dtomo.fitting.model`.
    runner
        Evaluates blocks.
    columns, split, plan
        Data, what of it is held out, numbers.
    callbacks
        Called after each epoch.
    checkpoints
        Where the state is kept; if it holds one, the fit goes on from there.
    """

    def __init__(
        self,
        trainable: Trainable,
        steps: Any,
        runner: Runner,
        columns: Columns,
        split: Split,
        plan: Plan,
        callbacks: Sequence[Callback] = (),
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.trainable, self.steps, self.runner = trainable, steps, runner
        self.columns, self.split, self.plan = columns, split, plan
        self.callbacks, self.checkpoints = callbacks, checkpoints
        self.history = History()
        self._done = 0  # steps
        self._in_epoch, self._sums, self._seconds = 0, _Sums(), 0.0
        self._best: tuple[float, Arrays] | None = None
        self._name = type(getattr(trainable, "model", getattr(trainable, "module", trainable))).__name__
        self._held = blocks_of(split.held_out, plan.block)

    def run(self) -> History:
        """All epochs that are left; the user's object has the result then."""
        self._restore()
        begun: list[Callback] = []
        try:
            for callback in self.callbacks:
                begun.append(callback)
                callback.begin(self.history)
            while not self._is_over():
                self._epoch()
        finally:
            for callback in begun:
                callback.end(self.history)
        if self.plan.best and self._best is not None:
            self.trainable.store(self._best[1])
        self.trainable.finish()
        return self.history

    def first_look(self) -> None:
        """Evaluate the first batch and the held-out set's first block, so that what is wrong with the model is known.

        Raises
        ------
        UserError
            The model returns what it must not, or data cannot be read.
        """
        samples = next(self.split.batches(0, self.plan.batch, self.plan.seed))
        work = Work(blocks_of(samples, self.plan.block)[:1], True, (self.plan.seed, 0, 0))
        self._refuse_not_finite(self.runner.sums(self._values(), work), "the first block", work.blocks)
        if self._held:
            self.runner.sums(self._values(), dataclasses.replace(work, blocks=self._held[:1], gradient=False))

    def _is_over(self) -> bool:
        if not self.history.reason and len(self.history) >= self.plan.epochs:
            self.history = dataclasses.replace(self.history, reason="epochs")
        return bool(self.history.reason)

    def _values(self) -> Arrays:
        return {**self.trainable.parameters(), **self.trainable.buffers()}

    def _epoch(self) -> None:
        number, started = len(self.history), time.monotonic()
        for place, samples in enumerate(self.split.batches(number, self.plan.batch, self.plan.seed)):
            if place < self._in_epoch:  # done before the fit was resumed
                continue
            self._step(number, place, blocks_of(samples, self.plan.block))
            self._in_epoch, self._done = place + 1, self._done + 1
            if self.checkpoints is not None and self.checkpoints.schedule.minutes and self.checkpoints.schedule.due():
                self._save()
        rate, held = self.steps.rate, self._validation(number)
        epoch = Epoch(
            number=number + 1,
            steps=self._done,
            loss=self._sums.loss / self._sums.count,
            validation=None if held is None else held.loss / held.count,
            metrics=self._sums.means(),
            validation_metrics={} if held is None else held.means(),
            rate=rate,
            seconds=time.monotonic() - started,
        )
        self._end(epoch)

    def _end(self, epoch: Epoch) -> None:
        self.history = self.history.plus(epoch)
        self._in_epoch, self._sums = 0, _Sums()
        if self.plan.best and (self._best is None or epoch.score < self._best[0]):
            self._best = epoch.score, {name: np.array(value) for name, value in self._values().items()}
        self.steps.end_epoch(epoch.score)
        enders = [callback for callback in self.callbacks if callback.after_epoch(self.history)]
        if enders:
            self.history = dataclasses.replace(self.history, reason=name_of(enders[0]))
        over = self._is_over()
        if self.checkpoints is not None and (over or self.checkpoints.schedule.due(len(self.history))):
            self._save()

    def _step(self, epoch: int, place: int, blocks: Any) -> None:
        """One step of the optimizer, on one batch."""
        work = Work(blocks, True, (self.plan.seed, epoch, place))
        begun, after = self.trainable.buffers(), None

        def evaluate(values: Arrays | None = None) -> tuple[float, Arrays, Mapping[str, float]]:
            nonlocal after
            sums = self.runner.sums({**self.trainable.parameters(), **begun, **(values or {})}, work)
            if after is None:
                self._refuse_not_finite(sums, f"epoch {epoch + 1}, step {place + 1}", blocks)
                self._sums.add(sums)
                if sums.get("buffers"):
                    self.trainable.store_buffers(sums["buffers"], sums["count"])
                after = self.trainable.buffers()
            elif after:  # trials leave no trace in buffers: in this process the user's own were used
                self.trainable.store(after)
            return sums["loss"] / sums["count"], self._clipped(_means(sums)), sums.get("used", {})

        self.steps.step(evaluate)

    def _refuse_not_finite(self, sums: Mapping[str, Any], where: str, blocks: Iterable[Index]) -> None:
        """Refuse such sums; where the data of these blocks are why, say which sample."""
        try:
            refuse_not_finite(self._name, sums, where)
        except UserError as error:
            bad = next((found for block in blocks if (found := not_finite(self.columns, block))), None)
            if bad is None:
                raise
            raise UserError(f"{str(error).partition(';')[0]}: {bad}") from error

    def _clipped(self, gradients: Arrays) -> Arrays:
        if self.plan.gradient_clip is None:
            return gradients
        norm = math.sqrt(sum(_squares(gradient) for gradient in gradients.values()))
        if not norm > self.plan.gradient_clip:
            return gradients
        factor = self.plan.gradient_clip / norm
        return {name: gradient * gradient.real.dtype.type(factor) for name, gradient in gradients.items()}

    def _validation(self, epoch: int) -> _Sums | None:
        """Of the whole held-out set."""
        if not self._held:
            return None
        found = _Sums()
        sums = self.runner.sums(self._values(), Work(self._held, False, (self.plan.seed, epoch, 2**31)))
        self._refuse_not_finite(sums, f"the validation of epoch {epoch + 1}", self._held)
        found.add(sums)
        return found

    def _save(self) -> None:
        """Write down all that goes on; a disk that is full is noted and stops nothing."""
        assert self.checkpoints is not None
        groups: dict[str, Mapping[str, Any]] = {
            "values": self._values(),
            "best": {} if self._best is None else self._best[1],
            "steps": packed if isinstance(packed := self.steps.pack(), dict) else {"": packed},
        }
        state = {f"{group}.{i}": value for group in groups for i, value in enumerate(groups[group].values())}
        info = {
            "names": {group: list(values) for group, values in groups.items()},
            "history": [dataclasses.asdict(epoch) for epoch in self.history],
            "reason": self.history.reason,
            "done": self._done,
            "in_epoch": self._in_epoch,
            "sums": dataclasses.asdict(self._sums),
            "best": None if self._best is None else self._best[0],
        }
        try:
            self.checkpoints.save(state, info)
        except StoppedError as error:
            self.checkpoints.notes.append(f"{error}; the fit goes on without it")
        self.checkpoints.schedule.tried()

    def _restore(self) -> None:
        """Go on from the checkpoint, if there is one."""
        found = None if self.checkpoints is None else self.checkpoints.load()
        if found is None:
            return
        info = found.info
        if "in_epoch" not in info:
            raise UserError(f"{self.checkpoints.folder} holds no state of a fit; give another folder")  # type: ignore[union-attr]
        values, best, steps = (_group(found.state, info["names"][group], group) for group in _GROUPS)
        self.trainable.store(values)
        self.steps.unpack(steps[""] if list(steps) == [""] else steps)
        self._best = None if info["best"] is None else (float(info["best"]), best)
        reason = "" if info["reason"] == "epochs" else info["reason"]
        self.history = History(tuple(Epoch(**epoch) for epoch in info["history"]), reason)
        self._done, self._in_epoch, self._sums = info["done"], info["in_epoch"], _Sums(**info["sums"])


def save_split(folder: Path, split: Split) -> None:
    """Write down which samples are held out, or make sure that they are those that were.

    Raises
    ------
    UserError
        The folder belongs to a fit of other data or another seed.
    """
    path = folder / "split.npz"
    if path.is_file():
        with np.load(path) as before:
            same = np.array_equal(before["training"], split.training)
            same = same and np.array_equal(before["held_out"], split.held_out)
        if not same:
            raise UserError(
                f"{path} holds out other samples: it was written by a fit of other data, another validation or another "
                "seed; give another folder"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / ".split.part.npz"
    np.savez(part, training=split.training, held_out=split.held_out)
    part.replace(path)


def _group(state: Mapping[str, Any], names: Iterable[str], group: str) -> dict[str, Any]:
    found = {name: state[f"{group}.{index}"] for index, name in enumerate(names)}
    return {name: np.asarray(value) if isinstance(value, np.generic) else value for name, value in found.items()}


def _means(sums: Mapping[str, Any]) -> Arrays:
    return {name: np.asarray(divide((value, sums["count"]))).astype(value.dtype, copy=False)
            for name, value in sums["gradients"].items()}  # fmt: skip


def _squares(gradient: NDArray[Any]) -> float:
    """Of ∂L/∂x, and of ∂L/∂y too where the parameter is x + iy (its gradient is half of them)."""
    total = float(np.sum(gradient.real**2, dtype=np.float64))
    return total if not np.iscomplexobj(gradient) else 4 * (total + float(np.sum(gradient.imag**2, dtype=np.float64)))
