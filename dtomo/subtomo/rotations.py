"""Which rotations are tried: all of them, evenly, or those around an orientation.

Rotations are active matrices, reference to particle, on (x, y, z). The distance of two is the angle of the rotation
that takes one to the other.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation

from dtomo.errors import UserError
from dtomo.subtomo.symmetry import symmetry_group

LocalKind = Literal["even", "glocal"]

MOST_SHELLS = 50
"""Of a local search: some 680,000 rotations."""
_MOST = 20_000_000
"""Rotations of a uniform grid."""


def local_rotations(
    start: ArrayLike, shells: int, increment_degrees: float, kind: LocalKind = "even"
) -> NDArray[np.float64]:
    """Rotations around an orientation.

    Parameters
    ----------
    start
        ``(3, 3)``.
    shells
        How many increments far, 0 or more.
    increment_degrees
        Degrees, more than 0.
    kind
        "even": ``start · exp(v)``, turns about the particle's own axes, where v lies on a body-centered cubic lattice
        within shells times the increment: the nearest ones are an increment apart, and everything nearer to the start
        than ``(shells - 0.6455) increments`` is nearer than 0.6455 increments to one of them (√5 / (2 √3), the
        covering radius). The start comes first, then the others by their distance from it.
        "glocal": PyTom's set, ``Rz(ψ) · Rx(j Δ) · Rz(φ - ψ) · start``, turns about the tomogram's axes: 2 shells + 1
        turns φ in plane, tilts up to half the shells, ψ on a ring of about 2 π j places. The start comes last. 3
        shells: 147 rotations.

    Returns
    -------
    ndarray
        ``(rotation, 3, 3)``.

    Raises
    ------
    UserError
        A start that is no rotation, shells or an increment that make no sense, an unknown kind.
    """
    matrix = np.asarray(start, np.float64)
    if matrix.shape != (3, 3) or not np.allclose(matrix @ matrix.T, np.eye(3), atol=1e-4) or np.linalg.det(matrix) < 0:
        raise UserError(f"a search starts from a rotation matrix (3, 3); got {matrix}")
    if shells != int(shells) or shells < 0:
        raise UserError(f"the number of shells is whole and not negative; got {shells}")
    if not (np.isfinite(increment_degrees) and increment_degrees > 0):
        raise UserError(f"the increment of a search is an angle above 0 degrees; got {increment_degrees}")
    if shells > MOST_SHELLS:
        raise UserError(f"a local search has {MOST_SHELLS} shells at most, not {shells}; take a larger increment")
    if shells * increment_degrees > 180:
        raise UserError(f"{shells} shells of {increment_degrees} degrees go beyond half a turn; take a global search")
    if kind == "glocal":
        return _glocal(int(shells), float(increment_degrees)) @ matrix
    if kind != "even":
        raise UserError(f"local rotations are even or glocal, not {kind!r}")
    return matrix @ _even(int(shells), float(increment_degrees))


def uniform_rotations(increment_degrees: float, symmetry: str | None = None) -> NDArray[np.float64]:
    """All rotations, evenly: no rotation is farther than the increment from one of them.

    Directions are the centers of HEALPix's pixels (a whole number along a side of its twelve squares, not only powers
    of two), each with turns in plane at even steps. With a symmetry only one of equivalent rotations ``R g`` is kept,
    the one nearest to the identity, and those around the border of that cell that its inside needs: 1 / n of all for
    Cn, 1 / 2n for Dn, some more than 1 / order for T, O and I.

    Parameters
    ----------
    increment_degrees
        Degrees, from 0.5 to 90.
    symmetry
        A name that `symmetry_group` knows; None: none.

    Returns
    -------
    ndarray
        ``(rotation, 3, 3)``.

    Raises
    ------
    UserError
        An increment out of range or so small that there would be more than 20 million rotations; an unknown symmetry.

    Notes
    -----
    K. M. Górski et al., Astrophys. J. 622, 759-771 (2005); A. Yershova et al., Int. J. Robot. Res. 29, 801-812 (2010).
    """
    if not 0.5 <= increment_degrees <= 90:
        raise UserError(f"the increment of a global search is from 0.5 to 90 degrees; got {increment_degrees}")
    group = symmetry_group(symmetry or "C1")
    name = (symmetry or "C1").strip().upper()
    fold = int(name[1:]) if name[0] in "CD" else {"T": 3, "I3": 5, "I4": 5, "O": 4}.get(name, 2)
    side = int(np.ceil(np.degrees(np.sqrt(np.pi / 3)) / increment_degrees))
    turns = fold * int(np.ceil(360 / (fold * increment_degrees)))
    if 12 * side**2 * turns > _MOST:
        raise UserError(f"an increment of {increment_degrees} degrees asks for more than {_MOST} rotations; take more")
    angle, azimuth = _healpix_centers(side)
    if name[0] == "D":  # the turn by 180 degrees about x takes a direction to the opposite one
        half = (angle < np.pi / 2 - 1e-9) | ((abs(angle - np.pi / 2) <= 1e-9) & (azimuth < np.pi - 1e-9))
        angle, azimuth = angle[half], azimuth[half]
    in_plane = np.arange(turns // fold) * 2 * np.pi / turns  # fold times that is all: those are equivalent
    tilted = Rotation.from_euler("ZY", np.stack([azimuth, angle], 1)).as_matrix()
    spun = Rotation.from_euler("Z", in_plane[:, None]).as_matrix()
    every = (tilted[:, None] @ spun[None]).reshape(-1, 3, 3)
    return every if name[0] in "CD" else _cell(every, group, fold, increment_degrees)


def _cell(
    rotations: NDArray[np.float64], group: NDArray[np.float64], fold: int, covering_degrees: float
) -> NDArray[np.float64]:
    """Those whose equivalent under turns about z by 1 / fold lies in the group's cell, or near it.

    The cell is what is not nearer to another rotation of the group than to the identity. What is within it is covered
    by rotations up to the covering radius outside, whose distances differ by twice that at most.
    """
    about_z = Rotation.from_euler("Z", np.arange(fold)[:, None] * 2 * np.pi / fold).as_matrix()
    traces = rotations.reshape(-1, 9) @ np.swapaxes(about_z, 1, 2).reshape(fold, 9).T
    nearest = traces.argmax(1)
    own, least = (
        np.degrees(np.arccos(np.clip((trace - 1) / 2, -1, 1)))
        for trace in (traces.max(1), (rotations.reshape(-1, 9) @ np.swapaxes(group, 1, 2).reshape(-1, 9).T).max(1))
    )
    kept = own <= least + 2 * covering_degrees
    return rotations[kept] @ about_z[nearest[kept]]


def _healpix_centers(side: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Polar angle and azimuth, radians, of the centers of ``12 side²`` pixels of equal area, ring by ring."""
    heights, azimuths = [], []
    for ring in range(1, 4 * side):
        north = min(ring, 4 * side - ring)
        if north < side:
            count, height, offset = 4 * north, 1 - north**2 / (3 * side**2), 0.5
        else:
            count, height, offset = 4 * side, 4 / 3 - 2 * north / (3 * side), 0.5 * ((north - side + 1) % 2)
        azimuths.append((np.arange(count) + offset) * 2 * np.pi / count)
        heights.append(np.full(count, height if ring == north else -height))
    return np.arccos(np.concatenate(heights)), np.concatenate(azimuths)


