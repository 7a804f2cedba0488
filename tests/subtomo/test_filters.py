"""Filters of averages, and increments that follow from a resolution."""

import numpy as np
import pytest

from dtomo.algorithms.resolution import FourierCorrelation, Resolution
from dtomo.errors import UserError
from dtomo.subtomo.comparison import half_curve
from dtomo.subtomo.filters import (
    adaptive_increment,
    amplitudes,
    b_factor,
    filtered,
    fsc_filtered,
    fsc_gains,
    low_pass,
    radius_of,
    sharpened,
    start_reference,
    with_amplitudes,
)
from dtomo.subtomo.fourier import forward, inverse, radii, shell_means

SIZE, PIXEL = 32, 2.0


def noise(seed, size=SIZE):
    return np.random.default_rng(seed).standard_normal((size,) * 3, dtype=np.float32)


def test_nothing_finer_than_a_low_pass_is_left():
    volume = noise(0) + 3
    found = low_pass(volume, 8.0, PIXEL)
    before, after, radius = forward(volume), forward(found), radii(SIZE)
    assert found.dtype == np.float32
    assert np.abs(after[radius >= radius_of(8.0, SIZE, PIXEL)]).max() < 1e-4 * np.abs(before).max()
    assert np.allclose(after[radius < 6], before[radius < 6], rtol=1e-3, atol=0.05)
    assert found.mean() == pytest.approx(volume.mean(), rel=1e-5)


def test_a_start_reference_is_as_coarse_as_it_says():
    volume = noise(1)
    curve = half_curve(start_reference(volume, 5.0), volume, pixel_size=5.0)
    assert 1 / curve.resolution.frequency > 55
    assert np.abs(forward(start_reference(volume, 5.0)))[radii(SIZE) > SIZE * 5 / 60].max() < 1e-3
    assert np.array_equal(start_reference(volume, 5.0), low_pass(volume, 60.0, 5.0))
    with pytest.raises(UserError, match="coarser than two voxels, 10"):
        start_reference(volume, 5.0, 9.0)


def curve_of(correlation):
    values = np.asarray(correlation, np.float64)
    shells = np.arange(1, len(values) + 1)
    return FourierCorrelation(shells / (SIZE * PIXEL), values, 4 * np.pi * shells**2.0, 0.5 / PIXEL)


def test_gains_are_the_correlation_with_the_truth():
    """Σ F Ḡ with the truth, of a half and of both, against the curve of the halves: for a known signal and noise."""
    signal, ratio = forward(noise(2)), 4 * np.exp(-((radii(SIZE) / 7) ** 2))
    halves = [signal * np.sqrt(ratio) + forward(noise([2, k])) for k in (1, 2)]
    curve = half_curve(*(inverse(half, SIZE) for half in halves)).unmasked
    whole = Resolution(0.5, "0.143", False, 0.5)
    for part, of in ((halves[0], "half"), (halves[0] + halves[1], "both")):
        gains = fsc_gains(curve, whole, of)
        assert gains[0] == 1
        for shell in (3, 5, 8):
            ring = np.abs(radii(SIZE) - shell) < 0.5
            a, b = part[ring], signal[ring]
            expected = (a * b.conj()).real.sum() / np.sqrt((abs(a) ** 2).sum() * (abs(b) ** 2).sum())
            assert gains[shell] == pytest.approx(expected, abs=0.08)


def test_gains_fall_to_zero_beyond_the_resolution():
    curve = curve_of(np.full(16, 0.5))
    found = Resolution(6 / (SIZE * PIXEL), "0.143", True, 0.25)
    gains = fsc_gains(curve, found)
    assert np.allclose(gains[1:7], np.sqrt(2 * 0.5 / 1.5))
    assert 0 < gains[7] < gains[6]
    assert not gains[8:].any()
    assert not fsc_gains(curve_of([-0.5] * 16), found)[1:].any()
    assert fsc_gains(curve, Resolution(0.0, "0.143", True, 0.25))[2:].sum() == 0
    volume = noise(3)
    expected = filtered(volume, gains)
    assert np.array_equal(fsc_filtered(volume, curve, found), expected)
    ring = np.abs(radii(SIZE) - 4) < 1e-6
    assert np.allclose(forward(expected)[ring], forward(volume)[ring] * gains[4], rtol=1e-3, atol=0.02)


