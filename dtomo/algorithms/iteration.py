"""What iterative algorithms share: their result, when to stop, and element-wise work on all threads."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.operators import LinearOperator

Callback = Callable[[int, NDArray[np.float64]], bool | None]
"""Called at the start of each iteration with its number (from 0) and the residual norms; True stops."""


class Result(NamedTuple):
    """What an iterative algorithm returns.

    Attributes
    ----------
    solution
        The reconstruction, of the operator's `shape_in`.
    residuals
        Norms of the (weighted) residual ``A x - b`` at the start of each iteration, float64: ``(iterations, slices)``
        for a separable operator, else ``(iterations, 1)``. One more row where a tolerance ended the run.
    iterations
        How many were made.
    reason
        Why it stopped: "iterations", "tolerance" or "callback".
    """

    solution: NDArray[Any]
    residuals: NDArray[np.float64]
    iterations: int
    reason: str


class Residuals:
    """The history of residuals; says when every slice has met the tolerance, and which still go on."""

    def __init__(self, tolerance: float | None, callback: Callback | None) -> None:
        self.tolerance, self.callback = tolerance or 0.0, callback
        self.norms: list[NDArray[np.float64]] = []
        self.reason = "iterations"
        self.active: NDArray[np.bool_] = np.ones(1, bool)

    def stop(self, squared: NDArray[np.float64]) -> bool:
        """Record the squared residual norm (of every slice); whether to end before the coming iteration."""
        norm = np.sqrt(np.maximum(squared, 0))
        self.norms.append(norm)
        self.active = norm > self.tolerance * self.norms[0]
        if not self.active.any():
            self.reason = "tolerance"
        elif self.callback is not None and self.callback(len(self.norms) - 1, norm):
            self.reason = "callback"
        return self.reason != "iterations"

    def result(self, solution: NDArray[Any]) -> Result:
        """The end of a run."""
        made = len(self.norms) - (self.reason != "iterations")
        return Result(solution, np.array(self.norms), made, self.reason)


def starting_point(operator: LinearOperator, initial: NDArray[Any] | None) -> NDArray[Any]:
    """A volume of its own in the operator's layout: zeros, or a copy of `initial`."""
    solution = operator.zeros()
    if initial is not None:
        solution[...] = initial
    return solution


def check_problem(
    operator: LinearOperator,
    data: NDArray[Any],
    initial: NDArray[Any] | None,
    weights: NDArray[Any] | None,
    iterations: int,
    tolerance: float | None,
) -> None:
    """Refuse what does not fit together, in one sentence."""
    if tuple(np.shape(data)) != operator.shape_out:
        raise UserError(f"the data have shape {np.shape(data)}, the operator gives {operator.shape_out}")
    if np.iscomplexobj(data) and operator.dtype.kind != "c":
        raise UserError("the data are complex but the operator is real; make it with dtype=complex64")
    if initial is not None and tuple(np.shape(initial)) != operator.shape_in:
        raise UserError(f"the starting point has shape {np.shape(initial)}, the operator takes {operator.shape_in}")
    if initial is not None and np.iscomplexobj(initial) and operator.dtype.kind != "c":
        raise UserError("the starting point is complex but the operator is real; make it with dtype=complex64")
    if weights is not None:
        try:
            fits = np.broadcast_shapes(np.shape(weights), operator.shape_out) == operator.shape_out
        except ValueError:
            fits = False
        if not fits or np.iscomplexobj(weights) or not np.isfinite(weights).all() or np.min(weights) < 0:
            raise UserError(f"weights must be real, finite, not negative and broadcast to {operator.shape_out}")
    if iterations != int(iterations) or iterations < 0:
        raise UserError(f"the number of iterations is a whole number and not negative, not {iterations}")
    if tolerance is not None and not 0 <= tolerance < np.inf:
        raise UserError(f"the tolerance is a fraction of the first residual, not {tolerance}")


def arranged(
    operator: LinearOperator, data: NDArray[Any], weights: NDArray[Any] | None
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Data and weights in the operator's layout. What has weight 0 becomes 0, be it even NaN."""
    data = np.asarray(data)
    if weights is None:
        return operator.arrange(data), None
    weights = np.broadcast_to(weights, operator.shape_out)
    data = operator.arrange(np.where(weights > 0, data, 0))
    return data, operator.arrange(weights).real


def inverse(values: NDArray[Any]) -> NDArray[Any]:
    """1 / values where they are positive, else 0."""
    small = values < 1e-30
    return np.where(small, 0, 1 / np.where(small, 1, values)).astype(values.dtype)
