"""Find the axis of rotation: independent methods, how far they agree, and a plain word when they cannot
tell."""

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError
from dtomo.prep import center_scores, center_slices
from dtomo.prep.center_slices import Reconstruct
from dtomo.prep.halfturn import is_full_turn

_MAX_ROWS = 8
_LEAVES = "the object leaves the field"
_WINDOW = 5.0
"""Columns on either side of a candidate in which slices are judged."""


@dataclasses.dataclass(frozen=True)
class Method:
    """What one method found: column, its uncertainty, its own measure of quality, and why it was set
    aside."""

    center: float
    uncertainty: float
    quality: float
    rejected: str = ""


@dataclasses.dataclass(frozen=True)
class CenterEstimate:
    """The axis of rotation as found.

    Parameters
    ----------
    center
        Column; NaN when the data cannot tell or the best lies on the end of the range searched.
    uncertainty
        Columns, about one standard deviation; infinite without a center.
    confidence
        0 … 1: 0 not found; 0.3 methods contradict each other, or none of those that failed has its best near the
        only one that did not; 0.4 or 0.6 one method alone, unsure or clear;
        0.9 two and 0.98 three or more independent methods agree.
    methods
        What each method found.
    at_edge
        The best lies on the end of the range searched.
    message
        One sentence for the user.
    """

    center: float
    uncertainty: float
    confidence: float
    methods: dict[str, Method]
    at_edge: bool
    message: str

    @property
    def reliable(self) -> bool:
        """Good enough to reconstruct with, unasked."""
        return self.confidence >= 0.5 and math.isfinite(self.center)


def rows_for_center(shape: tuple[int, ...], count: int = 5) -> NDArray[np.intp]:
    """Row numbers to find the center from: up to `count`, spread over the middle 80 % of the shape's rows."""
    rows = int(shape[1])
    if rows <= count:
        return np.arange(rows)
    return np.unique(np.linspace(0.1 * (rows - 1), 0.9 * (rows - 1), count).round().astype(np.intp))


def find_center(
    projections: NDArray[Any],
    angles: ArrayLike,
    *,
    search: tuple[float, float] | None = None,
    reconstruct: Reconstruct | None = None,
) -> CenterEstimate:
    """The column of the axis of rotation, from a handful of rows.

    Methods, independent of each other but for the first two:

    - "mirror": correlation of views with the mirrored views half a turn later, over their overlap; reaches an
      axis anywhere on the detector (full turns, and half turns that have a pair);
    - "closure": in its stead for evenly spaced half turns, the mirrored half turn must continue the measured
      one (after Vo 2014);
    - "moment": the centers of mass lie on a sinusoid about the axis (objects inside the field);
    - "mass": a full turn, folded, has the same mass from every side (full turns);
    - "slices": light reconstructions about the candidates; the right axis leaves the least negative
      attenuation (half turns) or the least blur (full turns).

    Peak memory: about six times the rows given (at most 8 are used).

    Parameters
    ----------
    projections
        (angle, row, column) attenuation or other line integrals, finite; of complex ones the `main_part` is
        taken. See `rows_for_center` for the rows to take.
    angles
        Degrees, one per view; any order, uneven and repeated ones allowed.
    search
        First and last column to consider; default the whole detector.
    reconstruct
        A function (sinogram (angle, column), angles, center) -> slice, used by "slices" instead of the
        built-in.

    Returns
    -------
    CenterEstimate
        The estimate; `center` is NaN, and `message` says why, where the data cannot tell.

    Raises
    ------
    UserError
        Data or angles that no center can be found from: wrong shapes, values that are not finite, an empty
        range.
    """
    data, degrees, ring = _checked(projections, angles)
    columns = data.shape[2]
    low, high = _search_range(search, columns)
    if not float(np.ptp(data)) > 0:
        raise UserError(
            "all projections are one constant, so there is no center to find; choose rows that show the object"
        )
    if not center_scores.shows_object(data, degrees):
        message = (
            "the data cannot tell where the axis of rotation is: the projections show no object beyond noise and "
            "rounding"
        )
        return CenterEstimate(math.nan, math.inf, 0.0, {}, False, message)
    full_turn = is_full_turn(degrees)
    methods: dict[str, Method] = {}
    notes: list[str] = []
    ends = [_add_mirror(methods, notes, data, degrees, low, high)]
    cut = center_scores.edges_change(data)
    inside = not any(cut)
    few = data[:, _spread(data.shape[1], 3)]
    if not full_turn:
        ends.append(_add_closure(methods, few, degrees, (low, high), inside))
    _add_moment(methods, data, degrees, ring, (low, high), inside)
    _add_slices(methods, few, degrees, (low, high), cut, full_turn, reconstruct)
    return _combined(methods, notes, any(ends), (low, high), columns)


