"""Optimizers on dicts of real and complex arrays: SGD with momentum, Adam, AdamW, L-BFGS.

A complex parameter z = x + iy comes with the gradient ∂L/∂z̄ = (∂L/∂x + i ∂L/∂y) / 2, as everywhere in this package.
Every optimizer here takes twice that, ∂L/∂x + i ∂L/∂y: the steps of SGD and of L-BFGS are those of the real and the
imaginary parts taken as two real parameters, and a loss that depends on Im z alone falls as fast as one of a real
parameter. Adam's second moment is of |g|², one real number for an entry, so that its steps turn with the complex plane;
where only one part has a gradient that is the step of a real parameter, too.

An optimizer is a value: what goes from one step to the next is a dict of arrays and numbers that can be saved, and
whose entries are named ``kind.parameter``. Inner products are summed in float64, in an order that depends on the shapes
alone.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError

Parameters: TypeAlias = dict[str, NDArray[Any]]
State: TypeAlias = dict[str, Any]
Evaluate: TypeAlias = Callable[[Parameters], tuple[float, Parameters]]
"""Mean loss of the present batch at some parameters, and its gradients (∂L/∂z̄ for complex ones)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer(abc.ABC):
    """How parameters go on from a batch.

    Attributes
    ----------
    rate
        Factor of the steps: a number, or one for each parameter by name; parameters without one stay as they are.

    Raises
    ------
    UserError
        Settings out of their range.
    """

    rate: float | Mapping[str, float] = 1e-3

    def __post_init__(self) -> None:
        rates = self.rate.values() if isinstance(self.rate, Mapping) else (self.rate,)
        if not all(isinstance(rate, int | float | np.number) and 0 <= rate < math.inf for rate in rates):
            raise UserError(f"the rate of an optimizer is a number from 0, or one for each parameter; got {self.rate}")

    def rate_of(self, name: str) -> float:
        """The factor of the steps of a parameter."""
        return float(self.rate.get(name, 0.0) if isinstance(self.rate, Mapping) else self.rate)

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Refuse rates of parameters that do not exist.

        Raises
        ------
        UserError
            A rate has the name of no parameter.
        """
        unknown = set(self.rate) - set(parameters) if isinstance(self.rate, Mapping) else set()
        if unknown:
            raise UserError(
                f"the optimizer has a rate for {sorted(unknown)[0]!r}, which is no parameter of the model; "
                f"it has {', '.join(sorted(parameters))}"
            )

    @abc.abstractmethod
    def begin(self, parameters: Parameters) -> State:
        """What there is before the first step: arrays of the parameters' shapes, and numbers."""

    @abc.abstractmethod
    def step(
        self, parameters: Parameters, state: State, evaluate: Evaluate, scale: float = 1.0
    ) -> tuple[Parameters, State]:
        """New parameters, of the same shapes and dtypes, and a new state; what is given is not changed.

        Parameters
        ----------
        parameters, state
            Of the step before, or of `begin`.
        evaluate
            Loss and gradients of the batch. Called first with `parameters` as they are; L-BFGS calls it again.
        scale
            Factor of all rates: a scheduler's.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Steps down the gradient of each batch, with momentum: v ← m v + g, p ← p − rate v.

    B. T. Polyak, USSR Computational Mathematics and Mathematical Physics 4 (1964) 1.

    Attributes
    ----------
    momentum
        How much of the last step's velocity goes on, from 0 to below 1.
    """

    rate: float | Mapping[str, float] = 1e-2
    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _part_of_one("momentum", self.momentum)

    def begin(self, parameters: Parameters) -> State:
        """No velocity."""
        if not self.momentum:
            return {}
        return {f"velocity.{name}": np.zeros_like(value) for name, value in parameters.items()}

    def step(
        self, parameters: Parameters, state: State, evaluate: Evaluate, scale: float = 1.0
    ) -> tuple[Parameters, State]:
        """One step."""
        _, gradients = evaluate(parameters)
        moved, kept = dict(parameters), dict(state)
        for name, value in parameters.items():
            velocity = _slope(gradients[name])
            if self.momentum:
                velocity = kept[f"velocity.{name}"] = self.momentum * state[f"velocity.{name}"] + velocity
            moved[name] = _like(value, value - scale * self.rate_of(name) * velocity)
        return moved, kept


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Steps of about the length of the rate, whatever the size of the gradients.

    D. P. Kingma and J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1; of complex entries
    the second moment is of |g|².

    Attributes
    ----------
    first, second
        How much of the moments is kept at each step (β₁, β₂), from 0 to below 1.
    epsilon
        Added to the root of the second moment, in the units of the gradients.
    """

    first: float = 0.9
    second: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        _part_of_one("first", self.first)
        _part_of_one("second", self.second)
        if not 0 < self.epsilon < math.inf:
            raise UserError(f"epsilon of an optimizer is above 0; got {self.epsilon}")

    def begin(self, parameters: Parameters) -> State:
        """No moments."""
        first = {f"first.{name}": np.zeros_like(value) for name, value in parameters.items()}
        second = {f"second.{name}": np.zeros_like(value.real) for name, value in parameters.items()}
        return {"steps": 0, **first, **second}

    def step(
        self, parameters: Parameters, state: State, evaluate: Evaluate, scale: float = 1.0
    ) -> tuple[Parameters, State]:
        """One step."""
        _, gradients = evaluate(parameters)
        steps = int(state["steps"]) + 1
        moved: Parameters = {}
        kept: State = {"steps": steps}
        for name, value in parameters.items():
            slope, rate = _slope(gradients[name]), scale * self.rate_of(name)
            first = kept[f"first.{name}"] = _mix(self.first, state[f"first.{name}"], slope)
            second = kept[f"second.{name}"] = _mix(self.second, state[f"second.{name}"], _squared(slope))
            length = np.sqrt(second / (1 - self.second**steps)) + self.epsilon
            moved[name] = _like(value, self._shrunk(value, rate) - rate / (1 - self.first**steps) * first / length)
        return moved, kept

    def _shrunk(self, value: NDArray[Any], rate: float) -> NDArray[Any]:
        return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam whose parameters shrink by ``rate * decay`` of themselves at each step, apart from the moments.

    I. Loshchilov and F. Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, algorithm 2.

    Attributes
    ----------
    decay
        From 0.
    """

    decay: float = 1e-2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.decay < math.inf:
            raise UserError(f"decay of AdamW is a number from 0; got {self.decay}")

    def _shrunk(self, value: NDArray[Any], rate: float) -> NDArray[Any]:
        return value - rate * self.decay * value


