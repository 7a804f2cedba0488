"""Conjugate gradients on the normal equations."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.algorithms.iteration import (
    Callback,
    Checkpointer,
    IterativeMethod,
    Result,
    arranged,
    check_problem,
    iterate,
    starting_point,
)
from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.operators import LinearOperator


def cgls(
    operator: LinearOperator,
    data: NDArray[Any],
    *,
    iterations: int = 20,
    initial: NDArray[Any] | None = None,
    weights: NDArray[Any] | None = None,
    damping: float = 0.0,
    tolerance: float | None = None,
    callback: Callback | None = None,
    checkpoints: Checkpointer | None = None,
) -> Result:
    """Minimise ``(A x - b)ᴴ W (A x - b) + damping² ||x - x0||²`` by conjugate gradients.

    Each slice of a separable operator is a problem of its own, with its own step lengths.

    Parameters
    ----------
    operator, data
        A and b.
    iterations
        At most so many. Early iterations recover the coarse structure; many fit the noise.
    initial
        Starting point x0; default 0.
    weights
        W, not negative, broadcasting to the data (for instance photon counts, 0 on bad pixels).
    damping
        Tikhonov regularisation towards the starting point.
    tolerance
        A slice stops once its residual norm is this fraction of the first one.
    callback
        Called at the start of each iteration with its number and the residual norms; True stops.
    checkpoints
        Where to go on from with the same bits, and where to keep the state meanwhile (`dtomo.io.Checkpoints`).

    Returns
    -------
    Result

    Raises
    ------
    UserError
        Shapes, dtypes or settings that do not fit together.

    Notes
    -----
    A. Bjorck, Numerical Methods for Least Squares Problems (1996), section 7.4. There are no bounds: clipping an
    iterate destroys the conjugacy of the directions; use `sirt`.
    """
    check_problem(operator, data, initial, weights, iterations, tolerance)
    if not 0 <= damping < np.inf:
        raise UserError(f"the damping of CGLS is finite and not negative, not {damping}")
    return iterate(_Cgls(operator, data, initial, weights, damping), iterations, tolerance, callback, checkpoints)


class _Cgls(IterativeMethod):
    """The iteration: b - A x and the direction go with the solution, both with rounding that must be kept."""

    def __init__(
        self,
        operator: LinearOperator,
        data: NDArray[Any],
        initial: NDArray[Any] | None,
        weights: NDArray[Any] | None,
        damping: float,
    ) -> None:
        self.operator, self.damping, self.initial = operator, damping, initial
        self.data, self.weights = arranged(operator, data, weights)
        self.gone: NDArray[Any] | None = None  # x - x0
        self.on_host = ("steepness", "slope")
        self.state = ("solution", "residual", "direction", *self.on_host, *(["gone"] if damping else []))

    def begin(self) -> None:
        operator = self.operator
        self.solution = starting_point(operator, self.initial)
        self.residual = self.data.copy(order="K")
        if self.initial is not None:
            _add(self.residual, operator.forward(self.solution), np.float32(-1))
        self.gone = operator.zeros() if self.damping else None
        self.direction = self._gradient()
        self.steepness = operator.dot_in(self.direction, self.direction)
        self.slope = self.steepness

    def misfit(self) -> NDArray[np.float64]:
        return self._squared(self.residual)

    def advance(self, active: NDArray[np.bool_]) -> None:
        operator, direction = self.operator, self.direction
        image = operator.forward(direction)
        curvature = self._squared(image)
        if self.damping:
            curvature = curvature + self.damping**2 * operator.dot_in(direction, direction)
        step = np.where(active, _ratio(self.slope, curvature), 0.0)
        _add(self.solution, direction, operator.factor_in(step))
        _add(self.residual, image, operator.factor_out(-step))
        del image
        if self.gone is not None:
            _add(self.gone, direction, operator.factor_in(step))
        gradient = self._gradient()
        before, self.steepness = self.steepness, operator.dot_in(gradient, gradient)
        ratio = _ratio(self.steepness, before)
        # along the direction, not only along the gradient: the same but for rounding, which must not build up
        self.slope = self.steepness + ratio * operator.dot_in(direction, gradient)
        _add(gradient, direction, operator.factor_in(ratio))
        self.direction = gradient

    def _squared(self, projections: NDArray[Any]) -> NDArray[np.float64]:
        weighted = projections if self.weights is None else projections * self.weights
        return self.operator.dot_out(projections, weighted)

    def _gradient(self) -> NDArray[Any]:
        weighted = self.residual if self.weights is None else self.residual * self.weights
        gradient = self.operator.adjoint(weighted)
        if self.gone is not None:
            _add(gradient, self.gone, np.float32(-(self.damping**2)))
        return gradient


def _add(target: NDArray[Any], source: NDArray[Any], factor: Any) -> None:
    """target += factor * source."""

    def work(target: NDArray[Any], source: NDArray[Any], factor: NDArray[Any]) -> None:
        target += source * factor

    in_pieces(work, target, source, factor)


def _ratio(one: NDArray[np.float64], two: NDArray[np.float64]) -> NDArray[np.float64]:
    positive = two > 0
    return np.where(positive, one / np.where(positive, two, 1), 0.0)