def _checked(projections: NDArray[Any], angles: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.float64], float]:
    data = np.asarray(projections)
    degrees = np.asarray(angles, np.float64).reshape(-1)
    if data.ndim != 3 or 0 in data.shape or data.dtype.kind not in "buifc":
        raise UserError(
            f"the center is found from numbers (angle, row, column), not from {data.dtype} of shape {data.shape}"
        )
    if len(degrees) != len(data) or not np.isfinite(degrees).all():
        raise UserError(f"the center needs one finite angle per view, but has {len(degrees)} for {len(data)} views")
    if len(data) < 2 or data.shape[2] < 8:
        raise UserError(
            f"{len(data)} views of {data.shape[2]} columns are too few to find the center from; give it as a number"
        )
    data = data[:, _spread(data.shape[1], _MAX_ROWS)]
    data = main_part(data) if data.dtype.kind == "c" else data.astype(np.float32)
    if not np.isfinite(data).all():
        raise UserError("the projections hold values that are not finite; normalize them before the center is searched")
    data, ring = _without_rings(data)
    return data, degrees, ring


def main_part(projections: NDArray[Any]) -> NDArray[np.float32]:
    """The real part of line integrals turned by the constant phase that makes it largest, and positive on the whole.

    Still a set of line integrals, which the modulus would not be. It shows the object whichever of real and imaginary
    part does, and of either sign: phases grow or fall with the thickness by convention. Real line integrals keep or
    change their sign.

    Parameters
    ----------
    projections
        (angle, row, column), real or complex, finite.

    Returns
    -------
    array
        (angle, row, column) float32.
    """
    turned: NDArray[Any] = np.array(projections)
    if np.iscomplexobj(turned):
        largest = max(float(np.abs(turned.real).max()), float(np.abs(turned.imag).max())) or 1.0
        squares = (turned / largest) ** 2
        turned = (turned * np.exp(-0.5j * np.angle(squares.sum(dtype=np.complex128)))).real
    sign = -1 if float(np.sum(turned, dtype=np.float64)) < 0 else 1
    return np.asarray(sign * turned, np.float32)