@dataclasses.dataclass(frozen=True, kw_only=True)
class LBFGS(Optimizer):
    """Quasi-Newton steps from the last changes of parameters and gradients; best with batches of all data.

    J. Nocedal, Mathematics of Computation 35 (1980) 773 (two loops); the length of a step by bisection until it meets
    the weak Wolfe conditions: A. S. Lewis and M. L. Overton, Mathematical Programming 141 (2013) 135. Each pair of
    changes is of one batch.

    Attributes
    ----------
    rate
        The step that is tried first, in units of the quasi-Newton step. One for each parameter by name says which move:
        all that do have the same.
    iterations
        Steps in a batch: the loss and the gradients at the end of one begin the next.
    memory
        Pairs of changes that are kept.
    trials
        Evaluations that a step may take; one that finds no smaller loss by then leaves the parameters.
    """

    rate: float | Mapping[str, float] = 1.0
    iterations: int = 4
    memory: int = 10
    trials: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("iterations", "memory", "trials"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise UserError(f"{name} of L-BFGS is a whole number from 1; got {getattr(self, name)}")
        if isinstance(self.rate, Mapping) and len({rate for rate in self.rate.values() if rate}) > 1:
            raise UserError(f"all parameters that L-BFGS moves have the same rate; got {dict(self.rate)}")

    def begin(self, parameters: Parameters) -> State:
        """No pairs."""
        pairs = {
            f"{kind}.{name}": np.zeros((self.memory, *value.shape), value.dtype)
            for kind in ("moves", "changes")
            for name, value in parameters.items()
        }
        return {"pairs": 0, **pairs}

    def step(
        self, parameters: Parameters, state: State, evaluate: Evaluate, scale: float = 1.0
    ) -> tuple[Parameters, State]:
        """`iterations` steps on one batch."""
        loss, gradients = self._evaluated(evaluate, parameters)
        kept = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in state.items()}
        for _ in range(self.iterations):
            direction = self._direction(gradients, kept)
            falls = _dot(direction, gradients)
            if not falls < 0:
                break
            found = self._search(parameters, direction, evaluate, scale, (loss, falls))
            if found is None:
                kept["pairs"] = 0  # the pairs mislead: begin again with the gradient
                break
            moved, loss, new = found
            self._remember(kept, parameters, moved, gradients, new)
            parameters, gradients = moved, new
        return parameters, kept

    def _evaluated(self, evaluate: Evaluate, parameters: Parameters) -> tuple[float, Parameters]:
        loss, gradients = evaluate(parameters)
        return loss, {
            name: _slope(gradients[name]) if self.rate_of(name) else np.zeros_like(value)
            for name, value in parameters.items()
        }

    def _direction(self, gradients: Parameters, state: State) -> Parameters:
        """Minus the inverse of the Hessian, as far as the pairs tell it, times the gradients."""
        names = list(gradients)
        pairs = [
            ({name: state[f"moves.{name}"][k] for name in names}, {name: state[f"changes.{name}"][k] for name in names})
            for k in range(min(int(state["pairs"]), self.memory))
        ]
        found, weights = {name: -value for name, value in gradients.items()}, []
        for move, change in reversed(pairs):
            weight = _dot(move, found) / _dot(move, change)
            weights.append(weight)
            found = {name: found[name] - weight * change[name] for name in names}
        if pairs:
            move, change = pairs[-1]
            size = _dot(move, change) / _dot(change, change)
        else:
            size = min(1.0, 1.0 / max(math.sqrt(_dot(gradients, gradients)), 1e-30))
        found = {name: size * found[name] for name in names}
        for (move, change), weight in zip(pairs, reversed(weights)):
            back = _dot(change, found) / _dot(move, change)
            found = {name: found[name] + (weight - back) * move[name] for name in names}
        return found

    def _search(
        self,
        parameters: Parameters,
        direction: Parameters,
        evaluate: Evaluate,
        scale: float,
        start: tuple[float, float],
    ) -> tuple[Parameters, float, Parameters] | None:
        """A step that meets both conditions, else the last that lowers the loss enough, else None."""
        low, high, length = 0.0, math.inf, scale * max(self.rate_of(name) for name in parameters)
        loss, falls = start
        good = None
        for _ in range(self.trials):
            moved = {
                name: _like(value, value + length * direction[name]) if self.rate_of(name) else value
                for name, value in parameters.items()
            }
            there, slopes = self._evaluated(evaluate, moved)
            if not there <= loss + 1e-4 * length * falls:  # too far; so is a step to where the loss is not finite
                high = length
            elif _dot(direction, slopes) < 0.9 * falls:  # still going down steeply
                low, good = length, (moved, there, slopes)
            else:
                return moved, there, slopes
            length = (low + high) / 2 if math.isfinite(high) else 2 * length
        return good

    def _remember(self, state: State, before: Parameters, after: Parameters, old: Parameters, new: Parameters) -> None:
        """Put a pair of changes at the end; one that would not keep the Hessian positive is left out."""
        moves = {name: after[name] - before[name] for name in before}
        changes = {name: new[name] - old[name] for name in before}
        if not _dot(moves, changes) > 1e-10 * math.sqrt(_dot(moves, moves) * _dot(changes, changes)):
            return
        full = int(state["pairs"]) == self.memory
        state["pairs"] = min(int(state["pairs"]) + 1, self.memory)
        for kind, values in (("moves", moves), ("changes", changes)):
            for name, value in values.items():
                rows = state[f"{kind}.{name}"]
                if full:
                    rows[:-1] = rows[1:].copy()
                rows[state["pairs"] - 1] = value


