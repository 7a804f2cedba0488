"""Joint scans in dtomo's own format, read; see `dtomo.io.ptychotomo.writer` for what is in it."""

import dataclasses
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError, shown
from dtomo.io.angles import AngleTable, to_degrees
from dtomo.io.hdf5_files import node, open_hdf5, text_attribute
from dtomo.io.ptycho.arranged import LEAST_PIXELS, ArrangedFrames, arrangement_of
from dtomo.io.ptycho.doubts import background_doubt, mask_doubt
from dtomo.io.ptycho.masks import Look, look_at, without_bad
from dtomo.io.ptycho.reading import MOST_COUNTS, PLAUSIBLE, small_array, wavelength_of
from dtomo.io.ptychotomo.scan import PtychotomoScan
from dtomo.io.sources import Source, hdf5_source
from dtomo.io.units import angle_unit

NUMBERS = ("center", "pixel_size", "wavelength", "distance", "saturation", "image_rows", "image_columns")


@dataclasses.dataclass(frozen=True, eq=False)
class Wanted:
    """The user's word over that of a file; None: the file's.

    Attributes
    ----------
    mask
        Good pixels as stored.
    saturation
        Counts; 0: none.
    energy, distance, detector_pixel
        keV, metres, metres.
    look
        Whether frames are looked at.
    """

    mask: NDArray[np.bool_] | None = None
    saturation: float | None = None
    energy: float | None = None
    distance: float | None = None
    detector_pixel: float | None = None
    look: bool = True


def read_own(path: Path, wanted: Wanted) -> PtychotomoScan:
    """A file of dtomo's format.

    Parameters
    ----------
    path, wanted
        The file, and what counts more than what it says.

    Raises
    ------
    UserError
        Datasets or attributes that are missing or no such thing, in one sentence.
    """
    with open_hdf5(path) as file:
        angles, warnings = _angles(file, path)
        arrays = {name: _dataset(file, path, name, kinds) for name, kinds in (("angle_of_frame", "ui"), _POSITIONS)}
        source = _frames(file, path)
        extra = {name: _extra(file, path, name, kinds, source) for name, kinds in _EXTRA}
        numbers = {name: _number(file, path, name) for name in NUMBERS}
    shape = (numbers["image_rows"], numbers["image_columns"])
    if shape[0] is None or shape[1] is None:
        raise UserError(f"{path} does not say how large its images are (attributes image_rows and image_columns)")
    numbers |= _lengths(numbers, wanted, source.shape[2])
    mask = extra["mask"] if wanted.mask is None else wanted.mask
    if mask is not None and mask.shape != source.shape[1:]:
        raise UserError(f"the mask has shape {mask.shape}, but frames of {path} {source.shape[1:]}; they must match")
    probe, background = extra["probe"], extra["background"]
    if background is not None and not (there := np.abs(background) < MOST_COUNTS).all():
        warnings.append(f"{path}:/background: {int((~there).sum())} pixels hold no counts; they are taken as 0")
        background = np.where(there, background, 0)
    frames, mask, saturation, notes = _arranged(source, mask, background, wanted.look)
    for known in (wanted.saturation, numbers["saturation"]):
        if known is not None:
            saturation = known or None
            break
    return PtychotomoScan(
        path=path,
        frames=frames,
        angles=angles,
        angle_of_frame=np.asarray(arrays["angle_of_frame"], np.int64),
        positions=np.asarray(arrays["positions"], np.float64),
        image_shape=(int(shape[0]), int(shape[1])),
        center=numbers["center"],
        mask=mask,
        background=None if background is None else np.asarray(background, np.float64),
        probe=None if probe is None else np.asarray(probe if probe.ndim == 3 else probe[None], np.complex64),
        saturation=saturation,
        pixel_size=numbers["pixel_size"],
        wavelength=numbers["wavelength"],
        distance=numbers["distance"],
        warnings=(*warnings, *notes),
        inputs=(path,),
    )


VOXELS = (1e-12, 1e-2, "--pixel-size (of the detector) with --energy and --distance")
"""Least and largest voxels there are, metres, and what says otherwise."""
_POSITIONS = ("positions", "uif")
_EXTRA = (("probe", "cuif"), ("mask", "uifb"), ("background", "uif"))


