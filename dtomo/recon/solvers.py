"""Iterative solvers of `dtomo recon`: how each is called for a block of slices, and what it takes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dtomo.settings import COUNTED, SUBSETS, ReconSettings

if TYPE_CHECKING:
    from dtomo.algorithms import Result


class Needs(NamedTuple):
    """What a solver takes.

    Attributes
    ----------
    volumes, data
        Arrays of the size of the solution, and of that of the data beside the data themselves, at the worst moment.
    kept_volumes, kept_data
        Those in its state, which checkpoints hold.
    work
        Time of an iteration over that of one projection and one back projection.
    """

    volumes: int
    data: int
    kept_volumes: int
    kept_data: int
    work: float


NEEDS = {
    "sirt": Needs(2, 2, 1, 0, 1.0),
    "os-sart": Needs(2, 2, 1, 0, 1.3),
    "cgls": Needs(3, 2, 2, 1, 1.1),
    "lsqr": Needs(4, 2, 3, 1, 1.1),
    "mlem": Needs(2, 2, 1, 0, 1.1),
    "osem": Needs(2, 2, 1, 0, 1.4),
    "tv": Needs(6, 3, 4, 2, 1.3),
}
"""By the names of ``--algorithm``; memory was measured, see tests/recon/test_solvers.py."""


def solver_bytes(settings: ReconSettings, block: int, slice_bytes: int, row_bytes: int) -> dict[str, int]:
    """Bytes of an iterative solver beside its data, for `block` slices of so many bytes with rows of so many bytes."""
    needs = NEEDS[settings.algorithm]
    sums = settings.subsets if settings.algorithm == "osem" else 1  # inverse sums of columns, a slice each
    return {
        "residuals": needs.data * block * row_bytes + row_bytes,
        "volumes": needs.volumes * block * slice_bytes + sums * slice_bytes,
    }


def state_bytes(algorithm: str, volume: int, data: int) -> int:
    """Bytes of a solver's state, from those of its solution and of its data; 0 for one that has none."""
    needs = NEEDS.get(algorithm)
    return 0 if needs is None else needs.kept_volumes * volume + needs.kept_data * data


def solve_block(operator: Any, data: NDArray[Any], settings: ReconSettings, watched: dict[str, Any]) -> "Result":
    """Run the solver that the settings name; `watched` are its callback and checkpoints.

    `data` may be changed: counts are brought to 0 at least.
    """
    from dtomo import algorithms

    name = settings.algorithm
    solver: Callable[..., Result] = getattr(algorithms, name.replace("-", "_"))
    options: dict[str, Any] = {"iterations": settings.iterations, **watched}
    if settings.nonnegative and name not in COUNTED:
        options["lower"] = 0.0
    if name in SUBSETS:
        options["subsets"] = min(settings.subsets, len(data))
    if name == "tv":
        options |= {"strength": settings.strength, "spacing": (1.0, 1.0)}
    if name in COUNTED:
        np.maximum(data, 0, out=data)
    return solver(operator, data, **options)
