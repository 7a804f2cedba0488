"""Parallel beam about the z axis."""

import dataclasses
import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class ParallelBeam:
    """Parallel beam, single axis along z: every slice is projected alike.

    A point (x, y) of a slice, in voxels, meets the detector at column::

        u = ((x - (width - 1) / 2) * cos(angle) + (y - (height - 1) / 2) * sin(angle)) / pitch + center

    Pixel k has its middle at k. With row 0 of a picture on top (y downwards) the angle runs clockwise.

    Parameters
    ----------
    angles
        Degrees, any order, repeated and uneven ones allowed.
    columns
        Detector width in pixels.
    center
        Column of the rotation axis; default the middle, ``(columns - 1) / 2``. May lie outside the detector.
    width, height
        Size of a slice (x and y) in voxels; default `columns` each.
    pitch
        Detector pixel in units of the voxel (2: detector pixels twice as wide as voxels).

    Raises
    ------
    UserError
        Angles that are not finite, or sizes and pitch that are not positive.
    """

    angles: NDArray[np.float64]
    columns: int
    center: float = float("nan")
    width: int = 0
    height: int = 0
    pitch: float = 1.0

    def __init__(
        self,
        angles: ArrayLike,
        columns: int,
        center: float | None = None,
        width: int | None = None,
        height: int | None = None,
        pitch: float = 1.0,
    ) -> None:
        values = _numbers(angles) + 0.0  # no negative zeros: equal angles, equal bits
        values.flags.writeable = False
        if not np.isfinite(values).all():
            number = int(np.argmin(np.isfinite(values)))
            raise UserError(f"angle number {number} is not a finite number; give angles in degrees")
        columns = _whole(columns, "columns")
        width = columns if width is None else _whole(width, "width")
        height = columns if height is None else _whole(height, "height")
        center = (columns - 1) / 2 if center is None else _number(center, "center")
        pitch = _number(pitch, "pitch")
        if columns < 1 or values.size < 1:
            raise UserError(f"a geometry needs angles and columns; got {values.size} angles, {columns} columns")
        if width < 1 or height < 1:
            raise UserError(f"a slice needs a positive size; got {width} x {height}")
        if not abs(center) <= 1e9:
            raise UserError(f"the axis of rotation is at a column of the detector or near it, not at center {center}")
        if not 1 / 32 <= pitch <= 32:
            raise UserError(f"the detector pitch is in voxels and lies between 1/32 and 32, not at {pitch}")
        put = object.__setattr__
        put(self, "angles", values)
        put(self, "columns", columns)
        put(self, "center", center)
        put(self, "width", width)
        put(self, "height", height)
        put(self, "pitch", float(pitch))

    def __reduce__(self) -> tuple[object, ...]:
        return ParallelBeam, (self.angles, self.columns, self.center, self.width, self.height, self.pitch)

    @property
    def radians(self) -> NDArray[np.float64]:
        """The angles as kernels take them."""
        return np.deg2rad(self.angles)

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two geometries equal: hashable, used for caches."""
        return (self.angles.tobytes(), self.columns, self.center, self.width, self.height, self.pitch)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ParallelBeam) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def coarser(self, factor: int) -> "ParallelBeam":
        """Voxels and pixels `factor` times as large; the last ones reach beyond the edge where sizes are no multiples.

        Coarse pixel k covers the pixels from ``factor * k`` on; volumes have their middles in one place.

        Raises
        ------
        UserError
            A factor that is no whole number from 1.
        """
        times = _whole(factor, "factor")
        if times < 1:
            raise UserError(f"voxels are made larger by a whole number from 1, not by {factor}")
        columns, width, height = (-(-size // times) for size in (self.columns, self.width, self.height))
        center = (self.center - (times - 1) / 2) / times
        return self.replace(columns=columns, center=center, width=width, height=height)

    def replace(self, **changes: object) -> "ParallelBeam":
        """A copy with some values changed."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return ParallelBeam(**{**values, **changes})


def _numbers(angles: ArrayLike) -> NDArray[np.float64]:
    """A table of angles of its own."""
    array = np.array(angles)
    if array.dtype.kind not in "biuf" or array.ndim > 1:
        raise UserError(f"angles are a list of real numbers in degrees, not {angles!r:.60}")
    return array.astype(np.float64).reshape(-1)


def _number(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UserError(f"the {name} of a geometry is a number, not {value!r:.60}") from None


def _whole(value: Any, name: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        whole = isinstance(value, float) and value.is_integer()
        return int(value) if whole else operator.index(value)
    except TypeError:
        raise UserError(f"the {name} of a geometry is a whole number of pixels, not {value}") from None