def _without_rings(data: NDArray[np.float32]) -> tuple[NDArray[np.float32], float]:
    """Take out what single columns have in all views (it would match itself for an axis in the middle).

    Returns the data, changed in place, and the standard deviation of what was taken out.
    """
    from scipy import ndimage

    if len(data) < 16:
        return data, 0.0
    profile = np.median(data[:: max(len(data) // 256, 1)], axis=0)
    ring = profile - ndimage.median_filter(profile, size=(1, 7), mode="nearest")
    data -= ring
    return data, 1.4826 * float(np.median(np.abs(ring)))


def _spread(rows: int, count: int) -> NDArray[np.intp]:
    return np.unique(np.linspace(0, rows - 1, min(rows, count)).round().astype(np.intp))


def _search_range(search: tuple[float, float] | None, columns: int) -> tuple[float, float]:
    if search is None:
        return 0.0, columns - 1.0
    low, high = (float(value) for value in search)
    if not (0 <= low < high <= columns - 1) or high - low < 2:
        raise UserError(
            f"the range {low:g} to {high:g} to search for the center must span at least 2 of the columns 0 "
            f"to {columns - 1}"
        )
    return low, high


def _add_mirror(
    methods: dict[str, Method],
    notes: list[str],
    data: NDArray[np.float32],
    angles: NDArray[np.float64],
    low: float,
    high: float,
) -> bool:
    """Add "mirror"; True if its best lies on the end of the range."""
    found = center_scores.mirror_correlation(data, angles)
    if found is None:
        return False
    score, missed = found
    part = score.within(low, high)
    if not np.isfinite(part.values).any():
        return False
    center, quality, at_end = part.best()
    columns = data.shape[2]
    overlap = columns - abs(2 * center - (columns - 1))
    index = int(np.argmax(part.values))
    bend = 0.0
    if not at_end and quality > 0:
        bend = float(2 * part.values[index] - part.values[index - 1] - part.values[index + 1]) / quality
    noise = max(1 - quality**2, 0.0) / max(quality**2 * overlap * score.lines * max(bend, 1e-6), 1e-12)
    uncertainty = 0.05 + 0.5 * math.sqrt(noise) + math.radians(missed) * columns / 30
    # chance alone correlates as 1 / sqrt(samples), of which neighbours hold the same
    chance = math.sqrt(max(overlap, 1) * score.lines / 4)
    clear = quality >= 0.6 and math.atanh(min(quality, 0.999999)) * chance > 5
    rejected = "best on the end of the range" if at_end else "" if clear else "no clear match"
    methods["mirror"] = Method(center, uncertainty, quality, rejected)
    elsewhere, better, _ = score.best()
    if better > quality + 0.02 and better >= 0.6:
        notes.append(f"views match their mirror images better about column {elsewhere:.1f}, outside the range searched")
    return at_end and better >= 0.6


def _add_closure(
    methods: dict[str, Method],
    data: NDArray[np.float32],
    angles: NDArray[np.float64],
    searched: tuple[float, float],
    inside: bool,
) -> bool:
    """Add "closure"; True if its best lies on the end of the range."""
    score = center_scores.half_turn_closure(data, angles)
    if score is None:
        return False
    center, quality, at_end = score.within(*searched).best()
    rejected = "best on the end of the range" if at_end else "" if quality >= 0.3 else "no clear match"
    if not inside:
        rejected = _LEAVES
    methods["closure"] = Method(center, 0.12, quality, rejected)
    return at_end and inside and quality >= 0.3


def _add_moment(
    methods: dict[str, Method],
    data: NDArray[np.float32],
    angles: NDArray[np.float64],
    ring: float,
    searched: tuple[float, float],
    inside: bool,
) -> None:
    fit = center_scores.first_moment(data, angles, ring)
    if fit is None:
        return
    rejected = ""
    if not inside or fit.mass_spread > 0.25 or fit.uncertainty > 2:
        rejected = _LEAVES
    elif not searched[0] <= fit.center <= searched[1]:
        rejected = "outside the range"
    methods["moment"] = Method(fit.center, fit.uncertainty + 0.1, 1 / (1 + fit.mass_spread), rejected)


def _add_slices(
    methods: dict[str, Method],
    data: NDArray[np.float32],
    angles: NDArray[np.float64],
    searched: tuple[float, float],
    cut: tuple[bool, bool],
    full_turn: bool,
    reconstruct: Reconstruct | None,
) -> None:
    """Judge the slices about what the other methods found; "mass" of full turns too."""
    found = sorted((m for m in methods.values() if not m.rejected), key=lambda m: m.uncertainty)
    if not found or len(angles) < 8:
        return
    guess = found[0].center
    columns = data.shape[2]
    # folded, the wide side is the edge on both sides
    wide_side_cut = cut[1] if guess < (columns - 1) / 2 else cut[0]
    if full_turn and not wide_side_cut:
        centers = _half_columns(guess, *searched)
        _add_mass(methods, centers, center_slices.folded_mass_spread(data, angles, centers), len(angles))
    # cupping of an object that leaves the field hides negative values
    if any(cut) and not full_turn:
        return
    starts = [guess]
    if not full_turn:
        starts += [m.center for m in found[1:] if abs(m.center - guess) > _WINDOW]
    reach = min(min(start, columns - 1 - start) for start in starts) - _WINDOW - 1
    if reach < 8:
        return
    centers = np.unique(np.concatenate([_half_columns(start, *searched) for start in starts]))
    faults = center_slices.slice_faults(
        data, angles, centers, full_turn=full_turn, radius=reach, reconstruct=reconstruct
    )
    index = int(np.argmin(faults))
    span = float(faults.max() - faults.min())
    if len(centers) < 5 or not span > 0:
        return
    neighbors = centers[max(index - 1, 0) : index + 2]
    if len(neighbors) < 3 or neighbors[2] - neighbors[0] > 1:
        methods["slices"] = Method(float(centers[index]), math.inf, 0.0, "no minimum about the candidates")
        return
    quality = span / float(np.abs(faults).max())
    center = float(centers[index]) + 0.5 * center_scores.parabola_peak(-faults[index - 1 : index + 2])
    methods["slices"] = Method(center, 0.1 + 0.08 / quality, quality)


def _add_mass(
    methods: dict[str, Method], centers: NDArray[np.float64], spread: NDArray[np.float64], views: int
) -> None:
    """The minimum of a variance: noise plus a parabola in the distance from the axis."""
    if len(centers) < 5:
        return
    middle = float(centers.mean())
    bend, slope, _ = np.polyfit(centers - middle, spread, 2)
    if not bend > 0:
        return
    center = float(middle - slope / (2 * bend))
    uncertainty = 0.1 + math.sqrt(float(spread.min()) / (bend * views))
    clear = centers[0] <= center <= centers[-1] and uncertainty < 2
    quality = 1 - float(spread.min() / spread.max())
    methods["mass"] = Method(center, uncertainty, quality, "" if clear else "no clear minimum")


def _half_columns(middle: float, low: float, high: float) -> NDArray[np.float64]:
    centers = round(2 * middle) / 2 + np.arange(-2 * _WINDOW, 2 * _WINDOW + 1) / 2
    return centers[(centers >= low) & (centers <= high)]


def _combined(
    methods: dict[str, Method], notes: list[str], at_edge: bool, searched: tuple[float, float], columns: int
) -> CenterEstimate:
    """The largest set of methods that agree, weighted by their uncertainties."""
    used = {name: method for name, method in methods.items() if not method.rejected}
    sets = [[name for name in used if _agree(used[name], used[start])] for start in used]
    if not sets or (at_edge and len(max(sets, key=len)) < 2):
        return _not_found(methods, notes, at_edge, searched, columns)
    best = max(sets, key=lambda names: (len(names), -min(used[name].uncertainty for name in names)))
    weights = np.array([1 / used[name].uncertainty ** 2 for name in best])
    values = np.array([used[name].center for name in best])
    center = float(np.average(values, weights=weights))
    spread = float(np.sqrt(np.average((values - center) ** 2, weights=weights)))
    uncertainty = max(float(weights.sum() ** -0.5), spread)
    against = [name for name in used if name not in best and used[name].uncertainty < 1]
    # mirror and closure look at the same views; what is uncertain by columns confirms nothing
    independent = {"closure" if name == "mirror" else name for name in best if used[name].uncertainty < 1}
    confidence = {0: 0.3, 1: 0.6, 2: 0.9}.get(len(independent), 0.98)
    if best == ["mirror"] and used["mirror"].quality < 0.9:
        confidence = 0.4
    if len(against) >= len(best) or (len(best) == 1 and _alone(best[0], methods)):
        confidence = 0.3
    if notes:
        confidence = min(confidence, 0.6)
    listed = ", ".join(f"{name} {used[name].center:.2f}" for name in best)
    message = f"the axis of rotation is at column {center:.2f} ± {uncertainty:.2f} ({listed})"
    if against:
        message += "; against it: " + ", ".join(f"{name} {used[name].center:.2f}" for name in against)
    message = "; ".join([message, *notes])
    return CenterEstimate(center, uncertainty, confidence, methods, False, message)


def _alone(name: str, methods: dict[str, Method]) -> bool:
    """Whether a method that is not clear in itself has the best of no other that applied near its own."""
    if methods[name].quality >= 0.9:
        return False
    others = [one for other, one in methods.items() if other != name and one.rejected != _LEAVES]
    reach = 0.6 + 2 * methods[name].uncertainty
    near = [abs(one.center - methods[name].center) <= reach and math.isfinite(one.uncertainty) for one in others]
    return bool(others) and not any(near)


def _agree(one: Method, other: Method) -> bool:
    return abs(one.center - other.center) <= 0.6 + 2 * math.hypot(one.uncertainty, other.uncertainty)


def _not_found(
    methods: dict[str, Method], notes: list[str], at_edge: bool, searched: tuple[float, float], columns: int
) -> CenterEstimate:
    low, high = searched
    if at_edge:
        message = (
            f"the best center lies on the end of the columns searched, {low:g} to {high:g}, so the axis "
            "may lie beyond; "
            "search a wider range or give the center as a number"
        )
    else:
        tried = ", ".join(f"{name} (quality {m.quality:.2f}): {m.rejected}" for name, m in methods.items())
        message = (
            f"the data cannot tell where the axis of rotation is: {tried or 'no method applies'}; it may lie "
            f"outside the detector (columns 0 to {columns - 1}); give the center as a number"
        )
    return CenterEstimate(math.nan, math.inf, 0.0, methods, at_edge, "; ".join([message, *notes]))
