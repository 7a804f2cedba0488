"""Transfer functions, spectra turned by them and by phases of frames, and derivatives, written out."""

import numpy as np
import pytest

from dtomo.kernels import exit_waves, propagation
from tests import laws

FRAMES, SHAPE = 3, (4, 5)


def draw(seed, *shape, dtype=np.complex128):
    return laws.draw(shape, np.complex64, seed).astype(dtype)


@pytest.mark.parametrize("paraxial", [True, False])
def test_wavenumbers(paraxial):
    found = propagation.wavenumbers((6, 7), (0.5, 0.7), 0.9, paraxial)
    square = np.fft.fftfreq(6, 0.5)[:, None] ** 2 + np.fft.fftfreq(7, 0.7) ** 2
    assert found[0, 0] == 0
    if paraxial:
        assert np.allclose(found, -np.pi * 0.9 * square)
        return
    inside = square <= 1 / 0.9**2
    assert 0 < inside.sum() < inside.size
    assert np.isnan(found[~inside]).all()
    assert np.allclose(found[inside], 2 * np.pi * (np.sqrt(1 / 0.9**2 - square[inside]) - 1 / 0.9))


def test_short_waves_over_long_distances_keep_their_digits():
    """A carrier of 1e10 radians would leave 1e-6 of a phase."""
    kappa = propagation.wavenumbers((1, 4), (1e-7, 1e-7), 1e-11)
    assert kappa[0, 1] * 0.01 == pytest.approx(-np.pi * 1e-11 * 0.01 * 2.5e6**2, rel=1e-9)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_transfer_functions(dtype):
    kappa = np.array([[0.0, -2.0], [np.nan, -0.5]])
    found = propagation.transfer(kappa, 3.0, dtype)
    assert found.dtype == dtype
    assert np.allclose(found, [[1, np.exp(-6j)], [0, np.exp(-1.5j)]], atol=1e-6)


@pytest.mark.parametrize("adjoint", [True, False])
@pytest.mark.parametrize("phased", [True, False])
def test_spectra_are_turned(adjoint, phased):
    spectra, function = draw(1, FRAMES, 2, *SHAPE), draw(2, *SHAPE)
    phases = (draw(3, FRAMES, SHAPE[0]), draw(4, FRAMES, SHAPE[1])) if phased else ()
    factor = np.broadcast_to(function, (FRAMES, *SHAPE))
    if phased:
        factor = factor * phases[0][:, :, None] * phases[1][:, None, :]
    expected = spectra * (factor.conj() if adjoint else factor)[:, None]
    propagation.turn(spectra, function, *phases, adjoint=adjoint)
    assert np.allclose(spectra, expected, rtol=1e-14)


def test_slopes():
    psi, changes = draw(1, FRAMES, 2, *SHAPE), draw(2, FRAMES, 2, *SHAPE)
    kappa = laws.draw(SHAPE, np.float32, 3).astype(np.float64)
    kappa[1, 2] = np.nan
    found = np.full((FRAMES, 3), np.nan)
    propagation.slopes(psi, changes, kappa, found)
    ways = (np.nan_to_num(kappa), 2 * np.pi * np.fft.fftfreq(4)[:, None], 2 * np.pi * np.fft.fftfreq(5))
    for frame in range(FRAMES):
        for number, way in enumerate(ways):
            expected = 2 * np.real(np.vdot(changes[frame], 1j * way * psi[frame]))
            assert found[frame, number] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("conjugate", [True, False])
def test_waves_times_an_object(conjugate):
    waves, image = draw(1, FRAMES, 2, 3, *SHAPE), draw(2, 2, 9, 8)
    corners = np.array([[0, 0], [5, 3], [2, 1]])
    expected = waves.copy()
    for frame, (row, column) in enumerate(corners):
        patch = image[:, None, row : row + 4, column : column + 5]
        expected[frame] *= patch.conj() if conjugate else patch
    exit_waves.times(waves, image, corners, conjugate=conjugate)
    assert np.allclose(waves, expected, rtol=1e-14)
