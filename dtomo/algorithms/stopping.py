"""When an iterative algorithm has done enough: rules that any of them takes as its option `stop`.

Beside the number of iterations and the tolerance there are two: the data are met as well as their noise allows
(`Discrepancy`), or views that were left out are not met any better (`HeldOut`). Both look at each slice of a separable
operator by itself.
"""

import abc
import dataclasses
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dtomo.algorithms.iteration import Watch, arranged, placed
from dtomo.arrays import array_module
from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.operators import LinearOperator


class Views(NamedTuple):
    """A problem, or that of some of its views: A, b, and W and r or None."""

    operator: LinearOperator
    data: NDArray[Any]
    weights: NDArray[Any] | None
    background: NDArray[Any] | None


class Stop(abc.ABC):
    """A rule that ends an iteration; a value that fits any problem."""

    @abc.abstractmethod
    def watching(self, whole: Views) -> tuple[Views, Watch]:
        """The problem that is to be solved, and what looks at its iterates."""


@dataclasses.dataclass(frozen=True)
class Discrepancy(Stop):
    """A slice stops once its residual is no larger than its noise: ``‖W^½ (A x - b)‖ ≤ factor · √(Σ w σ²)``.

    Sums are over what has a weight.

    Parameters
    ----------
    noise
        σ, the standard deviation of the data: a number, or an array that broadcasts to them. None: the weights are
        1 / σ².
    factor
        1 or a little more: what is left of correct data scatters about the noise, and models are never exact.

    Raises
    ------
    UserError
        Noise or a factor that is not positive; neither noise nor weights.

    Notes
    -----
    V. A. Morozov, Soviet Math. Dokl. 7, 414-417 (1966).
    """

    noise: Any = None
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.factor < np.inf:
            raise UserError(f"the factor of the discrepancy principle is above 0, for instance 1; got {self.factor}")
        if self.noise is not None and not (np.ndim(self.noise) > 0 or 0 < self.noise < np.inf):
            raise UserError(f"the noise of the data is a standard deviation above 0; got {self.noise}")

    def watching(self, whole: Views) -> tuple[Views, Watch]:
        """See `Stop`."""
        operator, xp = whole.operator, whole.operator.xp
        weights = None if whole.weights is None else xp.asarray(whole.weights)
        if self.noise is None:
            if weights is None:
                raise UserError("the discrepancy principle needs the noise of the data, or weights of 1 / variance")
            spread = xp.broadcast_to((weights > 0).astype(np.float32), operator.shape_out)
        else:
            spread = xp.asarray(self.noise, dtype=np.float32)
            try:
                spread = xp.broadcast_to(spread, operator.shape_out)
            except ValueError:
                raise UserError(f"the noise must broadcast to {operator.shape_out}, not be {spread.shape}") from None
            spread = spread if weights is None else spread * np.sqrt(weights).astype(np.float32)
        spread = operator.arrange(spread)
        return whole, _Level(self.factor**2 * operator.dot_out(spread, spread))


class _Level(Watch):
    reason = "noise"

    def __init__(self, level: NDArray[np.float64]) -> None:
        self.level = level

    def look(self, solution: NDArray[Any], squared: NDArray[np.float64]) -> NDArray[np.bool_]:
        return squared <= self.level


