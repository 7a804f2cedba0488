"""Filters: what they keep, weights of angles, padding, bits."""

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.kernels.filters import padded_length
from dtomo.operators import FILTERS, filter_projections
from dtomo.operators.filtering import angle_weights, filter_responses
from tests import laws

HALF_TURN = np.arange(24) * 7.5


def degrees(angles):
    return np.rad2deg(angle_weights(np.asarray(angles, float)))


def test_even_angles_share_the_half_turn():
    for n in (1, 2, 3, 180, 721):
        np.testing.assert_allclose(degrees(np.arange(n) * 180 / n), 180 / n, rtol=1e-5)
        np.testing.assert_allclose(degrees(np.arange(n) * 180 / n - 333.3), 180 / n, rtol=1e-5)


def test_a_full_turn_counts_once():
    np.testing.assert_allclose(degrees(np.arange(360)), 0.5, rtol=1e-9)
    # an odd number: opposite frames lie between the others
    np.testing.assert_allclose(degrees(np.arange(361) * 360 / 361), 180 / 361, rtol=1e-5)
    np.testing.assert_allclose(degrees(np.arange(720) - 200.0), 0.25, rtol=1e-9)


def test_both_ends_share_a_direction():
    weights = degrees(np.linspace(0, 180, 37))
    np.testing.assert_allclose(weights[1:-1], 5)
    np.testing.assert_allclose(weights[[0, -1]], 2.5)
    weights = degrees(np.linspace(0, 360, 73))
    np.testing.assert_allclose(weights.sum(), 180)
    # directions 0, 180 and 360 are one
    np.testing.assert_allclose(weights[[0, 36, 72]], 5 / 3)


def test_rounding_of_the_encoder_does_not_make_a_new_direction():
    noise = 1e-9 * np.random.default_rng(0).standard_normal(37)
    np.testing.assert_allclose(degrees(np.linspace(0, 180, 37) + noise), degrees(np.linspace(0, 180, 37)), atol=1e-3)
    np.testing.assert_allclose(degrees([0, 60, 120, 180 - 1e-7]), [30, 60, 60, 30], atol=1e-4)


def test_uneven_angles_stand_for_half_the_way_to_their_neighbours():
    np.testing.assert_allclose(degrees([0, 10, 40, 90, 120]), [35, 20, 40, 40, 45])
    order = [3, 0, 4, 2, 1]
    np.testing.assert_allclose(degrees(np.array([0, 10, 40, 90, 120])[order]), np.array([35, 20, 40, 40, 45])[order])


def test_repeats_share():
    np.testing.assert_allclose(degrees([0, 45, 90, 135, 0, 180, -180]), [45 / 4, 45, 45, 45, 45 / 4, 45 / 4, 45 / 4])
    weights = degrees(np.concatenate([np.arange(36) * 5.0, np.zeros(36)]))
    np.testing.assert_allclose(weights[1:36], 5)
    np.testing.assert_allclose(weights[0], 5 / 37)


def test_a_missing_wedge_is_not_filled():
    weights = degrees(np.arange(-60, 61, 2.0))
    np.testing.assert_allclose(weights, 2)
    # the same seen from elsewhere, where the wedge goes through 0
    np.testing.assert_allclose(degrees(np.arange(30, 151, 2.0)), 2)


@pytest.mark.parametrize("copies", [2, 3, 4])
def test_frames_repeated_with_jitter_still_cover_the_half_turn(copies):
    """A few frames at each of 12 directions, apart by a hundredth of a degree: they share what their direction has."""
    jitter = 0.01 * np.arange(copies)
    angles = (np.arange(12)[:, None] * 15.0 + jitter).ravel()
    weights = degrees(angles)
    np.testing.assert_allclose(weights.reshape(12, copies).sum(1), 15, rtol=0.01)


