import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.prep import fold_360, halfturn, is_full_turn

SHAPES = [(9, 4, 11, 6, 0.3, 0.02), (-60, 25, 8, 14, 1.0, 0.05), (2, 0, 70, 60, 0, 0.01)]


def folded_and_expected(lines, columns, center, angles):
    scan = lines(columns, center, angles, SHAPES)[:, None]
    wide, half, axis = fold_360(scan, angles, center)
    return wide[:, 0], lines(wide.shape[2], axis, half, SHAPES), half, axis


@pytest.mark.parametrize(
    ("columns", "center"), [(128, 40.0), (128, 87.5), (101, 30.3), (101, 75.9), (100, 49.5), (101, 50.0)]
)
def test_folding_gives_the_wide_projection(lines, columns, center):
    angles = np.arange(360.0) + 7
    wide, expected, half, axis = folded_and_expected(lines, columns, center, angles)
    assert wide.dtype == np.float32
    assert np.array_equal(half, angles[:180])
    assert wide.shape[1] == columns + int(abs(columns - 1 - 2 * center) + 1e-6)
    assert abs(axis - (wide.shape[1] - 1) / 2) <= 0.5
    # interpolation only smooths the ellipses' edges
    tolerance = 2e-6 if (2 * center) % 1 == 0 else 0.08
    assert np.abs(wide - expected).max() < tolerance * expected.max()
    assert np.sqrt(np.mean((wide - expected) ** 2)) < 4e-3 * expected.max()


@pytest.mark.parametrize(
    "angles",
    [
        np.arange(361.0),
        -np.arange(360.0),
        np.arange(720) / 2 + 90,
        np.linspace(0, 360, 360, endpoint=False)[::-1],
        np.random.default_rng(0).permutation(360).astype(float),
        np.concatenate([np.arange(360.0), np.arange(360.0)]),
    ],
)
def test_exact_partners_are_exact(lines, angles):
    wide, expected, half, _ = folded_and_expected(lines, 128, 40.0, angles)
    assert np.abs(wide - expected).max() < 1e-5 * expected.max()
    assert len(half) in (180, 181, 360)


@pytest.mark.parametrize(
    "angles",
    [
        np.arange(0, 360, 360 / 719),
        np.arange(359.0),
        np.sort(np.random.default_rng(1).uniform(-0.3, 0.3, 720) + np.arange(720) / 2),
    ],
)
def test_partners_between_two_views_are_interpolated(lines, angles):
    wide, expected, _, _ = folded_and_expected(lines, 128, 40.0, angles)
    assert np.sqrt(np.mean((wide - expected) ** 2)) < 0.02 * expected.max()


def test_weights_add_up_to_one():
    for center in (0.0, 20.0, 20.3, 63.5, 100.8, 127.0):
        wide, _, _ = fold_360(np.ones((12, 1, 128)), np.arange(12) * 30.0, center)
        np.testing.assert_allclose(wide, 1, atol=1e-6)


def test_rows_are_independent_and_input_stays(scan):
    data = scan(61, 13.2, np.arange(0, 360, 5), rows=3, full=True)
    kept = data.copy()
    whole, _, _ = fold_360(data, np.arange(0, 360, 5), 13.2)
    assert np.array_equal(data, kept)
    assert np.array_equal(fold_360(data[:, 1:2], np.arange(0, 360, 5), 13.2)[0], whole[:, 1:2])


@pytest.mark.parametrize(
    "angles",
    [np.arange(180.0), np.arange(270.0), np.r_[0:100, 110:360], np.zeros(8), np.array([0.0, 180, 90])],
)
def test_no_full_turn_is_refused(angles):
    assert not is_full_turn(angles)
    with pytest.raises(UserError):
        fold_360(np.ones((len(angles), 1, 20)), angles, 5)


def test_full_turns_are_known():
    assert is_full_turn(np.arange(4) * 90.0)
    assert is_full_turn(np.linspace(0, 360, 37))
    assert not is_full_turn(np.array([]))
    assert not is_full_turn(np.array([0.0, np.nan, 180, 270]))


@pytest.mark.parametrize("center", [-0.1, 19.5, np.nan])
def test_axis_off_the_detector_is_refused(center):
    with pytest.raises(UserError, match="not on the detector"):
        fold_360(np.ones((8, 1, 20)), np.arange(8) * 45.0, center)


def test_wrong_arrays_are_refused():
    for array, angles in ((np.ones((8, 20)), 8), (np.ones((8, 1, 20)), 7), (np.full((8, 1, 20), "a"), 8)):
        with pytest.raises(UserError):
            fold_360(array, np.arange(angles) * 45.0, 5)


def test_lagrange_is_exact_for_polynomials():
    nodes = np.arange(-2, 4)
    weights = halfturn._lagrange(0.3).astype(float)
    for power in range(6):
        assert weights @ nodes**power == pytest.approx(0.3**power, abs=1e-5)
