"""Alignments written and read again, and IMOD's transforms on a picture."""

import json

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dtomo.errors import UserError
from dtomo.geometry import Alignment, tilt_series
from dtomo.io.tilts import read_alignment, read_tilt_file, read_xf, write_alignment, write_tlt, write_xf

TILTS = np.arange(-60, 61, 7.5)


def some(size=None, axis=None):
    random = np.random.default_rng(3)
    shifts = random.normal(0, 20, (len(TILTS), 2))
    return Alignment(TILTS + 0.1234, (50, 71), shifts, 86.7 + random.normal(0, 1, len(TILTS)), axis, size, levels=-3.5)


def assert_alike(found, wanted, pixels, degrees):
    assert (found.shape, found.size) == (wanted.shape, wanted.size)
    np.testing.assert_allclose(found.shifts, wanted.shifts, rtol=0, atol=pixels)
    np.testing.assert_allclose(found.axis_angles, wanted.axis_angles, rtol=0, atol=degrees)
    np.testing.assert_allclose(found.tilts, wanted.tilts, rtol=0, atol=degrees)
    np.testing.assert_allclose(found.scales, wanted.scales, rtol=0, atol=1e-6)


def test_yaml_and_json_there_and_back(tmp_path):
    wanted = some((60, 40), 18.25)
    write_alignment(tmp_path / "a.yaml", wanted, series="needle.mrc")
    found = read_alignment(tmp_path / "a.yaml", wanted.tilts, wanted.shape)
    assert_alike(found, wanted, 1e-6, 1e-6)
    assert found.axis == 18.25
    np.testing.assert_array_equal(found.levels, -3.5)
    (tmp_path / "a.json").write_text(json.dumps(yaml.safe_load((tmp_path / "a.yaml").read_text())))
    assert_alike(read_alignment(tmp_path / "a.json"), wanted, 1e-6, 1e-6)


def test_imods_files_there_and_back(tmp_path):
    wanted = some()
    write_xf(tmp_path / "a.xf", wanted)
    write_tlt(tmp_path / "a.tlt", wanted.tilts)
    found = read_alignment(tmp_path / "a.xf", read_tilt_file(tmp_path / "a.tlt").values, (50, 71))
    assert_alike(found, wanted, 1e-4, 1e-3)
    assert found.axis == (found.size[1] - 1) / 2


def test_an_axis_beside_the_middle_is_in_the_shifts_of_xf(tmp_path):
    wanted = some((60, 41), 18.0)
    write_xf(tmp_path / "a.xf", wanted)
    found = read_xf(tmp_path / "a.xf", TILTS, (50, 71))
    np.testing.assert_allclose(found.shifts[:, 1], wanted.shifts[:, 1] + 2, atol=1e-4)


def test_a_line_of_xf_moves_a_place_as_imod_says(tmp_path):
    (tmp_path / "a.xf").write_text("0 -1 1 0 3 -2\n" * len(TILTS))  # x' = -y + 3, y' = x - 2, from the middles
    found = read_xf(tmp_path / "a.xf", TILTS, (50, 71))
    assert found.size == (71, 50)
    np.testing.assert_allclose(found.axis_angles, 90)  # IMOD's tilt axis angle is -90
    matrices, offsets = found.places()
    x, y = 5.0, -7.0
    aligned = np.array([35 + (x - 2), 24.5 + (-y + 3)])
    np.testing.assert_allclose(matrices[0] @ aligned + offsets[0], [24.5 + y, 35 + x], atol=1e-12)


