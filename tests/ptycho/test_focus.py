"""The first probe's defocus: the width that a phase gives it, and the right sign found by trials."""

import numpy as np
import pytest

from dtomo.ptycho import scans, start
from dtomo.ptycho.focus import curvatures, focus_phase
from dtomo.ptycho.setup import Data
from dtomo.simulate.ptycho import simulate_ptycho


def test_curvatures_spread_the_probe_to_the_widths_asked_for():
    row, column = np.mgrid[:64, :64] - 32
    mean = np.exp(-(row**2 + column**2) / (2 * 6.0**2))
    wide = curvatures(mean, 6.0)[-1]
    f = np.fft.fftshift(np.fft.fftfreq(64))
    light = np.abs(start.probe_from_pattern(mean, wide * (f[:, None] ** 2 + f**2))) ** 2
    width = np.sqrt((light * row**2).sum() / light.sum())
    assert width == pytest.approx(1.3 * 6.0, rel=0.05)


def test_the_defocus_of_a_scan_is_found_with_its_sign(tmp_path):
    truth = simulate_ptycho(tmp_path / "scan.cxi", size=48, positions=40, modes=1, seed=2)
    data = scans.open(truth.path)
    pattern = start.mean_pattern(data.source, data.mask)
    phase = focus_phase(data, pattern)
    assert phase is not None
    guesses = [start.probe_from_pattern(pattern.mean, sign * phase) for sign in (1, -1)]
    right, wrong = (_likeness(guess, truth.probe[0]) for guess in guesses)
    assert right > 0.6 > wrong + 0.1


def _likeness(one, other):
    """Largest correlation over all shifts."""
    product = np.fft.ifft2(np.fft.fft2(one) * np.conj(np.fft.fft2(other)))
    return np.abs(product).max() / np.sqrt(np.sum(abs(one) ** 2) * np.sum(abs(other) ** 2))


def test_too_few_frames_are_not_tried():
    from dtomo.io.sources import ArraySource

    data = Data(ArraySource(np.ones((3, 8, 8), np.uint16)), np.zeros((3, 2)))
    assert focus_phase(data, start.Pattern(np.ones((8, 8)))) is None
