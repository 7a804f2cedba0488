"""The non-uniform FFT against a direct sum in double precision."""

import numpy as np
import pytest

from dtomo.kernels import nufft
from dtomo.kernels.filters import edge_fall, padded_length, ramp_response
from dtomo.kernels.nufft import fourier_backproject
from tests import laws


def direct_sum(lines, responses, radians, center, pitch, size, length, extend):
    """Every filtered line as a trigonometric polynomial, at every voxel, without what a voxel grid cannot hold."""
    angles, columns, slices = lines.shape
    height, width = size
    left = (length - columns) // 2
    padded = np.zeros((angles, length, slices))
    padded[:, left : left + columns] = lines
    if extend:
        padded[:, :left] = lines[:, :1] * edge_fall(left)[::-1, None]
        padded[:, left + columns :] = lines[:, -1:] * edge_fall(length - left - columns)[:, None]
    spectrum = np.fft.rfft(padded, axis=1) * responses[..., None]
    omega = 2 * np.pi * np.arange(length // 2 + 1) / length
    share = np.full(len(omega), 2.0)
    share[0] = 1
    if length % 2 == 0:
        share[-1] = 1
    share[omega / pitch > np.pi] = 0
    y, x = np.meshgrid(np.arange(height) - (height - 1) / 2, np.arange(width) - (width - 1) / 2, indexing="ij")
    out = np.zeros((height, width, slices))
    for k, angle in enumerate(radians):
        u = (x * np.cos(angle) + y * np.sin(angle)) / pitch + center + left
        waves = np.exp(1j * u[..., None] * omega) * share / length
        out += (waves @ spectrum[k]).real
    return out


@pytest.mark.parametrize("extend", [True, False])
@pytest.mark.parametrize(
    ("columns", "center", "pitch", "size"),
    [
        (24, 11.5, 1.0, (24, 24)),
        (13, 6.0, 1.0, (13, 13)),
        (25, 9.3, 1.0, (17, 30)),
        (40, 22.0, 0.5, (21, 20)),
        (12, 5.1, 2.5, (30, 29)),
        (16, -8.0, 1.3, (20, 20)),
        (1, 0.0, 1.0, (3, 4)),
    ],
)
def test_direct_sum(columns, center, pitch, size, extend):
    radians = np.deg2rad([0.0, 13.0, 45.0, 90.0, 123.0, 180.0, 270.0, -30.0, 400.0, 77.7])
    length = padded_length(columns)
    lines = laws.draw((len(radians), columns, 2))
    weights = np.linspace(0.5, 2, len(radians))
    responses = (weights[:, None] * ramp_response(length)).astype(np.float32)
    found = fourier_backproject(lines, responses, radians, center, pitch, size, length, extend)
    expected = direct_sum(lines, responses, radians, center, pitch, size, length, extend)
    assert found.shape == (*size, 2)
    assert laws.norm(found - expected) <= 3e-4 * laws.norm(expected)


def test_places_computed_piece_by_piece_are_the_same(monkeypatch):
    responses = np.abs(laws.draw((10, 33)))
    arguments = (responses, np.deg2rad(np.arange(10) * 17.3), 11.2, 0.8, (21, 24), 25, 64)
    whole = nufft.central_slices(*arguments)
    assert whole.factor.shape[0] == 10
    for most in (1, 3 * whole.factor.shape[1]):
        monkeypatch.setattr(nufft, "_AT_ONCE", most)
        parts = nufft.central_slices(*arguments)
        assert np.array_equal(parts.factor, whole.factor)
        for found, expected in zip(parts.points, whole.points, strict=True):
            assert np.array_equal(found, expected)
