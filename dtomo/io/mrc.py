"""MRC files: headers read as they are met in practice, volumes written so that others read the spacing.

Format: A. Cheng et al., "MRC2014: Extensions to the MRC format header", J. Struct. Biol. 192 (2015) 146;
signed bytes as IMOD marks them (https://bio3d.colorado.edu/imod/doc/mrc_format.txt).
"""

import contextlib
import dataclasses
import math
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mrcfile
import mrcfile.utils
import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.angles import AngleTable
from dtomo.io.reading import Reading
from dtomo.io.sources import MrcSource, check_frames
from dtomo.io.tilts.series import Tilts, read_tilts

_IMOD_STAMP = 1146047817
_MODES = (0, 1, 2, 4, 6, 12)
_LABEL = b"written by dtomo"
AXIS_LABEL = "aligned by dtomo, axis at column "
"""Before the column of the axis, in the second label of an aligned series."""
_STORED = {"int8": "int8", "int16": "int16", "uint16": "uint16", "float16": "float16", "float32": "float32",
            "complex64": "complex64", "uint8": "uint16", "float64": "float32"}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class MrcFile:
    """What an MRC header says: ``source`` reads sections ``(z, y, x)``; voxel size (z, y, x) in Å or None."""

    source: MrcSource
    voxel_size: tuple[float, float, float] | None
    origin: tuple[float, float, float]
    is_stack: bool
    warnings: tuple[str, ...]
    labels: tuple[str, ...] = ()


def looks_like_mrc(path: Path) -> bool:
    """Whether a file has the MAP stamp, or a header that makes sense without one (old FEI and IMOD files)."""
    with open(path, "rb") as file:
        head = file.read(1024)
    if len(head) < 1024:
        return False
    if head[208:211] == b"MAP":
        return True
    for order in "<>":
        nx, ny, nz, mode = np.frombuffer(head, order + "i4", 4).tolist()
        extra = int(np.frombuffer(head, order + "i4", 1, offset=92)[0])
        if min(nx, ny, nz) > 0 and max(nx, ny, nz) < 10**6 and mode in _MODES and 0 <= extra < path.stat().st_size:
            return True
    return False


def read_mrc_header(path: Path) -> MrcFile:
    """Describe an MRC file; the data stay on disk.

    Files without MAP or machine stamp are read (with a warning), IMOD's bytes as its stamp and flag say. A
    voxel size that is 0, or 1.0 Å in a file that does not say who meant it, is unknown.

    Raises
    ------
    UserError
        The file is missing, truncated, not MRC, or of a mode dtomo does not read.
    """
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with mrcfile.open(path, permissive=True, header_only=True) as file:
                header = file.header.copy()
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as MRC ({error})") from error
    notes = [f"{path}: {str(item.message).strip()}" for item in caught if issubclass(item.category, RuntimeWarning)]
    mode = int(header.mode)
    if mode not in _MODES:
        raise UserError(f"{path} is MRC mode {mode}; dtomo reads modes {', '.join(map(str, _MODES))}")
    shape = (int(header.nz), int(header.ny), int(header.nx))
    stored = mrcfile.utils.dtype_from_mode(mode).newbyteorder(header.nx.dtype.byteorder)
    stored, dtype, signed = _byte_kind(header, stored)
    offset = 1024 + max(0, int(header.nsymbt))
    if min(shape) < 1:
        raise UserError(f"{path} is empty: its header says {shape} (z, y, x)")
    check_frames(shape, dtype, str(path), complex_too=True)
    needed, size = offset + math.prod(shape) * stored.itemsize, path.stat().st_size
    if size < needed:
        raise UserError(f"{path} is truncated: {size} bytes where its header asks for {needed}; copy it again")
    source = MrcSource(path, offset, stored.str, shape, dtype, signed)
    is_stack = int(header.ispg) == 0
    voxel_size, spacing_notes = _voxel_size(path, header, is_stack)
    origin = tuple(float(header.origin[axis]) for axis in "zyx")
    labels = tuple(bytes(label).decode("latin-1").strip("\0 ") for label in np.atleast_1d(header.label))
    return MrcFile(source, voxel_size, origin, is_stack, (*notes, *spacing_notes), labels)  # type: ignore[arg-type]


