"""C06: axis near the detector's edge, 360-degree scan."""

import numpy as np
import pytest

from dtomo.prep import find_center, fold_360

ANGLES = np.arange(360.0)


def disc_lines(columns, center, angles, x, y, radius, value):
    theta = np.deg2rad(angles)
    distance = np.arange(columns) - center - (x * np.cos(theta) + y * np.sin(theta))[:, None]
    return (2 * value * np.sqrt(np.maximum(radius**2 - distance**2, 0))).astype(np.float32)


def sample(columns, center, angles=ANGLES):
    """A disc 200 pixels from the axis and a weak round body about it."""
    return disc_lines(columns, center, angles, 120, -160, 15, 0.02) + disc_lines(
        columns, center, angles, 3, 4, 210, 0.001
    )


def test_field_of_view_and_object_far_from_the_axis():
    wide, angles, center = fold_360(sample(256, 20.0)[:, None], ANGLES, 20.0)
    assert wide.shape == (180, 1, 471)
    assert center == 235.0
    assert np.array_equal(angles, ANGLES[:180])
    expected = sample(471, 235.0, angles)
    # once, in its place, with no seam: the projections are those of a wide detector
    assert np.abs(wide[:, 0] - expected).max() < 1e-5


def test_axis_near_the_right_edge():
    wide, angles, center = fold_360(sample(256, 235.0)[:, None], ANGLES, 235.0)
    assert wide.shape[2] == 471
    assert center == 235.0
    assert np.abs(wide[:, 0] - sample(471, 235.0, angles)).max() < 1e-5


@pytest.mark.parametrize("center", [4.0, 20.0, 64.3, 127.5, 200.7, 235.0, 251.0])
def test_the_search_reaches_an_axis_anywhere(center):
    found = find_center(sample(256, center)[:, None], ANGLES)
    assert abs(found.center - center) < 0.25
    assert found.reliable


def test_best_on_the_end_of_the_range_is_said():
    found = find_center(sample(256, 20.0)[:, None], ANGLES, search=(40, 200))
    assert np.isnan(found.center)
    assert found.at_edge
    assert "end of the columns searched, 40 to 200" in found.message
