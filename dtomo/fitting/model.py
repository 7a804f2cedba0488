"""Models of fits: what a user gives, and what the loop makes of it.

A model is any object with ``parameters``, a dict of real or complex arrays, and ``loss_and_gradient``; see `Model`. The
loop sees it through three small things: a *trainable* on the client, which knows the parameters; a *task*, which is
sent to workers and evaluates blocks; and *steps*, which move the parameters. `dtomo.fitting.torch_models` has the same
three for Torch's modules. The user's object is wrapped by none of them: nothing is put into it but fitted parameters.
"""

import dataclasses
import inspect
import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError, shown
from dtomo.fitting.checks import (
    Arrays,
    checked_count,
    checked_loss,
    checked_metrics,
    checked_parameters,
    checked_result,
)
from dtomo.fitting.optimizers import OPTIMIZERS, Adam, Optimizer, State

Batch: TypeAlias = "NDArray[Any] | tuple[NDArray[Any], ...]"
"""Arrays whose first axis is the sample: one, or as many as the data has."""

Evaluate: TypeAlias = "Callable[..., tuple[float, Arrays, Mapping[str, float]]]"
"""Mean loss, mean gradients and uses of the present batch: at the trainable's parameters, or at those it is given."""

Scheduler: TypeAlias = Callable[[int], float]
"""From the number of epochs done to the factor of the optimizer's rate in the next."""


@runtime_checkable
class Model(Protocol):
    """What a user's object has.

    Further methods are used where there are any: ``metrics(parameters, batch)`` returns sums by name, which are divided
    by the count of all blocks as the loss is; ``loss(parameters, batch)`` returns the sum of the losses and the count
    alone, for validation.
    """

    parameters: dict[str, NDArray[Any]]
    """Arrays of real or complex floating-point numbers, by name. A fit begins with them and, at its end, writes
    into them."""

    def loss_and_gradient(self, parameters: dict[str, NDArray[Any]], batch: Any) -> tuple[float, float, Arrays]:
        """Loss of some samples.

        Parameters
        ----------
        parameters
            To be used in place of ``self.parameters``; of the same names, shapes and dtypes; not to be changed.
        batch
            As the data: an array, or a tuple of arrays, whose first axis is the sample; some samples of a batch.
            A third parameter named ``rng`` gets a `numpy.random.Generator` that depends on seed, epoch and block.

        Returns
        -------
        tuple
            Sum of the losses, what they are counted over (the samples, the pixels that count, …), and the gradient of
            the sum for each parameter: ∂L/∂z̄ = (∂L/∂x + i ∂L/∂y) / 2 of a complex z = x + iy.
        """
        ...


class Task(Protocol):
    """What travels to workers."""

    def evaluate_blocks(
        self, values: Mapping[str, NDArray[Any]], blocks: Iterable[tuple[Any, int]], *, gradient: bool
    ) -> Iterator[dict[str, Any]]:
        """Sums over each block, a batch and a key, in order, for `dtomo.distributed.sums`: ``loss``, ``count``; with
        `gradient` ``gradients``; ``metrics``, ``buffers`` and ``used`` where there are such. Random numbers are made
        from the key."""
        ...


