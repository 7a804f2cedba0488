"""Solvers by name, with what settings say of them: options, what is refined, what is known beside the data."""

import dataclasses
import importlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from dtomo.errors import UserError, shown
from dtomo.ptycho.engine import Engine
from dtomo.ptycho.regularisers import (
    AmplitudeLimit,
    Constraints,
    FourierSupport,
    Penalty,
    PhaseOnly,
    ProbePower,
    ProbeSupport,
    Projection,
    Smoothness,
    TotalVariation,
)
from dtomo.settings import PtychoSettings

if TYPE_CHECKING:
    from dtomo.ptycho.model import PtychoModel

WHERE = {
    "lsqml": ("lsqml", "LeastSquaresML"),
    "epie": ("epie", "Epie"),
    "rpie": ("epie", "Rpie"),
    "dm": ("projections", "DifferenceMap"),
    "raar": ("projections", "RAAR"),
    "adam": ("adam", "Adam"),
    "cg": ("conjugate", "ConjugateGradient"),
}
"""Module of `dtomo.ptycho.engines` and class of each solver."""

PROJECTING = ("lsqml", "epie", "rpie", "dm", "raar")
"""Solvers that take exit waves to the measured moduli."""

_GIVEN = ("model", "wanted", "start", "constraints", "batch", "keeps")
"""Attributes that have settings of their own."""


def refined(settings: PtychoSettings) -> tuple[str, ...]:
    """Names of all parameters that are refined."""
    variable = ("variable_probe", "probe_weights") if settings.opr else ()
    return ("object", "probe", *variable, *settings.refine)


def constraints(settings: PtychoSettings) -> Constraints:
    """What is known beside the data."""
    penalties: list[Penalty] = []
    projections: list[Projection] = []
    if settings.total_variation is not None:
        penalties.append(TotalVariation(settings.total_variation))
    if settings.smoothness is not None:
        penalties.append(Smoothness(settings.smoothness))
    if settings.phase_only:
        projections.append(PhaseOnly(settings.exponential))
    elif settings.amplitude_limit is not None:
        projections.append(AmplitudeLimit(settings.amplitude_limit, settings.exponential))
    if settings.support is not None:
        projections.append(ProbeSupport(settings.support))
    if settings.fourier_support is not None:
        projections.append(FourierSupport(settings.fourier_support))
    if settings.probe_power is not None:
        projections.append(ProbePower(settings.probe_power))
    return Constraints(tuple(penalties), tuple(projections))


def make_engine(settings: PtychoSettings, model: "PtychoModel") -> Engine:
    """The solver that the settings name.

    Raises
    ------
    UserError
        An option that it does not have, or a setting that it cannot follow.
    """
    module, name = WHERE[settings.engine]
    kind = getattr(importlib.import_module(f"dtomo.ptycho.engines.{module}"), name)
    known = {field.name: field for field in dataclasses.fields(kind) if field.init}
    options = sorted(set(known) - set(_GIVEN))
    for option, value in settings.options.items():
        if option not in options:
            raise UserError(
                f"--option: {settings.engine} has no {shown(option)}; it has {', '.join(options) or 'no options'}"
            )
        _check_option(option, value, known[option].type)
    _refuse_what_does_nothing(settings)
    if settings.loss != "amplitude" and settings.engine in PROJECTING:
        raise UserError(
            f"--loss {settings.loss}: {settings.engine} goes by measured moduli, which is the loss amplitude; for "
            f"{settings.loss} take --engine adam or --engine cg"
        )
    given: dict[str, Any] = {"model": model, "wanted": refined(settings), "constraints": constraints(settings)}
    if settings.refine_from:
        given["start"] = dict.fromkeys(settings.refine, settings.refine_from)
    if settings.batch is not None:
        given["batch"] = settings.batch
    for attribute, value in list(given.items()):
        if attribute not in known:
            if not value or value == ("object", "probe"):
                del given[attribute]
            else:
                raise UserError(f"--engine {settings.engine} does not take {_WORDS[attribute]}; take another engine")
    try:
        made: Engine = kind(**given, **settings.options)
    except UserError as error:
        raise UserError(f"--engine {settings.engine}: {error}") from error
    return made


def _refuse_what_does_nothing(settings: PtychoSettings) -> None:
    given = settings.options
    if given.get("position_range") is not None and "positions" not in settings.refine:
        raise UserError("--option position_range is of positions that are refined; give --refine positions")
    if ("search_reach" in given or "search_epochs" in given) and not given.get("search_trials"):
        raise UserError("--option search_reach and search_epochs are of a search; give --option search_trials=4")


def _check_option(name: str, value: Any, kind: Any) -> None:
    """Numbers where there are to be numbers; what is out of range, the solver says."""
    kinds = get_args(kind) or (kind,)
    asked = None
    if kinds[0] is str:  # names with numbers
        right = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
        if not right or not all(_is_finite(one) for one in value.values()):
            asked = "names with numbers, such as {object: 0.03}"
    elif value is None and type(None) in kinds:
        return
    elif float in kinds and not _is_finite(value):
        asked = "a finite number"
    elif int in kinds and float not in kinds and (not isinstance(value, int) or isinstance(value, bool)):
        asked = "a whole number"
    elif all(isinstance(one, str) for one in kinds) and value not in kinds:
        asked = " or ".join(kinds)
    if asked is not None:
        raise UserError(f"--option {name}: it must be {asked}; got {shown(repr(value))}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_WORDS = {
    "wanted": "--refine and --opr",
    "start": "--refine-from",
    "constraints": "what is known of object and probe (--support, --phase-only …)",
    "batch": "--batch",
    "model": "a model",
}
