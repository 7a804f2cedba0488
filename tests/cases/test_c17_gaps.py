"""C17: what stands in gaps never matters; without a mask, gaps are found, masked and counted; saturation."""

import re

import h5py
import numpy as np
import pytest

from dtomo import ptycho
from dtomo.errors import UserError
from dtomo.io.ptycho import masks, open_ptycho

SIZE = 24
DETECTOR = "entry_1/instrument_1/detector_1"


@pytest.fixture(scope="module")
def measured():
    """Counts of a small scan with noise, and its positions."""
    random = np.random.default_rng(5)
    steps = np.stack(np.meshgrid(np.arange(5), np.arange(5), indexing="ij"), -1).reshape(-1, 2) * 3
    image = np.exp(1j * np.cos(np.arange(40) / 3)[:, None] * np.sin(np.arange(40) / 4))
    row = np.arange(SIZE) - SIZE // 2
    squared = row[:, None] ** 2 + row**2
    probe = np.exp(-squared / 30 + 0.05j * squared)
    probe *= np.sqrt(1e5 / (np.abs(probe) ** 2).sum())
    waves = probe * np.array([image[r : r + SIZE, c : c + SIZE] for r, c in steps])
    frames = np.abs(np.fft.fftshift(np.fft.fft2(waves, norm="ortho"), (1, 2))) ** 2
    return random.poisson(frames), steps


def stored(path, frames, steps, mask=None):
    """A CXI file whose pixels of the object are 1 nm."""
    with h5py.File(path, "w") as file:
        file[f"{DETECTOR}/data"] = frames
        file[f"{DETECTOR}/distance"], file[f"{DETECTOR}/x_pixel_size"] = 1.0, 1e-5
        file["entry_1/instrument_1/source_1/wavelength"] = 1e-9 * SIZE * 1e-5
        moves = np.zeros((len(steps), 3))
        moves[:, 1], moves[:, 0] = steps[:, 0] * 1e-9, steps[:, 1] * 1e-9
        file["entry_1/data_1/translation"] = moves
        if mask is not None:
            file[f"{DETECTOR}/mask"] = np.where(mask, 0, 1).astype(np.uint32)
    return path


def gaps():
    """Good pixels: without a row of modules' gaps and a dead pixel."""
    mask = np.ones((SIZE, SIZE), bool)
    mask[8:10] = mask[15, 3] = False
    return mask


@pytest.mark.parametrize(
    ("dtype", "values"),
    [(np.uint32, (0, 4294967295)), (np.int32, (0, -1)), (np.float32, (0, np.nan, np.inf, -1, 4294967295, 1e9))],
)
def test_what_stands_under_the_mask_changes_no_bit(tmp_path, measured, dtype, values):
    counts, steps = measured
    results = []
    for value in values:
        frames = counts.astype(dtype)
        frames[:, ~gaps()] = value
        path = stored(tmp_path / f"{value}.cxi", frames, steps, gaps())
        scan = open_ptycho(path)
        assert scan.warnings == ()
        np.testing.assert_array_equal(scan.mask, gaps())
        results.append(ptycho.reconstruct(ptycho.open(path), epochs=2))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].object, other.object)
        np.testing.assert_array_equal(results[0].probe, other.probe)
        np.testing.assert_array_equal(results[0].history, other.history)


@pytest.mark.parametrize(
    ("dtype", "value", "sentence"),
    [
        (np.uint32, 4294967295, "49 pixels of .* hold no counts"),
        (np.int32, 2147483647, "49 pixels of .* hold no counts"),
        (np.float32, np.nan, "49 pixels of .* hold no counts"),
        (np.float32, np.inf, "49 pixels of .* hold no counts"),
        (np.float32, 4294967295, "49 pixels of .* hold no counts"),
        (np.int32, -1, "49 pixels of .* never change"),
        (np.float64, -1, "49 pixels of .* never change"),
        (np.uint16, 65535, "49 pixels of .* never change"),
    ],
)
def test_without_a_mask_gaps_are_found_and_counted(tmp_path, measured, dtype, value, sentence):
    counts, steps = measured
    frames = counts.astype(dtype)
    frames[:, ~gaps()] = value
    scan = open_ptycho(stored(tmp_path / "scan.cxi", frames, steps))
    np.testing.assert_array_equal(scan.mask, gaps())
    assert len(scan.warnings) == 1
    np.testing.assert_array_equal(scan.read(), np.where(gaps(), frames, 0))
    assert re.search(sentence, scan.warnings[0])
    assert np.isfinite(ptycho.reconstruct(ptycho.open(tmp_path / "scan.cxi"), epochs=1).object).all()


def test_a_gap_beside_the_mask_of_the_file_is_found_too(tmp_path, measured):
    counts, steps = measured
    frames = counts.astype(np.float32)
    frames[3, 20, 20] = np.nan
    scan = open_ptycho(stored(tmp_path / "scan.cxi", frames, steps, gaps()))
    assert np.argwhere(gaps() & ~scan.mask).tolist() == [[20, 20]]


def test_counts_below_zero_are_taken_as_zero(tmp_path, measured):
    counts, steps = measured
    frames = counts.astype(np.float32)
    frames[2, 1, 1], frames[7, 3, 5] = -0.25, -3
    scan = open_ptycho(stored(tmp_path / "scan.cxi", frames, steps))
    assert scan.mask is None
    assert "2 counts of" in scan.warnings[0]
    np.testing.assert_array_equal(scan.read(), np.maximum(frames, 0))


def test_saturation_is_seen_and_can_be_said(tmp_path, measured):
    counts, steps = measured
    limit = int(np.sort(counts, axis=None)[-200])
    path = stored(tmp_path / "scan.cxi", np.minimum(counts, limit).astype(np.uint16), steps)
    scan = open_ptycho(path)
    assert scan.saturation == limit
    assert any(f"exactly {limit} counts" in note for note in scan.warnings)
    assert open_ptycho(path, saturation=0).saturation is None
    assert open_ptycho(path, saturation=999).saturation == 999
    assert open_ptycho(stored(tmp_path / "whole.cxi", counts.astype(np.uint16), steps)).saturation is None


def test_few_counts_are_no_saturation(tmp_path, measured):
    _, steps = measured
    frames = np.random.default_rng(0).poisson(1.0, (25, SIZE, SIZE)).astype(np.uint16)
    scan = open_ptycho(stored(tmp_path / "scan.cxi", np.minimum(frames, 3), steps))
    assert (scan.saturation, scan.mask, scan.warnings) == (None, None, ())


def test_a_bad_frame_that_was_not_looked_at_is_refused_when_it_is_read(tmp_path, measured, monkeypatch):
    counts, steps = measured
    frames = counts.astype(np.float32)
    frames[7, 4, 4] = np.nan
    monkeypatch.setattr(masks, "MOST_BYTES", 3 * frames[0].nbytes)
    path = stored(tmp_path / "scan.cxi", frames, steps)
    scan = open_ptycho(path)
    assert scan.mask is None
    assert scan.read([6, 8]).shape == (2, SIZE, SIZE)
    with pytest.raises(UserError, match=r"frame 7 of .* holds no counts .*: 1 in the frames read"):
        scan.read([5, 7, 9])
    assert np.isfinite(open_ptycho(path, exclude=[7]).read()).all()