def _byte_kind(header: Any, stored: np.dtype[Any]) -> tuple[np.dtype[Any], np.dtype[Any], bool]:
    """Stored dtype, dtype of the values, and whether 128 is to be added, for mode 0."""
    native = stored.newbyteorder("=")
    if int(header.mode) != 0:
        return stored, native, False
    order = header.nx.dtype.byteorder
    words = np.frombuffer(header.tobytes(), np.dtype("i4").newbyteorder(order))
    if int(words[38]) != _IMOD_STAMP:
        return np.dtype(np.int8), np.dtype(np.int8), False
    if int(words[39]) & 1:
        return np.dtype(np.int8), np.dtype(np.uint8), True
    return np.dtype(np.uint8), np.dtype(np.uint8), False


def _voxel_size(path: Path, header: Any, is_stack: bool) -> tuple[tuple[float, float, float] | None, list[str]]:
    """(z, y, x) in Å, or None where the header leaves it open; sizes that agree to 0.1 % are one size."""
    cell = [float(header.cella[axis]) for axis in "zyx"]
    samples = [int(header.mz), int(header.my), int(header.mx)]
    axes = slice(1, 3) if is_stack else slice(0, 3)
    if min(samples[axes]) < 1 or not all(np.isfinite(value) and value > 0 for value in cell[axes]):
        return None, [f"{path}: the header gives no voxel size"]
    sizes = [float(np.float32(c / s)) if s > 0 else 0.0 for c, s in zip(cell, samples)]
    if is_stack:
        sizes[0] = sizes[2]
    written_here = any(bytes(label).startswith(_LABEL) for label in np.atleast_1d(header.label))
    if all(size == 1.0 for size in sizes) and not written_here:
        return None, [
            f"{path}: the voxel size of 1 Å is what programs write when they know none; it is taken as unknown"
        ]
    if max(sizes) <= min(sizes) * 1.001:
        sizes = [float(f"{np.mean(sizes):.6g}")] * 3
        return (sizes[0], sizes[1], sizes[2]), []
    sizes = [float(f"{size:.6g}") for size in sizes]
    note = f"{path}: voxels are not cubes: {sizes[2]:g} × {sizes[1]:g} × {sizes[0]:g} Å (x, y, z)"
    return (sizes[0], sizes[1], sizes[2]), [note]


def read_mrc_scan(path: Path, angles_given: bool = False) -> Reading:
    """Projections from an MRC stack, with what files beside it and its extended header say of a tilt series.

    Parameters
    ----------
    path
        The stack.
    angles_given
        Whether the user names the angles: files beside it then have no say in them.
    """
    found = read_mrc_header(path)
    reading = Reading(path, "mrc", found.source, inputs=[path])
    reading.found["projections"] = str(path)
    reading.warnings += found.warnings
    if found.voxel_size is not None:
        reading.pixel_size = found.voxel_size[2] * 1e-4
        reading.found["pixel_size"] = f"{path}: header"
    _put_tilts(reading, read_tilts(path, found.source.shape[0], named=angles_given))
    label = next((text for text in found.labels if text.startswith(AXIS_LABEL)), None)
    if label is not None:
        with contextlib.suppress(ValueError):  # somebody else's label
            reading.center = float(label.removeprefix(AXIS_LABEL))
            reading.found["center"] = f"{path}: header label"
            reading.tilt_series = True
    return reading


