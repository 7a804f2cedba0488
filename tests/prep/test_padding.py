import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.prep import extend, extension_weights, extension_width


def back_projection(sinogram, center, angles, size):
    """Plain ramp filter at the given length and back projection of (angle, column), slice (size, size)."""
    length = 4096
    kernel = np.zeros(length)
    kernel[0] = 0.25
    odd = np.arange(1, length // 2, 2)
    kernel[odd] = kernel[-odd] = -1 / (np.pi * odd) ** 2
    response = np.fft.rfft(kernel).real
    filtered = np.fft.irfft(np.fft.rfft(sinogram, length) * response, length)[:, : sinogram.shape[1]]
    x = np.arange(size) - (size - 1) / 2
    out = np.zeros((size, size))
    for line, angle in zip(filtered, np.deg2rad(angles)):
        u = x[None, :] * np.cos(angle) + x[:, None] * np.sin(angle) + center
        out += np.interp(u, np.arange(len(line)), line)
    return out * np.pi / len(angles)


def ring(image, low, high):
    x = np.arange(len(image)) - (len(image) - 1) / 2
    radius = np.hypot(x[:, None], x[None])
    return image[(radius >= low) & (radius <= high)]


def test_disc_wider_than_the_detector(lines):
    angles = np.arange(180.0)
    sinogram = lines(64, 31.5, angles, [(0, 0, 48, 48, 0, 0.02)])
    width = extension_width(64)
    image = back_projection(extend(sinogram, width, width), 31.5 + width, angles, 64)
    assert 0.8 < ring(image, 29, 31).mean() / ring(image, 0, 5).mean() < 1.25
    inner = ring(image, 0, 28)
    assert inner.std() / inner.mean() < 0.05
    plain = back_projection(sinogram, 31.5, angles, 64)
    assert ring(plain, 29, 31).mean() / ring(plain, 0, 5).mean() > 1.5


def test_object_inside_the_field_is_unchanged(lines):
    sinogram = lines(64, 31.5, np.arange(60) * 3.0, [(5, -3, 20, 12, 0.4, 0.02)])
    padded = extend(sinogram[:, None], 40, 30)
    assert padded.shape == (60, 1, 134)
    assert padded.dtype == np.float32
    assert np.array_equal(padded[:, 0, 40:104], sinogram)
    assert not padded[..., :40].any()
    assert not padded[..., 104:].any()


def test_shape_of_the_extension():
    line = np.array([2.0, 7.0, 4.0])
    np.testing.assert_allclose(extend(line, 1, 3), [1, 2, 7, 4, 4 * 0.853553, 2, 4 * 0.146447], rtol=1e-5)
    np.testing.assert_allclose(extend(line, 2, 1, "edge"), [2, 2, 2, 7, 4, 4])
    np.testing.assert_allclose(extend(line, 2, 1, "zero"), [0, 0, 2, 7, 4, 0])
    np.testing.assert_allclose(extend(line, 0, 0), line)
    weights = extension_weights(500)
    assert np.all(np.diff(weights) < 0)
    assert 0 < weights[-1] < 1e-4
    assert weights[0] > 0.9999


def test_output_is_used():
    out = np.empty((2, 7), np.float32)
    assert extend(np.ones((2, 3)), 2, 2, out=out) is out
    np.testing.assert_allclose(out[:, 2:5], 1)


@pytest.mark.parametrize(
    "arguments",
    [(np.ones((2, 0)), 1, 1), (np.ones((2, 3)), -1, 1), (np.float32(3), 1, 1), (np.ones(3), 1, 1, "wrap")],
)
def test_wrong_requests(arguments):
    with pytest.raises(UserError):
        extend(*arguments)
    with pytest.raises(UserError):
        extend(np.ones(3), 1, 1, out=np.empty(4, np.float32))
