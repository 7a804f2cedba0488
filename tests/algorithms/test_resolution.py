"""Fourier ring and shell correlation: against closed forms, an own loop over points, and the paper's thresholds."""

import itertools
import math

import numpy as np
import pytest

from dtomo.algorithms.resolution import (
    FourierCorrelation,
    fourier_correlation,
    resolution,
    soft_mask,
    soft_window,
    threshold_values,
)
from dtomo.errors import UserError

SHAPES = [(64, 64), (48, 65), (33, 40), (20, 24, 21), (101,)]


def noise(shape, seed, kind=np.complex128):
    random = np.random.default_rng(seed)
    values = random.normal(size=shape)
    return (values + 1j * random.normal(size=shape) if np.dtype(kind).kind == "c" else values).astype(kind)


def by_hand(first, second, pitch):
    """The definition, point by point: correlation and number of points of each ring."""
    spectra = np.fft.fftn(first - first.mean()), np.fft.fftn(second - second.mean())
    width = 1 / min(n * d for n, d in zip(first.shape, pitch))
    rings = {}
    for place in itertools.product(*map(range, first.shape)):
        frequency = [(k - n if 2 * k >= n else k) / (n * d) for k, n, d in zip(place, first.shape, pitch)]
        ring = round(math.hypot(*frequency) / width)
        f, g = spectra[0][place], spectra[1][place]
        entry = rings.setdefault(ring, [0.0, 0.0, 0.0, 0])
        for k, value in enumerate(((f * g.conjugate()).real, abs(f) ** 2, abs(g) ** 2, 1)):
            entry[k] += value
    last = int(0.5 / max(pitch) / width + 1e-6)
    chosen = [rings[ring] for ring in range(1, last + 1)]
    return np.array([cross / math.sqrt(one * two) for cross, one, two, _ in chosen]), [entry[3] for entry in chosen]


@pytest.mark.parametrize("kind", [np.float64, np.complex128])
@pytest.mark.parametrize("shape", [(17, 24), (16, 15), (8, 9, 10), (21,)])
def test_it_is_the_definition(shape, kind):
    first = noise(shape, 0, kind)
    second = 0.5 * first + noise(shape, 1, kind)
    pitch = [0.5 + 0.25 * axis for axis in range(len(shape))]
    curve = fourier_correlation(first, second, window=None, pixel_size=pitch)
    wanted, count = by_hand(first, second, pitch)
    np.testing.assert_allclose(curve.correlation, wanted, atol=1e-12)
    np.testing.assert_array_equal(curve.count, count)
    assert curve.nyquist == 0.5 / max(pitch)