def _put_tilts(reading: Reading, tilts: Tilts) -> None:
    """Angles, pixel size and axis of a tilt series; the pixel size of the stack itself counts more."""
    path = reading.path
    if tilts.angles is not None:
        reading.angles = AngleTable(tilts.angles, "degrees", tilts.where)
        reading.found["angles"] = tilts.where
    reading.tilt_series = tilts.angles is not None or tilts.tilt_axis is not None or tilts.pixel_size is not None
    reading.inputs += tilts.inputs
    reading.warnings += tilts.notes
    if tilts.tilt_axis is not None:
        reading.tilt_axis, reading.found["tilt_axis"] = -tilts.tilt_axis[0], tilts.tilt_axis[1]
    if tilts.pixel_size is None:
        return
    size, where = tilts.pixel_size[0] * 1e-4, tilts.pixel_size[1]
    if reading.pixel_size is None:
        reading.pixel_size, reading.found["pixel_size"] = float(f"{size:.6g}"), where
        reading.warnings = [note for note in reading.warnings if "voxel size" not in note]
    elif abs(size / reading.pixel_size - 1) > 0.01:
        reading.warnings.append(
            f"{where} says {size * 1e4:g} Å, but the header of {path} {reading.pixel_size * 1e4:g} Å, which is taken; "
            "say which with pixel_size=... (--pixel-size)"
        )


def mrc_dtype(path: Path, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype MRC stores voxels in (uint8 as uint16, float64 as float32); UserError if it has no mode."""
    if dtype.name not in _STORED:
        raise UserError(f"{path}: MRC has no mode for {dtype}; write OME-Zarr, or convert to float32")
    return np.dtype(_STORED[dtype.name])


def create_mrc(
    path: Path,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    voxel_size: Sequence[float] | None,
    is_stack: bool = False,
    origin: Sequence[float] = (0.0, 0.0, 0.0),
    axis: float | None = None,
) -> tuple[int, np.dtype[Any]]:
    """An MRC file of the full size with its header; the data are holes, to be filled by ``pwrite``.

    Parameters
    ----------
    shape, voxel_size
        (z, y, x); Å, or None if unknown: the cell is then 0.
    origin
        (z, y, x) of voxel (0, 0, 0), Å.
    is_stack
        Images (mz = 1) rather than a volume (mz = nz).
    axis
        Column of the tilt axis of an aligned series, kept in a label.

    Returns
    -------
    tuple
        Offset of the data in bytes, and the dtype they are stored in (uint8 is stored as uint16, float64 as float32).

    Raises
    ------
    UserError
        A dtype MRC has no mode for.
    """
    stored = mrc_dtype(path, dtype).newbyteorder("<")
    z, y, x = (int(size) for size in shape)
    with mrcfile.new(path, data=np.zeros((1, 1, 1), stored.newbyteorder("=")), overwrite=True) as file:
        header = file.header
        header.nx, header.ny, header.nz = x, y, z
        header.mx, header.my, header.mz = x, y, 1 if is_stack else z
        header.ispg = 0 if is_stack else 1
        size = voxel_size or (0.0, 0.0, 0.0)
        header.cella = tuple(np.float32(n * s) for n, s in zip((x, y, 1 if is_stack else z), size[::-1]))
        header.origin = tuple(np.float32(value) for value in origin[::-1])
        header.dmin, header.dmax, header.dmean, header.rms = 0, -1, -2, -1  # not determined yet
        header.nlabl = 1
        header.label[:] = b""
        header.label[0] = _LABEL
        if axis is not None:
            header.nlabl, header.label[1] = 2, f"{AXIS_LABEL}{axis:.4f}".encode()
        head = header.tobytes()
    with open(path, "wb") as raw:
        raw.write(head)
        raw.truncate(len(head) + z * y * x * stored.itemsize)
    return len(head), stored.newbyteorder("=")


def set_statistics(path: Path, low: float, high: float, mean: float, rms: float) -> None:
    """Write minimum, maximum, mean and standard deviation into the header."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        values: NDArray[np.float32] = np.array([low, high, mean], "<f4")
        os.pwrite(descriptor, values.tobytes(), 76)
        os.pwrite(descriptor, np.array([rms], "<f4").tobytes(), 216)
    finally:
        os.close(descriptor)
