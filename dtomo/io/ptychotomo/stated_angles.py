"""Angles of rotation that ptychographic files state: numbers by name, or the orientation of a CXI file's sample."""

from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.angles import AngleTable
from dtomo.io.damage import explained
from dtomo.io.hdf5_files import node, open_hdf5, text_attribute
from dtomo.io.ptycho.cxi import DEFAULT_DIRECTIONS, GEOMETRY
from dtomo.io.ptycho.reading import small_array
from dtomo.io.units import angle_unit

GROUPS = (
    *("entry_1/sample_1", "entry_1/sample_1/geometry_1", "entry_1/data_1", "entry_1"),
    *("entry/sample", "entry/data", "entry", "exchange", "meta", "info", "/"),
)
NAMES = ("rotation_angle", "theta", "tomo_angle", "angle", "angles")
"""Looked for in each of the groups, as datasets and as attributes."""
SAME = 1e-3
"""Degrees: positions of the stage that lie no further apart are one angle."""
UPRIGHT = 0.999
"""Cosine of how far the axis may be off."""
BEAM = np.array([0.0, 0.0, 1.0])


def stated_angles(
    path: Path, directions: NDArray[np.float64] | None = None, rotation_axis: str = "rows"
) -> AngleTable | None:
    """Angles that a file states, one or one for each frame; None: it states none.

    Parameters
    ----------
    path
        HDF5 (CXI, ptyd …) or a NumPy archive.
    directions
        Unit vectors (x, y, z) of a row and of a column of the object in the laboratory, ``(3, 2)``, for the orientation
        of a CXI file; None: rows along -y, columns along -x.
    rotation_axis
        Whether it runs along the "rows" (is crossed by them: rows are z) or the "columns" of the object.

    Raises
    ------
    UserError
        Numbers or units that cannot be meant.
    """
    if not h5py.is_hdf5(path):
        return _in_archive(path)
    with open_hdf5(path) as file:
        for group in GROUPS:
            for name in NAMES:
                found = _named(file, path, group.strip("/"), name)
                if found is not None:
                    return found
        where = f"{path}:/{GEOMETRY}/orientation"
        vectors = small_array(file, f"{GEOMETRY}/orientation", where)
    if vectors is None or vectors.size not in (6, 9):
        return None
    along = DEFAULT_DIRECTIONS if directions is None else directions
    angle = _by_orientation(np.asarray(vectors, np.float64).reshape(-1, 3), along, rotation_axis, where)
    return AngleTable(np.array([angle]), "degrees", where)


def _named(file: h5py.File, path: Path, group: str, name: str) -> AngleTable | None:
    """A dataset of this name in a group, else an attribute of the group."""
    place, where = f"{group}/{name}".strip("/"), f"{path}:/{group}/{name}".replace("//", "/")
    found = node(file, place)
    if isinstance(found, h5py.Dataset):
        if found.dtype.kind not in "uif" or found.shape is None or not found.size:
            return None
        values = small_array(file, place, where)
        unit = text_attribute(found, "units") or text_attribute(found, "unit")
        return AngleTable(np.asarray(values, np.float64).reshape(-1), angle_unit(unit, where), where)
    holder = node(file, group) if group else file
    value = None if holder is None else holder.attrs.get(name)
    if value is None or np.asarray(value).dtype.kind not in "uif" or not np.asarray(value).size:
        return None
    return AngleTable(np.asarray(value, np.float64).reshape(-1), None, where)


def _in_archive(path: Path) -> AngleTable | None:
    with explained(str(path)), np.load(path, allow_pickle=False) as archive:
        for name in NAMES:
            if name in archive.files and archive[name].dtype.kind in "uif" and archive[name].size:
                return AngleTable(archive[name].astype(np.float64).reshape(-1), None, f"{path}:/{name}")
    return None


def _by_orientation(
    vectors: NDArray[np.float64], directions: NDArray[np.float64], rotation_axis: str, where: str
) -> float:
    """Degrees that the sample's x and y axes are turned by, from `directions`, about the axis of rotation.

    A point of the sample that is at the column direction a when the angle is 0 has column cos θ, and depth along the
    beam -sin θ: so u = x cos θ + y sin θ with y along the beam.
    """
    x, y = vectors[:2]
    turn = np.stack([x, y, np.cross(x, y)], 1)
    if not np.isfinite(turn).all() or not np.allclose(turn.T @ turn, np.eye(3), atol=1e-2):
        raise UserError(f"{where} holds no two unit vectors at right angles, x and y of the sample; give the angles")
    axis, across = directions.T if rotation_axis == "rows" else directions.T[::-1]
    if axis @ turn @ axis < UPRIGHT:
        raise UserError(
            f"{where} turns the sample about another axis than that along the {rotation_axis} of the images; joint "
            "scans have one axis, along the rows, or along the columns with rotation_axis='columns' (--rotation-axis)"
        )
    moved = turn @ across
    return float(np.rad2deg(np.arctan2(-moved @ BEAM, moved @ across)))


def one_angle(table: AngleTable) -> AngleTable:
    """The angle of a file of one angle, which may be stated for each frame.

    Raises
    ------
    UserError
        There are several.
    """
    span = float(np.ptp(table.values))
    if span > (np.deg2rad(SAME) if table.unit == "radians" else SAME):
        raise UserError(
            f"{table.where} goes from {table.values.min():.6g} to {table.values.max():.6g}; in a folder, each file has "
            "one angle (a file of all angles is opened by itself)"
        )
    return AngleTable(np.array([table.values.mean()]), table.unit, table.where)


def angles_of_files(
    paths: Sequence[Path], directions: Sequence[NDArray[np.float64] | None], rotation_axis: str
) -> AngleTable:
    """The angle that each of several files states.

    Raises
    ------
    UserError
        One of them does not, or they do so in different units.
    """
    tables = []
    for path, along in zip(paths, directions, strict=True):
        found = stated_angles(path, along, rotation_axis)
        if found is None:
            raise UserError(
                f"{path} does not say its angle (rotation_angle, theta, or the orientation of CXI); give the angles of "
                "all files with angles=... (--angles FILE)"
            )
        tables.append(one_angle(found))
    first = tables[0]
    for table in tables[1:]:
        if table.unit != first.unit:
            raise UserError(
                f"{table.where} is in {table.unit or 'no unit'}, but {first.where} in {first.unit or 'no unit'}; give "
                "the angles of all files with angles=... (--angles FILE)"
            )
    return AngleTable(np.concatenate([table.values for table in tables]), first.unit, first.where)


def grouped(degrees: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Angles ``(angle,)``, ascending, and the number of each frame's, from the angle of each frame.

    Frames whose angles are no more than `SAME` apart have one, the mean.
    """
    order = np.argsort(degrees, kind="stable")
    sizes = np.diff(degrees[order], prepend=degrees[order[:1]])
    numbers = np.empty(len(degrees), np.int64)
    numbers[order] = np.cumsum(sizes > SAME)
    return np.bincount(numbers, degrees) / np.bincount(numbers), numbers
