"""Cutting transforms: waves stay waves, centers stay centers, means stay means."""

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.kernels.cropping import cropped_shape, fourier_crop


def gaussian(shape, middle, width):
    """Middle (z, y, x) from the center n // 2, in voxels."""
    grid = np.indices(shape).astype(float)
    squares = sum((axis - n // 2 - m) ** 2 for axis, n, m in zip(grid, shape, middle))
    return np.exp(-squares / (2 * width**2)).astype(np.float32)


@pytest.mark.parametrize("shape", [(24, 24, 24), (25, 26, 27), (20, 32, 30), (22, 34, 23)])
@pytest.mark.parametrize("binning", [2, 3, 4])
def test_an_object_about_the_center_stays_there(shape, binning):
    """A Gaussian of 1.2 voxels of the small box, sampled again: index n // 2 is the center before and after."""
    middle = np.array([0.7, -1.3, 0.4])
    width = 1.1 * binning
    small = fourier_crop(gaussian(shape, middle, width), binning)
    assert small.dtype == np.float32
    assert small.shape == cropped_shape(shape, binning) == tuple(n // binning for n in shape)
    expected = gaussian(small.shape, middle / binning, width / binning)
    near = np.ones(small.shape, bool)
    for axis, n in enumerate(small.shape):
        distance = abs(np.arange(n) - n // 2).reshape([-1 if k == axis else 1 for k in range(3)])
        near &= distance <= 3
    reach = 0.02 if min(small.shape) >= 8 else 0.15  # wider than a small box: it goes round
    assert abs(small - expected)[near & (expected > 0.3)].max() < reach


def test_means_and_low_waves_are_kept():
    shape, binning = (24, 24, 24), 2
    z, y, x = np.indices(shape) - 12
    wave = 3 + np.cos(2 * np.pi * (3 * x - 2 * y + z) / 24 + 0.4)
    small = fourier_crop(wave.astype(np.float32), binning)
    z, y, x = (np.indices((12, 12, 12)) - 6) * 2
    np.testing.assert_allclose(small, 3 + np.cos(2 * np.pi * (3 * x - 2 * y + z) / 24 + 0.4), atol=1e-5)
    z, y, x = np.indices(shape)
    fast = np.cos(2 * np.pi * (8 * x + y) / 24).astype(np.float32)
    assert abs(fourier_crop(fast, binning)).max() < 1e-5


def test_no_binning_changes_nothing():
    volume = gaussian((9, 8, 7), (0, 0, 0), 2)
    assert np.array_equal(fourier_crop(volume, 1), volume)


def test_what_makes_no_sense_is_refused():
    volume = np.zeros((12, 12, 12), np.float32)
    for binning in (0, 1.5, -2):
        with pytest.raises(UserError, match="a binning is a whole number"):
            fourier_crop(volume, binning)
    with pytest.raises(UserError, match="fewer than 4 voxels"):
        fourier_crop(volume, 4)
    with pytest.raises(UserError, match="axes"):
        fourier_crop(volume[0], 2)
    with pytest.raises(UserError, match="is real"):
        fourier_crop(volume + 1j, 2)
