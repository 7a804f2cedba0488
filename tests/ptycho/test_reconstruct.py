"""`dtomo.ptycho.reconstruct`: arrays in, a result out."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from dtomo.errors import UserError
from dtomo.ptycho.arrays import reconstruct
from dtomo.ptycho.model import PtychoModel

SIZE = 24
RATES = {"rates": {"object": 0.05, "probe": 0.05}}
STILL = {"rates": {"object": 0.0, "probe": 0.0}}


@pytest.fixture(scope="module")
def scan():
    random = np.random.default_rng(4)
    row, column = np.mgrid[:SIZE, :SIZE] - SIZE / 2
    probe = np.exp(-(row**2 + column**2) / (2 * 4.0**2) + 0.03j * (row**2 + column**2))
    probe *= np.sqrt(1e5 / np.sum(abs(probe) ** 2))
    image = np.exp(1j * gaussian_filter(random.standard_normal((56, 56)), 2) * 3)
    positions = np.array([(r, c) for r in range(0, 32, 4) for c in range(0, 32, 4)]) + random.random((64, 2)) * 0.9
    parameters = {"object": image[None, None], "probe": probe[None], "positions": positions}
    model = PtychoModel((SIZE, SIZE))
    counts = np.fft.fftshift(model.intensities(parameters, np.arange(64)), (-2, -1))
    return np.asarray(random.poisson(counts), np.uint16), positions


def test_the_loss_falls_and_the_result_is_whole(scan):
    frames, positions = scan
    seen = []
    result = reconstruct(
        frames, positions, engine="adam", epochs=20, options=RATES, on_epoch=lambda report: seen.append(report.epoch)
    )
    assert result.history[-1] < 0.15 * result.history[0]
    assert seen == list(range(1, 21))
    np.testing.assert_allclose(result.positions + result.origin, positions, atol=1e-9)
    np.testing.assert_allclose(result.start_positions, result.positions, atol=1e-9)
    assert result.object.dtype == np.complex64
    assert float(np.sum(abs(result.probe) ** 2)) == pytest.approx(frames.sum() / len(frames), rel=0.05)


def test_values_under_the_mask_do_not_matter_to_a_bit(scan):
    frames, positions = scan
    mask = np.ones((SIZE, SIZE), bool)
    mask[4:6], mask[:, 17] = False, False
    results = []
    for value in (0, 65535):
        changed = frames.copy()
        changed[:, ~mask] = value
        results.append(reconstruct(changed, positions, engine="adam", epochs=2, mask=mask, refine="background"))
    np.testing.assert_array_equal(results[0].object, results[1].object)
    np.testing.assert_array_equal(results[0].background, results[1].background)


def test_half_scans_agree_at_low_frequencies_more_than_at_high_ones(scan):
    result = reconstruct(*scan, engine="adam", epochs=15, options=RATES, frc=True)
    assert result.frc is not None
    assert result.frc.correlation[:3].mean() > 0.5 > abs(result.frc.correlation[-4:].mean())


def test_a_probe_of_ones_own_is_scaled_to_the_photons(scan):
    frames, positions = scan
    probe = np.ones((SIZE, SIZE), complex)
    result = reconstruct(frames, positions, engine="adam", epochs=1, probe=probe, modes=2, options=STILL)
    assert float(np.sum(abs(result.probe) ** 2)) == pytest.approx(frames.sum() / len(frames), rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"positions": None}, "positions"),
        ({"positions": np.zeros((3, 2))}, r"\(64, 2\)"),
        ({"mask": np.ones((SIZE, SIZE))}, "bool"),
        ({"mask": np.ones((5, 5), bool)}, "shape of a frame"),
        ({"workers": 2}, "client"),
        ({"engine": "adam", "options": {"speed": 3}}, "adam has no 'speed'|adam has no speed"),
        ({"probe": "file"}, "has no probe"),
        ({"probe": "nowhere.npy"}, "cannot be read"),
        ({"defocus": 3.0}, "--energy"),
        ({"positions": "somewhere"}, "real numbers; got"),
        ({"mask": np.arange(SIZE**2).reshape(SIZE, SIZE) < 3}, "leaves 0.521 % of the pixels; is it inverted"),
        ({"mask": np.ones((1, SIZE, SIZE), bool)}, "shape of a frame"),
        ({"dark": np.ones((SIZE, SIZE)) * 1j}, "the dark holds numbers; got complex128"),
        ({"dark": np.ones((64, SIZE, SIZE))}, "shape of a frame"),
        ({"probe": np.ones((1, 1, SIZE, SIZE))}, "or modes of it"),
        ({"on_epoch": 3}, "on_epoch is called"),
        ({"frame_memory": "1GB"}, "whole number of bytes"),
        ({"crop": 8}, "give it to dtomo.ptycho.open"),
        ({"saturation": 9.0}, "give it to dtomo.ptycho.open"),
        ({"near_field": True}, "give it to dtomo.ptycho.open"),
    ],
)
def test_bad_input_is_one_sentence(scan, changes, part):
    frames, positions = scan
    with pytest.raises(UserError, match=part):
        reconstruct(frames, **{"positions": positions, "engine": "adam", "epochs": 1, **changes})


def test_a_loss_that_is_not_finite_stops_the_run(scan):
    from dtomo.errors import StoppedError

    frames, positions = scan
    bad = frames.astype(np.float32)
    bad[40, 3, 3] = np.nan  # not among the frames of the first guess only if there were more than it takes
    with pytest.raises((StoppedError, UserError), match="not finite"):
        reconstruct(bad, positions, engine="adam", epochs=2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda frames, positions: (frames.astype(np.complex64), positions), "real numbers; got complex64"),
        (lambda frames, positions: (frames, positions + 0j), "real numbers"),
        (lambda frames, positions: (frames.astype(np.int32) - 1, positions), "counts below 0"),
    ],
)
def test_frames_that_are_no_counts_are_refused(scan, change, words):
    with pytest.raises(UserError, match=words):
        reconstruct(*change(*scan), epochs=1)


def test_counts_below_zero_under_the_mask_do_not_matter(scan):
    frames, positions = scan[0].astype(np.int32), scan[1]
    good = np.ones(frames.shape[1:], bool)
    good[3, 4] = False
    runs = []
    for value in (0, -1):
        frames[:, 3, 4] = value
        runs.append(reconstruct(frames, positions, mask=good, epochs=2, defocus=0.0))
    np.testing.assert_array_equal(runs[0].object, runs[1].object)
