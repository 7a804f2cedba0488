"""AV3's motive lists: an EM file of 20 numbers a particle; rows dtomo does not use are kept.

Rows, from 1: 1 score, 4 number of the particle, 5 number of the tomogram, 8 to 10 position (from 1), 11 to 13 shift,
17 phi, 18 psi, 19 theta, 20 class. The matrix is Rz(psi) Rx(theta) Rz(phi), PyTom's with Z1 = phi, Z2 = psi, X = theta.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.em import HEADER_BYTES, EmHeader, em_bytes, em_layout, read_em_header
from dtomo.io.particles.angles import to_angles, to_matrices
from dtomo.io.particles.dynamo import name_numbers, whole_name
from dtomo.io.particles.origin import Origin, ReadingOptions, changed, numbered, origin_of
from dtomo.io.particles.particles import Particles

ROWS = 20
_SCORE, _NUMBER, _TOMOGRAM, _CLASS = 0, 3, 4, 19
_POSITION, _SHIFT, _ANGLES = [7, 8, 9], [10, 11, 12], [16, 18, 17]
_NOTES = (
    "rotations are AV3's phi, psi, theta (PyTom's Z1, Z2, X), active, reference to particle",
    "positions count from 1 in the file, from 0 here; shifts are those of the particle",
)


def is_motl(path: Path) -> bool:
    """Whether an EM file has the shape of a motive list: 20 numbers for each particle, one section."""
    shape = read_em_header(path).shape
    return shape[2] == ROWS and shape[0] == 1


def read_motl(path: Path, options: ReadingOptions) -> Particles:
    """A motive list; rows that `Particles` has no place for are kept in `origin`.

    Raises
    ------
    UserError
        Not an EM file, another shape than 20 × particles, places or angles that are not finite.
    """
    found = read_em_header(path)
    if not is_motl(path) or found.stored.kind == "c":
        z, y, x = found.shape
        raise UserError(f"{path} is not a motive list: it holds {x} × {y} × {z} values, expected 20 × particles")
    count = found.shape[1]
    origin = Origin("motl", str(path), path.read_bytes(), tuple(range(count)), options)
    return _particles(_content(origin)[0].astype(np.float64), origin)


def _particles(values: NDArray[np.float64], origin: Origin) -> Particles:
    options, where = origin.options, origin.where
    used = values[:, [_NUMBER, _TOMOGRAM, _CLASS, *_POSITION, *_SHIFT, *_ANGLES]]
    if not np.isfinite(used).all():
        raise UserError(f"{where}: places, shifts, angles, numbers and classes are finite; some are not")
    names = options.particle_names
    return Particles(
        to_matrices(values[:, _ANGLES], "pytom"),
        values[:, _SHIFT],
        files=[numbered(names, int(number)) for number in values[:, _NUMBER]] if names else [],
        positions=values[:, _POSITION] - 1,
        tomograms=[whole_name(value) for value in values[:, _TOMOGRAM]],
        scores=values[:, _SCORE],
        classes=[whole_name(value) for value in values[:, _CLASS]],
        voxel_sizes=np.full(len(values), np.nan if options.pixel_size is None else options.pixel_size),
        origin=Origin("motl", where, origin.content, origin.index, options, _NOTES),
    )


def motl_bytes(particles: Particles, path: Path) -> bytes:
    """The EM file of a list; one that was read from a motive list keeps all that was not changed.

    Raises
    ------
    UserError
        Orientations that are no rotations, or no particles: an EM file is not empty.
    """
    count = len(particles)
    if not count:
        raise UserError(f"{path}: a motive list has at least one particle; write XML or STAR")
    origin = origin_of(particles, "motl")
    if origin is None:
        values = np.zeros((count, ROWS))
        values[:, _NUMBER] = np.arange(1, count + 1)
        _put(values, particles, None)
        return em_bytes(path, values[None].astype(np.float32))
    whole, header, order = _content(origin)
    values = whole[list(origin.index)].astype(np.float64)
    before = _particles(values.copy(), origin)
    if not _put(values, particles, before) and origin.index == tuple(range(len(whole))):
        return origin.content
    return em_bytes(path, values[None].astype(whole.dtype.newbyteorder("=")), header, order=order)


def _content(origin: Origin) -> tuple[NDArray[np.float64], EmHeader, str]:
    """Values, header and byte order of the file the list was read from."""
    found = em_layout(origin.content, len(origin.content), origin.where)
    values = np.frombuffer(origin.content, found.stored, offset=HEADER_BYTES, count=ROWS * found.shape[1])
    return values.reshape(-1, ROWS), found.header, found.order


def _put(values: NDArray[np.float64], now: Particles, before: Particles | None) -> bool:
    count = len(values)
    angles = to_angles(now.rotations, "pytom")
    positions = np.zeros((count, 3)) if now.positions is None else np.nan_to_num(now.positions) + 1
    touched = False
    for name, rows, columns in (
        ("rotations", _ANGLES, angles),
        ("shifts", _SHIFT, now.shifts),
        ("positions", _POSITION, positions),
        ("scores", [_SCORE], np.nan_to_num(now.scores)[:, None]),
        ("tomograms", [_TOMOGRAM], name_numbers(now.tomograms)[:, None]),
        ("classes", [_CLASS], name_numbers(now.classes)[:, None]),
    ):
        old = None if before is None else getattr(before, name)
        differing = np.full(count, True) if before is None else changed(getattr(now, name), old, count)
        if differing.any():
            touched = True
            places = np.flatnonzero(differing)
            values[places[:, None], np.array(rows)] = columns[places]
    return touched
