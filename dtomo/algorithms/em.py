"""Maximum likelihood of counts by expectation maximisation."""

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
    inverse,
    iterate,
    starting_point,
)
from dtomo.errors import UserError
from dtomo.operators import LinearOperator


def mlem(
    operator: LinearOperator,
    data: NDArray[Any],
    *,
    iterations: int = 50,
    initial: NDArray[Any] | None = None,
    weights: NDArray[Any] | None = None,
    background: NDArray[Any] | float = 0.0,
    tolerance: float | None = None,
    callback: Callback | None = None,
    checkpoints: Checkpointer | None = None,
) -> Result:
    """``x *= Aᵀ W (b / (A x + r)) / Aᵀ W``: for emission, where b are counts with the mean A x + r (Poisson).

    Sums of projections are kept in every iteration where r is 0; the solution is never negative.

    Parameters
    ----------
    operator
        A, real, with entries that are not negative.
    data
        b, not negative, of the operator's `shape_out`.
    iterations
        At most so many.
    initial
        Starting point, positive where anything may come out; default: 1 everywhere.
    weights
        W, not negative, broadcasting to the data: 0 on bad pixels, else what a pixel counts.
    background
        r, not negative, broadcasting to the data: expected counts that are not of the object.
    tolerance, callback, checkpoints
        As for `dtomo.algorithms.sirt`; residuals are ``A x + r - b``.

    Returns
    -------
    Result

    Raises
    ------
    UserError
        A complex operator, negative data, or what does not fit together.

    Notes
    -----
    L. A. Shepp and Y. Vardi, IEEE Trans. Med. Imaging 1, 113-122 (1982).
    """
    check_problem(operator, data, initial, weights, iterations, tolerance)
    if operator.dtype.kind == "c":
        raise UserError("expectation maximisation is of counts, which are real; this operator is complex")
    seen = data if weights is None else np.where(operator.xp.asarray(weights) > 0, data, 0)
    for name, value in (("data", seen), ("starting point", initial), ("background", background)):
        if value is not None and not (np.isfinite(value).all() and np.min(value) >= 0):
            raise UserError(f"expectation maximisation takes a {name} that is finite and not negative")
    try:
        spread = np.broadcast_to(background, operator.shape_out)
    except ValueError:
        raise UserError(
            f"the background must broadcast to {operator.shape_out}, not be {np.shape(background)}"
        ) from None
    return iterate(_Mlem(operator, data, initial, weights, spread), iterations, tolerance, callback, checkpoints)


class _Mlem(IterativeMethod):
    """Its state is the solution alone."""

    def __init__(
        self,
        operator: LinearOperator,
        data: NDArray[Any],
        initial: NDArray[Any] | None,
        weights: NDArray[Any] | None,
        background: NDArray[Any],
    ) -> None:
        self.operator, self.initial = operator, initial
        self.data, self.weights = arranged(operator, data, weights)
        self.background = operator.arrange(operator.xp.asarray(background)) if np.any(background) else None
        self.sensitivity = inverse(operator.column_sums(self.weights)).astype(np.float32)
        self.expected: NDArray[Any] | None = None

    def begin(self) -> None:
        self.solution = starting_point(self.operator, self.initial)
        if self.initial is None:
            self.solution[...] = 1

    def misfit(self) -> NDArray[np.float64]:
        self.expected = self.operator.forward(self.solution)
        if self.background is not None:
            self.expected += self.background
        residual = self.expected - self.data
        return self.operator.dot_out(residual, residual if self.weights is None else residual * self.weights)

    def advance(self, active: NDArray[np.bool_]) -> None:
        expected, self.expected = self.expected, None
        assert expected is not None
        ratio = self.data * inverse(expected)
        if self.weights is not None:
            ratio *= self.weights
        factor = self.operator.adjoint(ratio.astype(np.float32, copy=False)) * self.sensitivity
        if not active.all():
            factor = np.where(self.operator.factor_in(active) > 0, factor, np.float32(1))
        self.solution *= factor