def _angles(file: h5py.File, path: Path) -> tuple[NDArray[np.float64], list[str]]:
    values = _dataset(file, path, "angles", "uif")
    where = f"{path}:/angles"
    unit = angle_unit(text_attribute(file["angles"], "units"), where) or "degrees"
    return to_degrees(AngleTable(np.asarray(values, np.float64), unit, where))


def _dataset(file: h5py.File, path: Path, name: str, kinds: str) -> NDArray[Any]:
    found = node(file, name)
    if not isinstance(found, h5py.Dataset) or found.dtype.kind not in kinds or not found.size:
        what = "whole numbers" if kinds == "ui" else "numbers"
        raise UserError(f"{path} has no {what} {name}; see the format of joint scans in the documentation")
    values = small_array(file, name, f"{path}:/{name}", kinds=kinds)
    assert values is not None
    return values


def _frames(file: h5py.File, path: Path) -> Source:
    frames = node(file, "frames")
    good = isinstance(frames, h5py.Dataset) and frames.ndim == 3 and frames.dtype.kind in "uif" and frames.size
    if not good:
        raise UserError(f"{path}:/frames is missing or holds no counts (frame, row, column)")
    source = hdf5_source(file, path, "/frames")
    if min(source.shape[1:]) < LEAST_PIXELS:
        raise UserError(f"{path}:/frames has shape {source.shape}; {LEAST_PIXELS} rows and columns are the least")
    return source


def _extra(file: h5py.File, path: Path, name: str, kinds: str, source: Source) -> NDArray[Any] | None:
    """What may be absent."""
    values = small_array(file, name, f"{path}:/{name}", kinds=kinds)
    if values is None:
        return None
    if values.shape[-2:] != source.shape[1:] or values.ndim > (3 if name == "probe" else 2):
        raise UserError(f"{path}:/{name} has shape {values.shape}, but frames have {source.shape[1:]}; they must match")
    return values > 0 if name == "mask" else values


def _number(file: h5py.File, path: Path, name: str) -> float | None:
    if name not in file.attrs:
        return None
    try:
        value = float(file.attrs[name])
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: the attribute {name} is {shown(repr(file.attrs[name]))}, not a number") from error
    if not np.isfinite(value) or (name != "center" and value <= 0):
        raise UserError(f"{path}: the attribute {name} is {value}; a positive number was expected")
    if name.startswith("image_") and value != int(value):
        raise UserError(f"{path}: the attribute {name} is {value}; a whole number was expected")
    return value


def _lengths(numbers: dict[str, float | None], wanted: Wanted, columns: int) -> dict[str, float | None]:
    """Wavelength, distance and pixel size, with the user's word on top."""
    found = {name: numbers[name] for name in ("wavelength", "distance", "pixel_size")}
    if wanted.energy is not None:
        found["wavelength"] = wavelength_of(wanted.energy)
    if wanted.distance is not None:
        found["distance"] = wanted.distance
    for name, (least, most, option) in (*PLAUSIBLE.items(), ("pixel_size", VOXELS)):
        value = found.get(name)
        if value is not None and not least <= value <= most:
            raise UserError(
                f"a {name.replace('_', ' ')} of {value:.3g} m cannot be: correct its unit, or give {option}"
            )
    if wanted.detector_pixel is not None:
        if found["wavelength"] is None or found["distance"] is None:
            raise UserError("--pixel-size (of the detector) takes --energy and --distance, which the scan does not say")
        found["pixel_size"] = found["wavelength"] * found["distance"] / (columns * wanted.detector_pixel)
    return found


def _arranged(
    source: Source, mask: NDArray[np.bool_] | None, background: NDArray[Any] | None, look: bool
) -> tuple[ArrangedFrames, NDArray[np.bool_] | None, float | None, tuple[str, ...]]:
    """Frames that are checked as they are read, good pixels, saturation, and what was seen."""
    seen = look_at(source, mask) if look else Look.nothing(source.shape)
    mask = without_bad(source, mask, seen)
    doubts = [None if mask is None else mask_doubt(f"what is masked of {source.location}", mask)]
    doubts.append(background_doubt(source.location, background, seen))
    arrangement = arrangement_of(source.shape[1:], "middle", None, None)
    notes = (*seen.notes, *(doubt for doubt in doubts if doubt is not None))
    return ArrangedFrames(source, arrangement, mask), mask, seen.saturation, notes
