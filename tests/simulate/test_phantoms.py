"""Phantoms against what geometry says of them."""

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.simulate import Phantom, head, sample

BALL = Phantom(np.array([[0.5, 0.3, 0.3, 0.3, 0.25, -0.4, 0.1, 0.0]]))
OVAL = Phantom(np.array([[2.0, 0.5, 0.12, 0.4, -0.2, 0.3, 0.0, 33.0]]))


@pytest.mark.parametrize("phantom", [BALL, OVAL, head(), sample()], ids=["ball", "oval", "head", "sample"])
@pytest.mark.parametrize(
    ("columns", "center", "pitch"), [(90, 44.5, 1.0), (61, 31.3, 1.0), (40, 19.2, 1.5), (130, 66.0, 0.5)]
)
def test_every_projection_holds_the_mass_of_the_slice(phantom, columns, center, pitch):
    volume = phantom.volume(48, 12)
    projections = phantom.projections([0, 30, 90, 211.5], 48, columns, center, 12, pitch=pitch)
    assert projections.dtype == volume.dtype == np.float32
    assert projections.shape == (4, 12, columns)
    mass = volume.sum((1, 2), dtype=float)
    np.testing.assert_allclose(projections.sum(2, dtype=float) * pitch, np.tile(mass, (4, 1)), rtol=2e-3, atol=0.02)


@pytest.mark.parametrize("phantom", [BALL, OVAL])
def test_the_middle_of_mass_moves_as_the_convention_says(phantom):
    size, columns, center = 64, 80, 37.25
    image = phantom.volume(size, 1)[0].astype(float)
    y, x = np.indices(image.shape) - (size - 1) / 2
    x0, y0 = (image * x).sum() / image.sum(), (image * y).sum() / image.sum()
    angles = np.array([0.0, 25.0, 90.0, 140.0, 270.0])
    lines = phantom.projections(angles, size, columns, center, 1)[:, 0].astype(float)
    found = (lines * np.arange(columns)).sum(1) / lines.sum(1)
    expected = x0 * np.cos(np.deg2rad(angles)) + y0 * np.sin(np.deg2rad(angles)) + center
    np.testing.assert_allclose(found, expected, atol=0.01)


def test_a_ball_has_the_chord_of_a_ball():
    size = 200
    radius, x0 = 0.3 * 0.95 * size / 2, 0.25 * 0.95 * size / 2
    z0 = 0.1 * 0.95 * size / 2
    line = BALL.projections([0.0], size, slices=size)[0]
    row, column = 117, 130
    distance = np.hypot(column - (size - 1) / 2 - x0, row - (size - 1) / 2 - z0)
    assert line[row, column] == pytest.approx(0.5 * 2 * np.sqrt(radius**2 - distance**2), rel=1e-3)
    assert line[0].max() == 0


def test_a_volume_is_the_phantom_averaged_over_pixels():
    size = 40
    same = Phantom(OVAL.table * [1, 1, 1, 1000, 1, 1, 1, 1])  # so tall that all heights look alike
    coarse = same.volume(size, 3)
    finer = same.volume(size * 8, 24, rows=[4, 12, 20], fine=1)
    np.testing.assert_allclose(coarse, finer.reshape(3, size, 8, size, 8).mean((2, 4)), atol=0.02)
    assert coarse.max() == pytest.approx(2.0, rel=1e-4)


def test_width_only_adds_a_margin():
    inner, outer = head().volume(32, 3), head().volume(32, 3, width=40)
    np.testing.assert_allclose(outer[:, 4:-4, 4:-4], inner, atol=1e-6)
    assert outer.shape == (3, 40, 40)
    odd = head().volume(32, 3, width=33)
    np.testing.assert_allclose(odd.sum((1, 2)), inner.sum((1, 2)), rtol=1e-3)


def test_rows_are_those_of_the_whole():
    whole = head().volume(24, 9)
    np.testing.assert_array_equal(head().volume(24, 9, rows=slice(2, 5)), whole[2:5])
    np.testing.assert_array_equal(head().volume(24, 9, rows=[7, 1]), whole[[7, 1]])
    lines = head().projections([10.0, 50.0], 24, slices=9)
    np.testing.assert_array_equal(head().projections([10.0, 50.0], 24, slices=9, rows=[7, 1]), lines[:, [7, 1]])


def test_the_sample_is_physical():
    volume = sample().volume(96, 96)
    assert volume.min() > -1e-5
    assert set(np.unique(np.round(volume[:, 8::16, 8::16], 3))) >= {0.0, 1.0}
    y, x = np.indices((96, 96)) - 47.5
    assert not volume[:, x**2 + y**2 > 47**2].any()
    assert sample() is sample()
    assert not np.array_equal(sample(seed=1).table, sample().table)


@pytest.mark.parametrize("size", [0, -3])
def test_a_size_must_be_positive(size):
    with pytest.raises(UserError, match="positive size"):
        head().volume(size)


def test_a_table_must_make_ellipsoids():
    with pytest.raises(UserError, match="half axes"):
        Phantom(np.array([[1.0, 0.0, 1, 1, 0, 0, 0, 0]]))


def test_a_turned_phantom_looks_as_from_another_angle():
    one, other = sample(2, 30), sample(2, 30).turned(35.0)
    np.testing.assert_allclose(
        other.projections([35.0 + 20.0], 64, slices=3), one.projections([20.0], 64, slices=3), rtol=1e-5, atol=1e-5
    )
