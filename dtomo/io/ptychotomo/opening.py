"""``open_ptychotomo``: one file of all angles, or a ptychographic file for each, in one form."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError, shown
from dtomo.io.angles import given_angles, to_degrees
from dtomo.io.hdf5_files import node, open_hdf5
from dtomo.io.ptycho.given import Given, given_array
from dtomo.io.ptycho.joined import JoinedFrames
from dtomo.io.ptycho.masks import look_at
from dtomo.io.ptycho.opening import open_ptycho
from dtomo.io.ptycho.reading import wavelength_of
from dtomo.io.ptycho.scan import PtychoScan
from dtomo.io.ptychotomo.scan import PtychotomoScan, TurnedFrames, turned
from dtomo.io.ptychotomo.writer import is_ptychotomo
from dtomo.io.sources import HDF5Source

SUFFIXES = (".cxi", ".h5", ".hdf5", ".ptyd", ".npz")
PADDING = 2
"""Pixels of the images around what the frames of single files cover."""


def open_ptychotomo(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    angles: ArrayLike | str | os.PathLike[str] | None = None,
    angle_unit: str | None = None,
    center_column: float | None = None,
    origin: Literal["stage", "middle"] = "stage",
    sign: Literal[1, -1] = 1,
    mask: Given | None = None,
    probe: ArrayLike | None = None,
    saturation: float | None = None,
    energy: float | None = None,
    distance: float | None = None,
    detector_pixel: float | None = None,
    look: bool = True,
    **options: Any,
) -> PtychotomoScan:
    """Open a scan of diffraction frames at many angles.

    Parameters
    ----------
    path
        One file of dtomo's format (`dtomo.io.ptychotomo.writer`), or a folder or list of ptychographic files, one for
        each angle, in the order of their names.
    angles
        Degrees of all angles (or `angle_unit`): numbers, or a file of them; files of single angles need it.
    center_column
        Column of the rotation axis in the images.
    origin
        Of single files: "stage" takes positions of all angles in one frame, "middle" puts the middle of each angle's
        scan on the axis.
    sign
        -1: the frames are of waves exp(-ikz), n = 1 - δ - iβ, and are turned about frequency zero.
    mask, saturation
        The user's word: good pixels ``(row, column)``; counts from which a pixel says nothing (0: none).
    probe
        First guess.
    energy, distance, detector_pixel
        keV, metres, metres: over what the files say.
    look
        Whether some frames are looked at for values that cannot be counts; else only metadata are read.
    **options
        Of `dtomo.io.ptycho.opening.open_ptycho`, for single files.

    Raises
    ------
    UserError
        What cannot be read or does not fit, in one sentence.
    """
    if sign not in (1, -1):
        raise UserError(f"the sign is 1 (waves exp(+ikz)) or -1 (waves exp(-ikz)); got {sign}")
    given: dict[str, Any] = {"saturation": saturation, "energy": energy, "distance": distance}
    given |= {"detector_pixel": detector_pixel, "look": look}
    files = _files(path)
    if files is None:
        scan = _open_one(Path(path), given)  # type: ignore[arg-type]
        if options:
            raise UserError(f"{next(iter(options))} is for single files of each angle; {path} holds all angles")
    else:
        scan = _open_many(files, angles, origin, {**given, **options})
    changes: dict[str, Any] = {}
    if angles is not None:
        changes["angles"], notes = to_degrees(given_angles(angles, angle_unit))
        changes["warnings"] = (*scan.warnings, *notes)
        if len(changes["angles"]) != len(scan.angles):
            raise UserError(f"{len(changes['angles'])} angles are given, but {scan.path} has {len(scan.angles)}")
    if center_column is not None:
        changes["center"] = float(center_column)
    if mask is not None:
        array, _, source = given_array(mask, "mask", kinds="buif")
        changes["mask"] = array.astype(bool)
        changes["inputs"] = (*scan.inputs, *([] if source is None else [source]))
    if probe is not None:
        first = np.asarray(probe)
        changes["probe"] = np.asarray(first if first.ndim == 3 else first[None], np.complex64)
    scan = dataclasses.replace(scan, **changes)
    return _turned(scan) if sign == -1 else scan


def _files(path: Any) -> list[Path] | None:
    """Single files, one for each angle; None: one file of all."""
    if not isinstance(path, str | os.PathLike):
        files = [Path(item) for item in path]
    else:
        folder = Path(path)
        if not folder.exists():
            raise UserError(f"there is no file or folder {folder}")
        if not folder.is_dir():
            return None
        files = sorted(item for item in folder.iterdir() if item.suffix.lower() in SUFFIXES)
    if len(files) < 2:
        raise UserError(
            f"{path} holds {len(files)} ptychographic file{'s' * (len(files) != 1)} ({', '.join(SUFFIXES)}); one for "
            "each angle, two at least, were expected"
        )
    return files


def _open_one(path: Path, given: dict[str, Any]) -> PtychotomoScan:
    if not h5py.is_hdf5(path):
        raise UserError(f"{path} is no HDF5 file; give a joint scan, or a folder of one ptychographic file per angle")
    with open_hdf5(path) as file:
        if not is_ptychotomo(file):
            raise UserError(
                f"{path} is no joint scan (its attribute format is not 'ptychotomo'); give one, or a folder of one "
                "ptychographic file per angle"
            )
        arrays = {name: _dataset(file, path, name) for name in ("angles", "angle_of_frame", "positions")}
        frames = node(file, "frames")
        if not isinstance(frames, h5py.Dataset) or frames.ndim != 3 or frames.dtype.kind not in "uif":
            raise UserError(f"{path}:/frames is missing or holds no counts (frame, row, column)")
        source = HDF5Source(path, "/frames", frames.shape, frames.dtype)
        extra = {name: np.asarray(file[name]) for name in ("probe", "mask", "background") if name in file}
        numbers = {name: _number(file, path, name) for name in _NUMBERS}
        shape = (_number(file, path, "image_rows"), _number(file, path, "image_columns"))
    if None in shape:
        raise UserError(f"{path} does not say how large its images are (attributes image_rows and image_columns)")
    wavelength, distance, pixel = numbers["wavelength"], numbers["distance"], numbers["pixel_size"]
    if given["energy"] is not None:
        wavelength = wavelength_of(given["energy"])
    if given["distance"] is not None:
        distance = given["distance"]
    if given["detector_pixel"] is not None:
        if wavelength is None or distance is None:
            raise UserError("--pixel-size (of the detector) takes --energy and --distance, which the scan does not say")
        pixel = wavelength * distance / (source.shape[2] * given["detector_pixel"])
    saturation = numbers["saturation"] if given["saturation"] is None else given["saturation"] or None
    scan = PtychotomoScan(
        path=path,
        frames=source,
        angles=np.asarray(arrays["angles"], np.float64),
        angle_of_frame=np.asarray(arrays["angle_of_frame"], np.int64),
        positions=np.asarray(arrays["positions"], np.float64),
        image_shape=(int(shape[0] or 0), int(shape[1] or 0)),
        center=numbers["center"],
        mask=extra["mask"].astype(bool) if "mask" in extra else None,
        background=np.asarray(extra["background"], np.float64) if "background" in extra else None,
        probe=np.asarray(extra["probe"], np.complex64) if "probe" in extra else None,
        saturation=saturation,
        pixel_size=pixel,
        wavelength=wavelength,
        distance=distance,
        inputs=(path,),
    )
    return _looked_at(scan) if given["look"] else scan


_NUMBERS = ("center", "pixel_size", "wavelength", "distance", "saturation")


def _dataset(file: h5py.File, path: Path, name: str) -> NDArray[Any]:
    found = node(file, name)
    if not isinstance(found, h5py.Dataset) or found.dtype.kind not in "uif":
        raise UserError(f"{path} has no numbers {name}; see the format of joint scans in the documentation")
    if found.size > 2**31:
        raise UserError(f"{path}:/{name} has {found.size} numbers, which cannot be meant")
    return np.asarray(found[...])


def _number(file: h5py.File, path: Path, name: str) -> float | None:
    if name not in file.attrs:
        return None
    try:
        value = float(file.attrs[name])
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: the attribute {name} is {shown(repr(file.attrs[name]))}, not a number") from error
    if not np.isfinite(value) or (name != "center" and value <= 0):
        raise UserError(f"{path}: the attribute {name} is {value}; a positive number was expected")
    return value


def _looked_at(scan: PtychotomoScan) -> PtychotomoScan:
    """Values that cannot be counts are masked and said, as in ptychography."""
    look = look_at(scan.frames, scan.mask)
    mask = scan.mask
    if look.bad.any():
        mask = ~look.bad if mask is None else mask & ~look.bad
    saturation = scan.saturation if scan.saturation is not None else look.saturation
    return dataclasses.replace(scan, mask=mask, saturation=saturation, warnings=(*scan.warnings, *look.notes))


def _open_many(files: list[Path], angles: Any, origin: str, given: dict[str, Any]) -> PtychotomoScan:
    if origin not in ("stage", "middle"):
        raise UserError(f"origins of positions are stage and middle; got {origin!r}")
    if angles is None:
        raise UserError(
            f"{files[0].parent} holds a file for each angle, which do not say what it is; give them with --angles FILE"
        )
    scans = [open_ptycho(file, **given) for file in files]
    first = scans[0]
    for scan in scans[1:]:
        for what, ours, theirs in (
            ("an object pixel of {}", first.object_pixel_size, scan.object_pixel_size),
            ("a wavelength of {}", first.wavelength, scan.wavelength),
        ):
            if (ours is None) != (theirs is None) or not np.allclose(_known(ours), _known(theirs), rtol=1e-4):
                raise UserError(
                    f"{scan.path} has {what.format(theirs)}, but {first.path} {what.format(ours)}; all angles have "
                    "the same"
                )
        if scan.near_field != first.near_field:
            raise UserError(f"{scan.path} and {first.path} are not both in the far field, or in the near field")
    if first.near_field:
        raise UserError(f"{first.path}: joint scans are of far fields")
    places = [scan.positions_in_pixels() for scan in scans]
    if origin == "middle":
        places = [part - (part.min(0) + part.max(0)) / 2 for part in places]
    positions = np.concatenate(places)
    shape, shift = _images(positions, first.shape[1:], origin)
    pixel = first.object_pixel_size
    return PtychotomoScan(
        path=files[0].parent,
        frames=JoinedFrames.of(tuple(scan.frames for scan in scans)),
        angles=np.arange(len(files), dtype=np.float64),
        angle_of_frame=np.repeat(np.arange(len(files)), [len(part) for part in places]),
        positions=positions + shift,
        image_shape=shape,
        mask=_common_mask(scans),
        background=first.background,
        probe=first.probe,
        saturation=first.saturation,
        pixel_size=None if pixel is None else _square(pixel, first.path),
        wavelength=first.wavelength,
        distance=first.distance,
        warnings=tuple(dict.fromkeys(note for scan in scans for note in scan.warnings)),
        inputs=tuple(path for scan in scans for path in scan.inputs),
    )


def _known(value: Any) -> NDArray[np.float64]:
    return np.asarray(0.0 if value is None else value, np.float64)


def _images(
    positions: NDArray[np.float64], frame: tuple[int, ...], origin: str
) -> tuple[tuple[int, int], NDArray[np.float64]]:
    """Rows and columns that hold all frames, and what brings positions there; the origin's column in the middle."""
    first, last = positions.min(0), positions.max(0)
    if origin == "stage":  # the axis is where the stage's column is zero, for the middle of the probe
        half = max(abs(first[1]), abs(last[1]))
        first, last = np.array([first[0], -half]), np.array([last[0], half])
    size = np.ceil(last - first).astype(int) + frame + 2 * PADDING
    return (int(size[0]), int(size[1])), PADDING - first


def _common_mask(scans: list[PtychoScan]) -> NDArray[np.bool_] | None:
    masks = [scan.mask for scan in scans if scan.mask is not None]
    return None if not masks else np.logical_and.reduce(masks)


def _square(pixel: tuple[float, float], path: Path) -> float:
    if not np.isclose(pixel[0], pixel[1], rtol=1e-3):
        raise UserError(f"{path}: object pixels are {pixel[0]} by {pixel[1]} m; voxels take square ones")
    return float(pixel[1])


def _turned(scan: PtychotomoScan) -> PtychotomoScan:
    """As if it had been of waves exp(+ikz)."""
    return dataclasses.replace(
        scan,
        frames=TurnedFrames(scan.frames),
        mask=None if scan.mask is None else turned(scan.mask),
        background=None if scan.background is None else turned(scan.background),
        probe=None if scan.probe is None else scan.probe.conj(),
    )
