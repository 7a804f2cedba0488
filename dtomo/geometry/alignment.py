"""Where each view of a scan lies: the shifts, in-plane angles and tilts that an alignment finds, as a plain value."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError

LONGEST = 1e7
"""Pixels: no shift, and no side of a view, is larger."""


@dataclasses.dataclass(frozen=True, eq=False)
class Alignment:
    """Views put so that their axis runs along the rows' direction (z) and all of them see one object.

    A place of a raw view, ``(row, column)`` from its middle, is turned by the axis angle a and moved::

        row    =  cos(a) row_raw + sin(a) column_raw + shift_row       (from the middle of the aligned view)
        column = -sin(a) row_raw + cos(a) column_raw + shift_column

    times `scales` before the shift. The middle of N pixels is (N - 1) / 2. This is what a line of an IMOD ``.xf`` file
    says (x is the column, y the row), with the angle of its rotation.

    Parameters
    ----------
    tilts
        Degrees, ``(view,)``: a point is seen ``x cos(tilt) + y sin(tilt)`` columns from the axis.
    shape
        (rows, columns) of a raw view.
    shifts
        Pixels, ``(view, 2)``, (row, column) of the aligned view; default 0.
    axis_angles
        Degrees, one or ``(view,)``: where the axis lies in a raw view, from the direction of rows towards that of
        columns. IMOD's and SerialEM's "tilt axis angle" is its negative.
    axis
        Column of the axis in the aligned views; default their middle.
    size
        (rows, columns) of the aligned views; default `shape`, exchanged where the axis lies nearer to the columns'
        direction.
    scales
        By how much views are magnified on the way, one or ``(view,)``.
    levels
        What is taken off the values of each view, those of empty space, one or ``(view,)``.

    Raises
    ------
    UserError
        Numbers that are not finite, or of another count than the tilts; sizes that are not positive.
    """

    tilts: NDArray[np.float64]
    shape: tuple[int, int]
    shifts: NDArray[np.float64]
    axis_angles: NDArray[np.float64]
    axis: float
    size: tuple[int, int]
    scales: NDArray[np.float64]
    levels: NDArray[np.float64]

    def __init__(
        self,
        tilts: ArrayLike,
        shape: tuple[int, int],
        shifts: ArrayLike | None = None,
        axis_angles: ArrayLike = 0.0,
        axis: float | None = None,
        size: tuple[int, int] | None = None,
        scales: ArrayLike = 1.0,
        levels: ArrayLike = 0.0,
    ) -> None:
        angles = _table(tilts, "tilts")
        if angles.ndim != 1 or not angles.size:
            raise UserError(f"the tilts of an alignment are a list of degrees, not of shape {angles.shape}")
        count = len(angles)
        moved = np.zeros((count, 2)) if shifts is None else _table(shifts, "shifts")
        if moved.shape != (count, 2):
            raise UserError(f"shifts are (row, column) of each of {count} views, not of shape {moved.shape}")
        turned = _for_each(_table(axis_angles, "axis angles"), count, "axis angles")
        grown = _for_each(_table(scales, "scales"), count, "scales")
        taken = _for_each(_table(levels, "levels"), count, "levels")
        if not ((grown > 0.1) & (grown < 10)).all():
            raise UserError("the scales of an alignment lie between 0.1 and 10")
        if np.abs(moved).max(initial=0) > LONGEST:
            raise UserError(f"a shift of {np.abs(moved).max():g} pixels lies beyond any view")
        whole = _size(shape, "views")
        if size is None:
            lying = np.abs(np.sin(np.deg2rad(np.median(turned)))) > np.sqrt(0.5)
            size = whole[::-1] if lying else whole
        put = object.__setattr__
        tables = {"tilts": angles, "shifts": moved, "axis_angles": turned, "scales": grown, "levels": taken}
        for name, value in tables.items():
            value.flags.writeable = False
            put(self, name, value)
        put(self, "shape", whole)
        put(self, "size", _size(size, "aligned views"))
        put(self, "axis", (self.size[1] - 1) / 2 if axis is None else float(axis))
        if not np.isfinite(self.axis) or abs(self.axis) > LONGEST:
            raise UserError(f"the axis is at a column of the aligned views or near it, not at {axis}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Alignment, tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def __len__(self) -> int:
        """Number of views."""
        return len(self.tilts)

    def replace(self, **changes: Any) -> "Alignment":
        """A copy with some values changed."""
        return Alignment(**{**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)}, **changes})

    def select(self, views: Any) -> "Alignment":
        """Of some views: indices, a slice or a mask."""
        names = ("tilts", "shifts", "axis_angles", "scales", "levels")
        return self.replace(**{name: getattr(self, name)[views] for name in names})

    def places(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Where pixels of aligned views lie in the raw ones: ``raw = matrix @ (row, column) + offset``.

        Returns
        -------
        matrices, offsets
            ``(view, 2, 2)`` and ``(view, 2)``, on pixel indices.
        """
        angle = np.deg2rad(self.axis_angles)
        cosine, sine = np.cos(angle) / self.scales, np.sin(angle) / self.scales
        matrices = np.stack([np.stack([cosine, -sine], 1), np.stack([sine, cosine], 1)], 1)
        here, there = ((np.array(size) - 1) / 2 for size in (self.size, self.shape))
        return matrices, there - np.einsum("vij,vj->vi", matrices, here + self.shifts)

    def displacements(self) -> NDArray[np.float64]:
        """How far the contents of each raw view have moved from where they belong, raw (row, column), ``(view, 2)``.

        What belongs in the middle of the aligned views; `dtomo.geometry.tilt_series` takes these.
        """
        matrices, _ = self.places()
        return np.asarray(-np.einsum("vij,vj->vi", matrices, self.shifts))


def _table(values: ArrayLike, what: str) -> NDArray[np.float64]:
    try:
        table = np.array(values, np.float64) + 0.0
    except (TypeError, ValueError) as error:
        raise UserError(f"the {what} of an alignment are numbers, not {values!r:.60}") from error
    if not np.isfinite(table).all():
        raise UserError(f"the {what} of an alignment hold values that are no finite numbers")
    return table


def _for_each(table: NDArray[np.float64], count: int, what: str) -> NDArray[np.float64]:
    if table.shape not in ((), (1,), (count,)):
        raise UserError(f"{what} are one number, or one for each of {count} views, not of shape {table.shape}")
    return np.array(np.broadcast_to(table, count))


def _size(size: tuple[int, int], what: str) -> tuple[int, int]:
    rows, columns = (int(n) for n in size)
    if not (1 <= rows <= LONGEST and 1 <= columns <= LONGEST):
        raise UserError(
            f"the {what} of an alignment have a positive number of rows and columns, not {rows} × {columns}"
        )
    return rows, columns
