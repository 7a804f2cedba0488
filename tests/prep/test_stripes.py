import numpy as np
import pytest

from dtomo import threads
from dtomo.errors import UserError
from dtomo.prep import remove_stripes, stripe_kernels


@pytest.fixture
def sinograms(scan):
    """Clean and striped projections, (160 angles, 3 rows, 640 columns)."""
    rng = np.random.default_rng(5)
    clean = scan(640, 319.5, np.arange(160) * 180 / 160, rows=3, seed=3)
    clean += rng.normal(0, 0.005, clean.shape).astype(np.float32)
    stripes = np.zeros_like(clean)
    stripes[:, :, 40] = 0.1
    stripes[:, 1, 90] = -0.08
    stripes[:80, :, 470] = 0.1
    stripes[:, :, 320:330] = 0.1
    return clean, clean + stripes


def ring_level(striped, clean):
    return np.sqrt(np.mean((striped - clean).mean(axis=0) ** 2))


@pytest.mark.parametrize(("method", "factor"), [("combined", 5), ("sorting", 5), ("algotom", 3)])
def test_rings_shrink_and_clean_data_stay(sinograms, method, factor):
    clean, striped = sinograms
    result = remove_stripes(striped, method=method)
    assert result.dtype == np.float32
    assert result.shape == striped.shape
    narrow = np.r_[0:300, 350:640]
    after, before = (ring_level(data[..., narrow], clean[..., narrow]) for data in (result, striped))
    assert factor * after < before
    assert np.sqrt(np.mean((remove_stripes(clean, method=method) - clean) ** 2)) < 0.004


@pytest.mark.parametrize("method", ["combined", "algotom"])
def test_wide_stripes_shrink(sinograms, method):
    clean, striped = sinograms
    result = remove_stripes(striped, method=method)
    band = slice(320, 330)
    after, before = (ring_level(data[..., band], clean[..., band]) for data in (result, striped))
    assert 2.5 * after < before


def test_the_default_is_as_good_as_algotom(sinograms):
    clean, striped = sinograms
    ours, theirs = (ring_level(remove_stripes(striped, method=m), clean) for m in ("combined", "algotom"))
    assert ours < 1.05 * theirs


def test_a_fluctuating_and_a_dead_column_are_interpolated(sinograms):
    clean, _ = sinograms
    bad = clean.copy()
    bad[:, 1, 60] = np.random.default_rng(0).normal(0, 1, 160)
    bad[:, 2, 500] = 0.3
    result = remove_stripes(bad)
    assert np.sqrt(np.mean((result - clean)[:, 1, 60] ** 2)) < 0.03
    assert np.sqrt(np.mean((result - clean)[:, 2, 500] ** 2)) < 0.03


@pytest.mark.parametrize("method", ["combined", "sorting", "algotom"])
def test_rows_and_threads_do_not_change_the_bits(sinograms, method):
    _, striped = sinograms
    whole = remove_stripes(striped, method=method)
    assert np.array_equal(remove_stripes(striped[:, 1:2], method=method), whole[:, 1:2])
    before = threads.get_threads()
    try:
        threads.set_threads(1)
        assert np.array_equal(remove_stripes(striped, method=method), whole)
    finally:
        threads.set_threads(before)


def test_order_and_output(sinograms):
    _, striped = sinograms
    kept = striped.copy()
    whole = remove_stripes(striped)
    assert np.array_equal(striped, kept)
    turned = remove_stripes(np.ascontiguousarray(striped.transpose(1, 0, 2)), order="sinograms")
    assert np.array_equal(turned.transpose(1, 0, 2), whole)
    assert remove_stripes(striped, out=striped) is striped
    assert np.array_equal(striped, whole)


@pytest.mark.parametrize("method", ["combined", "sorting", "algotom", "none"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 2, 2), (40, 1, 1), (40, 1, 2), (40, 2, 30)])
def test_empty_slices_and_tiny_arrays_stay(method, shape):
    if method == "algotom" and shape[2] < 3 and shape[0] > 1:
        pytest.skip("algotom's splines need columns")
    zeros = np.zeros(shape, np.float32)
    assert np.array_equal(remove_stripes(zeros, method=method), zeros)


def test_few_angles_are_left_alone():
    data = np.random.default_rng(0).normal(size=(15, 2, 20)).astype(np.float32)
    assert np.array_equal(remove_stripes(data), data)


def test_a_monotone_response_is_mapped_exactly():
    columns = np.array([[0, 1, 2, 3, 4]], np.float32)
    stripe_kernels.correct_by_value(columns, np.array([[1, 3]], np.float32), np.array([[2, 2]], np.float32))
    np.testing.assert_allclose(columns, [[1, 2, 2, 2, 3]])


def test_running_median_equals_scipy():
    from scipy import ndimage

    values = np.random.default_rng(0).integers(0, 9, (23, 4)).astype(np.float32)
    for size in (1, 5, 23, 61):
        expected = ndimage.median_filter(values, size=(size, 1), mode="reflect")
        assert np.array_equal(stripe_kernels.running_median(values, size), expected)


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "magic"},
        {"order": "volume"},
        {"snr": 1},
        {"small": 0},
        {"out": np.empty((3, 3, 3))},
    ],
)
def test_wrong_requests(wrong):
    with pytest.raises(UserError):
        remove_stripes(np.ones((20, 2, 20), np.float32), **wrong)


@pytest.mark.parametrize("array", [np.ones((3, 4)), np.ones((0, 3, 4)), np.ones((2, 3, 4), complex)])
def test_wrong_arrays(array):
    with pytest.raises(UserError):
        remove_stripes(array)
