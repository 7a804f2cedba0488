"""Which way round positions lie: told from the frames, on synthetic scans and on a measured one."""

import bz2
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.io.ptycho import open_ptycho
from dtomo.io.sources import ArraySource
from dtomo.ptycho.orientation import AS_THEY_ARE, WAYS, Way, check
from dtomo.ptycho.scans import check_orientation
from dtomo.ptycho.setup import Data
from dtomo.settings import PtychoSettings

STAR = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "siemens_star_ptycho"


@pytest.fixture(scope="module")
def small():
    """Far-field frames of a random object, noise of 1e5 photons; positions, and the probe."""
    random = np.random.default_rng(1)
    size, side = 32, 7
    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), -1).reshape(-1, 2) * 4.0
    positions = np.rint(grid + random.uniform(-1, 1, grid.shape)) + 1
    extent = int(positions.max()) + size + 1
    frequency = np.fft.fftfreq(extent)
    low = np.exp(-60 * (frequency[:, None] ** 2 + frequency**2))
    smooth = np.fft.ifft2(np.fft.fft2(random.standard_normal((2, extent, extent))) * low).real
    smooth /= smooth.std((1, 2), keepdims=True)
    image = (0.8 + 0.1 * np.tanh(smooth[0])) * np.exp(0.5j * smooth[1])
    row = np.arange(size) - size // 2
    squared = row[:, None] ** 2 + row**2
    probe = np.exp(-squared / 50 + 0.02j * squared)
    probe *= np.sqrt(1e5 / (np.abs(probe) ** 2).sum())
    views = [image[r : r + size, c : c + size] for r, c in positions.astype(int)]
    exact = np.abs(np.fft.fft2(probe * np.array(views), norm="ortho")) ** 2
    frames = np.fft.fftshift(random.poisson(exact).astype(np.float32), (-2, -1))
    return ArraySource(frames), positions, probe.astype(np.complex64)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.options or "as they are")
def test_each_way_round_is_found_again(small, way):
    source, positions, _ = small
    found = check(source, way.of(positions))
    assert found.clear
    assert found.margin > 1.3
    assert found.best.after(way) in (AS_THEY_ARE, AS_THEY_ARE.twin)
    assert found.right == (way == AS_THEY_ARE)
    assert not found.twins


def test_without_a_probe_twins_fit_the_same(small):
    source, positions, _ = small
    assert check(source, -positions).right
    one, other = check(source, positions), check(source, -positions)
    assert one.residuals[0] == pytest.approx(other.residuals[0], rel=0.02)


def test_a_probe_that_is_known_tells_twins_apart(small):
    source, positions, probe = small
    right, wrong = check(source, positions, probe=probe), check(source, -positions, probe=probe)
    assert (right.right, right.twins) == (True, True)
    assert (wrong.right, wrong.twins) == (False, True)
    assert wrong.best == AS_THEY_ARE.twin
    assert "--flip-rows --flip-columns" in str(wrong)


@pytest.mark.parametrize(("flip", "way"), [("rows", Way(flip_rows=True)), ("transpose", Way(swap_axes=True))])
def test_a_detector_turned_over_asks_for_positions_turned_over(small, flip, way):
    source, positions, _ = small
    frames = np.swapaxes(source.array, 1, 2) if flip == "transpose" else np.roll(source.array[:, ::-1], 1, 1)
    found = check(ArraySource(frames), positions)
    assert found.clear
    assert found.best in (way, way.twin)


def test_ways_are_put_together_as_positions_are(small):
    _, positions, _ = small
    every = [Way(*flags) for flags in product((False, True), repeat=3)]
    for first, second in product(every, every):
        np.testing.assert_array_equal(second.after(first).of(positions), second.of(first.of(positions)))


def test_masked_pixels_do_not_matter(small):
    source, positions, _ = small
    mask = np.ones(source.shape[1:], bool)
    mask[10:13] = mask[:, 20] = False
    marked = np.where(mask, source.array, np.nan)
    one, other = check(source, positions, mask=mask), check(ArraySource(marked), positions, mask=mask)
    assert one.residuals == other.residuals
    assert one.right


def test_frames_without_an_object_tell_nothing(small):
    _, positions, probe = small
    flat = np.fft.fftshift(np.abs(np.fft.fft2(probe, norm="ortho")) ** 2)
    found = check(ArraySource(np.repeat(flat[None], len(positions), 0).astype(np.float32)), positions)
    assert found.right is None
    assert "cannot be told" in str(found)


def test_lengths_of_pixels_that_are_not_square(small):
    source, positions, _ = small
    stretched = Way(swap_axes=True).of(positions * (1.0, 2.0)) / (1.0, 2.0)  # swapped as lengths, then as pixels again
    found = check(source, stretched, pixel_size=(1.0, 2.0))
    assert found.clear
    assert found.best in (Way(swap_axes=True), Way(swap_axes=True).twin)


def test_a_run_says_which_options_to_give(small):
    source, positions, _ = small
    settings = PtychoSettings(scan="scan.cxi", output="out.h5", swap_axes=True)
    with pytest.raises(UserError, match="give none of --swap-axes"):
        check_orientation(Data(source, Way(swap_axes=True).of(positions)), settings)
    both = Way(swap_axes=True, flip_rows=True)
    with pytest.raises(UserError, match="give --swap-axes --flip-rows, or leave"):
        check_orientation(Data(source, Way(flip_columns=True).of(positions)), settings)
    assert "as they are" in check_orientation(Data(source, positions), settings)
    with pytest.raises(UserError, match="for the far field"):
        check_orientation(Data(source, both.of(positions), near_field=True), settings)


def test_too_little_to_tell(small):
    source, positions, _ = small
    with pytest.raises(UserError, match="from 9 or more frames"):
        check(ArraySource(source.array[:4]), positions[:4])
    with pytest.raises(UserError, match="all within a pixel"):
        check(source, positions * 1e-6)


@pytest.mark.skipif(not STAR.exists(), reason="the measured data lie beside the project, not in it")
def test_the_measured_star_lies_as_its_file_says(tmp_path):
    path = tmp_path / "star.npz"
    path.write_bytes(bz2.decompress((STAR / "siemens-star-small.npz.bz2").read_bytes()))
    scan = open_ptycho(path)
    assert scan.warnings == ()
    found = check(scan.frames, scan.positions_in_pixels(), probe=scan.probe, frames=40)
    print(found)
    assert found.right
    assert found.residuals[0] < 0.03
    assert found.margin > 1.4
