"""Writing scans as CXI, in the fields that CDTools and SHARP read."""

import os
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.hdf5_files import new_hdf5
from dtomo.io.output import check_output
from dtomo.io.ptycho.cxi import DEFAULT_DIRECTIONS, DETECTOR, ENTRY, GEOMETRY, SOURCE
from dtomo.io.ptycho.reading import PLANCK_LIGHT
from dtomo.io.ptycho.scan import PtychoScan

TOGETHER = 2**24
"""Bytes of frames in memory at once."""
VERSION = 150


def write_cxi(
    path: str | os.PathLike[str], scan: PtychoScan, *, rotation_angle: float | None = None, overwrite: bool = False
) -> Path:
    """Write a scan as CXI, a few frames at a time: what it is now, crops and flips included.

    Lengths are metres, energies joules. ``translation`` is the motion of the sample ``(frame, 3)`` as (x, y, z), along
    ``basis_vectors`` ``(3, 2)``; a pixel of ``mask`` is 0 where it is good, else 1.

    Parameters
    ----------
    path
        Of the new file; it appears under its name when it is whole.
    scan
        With wavelength, distance and detector pixel.
    rotation_angle
        Of the sample, degrees, where this is one of several scans: ``entry_1/sample_1/rotation_angle``.
    overwrite
        Replace a file that exists.

    Raises
    ------
    UserError
        A scan that lacks what the format needs, an output that is refused, frames that cannot be read.
    """
    for name in ("wavelength", "distance", "detector_pixel"):
        if getattr(scan, name) is None:
            raise UserError(f"CXI needs the {name} of {scan.path}, which is not known; give it when the scan is opened")
    count, rows, columns = scan.shape
    needed = count * rows * columns * scan.dtype.itemsize
    target = check_output(path, inputs=list(scan.inputs), overwrite=overwrite, bytes_needed=needed)
    directions = DEFAULT_DIRECTIONS if scan.directions is None else scan.directions
    with new_hdf5(target) as file:
        file["cxi_version"] = VERSION
        file["number_of_entries"] = 1
        _write_frames(file, scan)
        _write_detector(file, scan, directions)
        assert scan.wavelength is not None
        file[f"{SOURCE}/wavelength"] = scan.wavelength
        file[f"{SOURCE}/energy"] = PLANCK_LIGHT / scan.wavelength
        if scan.near_field and scan.magnification > 1:
            assert scan.distance is not None
            file[f"{SOURCE}/distance"] = scan.distance / (scan.magnification - 1)
        _write_per_frame(file, "translation", -_metres(scan) @ directions.T)
        if scan.intensities is not None:
            _write_per_frame(file, "intensities", scan.intensities)
        if rotation_angle is not None:
            file[f"{ENTRY}/sample_1/rotation_angle"] = float(rotation_angle)
            file[f"{ENTRY}/sample_1/rotation_angle"].attrs["units"] = "degrees"
        file.flush()
    return target


def _metres(scan: PtychoScan) -> NDArray[np.float64]:
    if scan.position_unit == "m":
        return scan.positions
    assert scan.object_pixel_size is not None
    return scan.positions * np.array(scan.object_pixel_size)


def _write_frames(file: h5py.File, scan: PtychoScan) -> None:
    count = scan.shape[0]
    data = file.create_dataset(f"{DETECTOR}/data", scan.shape, scan.dtype, chunks=(1, *scan.shape[1:]))
    data.attrs["axes"] = np.bytes_("translation:y:x")
    together = max(1, TOGETHER // (scan.shape[1] * scan.shape[2] * scan.dtype.itemsize))
    for start in range(0, count, together):
        stop = min(count, start + together)
        data[start:stop] = scan.read(slice(start, stop))
        data.flush()
    file[f"{ENTRY}/data_1/data"] = h5py.SoftLink(f"/{DETECTOR}/data")


def _write_detector(file: h5py.File, scan: PtychoScan, directions: NDArray[np.float64]) -> None:
    assert scan.detector_pixel is not None
    height, width = scan.detector_pixel
    file[f"{DETECTOR}/distance"] = scan.distance
    file[f"{DETECTOR}/x_pixel_size"], file[f"{DETECTOR}/y_pixel_size"] = width, height
    file[f"{DETECTOR}/basis_vectors"] = directions * np.array([height, width])
    mask = np.zeros(scan.shape[1:], np.uint32)
    if scan.mask is not None:
        mask[~scan.mask] = 1
    file[f"{DETECTOR}/mask"] = mask
    if scan.background is not None:
        file[f"{DETECTOR}/data_dark"] = scan.background


def _write_per_frame(file: h5py.File, name: str, values: NDArray[np.float64]) -> None:
    file[f"{GEOMETRY}/{name}"] = values
    for group in (f"{ENTRY}/data_1", DETECTOR):
        file[f"{group}/{name}"] = h5py.SoftLink(f"/{GEOMETRY}/{name}")
