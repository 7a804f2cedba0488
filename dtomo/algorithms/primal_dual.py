"""Total variation, bounds and weighted least squares together, by the primal-dual hybrid gradient method."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dtomo.algorithms.data_terms import DataTerm, Huber, LeastSquares
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
from dtomo.algorithms.proximal import Bounds
from dtomo.algorithms.solving import solve, zero_outside
from dtomo.algorithms.stopping import Stop, Views
from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.operators import LinearOperator

Kind = Literal["isotropic", "anisotropic"]

BAND = (0.25, 4.0)
"""Lengths that count as about 1."""


def tv(
    operator: LinearOperator,
    data: NDArray[Any],
    *,
    strength: float,
    spacing: tuple[float, ...] = (1.0, 1.0, 1.0),
    kind: Kind = "isotropic",
    data_term: DataTerm | None = None,
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
    """The volume with the least ``Σ w φ(A x - b) + strength · Σ |D x|``, within bounds; by default φ(r) = ½ |r|².

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
    data_term
        φ: `LeastSquares` (the default) or `Huber`, which outliers do not rule.
    iterations
        At most so many.
    initial
        Starting point; default 0. A filtered back projection saves iterations.
    weights
        W, not negative, broadcasting to the data (1 / variance; 0 on bad pixels).
    lower, upper
        Bounds of the solution (real ones only).
    tolerance
        A slice that is solved by itself stops once its residual norm is this fraction of the first one; slices that
        are coupled stop once all of them are there.
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
    term = LeastSquares() if data_term is None else data_term
    if not isinstance(term, LeastSquares | Huber):
        raise UserError(f"tv has the data terms LeastSquares and Huber; fista takes {type(term).__name__}")
    return solve(
        lambda views, start: _PrimalDual(views, start, strength, spacing, kind, term, (lower, upper)), operator, data,
        iterations=iterations, initial=initial, weights=weights, mask=mask, tolerance=tolerance, stop=stop,
        callback=callback, checkpoints=checkpoints,
    )  # fmt: skip


class _PrimalDual(IterativeMethod):
    """Its state: the iterate, the one before and its residual ``A x - b``, and both dual variables."""

    state = ("solution", "previous", "earlier", "dual", "field")

    def __init__(
        self,
        views: Views,
        initial: NDArray[Any] | None,
        strength: float,
        spacing: tuple[float, ...],
        kind: Kind,
        term: LeastSquares | Huber,
        bounds: tuple[float | None, float | None],
    ) -> None:
        operator = self.operator = views.operator
        self.initial, self.kind, self.bounds = initial, kind, Bounds(*bounds)
        self.most = term.width if isinstance(term, Huber) else None
        self.data, self.weights = arranged(*views[:3])
        sums = operator.column_sums()
        spacing = operator.differences(spacing).spacing  # checked
        length, scale = _balance(operator, spacing)
        self.strength = strength / scale
        self.differences = operator.differences(tuple(step / scale for step in spacing))
        steep = 2 * sum(1 / step for step in self.differences.spacing)
        self.step = (np.float32(1 / length) / (sums + np.float32(steep))).astype(np.float32)
        del sums
        self.dual_step = (np.float32(length) * inverse(operator.row_sums())).astype(np.float32)
        # where all weights are 1; else it is made piece by piece
        self.shrink = 1 / (1 + self.dual_step)
        self.field_step = length * min(self.differences.spacing) / 2
        self.residual: NDArray[Any] | None = None

    def begin(self) -> None:
        self.solution = starting_point(self.operator, self.initial)
        self._keep_bounds(self.solution)
        self.previous = self.solution.copy(order="K")
        self.earlier = self._residual()
        self.dual = self.operator.arrange(self.operator.xp.zeros(self.operator.shape_out, self.operator.dtype))
        self.field = self.differences.field(self.solution)

    def misfit(self) -> NDArray[np.float64]:
        residual = self.residual = self._residual()
        return self.operator.dot_out(residual, residual if self.weights is None else residual * self.weights)

    def _residual(self) -> NDArray[Any]:
        residual = self.operator.forward(self.solution)
        in_pieces(lambda r, b: np.subtract(r, b, out=r), residual, self.data)
        return residual

    def advance(self, active: NDArray[np.bool_]) -> None:
        residual, self.residual = self.residual, None
        assert residual is not None
        weights = [self.shrink] if self.weights is None else [self.shrink, self.weights]
        in_pieces(self._climb, self.dual, residual, self.earlier, self.dual_step, *weights)
        ahead = self.previous  # its memory
        in_pieces(_extrapolate, ahead, self.solution)
        self.field, _ = self.differences.ascend(
            self.field, self.field, ahead, self.field_step, limit=self.strength, isotropic=self.kind == "isotropic"
        )
        update = self.operator.adjoint(self.dual)
        slope = self.differences.adjoint(self.field)
        # the new iterate takes the memory of the one before the last
        in_pieces(self._descend, ahead, self.solution, update, slope, self.step)
        if len(self.differences.spacing) == 2 and not active.all():  # else slices are solved together
            in_pieces(_stay, ahead, self.solution, self.operator.factor_in(active) > 0)
        self.previous, self.earlier, self.solution = self.solution, residual, ahead
        zero_outside(self.operator, self.solution)

    def _climb(
        self, dual: NDArray[Any], residual: NDArray[Any], earlier: NDArray[Any], step: NDArray[Any],
        shrink: NDArray[Any], *weights: NDArray[Any],
    ) -> None:  # fmt: skip
        """``y + σ (2 r - r')`` with residuals r, then the proximal map of the conjugate of w φ: times ``w / (w + σ)``.

        With Huber's φ it is then brought to magnitudes of ``w width`` at most.
        """
        change = residual + residual
        change -= earlier
        change *= step
        dual += change
        for w in weights:
            shrink = w / (w + step + np.float32(1e-30))
        dual *= shrink
        if self.most is not None:
            most = np.float32(self.most) * (weights[0] if weights else np.float32(1))
            dual *= np.minimum(1, most / np.maximum(np.abs(dual), np.float32(1e-30)))

    def _descend(
        self, ahead: NDArray[Any], x: NDArray[Any], update: NDArray[Any], slope: NDArray[Any], step: NDArray[Any]
    ) -> None:
        update += slope
        update *= step
        np.subtract(x, update, out=ahead)
        self.bounds.clip(ahead)

    def _keep_bounds(self, volume: NDArray[Any]) -> None:
        self.bounds.apply(volume, 0.0)
        zero_outside(self.operator, volume)


def _balance(operator: LinearOperator, spacing: tuple[float, ...]) -> tuple[float, float]:
    """A length and a factor of the differences, with which steps are the same whatever unit of length A is in.

    The steps of lemma 2 are right up to a factor between primal and dual ones, and between A and D. Where entries of
    A are about 1 and voxels are (both within a factor of 4), they are left as they are.
    """
    length, small = operator.length, min(spacing)
    if BAND[0] <= length <= BAND[1] and BAND[0] <= small <= BAND[1]:
        return 1.0, 1.0
    return length, length * small


def _stay(new: NDArray[Any], old: NDArray[Any], going: NDArray[np.bool_]) -> None:
    np.copyto(new, old, where=~going)


def _extrapolate(previous: NDArray[Any], x: NDArray[Any]) -> None:
    """In the place of the iterate before: 2 x less that."""
    np.subtract(x, previous, out=previous)
    previous += x