class Trainable(Protocol):
    """A model on the client."""

    @property
    def task(self) -> Task:
        """What is sent to workers."""
        ...

    def parameters(self) -> Arrays:
        """Those that steps move, as they are now."""
        ...

    def buffers(self) -> Arrays:
        """What blocks change beside them."""
        ...

    def store(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Go on with these parameters and buffers."""
        ...

    def store_buffers(self, sums: Mapping[str, NDArray[Any]], count: float) -> None:
        """Buffers from their sums over the blocks of a batch."""
        ...

    def finish(self) -> None:
        """The fit is over: the user's object has the parameters as they are now."""
        ...

    def save(self, folder: Path) -> None:
        """Write the parameters into a folder."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayTask:
    """Evaluates blocks by a user's model."""

    model: Any

    def evaluate_blocks(
        self, values: Mapping[str, NDArray[Any]], blocks: Iterable[tuple[Any, int]], *, gradient: bool
    ) -> Iterator[dict[str, Any]]:
        """Block after block; the model's own code may use all threads."""
        for batch, key in blocks:
            yield self.evaluate(values, batch, gradient=gradient, key=key)

    def evaluate(self, values: Mapping[str, NDArray[Any]], batch: Any, *, gradient: bool, key: int) -> dict[str, Any]:
        """Sums over one block; see `Task`.

        Raises
        ------
        UserError
            The model returns what it must not; see `dtomo.fitting.checks`.
        """
        name, given = type(self.model).__name__, dict(values)
        sums: dict[str, Any] = {}
        if not gradient and callable(getattr(self.model, "loss", None)):
            result = self._called(self.model.loss, given, batch, key)
            if not isinstance(result, tuple | list) or len(result) != 2:
                raise UserError(f"{name}.loss returns (sum of the losses, count); got {shown(repr(result))}")
            sums["loss"], sums["count"] = checked_loss(name, result[0]), checked_count(name, result[1])
        else:
            result = self._called(self.model.loss_and_gradient, given, batch, key)
            sums["loss"], sums["count"], gradients = checked_result(name, result, values)
            if gradient:
                sums["gradients"] = gradients
        if callable(getattr(self.model, "metrics", None)):
            sums["metrics"] = checked_metrics(name, self._called(self.model.metrics, given, batch, key))
        return sums

    def _called(self, method: Callable[..., Any], values: Arrays, batch: Any, key: int) -> Any:
        if "rng" in inspect.signature(method).parameters:
            return method(values, batch, rng=np.random.default_rng(key))
        return method(values, batch)


class ArrayTrainable:
    """A user's model on the client.

    Parameters
    ----------
    model
        Changed by `finish` alone.

    Raises
    ------
    UserError
        No model; see `dtomo.fitting.checks.checked_parameters`.
    """

    def __init__(self, model: Any) -> None:
        if not callable(getattr(model, "loss_and_gradient", None)) or not hasattr(model, "parameters"):
            raise UserError(
                "a model has parameters (a dict of arrays) and loss_and_gradient(parameters, batch), or is a "
                f"torch.nn.Module with a loss, or a dtomo.fitting.OperatorModel; got {shown(repr(model))}"
            )
        self.model, self.task = model, ArrayTask(model)
        self._values = checked_parameters(model)

    def parameters(self) -> Arrays:
        """As they are now; not to be changed."""
        return dict(self._values)

    def buffers(self) -> Arrays:
        """None."""
        return {}

    def store(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Go on with these."""
        self._values = {name: np.asarray(values[name]) for name in self._values}

    def store_buffers(self, sums: Mapping[str, NDArray[Any]], count: float) -> None:
        """There are none."""

    def finish(self) -> None:
        """Write them into the arrays of the user's model, or into its dict where it holds what cannot be written to."""
        held = self.model.parameters
        for name, value in self._values.items():
            if isinstance(held[name], np.ndarray) and held[name].flags.writeable and held[name].shape == value.shape:
                held[name][...] = value
            else:
                held[name] = value.copy()

    def save(self, folder: Path) -> None:
        """Write ``parameters.npz``."""
        write_parameters(folder, self.parameters())


def write_parameters(folder: Path, values: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays by name to ``parameters.npz`` in a folder; complex ones stay complex."""
    part = folder / ".parameters.part.npz"
    with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED, allowZip64=True) as file:
        for name, value in values.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(value), allow_pickle=False)
    part.replace(folder / "parameters.npz")


class ArraySteps:
    """An optimizer of this package, and a scheduler of its rate.

    Parameters
    ----------
    trainable
        Whose parameters it moves.
    optimizer
        One of `dtomo.fitting.optimizers`, its name, or None: Adam.
    scheduler
        ``scheduler(epochs done) -> factor`` of the rate, or None: 1. A function of the epoch alone, so that a resumed
        fit has the same.

    Raises
    ------
    UserError
        Neither.
    """

    def __init__(self, trainable: ArrayTrainable, optimizer: Any = None, scheduler: Scheduler | None = None) -> None:
        self.trainable = trainable
        self.optimizer = optimizer_of(optimizer)
        self.optimizer.check(trainable.parameters())
        if scheduler is not None and not callable(scheduler):
            raise UserError(
                "the scheduler of a model of arrays is a function from the number of epochs done to the factor of the "
                f"rate; got {shown(repr(scheduler))}"
            )
        self.scheduler, self.epochs = scheduler, 0
        self.state: State = self.optimizer.begin(trainable.parameters())

    @property
    def rate(self) -> float:
        """The factor of the rate in this epoch."""
        if self.scheduler is None:
            return 1.0
        factor = float(self.scheduler(self.epochs))
        if not 0 <= factor < math.inf:
            raise UserError(f"the scheduler returned {factor} after {self.epochs} epochs; factors are numbers from 0")
        return factor

    def step(self, evaluate: Evaluate) -> float:
        """One step of the optimizer; the loss before."""
        losses: list[float] = []

        def at(parameters: Arrays) -> tuple[float, Arrays]:
            loss, gradients, _ = evaluate(parameters)
            losses.append(loss)
            return loss, gradients

        moved, self.state = self.optimizer.step(self.trainable.parameters(), self.state, at, self.rate)
        self.trainable.store(moved)
        return losses[0]

    def end_epoch(self, score: float) -> None:
        """One more epoch is done."""
        self.epochs += 1

    def pack(self) -> State:
        """Epochs done, and the optimizer's state, whose names begin with ``state.``."""
        return {"epochs": self.epochs, **{f"state.{name}": value for name, value in self.state.items()}}

    def unpack(self, packed: Mapping[str, Any]) -> None:
        """Go on from what `pack` made."""
        self.epochs = int(packed["epochs"])
        self.state = {
            name.removeprefix("state."): np.asarray(value) if isinstance(value, np.generic) else value
            for name, value in packed.items()
            if name.startswith("state.")
        }


def optimizer_of(given: Any) -> Optimizer:
    """One of this package's, from itself, its name, or None.

    Raises
    ------
    UserError
        Anything else.
    """
    if given is None:
        return Adam()
    if isinstance(given, Optimizer):
        return given
    if isinstance(given, str) and given in OPTIMIZERS:
        return OPTIMIZERS[given]()
    raise UserError(
        f"a model of arrays has an optimizer of dtomo.fitting ({', '.join(OPTIMIZERS)}); got {shown(repr(given))}"
    )


def trainable_of(model: Any, loss: Any = None) -> Trainable:
    """What the loop sees of a model: an `ArrayTrainable`, or a ``TorchTrainable`` of a module of Torch's.

    Raises
    ------
    UserError
        No model, or a loss beside a model that has its own.
    """
    if _is_torch(model):
        from dtomo.fitting.torch_models import TorchTrainable

        return TorchTrainable(model, loss)
    if loss is not None:
        raise UserError("loss= is for modules of Torch: a model of arrays has its loss in loss_and_gradient")
    return ArrayTrainable(model)


def steps_of(trainable: Any, optimizer: Any, scheduler: Any) -> Any:
    """Optimizer and scheduler of a trainable.

    Raises
    ------
    UserError
        Of the wrong kind.
    """
    if isinstance(trainable, ArrayTrainable):
        return ArraySteps(trainable, optimizer, scheduler)
    from dtomo.fitting.torch_models import TorchSteps

    return TorchSteps(trainable, optimizer, scheduler)


def _is_torch(model: Any) -> bool:
    """Whether a model is a module of Torch's, found out without importing it."""
    return any(
        kind.__module__ == "torch.nn.modules.module" and kind.__qualname__ == "Module" for kind in type(model).__mro__
    )
