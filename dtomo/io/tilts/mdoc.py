"""SerialEM's ``.mdoc`` files: values of a whole series, and of each of its views.

The format is described in SerialEM's manual ("About Autodoc files", https://bio3d.colorado.edu/SerialEM). The library
mdocfile makes a table of it with pandas; what is read here is a handful of values, with the line named where one is
wrong.
"""

import dataclasses
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError, shown
from dtomo.io.tilts.text import number, small_text

_SECTION = re.compile(r"\[\s*(\w+)\s*=\s*(.*?)\s*\]")
_AXIS = re.compile(r"Tilt axis angle\s*=\s*([^\s,]+)")
FRACTION = 1e-3
"""Part by which the pixel sizes of views may differ."""


@dataclasses.dataclass(frozen=True, eq=False)
class Mdoc:
    """What a ``.mdoc`` says.

    Attributes
    ----------
    path
        The file.
    tilts
        Degrees, one for each view, in the order of the stack's sections (``ZValue``).
    pixel_size
        Å, or None.
    tilt_axis
        SerialEM's tilt axis angle (counter-clockwise from the vertical), degrees, or None.
    """

    path: Path
    tilts: NDArray[np.float64]
    pixel_size: float | None
    tilt_axis: float | None


def read_mdoc(path: Path) -> Mdoc:
    """Read a ``.mdoc`` of a tilt series.

    Raises
    ------
    UserError
        Not such a file; a section that is there twice, or missing in between; a view without ``TiltAngle``; numbers
        that are none; views of different pixel size.
    """
    everywhere, views, axis = _sections(path)
    if not views:
        raise UserError(f"{path} has no sections [ZValue = 0], [ZValue = 1] …, so it describes no tilt series")
    gone = sorted(set(range(len(views))) - set(views))
    if gone:
        raise UserError(
            f"{path} has {len(views)} sections but none for view {gone[0]} ([ZValue = {gone[0]}]); a stack has one for "
            "each of its views, so give the angles with --angles FILE"
        )
    tilts = np.empty(len(views))
    sizes = []
    for view in range(len(views)):
        line, entries = views[view]
        if "TiltAngle" not in entries:
            raise UserError(f"{path} line {line}: the section of view {view} has no TiltAngle")
        tilts[view] = number(entries["TiltAngle"][1], f"{path} line {entries['TiltAngle'][0]}: TiltAngle")
        if "PixelSpacing" in entries:
            sizes.append(_value(path, entries, "PixelSpacing"))
    size = _value(path, everywhere, "PixelSpacing") if "PixelSpacing" in everywhere else None
    sizes += [] if size is None else [size]
    if sizes and (min(sizes) <= 0 or max(sizes) > min(sizes) * (1 + FRACTION)):
        raise UserError(
            f"{path}: PixelSpacing goes from {min(sizes):g} to {max(sizes):g} Å; one series has one, above 0"
        )
    return Mdoc(path, tilts, size if size is not None else (sizes[0] if sizes else None), axis)


_Entries = dict[str, tuple[int, str]]


def _sections(path: Path) -> tuple[_Entries, dict[int, tuple[int, _Entries]], float | None]:
    """Entries (line, text) before the first section, those of each view with the line it begins, and the axis."""
    everywhere: _Entries = {}
    views: dict[int, tuple[int, _Entries]] = {}
    entries: _Entries | None = everywhere
    axis = None
    for line, text in enumerate(small_text(path).splitlines(), 1):
        text = text.strip()
        if not text or text.startswith("#"):
            continue
        if text.startswith("["):
            match = _SECTION.fullmatch(text)
            if match is None:
                raise UserError(f"{path} line {line}: {shown(text, 40)} is not [Name = value]")
            name, value = match.groups()
            if name == "T":
                axis = _stated_axis(value, f"{path} line {line}", axis)
            entries = {} if name == "ZValue" else everywhere if name == "T" and not views else None
            if name == "ZValue":
                view = _view(value, f"{path} line {line}")
                if view in views:
                    raise UserError(
                        f"{path} line {line}: view {view} is there twice; the first is in line {views[view][0]}"
                    )
                views[view] = line, entries if entries is not None else {}
            continue
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"{path} line {line}: {shown(text, 40)} is not Name = value")
        if entries is not None:
            entries[name.strip()] = line, value.strip()
    return everywhere, views, axis


def _view(text: str, where: str) -> int:
    if not re.fullmatch(r"\d{1,7}", text):
        raise UserError(f"{where}: {shown(text, 40)} is not the number of a view")
    return int(text)


def _stated_axis(title: str, where: str, before: float | None) -> float | None:
    found = _AXIS.search(title)
    return before if found is None else number(found[1], f"{where}: Tilt axis angle")


def _value(path: Path, entries: _Entries, name: str) -> float:
    line, text = entries[name]
    return number(text, f"{path} line {line}: {name}")
