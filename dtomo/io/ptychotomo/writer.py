"""The format of dtomo's own joint scans: one HDF5 file.

================== ============================================================================
``frames``         counts ``(frame, row, column)``, frequency zero at row N // 2, column N // 2
``angles``         degrees ``(angle,)``
``angle_of_frame`` number of each frame's angle, from 0, whole numbers ``(frame,)``
``positions``      ``(frame, 2)``: row and column of pixel [0, 0] of the probe in the images, pixels
``probe``          first guess ``(mode, row, column)``, complex; may be absent, as the rest
``mask``           good pixels ``(row, column)``: above 0
``background``     counts without beam ``(row, column)``
================== ============================================================================

Attributes of the file: ``format`` = "ptychotomo", ``image_rows``, ``image_columns``, and where they are known
``center`` (column of the axis), ``pixel_size``, ``wavelength`` and ``distance`` in metres, ``saturation`` in counts.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError
from dtomo.io.hdf5_files import new_hdf5, open_hdf5
from dtomo.io.output import check_output
from dtomo.io.ptychotomo.scan import PtychotomoScan

FORMAT = "ptychotomo"
TOGETHER = 2**24
"""Bytes of frames in memory at once."""


def write_ptychotomo(
    path: str | os.PathLike[str],
    frames: Iterable[NDArray[Any]],
    *,
    angles: ArrayLike,
    angle_of_frame: ArrayLike,
    positions: ArrayLike,
    image_shape: tuple[int, int],
    frame_shape: tuple[int, int],
    dtype: Any = np.uint32,
    probe: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    background: ArrayLike | None = None,
    attributes: Mapping[str, Any] | None = None,
    inputs: Iterable[str | os.PathLike[str]] = (),
    overwrite: bool = False,
    more: Callable[[h5py.File], None] | None = None,
) -> Path:
    """Write a joint scan; see the table of this module.

    Parameters
    ----------
    path
        An HDF5 file.
    frames
        One after another, ``(row, column)``; no more than one is in memory.
    angles, angle_of_frame, positions, image_shape, probe, mask, background
        See the table.
    frame_shape, dtype
        Of the frames.
    attributes
        Of the file: ``center``, ``pixel_size`` …
    inputs
        Files that must not be written over.
    overwrite
        Replace a file that exists.
    more
        Called with the open file before it is closed.

    Raises
    ------
    UserError
        The output is refused, or there are other than one frame for each position.
    """
    numbers = np.asarray(angle_of_frame, np.int64)
    places = np.asarray(positions, np.float64)
    if places.shape != (len(numbers), 2):
        raise UserError(f"{path}: positions have shape {places.shape}; {(len(numbers), 2)} was expected")
    shape = (len(numbers), *frame_shape)
    needed = int(np.prod(shape)) * np.dtype(dtype).itemsize
    target = check_output(path, inputs=inputs, overwrite=overwrite, bytes_needed=needed)
    with new_hdf5(target) as file:
        file.attrs["format"] = FORMAT
        file.attrs["image_rows"], file.attrs["image_columns"] = image_shape
        for name, value in (attributes or {}).items():
            file.attrs[name] = value
        file["angles"] = np.asarray(angles, np.float64)
        file["angles"].attrs["units"] = "degrees"
        file["angle_of_frame"] = numbers
        file["positions"] = places
        for name, image, kind in (("probe", probe, np.complex64), ("background", background, np.float64)):
            if image is not None:
                file[name] = np.asarray(image, kind)
        if mask is not None:
            file["mask"] = np.asarray(mask, bool).astype(np.uint8)
        data = file.create_dataset("frames", shape, dtype, chunks=(1, *frame_shape))
        written = 0
        for number, frame in enumerate(frames):
            if number >= len(numbers):
                raise UserError(f"{path}: there are more frames than the {len(numbers)} positions")
            data[number] = frame
            written += 1
        if written != len(numbers):
            raise UserError(f"{path}: there are {written} frames for {len(numbers)} positions; one each is needed")
        if more is not None:
            more(file)
        file.flush()
    return target


def write_scan(path: str | os.PathLike[str], scan: PtychotomoScan, *, overwrite: bool = False) -> Path:
    """Write a scan that is open as one file, as it is now: a folder of files becomes one, turns and masks a part of it.

    Parameters
    ----------
    path
        An HDF5 file.
    scan
        From `dtomo.io.ptychotomo.open_ptychotomo`.
    overwrite
        Replace a file that exists.

    Raises
    ------
    UserError
        The output is refused, frames that cannot be read.
    """
    names = ("center", "pixel_size", "wavelength", "distance", "saturation")
    attributes = {name: getattr(scan, name) for name in names if getattr(scan, name) is not None}
    return write_ptychotomo(
        path,
        _one_by_one(scan),
        angles=scan.angles,
        angle_of_frame=scan.angle_of_frame,
        positions=scan.positions,
        image_shape=scan.image_shape,
        frame_shape=scan.shape[1:],
        dtype=scan.frames.dtype,
        probe=scan.probe,
        mask=scan.mask,
        background=scan.background,
        attributes=attributes,
        inputs=scan.inputs,
        overwrite=overwrite,
    )


def _one_by_one(scan: PtychotomoScan) -> Iterator[NDArray[Any]]:
    count, rows, columns = scan.shape
    together = max(1, TOGETHER // (rows * columns * scan.frames.dtype.itemsize))
    for start in range(0, count, together):
        yield from scan.frames.read(slice(start, min(count, start + together)))


def is_ptychotomo(file: h5py.File) -> bool:
    """Whether an open file is of this format."""
    return bool(np.all(file.attrs.get("format") == FORMAT))


def is_ptychotomo_file(path: Path) -> bool:
    """Whether a file is of this format.

    Raises
    ------
    UserError
        It cannot be opened.
    """
    if not h5py.is_hdf5(path):
        return False
    with open_hdf5(path) as file:
        return is_ptychotomo(file)