@dataclasses.dataclass(frozen=True)
class HeldOut(Stop):
    """Some views are left out; a slice stops once their residual has not fallen for a while, and its best is returned.

    Parameters
    ----------
    share
        Of the views that is left out; evenly spread over them, the same ones in every run.
    patience
        So many iterations without a new best end it.

    Raises
    ------
    UserError
        A share that is not between 0 and 1/2, or no patience.

    Notes
    -----
    The rule is cross-validation with one fixed part; M. Stone, J. R. Stat. Soc. B 36, 111-147 (1974).
    """

    share: float = 0.1
    patience: int = 3

    def __post_init__(self) -> None:
        if not 0 < self.share <= 0.5:
            raise UserError(f"the share of views held out is above 0 and at most 0.5; got {self.share}")
        if self.patience < 1 or self.patience != int(self.patience):
            raise UserError(f"the patience is a whole number of iterations from 1; got {self.patience}")

    def watching(self, whole: Views) -> tuple[Views, Watch]:
        """See `Stop`."""
        views = whole.operator.shape_out[0]
        if views < 2:
            raise UserError(f"views can be held out where there are several, not from {views}")
        count = min(max(1, round(self.share * views)), views - 1)
        out = ((np.arange(count) + 0.5) * views / count).astype(np.int64)
        kept = np.setdiff1d(np.arange(views), out)
        return part_of(whole, kept), _Best(part_of(whole, out), int(self.patience))


class _Best(Watch):
    """Its parts: the best solution, its norms, iterations since then, and the norms so far."""

    reason = "held out"

    def __init__(self, out: Views, patience: int) -> None:
        operator = out.operator
        self.operator, self.patience = operator, patience
        data = out.data if out.background is None else out.data - out.background
        self.data, self.weights = arranged(operator, data, out.weights)
        self.best = operator.zeros()
        self.lowest: NDArray[np.float64] | None = None
        self.since: NDArray[np.int64] | None = None
        self.norms: list[NDArray[np.float64]] = []

    def look(self, solution: NDArray[Any], squared: NDArray[np.float64]) -> NDArray[np.bool_]:
        residual = self.operator.forward(solution)
        in_pieces(lambda r, b: np.subtract(r, b, out=r), residual, self.data)
        weighted = residual if self.weights is None else residual * self.weights
        norm = np.sqrt(np.maximum(self.operator.dot_out(residual, weighted), 0))
        self.norms.append(norm)
        if self.lowest is None or self.since is None:
            better = np.ones(norm.shape, bool)
            self.lowest, self.since = norm, np.zeros(norm.shape, np.int64)
        else:
            better = norm < self.lowest
            self.since = np.where(better, 0, self.since + 1)
            self.lowest = np.minimum(norm, self.lowest)
        if better.all():
            self.best[...] = solution
        elif better.any():
            in_pieces(_take, self.best, solution, self.operator.factor_in(better) > 0)
        return self.since >= self.patience

    def parts(self) -> dict[str, Any]:
        return {
            "held_out_best": self.best,
            "held_out_lowest": self.lowest,
            "held_out_since": self.since,
            "held_out_norms": np.array(self.norms),
        }

    def go_on_from(self, parts: dict[str, Any]) -> dict[str, Any]:
        rest = dict(parts)
        try:
            best, self.lowest, self.since, norms = (
                rest.pop(f"held_out_{name}") for name in ("best", "lowest", "since", "norms")
            )
        except KeyError:
            raise UserError(
                "the checkpoint is of a run that held out no views; remove it to begin anew, or run as before"
            ) from None
        self.best, self.norms = placed(self.operator, best), list(norms)
        return rest

    def chosen(self, last: NDArray[Any], looked: bool) -> tuple[NDArray[Any], NDArray[np.float64] | None]:
        if not looked:
            self.look(last, np.zeros(1))
        return self.best, np.array(self.norms)


def _take(best: NDArray[Any], solution: NDArray[Any], better: NDArray[np.bool_]) -> None:
    np.copyto(best, solution, where=better)


def part_of(whole: Views, numbers: NDArray[np.int64]) -> Views:
    """The problem of some of the views."""
    operator, *arrays = whole
    shape = operator.shape_out
    return Views(operator.of_views(numbers), *(_views(array, numbers, shape) for array in arrays))  # type: ignore[arg-type]


def _views(array: NDArray[Any] | None, numbers: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[Any] | None:
    """Some views of an array that broadcasts to projections of that shape."""
    if array is None or array.ndim < len(shape) or array.shape[0] == 1:
        return array
    return array[array_module(array).asarray(numbers)]
