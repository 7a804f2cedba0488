"""Iterative solvers of `dtomo recon`: how each is called for a block of slices, and what it takes."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module
from dtomo.elementwise import in_pieces
from dtomo.geometry import ParallelBeam
from dtomo.settings import COUNTED, STARTS, SUBSETS, ReconSettings, data_term_parts

if TYPE_CHECKING:
    from dtomo.algorithms import Proximal, Result, Stop

COARSE = (4, 2)
"""Sizes of voxels that ``--start coarse`` begins on."""


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
    weighing
        More arrays of the size of the data where they have weights, the weights themselves among them.
    """

    volumes: float
    data: float
    kept_volumes: int
    kept_data: int
    work: float
    weighing: float = 0


NEEDS = {
    "sirt": Needs(2, 2, 1, 0, 1.0, 3),
    "os-sart": Needs(2, 2, 1, 0, 1.3, 3),
    "cgls": Needs(3, 2, 2, 1, 1.1, 3),
    "lsqr": Needs(4, 2, 3, 1, 1.1, 3),
    "mlem": Needs(2, 2, 1, 0, 1.1),
    "osem": Needs(2, 2, 1, 0, 1.4),
    "tv": Needs(6, 3, 4, 2, 1.3, 3),
    "fista": Needs(3, 2, 2, 1, 1.1, 3),
}
"""By the names of ``--algorithm``; memory was measured, see tests/recon/test_solvers.py."""
IN_TILES = ("sirt", "os-sart", "mlem", "osem")
"""Those that do without one of the volumes in a parallel beam on the CPU, but for few slices: their back projection is
never whole."""
PRIORS = {"tv": Needs(5.5, 0, 2, 0, 0.3), "wavelets": Needs(2, 0, 0, 0, 0.5), "nuclear": Needs(3, 0, 0, 0, 0.3)}
"""What a prior of ``--algorithm fista`` takes more."""


@dataclasses.dataclass(frozen=True)
class Given:
    """What a solver is given beside numbers, for some slices.

    Attributes
    ----------
    scale
        From values per pixel to the unit of the output, in which bounds and starting points are.
    mask
        (z, y, x) or (1, y, x), True where there may be something; None: everywhere.
    start
        (z, y, x) to begin from, in the unit of the output, which may be changed; None: as the settings say.
    """

    scale: float = 1.0
    mask: NDArray[Any] | None = None
    start: NDArray[Any] | None = None


def needs_of(settings: ReconSettings) -> Needs:
    """What the solver takes that the settings describe.

    Raises
    ------
    KeyError
        No iterative one.
    """
    plain = NEEDS[settings.algorithm]
    volumes, data, kept_volumes, kept_data, work, weighing = plain
    if settings.algorithm == "fista" and settings.prior in PRIORS:
        more = PRIORS[settings.prior]
        volumes, kept_volumes, work = volumes + more.volumes, kept_volumes + more.kept_volumes, work + more.work
    if settings.coupled and settings.prior != "wavelets":  # a third component of the field of differences
        volumes, kept_volumes = volumes + 1 + (settings.algorithm == "fista"), kept_volumes + 1
    if settings.weights == "photons":
        data += weighing
    if settings.mask is not None:
        volumes += 1
    if settings.mask not in (None, "circle"):  # sums of rows differ by slice, too
        volumes, data = volumes + 1.5, data + (0 if settings.algorithm in ("cgls", "lsqr", "fista") else 1)
    if settings.start not in (None, "zero"):
        volumes += 1.75 if settings.start == "coarse" else 1
    if settings.held_out is not None:
        volumes, data, kept_volumes = volumes + 1, data + 1, kept_volumes + 1
        work *= 1 - settings.held_out / 2
    return Needs(volumes, data, kept_volumes, kept_data, work)


def solver_bytes(
    settings: ReconSettings, block: int, slice_bytes: int, row_bytes: int, *, on_device: bool = False
) -> dict[str, int]:
    """Bytes of an iterative solver beside its data, for `block` slices of so many bytes with rows of so many bytes."""
    tiles = not on_device and block >= 8
    needs = needs_of(settings)
    sums = settings.subsets if settings.algorithm == "osem" else 1  # inverse sums of columns, a slice each
    if settings.weights == "photons" or settings.mask not in (None, "circle"):
        sums *= block  # slices differ
    return {
        "residuals": int(needs.data * block * row_bytes) + row_bytes,
        "volumes": int((needs.volumes - (tiles and settings.algorithm in IN_TILES)) * block * slice_bytes)
        + sums * slice_bytes,
    }


def state_bytes(settings: ReconSettings, volume: int, data: int) -> int:
    """Bytes of a solver's state, from those of its solution and of its data; 0 for one that has none."""
    if settings.algorithm not in NEEDS:
        return 0
    needs = needs_of(settings)
    return needs.kept_volumes * volume + needs.kept_data * data


