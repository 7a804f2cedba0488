"""What iterative algorithms share: one driver with history, tolerance, callback and checkpoints.

A new algorithm is a subclass of `IterativeMethod` with three short functions, and a public function that hands it to
`iterate`. Landweber's iteration, whole::

    class _Landweber(IterativeMethod):
        def __init__(self, operator, data, step):
            self.operator, self.data, self.step = operator, operator.arrange(data), step

        def begin(self):
            self.solution = self.operator.zeros()

        def misfit(self):
            self.residual = self.operator.forward(self.solution) - self.data
            return self.operator.dot_out(self.residual, self.residual)

        def advance(self, active):
            self.solution -= self.step * self.operator.factor_in(active) * self.operator.adjoint(self.residual)


    def landweber(operator, data, *, step, iterations=20, tolerance=None, callback=None, checkpoints=None):
        return iterate(_Landweber(operator, data, step), iterations, tolerance, callback, checkpoints)

An iteration may depend on the problem (made anew in ``__init__`` when a run goes on) and on the attributes named in
`IterativeMethod.state`, and on nothing else: then it goes on from a checkpoint with the same bits.

Volumes and projections lie where the operator's arrays do, on the host or on a device, and nothing here knows which:
what makes arrays takes them from the operator or from its array module ``operator.xp``. Numbers per slice (norms,
steps) are float64 on the host; each inner product is a wait for the device, and element-wise work is none.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, is_array
from dtomo.device import to_device, to_host
from dtomo.errors import UserError
from dtomo.operators import LinearOperator

Callback = Callable[[int, NDArray[np.float64]], bool | None]
"""Called at the start of each iteration with its number (from 0) and the residual norms; True stops."""


class State(NamedTuple):
    """What an iterative algorithm knows between two iterations.

    Attributes
    ----------
    parts
        The method's own, by name: arrays, numbers, random generators. They are the method's, not copies.
    residuals
        Norms at the start of each iteration made so far, float64 ``(iterations, slices)``.
    """

    parts: dict[str, Any]
    residuals: NDArray[np.float64]

    @property
    def iteration(self) -> int:
        """How many iterations were made."""
        return len(self.residuals)


class Checkpointer(Protocol):
    """Keeps states, so that a run that died goes on with the same bits (`dtomo.io.Checkpoints` does, on disk)."""

    def restore(self) -> State | None:
        """The last state kept, in arrays that the algorithm may change; None: begin at the beginning."""
        ...

    def offer(self, state: State) -> None:
        """Called before each iteration but the first; keeps the state if it is time to. It must not change it."""
        ...


class Result(NamedTuple):
    """What an iterative algorithm returns.

    Attributes
    ----------
    solution
        The reconstruction, of the operator's `shape_in`.
    residuals
        Norms of the (weighted) residual ``A x - b`` at the start of each iteration, float64: ``(iterations, slices)``
        for a separable operator, else ``(iterations, 1)``. One more row where a tolerance ended the run.
    iterations
        How many were made.
    reason
        Why it stopped: "iterations", "tolerance", "noise", "held out" or "callback".
    held_out
        Norms of the residual of views that were held out (`HeldOut`), of the same shape, one row more; else None.
    """

    solution: NDArray[Any]
    residuals: NDArray[np.float64]
    iterations: int
    reason: str
    held_out: NDArray[np.float64] | None = None


class IterativeMethod(abc.ABC):
    """An iterative algorithm on one problem: how to begin, how far off it is, and how to get on.

    Attributes
    ----------
    operator
        A.
    solution
        The present iterate, of the operator's `shape_in`.
    state
        Names of the attributes that an iteration takes from the one before, `solution` among them: arrays, numbers,
        `numpy.random.Generator`. They are what a checkpoint holds.
    on_host
        Which of them are arrays that stay on the host wherever the operator's lie: numbers per slice.
    """

    operator: LinearOperator
    solution: NDArray[Any]
    state: tuple[str, ...] = ("solution",)
    on_host: tuple[str, ...] = ()

    @abc.abstractmethod
    def begin(self) -> None:
        """Set what `state` names for the first iteration; not called where a run goes on from a checkpoint."""

    @abc.abstractmethod
    def misfit(self) -> NDArray[np.float64]:
        """Squared norm of the (weighted) residual of each slice, or of all: ``(slices,)`` or ``(1,)``.

        Called once at the start of each iteration; what it computes may be left for `advance`.
        """

    @abc.abstractmethod
    def advance(self, active: NDArray[np.bool_]) -> None:
        """Make one iteration; slices that are not `active`, (slices,) or (1,), have met the tolerance and stay."""

    def parts(self) -> dict[str, Any]:
        """What `state` names."""
        return {name: getattr(self, name) for name in self.state}

    def go_on_from(self, parts: dict[str, Any]) -> None:
        """Take what `state` names from a checkpoint, instead of `begin`; arrays go where the operator's lie.

        Raises
        ------
        UserError
            It is not of this method, or of a problem of another size.
        """
        if set(parts) != set(self.state):
            raise UserError(
                f"the checkpoint holds {', '.join(sorted(parts))}, but this algorithm goes on from "
                f"{', '.join(sorted(self.state))}: it is of another one; remove it to begin anew"
            )
        shape, dtype = np.shape(parts["solution"]), getattr(parts["solution"], "dtype", None)
        if shape != tuple(self.operator.shape_in) or dtype != self.operator.dtype:
            raise UserError(
                f"the checkpoint holds a solution of shape {shape} and {dtype}, but the operator takes "
                f"{tuple(self.operator.shape_in)} and {self.operator.dtype}; remove it to begin anew"
            )
        for name, value in parts.items():
            setattr(self, name, value if name in self.on_host else placed(self.operator, value))


def placed(operator: LinearOperator, value: Any) -> Any:
    """A part of a state where the operator's arrays lie; numbers stay on the host."""
    move = to_host if operator.xp is np else to_device
    return move(value) if is_array(value) and value.ndim > 0 else value


