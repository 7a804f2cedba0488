"""Any iterative algorithm, begun on larger voxels."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from dtomo.algorithms.iteration import Result
from dtomo.algorithms.proximal import Proximal
from dtomo.errors import UserError
from dtomo.operators import Coarser, LinearOperator

_OF_THE_LAST = ("tolerance", "stop", "callback", "checkpoints")


def coarse_to_fine(
    solver: Callable[..., Result],
    operator: LinearOperator,
    data: NDArray[Any],
    *,
    factors: Sequence[int] = (4, 2),
    coarse_iterations: int | None = None,
    initial: NDArray[Any] | None = None,
    **options: Any,
) -> Result:
    """Solve on voxels and pixels 4 and 2 times as large first; each solution, interpolated, begins the next level.

    What is large in a volume is there after few cheap iterations, so that the last level needs fewer.

    Parameters
    ----------
    solver
        `dtomo.algorithms.sirt`, `fista`, … or a function with their arguments.
    operator, data
        A and b; the operator needs `coarser`.
    factors
        From the largest on.
    coarse_iterations
        At each level but the last; default: as many as there.
    initial
        Starting point of the first level, at full size.
    **options
        Of the solver. Weights, mask and background are made coarser; `strength` (also that of a prior) is divided by
        the square of the factor, as the data count so much less. Tolerance, stop, callback and checkpoints are of the
        last level.

    Returns
    -------
    Result
        Of the last level.

    Raises
    ------
    UserError
        Factors that are no whole numbers above 1 and fall, an operator without `coarser`; what the solver raises.
    """
    falling = [int(factor) for factor in factors]
    if falling != list(factors) or any(f < 2 for f in falling) or sorted(set(falling), reverse=True) != falling:
        raise UserError(f"the factors of coarser levels are whole numbers above 1, the largest first; got {factors}")
    for factor in falling:
        level = operator.coarser(factor)
        start = None if initial is None else level.volume(initial)
        changed = {name: _coarser(level, name, value) for name, value in options.items() if name not in _OF_THE_LAST}
        if coarse_iterations is not None:
            changed["iterations"] = coarse_iterations
        coarse = level.data(data, options.get("weights"))
        initial = level.refined(solver(level.operator, coarse, initial=start, **changed).solution)
    return solver(operator, data, initial=initial, **options)


def _coarser(level: Coarser, name: str, value: Any) -> Any:
    """An option of the solver, for a coarser problem."""
    if name == "strength":
        return value / level.factor**2
    if name == "prior" and isinstance(value, Proximal) and hasattr(value, "strength"):
        prior: Any = copy.copy(value)
        prior.strength = value.strength / level.factor**2
        return prior
    if not hasattr(value, "ndim"):
        return value * level.scale if name == "background" else value
    if name == "mask":
        return level.volume(value.astype("float32")) > 0
    if name == "weights":
        return level.means(value)
    return level.data(value) if name == "background" else value
