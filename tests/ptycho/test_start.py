"""First guesses: the probe's photons, modes and place, room for the object, what stands under the mask."""

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.io.sources import ArraySource
from dtomo.ptycho import start


def _probe(size=24, middle=(12.0, 12.0), width=3.0):
    row, column = np.arange(size) - middle[0], np.arange(size) - middle[1]
    return np.exp(-(row[:, None] ** 2 + column**2) / (4 * width**2)).astype(np.complex128)


def test_the_probe_comes_back_from_its_own_pattern():
    probe = _probe(width=1.6)
    pattern = np.abs(np.fft.fftshift(np.fft.fft2(probe, norm="ortho"))) ** 2
    found = start.probe_from_pattern(pattern)
    np.testing.assert_allclose(found, probe, atol=1e-3)


def test_defocus_is_undone_by_its_opposite_and_spreads_the_probe():
    pattern = np.abs(np.fft.fftshift(np.fft.fft2(_probe(), norm="ortho"))) ** 2
    phase = start.defocus_phase((24, 24), (0.1, 0.1), 0.5, 4.0)
    assert phase[12, 12] == 0
    assert phase[12, 13] == pytest.approx(-np.pi * 0.5 * 4.0 * (1 / 2.4) ** 2)
    blurred = start.probe_from_pattern(pattern, phase)
    assert abs(blurred).max() < 0.7 * abs(_probe()).max()
    np.testing.assert_allclose(
        start.probe_from_pattern(pattern, -phase), np.conj(blurred)[::-1, ::-1], atol=0.2
    )  # of a symmetric pattern; the middle of an even probe lies off its turning point


def test_modes_are_orthogonal_with_the_powers_asked_for_and_all_photons():
    modes = start.probe_modes(_probe(), 4, 1e5)
    gram = np.einsum("iyx,jyx->ij", modes.conj(), modes)
    powers = np.real(np.diag(gram))
    np.testing.assert_allclose(gram - np.diag(powers), 0, atol=0.1)
    assert modes.dtype == np.complex64
    assert powers.sum() == pytest.approx(1e5, rel=1e-5)
    np.testing.assert_allclose(powers / 1e5, start.mode_powers(4), rtol=1e-4)
    assert (np.diff(powers) < 0).all()


def test_modes_that_are_given_stay_and_missing_ones_are_added():
    given = np.stack([_probe(), 0.3 * _probe(middle=(9.0, 14.0))])
    modes = start.probe_modes(given, 3, None)
    ratio = modes[:2] / given
    np.testing.assert_allclose(ratio[:, 12, 12], ratio[0, 12, 12], rtol=1e-4)
    assert np.abs(modes[2]).max() > 0
    np.testing.assert_allclose(start.probe_modes(given, 1, None)[0], given[0], rtol=1e-6)


def test_what_stands_under_the_mask_is_never_looked_at():
    counts = np.random.default_rng(1).poisson(5.0, (20, 16, 16)).astype(np.float32)
    mask = np.ones((16, 16), bool)
    mask[5:8] = False
    patterns = []
    for bad in (4294967295.0, -1.0, np.nan):
        counts[:, ~mask] = bad
        patterns.append(start.mean_pattern(ArraySource(counts), mask).mean)
    assert np.isfinite(patterns[0]).all()
    assert patterns[0][6].min() > 1
    np.testing.assert_array_equal(patterns[0], patterns[1])
    np.testing.assert_array_equal(patterns[0], patterns[2])


def test_an_empty_mask_and_empty_frames_are_refused():
    source = ArraySource(np.zeros((3, 8, 8), np.uint16))
    with pytest.raises(UserError, match="inverted"):
        start.mean_pattern(source, np.zeros((8, 8), bool))
    with pytest.raises(UserError, match="no counts"):
        start.mean_pattern(source)


def test_the_object_has_room_for_all_probes_and_fractions_stay():
    positions = np.array([[-3.25, 100.5], [7.75, 90.125], [0.0, 95.0]])
    place = start.place_object(positions, (16, 20), padding=5)
    np.testing.assert_array_equal(place.positions % 1, positions % 1)
    np.testing.assert_array_equal(place.positions + place.origin, positions)
    assert place.positions.min() >= 5
    last = np.ceil(place.positions) + np.array([16, 20])
    assert (last + 5 <= place.shape).all()
    assert (last.max(axis=0) + 7 > place.shape).all()
    with pytest.raises(UserError, match="position-unit"):
        start.place_object(positions * 1e6, (16, 20))
    with pytest.raises(UserError, match="finite"):
        start.place_object(positions * np.nan, (16, 20))


@pytest.mark.parametrize("exponential", [False, True])
def test_a_first_object_lets_light_through(exponential):
    array = start.first_object((30, 40), modes=2, slices=3, exponential=exponential, rough=True, seed=3)
    assert array.shape == (2, 3, 30, 40)
    assert array.dtype == np.complex64
    through = np.exp(1j * array) if exponential else array
    np.testing.assert_allclose(abs(through[0]), 1, rtol=1e-5)
    assert 0.01 < np.angle(through[0, 0]).std() < 0.1
    assert 0.02 < np.sqrt(np.mean(abs(through[1, 0]) ** 2)) < 0.1
    again = start.first_object((30, 40), modes=2, slices=3, exponential=exponential, rough=True, seed=3)
    np.testing.assert_array_equal(array, again)


def test_a_background_starts_above_zero_at_the_root_of_dark_counts():
    pattern = start.Pattern(np.full((8, 8), 10.0))
    assert (start.first_background(pattern, None) > 0).all()
    dark = np.zeros((8, 8))
    dark[4, 4], dark[0, 0] = 9.0, np.nan
    root = start.first_background(pattern, dark)
    assert root[4, 4] == 3
    assert np.isfinite(root).all()
    assert root.min() > 0


def test_parameters_by_name_and_shape():
    place = start.place_object(np.zeros((5, 2)), (24, 24))
    probe = start.probe_modes(_probe(), 2, 1e3)
    found = start.first_parameters(probe, place, start.first_object(place.shape), rank=2, scale=True, distance=0.1)
    assert found["variable_probe"].shape == (2, 2, 24, 24)
    assert found["probe_weights"].shape == (5, 2)
    assert not found["probe_weights"].any()
    assert np.abs(np.vdot(found["variable_probe"][0, 0], probe[0])) < 1e-2 * np.vdot(probe[0], probe[0]).real
    assert found["distance"].shape == ()
    assert (found["scale"] == 1).all()
    assert "background" not in found


@pytest.mark.parametrize("diameter", [0.0, 25.0])
def test_an_aperture_fits_the_probe(diameter):
    with pytest.raises(UserError, match="--aperture"):
        start.round_aperture((24, 24), diameter)


def test_an_aperture_has_its_area():
    assert start.round_aperture((32, 32), 20.0).sum().real == pytest.approx(np.pi * 100, rel=0.01)
