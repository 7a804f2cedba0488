import numpy as np
import pytest

from dtomo import io, threads
from dtomo.algorithms.fbp import fbp
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.prep import find_bad_pixels, minus_log, normalize, remove_stripes, stripe_kernels
from dtomo.simulate import Phantom, head, sample

SIZE, ANGLES = 192, np.arange(300) * 180 / 300
CENTER = 99.3
RADIUS = np.hypot(*(np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2))
INSIDE, NEAR = SIZE / 2 - 2 > RADIUS, RADIUS < 16


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


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-30, 1, 1e30])
@pytest.mark.parametrize("shape", [(16, 1, 5), (17, 2, 6), (40, 1, 30), (100, 1, 211)])
def test_any_scale_gives_finite_values(shape, scale):
    data = (np.random.default_rng(0).normal(size=shape) * scale).astype(np.float32)
    data[:, 0, 1] += np.float32(5 * scale)
    result = remove_stripes(data) / np.float32(scale)
    assert np.isfinite(result).all()
    np.testing.assert_allclose(result, remove_stripes(data / np.float32(scale)), atol=1e-4)


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


def slices(sinograms):
    geometry = ParallelBeam(ANGLES, sinograms.shape[2], center=CENTER, width=SIZE, height=SIZE)
    return fbp(np.ascontiguousarray(sinograms, np.float32), geometry)


def rms(image, where=INSIDE):
    return float(np.sqrt(np.mean(np.square(image[:, where], dtype=np.float64))))


def ring_profile(image, width=15):
    """RMS over the area of the mean over the angle, less its running mean over the radius."""
    radius = np.rint(RADIUS).astype(int)[INSIDE]
    count = np.bincount(radius)
    total = 0.0
    for one in image:
        mean = np.bincount(radius, one[INSIDE]) / np.maximum(count, 1)
        mean -= np.convolve(np.pad(mean, width // 2, mode="edge"), np.full(width, 1 / width), "valid")
        total += np.sum(count[3:] * mean[3:] ** 2) / count[3:].sum()
    return float(np.sqrt(total / len(image)))


def exact_scan(phantom, rows=(24, 31, 48, 70)):
    """Projections (angle, row, column) that absorb up to 7/8 of the beam, and the slices."""
    lines = phantom.projections(ANGLES, SIZE, SIZE + 20, CENTER, slices=96, rows=rows)
    scale = np.float32(2 / lines.max())
    return lines * scale, phantom.volume(SIZE, 96, rows) * scale


def response(columns, seed=1):
    """Change of the response of each column: all a little, some much, one band."""
    rng = np.random.default_rng(seed)
    change = 1 + 0.004 * rng.standard_normal(columns)
    strong = rng.choice(columns, columns // 25, replace=False)
    change[strong] *= 1 + rng.choice([-1, 1], strong.size) * rng.uniform(0.01, 0.04, strong.size)
    change[70:74] *= 1.012
    return change


@pytest.fixture(scope="module", params=["sample", "head"])
def simulated(request):
    """The exact scan and slices of a phantom."""
    return exact_scan({"sample": sample, "head": head}[request.param]())


@pytest.mark.parametrize("photons_in", [5e3, 2e4, 1e5])
def test_rings_go_and_the_slice_is_nearer_the_truth(simulated, photons, photons_in):
    exact, truth = simulated
    striped = photons(exact - np.log(response(exact.shape[2])), photons_in)
    ideal, plain, found, sorted_only = (
        slices(s) for s in (exact, striped, remove_stripes(striped), remove_stripes(striped, method="sorting"))
    )
    assert rms(found - truth) < 0.985 * rms(plain - truth)
    assert rms(found - truth) < rms(sorted_only - truth)
    assert rms(found - truth, NEAR) < 0.9 * rms(plain - truth, NEAR)
    assert ring_profile(found - ideal) < 0.75 * ring_profile(plain - ideal)
    assert ring_profile(found - ideal) < ring_profile(sorted_only - ideal)


@pytest.mark.parametrize("photons_in", [5e3, 2e4, 1e5])
def test_without_rings_the_slice_hardly_changes(simulated, photons, photons_in):
    exact, truth = simulated
    measured = photons(exact, photons_in)
    ideal, plain, found = (slices(s) for s in (exact, measured, remove_stripes(measured)))
    assert rms(found - plain) < rms(plain - ideal) / 5
    assert rms(found - truth, NEAR) < 1.06 * rms(plain - truth, NEAR)


def test_without_noise_and_rings_next_to_nothing_changes(simulated):
    exact, _ = simulated
    change = remove_stripes(exact) - exact
    assert np.sqrt(np.mean(change**2)) < 8e-4 * np.sqrt(np.mean(exact**2))


NEAR_FEATURES = {
    "pores on both sides": [(-1, 0.05, 0.06, 9, 0.09, 0.01, 0, 0), (-1, 0.05, 0.04, 9, -0.08, -0.03, 0, 0)],
    "pore over the axis": [(-1, 0.04, 0.05, 9, 0.02, 0.01, 0, 0)],
    "crack": [(-1, 0.3, 0.012, 9, 0.3, 0.33, 0, -28)],
    "crack through the axis": [(-1, 0.3, 0.012, 9, 0.02, 0.01, 0, 40)],
    "capillary": [(-0.5, 0.62, 0.62, 9, 0.03, 0.02, 0, 0), (0.5, 0.6, 0.6, 9, 0.03, 0.02, 0, 0)],
}


@pytest.mark.parametrize("name", NEAR_FEATURES)
@pytest.mark.parametrize("noise", [0, 0.01])
def test_features_that_stay_in_few_columns_survive(name, noise):
    body = (1, 0.8, 0.7, 9, 0.05, 0, 0, 0)
    exact, truth = exact_scan(Phantom(np.array([body, *NEAR_FEATURES[name]], float)), rows=(48,))
    exact += np.random.default_rng(0).normal(0, noise, exact.shape).astype(np.float32)
    feature = INSIDE & (np.abs(truth[0] - np.median(truth[0][NEAR])) > 0.01 * truth.max())
    change = (slices(remove_stripes(exact)) - slices(exact)) / truth.max()
    assert rms(change, NEAR) < 0.04
    assert rms(change, feature) < 0.0125


def test_a_stripe_in_half_of_the_angles_goes(simulated):
    exact, _ = simulated
    clean = exact + np.random.default_rng(0).normal(0, 0.005, exact.shape).astype(np.float32)
    striped = clean.copy()
    striped[:150, :, 60] += 0.1
    left = (remove_stripes(striped) - clean)[:, :, 60]
    assert np.sqrt(np.mean(left**2)) < 0.3 * 0.1 / np.sqrt(2)


def test_the_rings_of_a_measured_scan_go_where_there_is_air(data):
    raw = io.open(data("tooth_dxchange") / "tooth.h5").read(slice(0, 2))
    values, _ = normalize(raw.projections, raw.flats, raw.darks, bad_pixels=find_bad_pixels(raw.flats, raw.darks))
    values, _ = minus_log(values)
    air = np.r_[5:140, 480:635]

    def stripes(sinograms):
        mean = sinograms.mean(axis=0, dtype=np.float64)
        return np.std(np.diff(mean, axis=1)[:, air])

    assert stripes(remove_stripes(values)) < 0.3 * stripes(values)
