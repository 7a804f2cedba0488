"""Losses and weights of the detector, pixel by pixel."""

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.kernels.detection import LOSSES, Detector, _logarithms, intensities, residual
from tests import laws

FRAMES, SHAPE = 3, (4, 5)


def scene(dtype=np.complex128, modes=(2, 2)):
    waves = laws.draw((FRAMES, *modes, *SHAPE), dtype)
    counts = np.random.default_rng(1).poisson(5, (FRAMES, *SHAPE)).astype(np.float64)
    good = np.random.default_rng(2).random(SHAPE) < 0.8
    background = np.random.default_rng(3).random(SHAPE).astype(np.zeros(0, dtype).real.dtype)
    return waves, counts, good, background


def written_out(loss, s, i):
    """Loss of a pixel and its derivative."""
    if loss == "amplitude":
        return (np.sqrt(s) - np.sqrt(i)) ** 2, 1 - np.sqrt(i) / np.sqrt(s)
    if loss == "intensity":
        return (s - i) ** 2, 2 * (s - i)
    return s - i - i * np.log((s + 1e-6) / (i + 1e-6)), 1 - i / (s + 1e-6)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("saturation", [np.inf, 4.0])
def test_every_pixel(loss, saturation, dtype):
    waves, counts, good, background = scene(dtype)
    s = background + (np.abs(waves) ** 2).sum((1, 2))
    assert np.allclose(intensities(waves, background), s, rtol=1e-5)
    values, weights = written_out(loss, s, counts)
    free = ~good | ((counts >= saturation) & (s > counts))
    expected = waves * np.where(free, 0, weights)[:, None, None]
    derivative = np.zeros(SHAPE, background.dtype)
    found = residual(waves, counts, Detector(loss, good, background, saturation), derivative)
    tolerance = 1e-4 if dtype == np.complex64 else 1e-12
    assert found == pytest.approx(values[~free].sum(), rel=tolerance)
    assert np.abs(waves - expected).max() <= tolerance * np.abs(expected).max()
    assert np.allclose(derivative, np.where(free, 0, weights).sum(0), atol=tolerance * np.abs(weights).max())


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_no_light_and_much_light_are_finite(loss, dtype):
    waves = np.zeros((1, 1, *SHAPE), dtype)
    waves[..., 1, :] = 1e-22
    waves[..., 2, :] = 1e4
    counts = np.full((1, *SHAPE), 4e9, np.float32)
    counts[:, :, 0] = 0
    detector = Detector(loss, np.ones(SHAPE, bool), np.zeros(SHAPE, waves.real.dtype), np.inf)
    found = residual(waves, counts, detector)
    assert np.isfinite(found)
    assert np.isfinite(waves).all()
    if loss == "amplitude":
        expected = counts[0, :2].astype(float).sum() + ((1e4 - np.sqrt(counts[0, 2].astype(float))) ** 2).sum()
        assert found == pytest.approx(expected + counts[0, 3].astype(float).sum(), rel=1e-5)


def test_counts_of_any_kind_give_the_same_bits():
    results = []
    for kind in (np.uint8, np.int16, np.uint32, np.float32, np.float64):
        waves, counts, good, background = scene(np.complex64)
        detector = Detector("amplitude", good, background, np.inf)
        results.append((residual(waves, counts.astype(kind), detector), waves.tobytes()))
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2.5e-7), (np.float64, 4e-16)])
def test_logarithms(dtype, tolerance):
    random = np.random.default_rng(0)
    given = np.concatenate([[1, 0.5, 2], 10 ** random.uniform(-30, 30, 500), 1 + random.uniform(-0.4, 0.6, 500)])
    given = given.astype(dtype)
    found, expected = given.copy(), np.log(given.astype(np.float64))
    _logarithms(found, np.empty(given.size, np.int32))
    assert np.all(np.abs(found - expected) <= tolerance * np.maximum(np.abs(expected), np.finfo(dtype).tiny))


def test_other_losses_are_refused():
    waves, counts, good, background = scene()
    with pytest.raises(UserError, match="loss is one of"):
        residual(waves, counts, Detector("huber", good, background, np.inf))
