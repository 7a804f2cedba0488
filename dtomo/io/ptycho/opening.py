"""``open_ptycho``: recognise a scan by its content, read it, put the user's word on top, and check that all fits."""

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError
from dtomo.io.hdf5_files import open_hdf5
from dtomo.io.heads import head_of, refuse_missing
from dtomo.io.ptycho.arranged import ArrangedFrames, Arrangement, arrangement_of
from dtomo.io.ptycho.cxi import is_cxi, read_cxi
from dtomo.io.ptycho.doubts import background_doubt, check_light, check_mask
from dtomo.io.ptycho.given import Given, given_array, table_of_positions, unit_factor
from dtomo.io.ptycho.hdf5 import read_hdf5
from dtomo.io.ptycho.masks import Look, look_at, without_bad
from dtomo.io.ptycho.npz import read_npz
from dtomo.io.ptycho.ptyd import is_ptyd, read_ptyd
from dtomo.io.ptycho.reading import MOST_COUNTS, PtychoReading, check_lengths, wavelength_of
from dtomo.io.ptycho.scan import PtychoScan
from dtomo.io.sources import SelectedFrames

ZIP = b"PK\x03\x04"
"""How NumPy archives begin."""
MOST_ENERGY = 1000.0
"""keV: a larger number is meant in eV."""


def recognise_ptycho(path: str | os.PathLike[str], dataset: str | None = None) -> str | None:
    """The format of a scan by its content: "cxi", "ptyd", "npz", or "hdf5" where `dataset` names frames; else None.

    Raises
    ------
    UserError
        Nothing there, or it cannot be opened.
    """
    path = Path(path)
    refuse_missing(path)
    if path.is_dir():
        return None
    if head_of(path).startswith(ZIP):
        return "npz"
    if not h5py.is_hdf5(path):
        return None
    with open_hdf5(path) as opened:
        if is_ptyd(opened):
            return "ptyd"
        if is_cxi(opened):
            return "cxi"
    return None if dataset is None else "hdf5"


def open_ptycho(
    path: str | os.PathLike[str],
    *,
    dataset: str | None = None,
    positions: Given | None = None,
    position_unit: str | None = None,
    motion: str | None = None,
    swap_axes: bool = False,
    flip_rows: bool = False,
    flip_columns: bool = False,
    flip_frames: str | None = None,
    center: str | Sequence[int] | None = None,
    crop: int | Sequence[int] | None = None,
    exclude: Sequence[int] = (),
    mask: Given | None = None,
    background: Given | None = None,
    probe: ArrayLike | None = None,
    saturation: float | None = None,
    wavelength: float | None = None,
    energy: float | None = None,
    distance: float | None = None,
    detector_pixel: float | Sequence[float] | None = None,
    near_field: bool | None = None,
    magnification: float | None = None,
    look: bool = True,
) -> PtychoScan:
    """Open a ptychographic scan: CXI, ptypy's .ptyd, a NumPy archive or any other HDF5, told by content.

    Metadata are read, and at most 256 MB of evenly spaced frames, in which pixels without counts (gaps, NaN, constant
    ones) and saturation are looked for. What is given here counts more than what the file says.

    Parameters
    ----------
    path
        The file.
    dataset
        Frames of an HDF5 file (or array of an archive) that holds several stacks or follows no known layout.
    positions
        Row and column of each frame ``(frame, 2)``, or a file: text, NPY, ``FILE.h5:/dataset``.
    position_unit
        "m", "mm", "um", "nm" or "pixels" (of the object); needed where nothing else says it.
    motion
        What the positions are of: the "probe" on the object, or the "sample", which moves the other way. Default: in
        CXI the sample, else the probe.
    swap_axes, flip_rows, flip_columns
        Positions are (column, row); run the other way along rows, along columns (after swapping).
    flip_frames
        What is done to the frames: one of `dtomo.io.ptycho.arranged.FLIPS`, about frequency zero, which stays where it
        is.
    center
        Where frequency zero is in the stored frames: "middle" (row N // 2, column N // 2), "corner" ([0, 0]), or a row
        and a column. Default: the corner in NumPy archives, else the middle.
    crop
        Rows and columns around frequency zero that are used.
    exclude
        Frames to leave out, from 0.
    mask
        Good pixels as stored (true), of the whole frame: array, NPY, TIFF, ``FILE.h5:/dataset``; in place of the
        file's.
    background
        Counts without beam, likewise.
    probe
        First guess ``(row, column)`` or ``(mode, row, column)``, complex, of the frames as they are used.
    saturation
        Counts at which the detector stops counting; 0: none does.
    wavelength, energy
        Metres, or keV.
    distance, detector_pixel
        From sample to detector, and size (height and width) of its pixels as stored; metres.
    near_field, magnification
        Whether frames are images of the exit wave, and how much larger.
    look
        Whether frames are looked at; else metadata alone are read, however large the frames are.

    Returns
    -------
    PtychoScan

    Raises
    ------
    UserError
        A file that is missing, truncated or of an unknown kind, no positions, shapes that do not fit, units that are
        not known.
    """
    reading = _read(Path(path), dataset)
    _put_positions(reading, positions, position_unit)
    if len(exclude):
        _leave_out(reading, exclude)
    _put_images(reading, mask, background)
    _put_numbers(reading, wavelength, energy, distance, detector_pixel)
    if near_field is not None:
        reading.put("near_field", near_field, "given")
    check_lengths(reading)
    seen = look_at(reading.frames, reading.mask) if look else Look.nothing(reading.frames.shape)
    reading.warnings += seen.notes
    reading.mask = without_bad(reading.frames, reading.mask, seen)
    doubt = background_doubt(reading.frames.location, reading.background, seen)
    reading.warnings += [] if doubt is None else [doubt]
    if reading.near_field and center == "corner":
        raise UserError("center='corner' is of far fields; images of a near field have no frequency zero: leave it out")
    usual = "middle" if reading.near_field else reading.center
    where = usual if center is None else center
    arrangement = arrangement_of(reading.frames.shape[1:], where, crop, flip_frames, images=reading.near_field)
    if look and not reading.near_field:
        check_light(reading, seen, reading.center if center is None else center)
    scan = _scan(reading, arrangement, probe, _magnification(reading, magnification))
    counts = seen.saturation if saturation is None else saturation
    scan = dataclasses.replace(scan, saturation=counts if counts else None)
    return _oriented(scan, reading, motion, swap_axes, flip_rows, flip_columns)