def solve_block(
    operator: Any, data: NDArray[Any], settings: ReconSettings, watched: dict[str, Any], given: Given | None = None
) -> "Result":
    """Run the solver that the settings name; `watched` are its callback and checkpoints.

    `data` may be changed: counts are brought to 0 at least.
    """
    from dtomo import algorithms

    given = given or Given()
    name = settings.algorithm
    solver: Callable[..., Result] = getattr(algorithms, name.replace("-", "_"))
    if name in COUNTED:
        np.maximum(data, 0, out=data)
    options = solver_options(settings, operator, data, given) | watched
    if settings.start == "coarse":
        return algorithms.coarse_to_fine(solver, operator, data, factors=COARSE, **options)
    return solver(operator, data, initial=_start(settings, operator, data, given), **options)


def solver_options(settings: ReconSettings, operator: Any, data: NDArray[Any], given: Given) -> dict[str, Any]:
    """What the solver is called with, but where it begins and who watches it."""
    name, scale = settings.algorithm, given.scale
    options: dict[str, Any] = {"iterations": settings.iterations}
    if name not in COUNTED and settings.nonnegative:
        options["lower"] = 0.0
    for bound in ("lower", "upper"):
        if getattr(settings, bound) is not None:
            options[bound] = getattr(settings, bound) / scale
    if name in SUBSETS:
        options["subsets"] = min(settings.subsets, _views_used(settings, len(data)))
    if name == "tv":
        options |= {"strength": settings.strength, "spacing": (1.0,) * (3 if settings.coupled else 2)}
    if name == "fista" and settings.prior not in (None, "none"):
        options["prior"] = _prior(settings)
    for option in ("relaxation", "damping", "tolerance"):
        if getattr(settings, option) is not None:
            options[option] = getattr(settings, option)
    if settings.data_term is not None:
        options["data_term"] = _data_term(settings.data_term)
    if settings.weights == "photons":
        options["weights"] = transmitted(data)
    if given.mask is not None:
        options["mask"] = operator.xp.asarray(given.mask)
    stop = _stop(settings, options.get("weights"))
    return options if stop is None else options | {"stop": stop}


def transmitted(integrals: NDArray[Any]) -> NDArray[np.float32]:
    """What part of the photons came through, by which line integrals are to be weighed; at most e (noise, gaps).

    K. Sauer and C. Bouman, IEEE Trans. Signal Process. 41, 534-548 (1993).
    """
    weights = array_module(integrals).empty_like(integrals)
    in_pieces(_transmitted, weights, integrals)
    return weights


def _transmitted(weights: NDArray[Any], integrals: NDArray[Any]) -> None:
    np.maximum(integrals, np.float32(-1), out=weights)
    np.negative(weights, out=weights)
    np.exp(weights, out=weights)


def _prior(settings: ReconSettings) -> "Proximal":
    from dtomo import algorithms

    strength = settings.strength or 0.0
    if settings.prior == "tv":
        return algorithms.TotalVariation(strength, (1.0,) * (3 if settings.coupled else 2))
    if settings.prior == "wavelets":
        return algorithms.Wavelets(strength, dimensions=3 if settings.coupled else 2)
    return algorithms.NuclearNorm(strength)


def _data_term(text: str) -> Any:
    from dtomo import algorithms

    name, width = data_term_parts(text)
    if width is None:
        return algorithms.LeastSquares()
    return algorithms.Huber(width) if name == "huber" else algorithms.StudentT(width)


def _stop(settings: ReconSettings, weights: NDArray[Any] | None) -> "Stop | None":
    from dtomo import algorithms

    if settings.held_out is not None:
        return algorithms.HeldOut(settings.held_out)
    if settings.noise is None:
        return None
    noise: Any = settings.noise
    return algorithms.Discrepancy(noise if weights is None else np.float32(noise) / np.sqrt(weights))


def _views_used(settings: ReconSettings, views: int) -> int:
    """How many are not held out (`dtomo.algorithms.HeldOut`)."""
    out = 0 if settings.held_out is None else min(max(1, round(settings.held_out * views)), views - 1)
    return max(1, views - out)


def _start(settings: ReconSettings, operator: Any, data: NDArray[Any], given: Given) -> NDArray[Any] | None:
    from dtomo import algorithms

    if settings.start == "fbp":
        plain = isinstance(operator.geometry, ParallelBeam)
        return algorithms.fbp(data, operator.geometry) if plain else algorithms.fdk(data, operator.geometry)
    if settings.start in (None, *STARTS) or given.start is None:
        return None
    start = operator.xp.asarray(given.start)
    start *= np.float32(1 / given.scale)
    return start
