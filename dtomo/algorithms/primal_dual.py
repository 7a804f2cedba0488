"""Total variation, bounds and weighted least squares together, by the primal-dual hybrid gradient method."""

from typing import Any, Literal

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
    starting_point,
)
from dtomo.algorithms.solving import solve, zero_outside
from dtomo.algorithms.stopping import Stop, Views
from dtomo.errors import UserError
from dtomo.operators import LinearOperator
from dtomo.operators.differences import Differences

Kind = Literal["isotropic", "anisotropic"]


def tv(
    operator: LinearOperator,
    data: NDArray[Any],
    *,
    strength: float,
    spacing: tuple[float, ...] = (1.0, 1.0, 1.0),
    kind: Kind = "isotropic",
    iterations: int = 200,
    initial: NDArray[Any] | None = None,
    weights: NDArray[Any] | None = None,
    lower: float | None = None,
    upper: float | None = None,
    mask: NDArray[Any] | None = None,
    tolerance: float | None = None,
    stop: Stop | None = None,
    callback: Callback | None = None,
    checkpoints: Checkpointer | None = None,
) -> Result:
    """The volume with the least ``½ ‖W^½ (A x - b)‖² + strength · Σ |D x|``, within bounds.

    One application of A and one of its adjoint to each iteration.

    Parameters
    ----------
    operator
        A, with entries that are not negative; from volumes ``(z, y, x)``.
    data
        b, of the operator's `shape_out`.
    strength
        Of the total variation, not negative; in units of ``A x`` times its unit of length.
    spacing
        Size of a voxel along z, y, x, in any unit; along y and x only: each slice by itself.
    kind
        "isotropic": |D x| is the length of the vector of differences at a voxel; "anisotropic": the sum of their
        magnitudes.
    iterations
        At most so many.
    initial
        Starting point; default 0. A filtered back projection saves iterations.
    weights
        W, not negative, broadcasting to the data (1 / variance; 0 on bad pixels).
    lower, upper
        Bounds of the solution (real ones only).
    tolerance
        The run stops once the residual norms of all slices are this fraction of the first ones.
    mask, stop, callback, checkpoints
        As for `dtomo.algorithms.sirt`.

    Returns
    -------
    Result

    Raises
    ------
    UserError
        Shapes, dtypes or settings that do not fit together.

    Notes
    -----
    A. Chambolle and T. Pock, J. Math. Imaging Vis. 40, 120-145 (2011), algorithm 1, with the step sizes of T. Pock and
    A. Chambolle, ICCV 2011, 1762-1769, lemma 2 (α = 1): inverse sums of rows and columns of A and D.
    """
    if not 0 <= strength < np.inf:
        raise UserError(f"the strength of the total variation is a number from 0; got {strength}")
    if kind not in ("isotropic", "anisotropic"):
        raise UserError(f"the total variation is isotropic or anisotropic, not {kind!r}")
    if len(operator.shape_in) != 3:
        raise UserError(f"total variation is of volumes (z, y, x); the operator takes {operator.shape_in}")
    check_bounds(operator, lower, upper)
    return solve(
        lambda views, start: _PrimalDual(views, start, strength, spacing, kind, (lower, upper)), operator, data,
        iterations=iterations, initial=initial, weights=weights, mask=mask, tolerance=tolerance, stop=stop,
        callback=callback, checkpoints=checkpoints,
    )  # fmt: skip


class _PrimalDual(IterativeMethod):
    """Its state: the iterate, the one before and its projections, and both dual variables."""

    state = ("solution", "previous", "projected", "dual", "field")

    def __init__(
        self,
        views: Views,
        initial: NDArray[Any] | None,
        strength: float,
        spacing: tuple[float, ...],
        kind: Kind,
        bounds: tuple[float | None, float | None],
    ) -> None:
        operator = self.operator = views.operator
        self.initial, self.strength, self.kind, self.bounds = initial, strength, kind, bounds
        self.differences = Differences(operator.shape_in, spacing, operator.dtype, operator.device)  # type: ignore[arg-type]
        self.data, self.weights = arranged(*views[:3])
        steep = 2 * sum(1 / step for step in self.differences.spacing)
        self.step = (1 / (operator.column_sums() + np.float32(steep))).astype(np.float32)
        self.dual_step = inverse(operator.row_sums()).astype(np.float32)
        self.field_step = np.float32(min(self.differences.spacing) / 2)
        self.present: NDArray[Any] | None = None

    def begin(self) -> None:
        self.solution = starting_point(self.operator, self.initial)
        self._clip(self.solution)
        self.previous = self.solution.copy(order="K")
        self.projected = self.operator.forward(self.solution)
        self.dual = self.operator.arrange(self.operator.xp.zeros(self.operator.shape_out, self.operator.dtype))
        self.field = self.differences.forward(self.solution) * np.float32(0)

    def misfit(self) -> NDArray[np.float64]:
        self.present = self.operator.forward(self.solution)
        residual = self.present - self.data
        weighted = residual if self.weights is None else residual * self.weights
        return self.operator.dot_out(residual, weighted)

    def advance(self, active: NDArray[np.bool_]) -> None:
        present, self.present = self.present, None
        assert present is not None
        ahead = 2 * present - self.projected
        weights = np.float32(1) if self.weights is None else self.weights
        # the proximal map of the conjugate of ½ w (t - b)²: (y + σ (t - b)) w / (w + σ), 0 where w is
        self.dual += self.dual_step * (ahead - self.data)
        self.dual *= weights / (weights + self.dual_step + np.float32(1e-30))
        self.field += self.field_step * self.differences.forward(2 * self.solution - self.previous)
        self._shorten(self.field)
        self.previous, self.projected = self.solution, present
        update = self.operator.adjoint(self.dual) + self.differences.adjoint(self.field)
        self.solution = self.solution - self.step * update
        self._clip(self.solution)

    def _shorten(self, field: NDArray[Any]) -> None:
        """Vectors (or components) longer than the strength, to that length."""
        squares = (field.real**2 + field.imag**2) if np.iscomplexobj(field) else field * field
        length = np.sqrt(squares.sum(0, keepdims=True) if self.kind == "isotropic" else squares)
        field *= np.minimum(np.float32(1), np.float32(self.strength) / np.maximum(length, np.float32(1e-30)))

    def _clip(self, solution: NDArray[Any]) -> None:
        if self.bounds != (None, None):
            np.clip(solution, *self.bounds, out=solution)
        zero_outside(self.operator, solution)
