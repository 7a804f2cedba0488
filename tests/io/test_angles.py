"""Angle files and their selections."""

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.io.angles import AngleTable, given_angles, read_angle_file, to_degrees
from dtomo.io.units import angle_unit, convert_energy, convert_length


@pytest.mark.parametrize(
    ("text", "values", "unit"),
    [
        ("0\n1.5\n3e0\n", [0, 1.5, 3], None),
        ("# comment\n-60\n\n60 # last\n", [-60, 60], None),
        ("angle [rad]\n0\n1\n", [0, 1], "radians"),
        ("Angle (degrees)\n0\n1\n", [0, 1], "degrees"),
        ("0, 1, 2, 3", [0, 1, 2, 3], None),
        ("0 1 2 3\n", [0, 1, 2, 3], None),
        ("\ufeff0\r\n1\r\n", [0, 1], None),
        ("5", [5], None),
        ("nan\n1\n", [np.nan, 1], None),
    ],
)
def test_text_files(text, values, unit, tmp_path):
    (tmp_path / "a.txt").write_text(text)
    table = read_angle_file(tmp_path / "a.txt")
    np.testing.assert_array_equal(table.values, values)
    assert table.unit == unit


@pytest.mark.parametrize("text", ["0 1\n2 3\n", "0\nfoo\n", "", "# only this\n", "0\n1,2\n", "frame angle\n0 1\n1 2\n"])
def test_text_files_that_are_no_lists_of_angles(text, tmp_path):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(UserError, match=r"a\.txt"):
        read_angle_file(tmp_path / "a.txt")


def test_selection_npy_and_odd_files(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(10))
    assert read_angle_file(f"{tmp_path}/a.npy[2:5]").values.tolist() == [2, 3, 4]
    assert read_angle_file(f"{tmp_path}/a.npy[:-2:3]").values.tolist() == [0, 3, 6]
    with pytest.raises(UserError, match="step"):
        read_angle_file(f"{tmp_path}/a.npy[::0]")
    (tmp_path / "b.npy").write_bytes(b"no")
    (tmp_path / "c.txt").write_bytes(bytes(range(256)))
    np.save(tmp_path / "d.npy", np.array([object()]), allow_pickle=True)
    for name in ("b.npy", "c.txt", "d.npy", "missing.txt"):
        with pytest.raises(UserError, match=name):
            read_angle_file(tmp_path / name)


def test_given_arrays():
    assert given_angles(range(3), "rad").unit == "radians"
    with pytest.raises(UserError, match="shape"):
        given_angles(np.zeros((3, 3)), None)
    with pytest.raises(UserError, match="not numbers"):
        given_angles(["a"], None)


def test_stated_degrees_that_span_half_a_turn_in_radians_are_pointed_out():
    values = np.linspace(0, np.pi, 180, endpoint=False)
    degrees, notes = to_degrees(AngleTable(values, "degrees", "x.h5:/theta"))
    np.testing.assert_array_equal(degrees, values)
    assert "if these are radians" in notes[0]
    assert to_degrees(AngleTable(np.linspace(-3, 3, 61), "degrees", "x"))[1] == []
    with pytest.raises(UserError, match="more than three turns"):
        to_degrees(AngleTable(np.arange(181.0), "radians", "x"))


def test_units():
    assert convert_length(308, "mm", "mm", "x") == convert_length(30.8, "cm", "mm", "x") == 308
    assert convert_length(5.4, "Å", "um", "x") == 5.4e-4
    assert convert_energy(25000, "eV", "x") == 25
    assert [angle_unit(word, "x") for word in ("deg", "Degrees", "rad", "radians", "", None)] == [
        *["degrees"] * 2,
        *["radians"] * 2,
        None,
        None,
    ]
    for call in (
        lambda: angle_unit("grad", "t.h5:/theta"),
        lambda: convert_length(1, "px", "um", "t.h5:/theta"),
        lambda: convert_energy(1, "J", "t.h5:/theta"),
    ):
        with pytest.raises(UserError, match=r"t\.h5:/theta has the unit"):
            call()
