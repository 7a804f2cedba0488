"""Angles that ptychographic files state, and joint scans made smaller."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.ptychotomo import open_ptychotomo, write_scan
from dtomo.io.ptychotomo.stated_angles import angles_of_files, stated_angles
from tests.io.ptychotomo.test_opening import single, write

ORIENTATION = "entry_1/sample_1/geometry_1/orientation"
DIRECTIONS = np.array([[0, -1], [-1, 0], [0, 0.0]])
"""Of rows and columns in the laboratory: -y, -x."""


def sample_axes(degrees: float, tilt: float = 0.0) -> NDArray[np.float64]:
    """x and y of a sample turned about y: as in `ParallelBeam`, its point at the column direction goes upstream."""
    angle, aside = np.deg2rad([degrees, tilt])
    turn = np.array([[np.cos(angle), 0, -np.sin(angle)], [0, 1, 0], [np.sin(angle), 0, np.cos(angle)]])
    lean = np.array([[1, 0, 0], [0, np.cos(aside), -np.sin(aside)], [0, np.sin(aside), np.cos(aside)]])
    return (turn @ lean)[:, :2].T


def with_dataset(path: Path, place: str, value: Any, **attributes: Any) -> Path:
    with h5py.File(path, "a") as file:
        if place in file:
            del file[place]
        file[place] = value
        file[place].attrs.update(attributes)
    return path


@pytest.mark.parametrize("degrees", [-70.0, 0.0, 25.0, 110.0])
@pytest.mark.parametrize("third", [False, True])
def test_the_orientation_of_a_sample(tmp_path: Path, degrees: float, third: bool) -> None:
    axes = sample_axes(degrees)
    vectors = np.vstack([axes, np.cross(*axes)]) if third else axes
    path = with_dataset(tmp_path / "a.cxi", ORIENTATION, vectors.ravel())
    for directions in (None, DIRECTIONS):
        found = stated_angles(path, directions)
        assert found is not None
        assert (found.unit, found.where) == ("degrees", f"{path}:/{ORIENTATION}")
        np.testing.assert_allclose(found.values, [degrees], atol=1e-6)


def test_an_orientation_that_is_none(tmp_path: Path) -> None:
    path = with_dataset(tmp_path / "a.cxi", ORIENTATION, sample_axes(20.0).ravel() * 1.2)
    with pytest.raises(UserError, match="no two unit vectors at right angles"):
        stated_angles(path)
    with_dataset(path, ORIENTATION, sample_axes(0.0, tilt=20.0).ravel())
    with pytest.raises(UserError, match="about another axis than that along the rows"):
        stated_angles(path)
    with_dataset(path, ORIENTATION, np.ones(4))
    assert stated_angles(path) is None


def test_numbers_in_archives_datasets_and_attributes(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", other=np.ones(3), theta=np.array([[1, 2, 3]], np.int16), angles=np.zeros(3))
    found = stated_angles(tmp_path / "a.npz")
    assert found is not None
    assert (found.values.tolist(), found.unit, found.where) == ([1.0, 2.0, 3.0], None, f"{tmp_path / 'a.npz'}:/theta")
    np.savez(tmp_path / "b.npz", theta=np.array(["1", "2"]))
    assert stated_angles(tmp_path / "b.npz") is None
    path = with_dataset(tmp_path / "c.h5", "entry/data/theta", "about 20")  # text is no angle: look further
    with h5py.File(path, "a") as file:
        file["entry"].attrs["rotation_angle"] = [20.0, 30.0]
    found = stated_angles(path)
    assert found is not None
    assert (found.values.tolist(), found.unit) == ([20.0, 30.0], None)


def test_the_files_of_a_folder_state_one_angle_each_in_one_unit(tmp_path: Path) -> None:
    name = "entry_1/sample_1/rotation_angle"
    paths = [with_dataset(tmp_path / f"{i}.cxi", name, np.full(3, 0.25 * i), units="rad") for i in range(3)]
    table = angles_of_files(paths, [None] * 3, "rows")
    assert (table.values.tolist(), table.unit) == ([0.0, 0.25, 0.5], "radians")
    with_dataset(paths[1], name, 14.3, units="deg")
    with pytest.raises(UserError, match=r"is in degrees, but .* in radians"):
        angles_of_files(paths, [None] * 3, "rows")
    with_dataset(paths[1], name, [0.25, 0.3], units="rad")
    with pytest.raises(UserError, match=r"goes from 0\.25 to 0\.3; in a folder, each file has one angle"):
        angles_of_files(paths, [None] * 3, "rows")


def test_all_angles_in_a_ptychographic_file(tmp_path: Path) -> None:
    path = single(tmp_path / "angles", 1) / "angle-000.cxi"  # four frames
    with pytest.raises(UserError, match=r"4 frames but no angles.* takes one for each frame"):
        open_ptychotomo(path)
    with_dataset(path, "entry_1/sample_1/rotation_angle", [90.0, 0.0, 90.0, 45.0], units="deg")
    scan = open_ptychotomo(path)
    assert scan.angles.tolist() == [0.0, 45.0, 90.0]
    assert scan.angle_of_frame.tolist() == [2, 0, 2, 1]
    fewer = open_ptychotomo(path, exclude=[1])  # its angle goes with the frame
    assert fewer.angles.tolist() == [45.0, 90.0]
    assert fewer.angle_of_frame.tolist() == [1, 1, 0]


def test_some_angles_and_some_rows(tmp_path: Path) -> None:
    places = np.array([[0, 0], [6, 1], [2, 2], [12, 3], [3, 4], [11, 5.0]])
    scan = open_ptychotomo(write(tmp_path / "a.h5", positions=places))  # angles 0 0 1 2 2 2, frames of 8 rows
    frames = scan.frames.read()
    chosen = scan.select([2, 0])
    assert chosen.angles.tolist() == [120.0, 0.0]
    assert chosen.angle_of_frame.tolist() == [1, 1, 0, 0, 0]
    np.testing.assert_array_equal(chosen.frames.read(), frames[[0, 1, 3, 4, 5]])
    assert scan.select(np.array([True, False, True])).angles.tolist() == [0.0, 120.0]
    for wrong in ([0, 3], [1, 1], [[0, 1]], [0.5, 1.0]):
        with pytest.raises(UserError, match="angles 0 to 2; give some of them, each once"):
            scan.select(wrong)
    low = scan.crop(2, 14)  # frames at rows 2 to 6
    assert (low.image_shape, low.angles.tolist()) == ((12, 20), [0.0, 60.0, 120.0])
    np.testing.assert_array_equal(low.frames.read(), frames[[1, 2, 4]])
    np.testing.assert_array_equal(low.positions, places[[1, 2, 4]] - (2, 0))
    for rows, said in (((0, 21), "no rows 0 to 21"), ((5, 5), "no rows 5 to 5"), ((10, 20), "of 1 angles, where two")):
        with pytest.raises(UserError, match=said):
            scan.crop(*rows)


def test_a_folder_is_written_as_one_file(tmp_path: Path) -> None:
    scan = open_ptychotomo(single(tmp_path / "angles"), angles=[0.0, 50.0, 120.0])
    again = open_ptychotomo(write_scan(tmp_path / "all.h5", scan))
    np.testing.assert_array_equal(again.frames.read(), scan.frames.read())
    np.testing.assert_array_equal(again.positions, scan.positions)
    assert (again.angles.tolist(), again.image_shape) == (scan.angles.tolist(), scan.image_shape)
    assert (again.pixel_size, again.wavelength, again.distance) == (scan.pixel_size, scan.wavelength, scan.distance)
    with pytest.raises(UserError, match="exists"):
        write_scan(tmp_path / "all.h5", scan)
