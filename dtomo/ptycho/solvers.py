"""Solvers by name, with what settings say of them: options, what is refined, what is known beside the data."""

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any

from dtomo.errors import UserError, shown
from dtomo.ptycho.engine import Engine
from dtomo.ptycho.regularisers import (
    AmplitudeLimit,
    Constraints,
    Penalty,
    PhaseOnly,
    ProbeSupport,
    Projection,
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
    if settings.phase_only:
        projections.append(PhaseOnly(settings.exponential))
    elif settings.amplitude_limit is not None:
        projections.append(AmplitudeLimit(settings.amplitude_limit, settings.exponential))
    if settings.support is not None:
        projections.append(ProbeSupport(settings.support))
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
    for option in settings.options:
        if option not in options:
            raise UserError(
                f"--option: {settings.engine} has no {shown(option)}; it has {', '.join(options) or 'no options'}"
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
    except (TypeError, ValueError) as error:
        raise UserError(f"--option: {settings.engine} does not take these values ({shown(str(error))})") from error
    return made


_WORDS = {
    "wanted": "--refine and --opr",
    "start": "--refine-from",
    "constraints": "--support, --phase-only, --amplitude-limit or --total-variation",
    "batch": "--batch",
    "model": "a model",
}
