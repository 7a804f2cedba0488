"""Simulated joint scans on disk: one file with the truth in it, or a folder of CXI files with the truth beside it."""

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.hdf5_files import new_hdf5, open_hdf5
from dtomo.io.output import check_output, writing
from dtomo.io.ptycho.arranged import ArrangedFrames, arrangement_of
from dtomo.io.ptycho.scan import PtychoScan
from dtomo.io.ptycho.writer import write_cxi
from dtomo.io.ptychotomo.writer import write_ptychotomo
from dtomo.io.sources import ArraySource

if TYPE_CHECKING:
    from dtomo.simulate.ptychotomo import PtychotomoTruth

GROUP = "dtomo_truth"
"""HDF5 group that holds the truth."""
DISTANCE = 2.0
"""Metres to the detector."""
STATED = ("angles", "angle_of_frame", "positions")
KNOWN = ("volume", "probe", "shifts")
LENGTHS = ("pixel_size", "wavelength")
ONE_ANGLE = re.compile(r"angle-\d+\.cxi")


def write_one(truth: "PtychotomoTruth", frames: Iterator[NDArray[Any]], dtype: np.dtype[Any], overwrite: bool) -> None:
    """One file, see `dtomo.io.ptychotomo.writer`.

    Parameters
    ----------
    truth
        What it was made from; images are as large as the volume.
    frames
        In the order of the positions.
    dtype
        Of the frames.
    overwrite
        Replace a file that exists.

    Raises
    ------
    UserError
        The output is refused.
    """
    write_ptychotomo(
        truth.path,
        frames,
        angles=truth.angles,
        angle_of_frame=truth.angle_of_frame,
        positions=truth.positions,
        image_shape=(truth.volume.shape[0], truth.volume.shape[2]),
        frame_shape=truth.probe.shape[1:],
        dtype=dtype,
        probe=truth.probe,
        attributes={"pixel_size": truth.pixel_size, "wavelength": truth.wavelength, "distance": DISTANCE},
        overwrite=overwrite,
        more=lambda file: _put(file, truth),
    )


def write_folder(
    truth: "PtychotomoTruth", frames: Iterator[NDArray[Any]], dtype: np.dtype[Any], overwrite: bool
) -> None:
    """A folder with a CXI file for each angle, ``angles.txt`` and ``probe.npy``; one angle is in memory at a time.

    Positions are from an origin on the axis: the middle of the probe, pixel N // 2, lies on the axis at column 0.

    Parameters
    ----------
    truth, frames, dtype, overwrite
        As of `write_one`; the path is that of the folder.

    Raises
    ------
    UserError
        The output is refused.
    """
    folder, beside = truth.path, truth_beside(truth.path)
    if os.path.lexists(folder) and not (overwrite and folder.is_dir()):
        raise UserError(f"{folder} exists; give another name, or a folder of a simulation with --overwrite")
    check_output(beside, overwrite=overwrite, bytes_needed=truth.volume.nbytes)
    frame, columns = truth.probe.shape[-1], truth.volume.shape[2]
    pixel = truth.wavelength * DISTANCE / (frame * truth.pixel_size)
    stage = truth.positions + np.array([0, frame // 2 - (columns - 1) / 2])
    with writing(folder):
        folder.mkdir(exist_ok=True)
        for old in [item for item in folder.iterdir() if ONE_ANGLE.fullmatch(item.name)]:
            old.unlink()
        np.savetxt(folder / "angles.txt", truth.angles, fmt="%.9g", header="degrees")
        np.save(folder / "probe.npy", truth.probe)
    for number, degrees in enumerate(truth.angles):
        of_angle = truth.angle_of_frame == number
        name = folder / f"angle-{number:05d}.cxi"
        counts = np.stack(list(itertools.islice(frames, int(of_angle.sum())))).astype(dtype, copy=False)
        scan = PtychoScan(
            path=name,
            format="cxi",
            frames=ArrangedFrames(ArraySource(counts), arrangement_of(counts.shape[1:], "middle", None, None)),
            positions=stage[of_angle],
            position_unit="pixels",
            wavelength=truth.wavelength,
            distance=DISTANCE,
            detector_pixel=(pixel, pixel),
        )
        write_cxi(name, scan, rotation_angle=float(degrees))
    with new_hdf5(beside) as file:
        for what in STATED:
            file[what] = getattr(truth, what)
        for what in LENGTHS:
            file.attrs[what] = getattr(truth, what)
        _put(file, truth)
        file.flush()


def truth_beside(folder: Path) -> Path:
    """The file of the truth of a simulated folder."""
    return folder.with_name(folder.name + ".truth.h5")


def _put(file: h5py.File, truth: "PtychotomoTruth") -> None:
    group = file.create_group(GROUP)
    for name in KNOWN:
        group[name] = getattr(truth, name)


def truth_arrays(path: Path) -> dict[str, Any]:
    """What a simulated joint scan was made from, by the names of `PtychotomoTruth`.

    Raises
    ------
    UserError
        A file without the truth.
    """
    place = truth_beside(path) if path.is_dir() else path
    with open_hdf5(place) as file:
        if GROUP not in file:
            raise UserError(f"{place} holds no truth: it was not simulated by dtomo")
        found: dict[str, Any] = {name: np.asarray(file[GROUP][name]) for name in KNOWN}
        found |= {name: np.asarray(file[name]) for name in STATED}
        found |= {name: float(file.attrs[name]) for name in LENGTHS}
    return found