OPTIMIZERS: Mapping[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW, "lbfgs": LBFGS}
"""By name, with their own rates."""


def optimizer_of(wanted: "Optimizer | str | None") -> Optimizer:
    """An optimizer from itself, its name, or None (Adam).

    Raises
    ------
    UserError
        An unknown name, or something else.
    """
    if wanted is None:
        return Adam()
    if isinstance(wanted, Optimizer):
        return wanted
    if isinstance(wanted, str) and wanted.lower().replace("-", "") in OPTIMIZERS:
        return OPTIMIZERS[wanted.lower().replace("-", "")]()
    raise UserError(
        f"the optimizer is one of dtomo.fitting ({', '.join(kind.__name__ for kind in OPTIMIZERS.values())}) or its "
        f"name; got {wanted!r}"
    )


def _slope(gradient: NDArray[Any]) -> NDArray[Any]:
    """The derivatives by the real part plus i times those by the imaginary part."""
    return 2 * gradient if np.iscomplexobj(gradient) else gradient


def _squared(values: NDArray[Any]) -> NDArray[Any]:
    return values.real**2 + values.imag**2 if np.iscomplexobj(values) else values**2


def _mix(kept: float, old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
    return _like(old, kept * old + (1 - kept) * new)


def _like(value: NDArray[Any], new: Any) -> NDArray[Any]:
    return np.asarray(new).astype(value.dtype, copy=False)


def _dot(left: Parameters, right: Parameters) -> float:
    """Σ Re(ā b) over all parameters: the inner product of real and imaginary parts taken as real numbers."""
    total = 0.0
    for name, value in left.items():
        other = right[name]
        total += float(np.sum(value.real * other.real, dtype=np.float64))
        if np.iscomplexobj(value):
            total += float(np.sum(value.imag * other.imag, dtype=np.float64))
    return total


def _part_of_one(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise UserError(f"{name} of an optimizer is from 0 to below 1; got {value}")
