"""Where an alignment stands, as a checkpoint keeps it."""

from typing import Any

import numpy as np

from dtomo.align.driver import Stage
from dtomo.geometry import Alignment
from dtomo.io.checkpoints import Checkpoint

_TABLES = ("tilts", "shifts", "axis_angles", "scales", "levels")


def parts_of(stage: Stage) -> tuple[dict[str, Any], dict[str, Any]]:
    """State and info for `dtomo.io.checkpoints.Checkpoints.save`."""
    alignment = stage.alignment
    state: dict[str, Any] = {name: getattr(alignment, name) for name in _TABLES} | {"axis": alignment.axis}
    if stage.pairs:
        state["places"], state["steps"] = (np.stack([pair[k] for pair in stage.pairs]) for k in range(2))
    if stage.best is not None:
        state["best"], state["best_shifts"] = stage.best
    info = {"shape": alignment.shape, "size": alignment.size, "history": list(stage.history)}
    return state, info


def stage_of(kept: Checkpoint) -> Stage:
    """From what `parts_of` gave."""
    state, info = kept.state, kept.info
    tables = {name: state[name] for name in _TABLES}
    sizes: dict[str, Any] = {name: tuple(info[name]) for name in ("shape", "size")}
    alignment = Alignment(**tables, **sizes, axis=state["axis"])
    pairs = tuple(zip(state["places"], state["steps"])) if "places" in state else ()
    best = (state["best"], state["best_shifts"]) if "best" in state else None
    return Stage(alignment, tuple(info["history"]), pairs, best)