def test_sharpening_takes_a_b_factor_back():
    square = (radii(SIZE) / (SIZE * PIXEL)) ** 2
    volume = noise(4)
    blurred = inverse(forward(volume) * np.exp(-200 * square / 4).astype(np.float32), SIZE)
    assert b_factor(blurred, PIXEL, 4.2, coarsest=40.0) == pytest.approx(200, abs=25)
    back = sharpened(blurred, PIXEL, -200)
    inside = (radii(SIZE) < SIZE / 2) & (radii(SIZE) > 0)
    error = (forward(back) - forward(volume))[inside]
    assert np.linalg.norm(error) < 0.04 * np.linalg.norm(forward(volume)[inside])
    coarse = forward(sharpened(blurred, PIXEL, -200, resolution=8.0))
    assert np.abs(coarse[radii(SIZE) > 8]).max() < 1e-2
    with pytest.raises(UserError, match="B factor"):
        sharpened(volume, PIXEL, -5000)
    with pytest.raises(UserError, match="three shells"):
        b_factor(volume, PIXEL, 9.0, coarsest=9.5)


def test_a_given_curve_of_amplitudes_is_reached():
    volume = noise(5) * np.linspace(0.5, 1.5, SIZE).astype(np.float32)[:, None, None]
    frequency = np.linspace(0, 0.25, 6)
    wanted = np.array([300.0, 200.0, 100.0, 60.0, 20.0, 10.0])
    found = with_amplitudes(volume, PIXEL, frequency, wanted)
    own, reached = amplitudes(found, PIXEL)
    expected = np.interp(own, frequency, wanted)
    assert np.allclose(reached[2:15], expected[2:15], rtol=0.12)
    assert found.mean() == pytest.approx(volume.mean(), abs=1e-5)
    with pytest.raises(UserError, match="ascending"):
        with_amplitudes(volume, PIXEL, [0.1, 0.05], [1, 1])
    with pytest.raises(UserError, match="not negative"):
        with_amplitudes(volume, PIXEL, [0.0, 0.05], [1, -1])


def test_increments_follow_from_the_resolution():
    assert adaptive_increment(20, 440) == pytest.approx(np.rad2deg(20 / 440))
    assert adaptive_increment(20, 440, part=0.1) == pytest.approx(0.26, abs=0.005)
    for resolution, diameter in ((0, 440), (20, -1), (np.inf, 440), (np.nan, 440)):
        with pytest.raises(UserError, match="increment"):
            adaptive_increment(resolution, diameter)


@pytest.mark.parametrize(("resolution", "pixel"), [(0, 1), (10, 0), (-3, 1)])
def test_refused(resolution, pixel):
    with pytest.raises(UserError, match="positive"):
        low_pass(noise(0, 8), resolution, pixel)


@pytest.mark.parametrize("size", [8, 9])
def test_means_of_shells_are_those_of_the_whole_transform(size):
    """Of a half transform most columns stand for two."""
    volume = noise(3, size)
    whole = np.abs(np.fft.fftn(volume)) ** 2
    k = np.fft.fftfreq(size, 1 / size)
    shell = np.rint(np.sqrt(k[:, None, None] ** 2 + k[:, None] ** 2 + k**2)).astype(int).ravel()
    expected = (np.bincount(shell, whole.ravel()) / np.bincount(shell))[: size // 2 + 1]
    np.testing.assert_allclose(shell_means(np.abs(forward(volume)) ** 2), expected, rtol=1e-4)