def test_weights_are_positive_and_add_up():
    rng = np.random.default_rng(1)
    for _ in range(50):
        angles = np.concatenate([np.arange(0, 180, 10.0), rng.uniform(-400, 400, rng.integers(1, 12))])
        weights = degrees(angles)
        assert (weights > 0).all()
        np.testing.assert_allclose(weights.sum(), 180, rtol=1e-9)


@pytest.mark.parametrize("name", FILTERS)
def test_responses(name):
    geometry = ParallelBeam(HALF_TURN, 50, pitch=2.0)
    length = padded_length(50)
    response = filter_responses(geometry, name, 1.0, length)
    assert response.shape == (24, length // 2 + 1)
    assert response.dtype == np.float32
    scale = response * geometry.pitch / angle_weights(geometry.angles)[:, None]
    assert (scale >= -1e-7).all()
    frequency = np.arange(length // 2 + 1) / length
    if name == "none":
        np.testing.assert_allclose(scale, 1, rtol=1e-6)
    else:
        # the ramp |f| near 0, whatever the window; the band-limited ramp is not zero at 0
        np.testing.assert_allclose(scale[0, 1:6], frequency[1:6], rtol=0.15)
        assert 0 < scale[0, 0] < frequency[1]
        assert (scale[0] <= frequency + 1.5 / length).all()


@pytest.mark.parametrize("name", [name for name in FILTERS if name != "none"])
def test_cutoff_ends_the_window(name):
    geometry, length = ParallelBeam(HALF_TURN, 64), padded_length(64)
    response = filter_responses(geometry, name, 0.5, length)[0]
    frequency = np.arange(length // 2 + 1) / (length / 2)
    assert not response[frequency > 0.5 + 1e-9].any()
    assert response[(frequency > 0) & (frequency < 0.49)].all()


@pytest.mark.parametrize("cutoff", [0, -0.5, 1.01, np.nan, np.inf])
def test_cutoff_out_of_range(cutoff):
    with pytest.raises(UserError, match="cut-off"):
        filter_projections(np.zeros((24, 1, 8), np.float32), ParallelBeam(HALF_TURN, 8), cutoff=cutoff)


def test_unknown_filter_and_padding():
    lines, geometry = np.zeros((24, 1, 8), np.float32), ParallelBeam(HALF_TURN, 8)
    with pytest.raises(UserError, match=r"'ram-lak'.*ramp"):
        filter_projections(lines, geometry, "ram-lak")
    with pytest.raises(UserError, match="'wrap'"):
        filter_projections(lines, geometry, padding="wrap")


@pytest.mark.parametrize("columns", [50, 64])
@pytest.mark.parametrize("pitch", [1.0, 0.5])
def test_filtered_lines_between_columns_are_a_convolution_with_the_ramp(columns, pitch):
    """Linear interpolation of the filtered lines comes close to the band-limited ramp of Kak & Slaney, eq. 3.61."""
    geometry = ParallelBeam([0.0, 50.0, 90.0], columns, pitch=pitch)
    u = np.arange(columns) - (columns - 1) / 2
    lines = np.exp(-(u**2) / (2 * (columns / 12) ** 2)).astype(np.float32) * np.ones((3, 2, 1), np.float32)
    found = filter_projections(lines, geometry, padding="zero")
    n = np.arange(columns)[:, None] - np.arange(columns)
    kernel = np.where(n % 2, -1 / (np.pi * np.where(n == 0, 1, n)) ** 2, 0.0) + 0.25 * (n == 0)
    expected = lines.astype(float) @ kernel / pitch * angle_weights(geometry.angles)[:, None, None]
    assert laws.norm(found - expected) <= 0.015 * laws.norm(expected)
    # nothing wraps around: near the edges, where the line is 0, there are the tails of the kernel and nothing else
    np.testing.assert_allclose(found[..., :5], expected[..., :5], rtol=0.01)


@pytest.mark.parametrize("name", FILTERS)
def test_filter_is_its_own_adjoint(name):
    geometry = ParallelBeam(HALF_TURN, 37)
    x, y = laws.draw((24, 3, 37)), laws.draw((24, 3, 37), seed=1)
    fx, fy = (filter_projections(a, geometry, name, padding="zero") for a in (x, y))
    assert abs(laws.wide(fx) @ laws.wide(y) - laws.wide(x) @ laws.wide(fy)) <= 1e-6 * laws.norm(fx) * laws.norm(y)


@pytest.mark.parametrize("padding", ["edge", "zero"])
@pytest.mark.parametrize("name", FILTERS)
def test_filter_is_linear_and_complex_is_two_real(name, padding):
    geometry = ParallelBeam(HALF_TURN, 30, pitch=1.5)
    lines = laws.draw((24, 5, 30), np.complex64)
    both = filter_projections(lines, geometry, name, padding=padding)
    assert both.dtype == np.complex64
    parts = [filter_projections(part.copy(), geometry, name, padding=padding) for part in (lines.real, lines.imag)]
    assert parts[0].dtype == np.float32
    assert np.array_equal(both.real, parts[0])
    assert np.array_equal(both.imag, parts[1])
    mixed = filter_projections((lines.real - 2 * lines.imag).copy(), geometry, name, padding=padding)
    assert laws.norm(mixed - (parts[0] - 2 * parts[1])) <= 2e-6 * laws.norm(mixed)


def test_padding_by_the_edge_changes_nothing_where_the_edge_is_empty():
    geometry = ParallelBeam(HALF_TURN, 41)
    lines = laws.draw((24, 3, 41))
    lines[..., [0, -1]] = 0
    assert np.array_equal(filter_projections(lines, geometry), filter_projections(lines, geometry, padding="zero"))
    lines[..., 0] = 1
    assert not np.allclose(filter_projections(lines, geometry), filter_projections(lines, geometry, padding="zero"))


@pytest.mark.parametrize("padding", ["edge", "zero"])
def test_bits_of_a_slice(padding):
    geometry = ParallelBeam(HALF_TURN, 53)
    lines = laws.draw((24, 37, 53))
    before = lines.copy()
    whole = filter_projections(lines, geometry, padding=padding)
    assert np.array_equal(lines, before)
    for size in (1, 2, 3, 4, 5, 8, 16, 17):
        part = filter_projections(lines[:, 9 : 9 + size], geometry, padding=padding)
        assert np.array_equal(part, whole[:, 9 : 9 + size]), size
    for count in (1, 2, 3):
        with laws.thread_count(count):
            assert np.array_equal(filter_projections(lines, geometry, padding=padding), whole)
    for where, same in laws.layouts(lines):
        if where != "other byte order":
            assert np.array_equal(filter_projections(same, geometry, padding=padding), whole), where


def test_a_broken_slice_spoils_no_other():
    geometry = ParallelBeam(HALF_TURN, 20)
    lines = laws.draw((24, 6, 20))
    broken = lines.copy()
    broken[3, 2, 5] = np.nan
    good = [0, 1, 3, 4, 5]
    found = filter_projections(broken, geometry)[:, good]
    assert np.array_equal(found, filter_projections(lines, geometry)[:, good])


def test_double_precision_is_not_taken_for_single():
    geometry, lines = ParallelBeam(HALF_TURN, 20), laws.draw((24, 2, 20))
    for dtype in (np.float64, np.dtype(np.float32).newbyteorder()):
        found = filter_projections(lines.astype(dtype), geometry)
        assert np.array_equal(found, filter_projections(lines, geometry)), dtype


@pytest.mark.parametrize("shape", [(24, 2, 19), (24, 2, 21), (23, 2, 20), (25, 2, 20), (24, 20)])
def test_what_does_not_fit_is_refused(shape):
    with pytest.raises(UserError):
        filter_projections(np.zeros(shape, np.float32), ParallelBeam(HALF_TURN, 20))
