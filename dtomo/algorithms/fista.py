"""Accelerated proximal gradients: any data term with any prior that has a proximal map."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.algorithms.data_terms import DataTerm, LeastSquares
from dtomo.algorithms.iteration import (
    Callback,
    Checkpointer,
    IterativeMethod,
    Result,
    arranged,
    check_bounds,
    placed,
    starting_point,
)
from dtomo.algorithms.proximal import Bounds, Nothing, Proximal, check_prior
from dtomo.algorithms.solving import solve, zero_outside
from dtomo.algorithms.stopping import Stop, Views
from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.operators import LinearOperator
from dtomo.operators.updates import step_ahead

MARGIN = 1.02
"""Between the largest eigenvalue as the power method finds it and the one that step lengths are made from."""


def fista(
    operator: LinearOperator,
    data: NDArray[Any],
    *,
    prior: Proximal | None = None,
    data_term: DataTerm | None = None,
    momentum: bool = True,
    iterations: int = 100,
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
    """The volume with the least ``Σ w φ(A x - b) + prior(x)``, by proximal gradient steps with Nesterov's momentum.

    One application of A and one of its adjoint to each iteration, beside what the prior takes.

    Parameters
    ----------
    operator, data
        A and b.
    prior
        What is known of the volume: `TotalVariation`, `Wavelets`, `NuclearNorm`, `Denoiser`, or any `Proximal` of one's
        own. None: nothing.
    data_term
        φ: `LeastSquares` (the default), `Huber`, `StudentT`, or a `DataTerm` of one's own.
    momentum
        False: proximal gradient descent, slower and without overshooting. A data term that is not convex has none.
    iterations
        At most so many.
    initial
        Starting point; default 0.
    weights
        W, not negative, broadcasting to the data (1 / variance, see `photon_weights`; 0 on bad pixels).
    lower, upper
        Bounds of the solution (real ones only). Total variation keeps them exactly; after other priors the solution
        is clipped.
    mask, tolerance, stop, callback, checkpoints
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
    A. Beck and M. Teboulle, SIAM J. Imaging Sci. 2, 183-202 (2009). The step is 1 / L with L the largest eigenvalue of
    AᴴWA (`largest_eigenvalues`), of each slice by itself where operator and prior are separable.
    """
    check_bounds(operator, lower, upper)
    if data_term is not None and not isinstance(data_term, DataTerm):
        raise UserError(f"`data_term` is a dtomo.algorithms.DataTerm such as Huber(0.1), not {data_term!r:.60}")
    check_prior(prior)
    term, known = data_term or LeastSquares(), prior or Nothing()
    accelerated = momentum and term.convex
    return solve(
        lambda views, start: _Fista(views, start, known, term, accelerated, (lower, upper)), operator, data,
        iterations=iterations, initial=initial, weights=weights, mask=mask, tolerance=tolerance, stop=stop,
        callback=callback, checkpoints=checkpoints,
    )  # fmt: skip


def largest_eigenvalues(operator: LinearOperator, weights: NDArray[Any] | None = None) -> NDArray[np.float64]:
    """The largest eigenvalue of AᴴWA, of each slice of a separable operator by itself: `MARGIN` times an estimate.

    By the power method, from below, from a positive start that is the same for all slices. Projectors have entries
    that are not negative, hence a positive first eigenvector (Perron and Frobenius), which such a start has most of,
    and a second eigenvalue of about half the first. It ends where the estimate rises by less than 1 part in 1000 in an
    iteration. Rises fall by a constant factor q, so that less than ``0.001 q / (1 - q)`` is missing: the margin of 2 %
    covers that up to q = 0.95, and projectors have about 0.25.

    Parameters
    ----------
    operator
        A.
    weights
        W, as `arranged` gives them, or None.

    Returns
    -------
    ndarray
        float64 ``(slices,)`` or ``(1,)``, on the host.
    """
    x = operator.zeros()
    start = np.random.default_rng(0).uniform(0.5, 1.5, operator.shape_in[1:])
    x[...] = operator.xp.asarray(start.astype(np.float32))
    found = np.zeros(operator.dot_in(x, x).size)
    settled = np.zeros(found.shape, bool)
    for _ in range(100):
        length = np.sqrt(operator.dot_in(x, x))
        x *= operator.factor_in(np.where(length > 0, 1 / np.where(length > 0, length, 1), 0))
        image = operator.forward(x)
        weighted = image if weights is None else image * weights
        value = operator.dot_out(image, weighted)
        done = settled | (value <= found * 1.001)
        found, settled = np.where(settled, found, np.maximum(value, found)), done
        if settled.all():
            break
        x = operator.adjoint(weighted)
    return MARGIN * found


class _Fista(IterativeMethod):
    """Its state: two iterates, the residual of the earlier one, the momentum, and what the prior keeps."""

    state = ("solution", "previous", "earlier", "theta")

    def __init__(
        self,
        views: Views,
        initial: NDArray[Any] | None,
        prior: Proximal,
        term: DataTerm,
        momentum: bool,
        bounds: tuple[float | None, float | None],
    ) -> None:
        operator = self.operator = views.operator
        self.initial, self.term, self.momentum = initial, term, momentum
        self.data, self.weights = arranged(*views[:3])
        self.bounds = Bounds(*bounds)
        self.prior = prior.bind(operator, self.bounds)
        curvature = largest_eigenvalues(operator, self.weights)
        if not self.prior.separable:
            curvature = curvature.max(keepdims=True)
        self.step = np.where(curvature > 0, 1 / np.where(curvature > 0, curvature, 1), 0)
        self.residual: NDArray[Any] | None = None

    def begin(self) -> None:
        self.solution = starting_point(self.operator, self.initial)
        self._keep_bounds(self.solution)
        self.previous = self.solution.copy(order="K")
        self.earlier = self.operator.arrange(self.operator.xp.zeros(self.operator.shape_out, self.operator.dtype))
        self.theta = 1.0

    def parts(self) -> dict[str, Any]:
        return super().parts() | {f"prior_{name}": value for name, value in self.prior.kept().items()}

    def go_on_from(self, parts: dict[str, Any]) -> None:
        own = {name: value for name, value in parts.items() if not name.startswith("prior_")}
        super().go_on_from(own)
        kept = {name[6:]: placed(self.operator, value) for name, value in parts.items() if name.startswith("prior_")}
        self.prior.go_on_from(kept)

    def misfit(self) -> NDArray[np.float64]:
        residual = self.residual = self.operator.forward(self.solution)
        in_pieces(lambda r, b: np.subtract(r, b, out=r), residual, self.data)
        return self.operator.dot_out(residual, residual if self.weights is None else residual * self.weights)

    def advance(self, active: NDArray[np.bool_]) -> None:
        operator, residual = self.operator, self.residual
        self.residual = None
        assert residual is not None
        theta = (1 + math.sqrt(1 + 4 * self.theta**2)) / 2
        ahead = np.float32((self.theta - 1) / theta if self.momentum else 0)
        self.theta = theta
        in_pieces(self._slopes, self.earlier, residual, ahead, *([] if self.weights is None else [self.weights]))
        gradient = operator.adjoint(self.earlier)
        self.earlier = residual
        step = operator.factor_in(self.step)
        in_pieces(self._descend, gradient, self.solution, self.previous, ahead, step)
        new = self.prior.apply(gradient, step)
        if not isinstance(self.prior, Nothing):
            self._keep_bounds(new)
        going = active if self.prior.separable else np.array([active.any()])
        if not going.all():
            in_pieces(_stay, new, self.solution, operator.factor_in(going) > 0)
        self.previous, self.solution = self.solution, new

    def _slopes(self, earlier: NDArray[Any], residual: NDArray[Any], ahead: np.float32, *weights: NDArray[Any]) -> None:
        """In the place of the earlier residual: W φ' of that of the extrapolated point."""
        earlier *= -ahead
        earlier += residual * (1 + ahead)
        self.term.slope(earlier)
        for factor in weights:
            earlier *= factor

    def _descend(
        self, gradient: NDArray[Any], x: NDArray[Any], previous: NDArray[Any], ahead: np.float32, step: NDArray[Any]
    ) -> None:
        """In the place of the gradient: y - step gradient, with y = x + ahead (x - previous)."""
        bounds = (self.bounds.lower, self.bounds.upper) if isinstance(self.prior, Nothing) else (None, None)
        step_ahead(gradient, x, previous, ahead, step, *bounds)

    def _keep_bounds(self, volume: NDArray[Any]) -> None:
        if not self.prior.keeps_bounds:
            self.bounds.apply(volume, 0.0)
            zero_outside(self.operator, volume)


def _stay(new: NDArray[Any], old: NDArray[Any], going: NDArray[np.bool_]) -> None:
    np.copyto(new, old, where=~going)
