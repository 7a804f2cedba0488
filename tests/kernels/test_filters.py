"""Responses, windows and padding, as arrays."""

import numpy as np
import pytest

from dtomo.kernels.filters import WINDOWS, edge_fall, filter_lines, pad_lines, padded_length, ramp_response


def test_padding_leaves_room_for_the_kernel():
    for columns in (1, 2, 3, 13, 64, 100, 1000, 2049):
        length = padded_length(columns)
        assert 2 * columns <= length <= 2.2 * columns + 2
        for prime in (2, 3, 5):
            while length % prime == 0:
                length //= prime
        assert length in (1, 7, 11, 77)


@pytest.mark.parametrize("length", [2, 3, 27, 64, 1000])
def test_ramp_is_the_transform_of_its_samples(length):
    kernel = np.fft.irfft(ramp_response(length), length)
    n = np.arange(length)
    n = np.minimum(n, length - n)
    assert kernel[0] == pytest.approx(0.25)
    np.testing.assert_allclose(kernel[n % 2 == 1], -1 / (np.pi * n[n % 2 == 1]) ** 2, atol=1e-15)
    np.testing.assert_allclose(kernel[(n % 2 == 0) & (n > 0)], 0, atol=1e-15)


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name):
    f = np.linspace(0, 1, 101)
    window = WINDOWS[name](f)
    assert window[0] == pytest.approx(1), "the mean is kept"
    assert (np.diff(window) <= 1e-12).all()
    assert (window >= -1e-12).all()
    ends = {"ramp": 1, "shepp-logan": 2 / np.pi, "cosine": 0, "hamming": 0.08, "hann": 0, "parzen": 0}
    assert window[-1] == pytest.approx(ends[name], abs=1e-12)
    np.testing.assert_allclose(ramp_response(200, name), ramp_response(200) * window, atol=1e-12)


def test_edge_fall():
    for width in (0, 1, 7):
        fall = edge_fall(width)
        assert fall.shape == (width,)
        assert fall.dtype == np.float32
        assert (np.diff(fall) < 0).all()
        assert ((fall > 0) & (fall < 1)).all()


@pytest.mark.parametrize(("columns", "length"), [(5, 12), (6, 13), (1, 2), (4, 4)])
@pytest.mark.parametrize("extend", [True, False])
def test_pad_lines(columns, length, extend):
    lines = np.random.default_rng(0).random((3, columns, 2), np.float32) + 1
    padded = np.full((3, length, 2), np.nan, np.float32)
    left = pad_lines(lines, padded, extend)
    assert np.array_equal(padded[:, left : left + columns], lines)
    outside = [padded[:, :left][:, ::-1], padded[:, left + columns :]]
    for side, edge in zip(outside, (lines[:, :1], lines[:, -1:])):
        assert np.isfinite(side).all()
        if extend:
            assert (np.diff(np.concatenate([edge, side], 1), axis=1) < 0).all()
            assert (side > 0).all()
        else:
            assert not side.any()


def test_lines_are_filtered_by_their_own_response():
    lines = np.random.default_rng(1).standard_normal((4, 10, 3)).astype(np.float32)
    responses = np.zeros((4, 11), np.float32)
    responses[1:] = np.array([1, 2, -3])[:, None]
    found = filter_lines(lines, responses, 20, False)
    np.testing.assert_allclose(found, lines * np.array([0, 1, 2, -3])[:, None, None], atol=1e-6)


@pytest.mark.parametrize("columns", [1, 2, 13, 50, 64])
def test_filtering_is_the_convolution_with_the_sampled_ramp(columns):
    """Against a direct sum with the kernel of Kak & Slaney, eq. 3.61: no wrap-around."""
    lines, length = np.random.default_rng(2).standard_normal((1, columns, 2)).astype(np.float32), padded_length(columns)
    found = filter_lines(lines, ramp_response(length)[None].astype(np.float32), length, False)
    n = np.arange(columns)[:, None] - np.arange(columns)
    kernel = np.where(n % 2, -1 / (np.pi * np.where(n == 0, 1, n)) ** 2, 0.0) + 0.25 * (n == 0)
    np.testing.assert_allclose(found[0], kernel @ lines[0].astype(float), atol=2e-6)
