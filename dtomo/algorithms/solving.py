"""From the arguments that all iterative algorithms share to a method that `iterate` drives."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.algorithms.iteration import (
    Callback,
    Checkpointer,
    IterativeMethod,
    Result,
    Watch,
    check_problem,
    iterate,
)
from dtomo.algorithms.stopping import Stop, Views
from dtomo.errors import UserError
from dtomo.operators import LinearOperator, Masked

Make = Callable[[Views, NDArray[Any] | None], IterativeMethod]
"""A method, from the problem that is to be solved and its starting point."""


def solve(
    make: Make,
    operator: LinearOperator,
    data: NDArray[Any],
    *,
    iterations: int,
    initial: NDArray[Any] | None = None,
    weights: NDArray[Any] | None = None,
    background: NDArray[Any] | None = None,
    mask: NDArray[Any] | None = None,
    tolerance: float | None = None,
    stop: Stop | None = None,
    callback: Callback | None = None,
    checkpoints: Checkpointer | None = None,
) -> Result:
    """Check what the algorithms have in common, put the mask before the operator, and drive the method to its end.

    Parameters
    ----------
    make
        Makes the method.
    operator, data, initial, weights, background
        The problem.
    mask
        True where there may be something, broadcasting to the volume; None: everywhere. Elsewhere the solution is 0.
    iterations, tolerance, callback, checkpoints
        See `iterate`.
    stop
        What else ends it: `Discrepancy` or `HeldOut`.

    Raises
    ------
    UserError
        What does not fit together.
    """
    check_problem(operator, data, initial, weights, iterations, tolerance)
    if stop is not None and not isinstance(stop, Stop):
        raise UserError(f"`stop` is a dtomo.algorithms.Discrepancy or HeldOut, not {type(stop).__name__}")
    if mask is not None:
        operator = masked = Masked(operator, mask)
        initial = None if initial is None else initial * masked.mask
    xp = operator.xp
    whole = Views(operator, xp.asarray(data), None if weights is None else xp.asarray(weights), background)
    watch: Watch | None = None
    if stop is not None:
        whole, watch = stop.watching(whole)
    return iterate(make(whole, initial), iterations, tolerance, callback, checkpoints, watch)


def zero_outside(operator: LinearOperator, volume: NDArray[Any]) -> None:
    """Put 0 into a volume where the mask of an operator has nothing."""
    if isinstance(operator, Masked):
        np.multiply(volume, operator.mask, out=volume)