def iterate(
    method: IterativeMethod,
    iterations: int,
    tolerance: float | None = None,
    callback: Callback | None = None,
    checkpoints: Checkpointer | None = None,
    watch: "Watch | None" = None,
) -> Result:
    """Drive an iterative method to its end.

    Parameters
    ----------
    method
        The algorithm, on its problem.
    iterations
        At most so many, those made before a checkpoint counted.
    tolerance
        A slice stops once its residual norm is this fraction of the first one.
    callback
        See `Callback`; after a checkpoint it begins with the iteration that comes next.
    checkpoints
        Where to go on from, and where to keep the state meanwhile.
    watch
        What else ends it (made by a `dtomo.algorithms.Stop` for this problem).

    Raises
    ------
    UserError
        A checkpoint of another algorithm or problem; residuals that are not finite, unless of a slice among others.
    """
    history = Residuals(tolerance, callback)
    kept = None if checkpoints is None else checkpoints.restore()
    if kept is None:
        method.begin()
    else:
        method.go_on_from(kept.parts if watch is None else watch.go_on_from(kept.parts))
        history.norms = list(kept.residuals)
    before = len(history.norms)
    del kept
    for number in range(before, int(iterations)):
        if checkpoints is not None and number > before:
            parts = method.parts() if watch is None else method.parts() | watch.parts()
            checkpoints.offer(State(parts, np.array(history.norms)))
        squared = method.misfit()
        _refuse_not_finite(method.operator, squared, number)
        if history.stop(squared, None if watch is None else watch.look(method.solution, squared), watch):
            break
        method.advance(history.active)
    early = history.reason != "iterations"
    solution, held_out = (method.solution, None) if watch is None else watch.chosen(method.solution, early)
    made = len(history.norms) - early
    if history.norms and not np.isfinite(history.norms[-1]).all():  # of some slices: no number is better than 0
        solution *= method.operator.factor_in(np.where(np.isfinite(history.norms[-1]), 1, np.nan))
    return Result(solution, np.array(history.norms), made, history.reason, held_out)


def _refuse_not_finite(operator: LinearOperator, squared: NDArray[np.float64], number: int) -> None:
    """Where slices are no problems of their own, one value spoils all; a broken slice among others stays alone."""
    alone = squared.size > 1 or getattr(getattr(operator, "operator", operator), "separable", False)
    if alone or np.isfinite(squared).all():
        return
    if number == 0:
        raise UserError(
            "data or starting point hold values that are not finite (NaN, infinite, or too large), which would spoil "
            "the whole volume; give such pixels weight 0"
        )
    raise UserError(f"iteration {number} has a residual that is not finite: steps too long, or values too large")


