"""Views resampled: places, borders, and bits that do not depend on what is asked for."""

import numpy as np
import pytest
import scipy.ndimage

from dtomo.geometry import Alignment
from dtomo.io.sources import ArraySource
from dtomo.io.tilts import AlignedSource
from dtomo.kernels.registration import registration_sums
from dtomo.kernels.resampling import box, covered, resample
from dtomo.threads import using_threads

RANDOM = np.random.default_rng(7)
VIEWS = scipy.ndimage.gaussian_filter(RANDOM.normal(size=(3, 40, 50)), (0, 3, 3)).astype(np.float32)
TURNED = Alignment(
    np.zeros(3), (40, 50), RANDOM.normal(0, 4, (3, 2)), (88.0, 3.0, -40.0), None, (44, 38), (1, 1.1, 0.9)
)


def test_smooth_views_agree_with_splines():
    matrices, offsets = TURNED.places()
    found = resample(VIEWS, matrices, offsets, slice(0, 44), slice(0, 38))
    inside = covered(matrices, offsets, slice(0, 44), slice(0, 38), (40, 50))
    for k in range(3):
        wanted = scipy.ndimage.affine_transform(VIEWS[k], matrices[k], offsets[k], (44, 38), order=5, mode="nearest")
        apart = np.abs(found[k] - wanted)[scipy.ndimage.binary_erosion(inside[k], iterations=3)]
        assert apart.max() < 5e-3 * np.abs(VIEWS).max()


def test_whole_steps_move_pixels():
    matrices, offsets = Alignment(np.zeros(3), (40, 50), [[2, -3]] * 3).places()
    found = resample(VIEWS, matrices, offsets, slice(0, 40), slice(0, 50))
    np.testing.assert_array_equal(found[:, 2:, :-3], VIEWS[:, :-2, 3:])
    np.testing.assert_array_equal(found[:, 0], found[:, 2])  # the nearest pixel beyond the border


def test_bands_and_threads_leave_the_bits_alone():
    source = AlignedSource(ArraySource(VIEWS), TURNED)
    whole = source.read()
    for rows in (slice(0, 7), slice(7, 30), slice(30, 44)):
        np.testing.assert_array_equal(source.read(rows=rows), whole[:, rows])
    np.testing.assert_array_equal(source.read([2, 0], slice(3, 9), slice(5, 31)), whole[[2, 0], 3:9, 5:31])
    with using_threads(1):
        np.testing.assert_array_equal(source.read(), whole)


@pytest.mark.parametrize("binning", [2, 3])
def test_binned_views_lie_where_the_whole_ones_do(binning):
    fine = AlignedSource(ArraySource(VIEWS), TURNED).read()
    source = AlignedSource(ArraySource(VIEWS), TURNED, binning)
    rows, columns = source.shape[1:]
    means = fine[:, : rows * binning, : columns * binning].reshape(3, rows, binning, columns, binning).mean((2, 4))
    inside = source.covered(slice(0, rows))
    inside = np.stack([scipy.ndimage.binary_erosion(one, iterations=2) for one in inside])
    assert np.abs(source.read() - means)[inside].max() < 0.05 * np.abs(VIEWS).max()
    assert source.axis == pytest.approx(((38 - 1) / 2 - (binning - 1) / 2) / binning)


def test_the_box_holds_what_is_needed():
    matrices, offsets = TURNED.places()
    rows, columns = box(matrices, offsets, slice(10, 20), slice(0, 38), (40, 50))
    part = np.ascontiguousarray(VIEWS[:, rows, columns])
    found = resample(part, matrices, offsets, slice(10, 20), slice(0, 38), (rows.start, columns.start), (40, 50))
    np.testing.assert_array_equal(found, resample(VIEWS, matrices, offsets, slice(10, 20), slice(0, 38)))


def test_levels_are_taken_off():
    plain = AlignedSource(ArraySource(VIEWS), TURNED).read()
    less = AlignedSource(ArraySource(VIEWS), TURNED.replace(levels=[1, 2, 3])).read()
    np.testing.assert_allclose(plain - less, np.broadcast_to([[[1]], [[2]], [[3]]], plain.shape), atol=1e-6)


def test_sums_are_those_of_the_gradients():
    a, r = RANDOM.normal(size=(2, 3, 12, 9)).astype(np.float32)
    good = np.ones(a.shape, np.bool_)
    good[1, 4, 5] = False
    found = registration_sums(a, r, good)
    wide = r.astype(float)
    by_row, by_column = np.gradient(wide, axis=(1, 2))
    counts = np.zeros(a.shape, np.bool_)
    counts[:, :, 1:-1] = True
    for place in ((4, 5), (3, 5), (5, 5), (4, 4), (4, 6)):
        counts[(1, *place)] = False
    d = a.astype(float) - wide
    terms = (
        by_row**2,
        by_row * by_column,
        by_column**2,
        by_row * d,
        by_column * d,
        d**2,
        a.astype(float) ** 2,
        d * 0 + 1,
    )
    wanted = np.stack([(term * counts).sum((1, 2)) for term in terms], 1)
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)


def test_what_is_not_moved_stays_as_it_is():
    """To the last pixel at every border."""
    found = resample(VIEWS, np.eye(2)[None].repeat(3, 0), np.zeros((3, 2)), slice(0, 40), slice(0, 50))
    np.testing.assert_allclose(found, VIEWS, atol=1e-6)