def test_geometry_of_vectors_says_the_same():
    wanted = some((61, 51))
    matrices, offsets = wanted.places()
    vectors = tilt_series(
        wanted.tilts, 50, 71, shape=(51, 61, 51), axis_angle=wanted.axis_angles, shifts=wanted.displacements()
    )
    point = np.array([4.0, -9.0, 7.0])  # x, y (along the axis), z from the middle
    for view, tilt in enumerate(np.deg2rad(wanted.tilts)):
        aligned = np.array([30 + point[1], 25 + point[0] * np.cos(tilt) + point[2] * np.sin(tilt)])
        raw = matrices[view] @ aligned + offsets[view]
        apart = point - vectors.detector[view]
        u, v = vectors.column_step[view], vectors.row_step[view]
        beam = vectors.source[view]
        found = np.linalg.solve(np.stack([v, u, beam], 1), apart)
        np.testing.assert_allclose(raw, found[:2] + np.array([24.5, 35]), atol=1e-9)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 0 0 1 0", r"line 3: 5 numbers where a transform has 6"),
        ("1 0 0 x 0 0", r"line 3: 'x' is not a finite number"),
        ("0 0 0 0 0 0", r"line 3: the transform 0 0 0 0 is not a rotation"),
        ("1 0 0 -1 0 0", r"line 3: the transform 1 0 0 -1 is not a rotation"),
        ("1.1 0 0 1 0 0", r"line 3: .* stretched or mirrored"),
        ("1 0 0 1 1e9 0", r"1e\+09 pixels lies beyond any view"),
    ],
)
def test_transforms_that_cannot_be_meant(tmp_path, line, message):
    lines = ["1 0 0 1 0 0"] * len(TILTS)
    lines[2] = line
    (tmp_path / "a.xf").write_text("\n".join(lines))
    with pytest.raises(UserError, match=message):
        read_xf(tmp_path / "a.xf", TILTS, (50, 71))


def test_another_series(tmp_path):
    write_alignment(tmp_path / "a.yaml", some())
    write_xf(tmp_path / "a.xf", some())
    with pytest.raises(UserError, match="is for 17 views, but the series has 5"):
        read_alignment(tmp_path / "a.yaml", np.zeros(5))
    with pytest.raises(UserError, match=r"is for views of \(50, 71\)"):
        read_alignment(tmp_path / "a.yaml", TILTS, (50, 70))
    with pytest.raises(UserError, match="has 17 transforms for 5 views"):
        read_alignment(tmp_path / "a.xf", np.zeros(5), (50, 71))
    with pytest.raises(UserError, match=r"a\.xf says nothing of tilts"):
        read_alignment(tmp_path / "a.xf")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "x"}, "is no alignment of dtomo"),
        ({"version": 2}, "has version 2"),
        ({"axis": float("nan")}, "axis must be a finite number"),
        ({"views": []}, "at least one view"),
        ({"shape": [1, 2.5]}, "shape must be rows and columns"),
        ({"views": [{"tilt": 0}]}, "view 0 must have tilt, row"),
    ],
)
def test_own_files_that_are_broken(tmp_path, change, message):
    write_alignment(tmp_path / "a.yaml", some())
    content = yaml.safe_load((tmp_path / "a.yaml").read_text()) | change
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=message):
        read_alignment(tmp_path / "a.yaml")


@settings(max_examples=60, deadline=None)
@given(data=st.data(), name=st.sampled_from(["a.yaml", "a.xf"]))
def test_no_content_gets_past_the_readers(data, name, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / name
    (write_xf if name == "a.xf" else write_alignment)(path, some().select(slice(0, 3)))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=6))
    path.write_bytes(bytes(content))
    try:
        found = read_alignment(path, TILTS[:3], (50, 71))
    except UserError:
        return
    assert np.isfinite(found.shifts).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tilts": []}, "a list of degrees"),
        ({"tilts": ["x"]}, "are numbers"),
        ({"shifts": np.zeros((3, 2))}, "each of 17 views"),
        ({"axis_angles": np.zeros(3)}, "one for each of 17 views"),
        ({"shifts": np.full((17, 2), np.nan)}, "no finite numbers"),
        ({"shape": (0, 3)}, "positive number of rows"),
        ({"scales": 0.0}, "scales of an alignment"),
        ({"axis": np.inf}, "axis is at a column"),
    ],
)
def test_values_that_are_no_alignment(given, message):
    with pytest.raises(UserError, match=message):
        Alignment(**({"tilts": TILTS, "shape": (50, 71)} | given))
