"""Least squares in Krylov spaces: CGLS, conjugate gradients on the normal equations, and LSQR, by bidiagonalisation."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.algorithms.iteration import (
    Callback,
    Checkpointer,
    IterativeMethod,
    Result,
    arranged,
    starting_point,
)
from dtomo.algorithms.solving import solve
from dtomo.algorithms.stopping import Stop, Views
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
    mask: NDArray[Any] | None = None,
    tolerance: float | None = None,
    stop: Stop | None = None,
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
    mask
        True where there may be something, broadcasting to the volume; default: everywhere.
    tolerance
        A slice stops once its residual norm is this fraction of the first one.
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
    A. Bjorck, Numerical Methods for Least Squares Problems (1996), section 7.4. There are no bounds: clipping an
    iterate destroys the conjugacy of the directions; use `sirt`.
    """
    _check_damping("CGLS", damping)
    return solve(
        lambda views, start: _Cgls(views, start, damping), operator, data, iterations=iterations, initial=initial,
        weights=weights, mask=mask, tolerance=tolerance, stop=stop, callback=callback, checkpoints=checkpoints,
    )  # fmt: skip


def _check_damping(name: str, damping: float) -> None:
    if not 0 <= damping < np.inf:
        raise UserError(f"the damping of {name} is finite and not negative, not {damping}")


class _Cgls(IterativeMethod):
    """The iteration: b - A x and the direction go with the solution, both with rounding that must be kept."""

    def __init__(self, views: Views, initial: NDArray[Any] | None, damping: float) -> None:
        self.operator, self.damping, self.initial = views.operator, damping, initial
        self.data, self.weights = arranged(*views[:3])
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


def lsqr(
    operator: LinearOperator,
    data: NDArray[Any],
    *,
    iterations: int = 20,
    initial: NDArray[Any] | None = None,
    weights: NDArray[Any] | None = None,
    damping: float = 0.0,
    mask: NDArray[Any] | None = None,
    tolerance: float | None = None,
    stop: Stop | None = None,
    callback: Callback | None = None,
    checkpoints: Checkpointer | None = None,
) -> Result:
    """Minimise ``(A x - b)ᴴ W (A x - b) + damping² ||x - x0||²`` by Golub and Kahan's bidiagonalisation.

    In exact arithmetic its iterates are those of `cgls`; where A is ill-conditioned LSQR loses less to rounding.

    Parameters
    ----------
    operator, data, iterations, initial, weights, damping, mask, tolerance, stop, callback, checkpoints
        As for `cgls`. Residual norms are those of the recurrence, which in single precision follow the true ones to
        about 1e-5 of the first.

    Returns
    -------
    Result

    Raises
    ------
    UserError
        Shapes, dtypes or settings that do not fit together.

    Notes
    -----
    C. C. Paige and M. A. Saunders, ACM Trans. Math. Softw. 8, 43-71 (1982); their names are kept in the code.
    """
    _check_damping("LSQR", damping)
    return solve(
        lambda views, start: _Lsqr(views, start, damping), operator, data, iterations=iterations, initial=initial,
        weights=weights, mask=mask, tolerance=tolerance, stop=stop, callback=callback, checkpoints=checkpoints,
    )  # fmt: skip