def _leave_out(reading: PtychoReading, exclude: Sequence[int]) -> None:
    count = reading.frames.shape[0]
    gone = np.asarray(exclude, np.int64)
    wrong = gone[(gone < 0) | (gone >= count)]
    if wrong.size:
        raise UserError(f"{reading.path} has frames 0 to {count - 1}; no frame {int(wrong[0])} can be left out")
    kept = np.setdiff1d(np.arange(count), gone)
    if not kept.size:
        raise UserError(f"no frame of {reading.path} is left; it has {count}")
    assert reading.positions is not None
    reading.frames = SelectedFrames.of(reading.frames, kept)
    reading.positions = reading.positions[kept]
    if reading.intensities is not None and len(reading.intensities) == count:
        reading.intensities = reading.intensities[kept]


def _read(path: Path, dataset: str | None) -> PtychoReading:
    kind = recognise_ptycho(path, dataset)
    if kind == "cxi":
        return read_cxi(path, dataset)
    if kind == "ptyd":
        if dataset is not None:
            raise UserError(f"{path} is ptypy's, whose frames have one place; leave dataset (--dataset) out")
        return read_ptyd(path)
    if kind == "npz":
        return read_npz(path, dataset)
    if kind == "hdf5" or (path.is_file() and h5py.is_hdf5(path)):
        return read_hdf5(path, dataset)
    if path.is_file() and not path.stat().st_size:
        raise UserError(f"{path} is empty (0 bytes)")
    raise UserError(
        f"{path} is no ptychographic scan dtomo knows: CXI, ptypy's .ptyd, HDF5 or a NumPy archive (.npz) was expected"
    )


def _put_positions(reading: PtychoReading, given: Given | None, unit: str | None) -> None:
    if given is not None:
        array, where, file = given_array(given, "positions")
        reading.put("positions", table_of_positions(array, where), f"given: {where}")
        reading.position_unit, reading.motion = None, "probe"
        if file is not None:
            reading.inputs.append(file)
    if reading.positions is None:
        raise UserError(
            f"{reading.path} has no positions for its {reading.frames.shape[0]} frames"
            f"{f' ({reading.unfit})' if reading.unfit else ''}; give them with positions=... (--positions FILE)"
        )
    where = reading.found["positions"]
    if len(reading.positions) != reading.frames.shape[0]:
        raise UserError(
            f"{where} has {len(reading.positions)} positions, but there are {reading.frames.shape[0]} frames in "
            f"{reading.frames.location}; one for each is needed"
        )
    if unit is not None:
        reading.found["positions"] += f" (taken as {unit})"
        reading.position_unit, where = unit, "position_unit"
    if reading.position_unit is None:
        raise UserError(
            f"{where} has no unit: say with position_unit=... (--position-unit) whether it is m, mm, um, nm or pixels "
            "of the object"
        )
    reading.position_unit, factor = unit_factor(reading.position_unit, where)
    reading.positions = reading.positions * factor


