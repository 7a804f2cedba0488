"""CTF volumes against closed forms: the function itself, where planes lie, powers, exposure."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dtomo.errors import UserError
from dtomo.geometry.wedge import Wedge
from dtomo.kernels.ctf_volumes import ctf_weights, transfer, wavelength
from dtomo.kernels.wedges import frequencies

BOX = (24, 24, 24)
OPTICS = {"voltage": 300.0, "cs": 2.7, "amplitude_contrast": 0.07, "pixel_size": 4.0}


def grid():
    z, y, x = np.broadcast_arrays(*frequencies(BOX))
    return x / 4.0, y / 4.0, z / 4.0


def test_wavelengths():
    """Of the tables: 100, 200 and 300 kV."""
    for voltage, expected in ((100, 0.037014), (200, 0.025079), (300, 0.019687)):
        assert wavelength(voltage) == pytest.approx(expected, rel=1e-4)


def test_zeros_of_the_function():
    """Without amplitude contrast and Cs the CTF is zero at k² = m / (λ Δ)."""
    defocus = 20000.0
    k2 = np.arange(1, 5) / (wavelength(300) * defocus)
    np.testing.assert_allclose(transfer(k2, defocus, 300, 0, 0), 0, atol=1e-9)
    assert transfer(0.5 * k2[0], defocus, 300, 0, 0) == pytest.approx(1)
    assert transfer(0.0, defocus, 300, 2.7, 0.1) == pytest.approx(0.1)
    assert transfer(0.0, defocus, 300, 2.7, 0.0, 90) == pytest.approx(1)
    k = 0.2  # Å⁻¹: the phase, term by term
    chi = np.pi * wavelength(200) * defocus * k**2 - np.pi / 2 * 2.0e7 * wavelength(200) ** 3 * k**4
    expected = np.sqrt(1 - 0.01) * np.sin(chi) + 0.1 * np.cos(chi)
    assert transfer(k**2, defocus, 200, 2.0, 0.1) == pytest.approx(expected, abs=1e-9)


def test_the_plane_of_one_tilt():
    x, y, z = grid()
    flat = ctf_weights(BOX, [0.0], 30000.0, **OPTICS)
    inside = (z == 0) & (x**2 + y**2 <= 0.125**2 + 1e-12)
    np.testing.assert_allclose(flat[inside], transfer((x**2 + y**2)[inside], 30000.0, 300, 2.7, 0.07), atol=1e-6)
    assert not flat[abs(z) > 0].any()
    tilted = ctf_weights(BOX, [40.0], 30000.0, **OPTICS)
    off = abs(z * np.cos(np.deg2rad(40)) - x * np.sin(np.deg2rad(40))) * 4 * 24
    assert not tilted[off >= 1].any()
    assert (tilted[(off < 0.9) & (x**2 + y**2 + z**2 < 0.1**2)] != 0).all()
    one_plane = Wedge((40.0, 40.0), smooth=1.0).weights(BOX)
    assert np.array_equal(tilted != 0, one_plane > 1e-6)


def test_squares_astigmatism_and_rotation():
    x, y, z = grid()
    inside = (z == 0) & (x**2 + y**2 < 0.12**2)
    one = ctf_weights(BOX, [0.0], 30000.0, **OPTICS, astigmatism=4000.0, azimuth=30.0)
    angle = np.arctan2(y, x) - np.deg2rad(30)
    expected = transfer(x**2 + y**2, 30000 + 4000 * np.cos(2 * angle), 300, 2.7, 0.07)
    np.testing.assert_allclose(one[inside], expected[inside], atol=1e-6)
    two = ctf_weights(BOX, [0.0], 30000.0, **OPTICS, astigmatism=4000.0, azimuth=30.0, power=2)
    np.testing.assert_allclose(two, one**2, atol=1e-6)
    about_y = Rotation.from_euler("y", 25, degrees=True).as_matrix()  # a volume turned back by the tilt
    turned = ctf_weights(BOX, [0.0], 30000.0, **OPTICS, rotation=about_y.T)
    np.testing.assert_allclose(turned, ctf_weights(BOX, [25.0], 30000.0, **OPTICS), atol=1e-6)


def test_a_series_covers_its_wedge_and_exposure_dampens():
    tilts = np.arange(-60, 61, 3.0)
    defocus = np.linspace(28000, 32000, tilts.size)
    squares = ctf_weights(BOX, tilts, defocus, **OPTICS, power=2)
    assert squares.min() >= 0
    assert squares.max() <= 1
    assert not squares[Wedge((-60, 60), smooth=1.0).weights(BOX) == 0].any()
    dosed = ctf_weights(BOX, tilts, defocus, **OPTICS, power=2, exposures=np.full(tilts.size, 60.0))
    x, y, z = grid()
    radius = np.sqrt(x**2 + y**2 + z**2)
    left = [dosed[shell].sum() / squares[shell].sum() for shell in (radius < 0.03, (radius > 0.1) & (squares > 0))]
    assert 1 > left[0] > left[1] > 0


def test_what_an_exposure_leaves():
    """Of structure of 12 Å exp(-1/2) is left after 18.16 electrons per Å², its critical exposure at 300 kV."""
    plain = ctf_weights(BOX, [0.0], 30000.0, **OPTICS)
    dosed = ctf_weights(BOX, [0.0], 30000.0, **OPTICS, exposures=[18.156])
    assert dosed[0, 0, 8] / plain[0, 0, 8] == pytest.approx(np.exp(-0.5), rel=1e-3)


@pytest.mark.parametrize(
    "wrong", [{"power": 3}, {"exposures": [1.0]}, {"defocus": [1.0, 2.0]}, {"pixel_size": 0.0}, {"voltage": 0.0}]
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(UserError):
        ctf_weights(**({"shape": BOX, "tilts": [0.0, 3.0, 6.0], "defocus": 3e4} | OPTICS | wrong))
