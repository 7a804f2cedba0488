"""The format of dtomo's own joint scans: one HDF5 file.

================== ============================================================================
``frames``         counts ``(frame, row, column)``, frequency zero at row N // 2, column N // 2
``angles``         degrees ``(angle,)``
``angle_of_frame`` number of each frame's angle ``(frame,)``
``positions``      ``(frame, 2)``: row and column of pixel [0, 0] of the probe in the images, pixels
``probe``          first guess ``(mode, row, column)``, complex; may be absent, as the rest
``mask``           good pixels ``(row, column)``
``background``     counts without beam ``(row, column)``
================== ============================================================================

Attributes of the file: ``format`` = "ptychotomo", ``image_rows``, ``image_columns``, and where they are known
``center`` (column of the axis), ``pixel_size``, ``wavelength`` and ``distance`` in metres, ``saturation`` in counts.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.io.hdf5_files import new_hdf5
from dtomo.io.output import check_output

FORMAT = "ptychotomo"


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
    attributes: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    more: Any = None,
) -> Path:
    """Write a joint scan; see the table of this module.

    Parameters
    ----------
    path
        An HDF5 file.
    frames
        One after another, ``(row, column)``.
    angles, angle_of_frame, positions, image_shape, probe
        See the table.
    frame_shape, dtype
        Of the frames.
    attributes
        Of the file: ``center``, ``pixel_size`` …
    overwrite
        Replace a file that exists.
    more
        Called with the open file before it is closed.

    Raises
    ------
    UserError
        The output is refused.
    """
    target = check_output(path, overwrite=overwrite)
    numbers = np.asarray(angle_of_frame, np.int64)
    with new_hdf5(target) as file:
        file.attrs["format"] = FORMAT
        file.attrs["image_rows"], file.attrs["image_columns"] = image_shape
        for name, value in (attributes or {}).items():
            file.attrs[name] = value
        file["angles"] = np.asarray(angles, np.float64)
        file["angle_of_frame"] = numbers
        file["positions"] = np.asarray(positions, np.float64)
        if probe is not None:
            file["probe"] = np.asarray(probe, np.complex64)
        data = file.create_dataset("frames", (len(numbers), *frame_shape), dtype, chunks=(1, *frame_shape))
        for number, frame in enumerate(frames):
            data[number] = frame
        if more is not None:
            more(file)
    return target


def is_ptychotomo(file: h5py.File) -> bool:
    """Whether a file is of this format."""
    return file.attrs.get("format") == FORMAT
