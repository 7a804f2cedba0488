"""An operator of this package and a loss, as a model: its solution is fitted to data, block by block."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError, shown
from dtomo.operators import LinearOperator, ParallelProjector

Loss: TypeAlias = Callable[[NDArray[Any], NDArray[Any]], tuple[float, NDArray[Any]]]
"""From what is predicted and measured to the sum of the losses and its derivative by the (conjugate of the)
prediction."""

Operator: TypeAlias = LinearOperator | Callable[..., LinearOperator]


def squares(predicted: NDArray[Any], measured: NDArray[Any]) -> tuple[float, NDArray[Any]]:
    """Σ |A x − y|², and its derivative: by the conjugate for complex data, 2 (A x − y) for real data."""
    residual = predicted - measured
    total = float(np.sum(residual.real**2, dtype=np.float64))
    if np.iscomplexobj(residual):
        return total + float(np.sum(residual.imag**2, dtype=np.float64)), residual
    return total, 2 * residual


def huber(predicted: NDArray[Any], measured: NDArray[Any], width: float = 1.0) -> tuple[float, NDArray[Any]]:
    """Σ h(|A x − y|), quadratic (r²) up to `width` and linear beyond: single bad values pull less.

    P. J. Huber, Annals of Mathematical Statistics 35 (1964) 73.
    """
    residual = predicted - measured
    size = np.abs(residual)
    small = size <= width
    total = float(np.sum(np.where(small, size**2, 2 * width * size - width**2), dtype=np.float64))
    slope = np.where(small, residual, width * residual / np.maximum(size, 1e-30)).astype(residual.dtype)
    return total, slope if np.iscomplexobj(residual) else 2 * slope


LOSSES: dict[str, Loss] = {"squares": squares, "huber": huber}


class OperatorModel:
    """Fits x so that A x agrees with data.

    Parameters
    ----------
    operator
        A `dtomo.operators.ParallelProjector`, with data ``(projections, angles)`` (such as a `Scan` of line integrals):
        a block uses the rays of its own angles. Another operator, with data whose every sample has its ``shape_out``.
        Or a function that is called with what stands beside the measured values in a block, and returns the operator
        for these.
    loss
        "squares", "huber", or a function ``loss(predicted, measured) -> (sum, derivative)``.
    start
        First guess of x; default: zeros. It is needed where `operator` is a function.
    name
        Of the parameter.

    Attributes
    ----------
    parameters
        x by its name: the solution, after a fit.

    Raises
    ------
    UserError
        An unknown loss, or a start that does not fit the operator.
    """

    def __init__(
        self,
        operator: Operator,
        loss: str | Loss = "squares",
        *,
        start: ArrayLike | None = None,
        name: str = "x",
    ) -> None:
        if isinstance(loss, str) and loss not in LOSSES:
            raise UserError(f"the loss of an operator is {', '.join(LOSSES)}, or a function; got {shown(loss)!r}")
        fixed = operator if isinstance(operator, LinearOperator) else None
        if fixed is None and (start is None or not callable(operator)):
            raise UserError(
                "OperatorModel takes an operator of dtomo.operators, or a function that returns one and start=, the "
                f"first guess; got {shown(repr(operator))}"
            )
        self.operator, self.name = operator, name
        self.loss_of: Loss = LOSSES[loss] if isinstance(loss, str) else loss
        first = np.zeros(fixed.shape_in, fixed.dtype) if start is None and fixed is not None else np.array(start)
        if fixed is not None and first.shape != fixed.shape_in:
            raise UserError(f"start has shape {first.shape} but the operator takes {fixed.shape_in}")
        self.parameters: dict[str, NDArray[Any]] = {name: first if fixed is None else first.astype(fixed.dtype)}

    def loss_and_gradient(
        self, parameters: dict[str, NDArray[Any]], batch: Any
    ) -> tuple[float, float, dict[str, NDArray[Any]]]:
        """Loss over the values that were measured, their number, and the gradient by x."""
        measured, *beside = batch if isinstance(batch, tuple) else (batch,)
        x = parameters[self.name]
        if isinstance(self.operator, LinearOperator) and not isinstance(self.operator, ParallelProjector):
            total, slope = self._repeated(self.operator, x, measured)
        else:
            operator = self._operator_of(*beside)
            if measured.shape != operator.shape_out:
                raise UserError(f"a block of data is {measured.shape} but its operator gives {operator.shape_out}")
            total, derivative = self.loss_of(operator.forward(x), measured.astype(operator.dtype, copy=False))
            slope = operator.adjoint(np.asarray(derivative, operator.dtype))
        return total, float(measured.size), {self.name: np.ascontiguousarray(slope)}

    def _repeated(
        self, operator: LinearOperator, x: NDArray[Any], measured: NDArray[Any]
    ) -> tuple[float, NDArray[Any]]:
        """Samples that were all measured with the same operator: it is applied once."""
        if measured.shape[1:] != operator.shape_out:
            raise UserError(
                f"the samples of the data have shape {measured.shape[1:]} but the operator gives {operator.shape_out}"
            )
        predicted, total = operator.forward(x), 0.0
        derivative = np.zeros(operator.shape_out, operator.dtype)
        for sample in measured:
            value, slope = self.loss_of(predicted, sample.astype(operator.dtype, copy=False))
            total, derivative = total + float(value), derivative + slope
        return total, operator.adjoint(derivative.astype(operator.dtype, copy=False))

    def _operator_of(self, *beside: NDArray[Any]) -> LinearOperator:
        if not isinstance(self.operator, ParallelProjector):
            return self.operator(*beside)  # type: ignore[operator]
        if len(beside) != 1:
            raise UserError(
                "data of a projector are projections and their angles in degrees: fit(model, (projections, angles))"
            )
        whole = self.operator
        return ParallelProjector(whole.geometry.replace(angles=beside[0]), whole.shape_in[0], whole.dtype)