class _Lsqr(IterativeMethod):
    """The iteration, on W^½ A and W^½ (b - A x0).

    Vectors of both bases stay as they are computed, with their norms β and α beside them: normalising each would be a
    pass of its own. The numbers of each slice are float64.
    """

    numbers = ("alpha", "beta", "rhobar", "phibar", "lost", "cs2", "sn2", "z", "xxnorm", "xnorm")
    on_host = numbers
    state = ("solution", "u", "v", "direction", *numbers)

    def __init__(self, views: Views, initial: NDArray[Any] | None, damping: float) -> None:
        self.operator, self.damping, self.initial = views.operator, damping, initial
        self.data, weights = arranged(*views[:3])
        self.weights = weights
        self.root = None if weights is None else np.sqrt(weights)

    def begin(self) -> None:
        operator = self.operator
        self.solution = starting_point(operator, self.initial)
        self.u = self.data.copy(order="K")
        if self.initial is not None:
            _add(self.u, operator.forward(self.solution), np.float32(-1))
        if self.root is not None:
            self.u *= self.root
        self.beta = np.sqrt(np.maximum(operator.dot_out(self.u, self.u), 0))
        self.v = self._back(self.u)
        self.v *= operator.factor_in(_ratio(np.ones_like(self.beta), self.beta))
        self.alpha = np.sqrt(np.maximum(operator.dot_in(self.v, self.v), 0))
        self.direction = self.v * operator.factor_in(_ratio(np.ones_like(self.alpha), self.alpha))
        self.phibar, self.rhobar = self.beta, self.alpha
        nothing = np.zeros_like(self.beta)
        self.lost, self.sn2, self.z, self.xxnorm, self.xnorm = (nothing,) * 5
        self.cs2 = nothing - 1

    def misfit(self) -> NDArray[np.float64]:
        return np.maximum(self.lost + self.phibar**2 - self.damping**2 * self.xnorm, 0)

    def advance(self, active: NDArray[np.bool_]) -> None:
        operator, one = self.operator, np.ones_like(self.beta)
        image = operator.forward(self.v)
        if self.root is not None:
            in_pieces(_scale, image, self.root)
        factors = (_ratio(one, self.alpha), _ratio(self.alpha, self.beta))
        in_pieces(_difference, image, operator.factor_out(factors[0]), self.u, operator.factor_out(factors[1]))
        self.u = image
        del image
        self.beta = np.sqrt(np.maximum(operator.dot_out(self.u, self.u), 0))
        back = self._back(self.u)
        factors = (_ratio(one, self.beta), _ratio(self.beta, self.alpha))
        in_pieces(_difference, back, operator.factor_in(factors[0]), self.v, operator.factor_in(factors[1]))
        self.v = back
        del back
        self.alpha = np.sqrt(np.maximum(operator.dot_in(self.v, self.v), 0))
        along, turn = self._rotate(active)
        in_pieces(
            _step, self.solution, self.direction, self.v, operator.factor_in(along), operator.factor_in(turn),
            operator.factor_in(_ratio(one, self.alpha)),
        )  # fmt: skip

    def _rotate(self, active: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Both rotations of an iteration, and the norm of x - x0: φ/ρ and θ/ρ. What has stopped keeps its residual."""
        rhobar1 = np.hypot(self.rhobar, self.damping)
        psi = _ratio(self.damping * self.phibar, rhobar1)
        phibar = _ratio(self.rhobar, rhobar1) * self.phibar
        rho = np.hypot(rhobar1, self.beta)
        c, s = _ratio(rhobar1, rho), _ratio(self.beta, rho)
        theta, self.rhobar = s * self.alpha, -c * self.alpha
        phi = c * phibar
        self.phibar = np.where(active, s * phibar, self.phibar)
        self.lost = np.where(active, self.lost + psi**2, self.lost)
        right, gambar = phi - self.sn2 * rho * self.z, -self.cs2 * rho
        self.xnorm = np.where(active, self.xxnorm + _ratio(right, gambar) ** 2, self.xnorm)
        gamma = np.hypot(gambar, theta)
        self.cs2, self.sn2, self.z = _ratio(gambar, gamma), _ratio(theta, gamma), _ratio(right, gamma)
        self.xxnorm = self.xxnorm + self.z**2
        return np.where(active, _ratio(phi, rho), 0.0), _ratio(theta, rho)

    def _back(self, u: NDArray[Any]) -> NDArray[Any]:
        return self.operator.adjoint(u if self.root is None else u * self.root)


def _add(target: NDArray[Any], source: NDArray[Any], factor: Any) -> None:
    """target += factor * source."""

    def work(target: NDArray[Any], source: NDArray[Any], factor: NDArray[Any]) -> None:
        target += source * factor

    in_pieces(work, target, source, factor)


def _ratio(one: NDArray[np.float64], two: NDArray[np.float64]) -> NDArray[np.float64]:
    """one / two, 0 where two is."""
    there = two != 0
    return np.where(there, one / np.where(there, two, 1), 0.0)


def _scale(target: NDArray[Any], factor: NDArray[Any]) -> None:
    target *= factor


def _difference(target: NDArray[Any], factor: NDArray[Any], source: NDArray[Any], other: NDArray[Any]) -> None:
    """target = factor target - other source"""
    target *= factor
    target -= source * other


def _step(
    solution: NDArray[Any], direction: NDArray[Any], v: NDArray[Any], along: NDArray[Any], turn: NDArray[Any],
    scale: NDArray[Any],
) -> None:  # fmt: skip
    """x += along w, then w = scale v - turn w"""
    solution += direction * along
    direction *= -turn
    direction += v * scale
