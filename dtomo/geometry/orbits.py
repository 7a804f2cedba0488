"""How the source goes round: the circle that filtered back projection needs."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.geometry.vectors import VectorGeometry, Vectors

Numbers = NDArray[np.float64]

_OFF_CIRCLE = 2e-3  # how far a source may lie from the circle, over its radius
_OFF_CONE = 0.02  # how much the cosine between a parallel beam and the axis may differ between views


@dataclasses.dataclass(frozen=True)
class Orbit:
    """The circle of a geometry's sources, or the directions that a parallel beam comes from.

    Attributes
    ----------
    axis
        Unit vector; angles grow about it.
    middle, radius
        Of the circle; of directions, 0 and 1.
    angles
        Radians, of each view.
    inward, along
        Unit vectors of each view: from the source to the middle, and the way it goes as the angle grows.
    """

    axis: Numbers
    middle: Numbers
    radius: float
    angles: Numbers
    inward: Vectors
    along: Vectors

    @property
    def velocity(self) -> Vectors:
        """How the source moves, per radian."""
        return self.radius * self.along


def orbit_of(geometry: VectorGeometry) -> Orbit:
    """The circle that the sources of a geometry lie on, or the parallel beams come from.

    Raises
    ------
    UserError
        Sources on no circle, beams that are not at one angle with one axis, too few different views to tell.
    """
    parallel = geometry.beam == "parallel"
    places = geometry.source
    if parallel:
        places = -places / np.linalg.norm(places, axis=1, keepdims=True)
    spread = places - places.mean(0)
    _, sizes, directions = np.linalg.svd(spread, full_matrices=True)
    reach = np.abs(spread).max()
    if len(places) < 3 or sizes[1] < 1e-6 * max(reach, 1e-300) * np.sqrt(len(places)):
        raise UserError(
            f"filtered back projection needs views from all along an arc; these {geometry.views} come from "
            "places that lie in a line. Use an iterative algorithm"
        )
    axis = directions[2]
    axis = axis if axis[np.argmax(np.abs(axis))] > 0 else -axis
    one, two = directions[:2]
    flat = np.stack([spread @ one, spread @ two], 1) / reach
    found, *_ = np.linalg.lstsq(np.column_stack([2 * flat, np.ones(len(flat))]), (flat**2).sum(1), rcond=None)
    middle = places.mean(0) + reach * (found[0] * one + found[1] * two)
    radius = float(reach * np.sqrt(found[2] + found[0] ** 2 + found[1] ** 2))
    _check_circle(places, middle, axis, radius, parallel)
    if parallel:
        middle = axis * (places @ axis).mean()
    out = places - middle
    out -= np.outer(out @ axis, axis)
    out /= np.linalg.norm(out, axis=1, keepdims=True)
    angles = np.arctan2(out @ np.cross(axis, one), out @ one)
    return Orbit(axis, middle, radius, angles, -out, np.cross(axis, out))


def _check_circle(places: Vectors, middle: Numbers, axis: Numbers, radius: float, parallel: bool) -> None:
    out = places - middle
    height = out @ axis
    off = np.hypot(np.linalg.norm(out - np.outer(height, axis), axis=1) - radius, height)
    view = int(np.argmax(off))
    if parallel and np.ptp(height) > _OFF_CONE:
        raise UserError(
            f"filtered back projection needs beams at one angle with one axis, but view {view} leans differently; use "
            "an iterative algorithm"
        )
    if not parallel and off[view] > _OFF_CIRCLE * radius:
        raise UserError(
            f"filtered back projection needs sources on a circle, but that of view {view} lies {off[view]:.3g} beside "
            f"the circle of radius {radius:.6g} that fits best (a helix? a free path?); use an iterative algorithm"
        )


def spacing(angles: Numbers, period: float) -> tuple[Numbers, float]:
    """(what part of the period each angle stands for, the largest gap where it is not filled, else 0), same units.

    Half the way to the neighbours on either side, modulo the period; equal angles share it. One gap that is much wider
    than all others (a missing wedge, a short scan) is not filled: it counts as the next widest.
    """
    folded = np.mod(np.asarray(angles, np.float64), period)
    unit = period / 180e6
    folded[folded > period - unit] = 0.0
    rounded = np.round(folded / unit).astype(np.int64)
    places, which, counts = np.unique(rounded, return_inverse=True, return_counts=True)
    if len(places) == 1:
        return np.full(len(folded), period / len(folded)), 0.0
    gaps = np.diff(np.append(places, places[0] + 180_000_000)) * unit
    next_widest, widest = np.sort(gaps)[-2:]
    opened = widest > period / 36 and widest > 5 * next_widest
    if opened:
        gaps[np.argmax(gaps)] = next_widest
    each = (gaps + np.roll(gaps, 1)) / 2 / counts
    return each[which], float(widest - next_widest) if opened else 0.0
