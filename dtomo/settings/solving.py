"""What iterative solvers of `dtomo recon` are told: their options, and which of them go together."""

import os
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from dtomo.settings.base import Positive, RunSettings, finite

COUNTED = ("mlem", "osem")
"""Algorithms of emission, whose solutions are never negative."""
SUBSETS = ("os-sart", "osem")
"""Algorithms that take the views in subsets."""
ITERATIONS = {"tv": 200, "fista": 100, "mlem": 50, "os-sart": 10, "osem": 10}
"""By default, where it is not 20."""
DATA_TERMS = ("least-squares", "huber", "student-t")
"""Names of losses; all but the first have a width, ``huber:0.1``."""

_SQUARES = ("sirt", "os-sart", "cgls", "lsqr", "tv", "fista")
_BOUNDED = ("sirt", "os-sart", "tv", "fista")
_ALL = (*_SQUARES, *COUNTED)
_TAKEN_BY = {
    "prior": ("fista",),
    "data_term": ("tv", "fista"),
    "weights": _SQUARES,
    "mask": _ALL,
    "lower": _BOUNDED,
    "upper": _BOUNDED,
    "relaxation": ("sirt", "os-sart"),
    "damping": ("cgls", "lsqr"),
    "start": _ALL,
    "tolerance": _ALL,
    "noise": _SQUARES,
    "held_out": _ALL,
}
"""Which algorithms take an option that is None where it was not given."""


def data_term_parts(text: str) -> tuple[str, float | None]:
    """Name and width of a loss, from ``least-squares``, ``huber:0.1`` or ``student-t:0.05``.

    Raises
    ------
    ValueError
        None of these.
    """
    name, _, width = text.partition(":")
    try:
        number = float(width) if width else None
    except ValueError:
        number = -1.0
    if name not in DATA_TERMS or (number is None) != (name == "least-squares") or not 0 < (number or 1.0) < 1e30:
        raise ValueError("must be least-squares, huber:WIDTH or student-t:SCALE, such as huber:0.1")
    return name, number


def _data_term(value: Any) -> Any:
    if isinstance(value, str):
        data_term_parts(value.strip())
        return value.strip()
    return value


def _absolute_unless(*words: str) -> PlainSerializer:
    """The name of a file is made absolute where it is written down, the words stay."""
    return PlainSerializer(lambda value: value if value is None or value in words else os.path.abspath(value))


STARTS = ("zero", "fbp", "coarse")
"""Words for where a solver begins; anything else is a file."""
_path = BeforeValidator(lambda value: str(value) if isinstance(value, os.PathLike) else value)
Mask = Annotated[str, Field(min_length=1), _path, _absolute_unless("circle")]
Start = Annotated[str, Field(min_length=1), _path, _absolute_unless(*STARTS)]


class SolverSettings(RunSettings):
    """Options of iterative solvers; None: not given, and what the solver does by itself.

    `strength` is that of a prior, in units of line integrals times pixels; `data_term` a name and a width in units of
    line integrals; `lower` and `upper` are in the unit of the volume; `noise` is a standard deviation of line
    integrals, with ``weights="photons"`` of those where nothing absorbs. `mask` and `start` name a word or a volume.
    """

    subsets: Annotated[int, Field(ge=1)] = 10
    prior: Literal["none", "tv", "wavelets", "nuclear"] | None = None
    strength: Positive | None = None
    coupled: bool = False
    data_term: Annotated[str, BeforeValidator(_data_term)] | None = None
    weights: Literal["none", "photons"] | None = None
    mask: Mask | None = None
    nonnegative: bool = False
    lower: Annotated[float, BeforeValidator(finite)] | None = None
    upper: Annotated[float, BeforeValidator(finite)] | None = None
    relaxation: Annotated[float, BeforeValidator(finite), Field(gt=0, lt=2)] | None = None
    damping: Positive | None = None
    start: Start | None = None
    tolerance: Annotated[float, BeforeValidator(finite), Field(gt=0, lt=1)] | None = None
    noise: Positive | None = None
    held_out: Annotated[float, BeforeValidator(finite), Field(gt=0, le=0.5)] | None = None


def together(settings: Any, algorithm: str, values: str | None) -> None:
    """Refuse options that do not go with the algorithm, or with each other.

    Parameters
    ----------
    settings
        `SolverSettings`.
    algorithm
        Its name.
    values
        What the projections hold, where the settings say.

    Raises
    ------
    ValueError
        In one sentence.
    """
    for name, known in _TAKEN_BY.items():
        if getattr(settings, name) is not None and algorithm not in known:
            raise ValueError(f"--{name.replace('_', '-')} works with {listed(known)}, not with {algorithm}")
    if settings.subsets != 10 and algorithm not in SUBSETS:
        raise ValueError("--subsets works with os-sart and osem")
    if settings.nonnegative and algorithm in ("cgls", "lsqr"):
        raise ValueError(
            "--nonnegative works with fbp, sirt, os-sart, tv and fista; conjugate gradients know no bounds"
        )
    _prior(settings, algorithm)
    _bounds(settings)
    if settings.noise is not None and settings.held_out is not None:
        raise ValueError("--noise and --held-out are two rules to stop by; give one of them")
    if (settings.data_term or "").startswith("student-t") and algorithm == "tv":
        raise ValueError("--algorithm tv has the data terms least-squares and huber; student-t works with fista")
    if settings.weights == "photons" and values == "integrals":
        raise ValueError("--weights photons come from counts or transmissions, not from --values integrals")
    _emission(settings, algorithm, values)


def _prior(settings: Any, algorithm: str) -> None:
    prior = "tv" if algorithm == "tv" else settings.prior
    if settings.strength is None and prior not in (None, "none"):
        raise ValueError(f"--algorithm {algorithm} with the prior {prior} needs --strength, the weight of the prior")
    if settings.strength is not None and prior in (None, "none"):
        raise ValueError(
            "--strength is that of a prior: give it with --algorithm tv, or with fista and --prior tv, wavelets or "
            "nuclear"
        )
    if settings.coupled and prior not in ("tv", "wavelets"):
        raise ValueError("--coupled is of total variation and wavelets: give --algorithm tv, or fista with a --prior")


def _bounds(settings: Any) -> None:
    if settings.nonnegative and settings.lower is not None:
        raise ValueError("--nonnegative is --lower 0; give one of them")
    low, high = 0.0 if settings.nonnegative else settings.lower, settings.upper
    if low is not None and high is not None and not low < high:
        raise ValueError(f"--upper {high:g} lies no higher than the lower bound, {low:g}")


def _emission(settings: Any, algorithm: str, values: str | None) -> None:
    if algorithm not in COUNTED:
        return
    if values in ("counts", "transmission"):
        raise ValueError(
            f"--algorithm {algorithm} is for emission, where the projections are what the object sends out: "
            "give --values integrals, or take sirt, os-sart or tv for transmission"
        )
    if settings.start == "fbp":
        raise ValueError(f"--start fbp has negative values, which {algorithm} cannot begin with; give coarse or a file")


def listed(names: tuple[str, ...]) -> str:
    """ "a, b and c"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