def _even(shells: int, increment: float) -> NDArray[np.float64]:
    """Turns by the points of a body-centered cubic lattice within a ball, by their lengths."""
    cube = 2 / 3**0.5  # edge of its cells, in increments
    reach = int(np.ceil(shells / cube)) + 1
    corners = np.stack(np.meshgrid(*[np.arange(-reach, reach + 1)] * 3, indexing="ij"), -1).reshape(-1, 3)
    points = np.concatenate([corners, corners + 0.5]) * cube
    length = np.linalg.norm(points, axis=1)
    kept = length <= shells + 1e-9
    order = np.argsort(np.rint(length[kept] * 1e6), kind="stable")
    return Rotation.from_rotvec(np.deg2rad(increment) * points[kept][order]).as_matrix()


def _glocal(shells: int, increment: float) -> NDArray[np.float64]:
    """PyTom's local rotations, the identity last."""
    angles = []
    for in_plane in increment * np.arange(-shells, shells + 1):
        for tilt in range(-(-shells // 2) + 1):
            ring = 1
            if tilt:
                ring = max(1, int(np.ceil(360 * np.sin(np.deg2rad(tilt * increment)) / increment)))
            for around in 360 / ring * np.arange(ring):
                angles.append((around, tilt * increment, in_plane - around))
    found = Rotation.from_euler("ZXZ", angles, degrees=True).as_matrix()
    found[-1] = np.eye(3)
    return found
