"""The filter of filtered back projection, with the weight of every angle."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, on_device
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.geometry.orbits import spacing
from dtomo.kernels.filters import WINDOWS, filter_lines, interpolation_response, padded_length, ramp_response
from dtomo.kernels.layout import projections_inside_out
from dtomo.operators.projection import check_projections

FILTERS = (*WINDOWS, "none")
"""Names of filters: windows on the ramp, or no filter at all."""

Padding = Literal["edge", "zero"]


def angle_weights(angles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Radians of the half turn that each angle stands for, from angles in degrees.

    Half the way to the neighbours on either side, modulo 180; frames at the same angle share it. One gap that is much
    wider than all others (a missing wedge) is not filled: it counts as the next widest.
    """
    return np.deg2rad(spacing(angles, 180.0)[0])


def filter_responses(
    geometry: ParallelBeam, name: str, cutoff: float, length: int, module: Any = np
) -> NDArray[np.float32]:
    """Response of each angle's filter, ``(angle, frequency)``: window, ramp, weight of the angle, detector pitch.

    `module`: where the result lies, NumPy or CuPy.
    """
    if name not in FILTERS:
        raise UserError(f"there is no filter {name!r}; choose one of {', '.join(FILTERS)}")
    if not 0 < cutoff <= 1:
        raise UserError(
            f"the cut-off of a filter is a fraction of the Nyquist frequency, above 0 and at most 1, not {cutoff}"
        )
    shape = np.ones(length // 2 + 1) if name == "none" else ramp_response(length, name, cutoff)
    weights, shape = module.asarray(angle_weights(geometry.angles)), module.asarray(shape)
    return (weights[:, None] * shape / geometry.pitch).astype(np.float32)


def check_padding(padding: str) -> bool:
    """Whether lines are continued beyond the detector."""
    if padding not in ("edge", "zero"):
        raise UserError(f"padding is 'edge' or 'zero', not {padding!r}")
    return padding == "edge"


def filter_projections(
    projections: NDArray[Any],
    geometry: ParallelBeam,
    name: str = "ramp",
    *,
    cutoff: float = 1.0,
    padding: Padding = "edge",
    overwrite: bool = False,
) -> NDArray[Any]:
    """Filter projections ``(angle, row, column)``, float32 or complex64, for `backproject`.

    Besides the ramp and its window the response holds what makes up for the linear interpolation of `backproject`
    (see `kernels.filters.interpolation_response`).

    Parameters
    ----------
    name, cutoff
        One of `FILTERS`; the fraction of the Nyquist frequency where its window ends.
    padding
        Beyond the detector, the edge values fall off smoothly ("edge", for objects wider than the detector; the same
        as "zero" for one inside) or are "zero".
    overwrite
        The result may take the memory of the projections.

    Raises
    ------
    UserError
        Unknown filter or padding.
    """
    projections = check_projections(projections, geometry)
    length = padded_length(geometry.columns)
    extend = check_padding(padding)
    lanes = projections_inside_out(projections).view(np.float32)
    xp = array_module(projections)
    responses = filter_responses(geometry, name, cutoff, length, xp)
    if name != "none":
        responses *= xp.asarray(interpolation_response(length).astype(np.float32))
    writeable = on_device(projections) or projections.flags.writeable
    overwrite = (overwrite and writeable) or not np.may_share_memory(lanes, projections)
    out = filter_lines(lanes, responses, length, extend, out=lanes if overwrite else None)
    return np.swapaxes(out.view(projections.dtype), 1, 2)
