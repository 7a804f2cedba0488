"""What each view and each ray of a turn or an arc counts in filtered back projection."""

import dataclasses

import numpy as np

from dtomo.errors import UserError
from dtomo.geometry.orbits import Numbers, Orbit, spacing
from dtomo.geometry.vectors import Beam, VectorGeometry

_LOPSIDED = 0.1  # from which difference of its two sides, over their sum, a detector lies aside on purpose
_LEAST_TAPER = np.deg2rad(5.0)  # over which the ends of an arc fade, where it is hardly longer than half a turn


@dataclasses.dataclass(frozen=True)
class Redundancy:
    """Which rays are measured twice, and what each then counts.

    A ray (angle β of the source, angle γ aside in its fan) is the same as (β + π + 2γ, -γ). With a smooth c ≥ 0 of rays
    it counts c / (c + c of the other): of both together 1, where only one is measured 1 as well.

    Attributes
    ----------
    beam, orbit
        Of the geometry.
    radians
        What each view stands for: parallel ones of half a turn, others (and those `near` the axis) of a whole one.
    start, arc, taper
        Where the arc begins, how long it is, over which angle c falls to 0 at its ends; taper 0: a whole turn.
    near, side
        On a detector that lies aside (else 0), how far its shorter side reaches, in radians of the fan or lengths, and
        the sign of the longer one: c falls to 0 from `near` on the other side to the end of the shorter one.

    Notes
    -----
    D. L. Parker, Med. Phys. 9, 254 (1982); F. Noo et al., Phys. Med. Biol. 47, 2525 (2002), eq. 42; G. Wang, Med. Phys.
    29, 1634 (2002).
    """

    beam: Beam
    orbit: Orbit
    radians: Numbers
    start: float
    arc: float
    taper: float
    near: float
    side: float

    @property
    def each_alike(self) -> bool:
        """Whether all rays of a view count the same."""
        return not (self.taper or self.near)

    def of_rays(self, view: int, aside: Numbers) -> Numbers:
        """What rays of a view count, 0 to 1, by how far aside they lie (see `aside`)."""
        if self.each_alike:
            return np.full(np.shape(aside), 1.0 if self.beam == "parallel" else 0.5)
        here = self.orbit.angles[view]
        own = self._fade_aside(aside) * self._fade_ends(np.full(np.shape(aside), here))
        there = here + np.pi + (0.0 if self.beam == "parallel" else 2 * aside)
        other = self._fade_aside(-aside) * self._fade_ends(there)
        return np.where(own > 0, own / np.maximum(own + other, 1e-12), 0.0)

    def _fade_aside(self, aside: Numbers) -> Numbers:
        if not self.near:
            return np.ones_like(aside)
        return _smooth((self.near + self.side * aside) / (2 * self.near))

    def _fade_ends(self, angles: Numbers) -> Numbers:
        if not self.taper:
            return np.ones_like(angles)
        along = np.mod(angles - self.start, 2 * np.pi)
        return _smooth(np.minimum(along, self.arc - along) / self.taper)


def redundancy_of(geometry: VectorGeometry, orbit: Orbit) -> Redundancy:
    """What views and rays of a geometry count.

    Raises
    ------
    UserError
        A detector that lies beside the axis altogether.
    """
    radians, missing = spacing(orbit.angles, 2 * np.pi)
    near, side = (0.0, 1.0) if missing else _shorter_side(geometry, orbit)
    if geometry.beam == "parallel" and not near:
        radians, _ = spacing(orbit.angles, np.pi)
    if geometry.beam == "parallel" or not missing:
        return Redundancy(geometry.beam, orbit, radians, 0.0, 2 * np.pi, 0.0, near, side)
    ordered = np.sort(np.mod(orbit.angles, 2 * np.pi))
    gaps = np.diff(np.append(ordered, ordered[0] + 2 * np.pi))
    after = int(np.argmax(gaps))
    arc = 2 * np.pi - missing
    start = ordered[(after + 1) % len(ordered)] - (arc - (2 * np.pi - gaps[after])) / 2
    return Redundancy(geometry.beam, orbit, radians, float(start), arc, max(arc - np.pi, _LEAST_TAPER), 0.0, 1.0)


def missing_side(geometry: VectorGeometry, redundancy: Redundancy) -> tuple[int, int]:
    """Columns that a detector which lies aside lacks before its first and behind its last to lie evenly.

    Nothing is measured there, but filtered projections reach as far.
    """
    if not redundancy.near:
        return 0, 0
    first, last = (
        np.array([
            float(aside(geometry, redundancy.orbit, view, geometry.detector[view] + sign * geometry.column_step[view]))
            for view in range(geometry.views)
        ])
        for sign in (-geometry.columns / 2, geometry.columns / 2)
    )  # fmt: skip
    far = np.abs(np.concatenate([first, last])).max()
    lacking = int(np.ceil(geometry.columns * (far - redundancy.near) / (far + redundancy.near) - 1e-6))
    return (lacking, 0) if (np.abs(first) < np.abs(last)).all() else (0, lacking)


def aside(geometry: VectorGeometry, orbit: Orbit, view: int, pixels: Numbers) -> Numbers:
    """How far aside rays lie that meet a detector at points ``(…, 3)``: angle in the plane of the orbit, or length.

    The angle is that from the middle of the circle, growing as the source does; with a parallel beam the distance of
    the ray from an axis through the middle of the volume.
    """
    if geometry.beam == "parallel":
        return (pixels - np.array(geometry.middle)) @ orbit.along[view]
    ray = pixels - geometry.source[view]
    return np.arctan2(-(ray @ orbit.along[view]), ray @ orbit.inward[view])


def _shorter_side(geometry: VectorGeometry, orbit: Orbit) -> tuple[float, float]:
    """(how far the shorter side of a detector reaches that lies aside on purpose, else 0; sign of the longer one)."""
    half = geometry.columns / 2 * geometry.column_step
    ends = np.array([
        [float(aside(geometry, orbit, view, geometry.detector[view] + sign * half[view])) for sign in (-1, 1)]
        for view in range(geometry.views)
    ])  # fmt: skip
    low, high = ends.min(1).max(), ends.max(1).min()
    if low >= 0 or high <= 0:
        raise UserError(
            "filtered back projection needs a detector that sees the axis of rotation in every view; use an iterative "
            "algorithm"
        )
    if abs(high + low) <= _LOPSIDED * (high - low):
        return 0.0, 1.0
    return float(min(-low, high)), 1.0 if high > -low else -1.0


def _smooth(x: Numbers) -> Numbers:
    return np.sin(np.pi / 2 * np.clip(x, 0, 1)) ** 2
