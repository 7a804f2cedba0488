"""Stripe filters on devices against the CPU's, and against what a stripe is."""

import numpy as np
import pytest
import scipy.ndimage

from dtomo.errors import UserError
from dtomo.kernels.cuda import stripes
from dtomo.kernels.cuda.compiling import CudaKernel
from dtomo.prep import remove_stripes, stripe_kernels
from dtomo.prep import stripes as host_stripes


@pytest.fixture(autouse=True)
def few_threads(monkeypatch):
    """A grid that has to stride in every direction."""
    launch = CudaKernel.launch

    def small(kernel, blocks, *arguments):
        launch(kernel, tuple(min(n, 2) for n in blocks), *arguments, threads=(4,))

    monkeypatch.setattr(CudaKernel, "launch", small)


def sinograms(angles, columns, rows=2, seed=1):
    """A smooth object that moves, noise, a stripe, one in half of the views, a fluctuating and a dead column."""
    rng = np.random.default_rng(seed)
    place, turn = np.arange(columns) - columns / 2, np.linspace(0, np.pi, angles)[:, np.newaxis, np.newaxis]
    clean = np.exp(-(((place - columns / 6 * np.cos(turn + np.arange(rows)[:, np.newaxis])) / (columns / 5)) ** 2))
    clean = clean + rng.normal(0, 0.004, clean.shape)
    striped = clean.copy()
    striped[:, :, columns // 3] += 0.1
    striped[: angles // 2, 0, columns // 2] -= 0.15
    striped[:, 0, columns // 5] += rng.normal(0, 0.5, angles)
    striped[:, rows - 1, (columns // 5 + 7) % columns] = 0.3
    return clean.astype(np.float32), striped.astype(np.float32)


def relative(found, wanted):
    return abs(found.get() - wanted).max() / abs(wanted).max()


@pytest.mark.parametrize("shape", [(33, 66), (48, 90), (16, 20), (20, 4), (17, 7)])
@pytest.mark.parametrize("method", ["combined", "sorting"])
def test_filters(cupy, record_error, shape, method):
    clean, striped = sinograms(*shape)
    wanted = remove_stripes(striped, method=method)
    found = remove_stripes(cupy.asarray(striped), method=method)
    assert found.dtype == np.float32
    assert relative(found, wanted) < 1e-5
    record_error(found, wanted)
    if shape == (48, 90):
        column = np.s_[:, :, 30]
        assert np.abs((found.get() - clean)[column].mean(axis=0)).max() < 0.03
        assert (found.get() != striped).mean() > 0.1


@pytest.mark.parametrize("method", ["combined", "sorting"])
def test_rows_and_memory_do_not_matter(cupy, monkeypatch, method):
    _, striped = sinograms(18, 40)
    together = remove_stripes(cupy.asarray(striped), method=method).get()
    monkeypatch.setattr(host_stripes, "_DEVICE_VALUES", 1)  # a row at a time
    for layout in (striped, np.asfortranarray(striped)):
        device = cupy.asarray(layout)
        assert remove_stripes(device, method=method, out=device) is device
        assert (device.get() == together).all()
    sinogram_order = cupy.asarray(striped).swapaxes(0, 1)
    turned = remove_stripes(sinogram_order, method=method, order="sinograms")
    assert (turned.get().swapaxes(0, 1) == together).all()


def test_no_filter_and_none_that_is_there(cupy):
    device = cupy.ones((20, 1, 30), np.uint16)
    assert (remove_stripes(device, method="none").get() == 1).all()
    few = remove_stripes(cupy.asarray(np.arange(150, dtype=np.float32).reshape(5, 1, 30)))
    assert (few.get() == np.arange(150).reshape(5, 1, 30)).all()
    with pytest.raises(UserError, match="CPU only"):
        remove_stripes(device, method="algotom")
    with pytest.raises(TypeError, match="host"):
        remove_stripes(device, out=np.empty((20, 1, 30), np.float32))


def test_loops_are_those_of_the_host(cupy):
    _, striped = sinograms(19, 22, rows=3)
    device = cupy.asarray(striped)
    bad = np.zeros((3, 22), bool)
    bad[0, [0, 1, 7]] = bad[1, 3:6] = bad[2, 20:] = True
    roughness, means = stripes.column_roughness(device), stripes.block_means(device, 8)
    medians = stripes.running_median(means, 5)
    stripes.fill_columns(device, cupy.asarray(bad))
    for row in range(3):
        host = np.ascontiguousarray(striped[:, row])
        assert np.allclose(roughness.get()[row], stripe_kernels.column_roughness(host), rtol=1e-12)
        wanted = stripe_kernels.block_means(host, 8)
        assert np.allclose(means.get()[row], wanted, rtol=1e-6)
        assert (medians.get()[row] == scipy.ndimage.median_filter(means.get()[row], (5, 1))).all()
        stripe_kernels.fill_columns(host, bad[row])
        assert np.allclose(device.get()[:, row], host, rtol=1e-6)


def test_columns_without_good_neighbours_stay(cupy):
    values = cupy.asarray(np.arange(8, dtype=np.float32).reshape(2, 1, 4))
    stripes.fill_columns(values, cupy.ones((1, 4), bool))
    assert (values.get().ravel() == np.arange(8)).all()


def test_robust_means(cupy):
    """Not against the CPU's functions: the medians are NumPy's."""
    rng = np.random.default_rng(3)
    values = rng.normal(size=(2, 5, 16))
    values[0, 0] = 2.5  # no spread
    values[1, 2, 3:8] = values[1, 2, 2]  # ties
    values[1, 4, 0] = 1e3  # an outlier
    location, spread, parts = (a.get() for a in stripes.biweight(cupy.asarray(values), 8, 4.685))
    middle = np.median(values, axis=-1)
    assert np.allclose(parts, np.median(values.reshape(2, 5, 8, 2), axis=-1))
    assert np.allclose(spread, 1.4826 * np.median(abs(values - middle[..., np.newaxis]), axis=-1))
    assert location[0, 0] == 2.5
    assert abs(location - middle).max() < 1
    assert location[1, 4] < 2


def test_values_shift_linearly_between_knots(cupy):
    values = np.linspace(-1, 3, 9, dtype=np.float32).reshape(9, 1, 1)
    knots = np.array([[[0.0, 1.0, 1.0, 2.0]]], np.float32)
    target = np.array([[[0.5, 1.0, 1.0, 3.0]]], np.float32)
    device = cupy.asarray(values)
    stripes.correct_by_value(device, cupy.asarray(knots), cupy.asarray(target))
    shift = np.interp(values.ravel(), [0, 1, 2], [0.5, 0, 1])
    assert np.allclose(device.get().ravel(), values.ravel() + shift)
