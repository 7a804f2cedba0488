"""Simultaneous iterative reconstruction technique."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.algorithms.iteration import Callback, Residuals, Result, arranged, check_problem, inverse, starting_point
from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.operators import LinearOperator


def sirt(
    operator: LinearOperator,
    data: NDArray[Any],
    *,
    iterations: int = 100,
    initial: NDArray[Any] | None = None,
    weights: NDArray[Any] | None = None,
    relaxation: float = 1.0,
    lower: float | None = None,
    upper: float | None = None,
    tolerance: float | None = None,
    callback: Callback | None = None,
) -> Result:
    """``x += relaxation C Aᴴ W R (b - A x)``, R and C the inverse row and (weighted) column sums of A.

    Parameters
    ----------
    operator
        A, with entries that are not negative.
    data
        b, of the operator's `shape_out`.
    iterations
        At most so many.
    initial
        Starting point; default 0.
    weights
        W, not negative, broadcasting to the data (for instance 0 on bad pixels).
    relaxation
        Between 0 and 2.
    lower, upper
        Bounds that every iterate is clipped to (real solutions only).
    tolerance
        A slice (of a separable operator) stops once its residual norm is this fraction of the first one.
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
    J. Gregor and T. Benson, IEEE Trans. Med. Imaging 27, 918-924 (2008).
    """
    check_problem(operator, data, initial, weights, iterations, tolerance)
    if not 0 < relaxation < 2:
        raise UserError(f"the relaxation of SIRT lies between 0 and 2, not at {relaxation}")
    bounded = lower is not None or upper is not None
    if bounded and operator.dtype.kind == "c":
        raise UserError("bounds need a real solution; this operator is complex")
    least, most = (-np.inf if lower is None else lower), (np.inf if upper is None else upper)
    if not least <= most:
        raise UserError(f"the bounds {lower} and {upper} leave nothing between them")
    rows = inverse(operator.row_sums()).astype(np.float32)
    data, full = arranged(operator, data, weights)
    columns = (relaxation * inverse(operator.column_sums(full))).astype(np.float32)
    if full is not None:
        rows = full * rows
    solution = starting_point(operator, initial)
    if bounded:
        np.clip(solution, lower, upper, out=solution)
    history = Residuals(tolerance, callback)

    def subtract(residual: NDArray[Any], data: NDArray[Any]) -> None:
        np.subtract(data, residual, out=residual)

    def scale(residual: NDArray[Any], factor: NDArray[Any]) -> None:
        residual *= factor

    def add(solution: NDArray[Any], update: NDArray[Any], factor: NDArray[Any]) -> None:
        update *= factor
        solution += update
        if bounded:
            np.clip(solution, lower, upper, out=solution)

    for iteration in range(int(iterations)):
        if iteration == 0 and initial is None and not solution.any():
            residual = data.copy(order="K")
        else:
            residual = operator.forward(solution)
            in_pieces(subtract, residual, data)
        if history.stop(operator.dot_out(residual, residual if full is None else residual * full)):
            break
        in_pieces(scale, residual, rows)
        update = operator.adjoint(residual)
        going = history.active
        in_pieces(add, solution, update, columns if going.all() else columns * operator.factor_in(going))
    return history.result(solution)
