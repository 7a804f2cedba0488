"""Full-turn scans with an offset axis, brought to half a turn of wider projections.

Where the axis lies near an edge of the detector, a view and the one half a turn later see the two sides of
the object; mirrored and joined they are one view on a detector of almost twice the width.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import is_array, on_device, single_precision
from dtomo.errors import UserError

_TAPS = 6


def fold_360(
    projections: NDArray[Any], angles: NDArray[Any], center: float
) -> tuple[NDArray[Any], NDArray[np.float64], float]:
    """Join every view with the mirrored view half a turn later, on a wide detector with the axis near its
    middle.

    Where both see the object they are blended with weights that add up to one and go smoothly to zero at each
    detector edge. The mirrored view is brought to the column grid by Lagrange interpolation over 6 columns
    (exact when twice the center is an integer). A partner angle that was not measured (an odd number of
    views, uneven steps) is interpolated linearly between its two neighbours.

    Every row is treated by itself. Peak memory: the result (at most the size of the input) and three views; on a device
    the result, and a copy of an input that is neither float32 nor complex64. Results there lie there, and agree with
    the CPU's to rounding.

    Parameters
    ----------
    projections
        (angle, row, column) attenuation or other line integrals, real or complex.
    angles
        Degrees, any order; together a full turn. Both ends (0 and 360) may be there.
    center
        Column of the axis, on the detector.

    Returns
    -------
    projections, angles, center
        (angle, row, wide column) float32 or complex64 for the views in the first half turn (a last view at
        +360 degrees is the first one again, and stays, at its angle), their angles in degrees
        (float64, as given), and the column of the axis in the wide projections. 256 columns with the axis at
        20 become 471 with the axis at 235.

    Raises
    ------
    UserError
        Angles that do not fit the views or leave a gap in the full turn, or an axis off the detector.
    """
    data = projections if is_array(projections) else np.asarray(projections)
    if data.ndim != 3 or 0 in data.shape or data.dtype.kind not in "buifc":
        raise UserError(f"a full-turn scan needs numbers (angle, row, column), not {data.dtype} of shape {data.shape}")
    degrees = np.asarray(angles, np.float64).reshape(-1)
    if len(degrees) != len(data) or not np.isfinite(degrees).all():
        raise UserError(
            f"a full-turn scan needs one finite angle per view, but has {len(degrees)} for {len(data)} views"
        )
    columns = data.shape[2]
    if not 0 <= center <= columns - 1:
        raise UserError(
            f"the axis at column {center:g} is not on the detector (0 to {columns - 1}): the two halves do not meet"
        )
    views, first, second, weight = pair_half_turns(degrees)
    wide, offset, direct_weight = _layout(columns, center)
    if on_device(data):
        views_and_partners = np.stack([views, first, second], axis=1)
        joined = _fold_on_device(data, views_and_partners, weight, center, offset, direct_weight)
        return joined, degrees[views], center + offset
    dtype = np.complex64 if data.dtype.kind == "c" else np.float32
    result = np.zeros((len(views), data.shape[1], wide), dtype)
    stop = offset + columns
    for k, view in enumerate(views):
        partner = np.array(data[first[k]], dtype)
        if weight[k] > 0:
            partner += np.float32(weight[k]) * (data[second[k]].astype(dtype) - partner)
        target = result[k]
        _add_mirrored(partner, center, offset, target)
        target *= 1 - direct_weight
        target[:, offset:stop] += direct_weight[offset:stop] * data[view].astype(dtype)
    return result, degrees[views], center + offset


def _fold_on_device(
    data: Any, views: NDArray[np.intp], share: NDArray[np.float64], center: float, offset: int, direct: NDArray[Any]
) -> Any:
    import cupy

    from dtomo.kernels.cuda import halfturn

    values = single_precision(data)
    whole, fraction = _mirror(center, offset)
    taps = np.ones(1, np.float32) if fraction is None else _lagrange(fraction)
    result = cupy.empty((len(views), data.shape[1], len(direct)), values.dtype)
    halfturn.fold(values, views, share, offset, whole, taps, direct, result)
    return result


def is_full_turn(angles: NDArray[Any]) -> bool:
    """Whether the angles (degrees) cover a full turn, so that every view has its mirror image half a turn
    later."""
    degrees = np.asarray(angles, np.float64).reshape(-1)
    if not np.isfinite(degrees).all():
        return False
    try:
        pair_half_turns(degrees)
    except UserError:
        return False
    return True


def pair_half_turns(
    angles: NDArray[np.float64],
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """For the views of the first half turn: their numbers, the two views around +180 degrees, and the
    second's weight.

    Raises
    ------
    UserError
        A gap of more than two and a half common steps, or 120 degrees.
    """
    if len(angles) < 4:
        raise UserError(f"a full-turn scan needs at least 4 views, not {len(angles)}")
    turn = np.mod(angles - angles.min(), 360.0)
    order = np.argsort(turn, kind="stable")
    ordered = turn[order]
    gaps = np.diff(ordered, append=ordered[0] + 360.0)
    step = float(np.median(gaps[gaps > 1e-6])) if (gaps > 1e-6).any() else 360.0
    if gaps.max() > min(2.5 * step, 120.0) + 1e-6:
        worst = int(np.argmax(gaps))
        raise UserError(
            f"the angles are not a full turn: there are none between {ordered[worst] + angles.min():g} and "
            f"{ordered[worst] + gaps[worst] + angles.min():g} degrees, where the common step is {step:g}"
        )
    # a view at 180 - rounding and one at 180 + rounding are the same view
    views = np.flatnonzero(turn < 180.0 - 1e-3 * step)
    wanted = turn[views] + 180.0
    after = np.searchsorted(ordered, wanted)
    before = after - 1
    after_angle = np.where(after < len(ordered), ordered[after % len(ordered)], ordered[0] + 360.0)
    width = after_angle - ordered[before]
    weight = np.where(width > 0, (wanted - ordered[before]) / np.where(width > 0, width, 1), 0.0)
    first, second = order[before], order[after % len(ordered)]
    # exact partners need no interpolation
    weight = np.where(np.abs(wanted - ordered[before]) < 1e-3 * step, 0.0, weight)
    exact = np.abs(after_angle - wanted) < 1e-3 * step
    return views, np.where(exact, second, first), second, np.where(exact, 0.0, weight)


def _layout(columns: int, center: float) -> tuple[int, int, NDArray[np.float32]]:
    """Width of the joined detector, where the direct view starts in it, and the direct view's weight per
    column."""
    reach = columns - 1 - 2 * center
    # guard against rounding of a center such as 19.999999999
    extra = max(math.floor(abs(reach) + 1e-6), 0)
    wide = columns + extra
    offset = extra if reach > 0 else 0
    position = np.arange(wide) - offset - center
    shared = min(center, columns - 1 - center)
    ramp = np.clip((position + shared + 0.5) / (2 * shared + 1), 0, 1)
    smooth = ramp * ramp * (3 - 2 * ramp)
    return wide, offset, (smooth if reach >= 0 else 1 - smooth).astype(np.float32)


def _add_mirrored(view: NDArray[Any], center: float, offset: int, target: NDArray[Any]) -> None:
    """Add the view (row, column), mirrored about the axis, to `target`, whose column `offset` is the view's
    column 0."""
    columns = view.shape[1]
    whole, fraction = _mirror(center, offset)
    # target column j takes the view at 2 center - (j - offset) = whole - j + fraction
    source = whole - np.arange(target.shape[1])
    if fraction is None:
        target += view[:, np.clip(source, 0, columns - 1)]
        return
    for tap, weight in zip(range(1 - _TAPS // 2, _TAPS // 2 + 1), _lagrange(fraction)):
        target += weight * view[:, np.clip(source + tap, 0, columns - 1)]


def _mirror(center: float, offset: int) -> tuple[int, float | None]:
    """Column of the mirrored view that comes to column 0: the whole part, and the fraction if there is one."""
    position = 2 * center + offset
    whole = math.floor(position + 1e-9)
    fraction = position - whole
    return whole, fraction if fraction >= 1e-6 else None


def _lagrange(fraction: float) -> NDArray[np.float32]:
    """Weights of the columns -2 … 3 that give the value at `fraction` in [0, 1)."""
    nodes = np.arange(1 - _TAPS // 2, _TAPS // 2 + 1, dtype=np.float64)
    weights = [math.prod((fraction - other) / (node - other) for other in nodes if other != node) for node in nodes]
    return np.array(weights, np.float32)
