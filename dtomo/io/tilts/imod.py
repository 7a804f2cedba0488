"""IMOD's lists of angles and of 2-D transforms, in the order of the views.

A line of ``.xf`` is A11 A12 A21 A22 DX DY: a place (x, y) from the middle of the raw view comes to A (x, y) + (DX, DY)
from the middle of the aligned one (https://bio3d.colorado.edu/imod/doc/man/xfproduct.html); x runs along columns, y
along rows.
"""

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError
from dtomo.geometry import Alignment
from dtomo.io.tilts.text import number, small_text

SKEW = 2e-3
"""By how much a transform may differ from a rotation with one magnification."""


def read_xf(path: Path, tilts: ArrayLike, shape: tuple[int, int]) -> Alignment:
    """The transforms of a ``.xf`` file as an alignment.

    Parameters
    ----------
    path
        The file.
    tilts
        Degrees, one for each of its lines.
    shape
        (rows, columns) of the raw views.

    Raises
    ------
    UserError
        Not six finite numbers a line; another number of lines than of tilts; a transform that is singular, mirrors, or
        stretches one direction.
    """
    angles = np.asarray(tilts, np.float64)
    rows = [(line, text.split()) for line, text in enumerate(small_text(path).splitlines(), 1) if text.strip()]
    if len(rows) != len(angles):
        raise UserError(f"{path} has {len(rows)} transforms for {len(angles)} views; it should have a line for each")
    table = np.empty((len(rows), 6))
    for view, (line, cells) in enumerate(rows):
        if len(cells) != 6:
            raise UserError(f"{path} line {line}: {len(cells)} numbers where a transform has 6: A11 A12 A21 A22 DX DY")
        table[view] = [number(cell, f"{path} line {line}") for cell in cells]
    return Alignment(angles, shape, table[:, 5:3:-1], *_turns(path, table, [line for line, _ in rows]))


def _turns(path: Path, table: NDArray[np.float64], lines: list[int]) -> tuple[NDArray[np.float64], None, None, NDArray]:
    """Angles (degrees) and magnifications of the nearest rotations."""
    a11, a12, a21, a22 = table[:, :4].T
    cosine, sine = (a11 + a22) / 2, (a21 - a12) / 2
    scale = np.hypot(cosine, sine)
    rest = np.hypot(a11 - a22, a12 + a21) / 2
    wrong = np.flatnonzero(~((scale > 0.1) & (scale < 10) & (rest <= SKEW * scale)))
    if wrong.size:
        view = int(wrong[0])
        raise UserError(
            f"{path} line {lines[view]}: the transform {' '.join(f'{value:g}' for value in table[view, :4])} is not a "
            "rotation with one magnification; dtomo aligns no views that are stretched or mirrored"
        )
    return np.rad2deg(np.arctan2(sine, cosine)), None, None, scale


def write_xf(path: Path, alignment: Alignment) -> None:
    """Write the transforms of an alignment, a line for each view.

    IMOD keeps the axis in the middle of the aligned views, so DX is to that.
    """
    angle = np.deg2rad(alignment.axis_angles)
    cosine, sine = alignment.scales * np.cos(angle), alignment.scales * np.sin(angle)
    across = alignment.shifts[:, 1] + (alignment.size[1] - 1) / 2 - alignment.axis
    table = np.stack([cosine, -sine, sine, cosine, across, alignment.shifts[:, 0]], 1)
    lines = ["".join(f"{v:12.7f}" for v in row[:4]) + "".join(f"{v:12.4f}" for v in row[4:]) for row in table]
    path.write_text("\n".join(lines) + "\n", encoding="ascii")


def write_tlt(path: Path, tilts: ArrayLike) -> None:
    """Write tilt angles in degrees, one a line."""
    path.write_text("".join(f"{tilt:9.3f}\n" for tilt in np.asarray(tilts, np.float64)), encoding="ascii")
