"""C01: angles without a unit are never silently radians; stated units give the same angles."""

import h5py
import numpy as np
import pytest

import dtomo
from dtomo.errors import UserError

ANGLES = np.arange(181.0)


def _scan(path, angles, unit):
    with h5py.File(path, "w") as file:
        file["exchange/data"] = np.full((len(angles), 2, 5), 500, np.uint16)
        file["exchange/data_white"] = np.full((1, 2, 5), 1000, np.uint16)
        file["exchange/data_dark"] = np.full((1, 2, 5), 10, np.uint16)
        file["exchange/theta"] = angles
        if unit is not None:
            file["exchange/theta"].attrs["units"] = unit
    return path


@pytest.mark.parametrize("unit", ["deg", "degree", "degrees", "Degrees", b"deg", "rad", "radian", "radians"])
def test_stated_units(unit, tmp_path):
    values = np.deg2rad(ANGLES) if str(unit).strip("b'").startswith("rad") else ANGLES
    scan = dtomo.open(_scan(tmp_path / "s.h5", values, unit))
    np.testing.assert_allclose(scan.angles, ANGLES, atol=1e-12)
    assert scan.warnings == ()


def test_no_unit_over_half_a_turn_is_degrees_and_said(tmp_path):
    scan = dtomo.open(_scan(tmp_path / "s.h5", ANGLES, None))
    np.testing.assert_array_equal(scan.angles, ANGLES)
    assert any("no unit" in note and "degrees" in note and "theta" in note for note in scan.warnings)


@pytest.mark.parametrize("ends", [(-3, 3), (0, np.pi), (0, 2 * np.pi), (0, 10)])
def test_a_short_range_without_unit_is_refused_and_can_be_stated(ends, tmp_path):
    values = np.linspace(*ends, 61)
    path = _scan(tmp_path / "s.h5", values, None)
    with pytest.raises(UserError, match=r"s\.h5:/exchange/theta has no unit.*angle_unit") as caught:
        dtomo.open(path)
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(dtomo.open(path, angle_unit="degrees").angles, values)
    np.testing.assert_allclose(dtomo.open(path, angle_unit="radians").angles, np.rad2deg(values))


def test_the_same_rule_for_files_and_arrays_of_the_user(tmp_path):
    path = _scan(tmp_path / "s.h5", ANGLES, "degrees")
    radians = np.deg2rad(ANGLES)
    np.savetxt(tmp_path / "a.txt", radians)
    for given in (radians, tmp_path / "a.txt", str(tmp_path / "a.txt")):
        with pytest.raises(UserError, match="could be degrees or radians"):
            dtomo.open(path, angles=given)
        np.testing.assert_allclose(dtomo.open(path, angles=given, angle_unit="rad").angles, ANGLES)
    assert dtomo.open(path, angles=ANGLES).warnings == ()


@pytest.mark.parametrize("unit", ["turns", "mm"])
def test_an_unknown_unit_is_refused(unit, tmp_path):
    with pytest.raises(UserError, match=f"{unit}.*degrees or radians"):
        dtomo.open(_scan(tmp_path / "s.h5", ANGLES, unit))
