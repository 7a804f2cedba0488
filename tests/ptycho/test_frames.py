"""Detector order and model order, for even and odd frames."""

import numpy as np
import pytest

from dtomo.ptycho.frames import to_detector_order, to_model_order


@pytest.mark.parametrize("shape", [(4, 6), (5, 7), (4, 5), (1, 3)])
def test_frequency_zero_moves_from_the_middle_to_the_first_pixel_and_back(shape):
    images = np.zeros((2, *shape))
    images[:, shape[0] // 2, shape[1] // 2] = 1
    model = to_model_order(images)
    assert (model[:, 0, 0] == 1).all()
    assert model.sum() == 2
    np.testing.assert_array_equal(to_detector_order(model), images)


@pytest.mark.parametrize("size", [8, 9])
def test_a_plane_wave_falls_where_numpy_says(size):
    """exp(2πi·2x/N) is two columns to the right of the middle."""
    wave = np.exp(2j * np.pi * 2 * np.arange(size) / size) * np.ones((size, 1))
    pattern = to_detector_order(np.abs(np.fft.fft2(wave)) ** 2)
    assert np.unravel_index(pattern.argmax(), pattern.shape) == (size // 2, size // 2 + 2)
