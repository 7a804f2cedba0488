"""Maximum likelihood of counts by expectation maximisation, with all views at once or in ordered subsets."""

from functools import partial, reduce
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
    grazing,
    inverse,
    starting_point,
)
from dtomo.algorithms.solving import solve, zero_outside
from dtomo.algorithms.stopping import Stop, Views
from dtomo.algorithms.subsets import Subsets, check_subsets
from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.operators import LinearOperator
from dtomo.operators.updates import multiply_scaled


def mlem(
    operator: LinearOperator,
    data: NDArray[Any],
    *,
    iterations: int = 50,
    initial: NDArray[Any] | None = None,
    weights: NDArray[Any] | None = None,
    background: NDArray[Any] | float = 0.0,
    mask: NDArray[Any] | None = None,
    tolerance: float | None = None,
    stop: Stop | None = None,
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
    mask, tolerance, stop, callback, checkpoints
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
    spread = _counts(operator, data, initial, weights, background)
    return solve(
        _Mlem, operator, data, iterations=iterations, initial=initial, weights=weights, background=spread, mask=mask,
        tolerance=tolerance, stop=stop, callback=callback, checkpoints=checkpoints,
    )  # fmt: skip


def osem(
    operator: LinearOperator,
    data: NDArray[Any],
    *,
    subsets: int = 10,
    iterations: int = 10,
    initial: NDArray[Any] | None = None,
    weights: NDArray[Any] | None = None,
    background: NDArray[Any] | float = 0.0,
    mask: NDArray[Any] | None = None,
    tolerance: float | None = None,
    stop: Stop | None = None,
    callback: Callback | None = None,
    checkpoints: Checkpointer | None = None,
) -> Result:
    """`mlem` with one subset of the views after the other: as many times faster as there are subsets, at first.

    With noise it does not converge but circles close to the maximum; fewer subsets come closer.

    Parameters
    ----------
    operator
        A, real, with entries that are not negative, of views that can be taken apart (`LinearOperator.of_views`).
    data
        b, not negative, of the operator's `shape_out`.
    subsets
        How many runs of neighbouring views, taken in the order of `subset_order`. 1: `mlem`.
    iterations
        At most so many, each of all subsets.
    initial, weights, background, mask, tolerance, stop, callback, checkpoints
        As for `mlem`. Residuals are those met on the way: of each subset just before it was used; the first ones are
        of the starting point. With weights the inverse sums of columns of all subsets are kept: a volume each.

    Returns
    -------
    Result

    Raises
    ------
    UserError
        As `mlem`; more subsets than views.

    Notes
    -----
    H. M. Hudson and R. S. Larkin, IEEE Trans. Med. Imaging 13, 601-609 (1994).
    """
    check_problem(operator, data, initial, weights, iterations, tolerance)
    check_subsets(operator, subsets)
    spread = _counts(operator, data, initial, weights, background)
    return solve(
        lambda views, start: _Osem(views, start, subsets), operator, data, iterations=iterations, initial=initial,
        weights=weights, background=spread, mask=mask, tolerance=tolerance, stop=stop, callback=callback,
        checkpoints=checkpoints,
    )  # fmt: skip


def _counts(
    operator: LinearOperator,
    data: NDArray[Any],
    initial: NDArray[Any] | None,
    weights: NDArray[Any] | None,
    background: NDArray[Any] | float,
) -> NDArray[Any] | None:
    """The background, of the shape of the data, or None; what cannot be counts is refused."""
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
    return operator.xp.asarray(spread) if np.any(background) else None


class _Mlem(IterativeMethod):
    """Its state is the solution alone."""

    def __init__(self, views: Views, initial: NDArray[Any] | None) -> None:
        operator = self.operator = views.operator
        self.initial = initial
        data, self.weights = arranged(*views[:3])
        self.data = _of_seen(operator, data)
        self.background = None if views.background is None else operator.arrange(views.background)
        self.sensitivity = inverse(operator.column_sums(self.weights)).astype(np.float32)
        self.expected: NDArray[Any] | None = None

    def begin(self) -> None:
        self.solution = _positive_start(self.operator, self.initial)

    def misfit(self) -> NDArray[np.float64]:
        self.expected = self.operator.forward(self.solution)
        if self.background is not None:
            self.expected += self.background
        return squared_distance(self.operator, self.expected, self.data, self.weights)

    def advance(self, active: NDArray[np.bool_]) -> None:
        expected, self.expected = self.expected, None
        assert expected is not None
        in_pieces(_ratio, expected, self.data, 1 if self.weights is None else self.weights)
        _multiply(self.operator, self.solution, expected, self.sensitivity, active)


class _Osem(IterativeMethod):
    """Its state: the solution, and the squared residuals met on the way."""

    state = ("solution", "met")
    on_host = ("met",)

    def __init__(self, views: Views, initial: NDArray[Any] | None, subsets: int) -> None:
        self.operator, self.initial = views.operator, initial
        self.subsets = Subsets(views, subsets)
        self.subsets.parts = [part._replace(data=_of_seen(part.operator, part.data)) for part in self.subsets.parts]
        self.sensitivities = []
        for part in self.subsets.parts:
            sums = part.operator.column_sums(part.weights)
            unseen = grazing(part.operator, sums)
            self.sensitivities.append(np.where(unseen, 0, inverse(sums)).astype(np.float32))

    def begin(self) -> None:
        self.solution = _positive_start(self.operator, self.initial)
        if self.initial is None:  # nothing where no view sees anything
            self.solution *= reduce(np.logical_or, (sums > 0 for sums in self.sensitivities))
        self.met = self.subsets.squared_misfit(self.solution)

    def misfit(self) -> NDArray[np.float64]:
        return self.met

    def advance(self, active: NDArray[np.bool_]) -> None:
        met = np.zeros_like(self.met)
        for part, sensitivity in zip(self.subsets.parts, self.sensitivities):
            operator, data, weights, background = part
            expected = operator.forward(self.solution)
            if background is not None:
                expected += background
            met += squared_distance(operator, expected, data, weights)
            in_pieces(_ratio, expected, data, 1 if weights is None else weights)
            _multiply(operator, self.solution, expected, sensitivity, active, kept=True)
        self.met = np.where(active, met, self.met)


def squared_distance(
    operator: LinearOperator, one: NDArray[Any], two: NDArray[Any], weights: NDArray[Any] | None
) -> NDArray[np.float64]:
    """Squared norm of the difference of two sets of projections, as `IterativeMethod.misfit` gives it."""
    difference = np.empty_like(one)
    in_pieces(lambda d, a, b: np.subtract(a, b, out=d), difference, one, two)
    return operator.dot_out(difference, difference if weights is None else difference * weights)


def _of_seen(operator: LinearOperator, data: NDArray[Any]) -> NDArray[Any]:
    """Counts of rays that only touch the volume are 0: a voxel in one's way would have to send them all."""
    sums = operator.row_sums()
    touching = grazing(operator, sums) & (sums > 0)
    return operator.arrange(np.where(touching, 0, data)) if touching.any() else data


def _positive_start(operator: LinearOperator, initial: NDArray[Any] | None) -> NDArray[Any]:
    solution = starting_point(operator, initial)
    if initial is None:
        solution[...] = 1
        zero_outside(operator, solution)
    return solution


def _ratio(expected: NDArray[Any], data: NDArray[Any], weights: Any) -> None:
    """expected = weights data / expected, 0 where that is"""
    small = expected < 1e-30
    if small.any():
        expected[...] = data * inverse(expected)
    else:
        np.divide(data, expected, out=expected)
    if not isinstance(weights, int):
        expected *= weights


def _multiply(
    operator: LinearOperator,
    solution: NDArray[Any],
    ratio: NDArray[Any],
    sensitivity: NDArray[Any],
    active: NDArray[np.bool_],
    *,
    kept: bool = False,
) -> None:
    """x *= sensitivity Aᵀ ratio, where slices are active; with `kept`, voxels that these views do not see stay."""
    work = partial(multiply_scaled, kept=kept)
    if active.all():
        operator.adjoint_into(ratio, work, solution, sensitivity)
    else:
        operator.adjoint_into(ratio, work, solution, sensitivity, operator.factor_in(active) > 0)
