"""Angles of a scan: their unit, their number, and the text files that list them."""

import csv
import dataclasses
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError
from dtomo.io.damage import too_large
from dtomo.io.units import angle_unit

MOST_ANGLES = 10**7
"""More values than this are not one angle per frame."""

CLEARLY_DEGREES = 20.0
"""A span of unit-less angles above this (three turns, were it radians) is taken for degrees."""


@dataclasses.dataclass(frozen=True)
class AngleTable:
    """Angles as found: ``values`` float64 in ``unit`` ("degrees", "radians", None: unknown) at ``where``."""

    values: NDArray[np.float64]
    unit: str | None
    where: str

    def take(self, index: Any) -> "AngleTable":
        """The entries at `index`."""
        return dataclasses.replace(self, values=self.values[index])


def check_count(table: AngleTable, frames: int, frames_where: str) -> None:
    """UserError with both counts unless there is one angle per frame."""
    count = len(table.values)
    if count == frames:
        return
    advice = "give the right angles with angles=... (--angles FILE)"
    if count > frames:
        first = (count - frames) // 2
        advice = f"pick the right ones, such as --angles 'FILE[{first}:{first + frames}]' for the middle {frames}"
    raise UserError(f"{table.where} has {count} angles but {frames_where} has {frames} frames; {advice}")


def to_degrees(table: AngleTable) -> tuple[NDArray[np.float64], list[str]]:
    """Angles in degrees and warnings about what was assumed.

    Raises
    ------
    UserError
        An angle that is not finite; no unit and a span that could be either; "radians" that span many turns.
    """
    values, where = table.values, table.where
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise UserError(
            f"{where}: {bad.size} of {values.size} angles are not finite numbers, the first is "
            f"number {bad[0]}; "
            "correct them or leave those projections out"
        )
    span = float(np.ptp(values)) if values.size else 0.0
    if table.unit == "radians":
        if span > CLEARLY_DEGREES:
            raise UserError(
                f"{where} says radians but spans {span:.6g}, more than three turns; "
                "say which unit it is with angle_unit='degrees' or 'radians' (--angle-unit)"
            )
        return np.rad2deg(values), []
    if table.unit == "degrees":
        return values.astype(np.float64), _looks_like_radians(span, values.size, where)
    if not values.any():
        return values.astype(np.float64), []
    if span <= CLEARLY_DEGREES:
        raise UserError(
            f"{where} has no unit and its range {values.min():.6g} to {values.max():.6g} could be "
            "degrees or radians; "
            "say which with angle_unit='degrees' or 'radians' (--angle-unit)"
        )
    return values.astype(np.float64), [
        f"{where} has no unit: {values.min():.6g} to {values.max():.6g} is taken as degrees"
    ]


def _looks_like_radians(span: float, count: int, where: str) -> list[str]:
    """A warning where angles called degrees span just a half or whole turn in radians."""
    if count < 10:
        return []
    for turn in (math.pi, 2 * math.pi):
        if turn * (1 - 2 / count) <= span <= turn * (1 + 1e-3):
            return [
                f"{where} says degrees but spans {span:.5g}, about {turn:.5g}: if these are radians, "
                "say so with angle_unit"
            ]
    return []


def given_angles(angles: ArrayLike | str | os.PathLike[str], unit: str | None) -> AngleTable:
    """The user's angles: numbers (degrees unless `unit` says otherwise) or a file.

    A file may be followed by the entries to take, as in ``"angles.txt[10:101]"``.
    """
    if isinstance(angles, str | os.PathLike):
        table = read_angle_file(angles)
        return dataclasses.replace(table, unit=angle_unit(unit, "angle_unit") or table.unit)
    try:
        values = np.asarray(angles, np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"the angles given are not numbers ({error}); give one number per projection") from error
    if values.ndim != 1:
        raise UserError(f"the angles given have shape {values.shape}; give one number per projection")
    return AngleTable(values, angle_unit(unit, "angle_unit"), "the angles given")


def read_angle_file(name: str | os.PathLike[str]) -> AngleTable:
    """Angles from a text, CSV or NPY file, one per line, optionally ``NAME[start:stop:step]``.

    Also tilts from ``.tlt``, ``.rawtlt``, ``.mdoc`` (SerialEM) and ``.xml`` (Warp, whose sign is turned round).

    A first line of words is taken as a heading; "rad" or "deg" in it is taken as the unit.
    """
    path, entries = split_entries(name)
    if not path.is_file():
        raise UserError(f"there is no angle file {path}; give an existing text, CSV or NPY file")
    if path.suffix.lower() in (".tlt", ".rawtlt", ".mdoc", ".xml"):
        from dtomo.io.tilts.series import read_tilt_file  # which makes tables as they are here

        table = read_tilt_file(path)
        return dataclasses.replace(table.take(entries), where=table.where.replace(str(path), os.fspath(name), 1))
    values, unit = _read_npy(path) if path.suffix.lower() == ".npy" else _read_text(path)
    if values.size == 0:
        raise UserError(f"{path} holds no angles; it should list one per line")
    return AngleTable(values[entries], unit, os.fspath(name))


def split_entries(name: str | os.PathLike[str]) -> tuple[Path, slice]:
    """The file and the entries of ``NAME[start:stop:step]``; all entries where none are given."""
    text = os.fspath(name)
    match = re.fullmatch(r"(.*)\[(-?\d+)?:(-?\d+)?(?::(-?\d+)?)?\]", text)
    if match is None or Path(text).exists():
        return Path(text), slice(None)
    entries = slice(*(int(part) if part else None for part in match.groups()[1:]))
    if entries.step == 0:
        raise UserError(f"{text}: the step of a range of angles cannot be 0")
    return Path(match[1]), entries


def _read_npy(path: Path) -> tuple[NDArray[np.float64], str | None]:
    try:
        values = np.load(path, allow_pickle=False)
        return np.asarray(values, np.float64).reshape(-1), None
    except MemoryError as error:
        raise too_large(path, error) from error
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} is not a NPY file of numbers ({error})") from error


def _read_text(path: Path) -> tuple[NDArray[np.float64], str | None]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as text ({error}); give angles as a text, CSV or NPY file") from error
    rows = [(number, _cells(line)) for number, line in enumerate(lines, 1)]
    rows = [(number, cells) for number, cells in rows if cells]
    unit = None
    if rows and not any(_is_number(cell) for cell in rows[0][1]):
        heading = " ".join(rows.pop(0)[1]).lower()
        unit = "radians" if "rad" in heading else "degrees" if "deg" in heading else None
    if not rows:
        return np.empty(0), unit
    widths = {len(cells) for _, cells in rows}
    if len(rows) > 1 and widths != {1}:
        raise UserError(f"{path} has {max(widths)} columns; an angle file has one angle per line")
    values = []
    for number, cells in rows:
        for cell in cells:
            if not _is_number(cell):
                raise UserError(
                    f"{path} line {number}: {cell[:40]!r} is not a number; an angle file has one angle per line"
                )
            values.append(float(cell))
    return np.array(values, np.float64), unit


def _cells(line: str) -> list[str]:
    line = line.split("#", 1)[0].strip()
    if not line:
        return []
    cells = next(csv.reader([line])) if "," in line else re.split(r"[\s;]+", line)
    return [cell.strip() for cell in cells if cell.strip()]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
