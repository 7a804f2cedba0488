"""Conjugate gradients on the normal equations."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.algorithms.iteration import Callback, Residuals, Result, arranged, check_problem, starting_point
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
    data, full = arranged(operator, data, weights)
    solution = starting_point(operator, initial)
    residual = data.copy(order="K")
    if initial is not None:
        _add(residual, operator.forward(solution), np.float32(-1))
    gone = operator.zeros() if damping else None  # x - x0
    history = Residuals(tolerance, callback)
    direction = gradient = _gradient(operator, residual, full, gone, damping)
    steepness = operator.dot_in(gradient, gradient)
    slope = steepness
    for _ in range(int(iterations)):
        if history.stop(operator.dot_out(residual, residual if full is None else residual * full)):
            break
        image = operator.forward(direction)
        curvature = operator.dot_out(image, image if full is None else image * full)
        if damping:
            curvature = curvature + damping**2 * operator.dot_in(direction, direction)
        step = np.where(history.active, _ratio(slope, curvature), 0.0)
        _add(solution, direction, operator.factor_in(step))
        _add(residual, image, operator.factor_out(-step))
        if gone is not None:
            _add(gone, direction, operator.factor_in(step))
        gradient = _gradient(operator, residual, full, gone, damping)
        before, steepness = steepness, operator.dot_in(gradient, gradient)
        ratio = _ratio(steepness, before)
        # along the direction, not only along the gradient: the same but for rounding, which must not build up
        slope = steepness + ratio * operator.dot_in(direction, gradient)
        _add(gradient, direction, operator.factor_in(ratio))
        direction = gradient
    return history.result(solution)


def _gradient(
    operator: LinearOperator,
    residual: NDArray[Any],
    weights: NDArray[Any] | None,
    gone: NDArray[Any] | None,
    damping: float,
) -> NDArray[Any]:
    gradient = operator.adjoint(residual if weights is None else residual * weights)
    if gone is not None:
        _add(gradient, gone, np.float32(-(damping**2)))
    return gradient


def _add(target: NDArray[Any], source: NDArray[Any], factor: Any) -> None:
    """target += factor * source."""

    def work(target: NDArray[Any], source: NDArray[Any], factor: NDArray[Any]) -> None:
        target += source * factor

    in_pieces(work, target, source, np.asarray(factor))


def _ratio(one: NDArray[np.float64], two: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(one, two, out=np.zeros_like(one), where=two > 0)
