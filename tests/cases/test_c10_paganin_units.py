"""C10: Paganin filter, units and magnification."""

import numpy as np
import pytest

from dtomo.prep import paganin, phase

BEAM = {"energy": 13.0, "delta": 1e-6, "beta": 1e-9}


def contrast_kept(**setup):
    """The filter's factor at a period of 8 pixels, from a weak cosine along the columns."""
    columns = np.arange(64)
    wave = 1e-3 * np.cos(2 * np.pi * (columns + 0.5) / 8)
    attenuation = paganin((1 + wave)[np.newaxis, np.newaxis] * np.ones((1, 16, 1)), **setup, **BEAM)
    return -2 * np.mean(attenuation[0, 8] * wave) / 1e-6


def test_uniform_half_transmission():
    assert phase.attenuation_coefficient(13.0, 1e-9) * 1000 == pytest.approx(131.76, rel=1e-4)
    half = np.full((1, 9, 11), 0.5)
    thickness = paganin(half, **BEAM, pixel_size=1, distance=100, output="thickness")
    np.testing.assert_allclose(thickness / 1000, 5.2606, rtol=2e-5)
    attenuation = paganin(half, **BEAM, pixel_size=1, distance=100)
    np.testing.assert_allclose(attenuation, np.log(2), rtol=1e-6)


def test_magnification():
    cone = contrast_kept(pixel_size=8, distance=30, source_distance=15)
    assert cone == pytest.approx(0.1319, abs=2e-4)
    assert contrast_kept(pixel_size=8 / 3, distance=10) == pytest.approx(cone, abs=1e-5)
    assert contrast_kept(pixel_size=8, distance=30) == pytest.approx(0.313, abs=5e-4)


def test_units_of_distance():
    data = np.random.default_rng(0).uniform(0.2, 1, (1, 8, 9))
    plain = paganin(data, **BEAM, pixel_size=1, distance=308)
    for distance in ("308 mm", "30.8 cm", "0.308 m"):
        np.testing.assert_allclose(paganin(data, **BEAM, pixel_size=1, distance=distance), plain, rtol=1e-6)
