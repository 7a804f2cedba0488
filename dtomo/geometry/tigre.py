"""Geometries from and to the parameters of TIGRE; TIGRE itself is not needed.

As read from its projectors (``Common/CUDA/Siddon_projection.cu``, ``projection.cpp``): before it is turned the source
lies at (DSO, 0, 0), columns of the detector run along y and rows along z; the detector is turned by
Rz(rotDetector[2]) Ry(rotDetector[1]) Rx(rotDetector[0]) about its middle, moved to (DSO - DSD, offDetector[1],
offDetector[0]), and all of it turned by the angles (about z, or Euler angles ZYZ). The volume lies at offOrigin; COR
moves source and detector along the columns' direction. Its volumes are ``(z, y, x)``, projections ``(view, row,
column)``, as here; nVoxel, dVoxel and offOrigin are (z, y, x), nDetector, dDetector and offDetector (row, column),
angles radians. An angle of 0 is dtomo's 90 degrees. A parallel beam goes along DSO, also where offDetector moves the
detector.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError
from dtomo.geometry.vectors import VectorGeometry, Vectors

Numbers = NDArray[np.float64]


def from_tigre(geo: Any, angles: ArrayLike) -> VectorGeometry:
    """The geometry that TIGRE's parameters describe.

    Parameters
    ----------
    geo
        ``tigre.geometry``, or anything with its attributes: DSD, DSO, nDetector, dDetector, nVoxel, dVoxel, mode, and
        where they are not zero offOrigin, offDetector, rotDetector, COR; one for all or one for each view.
    angles
        Radians, ``(views,)``, or Euler angles ``(views, 3)``.

    Raises
    ------
    UserError
        Something is missing or has another shape, the mode is neither cone nor parallel, or a parallel beam is turned
        by Euler angles.
    """
    turns = np.array(angles, np.float64)
    turns = np.pad(turns.reshape(-1, 1), ((0, 0), (0, 2))) if turns.ndim < 2 else turns
    if turns.ndim != 2 or turns.shape[1] != 3 or not len(turns):
        raise UserError(f"angles of TIGRE are (views,) or (views, 3), not of shape {np.shape(angles)}")
    mode = getattr(geo, "mode", None) or "cone"
    if mode not in ("cone", "parallel"):
        raise UserError(f"the mode of a geometry of TIGRE is cone or parallel, not {mode!r}")
    if mode == "parallel" and np.any(turns[:, 1:]):
        raise UserError("TIGRE turns a parallel beam about z alone; these are Euler angles")
    views = len(turns)
    near, far = _each(geo, "DSO", views, 1, 0.0 if mode == "parallel" else None), _each(geo, "DSD", views, 1, 0.0)
    (rows, columns), (down, across) = _pair(geo, "nDetector"), _pair(geo, "dDetector")
    shape, voxel = (tuple(np.ravel(getattr(geo, name, ()))) for name in ("nVoxel", "dVoxel"))
    beside, tilt = _each(geo, "offDetector", views, 2, 0.0), _each(geo, "rotDetector", views, 3, 0.0)
    origin, moved = _each(geo, "offOrigin", views, 3, 0.0)[:, ::-1], _each(geo, "COR", views, 1, 0.0)
    detector_turn = _turn(2, tilt[:, 2]) @ _turn(1, tilt[:, 1]) @ _turn(0, tilt[:, 0])
    turn = _turn(2, turns[:, 0]) @ _turn(1, turns[:, 1]) @ _turn(2, turns[:, 2])
    place = np.concatenate([near - far, beside[:, 1:], beside[:, :1]], 1)
    aside = moved * np.stack([-np.sin(turns[:, 0]), np.cos(turns[:, 0]), np.zeros(views)], 1)
    middle = origin[0] if np.all(origin == origin[0]) else np.zeros(3)
    shift = aside - (origin - middle)
    source = -turn[:, :, 0] if mode == "parallel" else turn[:, :, 0] * near + shift
    return VectorGeometry(
        "parallel" if mode == "parallel" else "cone", source, np.einsum("vij,vj->vi", turn, place) + shift,
        (turn @ detector_turn)[:, :, 1] * across, (turn @ detector_turn)[:, :, 2] * down, int(rows), int(columns),
        shape, voxel, tuple(middle),
    )  # fmt: skip


def to_tigre(geometry: VectorGeometry) -> tuple[dict[str, Any], Numbers]:
    """TIGRE's parameters of a geometry, to be put into a ``tigre.geometry`` as attributes, and the angles.

    Returns
    -------
    (parameters, angles)
        DSD, DSO, offDetector and rotDetector are one for each view. Angles are radians, ``(views,)``, or Euler angles
        ``(views, 3)`` where not all views are turned about z alone.

    Raises
    ------
    UserError
        What TIGRE has no parameters for: fans of more than one slice, pixels that are not right-angled or not the same
        in all views, parallel beams that are not perpendicular to z and to the detector.
    """
    g = geometry
    if g.beam == "fan" and (g.rows, g.shape[0]) != (1, 1):
        raise UserError("TIGRE has no fans of several slices; export one slice and one row")
    sizes = np.stack([np.linalg.norm(g.row_step, axis=1), np.linalg.norm(g.column_step, axis=1)], 1)
    square = np.abs(np.sum(g.row_step * g.column_step, 1)) <= 1e-9 * sizes.prod(1)
    if not square.all() or np.ptp(sizes, 0).max() > 1e-9 * sizes.max():
        raise UserError("TIGRE has right-angled pixels, of one size in all views; these are not")
    down, across = g.row_step / sizes[:, :1], g.column_step / sizes[:, 1:]
    if g.beam == "parallel":
        outwards = -g.source / np.linalg.norm(g.source, axis=1, keepdims=True)
        askew = np.abs(outwards[:, 2]) + np.abs(np.sum(outwards * down, 1)) + np.abs(np.sum(outwards * across, 1))
        if (askew > 1e-9).any():
            raise UserError("TIGRE has parallel beams perpendicular to z and to the detector alone; this one is tilted")
        near = np.full(g.views, 2 * float(np.linalg.norm(g.lengths)))
    else:
        near = np.linalg.norm(g.source, axis=1)
        outwards = g.source / near[:, None]
    turn = _frames(outwards, across)
    local = np.einsum("vji,vj->vi", turn, g.detector)
    local_across, local_down = (np.einsum("vji,vj->vi", turn, table) for table in (across, down))
    detector_turn = np.stack([np.cross(local_across, local_down), local_across, local_down], 2)
    far = near - local[:, 0] if g.beam != "parallel" else 2 * near
    parameters: dict[str, Any] = {
        "mode": "parallel" if g.beam == "parallel" else "cone", "DSO": near, "DSD": far,
        "nDetector": np.array([g.rows, g.columns]), "dDetector": sizes[0], "sDetector": sizes[0] * [g.rows, g.columns],
        "nVoxel": np.array(g.shape), "dVoxel": np.array(g.voxel), "sVoxel": g.lengths,
        "offOrigin": np.array(g.middle)[::-1], "offDetector": local[:, [2, 1]],
        "rotDetector": _about_axes(detector_turn), "COR": 0.0, "accuracy": 0.5,
    }  # fmt: skip
    angles = _about_zyz(turn)
    return parameters, angles if np.any(np.abs(angles[:, 1:]) > 1e-12) else angles[:, 0]


def _frames(outwards: Vectors, across: Vectors) -> Numbers:
    """Rotations ``(views, 3, 3)`` that take x to where the source is; about z alone where that is possible."""
    level = (np.abs(outwards[:, 2]) < 1e-12).all()
    second = np.cross([0.0, 0, 1], outwards) if level else across - np.sum(across * outwards, 1)[:, None] * outwards
    second = second / np.linalg.norm(second, axis=1, keepdims=True)
    return np.stack([outwards, second, np.cross(outwards, second)], 2)


def _about_zyz(turn: Numbers) -> Numbers:
    """Angles with Rz(a) Ry(b) Rz(c) = turn, b from 0 to π; c is 0 where b is 0."""
    b = np.arctan2(np.hypot(turn[:, 0, 2], turn[:, 1, 2]), turn[:, 2, 2])
    upright = np.sin(b) < 1e-12
    a = np.where(
        upright, np.arctan2(turn[:, 1, 0], turn[:, 0, 0] * np.cos(b)), np.arctan2(turn[:, 1, 2], turn[:, 0, 2])
    )
    a = np.where(upright & (np.cos(b) < 0), np.arctan2(-turn[:, 1, 0], -turn[:, 0, 0]), a)
    c = np.where(upright, 0.0, np.arctan2(turn[:, 2, 1], -turn[:, 2, 0]))
    return np.stack([a, np.where(upright & (np.cos(b) > 0), 0.0, b), c], 1)


def _about_axes(turn: Numbers) -> Numbers:
    """Angles (x, y, z) with Rz Ry Rx = turn."""
    return np.stack([
        np.arctan2(turn[:, 2, 1], turn[:, 2, 2]), np.arcsin(np.clip(-turn[:, 2, 0], -1, 1)),
        np.arctan2(turn[:, 1, 0], turn[:, 0, 0]),
    ], 1)  # fmt: skip


def _turn(axis: int, angle: Numbers) -> Numbers:
    """Rotations ``(views, 3, 3)`` about a coordinate axis."""
    i, j = (axis + 1) % 3, (axis + 2) % 3
    found = np.zeros((len(angle), 3, 3))
    found[:, axis, axis] = 1
    found[:, i, i] = found[:, j, j] = np.cos(angle)
    found[:, j, i], found[:, i, j] = np.sin(angle), -np.sin(angle)
    return found


def _each(geo: Any, name: str, views: int, count: int, default: float | None) -> Numbers:
    """A parameter as ``(views, count)``; what comes after the first `count` numbers of a view is left away."""
    value = getattr(geo, name, None)
    if value is None:
        if default is None:
            raise UserError(f"the geometry of TIGRE has no {name}")
        return np.full((views, count), default)
    table = np.array(value, np.float64)
    if count == 1:
        table = table.reshape(-1, 1)
    elif table.ndim < 2:
        table = np.full((1, count), float(table)) if table.ndim == 0 else table[None]
    if len(table) not in (1, views) or table.shape[1] < count:
        raise UserError(
            f"{name} of a geometry of TIGRE is one for all or one for each of {views} views, not {table.shape}"
        )
    return np.broadcast_to(table[:, :count], (views, count)).copy()


def _pair(geo: Any, name: str) -> tuple[float, float]:
    found = np.ravel(np.array(getattr(geo, name, ()), np.float64))
    if found.size != 2:
        raise UserError(f"{name} of a geometry of TIGRE is (row, column), not {found}")
    return float(found[0]), float(found[1])