@pytest.mark.parametrize("window", [None, 0.2])
@pytest.mark.parametrize("kind", [np.float32, np.complex64, np.uint16])
@pytest.mark.parametrize("shape", SHAPES)
def test_identical_images_correlate_fully(shape, kind, window):
    image = (100 * np.abs(noise(shape, 3))).astype(kind) if kind is np.uint16 else noise(shape, 3, kind)
    curve = fourier_correlation(image, image, window=window)
    np.testing.assert_allclose(curve.correlation, 1, atol=1e-6)
    assert len(curve.frequency) == min(shape) // 2
    np.testing.assert_allclose(curve.frequency, np.arange(1, min(shape) // 2 + 1) / min(shape))
    found = resolution(curve)
    assert not found.crossed
    assert found.frequency == curve.frequency[-1]


@pytest.mark.parametrize("window", [None, 0.25])
@pytest.mark.parametrize(("kind", "spread"), [(np.float64, 1.0), (np.complex128, 0.5**0.5)])
def test_independent_noise_does_not_correlate(kind, spread, window):
    """The correlation of a ring spreads as 1/√n for real images and 1/√(2n) for complex ones, windows included."""
    images = [noise((96, 96), seed, kind) for seed in range(24)]
    curves = [fourier_correlation(*pair, window=window) for pair in zip(images[::2], images[1::2])]
    scaled = np.stack([curve.correlation * np.sqrt(curve.count) / spread for curve in curves])[:, 4:]
    assert (np.abs(scaled) < 4.5).all()
    assert (np.abs(scaled) < 3).mean() > 0.985
    least = 0.92 if window is None else 0.75  # with a window the count of independent points is a low estimate
    assert least < scaled.std() < 1.08


@pytest.mark.parametrize("shape", [(160, 160), (40, 44, 48)])
def test_known_ratios_of_signal_to_noise(shape):
    """FRC = SNR / (SNR + 1), ring by ring, for a signal whose spectrum falls off by four orders of magnitude."""
    radius = np.sqrt(sum(np.square(f) for f in np.meshgrid(*(np.fft.fftfreq(n) for n in shape), indexing="ij")))
    signal = np.fft.ifftn(np.fft.fftn(noise(shape, 0)) * np.exp(-9 * radius))
    level = 0.1
    first, second = (signal + level * noise(shape, seed) for seed in (1, 2))
    curve = fourier_correlation(first, second, window=None)
    ring = np.rint(radius * min(shape)).astype(int).ravel()
    power = np.bincount(ring, np.abs(np.fft.fftn(signal) / math.sqrt(signal.size)).ravel() ** 2) / np.bincount(ring)
    ratio = power[1 : len(curve.frequency) + 1] / (2 * level**2)
    expected = ratio / (ratio + 1)
    assert expected[1] > 0.9
    assert expected[-1] < 0.3
    deviation = (curve.correlation - expected) * np.sqrt(curve.count)
    assert (np.abs(deviation) < 3).all()
    clear = expected > 0.2
    np.testing.assert_allclose(curve.snr[clear] / 2, curve.correlation[clear] / (1 - curve.correlation[clear]))


def test_half_bit_and_one_bit_are_those_of_the_paper():
    count = np.array([1, 8, 50, 1000, 1e7])
    root = np.sqrt(count)
    half = (0.2071 + 1.9102 / root) / (1.2071 + 0.9102 / root)
    one = (0.5 + 2.4142 / root) / (1.5 + 1.4142 / root)
    np.testing.assert_allclose(threshold_values("half-bit", count), half, rtol=1e-4)
    np.testing.assert_allclose(threshold_values("one-bit", count), one, rtol=1e-4)
    np.testing.assert_allclose(threshold_values("3-sigma", count), np.minimum(1, 3 / np.sqrt(count / 2)))
    np.testing.assert_array_equal(threshold_values(0.143, count), 0.143)
    np.testing.assert_array_equal(threshold_values("0.5", count), 0.5)


@pytest.mark.parametrize("name", ["two-bit", "sigma", "-1", "1.5", "nan", "0-sigma", 0])
def test_what_is_no_threshold_is_refused(name):
    with pytest.raises(UserError, match="no threshold"):
        threshold_values(name, np.ones(3))


def curve_of(values):
    return FourierCorrelation(np.arange(1, len(values) + 1) / 10, np.array(values), np.full(len(values), 1e9), 1.0)


def test_a_crossing_is_interpolated_and_must_stay():
    found = resolution(curve_of([0.9, 0.7, 0.4, 0.8, 0.6, 0.2, 0.1, 0.6, 0.1]), 0.5, stays=2)
    assert found.crossed
    assert found.frequency == pytest.approx(0.525)
    assert found.period == pytest.approx(1 / 0.525)
    assert found.half_period == pytest.approx(0.5 / 0.525)
    assert resolution(curve_of([0.9, 0.7, 0.4, 0.8]), 0.5, stays=1).frequency == pytest.approx(0.2 + 0.1 * 2 / 3)
    last = resolution(curve_of([0.9, 0.9, 0.9, 0.4]), 0.5)
    assert last.crossed
    assert last.frequency == pytest.approx(0.38)
    nothing = resolution(curve_of([0.1, 0.2, 0.1]), 0.5)
    assert nothing.crossed
    assert nothing.frequency == 0
    assert nothing.period == math.inf


def test_units_follow_the_pixel_size():
    first = noise((32, 32), 0)
    second = first + noise((32, 32), 1)
    pixels, nanometres = (fourier_correlation(first, second, pixel_size=size) for size in (1, 8.0))
    np.testing.assert_allclose(nanometres.frequency * 8, pixels.frequency)
    np.testing.assert_array_equal(nanometres.correlation, pixels.correlation)
    assert nanometres.nyquist == 1 / 16


def test_a_signal_in_the_edges_only_is_not_seen_through_a_window():
    """A constant makes no correlation, however large: the mean is taken off before the window falls off."""
    first, second = 1000 + noise((64, 64), 0), 1000 + noise((64, 64), 1)
    assert np.abs(fourier_correlation(first, second, window=0.3).correlation).max() < 0.7
    assert fourier_correlation(first, second, window=0.3).correlation.mean() < 0.1


def test_windows_and_masks_are_soft():
    window = soft_window((40, 20), 0.25)
    assert window.dtype == np.float32
    np.testing.assert_array_equal(window, window[::-1, ::-1])
    np.testing.assert_array_equal(window[10:30, 5:15], 1)
    assert 0 < window[0, 10] < 0.03
    np.testing.assert_array_equal(soft_window((8, 8), 0), 1)
    mask = np.zeros((41, 41), bool)
    mask[20, 20] = True
    soft = soft_mask(mask, 8)
    assert soft[20, 20] == 1
    assert soft[20, 24] == pytest.approx(0.5)
    assert soft[20, 28] == pytest.approx(0, abs=1e-6)
    assert (np.diff(soft[20, 20:29]) < 0).all()


def test_what_makes_no_curve_is_refused():
    image = noise((16, 16), 0)
    with pytest.raises(UserError, match="one shape"):
        fourier_correlation(image, image[:15])
    with pytest.raises(UserError, match="finite"):
        fourier_correlation(image, np.where(image.real > 2, np.nan, image))
    with pytest.raises(UserError, match="window"):
        fourier_correlation(image, image, window=np.zeros((16, 16)))
    with pytest.raises(UserError, match="window"):
        fourier_correlation(image, image, window=np.ones((16, 15)))
    with pytest.raises(UserError, match="window"):
        fourier_correlation(image, image, window=0.6)
    with pytest.raises(UserError, match="pixel sizes"):
        fourier_correlation(image, image, pixel_size=-1)


def test_flat_images_have_no_correlation():
    flat = np.ones((16, 16), np.complex64)
    np.testing.assert_array_equal(fourier_correlation(flat, flat, window=None).correlation, 0)
