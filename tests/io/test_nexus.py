"""NXtomo files as they are met: units, places of image_key, several entries, missing parts."""

import h5py
import numpy as np
import pytest

import dtomo
from dtomo.errors import UserError

KEYS = np.array([2, 2, 1, 1, 1, *[0] * 15, 1, 3])
FRAMES = np.random.default_rng(0).integers(200, 700, (22, 4, 6)).astype(np.uint16)
FRAMES[KEYS == 1] += 1000
FRAMES[KEYS == 2] = 100
ANGLES = np.where(KEYS == 0, np.cumsum(KEYS == 0) * 12.0, 0)


def _nxtomo(path, angle_unit="degree", keys=KEYS, angles=ANGLES):
    with h5py.File(path, "w") as file:
        entry = file.create_group("entry0000")
        entry.attrs["NX_class"] = "NXentry"
        detector = entry.create_group("instrument/detector")
        detector["data"], detector["image_key"] = FRAMES, keys
        for name, value, unit in (
            ("x_pixel_size", 6.5e-6, "m"),
            ("y_pixel_size", 6.5, "um"),
            ("distance", 0.5, "m"),
        ):
            detector[name] = value
            detector[name].attrs["units"] = unit
        if angles is not None:
            entry["sample/rotation_angle"] = angles
            if angle_unit:
                entry["sample/rotation_angle"].attrs["units"] = angle_unit
        entry["beam/incident_energy"] = 22000.0
        entry["beam/incident_energy"].attrs["units"] = "eV"
        entry["instrument/source/distance"] = -55.0
    return path


def test_frames_are_told_apart_and_units_brought_over(tmp_path):
    scan = dtomo.open(_nxtomo(tmp_path / "s.nx"))
    assert (scan.format, scan.shape) == ("nxtomo", (15, 4, 6))
    slab = scan.read(slice(1, 3))
    np.testing.assert_array_equal(slab.projections, FRAMES[KEYS == 0, 1:3])
    np.testing.assert_array_equal(slab.flats, FRAMES[KEYS == 1, 1:3])
    np.testing.assert_array_equal(slab.darks, FRAMES[KEYS == 2, 1:3])
    np.testing.assert_array_equal(scan.angles, ANGLES[KEYS == 0])
    assert (scan.pixel_size, scan.energy) == (6.5, 22.0)
    assert (scan.sample_detector_distance, scan.source_sample_distance) == (500, 55000)
    assert any("1 frames as invalid or for alignment" in note for note in scan.warnings)


def test_image_key_elsewhere_and_angles_by_axes(tmp_path):
    path = tmp_path / "s.nxs"
    with h5py.File(path, "w") as file:
        file["entry/instrument/pco/data"] = h5py.SoftLink("/entry/pco/data")
        file["entry/instrument/other/image_key"] = np.zeros(5, int)
        file["entry/instrument/pco_key/image_key"] = KEYS
        file["entry/pco/data"] = FRAMES
        file["entry/pco/sample_theta"] = np.deg2rad(ANGLES)
        file["entry/pco/sample_theta"].attrs["units"] = "rad"
        file["entry/pco"].attrs.update({"signal": "data", "axes": ["sample_theta_set", ".", "."]})
        file["entry/pco/gone"] = h5py.ExternalLink("nowhere.h5", "/x")
        file["entry/nowhere"] = h5py.SoftLink("/entry/missing")
    scan = dtomo.open(path)
    assert scan.shape == (15, 4, 6)
    np.testing.assert_allclose(scan.angles, ANGLES[KEYS == 0])


def test_an_axis_that_is_no_angle_is_not_taken_for_one(tmp_path):
    path = tmp_path / "s.nxs"
    with h5py.File(path, "w") as file:
        file["entry/scan/data"] = FRAMES
        file["entry/scan/time"] = np.arange(22.0) * 50
        file["entry/scan"].attrs.update({"signal": "data", "axes": ["time", ".", "."]})
    with pytest.raises(UserError, match="no angles"):
        dtomo.open(path)
    scan = dtomo.open(path, angles=np.arange(22) * 8.0, flats=FRAMES[:1])
    assert any("no image_key" in note for note in scan.warnings)


def test_a_stack_can_be_named(tmp_path):
    path = _nxtomo(tmp_path / "s.nx")
    with h5py.File(path, "a") as file:
        file["entry0000/other"] = FRAMES[:4]
    scan = dtomo.open(path, dataset="/entry0000/instrument/detector/data")
    assert scan.shape == (15, 4, 6)
    with pytest.raises(UserError, match="no dataset /entry0000/nope"):
        dtomo.open(path, dataset="/entry0000/nope")


def test_no_projections_and_wrong_lengths(tmp_path):
    with pytest.raises(UserError, match="none of the 22 frames"):
        dtomo.open(_nxtomo(tmp_path / "a.nx", keys=np.ones(22, int)))
    with pytest.raises(UserError, match=r"image_key has 21 values but .*/data has 22 frames"):
        dtomo.open(_nxtomo(tmp_path / "b.nx", keys=KEYS[:21]))
    with h5py.File(tmp_path / "c.nx", "w") as file:
        file["entry/title"] = "nothing"
    with pytest.raises(UserError, match="no stack of frames"):
        dtomo.open(tmp_path / "c.nx")


def test_groups_linked_into_each_other_end(tmp_path):
    path = _nxtomo(tmp_path / "s.nx")
    with h5py.File(path, "a") as file:
        entry = file["entry0000"]
        for number in range(8):
            entry[f"instrument/loop{number}"] = h5py.SoftLink("/entry0000")
            entry[f"again{number}"] = entry["instrument"]
        del entry["instrument/detector/image_key"]
    assert dtomo.open(path).shape == (22, 4, 6)


def test_alignment_frames_are_no_projections(tmp_path):
    path = _nxtomo(tmp_path / "s.nx")
    control = KEYS.copy()
    control[18:20] = -1
    with h5py.File(path, "a") as file:
        file["entry0000/instrument/detector/image_key_control"] = control
    scan = dtomo.open(path)
    np.testing.assert_array_equal(scan.angles, ANGLES[5:18])
    assert any("3 frames as invalid or for alignment" in note for note in scan.warnings)
