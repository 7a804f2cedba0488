"""Simultaneous iterative reconstruction technique."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.algorithms.iteration import (
    Callback,
    Checkpointer,
    IterativeMethod,
    Result,
    arranged,
    check_bounds,
    inverse,
    inverse_rows,
    starting_point,
)
from dtomo.algorithms.proximal import Bounds
from dtomo.algorithms.solving import solve
from dtomo.algorithms.stopping import Stop, Views
from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.operators import LinearOperator
from dtomo.operators.updates import add_scaled


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
    mask: NDArray[Any] | None = None,
    tolerance: float | None = None,
    stop: Stop | None = None,
    callback: Callback | None = None,
    checkpoints: Checkpointer | None = None,
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
    mask
        True where there may be something, broadcasting to the volume; default: everywhere.
    tolerance
        A slice (of a separable operator) stops once its residual norm is this fraction of the first one.
    stop
        What else ends the run: `dtomo.algorithms.Discrepancy` or `HeldOut`.
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
    J. Gregor and T. Benson, IEEE Trans. Med. Imaging 27, 918-924 (2008).
    """
    if not 0 < relaxation < 2:
        raise UserError(f"the relaxation of SIRT lies between 0 and 2, not at {relaxation}")
    check_bounds(operator, lower, upper)
    return solve(
        lambda views, start: _Sirt(views, start, relaxation, (lower, upper)), operator, data, iterations=iterations,
        initial=initial, weights=weights, mask=mask, tolerance=tolerance, stop=stop, callback=callback,
        checkpoints=checkpoints,
    )  # fmt: skip


class _Sirt(IterativeMethod):
    """The iteration; its state is the solution alone."""

    def __init__(
        self,
        views: Views,
        initial: NDArray[Any] | None,
        relaxation: float,
        bounds: tuple[float | None, float | None],
    ) -> None:
        operator = self.operator = views.operator
        self.initial, self.bounds = initial, Bounds(*bounds)
        rows = inverse_rows(operator)
        self.data, self.weights = arranged(*views[:3])
        self.columns = (relaxation * inverse(operator.column_sums(self.weights))).astype(np.float32)
        self.rows = rows if self.weights is None else self.weights * rows
        self.residual: NDArray[Any] | None = None
        self.untouched = False

    def begin(self) -> None:
        self.solution = starting_point(self.operator, self.initial)
        self.bounds.apply(self.solution, 0.0)
        self.untouched = self.initial is None and not self.solution.any()

    def misfit(self) -> NDArray[np.float64]:
        if self.untouched:  # its projections are zero
            residual = self.data.copy(order="K")
        else:
            residual = self.operator.forward(self.solution)
            in_pieces(_subtract, residual, self.data)
        self.residual, self.untouched = residual, False
        return self.operator.dot_out(residual, residual if self.weights is None else residual * self.weights)

    def advance(self, active: NDArray[np.bool_]) -> None:
        residual, self.residual = self.residual, None
        assert residual is not None
        in_pieces(_scale, residual, self.rows)
        columns = self.columns if active.all() else self.columns * self.operator.factor_in(active)
        self.operator.adjoint_into(residual, self._add, self.solution, columns)

    def _add(self, update: NDArray[Any], solution: NDArray[Any], factor: NDArray[Any]) -> None:
        add_scaled(update, solution, factor, self.bounds.lower, self.bounds.upper)


def _subtract(residual: NDArray[Any], data: NDArray[Any]) -> None:
    np.subtract(data, residual, out=residual)


def _scale(residual: NDArray[Any], factor: NDArray[Any]) -> None:
    residual *= factor