class Watch(abc.ABC):
    """Looks at every iterate and says which slices are to stop; see `dtomo.algorithms.stopping`.

    Attributes
    ----------
    reason
        What `Result.reason` says where it ended the run.
    """

    reason: str

    @abc.abstractmethod
    def look(self, solution: NDArray[Any], squared: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which slices, ``(slices,)`` or ``(1,)``, stop here, from the iterate and its squared residual norms."""

    def parts(self) -> dict[str, Any]:
        """What it needs to know after a checkpoint, by names that no method has."""
        return {}

    def go_on_from(self, parts: dict[str, Any]) -> dict[str, Any]:
        """Take its own parts from a checkpoint, and return the others."""
        return parts

    def chosen(self, last: NDArray[Any], looked: bool) -> tuple[NDArray[Any], NDArray[np.float64] | None]:
        """The solution to return, and what `Result.held_out` is; `looked`: it has looked at the last iterate."""
        return last, None


class Residuals:
    """The history of residuals; says when every slice has met the tolerance, and which still go on."""

    def __init__(self, tolerance: float | None, callback: Callback | None) -> None:
        self.tolerance, self.callback = tolerance or 0.0, callback
        self.norms: list[NDArray[np.float64]] = []
        self.reason = "iterations"
        self.active: NDArray[np.bool_] = np.ones(1, bool)

    def stop(
        self, squared: NDArray[np.float64], ended: NDArray[np.bool_] | None = None, watch: Watch | None = None
    ) -> bool:
        """Record the squared residual norm (of every slice); whether to end before the coming iteration.

        `ended` are slices that `watch` has stopped.
        """
        norm = np.sqrt(np.maximum(squared, 0))
        self.norms.append(norm)
        self.active = norm > self.tolerance * self.norms[0]
        met = not self.active.any()
        if ended is not None:
            self.active &= ~ended
        if not self.active.any():
            self.reason = "tolerance" if met or watch is None else watch.reason
        elif self.callback is not None and self.callback(len(self.norms) - 1, norm):
            self.reason = "callback"
        return self.reason != "iterations"


def starting_point(operator: LinearOperator, initial: NDArray[Any] | None) -> NDArray[Any]:
    """A volume of its own in the operator's layout: zeros, or a copy of `initial`."""
    solution = operator.zeros()
    if initial is not None:
        solution[...] = operator.xp.asarray(initial)
    return solution


def check_problem(
    operator: LinearOperator,
    data: NDArray[Any],
    initial: NDArray[Any] | None,
    weights: NDArray[Any] | None,
    iterations: int,
    tolerance: float | None,
) -> None:
    """Refuse what does not fit together, in one sentence."""
    check_places(operator, data=data, initial=initial, weights=weights)
    if tuple(np.shape(data)) != operator.shape_out:
        raise UserError(f"the data have shape {np.shape(data)}, the operator gives {operator.shape_out}")
    if np.iscomplexobj(data) and operator.dtype.kind != "c":
        raise UserError("the data are complex but the operator is real; make it with dtype=complex64")
    if initial is not None and tuple(np.shape(initial)) != operator.shape_in:
        raise UserError(f"the starting point has shape {np.shape(initial)}, the operator takes {operator.shape_in}")
    if initial is not None and np.iscomplexobj(initial) and operator.dtype.kind != "c":
        raise UserError("the starting point is complex but the operator is real; make it with dtype=complex64")
    if weights is not None:
        try:
            fits = np.broadcast_shapes(np.shape(weights), operator.shape_out) == operator.shape_out
        except ValueError:
            fits = False
        if not fits or np.iscomplexobj(weights) or not np.isfinite(weights).all() or np.min(weights) < 0:
            raise UserError(f"weights must be real, finite, not negative and broadcast to {operator.shape_out}")
    if iterations != int(iterations) or iterations < 0:
        raise UserError(f"the number of iterations is a whole number and not negative, not {iterations}")
    if tolerance is not None and not 0 <= tolerance < np.inf:
        raise UserError(f"the tolerance is a fraction of the first residual, not {tolerance}")


def check_bounds(operator: LinearOperator, lower: float | None, upper: float | None) -> None:
    """Refuse bounds of a complex solution, and such that leave nothing between them."""
    if (lower is not None or upper is not None) and operator.dtype.kind == "c":
        raise UserError("bounds need a real solution; this operator is complex")
    if not (-np.inf if lower is None else lower) <= (np.inf if upper is None else upper):
        raise UserError(f"the bounds {lower} and {upper} leave nothing between them")


def check_places(operator: LinearOperator, **arrays: Any) -> None:
    """Refuse arrays that do not lie where the operator's do; numbers, lists and None lie anywhere."""
    here, there = ("in host memory", "on a device") if operator.xp is np else ("on a device", "in host memory")
    for name, array in arrays.items():
        if is_array(array) and array.shape != () and array_module(array) is not operator.xp:
            raise UserError(f"the operator works {here}, but `{name}` lies {there}; move one of them")


def arranged(
    operator: LinearOperator, data: NDArray[Any], weights: NDArray[Any] | None
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Data and weights in the operator's layout. What has weight 0 becomes 0, be it even NaN."""
    xp = operator.xp
    data = xp.asarray(data)
    if weights is None:
        return operator.arrange(data), None
    weights = xp.broadcast_to(xp.asarray(weights), operator.shape_out)
    data = operator.arrange(np.where(weights > 0, data, 0))
    return data, operator.arrange(weights).real


GRAZING = 1e-4
"""A ray that is so much of the longest one in the volume only touches it: whether it does is decided by rounding."""


def grazing(operator: LinearOperator, sums: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rays, by their sums of rows, see nothing or only touch the volume: what they measured says nothing of it.

    Divided by its sum a ray counts as much as any other, however short it is.
    """
    return sums <= GRAZING * operator.largest(float(sums.max()))


def inverse_rows(operator: LinearOperator) -> NDArray[np.float32]:
    """1 / row sums of A, 0 where rays are `grazing`."""
    sums = operator.row_sums()
    return np.where(grazing(operator, sums), 0, inverse(sums)).astype(np.float32)


def inverse(values: NDArray[Any]) -> NDArray[Any]:
    """1 / values where they are positive, else 0."""
    small = values < 1e-30
    return np.where(small, 0, 1 / np.where(small, 1, values)).astype(values.dtype)
