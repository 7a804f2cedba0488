"""Dynamo's tables (.tbl): a particle a line, numbers in fixed columns; columns dtomo does not use are kept.

Conventions: matrix Rz(-tdrot) Rx(-tilt) Rz(-narot), reference to particle; dx, dy, dz are the shift of the particle in
its box; x, y, z are taken as they are, as other converters do (Dynamo itself counts voxels from 1).
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError, shown
from dtomo.geometry.wedge import Wedge
from dtomo.io.particles.angles import to_angles, to_matrices
from dtomo.io.particles.origin import Origin, ReadingOptions, changed, numbered, origin_of
from dtomo.io.particles.particles import Particles

COLUMNS = 42
_LEAST = 26
_TAG, _ALIGNED, _AVERAGED = 0, 1, 2
_SHIFT, _ANGLES, _SCORE = slice(3, 6), slice(6, 9), 9
_SAMPLING, _FIRST_TILT, _LAST_TILT = 12, 13, 14
_TOMOGRAM, _CLASS, _POSITION, _PIXEL = 19, 21, slice(23, 26), 35
NAMES = "particle_#####.em"


def read_dynamo(path: Path, options: ReadingOptions) -> Particles:
    """A table; columns that `Particles` has no place for are kept in `origin`.

    Raises
    ------
    UserError
        No numbers, fewer than 26 columns, lines of different lengths.
    """
    content = path.read_bytes()
    rows = _rows(content, str(path))
    return _particles(rows, Origin("dynamo", str(path), content, tuple(range(len(rows))), options))


def _rows(content: bytes, where: str) -> list[list[str]]:
    try:
        lines = content.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not a Dynamo table: it is not plain text (binary tables are not read)") from error
    rows = [line.split() for line in lines if line.strip()]
    widths = {len(row) for row in rows}
    if len(widths) > 1 or (rows and min(widths) < _LEAST):
        raise UserError(
            f"{where} is not a whole Dynamo table: lines have {shown(', '.join(map(str, sorted(widths))))} numbers, "
            f"expected the same number in each, at least {_LEAST}"
        )
    return rows


def _values(rows: list[list[str]], where: str) -> NDArray[np.float64]:
    if not rows:
        return np.zeros((0, COLUMNS))
    try:
        return np.array(rows, np.float64)
    except ValueError as error:
        raise UserError(f"{where} is not a Dynamo table: {shown(error)}") from error


def _particles(rows: list[list[str]], origin: Origin) -> Particles:
    where, options = origin.where, origin.options
    values = _values(rows, where)
    used = np.concatenate([values[:, part] for part in (_SHIFT, _ANGLES, _POSITION)], axis=1)
    if not np.isfinite(used).all() or not np.isfinite(values[:, [_TAG, _TOMOGRAM, _CLASS]]).all():
        raise UserError(f"{where}: shifts, angles, places, tags and classes are finite numbers; some are not")
    voxel = values[:, _PIXEL] if values.shape[1] > _PIXEL else np.zeros(len(values))
    voxel = np.where(voxel > 0, voxel, np.nan)
    names = options.particle_names or NAMES
    return Particles(
        to_matrices(values[:, _ANGLES], "dynamo"),
        values[:, _SHIFT],
        files=[numbered(names, int(tag)) for tag in values[:, _TAG]],
        positions=values[:, _POSITION],
        tomograms=[whole_name(value) for value in values[:, _TOMOGRAM]],
        wedges=[_wedge(row, where) for row in values],
        scores=values[:, _SCORE],
        classes=[whole_name(value) for value in values[:, _CLASS]],
        voxel_sizes=np.full(len(values), options.pixel_size) if options.pixel_size else voxel,
        origin=Origin("dynamo", where, origin.content, origin.index, options, _NOTES),
    )


_NOTES = (
    "rotations are Dynamo's tdrot, tilt, narot: Rz(-tdrot) Rx(-tilt) Rz(-narot), reference to particle; "
    "shifts are those of the particle",
    "coordinates are taken as they stand in columns 24 to 26",
)


def whole_name(value: float) -> str:
    """A number as a name: "" for 0."""
    return "" if value == 0 else f"{value:g}" if value != int(value) else str(int(value))


def _wedge(row: NDArray[np.float64], where: str) -> Wedge | None:
    """Sampling 1 is a tilt series about y."""
    first, last = float(row[_FIRST_TILT]), float(row[_LAST_TILT])
    if row[_SAMPLING] != 1 or first == last:
        return None
    try:
        return Wedge((first, last))
    except UserError as error:
        raise UserError(f"{where}, tag {row[_TAG]:g}: {error}") from error


def dynamo_bytes(particles: Particles, pixel_size: float | None = None) -> bytes:
    """The table of a list; one that was read from Dynamo keeps all that was not changed.

    Raises
    ------
    UserError
        Orientations that are no rotations.
    """
    origin = origin_of(particles, "dynamo")
    count = len(particles)
    if origin is None:
        rows = [["0"] * COLUMNS for _ in range(count)]
        for number, row in enumerate(rows, 1):
            row[_TAG], row[_ALIGNED], row[_AVERAGED] = str(number), "1", "1"
        _put(rows, particles, None, pixel_size)
        return _text(rows)
    everything = _rows(origin.content, origin.where)
    rows = [list(everything[place]) for place in origin.index]
    before = _particles(rows, origin)
    touched = _put(rows, particles, before, pixel_size)
    if not touched and origin.index == tuple(range(len(everything))):
        return origin.content
    return _text(rows)


def _text(rows: list[list[str]]) -> bytes:
    return "".join(" ".join(row) + "\n" for row in rows).encode("ascii")


def _put(rows: list[list[str]], now: Particles, before: Particles | None, pixel_size: float | None) -> bool:
    count = len(rows)
    angles = to_angles(now.rotations, "dynamo")
    positions = np.zeros((count, 3)) if now.positions is None else np.nan_to_num(now.positions)
    sizes = np.nan_to_num(now.voxel_sizes if pixel_size is None else np.full(count, pixel_size))
    tomograms, classes = name_numbers(now.tomograms), name_numbers(now.classes)
    touched = False
    for name, part, values in (
        ("rotations", _ANGLES, angles),
        ("shifts", _SHIFT, now.shifts),
        ("positions", _POSITION, positions),
        ("scores", slice(_SCORE, _SCORE + 1), np.nan_to_num(now.scores)[:, None]),
        ("tomograms", slice(_TOMOGRAM, _TOMOGRAM + 1), tomograms[:, None]),
        ("classes", slice(_CLASS, _CLASS + 1), classes[:, None]),
        ("wedges", slice(_SAMPLING, _LAST_TILT + 1), _tilts(now)),
        ("voxel_sizes", slice(_PIXEL, _PIXEL + 1), sizes[:, None]),
    ):
        old = None if before is None else getattr(before, name)
        differing = np.full(count, True) if before is None else changed(getattr(now, name), old, count)
        for number in np.flatnonzero(differing).tolist():
            if part.start >= len(rows[number]):
                continue
            touched = True
            rows[number][part] = [f"{value:.9g}" for value in values[number]]
    return touched


def _tilts(now: Particles) -> NDArray[np.float64]:
    return np.array([[0, 0, 0] if w is None else [1, *w.tilts] for w in now.wedges], np.float64).reshape(-1, 3)


def name_numbers(names: list[str]) -> NDArray[np.float64]:
    """Names as numbers: those that are whole numbers stay, other lists are counted from 1 in order of appearance."""
    if all(name.lstrip("-").isdigit() or not name for name in names):
        return np.array([float(name or 0) for name in names])
    places = {name: place for place, name in enumerate(dict.fromkeys(names), 1)}
    return np.array([float(places[name]) for name in names])
