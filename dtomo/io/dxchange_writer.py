"""Write scans as Data Exchange HDF5, frame by frame."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from dtomo.errors import UserError
from dtomo.io.hdf5 import ENERGY, PIXEL_SIZE, SAMPLE_DETECTOR
from dtomo.io.hdf5_files import new_hdf5
from dtomo.io.output import check_output
from dtomo.io.sources import check_frames


def write_dxchange(
    path: str | os.PathLike[str],
    *,
    frames: Iterable[NDArray[Any]],
    shape: tuple[int, int, int],
    dtype: DTypeLike,
    flats: ArrayLike | None,
    darks: ArrayLike | None,
    angles: ArrayLike,
    pixel_size: float | None = None,
    energy: float | None = None,
    sample_detector_distance: float | None = None,
    extra: dict[str, Any] | None = None,
    overwrite: bool = False,
    compress: bool = False,
) -> Path:
    """Write a scan; memory holds one frame at a time. The file appears under its name only when whole.

    Parameters
    ----------
    path
        The HDF5 file.
    frames
        Projections ``(row, column)`` one after the other; `shape` is ``(angle, row, column)`` and says how
        many.
    dtype
        Of the projections, as stored.
    flats, darks
        ``(frame, row, column)`` or ``(row, column)``, stored in their own dtype, or None.
    angles
        Degrees, one per projection.
    pixel_size, energy, sample_detector_distance
        µm, keV, mm; left out if None.
    extra
        Further datasets: name -> value, or name -> (value, unit).
    overwrite
        Replace an existing HDF5 file.
    compress
        Bitshuffle and LZ4 (one chunk per frame); without it the frames lie contiguous, and a band of rows
        is read without touching the others.

    Returns
    -------
    Path
        The path written.

    Raises
    ------
    UserError
        The output is refused (see `check_output`), or frames, angles and `shape` do not match.
    """
    kind = np.dtype(dtype)
    check_frames(shape, kind, f"{path}:/exchange/data", complex_too=True)
    values = np.asarray(angles, np.float64)
    if values.shape != (shape[0],):
        raise UserError(f"{values.size} angles for {shape[0]} projections; give one per projection")
    references = {"data_white": _stack(flats, shape, "flats"), "data_dark": _stack(darks, shape, "darks")}
    needed = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    target = check_output(path, overwrite=overwrite, bytes_needed=0 if compress else needed)
    with new_hdf5(target) as file:
        _write_frames(file, frames, shape, kind, compress)
        for name, stack in references.items():
            if stack is not None:
                _put(file, f"/exchange/{name}", stack, "counts")
        _put(file, "/exchange/theta", values, "degrees")
        _put(file, "/implements", "exchange:measurement", None)
        for name, value, unit in (
            (PIXEL_SIZE[0], pixel_size, "micron"),
            (PIXEL_SIZE[1], pixel_size, "micron"),
            (ENERGY[0], energy, "keV"),
            (SAMPLE_DETECTOR[0], sample_detector_distance, "mm"),
        ):
            if value is not None:
                _put(file, name, float(value), unit)
        for name, item in (extra or {}).items():
            value, unit = item if isinstance(item, tuple) else (item, None)
            _put(file, name, value, unit)
    return target


def _stack(frames: ArrayLike | None, shape: tuple[int, int, int], what: str) -> NDArray[Any] | None:
    if frames is None:
        return None
    stack = np.asarray(frames)
    stack = stack[None] if stack.ndim == 2 else stack
    if stack.shape[1:] != shape[1:]:
        raise UserError(f"{what} have shape {stack.shape} but the projections {shape}; rows and columns must match")
    return stack


def _write_frames(
    file: h5py.File,
    frames: Iterable[NDArray[Any]],
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    compress: bool,
) -> None:
    options = {"chunks": (1, *shape[1:]), **hdf5plugin.Bitshuffle()} if compress else {}
    data = file.create_dataset("/exchange/data", shape=shape, dtype=dtype, **options)
    data.attrs.update({"units": "line integrals" if dtype.kind == "c" else "counts", "axes": "theta:y:x"})
    count = 0
    for frame in frames:
        if count == shape[0] or frame.shape != shape[1:]:
            raise UserError(
                f"frame {count} has shape {frame.shape} where {shape[0]} frames of {shape[1:]} were announced"
            )
        data[count] = frame
        count += 1
    if count != shape[0]:
        raise UserError(f"{count} frames were given where {shape[0]} were announced")
    file.flush()


def _put(file: h5py.File, name: str, value: Any, unit: str | None) -> None:
    data = file.create_dataset(name, data=value)
    if unit is not None:
        data.attrs["units"] = unit
    file.flush()