def _put_images(reading: PtychoReading, mask: Given | None, background: Given | None) -> None:
    shape = reading.frames.shape[1:]
    for what, value, kinds in (("mask", mask, "uifb"), ("background", background, "uif")):
        if value is None:
            continue
        array, where, file = given_array(value, what, kinds=kinds)
        if array.shape != shape:
            raise UserError(f"{where} has shape {array.shape}, but the frames as stored have {shape}; they must match")
        if file is not None:
            reading.inputs.append(file)
        good = array > 0 if what == "mask" else np.asarray(array, np.float64)
        reading.put(what, good, f"given: {where}")
    if reading.background is not None and not (there := np.abs(reading.background) < MOST_COUNTS).all():
        count = int((~there).sum())
        reading.warnings.append(f"{reading.found['background']}: {count} pixels hold no counts; they are taken as 0")
        reading.background = np.where(there, reading.background, 0)
    if reading.mask is not None and not reading.mask.any():
        raise UserError(f"{reading.found['mask']}: the mask leaves no good pixel; is it inverted? True means good")


def _put_numbers(
    reading: PtychoReading,
    wavelength: float | None,
    energy: float | None,
    distance: float | None,
    detector_pixel: float | Sequence[float] | None,
) -> None:
    if wavelength is not None and energy is not None:
        raise UserError("wavelength and energy say the same; give one of them")
    for name, value in (("wavelength", wavelength), ("energy", energy), ("distance", distance)):
        if value is None:
            continue
        if not (math.isfinite(value) and value > 0):
            raise UserError(f"{name} must be a positive number, not {value}")
        if name == "energy":
            if value > MOST_ENERGY:
                raise UserError(f"energy is in keV, and {value:g} keV is more than any beam has; is it {value:g} eV?")
            reading.put("wavelength", wavelength_of(value), "given: energy")
        else:
            reading.put(name, float(value), "given")
    if detector_pixel is not None:
        size = np.asarray(detector_pixel, np.float64).reshape(-1)
        if size.size not in (1, 2) or not np.isfinite(size).all() or not (size > 0).all():
            raise UserError(f"detector_pixel is a positive length, or height and width; got {detector_pixel}")
        height, width = (float(one) for one in np.broadcast_to(size, 2))
        reading.put("detector_pixel", (height, width), "given")


def _magnification(reading: PtychoReading, given: float | None) -> float:
    if given is not None:
        if not reading.near_field:
            raise UserError(
                "magnification is of a near field, but the frames are taken as far fields; say near_field=True "
                "(--near-field) or leave it out"
            )
        if not (math.isfinite(given) and given > 0):
            raise UserError(f"magnification must be a positive number, not {given}")
        reading.found["magnification"] = "given"
        return float(given)
    if reading.near_field and reading.source_distance is not None and reading.distance is not None:
        reading.found["magnification"] = f"{reading.found['source_distance']} and the distance"
        return 1 + reading.distance / reading.source_distance
    return 1.0


def _scan(
    reading: PtychoReading, arrangement: Arrangement, probe: ArrayLike | None, magnification: float
) -> PtychoScan:
    whole = arrangement.window == (0, reading.frames.shape[1], 0, reading.frames.shape[2])
    mask = None if reading.mask is None else np.ascontiguousarray(arrangement(reading.mask))
    if mask is not None:
        check_mask(reading, mask)
    guess: NDArray[Any] | None = reading.probe
    if guess is not None:
        if guess.shape[1:] == reading.frames.shape[1:] and whole:
            guess = np.ascontiguousarray(arrangement.turned(guess))
        else:
            reading.warnings.append(
                f"{reading.found.pop('probe')} is not used: it does not have the size of the frames"
            )
            guess = None
    if probe is not None:
        guess = np.asarray(probe, np.complex64)
        guess = guess[None] if guess.ndim == 2 else guess
        reading.found["probe"] = "given"
    pixel = reading.detector_pixel
    directions = reading.directions
    if arrangement.transpose:
        pixel = pixel and (pixel[1], pixel[0])
    assert reading.positions is not None
    assert reading.position_unit is not None
    return PtychoScan(
        path=reading.path,
        format=reading.format,
        frames=ArrangedFrames(reading.frames, arrangement, None if mask is None or mask.all() else mask),
        positions=reading.positions,
        position_unit=reading.position_unit,
        wavelength=reading.wavelength,
        distance=reading.distance,
        detector_pixel=pixel,
        mask=None if mask is None or mask.all() else mask,
        background=None if reading.background is None else arrangement(reading.background).astype(np.float32),
        probe=guess,
        intensities=reading.intensities,
        near_field=reading.near_field,
        magnification=magnification,
        directions=directions,
        found=reading.found,
        warnings=tuple(reading.warnings),
        inputs=tuple(dict.fromkeys(reading.inputs)),
    )


def _oriented(
    scan: PtychoScan, reading: PtychoReading, motion: str | None, swap_axes: bool, flip_rows: bool, flip_columns: bool
) -> PtychoScan:
    if motion not in (None, "sample", "probe"):
        raise UserError(f"motion is 'sample' or 'probe'; got {motion!r}")
    moved = motion or reading.motion
    scan.found["motion"] = f"positions are stored of the {moved} ({'given' if motion else 'as the format has it'})"
    if moved == "sample":
        scan = dataclasses.replace(scan, positions=-scan.positions)
    return scan.reoriented(swap_axes=swap_axes, flip_rows=flip_rows, flip_columns=flip_columns)
