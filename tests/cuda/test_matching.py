"""Scores on a device against the CPU's, which `tests/kernels` holds against their definition."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dtomo.geometry.wedge import Wedge
from dtomo.kernels.cropping import fourier_crop
from dtomo.kernels.ctf_volumes import ctf_weights
from dtomo.kernels.matching import Reference
from dtomo.kernels.turning import TurningTransform
from tests import laws

TURNS = Rotation.random(2, random_state=3).as_matrix()
SHAPE = (6, 6, 6)


def ball():
    z, y, x = np.indices(SHAPE) - 3
    return (z * z + y * y + x * x <= 4).astype(np.float32)


def test_turned_transforms(cupy, record_error):
    volume = laws.draw(SHAPE, np.float32)
    filters = Wedge((-60, 60)).weights(SHAPE).astype(np.complex64)
    ranges = np.zeros((6, 6, 2), np.int32)
    ranges[..., 1] = 4
    rates = tuple(axis.astype(np.float32) for axis in (np.fft.fftfreq(6), np.fft.fftfreq(6), np.fft.rfftfreq(6)))
    expected, found = np.empty((2, 6, 6, 4), np.complex64), cupy.empty((2, 6, 6, 4), np.complex64)
    TurningTransform(volume).fill(TURNS, filters, ranges, rates, expected)
    TurningTransform(cupy.asarray(volume)).fill(TURNS, cupy.asarray(filters), ranges, rates, found)
    record_error(found, expected)
    np.testing.assert_allclose(found.get(), expected, atol=2e-5)


@pytest.mark.parametrize("spherical", [True, False])
@pytest.mark.parametrize("most", [0.0, None])
def test_scores(cupy, spherical, most):
    volume, particle = laws.draw(SHAPE, np.float32), laws.draw(SHAPE, np.float32)[::-1].copy()
    results = []
    for xp in (np, cupy):
        reference = Reference(xp.asarray(volume), xp.asarray(ball()), max_shift=most, spherical=spherical)
        weights = Wedge((-60, 60)).weights(SHAPE, like=reference.mask)
        prepared = reference.prepare(xp.asarray(particle), weights)
        results.append((reference.scores(prepared, TURNS), reference.match(prepared, TURNS)))
    (expected, best), (found, same) = results
    np.testing.assert_allclose(found.values, expected.values, atol=1e-5)
    np.testing.assert_allclose(found.shifts, expected.shifts, atol=1e-3)
    assert same.index == best.index
    np.testing.assert_allclose(same.shift, best.shift, atol=1e-3)


def test_cropping_and_weights(cupy):
    volume = laws.draw((8, 9, 10), np.float32)
    found = fourier_crop(cupy.asarray(volume), 2)
    assert isinstance(found, cupy.ndarray)
    np.testing.assert_allclose(found.get(), fourier_crop(volume, 2), atol=1e-6)
    like = cupy.zeros(1)
    wedge = Wedge((-50, 60), smooth=1.5)
    np.testing.assert_allclose(wedge.weights(SHAPE, TURNS[0], like=like).get(), wedge.weights(SHAPE, TURNS[0]))
    optics = (SHAPE, [-30.0, 0.0, 30.0], 3e4, 300.0, 2.7, 0.07, 5.0)
    found = ctf_weights(*optics, exposures=[1.0, 2.0, 3.0], astigmatism=500.0, like=like)
    np.testing.assert_allclose(found.get(), ctf_weights(*optics, exposures=[1, 2, 3], astigmatism=500.0), atol=1e-6)
