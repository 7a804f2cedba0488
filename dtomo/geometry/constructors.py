"""Readable ways to make a `VectorGeometry`. Angles in degrees, lengths in one unit of the user's choice.

In all of them the volume stands still and source and detector go round it. At angle θ about z the columns of the
detector run along (cos θ, sin θ, 0) and the beam along (-sin θ, cos θ, 0), as in `ParallelBeam`.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError
from dtomo.geometry.vectors import Beam, VectorGeometry, numbers_of, size_of

Shape = tuple[int, int, int]
Size = float | tuple[float, float, float]


def cone_beam(
    angles: ArrayLike,
    rows: int,
    columns: int,
    *,
    source_axis: float,
    source_detector: float,
    pixel: float | tuple[float, float] = 1.0,
    shape: Shape | None = None,
    voxel: Size | None = None,
    center: float | None = None,
    center_row: float | None = None,
    roll: float = 0.0,
    yaw: float = 0.0,
    pitch: float = 0.0,
    rise: float = 0.0,
) -> VectorGeometry:
    """A point source and a flat detector on a circle, or with `rise` on a helix, about z.

    Parameters
    ----------
    angles
        Of each view; more than a turn goes on along the helix.
    rows, columns
        Of the detector.
    source_axis, source_detector
        Distances along the ray that is perpendicular to the axis and to the (untilted) detector.
    pixel
        Size of a detector pixel, (row, column) or one for both.
    shape
        ``(z, y, x)`` of the volume; default ``(rows, columns, columns)``.
    voxel
        Its size, (z, y, x) or one for all; default a pixel's (its column's) on the axis: pixel · source_axis /
        source_detector.
    center, center_row
        Column and row of the untilted detector that the perpendicular ray meets; default the middle. Where `center`
        is not the column of the axis the whole detector lies aside.
    roll, yaw, pitch
        Degrees. The detector is turned about the perpendicular ray (the direction of columns towards that of rows),
        then about the direction its rows then have (the beam towards columns), then about the direction its columns
        then have (rows towards the beam). The point that the perpendicular ray meets stays where it is; with `center`
        or `center_row` that is not the middle of the detector, which goes round it.
    rise
        How far source and detector go along z in a turn.

    Raises
    ------
    UserError
        Distances that are not positive or lie in the wrong order, and as for `VectorGeometry`.
    """
    return _circular(
        "cone", angles, rows, columns, source_axis, source_detector, pixel, shape, voxel, center, center_row,
        (roll, yaw, pitch), rise,
    )  # fmt: skip


def fan_beam(
    angles: ArrayLike,
    columns: int,
    *,
    source_axis: float,
    source_detector: float,
    slices: int = 1,
    pixel: float = 1.0,
    shape: Shape | None = None,
    voxel: Size | None = None,
    center: float | None = None,
) -> VectorGeometry:
    """Slices that are projected each by a fan of its own, all alike; parameters as for `cone_beam`.

    `slices` is the number of rows, one for each slice; voxels are as high as pixels.
    """
    if voxel is None:
        pixel = float(_lengths(pixel, "size of a pixel", 1)[0])
        near, far = _distances(source_axis, source_detector)
        across = pixel * near / far
        voxel = (pixel, across, across)
    height = float(_lengths(voxel, "size of a voxel", 3)[0])
    return _circular(
        "fan", angles, slices, columns, source_axis, source_detector, (height, pixel), shape, voxel, center, None,
        (0, 0, 0), 0,
    )  # fmt: skip


def laminography(
    angles: ArrayLike,
    rows: int,
    columns: int,
    *,
    tilt: float,
    pixel: float = 1.0,
    shape: Shape | None = None,
    voxel: Size | None = None,
    center: float | None = None,
    center_row: float | None = None,
) -> VectorGeometry:
    """A parallel beam that meets the axis of rotation, z, at another angle than 90°.

    Parameters
    ----------
    angles, rows, columns, pixel, shape, center, center_row
        As for `cone_beam`; the middle of the volume is projected to (center_row, center).
    tilt
        How far the axis leans along the beam: 0 is tomography, with 90 the beam goes along the axis.
    voxel
        Default the pixel.
    """
    theta, alpha = np.deg2rad(_angles(angles)), np.deg2rad(_finite(tilt, "tilt"))
    pixel = float(_lengths(pixel, "size of a pixel", 1)[0])
    rows, columns = size_of(rows, "rows of the detector"), size_of(columns, "columns of the detector")
    zero = np.zeros_like(theta)
    across = np.stack([np.cos(theta), np.sin(theta), zero], 1)
    beam = np.stack([-np.sin(theta) * np.cos(alpha), np.cos(theta) * np.cos(alpha), zero + np.sin(alpha)], 1)
    across, down = across * pixel, np.cross(across, beam) * pixel
    aside, below = _aside(columns, center, "center"), _aside(rows, center_row, "center row")
    return VectorGeometry(
        "parallel", beam, aside * across + below * down, across, down, rows, columns,
        shape or (rows, columns, columns), pixel if voxel is None else voxel,  # type: ignore[arg-type]
    )  # fmt: skip


def tilt_series(
    tilts: ArrayLike,
    rows: int,
    columns: int,
    *,
    shape: Shape,
    axis_angle: ArrayLike = 0.0,
    shifts: ArrayLike | None = None,
    beam_tilt: ArrayLike = 0.0,
    pixel: float = 1.0,
    voxel: Size | None = None,
) -> VectorGeometry:
    """Views of a specimen that is tilted about y in a microscope, with the beam along z at tilt 0.

    At tilt t a point is seen at ``u = x cos t + z sin t`` across the axis and y along it (the convention of
    `dtomo.geometry.wedge.Wedge`).

    Parameters
    ----------
    tilts
        Of each view.
    rows, columns
        Of a view.
    shape
        ``(z, y, x)`` of the volume.
    axis_angle
        Where the axis lies in the view, from the direction of rows (down) towards that of columns: 0: y runs along
        the rows' direction. One for all or one for each view.
    shifts
        ``(views, 2)``, (row, column) in pixels: how far the view's contents have moved from where they belong.
    beam_tilt
        How far the axis leans along the beam, of all or of each view.
    pixel, voxel
        Size of a pixel; voxels are as large if not said.
    """
    t = np.deg2rad(_angles(tilts))
    phi, lean = _of_views(axis_angle, t.size, "angle of the axis"), _of_views(beam_tilt, t.size, "tilt of the beam")
    pixel = float(_lengths(pixel, "size of a pixel", 1)[0])
    moved = _shifts(shifts, t.size)
    zero = np.zeros_like(t)
    across = np.stack([np.cos(t), zero, np.sin(t)], 1)
    beam = np.stack([-np.sin(t) * np.cos(lean), np.sin(lean), np.cos(t) * np.cos(lean)], 1)
    along = np.cross(beam, across)
    cosine, sine = np.cos(phi)[:, None], np.sin(phi)[:, None]
    right, down = pixel * (cosine * across + sine * along), pixel * (cosine * along - sine * across)
    return VectorGeometry(
        "parallel", beam, -moved[:, :1] * down - moved[:, 1:] * right, right, down, rows, columns, shape,
        pixel if voxel is None else voxel,  # type: ignore[arg-type]
    )  # fmt: skip


def _circular(
    beam: Beam, angles: ArrayLike, rows: int, columns: int, source_axis: float, source_detector: float, pixel: Any,
    shape: Shape | None, voxel: Size | None, center: float | None, center_row: float | None,
    turns: tuple[float, float, float], rise: float,
) -> VectorGeometry:  # fmt: skip
    theta = np.deg2rad(_angles(angles))
    near, far = _distances(source_axis, source_detector)
    height, width = _lengths(pixel, "size of a pixel", 2)
    rows, columns = size_of(rows, "rows of the detector"), size_of(columns, "columns of the detector")
    turns = tuple(_finite(turn, "turn of the detector") for turn in turns)  # type: ignore[assignment]
    rise = _finite(rise, "rise along the axis")
    cosine, sine, zero, one = np.cos(theta), np.sin(theta), np.zeros_like(theta), np.ones_like(theta)
    frame = np.stack([np.stack([cosine, sine, zero]), np.stack([zero, zero, one]), np.stack([-sine, cosine, zero])])
    frame = np.moveaxis(frame, 2, 0)  # of each view: directions of columns, rows, beam
    turned = _turns(*turns) @ frame  # the detector's
    place = frame[:, 2] * (far - near) + rise * (theta / (2 * np.pi))[:, None] * frame[:, 1]
    source = -frame[:, 2] * near + rise * (theta / (2 * np.pi))[:, None] * frame[:, 1]
    across, down = turned[:, 0] * width, turned[:, 1] * height
    aside, below = _aside(columns, center, "center"), _aside(rows, center_row, "center row")
    if beam == "fan":
        source = source + below * down
    size = float(width * near / far) if voxel is None else voxel
    return VectorGeometry(
        beam, source, place + aside * across + below * down, across, down, rows, columns,
        shape or (rows, columns, columns), size,  # type: ignore[arg-type]
    )  # fmt: skip


def _turns(roll: float, yaw: float, pitch: float) -> NDArray[np.float64]:
    """What mixes (columns, rows, beam): turned about the beam, then about rows, then about columns."""
    found = np.eye(3)
    for angle, (i, j) in ((roll, (0, 1)), (yaw, (2, 0)), (pitch, (1, 2))):
        turn = np.eye(3)
        c, s = np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))
        turn[i, i], turn[i, j], turn[j, i], turn[j, j] = c, s, -s, c
        found = turn @ found
    return found


def _angles(values: ArrayLike) -> NDArray[np.float64]:
    array = np.array(values)
    if array.dtype.kind not in "biuf" or array.ndim > 1:
        raise UserError(f"angles are a list of real numbers in degrees, not {values!r:.60}")
    array = array.astype(np.float64).reshape(-1) + 0.0
    if not array.size:
        raise UserError("a geometry needs angles; got none")
    if not np.isfinite(array).all():
        raise UserError(f"angle number {int(np.argmin(np.isfinite(array)))} is not a finite number")
    return array


def _distances(near: Any, far: Any) -> tuple[float, float]:
    near, far = _finite(near, "distance to the axis"), _finite(far, "distance to the detector")
    if not 0 < near <= far:
        raise UserError(
            f"from the source it is a positive distance to the axis and at least as far to the detector; got {near:g} "
            f"and {far:g}"
        )
    return near, far


def _lengths(value: Any, name: str, count: int) -> NDArray[np.float64]:
    found = np.broadcast_to(numbers_of(value, name, (1, count)), count)
    if not (found > 0).all():
        raise UserError(f"the {name} is positive, not {value!r:.60}")
    return found


def _aside(pixels: int, middle: Any, name: str) -> float:
    """How many pixels the middle of the detector lies from `middle`."""
    return 0.0 if middle is None else (pixels - 1) / 2 - _finite(middle, name)


def _of_views(values: ArrayLike, views: int, name: str) -> NDArray[np.float64]:
    """Radians, of each view."""
    return np.deg2rad(np.broadcast_to(numbers_of(values, f"{name}, for all or of each view,", (1, views)), views))


def _shifts(values: ArrayLike | None, views: int) -> NDArray[np.float64]:
    if values is None:
        return np.zeros((views, 2))
    if np.shape(values) != (views, 2):
        raise UserError(f"shifts are (row, column) of each of {views} views, not of shape {np.shape(values)}")
    return numbers_of(values, "table of shifts", (2 * views,)).reshape(views, 2)


def _finite(value: Any, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not np.isfinite(number):
        raise UserError(f"the {name} of a geometry is a finite number, not {value!r:.60}")
    return number
