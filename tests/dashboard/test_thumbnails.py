"""Middle slices on their way to the page."""

import warnings

import numpy as np
import pytest

from dtomo.dashboard.thumbnails import MOST, PLANES, Grid, pack, unpack

SHAPES = [(1, 1, 1), (5, 7, 9), (64, 300, 301), (1100, 9, 20), (5, 513, 1024), (3, 2000, 40)]


def assembled(volume, slab):
    """The pictures put together from slabs, as the page does it."""
    grid = Grid(volume.shape)
    pictures = {plane: np.full(grid.pixels(plane), np.nan, volume.dtype) for plane in PLANES}
    for start in range(0, len(volume), slab):
        part = volume[start : start + slab]
        for plane, image in grid.cut(part, start, also_xy=grid.middle[0]).items():
            first = 0 if plane == "xy" else grid.rows(start, start + len(part)).start
            pictures[plane][first : first + len(image)] = image
    return pictures


@pytest.mark.parametrize("shape", SHAPES)
def test_pictures_are_small_and_complete_whatever_the_slabs(shape):
    volume = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    whole = assembled(volume, shape[0])
    for plane, picture in whole.items():
        assert picture.shape == Grid(shape).pixels(plane)
        assert max(picture.shape) <= MOST
        assert np.isfinite(picture).all()
    for slab in (1, 3, 64):
        for plane, picture in assembled(volume, slab).items():
            np.testing.assert_array_equal(picture, whole[plane], err_msg=f"{plane} from slabs of {slab}")


def test_a_small_volume_is_shown_as_it_is():
    volume = np.random.default_rng(2).normal(size=(6, 8, 10)).astype(np.float32)
    pictures = assembled(volume, 4)
    np.testing.assert_array_equal(pictures["xy"], volume[3])
    np.testing.assert_array_equal(pictures["xz"], volume[:, 4, :])
    np.testing.assert_array_equal(pictures["yz"], volume[:, :, 5])


def test_a_large_one_is_averaged_in_its_plane():
    volume = np.zeros((2, 1024, 1024), np.float32)
    volume[:, ::2] = 4
    np.testing.assert_array_equal(assembled(volume, 1)["xy"], np.full((512, 512), 2, np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("size", [1e-9, 1.0, 1e12])
def test_packing_keeps_three_digits_of_any_size(dtype, size):
    image = (np.random.default_rng(3).normal(size=(40, 30, 2)) * size).astype(np.float32)
    image = image.view(np.complex64)[..., 0] if dtype is np.complex64 else image[..., 0]
    found = unpack(pack(image))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, image, rtol=1e-3, atol=1e-3 * size)
    np.testing.assert_allclose(unpack(pack(image, 2.0)), 2 * image, rtol=1e-3, atol=2e-3 * size)


def test_values_that_are_no_numbers_pass_without_a_warning():
    image = np.array([[np.nan, np.inf, -np.inf], [0, 1, 3e38]], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = unpack(pack(image))
        Grid((1, 1024, 1024)).cut(np.full((1, 1024, 1024), np.inf, np.float32), 0, also_xy=0)
        assert np.isnan(unpack(pack(np.full((2, 2), np.nan, np.float32)))).all()
        assert not unpack(pack(np.zeros((2, 2), np.float32))).any()
    assert np.isnan(found[0, 0])
    assert found[1, 0] == 0


@pytest.mark.parametrize("change", [{"data": b"123"}, {"shape": [7, 7]}, {"scale": "x"}, {"shape": None}])
def test_a_damaged_message_is_refused(change):
    with pytest.raises((ValueError, TypeError)):
        unpack(pack(np.ones((2, 3), np.float32)) | change)
