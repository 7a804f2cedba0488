"""The highest place of maps of scores, to a part of a place."""

import numpy as np

from dtomo.kernels.peaks import highest


def test_the_vertex_of_a_parabola_and_what_is_not_allowed():
    z, y, x = np.ogrid[:5, :6, :7]
    tops = np.array([[2.25, 3.125, 2.875], [1.75, 2.0, 4.375]])
    maps = [7 - (z - a) ** 2 - 0.5 * (y - b) ** 2 - 2 * (x - c) ** 2 for a, b, c in tops]
    scores = np.array(maps, np.float32)
    scores[1, 4, 5, 6] = 100
    allowed = np.ones(scores.shape[1:], bool)
    allowed[4, 5, 6] = False
    values, places = highest(scores, allowed)
    assert values.dtype == places.dtype == np.float64
    np.testing.assert_allclose(places, tops, atol=1e-6)
    assert np.array_equal(values, [scores[0, 2, 3, 3], scores[1, 2, 2, 4]])


def test_no_vertex_along_axes_of_fewer_than_three_places():
    scores = np.array([[[1.0, 3.0], [2.0, 0.0]]], np.float32)[:, None]
    values, places = highest(scores, np.ones(scores.shape[1:], bool))
    assert values == [3.0]
    assert places.tolist() == [[0.0, 0.0, 1.0]]
