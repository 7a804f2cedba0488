"""Which angles the views of a stack have: in files beside it and in its extended header, which must not contradict."""

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.angles import AngleTable
from dtomo.io.tilts.headers import read_extended
from dtomo.io.tilts.mdoc import Mdoc, read_mdoc
from dtomo.io.tilts.text import number, small_text
from dtomo.io.tilts.warp import NEGATED, is_warp, read_warp

SUFFIXES = (".tlt", ".rawtlt", ".mdoc", ".xml")
"""Of files of tilt angles."""
SAME = 0.25
"""Degrees by which two statements of one nominal angle may differ."""
REFINED = 10.0
"""Degrees by which an alignment (``.tlt``) may have changed a nominal angle."""
SIGN = "positive tilts as IMOD's (column = x cos t + y sin t)"


@dataclasses.dataclass(frozen=True, eq=False)
class Tilts:
    """What is known of the views of a stack.

    Attributes
    ----------
    angles
        Of the views, in degrees, in the sign of IMOD's files; None: nobody says.
    where
        What says so, for messages.
    pixel_size
        Å and where it stands, or None.
    tilt_axis
        SerialEM's tilt axis angle in degrees and where it stands, or None.
    inputs
        Files read.
    notes
        Sentences for the user.
    """

    angles: NDArray[np.float64] | None
    where: str
    pixel_size: tuple[float, str] | None
    tilt_axis: tuple[float, str] | None
    inputs: tuple[Path, ...]
    notes: tuple[str, ...]


def read_tilt_file(path: Path) -> AngleTable:
    """Angles from a ``.tlt``, ``.rawtlt``, ``.mdoc`` or Warp ``.xml``, in degrees and in the sign of IMOD's files.

    Raises
    ------
    UserError
        A file that is missing or not of that kind.
    """
    kind = path.suffix.lower()
    if kind == ".mdoc":
        return AngleTable(read_mdoc(path).tilts, "degrees", f"{path}: TiltAngle")
    if kind == ".xml":
        return AngleTable(read_warp(path), "degrees", f"{path}: Angles, {NEGATED}")
    return AngleTable(_list(path), "degrees", str(path))


def _list(path: Path) -> NDArray[np.float64]:
    rows = [(line, text.split()) for line, text in enumerate(small_text(path).splitlines(), 1) if text.strip()]
    long = next((line for line, cells in rows if len(cells) > 1), None)
    if long is not None:
        raise UserError(f"{path} line {long}: a tilt file has one angle a line")
    if not rows:
        raise UserError(f"{path} holds no angles; it should list one per line")
    return np.array([number(cells[0], f"{path} line {line}") for line, cells in rows])


def read_tilts(path: Path, views: int, *, named: bool = False) -> Tilts:
    """What lies beside a stack, and in its extended header, about its `views` views.

    The angles are the first of: ``NAME.tlt`` (as an alignment refined them), ``NAME.rawtlt``, ``NAME.mdoc`` (or
    ``NAME.mrc.mdoc``), the extended header, a Warp ``NAME.xml``.

    Parameters
    ----------
    named
        The user gives the angles: nothing that lies about is compared.

    Raises
    ------
    UserError
        A file that is broken or of another number of views, and two that contradict each other.
    """
    mdoc, notes = _mdoc(path, named)
    extended = read_extended(path)
    tables, inputs = ([], []) if named else _tables(path, mdoc)
    if extended.tilts is not None and not named:
        tables.append(AngleTable(extended.tilts, "degrees", f"{path}: {extended.kind}"))
    for item in [] if named else filter(is_warp, _beside(path, ".xml")):
        tables.append(read_tilt_file(item))
        inputs.append(item)
    _check(tables, path, views)
    size = axis = None
    if mdoc is not None:
        inputs += [] if mdoc.path in inputs else [mdoc.path]
        size = None if mdoc.pixel_size is None else (mdoc.pixel_size, f"{mdoc.path}: PixelSpacing")
        axis = None if mdoc.tilt_axis is None else (mdoc.tilt_axis, f"{mdoc.path}: Tilt axis angle")
    if size is None and extended.pixel_size is not None:
        size = extended.pixel_size, f"{path}: {extended.kind}"
    for item in _beside(path, ".xf"):
        notes.append(
            f"{item} lies beside {path} and is not used; dtomo recon takes it by --alignment, dtomo align by --begin"
        )
    if not tables:
        return Tilts(None, "", size, axis, tuple(inputs), tuple(notes))
    first = tables[0]
    where = first.where if NEGATED in first.where else f"{first.where}, {SIGN}"
    return Tilts(first.values, where, size, axis, tuple(inputs), tuple(notes))


def _tables(path: Path, mdoc: Mdoc | None) -> tuple[list[AngleTable], list[Path]]:
    files = [*_beside(path, ".tlt"), *_beside(path, ".rawtlt")]
    tables = [read_tilt_file(item) for item in files]
    if mdoc is not None:
        tables.append(AngleTable(mdoc.tilts, "degrees", f"{mdoc.path}: TiltAngle"))
        files.append(mdoc.path)
    return tables, files


def _mdoc(path: Path, named: bool) -> tuple[Mdoc | None, list[str]]:
    """The one beside a stack; where angles are named a broken one is only told of."""
    found = [*_beside(path, ".mdoc"), *(item for item in [path.with_name(path.name + ".mdoc")] if item.is_file())]
    try:
        return (read_mdoc(found[-1]) if found else None), []
    except UserError as error:
        if not named:
            raise
        return None, [f"{error}; it is left aside, since angles are given"]


def _beside(path: Path, suffix: str) -> list[Path]:
    item = path.with_suffix(suffix)
    return [item] if item.is_file() and item != path else []


def _check(tables: list[AngleTable], path: Path, views: int) -> None:
    for table in tables:
        if len(table.values) != views:
            raise UserError(
                f"{table.where} has {len(table.values)} angles but {path} has {views} views; correct it, move it away, "
                "or give the right angles with angles=... (--angles FILE)"
            )
    for number_, one in enumerate(tables):
        for other in tables[:number_]:
            allowed = REFINED if other.where.endswith(".tlt") else SAME
            apart = np.abs(one.values - other.values)
            if apart.max() > allowed:
                view = int(apart.argmax())
                raise UserError(
                    f"{other.where} and {one.where} contradict each other: view {view} is at "
                    f"{other.values[view]:g} and at {one.values[view]:g} degrees; name the right one with angles=... "
                    "(--angles FILE)"
                )
