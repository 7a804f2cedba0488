"""Point groups of particles: their rotations, and how far orientations lie apart under them.

A reference with the symmetry G looks the same after any rotation g of G, so that an orientation R (reference to
particle) says the same as R g. The axes lie as RELION lays them: Cn about z; Dn with another two-fold axis x; T with a
three-fold axis z; O with four-fold axes x, y, z; I1 and I2 (which is I) with two-fold axes x, y, z, and five-fold ones
in the plane (x, z) that are nearer to x (I1) or to z (I2); I3 and I4 with a five-fold axis z and a two-fold one in that
plane, at negative (I3) or positive x (I4).
"""

import re
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation

from dtomo.errors import UserError

_GOLDEN = (1 + 5**0.5) / 2
_GENERATORS: dict[str, list[tuple[int, tuple[float, float, float]]]] = {
    "T": [(3, (0, 0, 1)), (2, (0, 2**0.5, 1))],
    "O": [(4, (0, 0, 1)), (3, (1, 1, 1))],
    "I": [(2, (0, 0, 1)), (5, (1, 0, _GOLDEN))],
    "I1": [(2, (0, 0, 1)), (5, (_GOLDEN, 0, -1))],
    "I2": [(2, (0, 0, 1)), (5, (1, 0, _GOLDEN))],
    "I3": [(5, (0, 0, 1)), (2, (-1, 0, _GOLDEN))],
    "I4": [(5, (0, 0, 1)), (2, (1, 0, _GOLDEN))],
}


def symmetry_group(name: str) -> NDArray[np.float64]:
    """All rotations of a point group.

    Parameters
    ----------
    name
        Cn, Dn (n from 1 to 999), T, O, I, I1, I2, I3 or I4, in capitals or not; axes as this module's text says.

    Returns
    -------
    ndarray
        Matrices ``(rotation, 3, 3)``, the identity first.

    Raises
    ------
    UserError
        It is no such name.
    """
    text = str(name).strip().upper()
    found = re.fullmatch(r"([CD])([1-9]\d{0,2})", text)
    if found is None and text not in _GENERATORS:
        raise UserError(f"a symmetry is one of Cn, Dn (such as C4 or D2), T, O, I, I1, I2, I3 and I4, not {name!r}")
    if found is None:
        return _closed([_about(axis, 360 / fold) for fold, axis in _GENERATORS[text]])
    fold = int(found[2])
    about_z = Rotation.from_euler("z", np.arange(fold)[:, None] * 360 / fold, degrees=True).as_matrix()
    return about_z if found[1] == "C" else np.concatenate([about_z, about_z @ np.diag([1.0, -1.0, -1.0])])


def angle_between(a: ArrayLike, b: ArrayLike, group: ArrayLike | None = None) -> Any:
    """The angle of the rotation that takes one orientation to the other, degrees; the least one under a point group.

    Parameters
    ----------
    a, b
        Rotations ``(…, 3, 3)`` that broadcast.
    group
        `symmetry_group` of the reference; None: none.

    Returns
    -------
    float or ndarray
        float64 ``(…)``, from 0 to 180.
    """
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    rest = np.swapaxes(first, -1, -2) @ second
    turns = np.eye(3)[None] if group is None else np.asarray(group, np.float64)
    return _angles(rest[..., None, :, :] @ turns).min(-1)


def nearest_equivalent(rotations: ArrayLike, to: ArrayLike, group: ArrayLike) -> NDArray[np.float64]:
    """Those of the equivalent orientations ``R g`` that lie nearest to others.

    Parameters
    ----------
    rotations, to
        ``(…, 3, 3)`` that broadcast; the identity as `to` gives each orientation its place in the group's own cell.
    group
        `symmetry_group` of the reference.

    Returns
    -------
    ndarray
        float64 ``(…, 3, 3)``.
    """
    equivalent = np.asarray(rotations, np.float64)[..., None, :, :] @ np.asarray(group, np.float64)
    angles = _angles(np.swapaxes(equivalent, -1, -2) @ np.asarray(to, np.float64)[..., None, :, :])
    best = (angles > angles.min(-1, keepdims=True) + 1e-9).argmin(-1)  # the first of those that are equally near
    equivalent = np.broadcast_to(equivalent, (*angles.shape, 3, 3))
    return np.take_along_axis(equivalent, best[..., None, None, None], -3)[..., 0, :, :]


def _angles(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Angles of rotations ``(…, 3, 3)``, degrees, exact for small ones too."""
    trace = np.trace(matrices, axis1=-2, axis2=-1)
    skew = matrices - np.swapaxes(matrices, -1, -2)
    sine = np.sqrt(skew[..., 0, 1] ** 2 + skew[..., 0, 2] ** 2 + skew[..., 1, 2] ** 2)  # twice it, as the cosine
    return np.degrees(np.arctan2(sine, trace - 1))


def _about(axis: ArrayLike, degrees: float) -> NDArray[np.float64]:
    direction = np.asarray(axis, np.float64)
    return Rotation.from_rotvec(np.deg2rad(degrees) * direction / np.linalg.norm(direction)).as_matrix()


def _closed(generators: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """All products of some rotations, in the order in which they are found."""
    found = [np.eye(3)]
    for one in found:  # it grows meanwhile
        for generator in generators:
            product = Rotation.from_matrix(one @ generator).as_matrix()
            if min(np.abs(product - other).max() for other in found) > 1e-6:
                found.append(product)
    return np.array(found)
