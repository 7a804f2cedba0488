"""``open_ptychotomo``: one file of all angles, or a ptychographic file for each, in one form."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from dtomo.errors import UserError
from dtomo.io.angles import AngleTable, given_angles, to_degrees
from dtomo.io.ptycho.given import Given, given_array
from dtomo.io.ptychotomo.own import Wanted, read_own
from dtomo.io.ptychotomo.placing import from_files, from_one
from dtomo.io.ptychotomo.scan import PtychotomoScan
from dtomo.io.ptychotomo.turning import of_other_sign, transposed
from dtomo.io.ptychotomo.writer import is_ptychotomo_file

SUFFIXES = (".cxi", ".h5", ".hdf5", ".ptyd", ".npz")
PATTERN = "*?["
"""Characters of a pattern of file names."""


def open_ptychotomo(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    angles: ArrayLike | str | os.PathLike[str] | None = None,
    angle_unit: str | None = None,
    reverse_angles: bool = False,
    center_column: float | None = None,
    origin: Literal["stage", "middle"] = "stage",
    rotation_axis: Literal["rows", "columns"] = "rows",
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
        One file of all angles: of dtomo's format (`dtomo.io.ptychotomo.writer`), or a ptychographic file with an angle
        for each frame; or a folder, a pattern such as ``scans/*.cxi`` or a list of ptychographic files, one for each
        angle, the first two in the order of their names.
    angles
        Numbers, or a file of them, in degrees (or `angle_unit`): one for each angle, or for each frame of a
        ptychographic file of all angles. Default: as the files state.
    reverse_angles
        The sample turns the other way round: angles are negated.
    center_column
        Column of the rotation axis in the images (the row, where the axis runs along the columns).
    origin
        Of positions in ptychographic files: "stage" takes those of all angles from one origin, which lies on the axis;
        "middle" puts the middle of each angle's scan on the axis.
    rotation_axis
        Along the "rows" of frames and images (columns cross it), or the "columns": all are transposed then.
    sign
        -1: the frames are of waves exp(-ikz), n = 1 - δ - iβ, and are turned about frequency zero.
    mask, saturation
        The user's word: good pixels ``(row, column)`` as stored; counts from which a pixel says nothing (0: none).
    probe
        First guess ``(row, column)`` or ``(mode, row, column)``, as the frames are after everything else.
    energy, distance, detector_pixel
        keV, metres, metres: over what the files say.
    look
        Whether some frames are looked at for values that cannot be counts; else only metadata are read.
    **options
        Of `dtomo.io.ptycho.open_ptycho`, for ptychographic files.

    Raises
    ------
    UserError
        What cannot be read or does not fit, in one sentence.
    """
    _refuse(sign, origin, rotation_axis)
    given = None if angles is None else given_angles(angles, angle_unit)
    good, mask_file = None, None
    if mask is not None:
        array, _, mask_file = given_array(mask, "mask", kinds="buif")
        good = array > 0
    wanted: dict[str, Any] = {"mask": good, "saturation": saturation, "energy": energy, "distance": distance}
    wanted["detector_pixel"] = detector_pixel
    files = _files(path)
    if files is not None:
        scan = from_files(files, given, origin, rotation_axis, look, {**wanted, **options})
    elif is_ptychotomo_file(file := Path(path)):  # type: ignore[arg-type]
        if options:
            raise UserError(f"{next(iter(options))} is for ptychographic files; {file} is of dtomo's own format")
        scan = _with_angles(read_own(file, Wanted(**wanted, look=look)), given)
    else:
        scan = from_one(file, given, origin, rotation_axis, look, {**wanted, **options})
    changes: dict[str, Any] = {}
    if reverse_angles:
        changes["angles"] = -scan.angles
    if center_column is not None:
        changes["center"] = float(center_column)
    if mask_file is not None and mask_file not in scan.inputs:
        changes["inputs"] = (*scan.inputs, mask_file)
    scan = dataclasses.replace(scan, **changes)
    if rotation_axis == "columns":
        scan = transposed(scan)
    if sign == -1:
        scan = of_other_sign(scan)
    if probe is not None:
        first = np.asarray(probe)
        scan = dataclasses.replace(scan, probe=np.asarray(first if first.ndim == 3 else first[None], np.complex64))
    return scan


def _refuse(sign: int, origin: str, rotation_axis: str) -> None:
    if sign not in (1, -1):
        raise UserError(f"the sign is 1 (waves exp(+ikz)) or -1 (waves exp(-ikz)); got {sign}")
    if origin not in ("stage", "middle"):
        raise UserError(f"origins of positions are stage and middle; got {origin!r}")
    if rotation_axis not in ("rows", "columns"):
        raise UserError(f"the rotation axis runs along the rows or the columns; got {rotation_axis!r}")


def _with_angles(scan: PtychotomoScan, given: AngleTable | None) -> PtychotomoScan:
    """The user's angles in place of the file's."""
    if given is None:
        return scan
    degrees, notes = to_degrees(given)
    if len(degrees) != len(scan.angles):
        raise UserError(f"{len(degrees)} angles are given, but {scan.path} has {len(scan.angles)}")
    return dataclasses.replace(scan, angles=degrees, warnings=(*scan.warnings, *notes))


def _files(path: Any) -> list[Path] | None:
    """Single files, one for each angle; None: one file of all."""
    if not isinstance(path, str | os.PathLike):
        files = [Path(item) for item in path]
    else:
        place = Path(path)
        if not place.exists():
            if not any(letter in place.name for letter in PATTERN):
                raise UserError(f"there is no file or folder {place}")
            files = sorted(place.parent.glob(place.name))
        elif not place.is_dir():
            return None
        else:
            files = ptychographic_files(place)
    if len(files) < 2:
        raise UserError(
            f"{path} holds {len(files)} ptychographic file{'s' * (len(files) != 1)} ({', '.join(SUFFIXES)}); one for "
            "each angle, two at least, were expected"
        )
    return files


def ptychographic_files(folder: Path) -> list[Path]:
    """Files of a folder whose names end as ptychographic ones do, in the order of their names."""
    return sorted(item for item in folder.iterdir() if item.suffix.lower() in SUFFIXES and item.is_file())
