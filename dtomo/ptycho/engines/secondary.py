"""What solvers of object and probe do with the rest: positions, scales, background, variable probes.

These follow their gradients, divided by how strongly the loss curves (`dtomo.ptycho.curvatures`): a Gauss-Newton step
that takes each parameter as if it were on its own. For positions it is the step of M. Odstrčil, A. Menzel and
M. Guizar-Sicairos, Optics Express 26 (2018) 3108, section 2.4, with the mean transmission in place of the frame's own.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dtomo.arrays import array_module
from dtomo.errors import UserError
from dtomo.ptycho.curvatures import curvatures
from dtomo.ptycho.engine import Parameters
from dtomo.windows import Rows

if TYPE_CHECKING:
    from dtomo.ptycho.model import PtychoModel

FARTHEST = 0.5
"""Pixels that a position moves in a step at most: beyond, its gradient tells nothing."""

DAMPING = 0.05
"""Added to curvatures that differ from pixel to pixel, in units of the largest."""

COMPETING = 0.4
"""Part of such a step that is taken of all but positions: what they correct, object and probe correct as well."""

PRIMARY = ("object", "probe")
"""What solvers treat in their own way."""


def require_projection(model: "PtychoModel", parameters: Parameters, names: tuple[str, ...], solver: str) -> None:
    """Refuse what solvers cannot take that look for exit waves of the measured amplitudes.

    Raises
    ------
    UserError
        Other losses than that of amplitudes, more slices than one, an exponential object, a distance to be refined.
    """
    for wrong, what in (
        (model.loss != "amplitude", f"has no {model.loss} loss; take the amplitude loss"),
        (model.exponential, "needs the transmission itself, not an exponential object; leave exponential out"),
        (parameters["object"].shape[1] > 1, f"takes one slice; the object has {parameters['object'].shape[1]}"),
        ("distance" in names, "does not refine the distance"),
    ):
        if wrong:
            raise UserError(f"{solver} {what}, or use adam")


def step_secondary(
    state: dict[str, Any], parameters: Parameters, gradients: Mapping[str, Any], fraction: float, rate: float
) -> None:
    """Move all parameters but object and probe along their gradients, in place of the entries of `parameters`.

    Parameters
    ----------
    state
        Keeps the curvatures of an epoch under "bends".
    parameters
        By name.
    gradients
        By name: whole arrays, or `Rows`.
    fraction
        Part of the scan's frames that they are of.
    rate
        Part of a whole step; see also `COMPETING`.
    """
    names = tuple(name for name in gradients if name not in PRIMARY)
    if not names:
        return
    epoch = state["shared"]["epoch"]
    if state.get("bends_of") != epoch or state["bends"].keys() != set(names):
        state["bends"], state["bends_of"] = curvatures(parameters, names), epoch
    for name in names:
        bend, gradient = state["bends"][name], gradients[name]
        part = rate if name == "positions" else COMPETING * rate
        if np.ndim(bend) > 1:
            bend = bend + DAMPING * bend.max()
        if isinstance(gradient, Rows):
            change = -part * gradient.values / bend
            if name == "positions":
                change = change.clip(-FARTHEST, FARTHEST)
            xp = array_module(parameters[name])
            parameters[name][xp.asarray(gradient.index)] += change.astype(parameters[name].dtype, copy=False)
        else:
            change = -part * gradient / (fraction * bend)
            parameters[name] = parameters[name] + change.astype(parameters[name].dtype, copy=False)
