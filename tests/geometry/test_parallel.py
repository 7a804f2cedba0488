"""The geometry of a parallel beam, as a value."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.operators import ParallelProjector

ANGLES = [10.0, 0.0, 370.0, -45.0]


def test_defaults():
    beam = ParallelBeam(ANGLES, 64)
    assert (beam.columns, beam.center, beam.width, beam.height, beam.pitch) == (64, 31.5, 64, 64, 1.0)
    assert ParallelBeam(ANGLES, 65).center == 32
    assert beam.angles.dtype == np.float64
    assert beam.angles.tolist() == ANGLES
    np.testing.assert_allclose(beam.radians, np.deg2rad(ANGLES))
    assert ParallelBeam(30, 8).angles.tolist() == [30]


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda angles: np.array(angles, np.float32)])
def test_angles_are_copied(kind):
    given = kind(ANGLES)
    beam = ParallelBeam(given, 8)
    if isinstance(given, np.ndarray):
        given[0] = 99
    assert beam.angles.tolist() == ANGLES


def test_equal_values_are_equal_and_hash_alike():
    beam = ParallelBeam(ANGLES, 64, 30.5, width=50, height=40, pitch=1.5)
    same = ParallelBeam(np.array(ANGLES, np.float32), np.int64(64), np.float32(30.5), width=50, height=40, pitch=1.5)
    assert beam == same
    assert hash(beam) == hash(same)
    assert len({beam, same}) == 1
    for change in (
        {"angles": ANGLES[::-1]}, {"angles": [*ANGLES, 5.0]}, {"columns": 65}, {"center": 30.6}, {"width": 51},
        {"height": 41}, {"pitch": 1.0},
    ):  # fmt: skip
        other = beam.replace(**change)
        assert other != beam, change
        assert {beam: 1}.get(other) is None
    assert beam != "beam"
    assert beam != None  # noqa: E711


def test_defaults_are_equal_to_the_same_values_given():
    assert ParallelBeam(ANGLES, 64) == ParallelBeam(ANGLES, 64, 31.5, width=64, height=64, pitch=1)


def test_zero_has_one_sign():
    assert ParallelBeam([0.0], 8) == ParallelBeam([-0.0], 8)


def test_immutable():
    beam = ParallelBeam(ANGLES, 8)
    with pytest.raises(dataclasses.FrozenInstanceError):
        beam.columns = 9
    with pytest.raises(ValueError, match="read-only"):
        beam.angles[0] = 1


@pytest.mark.parametrize(
    "again",
    [
        copy.copy,
        copy.deepcopy,
        lambda beam: pickle.loads(pickle.dumps(beam)),
    ],
)
def test_copies_are_equal_and_as_immutable(again):
    beam = ParallelBeam(ANGLES, 64, 30.5, width=50, height=40, pitch=1.5)
    other = again(beam)
    assert other == beam
    assert hash(other) == hash(beam)
    with pytest.raises(ValueError, match="read-only"):
        other.angles[0] = 1


def test_pickle_is_small():
    assert len(pickle.dumps(ParallelBeam(np.arange(1000.0), 10**6))) < 9000


def test_replace():
    beam = ParallelBeam(ANGLES, 64, 30.5, width=50, height=40, pitch=1.5)
    other = beam.replace(center=12.0, angles=[1.0])
    assert (other.center, other.angles.tolist(), other.width, other.pitch) == (12.0, [1.0], 50, 1.5)
    assert beam.center == 30.5
    assert beam.replace() == beam
    assert dataclasses.replace(beam, pitch=2.0) == beam.replace(pitch=2.0)
    with pytest.raises(TypeError):
        beam.replace(colums=3)
    with pytest.raises(UserError):
        beam.replace(pitch=0.0)


def test_repr_can_be_read():
    text = repr(ParallelBeam([0.0, 1.0], 8))
    assert "columns=8" in text
    assert "center=3.5" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"angles": []}, "0 angles"),
        ({"angles": [0, np.nan, 2]}, "angle number 1 "),
        ({"angles": [0, 1, -np.inf]}, "angle number 2 "),
        ({"columns": 0}, "0 columns"),
        ({"columns": -4}, "-4 columns"),
        ({"pitch": 0.0}, "pitch .* 0"),
        ({"pitch": -1.0}, "pitch .* -1"),
        ({"pitch": 0.03}, "pitch .* 0.03"),
        ({"pitch": 33.0}, "pitch .* 33"),
        ({"pitch": np.nan}, "pitch .* nan"),
        ({"pitch": np.inf}, "pitch .* inf"),
        ({"width": 0}, "0 x 8"),
        ({"height": -1}, "8 x -1"),
        ({"center": np.nan}, "center nan"),
        ({"center": np.inf}, "center inf"),
    ],
    ids=str,
)
def test_refused(change, words):
    with pytest.raises(UserError, match=words) as error:
        ParallelBeam(**{"angles": ANGLES, "columns": 8, **change})
    assert str(error.value).count(". ") == 0, "one sentence"


@pytest.mark.parametrize("change", [{"columns": 8.5}, {"width": 7.9}, {"columns": np.nan}, {"columns": np.inf}])
def test_parts_of_pixels_are_refused(change):
    """Cutting 8.5 columns to 8 would leave the default center between the two."""
    with pytest.raises(UserError):
        ParallelBeam(**{"angles": ANGLES, "columns": 8, **change})


@pytest.mark.parametrize("center", [1e12, -1e300])
def test_an_axis_out_of_this_world_is_refused(center):
    """What kernels cannot count to, rather than an allocation that fails later."""
    with pytest.raises(UserError):
        ParallelBeam(ANGLES, 8, center)


def test_whole_numbers_of_any_type_are_taken():
    assert ParallelBeam(ANGLES, np.int32(8)) == ParallelBeam(ANGLES, 8.0) == ParallelBeam(ANGLES, 8)


def test_text_and_complex_angles_are_refused():
    for angles in ("abc", ["x"], [1j], object()):
        with pytest.raises((UserError, TypeError, ValueError)):
            ParallelBeam(angles, 8)


@pytest.mark.parametrize("pitch", [1.0, 0.5, 2.5])
def test_column_of_a_point(pitch):
    """The formula of the docstring, for a point near the middle of a voxel, at angles where rays run along the grid."""
    beam = ParallelBeam([0.0, 90.0, 180.0, 270.0], 60, 28.0, width=21, height=24, pitch=pitch)
    volume = np.zeros((1, 24, 21), np.float32)
    y, x = 5, 17
    volume[0, y, x] = 1
    lines = ParallelProjector(beam, 1).forward(volume)[:, 0].astype(float)
    right, down = x - 10, y - 11.5
    expected = np.array([right, down, -right, -down]) / pitch + 28.0
    if pitch < 1:  # a voxel is wider than a column: its shadow is the triangle of the interpolation
        found = (lines * np.arange(60)).sum(1) / lines.sum(1)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    else:
        # only columns within a voxel of the point see it, each by how near it is
        for line, at in zip(lines, expected):
            np.testing.assert_allclose(line, np.maximum(0, 1 - np.abs(np.arange(60) - at) * pitch), atol=1e-5)
