"""Joint scans from ptychographic files: one for each angle, or one of the frames of all."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.angles import AngleTable, to_degrees
from dtomo.io.ptycho.joined import JoinedFrames
from dtomo.io.ptycho.opening import open_ptycho
from dtomo.io.ptycho.scan import PtychoScan
from dtomo.io.ptychotomo.scan import PtychotomoScan
from dtomo.io.ptychotomo.stated_angles import angles_of_files, grouped, stated_angles

PADDING = 2
"""Pixels of the images around what the frames cover."""
LOOKED_AT = 4
"""Files of many whose frames are looked at for values that cannot be counts."""
SAME_PIXELS = 1e-4
"""Part that the object pixels and wavelengths of files may differ by."""


def from_files(
    files: Sequence[Path],
    angles: AngleTable | None,
    origin: str,
    rotation_axis: str,
    look: bool,
    options: dict[str, Any],
) -> PtychotomoScan:
    """One scan from a ptychographic file for each angle.

    Parameters
    ----------
    files
        In the order of `angles`.
    angles
        One for each; None: as the files state.
    origin, rotation_axis
        See `dtomo.io.ptychotomo.open_ptychotomo`; the axis is left as it is in the files.
    look
        Whether frames of some files are looked at.
    options
        Of `dtomo.io.ptycho.open_ptycho`.

    Raises
    ------
    UserError
        What cannot be read, or files that do not fit one another.
    """
    looked = set(np.linspace(0, len(files) - 1, min(LOOKED_AT, len(files))).round().astype(int)) if look else set()
    scans = [open_ptycho(file, look=number in looked, **options) for number, file in enumerate(files)]
    for scan in scans[1:]:
        _check_same(scans[0], scan)
    if angles is None:
        angles = angles_of_files(files, [scan.directions for scan in scans], rotation_axis)
    if len(angles.values) != len(files):
        raise UserError(f"{len(angles.values)} angles are given, but there are {len(files)} files; one each is needed")
    degrees, notes = to_degrees(angles)
    numbers = np.repeat(np.arange(len(files)), [scan.shape[0] for scan in scans])
    return _placed(scans, files[0].parent, degrees, numbers, notes, origin, rotation_axis)


def from_one(
    file: Path, angles: AngleTable | None, origin: str, rotation_axis: str, look: bool, options: dict[str, Any]
) -> PtychotomoScan:
    """One scan from a ptychographic file of the frames of all angles, with an angle for each frame.

    Frames whose angles are no more than 0.001 degrees apart have one.

    Parameters
    ----------
    file, origin, rotation_axis, look, options
        As of `from_files`.
    angles
        One for each frame; None: as the file states.

    Raises
    ------
    UserError
        What cannot be read, or a file without an angle for each frame.
    """
    try:
        scan = open_ptycho(file, look=look, **options)
    except UserError as error:
        raise UserError(f"{file} is no joint scan of dtomo's format, and as a ptychographic file: {error}") from error
    table = stated_angles(file, scan.directions, rotation_axis) if angles is None else angles
    excluded = np.asarray(options.get("exclude", ()), np.int64)
    if table is not None and excluded.size and len(table.values) == scan.shape[0] + len(np.unique(excluded)):
        table = table.take(np.setdiff1d(np.arange(len(table.values)), excluded))
    count = scan.shape[0]
    if table is None or len(table.values) != count:
        found = "no angles" if table is None else f"{len(table.values)} angles ({table.where})"
        raise UserError(
            f"{file} has {count} frames but {found}; a scan of all angles in a ptychographic file takes one for each "
            "frame: give angles=... (--angles FILE), or a folder of one file per angle"
        )
    degrees, notes = to_degrees(table)
    degrees, numbers = grouped(degrees)
    return _placed([scan], file, degrees, numbers, notes, origin, rotation_axis)


def _placed(
    scans: list[PtychoScan],
    path: Path,
    degrees: NDArray[np.float64],
    numbers: NDArray[np.int64],
    notes: list[str],
    origin: str,
    rotation_axis: str,
) -> PtychotomoScan:
    """All in one, with the frames in images of one size."""
    first, masks = scans[0], [scan.mask for scan in scans if scan.mask is not None]
    if first.near_field:
        raise UserError(f"{first.path} holds images of a near field; joint scans are of far fields")
    mask = np.logical_and.reduce(masks) if masks else None
    positions, shape = in_images(
        np.concatenate([scan.positions_in_pixels() for scan in scans]),
        numbers,
        first.shape[1:],
        origin,
        rotation_axis,
    )
    warnings = [note for scan in scans for note in scan.warnings]
    if any(scan.intensities is not None for scan in scans):
        warnings.append(f"{path}: intensities of the beam at each frame are not used; refine the scale of each angle")
    counts = [scan.saturation for scan in scans if scan.saturation is not None]
    pixel = first.object_pixel_size
    frames = JoinedFrames.of(tuple(dataclasses.replace(scan.frames, mask=mask) for scan in scans))
    return PtychotomoScan(
        path=path,
        frames=frames,
        angles=degrees,
        angle_of_frame=numbers,
        positions=positions,
        image_shape=shape,
        mask=mask,
        background=first.background,
        probe=first.probe,
        saturation=min(counts) if counts else None,
        pixel_size=None if pixel is None else _square(pixel, first.path),
        wavelength=first.wavelength,
        distance=first.distance,
        warnings=tuple(dict.fromkeys([*warnings, *notes])),
        inputs=tuple(dict.fromkeys(file for scan in scans for file in scan.inputs)),
    )


def in_images(
    positions: NDArray[np.float64],
    angle_of_frame: NDArray[np.int64],
    frame: tuple[int, int],
    origin: str,
    rotation_axis: str = "rows",
) -> tuple[NDArray[np.float64], tuple[int, int]]:
    """Positions of pixel [0, 0] of the probe in images that hold all frames, and the rows and columns of these.

    The middle of the probe is its pixel N // 2; the rotation axis is the middle of the images.

    Parameters
    ----------
    positions
        Of the probe on the object ``(frame, 2)``, row and column, pixels.
    angle_of_frame
        Number of each frame's angle.
    frame
        Rows and columns of the frames.
    origin
        "stage": positions of all angles are from one origin, which lies on the axis. "middle": the middle of the
        positions of each angle lies on the axis, and on the middle row.
    rotation_axis
        Along the "rows" (z is the row) or the "columns".

    Raises
    ------
    UserError
        The stage's origin lies outside of what was scanned.
    """
    size = np.array(frame)
    if origin == "middle":
        ends = np.full((2, angle_of_frame.max() + 1, 2), np.inf)
        np.minimum.at(ends[0], angle_of_frame, positions)
        np.minimum.at(ends[1], angle_of_frame, -positions)
        positions = positions - ((ends[0] - ends[1]) / 2)[angle_of_frame]
    first, last = positions.min(0), positions.max(0)
    across = 1 if rotation_axis == "rows" else 0
    if first[across] > size[across] / 2 or last[across] < -size[across] / 2:
        raise UserError(
            f"the positions run from {first[across]:.6g} to {last[across]:.6g} pixels across the rotation axis, all to "
            "one side of the stage's origin, which is taken for the axis; take origin='middle' (--origin middle), or "
            "correct the positions"
        )
    half = np.maximum(np.abs(first), np.abs(last))
    shape = np.ceil(2 * half).astype(np.int64) + size + 2 * PADDING
    shift = (shape - 1) / 2 - size // 2
    if origin == "stage":  # along the axis nothing says where the origin is
        along = 1 - across
        shape[along] = int(np.ceil(last[along] - first[along])) + size[along] + 2 * PADDING
        shift[along] = PADDING - first[along]
    return positions + shift, (int(shape[0]), int(shape[1]))


def _check_same(first: PtychoScan, scan: PtychoScan) -> None:
    for what, ours, theirs in (
        ("object pixels of {} m", first.object_pixel_size, scan.object_pixel_size),
        ("a wavelength of {} m", first.wavelength, scan.wavelength),
    ):
        alike = ours is None and theirs is None
        if ours is not None and theirs is not None:
            alike = np.allclose(ours, theirs, rtol=SAME_PIXELS, atol=0)
        if not alike:
            said = [what.format("unknown size" if one is None else _lengths(one)) for one in (theirs, ours)]
            raise UserError(f"{scan.path} has {said[0]}, but {first.path} {said[1]}; all angles have the same")
    if scan.near_field != first.near_field:
        raise UserError(f"{scan.path} and {first.path} are not both in the far field, or in the near field")


def _lengths(value: Any) -> str:
    return " × ".join(f"{length:.6g}" for length in np.atleast_1d(value))


def _square(pixel: tuple[float, float], path: Path) -> float:
    if not np.isclose(pixel[0], pixel[1], rtol=1e-3, atol=0):
        raise UserError(f"{path}: object pixels are {_lengths(pixel)} m (height × width); voxels take square ones")
    return float(pixel[1])
