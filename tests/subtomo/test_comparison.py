"""FSC of halves: against a closed form, honest with noise and masks; frames of halves that drift."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from scipy.spatial.transform import Rotation

from dtomo.algorithms.resolution import fourier_correlation, resolution
from dtomo.errors import UserError
from dtomo.geometry.wedge import Wedge
from dtomo.kernels.rotation import rotate
from dtomo.subtomo.averaging import average, half_sums
from dtomo.subtomo.comparison import half_curve, randomized_beyond
from dtomo.subtomo.filters import low_pass
from dtomo.subtomo.fourier import forward, inverse, radii
from dtomo.subtomo.frames import frame_between

SIZE = 32


def noise(seed, size=SIZE):
    return np.random.default_rng(seed).standard_normal((size,) * 3, dtype=np.float32)


def ball(size, radius, edge=0.0):
    steps = np.square(np.arange(size) - size // 2)
    distance = np.sqrt(steps[:, None, None] + steps[:, None] + steps)
    return np.clip((radius - distance) / max(edge, 1e-6), 0, 1).astype(np.float32)


def halves_of(signal_to_noise, seed=0):
    """Two boxes of one signal, its ratio to the noise of each by radius."""
    signal, amplitude = noise(seed), np.sqrt(signal_to_noise(radii(SIZE)))
    return [inverse(forward(signal) * amplitude + forward(noise([seed, k])), SIZE) for k in (1, 2)]


def test_the_curve_is_that_of_the_closed_form():
    found = half_curve(*halves_of(lambda r: 10 * np.exp(-((r / 5) ** 2))), pixel_size=4.0)
    shells = np.arange(1, SIZE // 2 + 1)
    ratio = 10 * np.exp(-((shells / 5) ** 2))
    spread = 1 / np.sqrt(found.unmasked.count / 2)
    assert np.all(np.abs(found.unmasked.correlation - ratio / (1 + ratio)) < 4 * spread + 0.01)
    assert found.frequency[0] == pytest.approx(1 / (SIZE * 4.0))
    # SNR / (SNR + 1) = 0.143
    radius = 5 * np.sqrt(np.log(10 / (0.143 / 0.857)))
    assert found.resolution.period == pytest.approx(SIZE * 4.0 / radius, rel=0.08)
    assert found.resolution.threshold == "0.143"
    assert found.first_crossing.frequency <= found.resolution.frequency
    assert found.best is found.unmasked
    assert set(found.columns()) == {"radius", "frequency", "unmasked"}


def test_the_curves_are_those_of_the_one_implementation():
    one, two = halves_of(lambda r: 10 * np.exp(-((r / 5) ** 2)))
    window = ball(SIZE, 12, 4)
    found = half_curve(one, two, window, 2.0)
    expected = fourier_correlation(one, two, window=window, pixel_size=2.0)
    assert np.array_equal(found.masked.correlation, expected.correlation)
    assert set(found.columns()) == {"radius", "frequency", "unmasked", "masked", "randomized", "corrected"}
    assert np.array_equal(half_curve(one, two, window, 2.0).best.correlation, found.best.correlation)


def test_a_dip_is_not_the_resolution_but_is_told():
    def ratio(radius):
        return np.where(abs(radius - 6) < 0.5, 0.0, 5.0 * (radius < 11.5))

    found = half_curve(*halves_of(ratio))
    assert 5 < found.first_crossing.frequency * SIZE < 6
    assert 11 < found.resolution.frequency * SIZE < 12.1
    assert 11 < found.significant.frequency * SIZE < 12.5


def test_random_phases_keep_amplitudes_and_what_lies_below():
    volume = noise(3)
    changed = randomized_beyond(volume, 6, 1)
    before, after, radius = forward(volume), forward(changed), radii(SIZE)
    assert changed.dtype == np.float32
    assert np.abs(after - before)[radius < 5.5].max() < 1e-2
    assert np.abs(np.abs(after) - np.abs(before))[radius >= 5.5].max() < 1e-2
    other = forward(randomized_beyond(volume, 6, 2))
    ring = radius > 6
    for one in (after, other):
        turns = (one * before.conj())[ring] / np.maximum(np.abs(before[ring]) ** 2, 1e-9)
        assert abs(turns.mean()) < 0.05


def test_a_mask_that_correlates_by_itself_is_seen_through():
    """Halves share low frequencies alone; a hard mask carries these to all others."""
    signal = 25 * forward(noise(0)) * (radii(SIZE) < 3.5)
    one, two = (inverse(signal + forward(noise([0, k])), SIZE) for k in (1, 2))
    window = (gaussian_filter(noise(9), 2.0) > 0.1).astype(np.float32) * ball(SIZE, 13)
    found = half_curve(one, two, window)
    beyond = slice(5, 14)
    assert np.abs(found.unmasked.correlation[beyond]).max() < 0.12
    assert found.masked.correlation[beyond].mean() > 0.4
    assert abs(found.corrected.correlation[beyond].mean()) < 0.06
    assert np.abs(found.corrected.correlation[beyond]).max() < 0.14
    assert found.random_from == 4
    assert found.resolution.frequency * SIZE < 6.5


def test_a_signal_under_a_mask_survives_the_correction():
    window = ball(SIZE, 9, 3)
    signal = ball(SIZE, 8, 2) * gaussian_filter(noise(5), 1.0)
    signal *= 0.25 / signal.std()
    one, two = (signal + noise([5, k]) for k in (1, 2))
    found = half_curve(one, two, window)
    assert found.resolution.frequency > 0.3
    assert found.first_crossing.frequency <= found.resolution.frequency
    assert found.corrected.correlation[2:6].mean() > found.unmasked.correlation[2:6].mean() + 0.1
    assert found.corrected.correlation[2:6].mean() == pytest.approx(found.masked.correlation[2:6].mean(), abs=0.1)


def averages_of_noise(rotations, shifts, count, seed):
    wedge = Wedge((-60, 60))
    halves = np.arange(count) % 2 + 1
    boxes = (noise([seed, k], 24) for k in range(count))
    sums = half_sums(boxes, rotations, shifts, [wedge] * count, halves, size=24)
    return average(sums["1"]), average(sums["2"])


def test_noise_resolves_next_to_nothing_however_often_it_is_drawn():
    """0.143 alone would be reached by chance: by one in twenty at radius 6, under this mask."""
    size, window = 24, ball(24, 8, 3)
    random = np.random.default_rng(0)
    draws = random.standard_normal((60, 2, size, size, size), dtype=np.float32)
    found = [half_curve(one, two, window) for one, two in draws]
    assert max(curve.resolution.frequency * size for curve in found) < 4
    assert np.median([curve.resolution.frequency for curve in found]) == 0
    crossings = [resolution(curve.best, 0.143).frequency * size for curve in found]
    assert max(crossings) > 5


@pytest.mark.parametrize("seed", [0, 1])
def test_averages_of_noise_resolve_nothing(seed):
    count = 24
    rotations = Rotation.random(count, random_state=seed).as_matrix()
    one, two = averages_of_noise(rotations, np.zeros((count, 3)), count, seed)
    for window in (None, ball(24, 9, 3), (ball(24, 9) * (gaussian_filter(noise(9, 24), 1.5) > 0)).astype(np.float32)):
        found = half_curve(one, two, window)
        assert found.resolution.frequency * 24 < 5
        assert np.abs(found.best.correlation[5:11]).mean() < 0.1


def test_noise_aligned_to_a_reference_resolves_no_more_than_the_reference():
    """Model bias: each box of noise is put where it looks most like a low-passed reference; both halves share that."""
    size, count, tries, limit = 24, 40, 24, 4.0
    reference = low_pass(gaussian_filter(noise(7, size), 1.0), size / limit, 1.0)
    inside = ball(size, 10, 2)
    trials = Rotation.random(tries, random_state=3).as_matrix()
    templates = rotate(reference * inside, trials, order=1, center=(size // 2,) * 3).reshape(tries, -1)
    boxes = [noise([8, k], size) for k in range(count)]
    best = [int(np.argmax(templates @ box.ravel())) for box in boxes]
    halves = np.arange(count) % 2 + 1
    sums = half_sums(boxes, trials[best], np.zeros((count, 3)), [None] * count, halves, size=size)
    found = half_curve(average(sums["1"]), average(sums["2"]), inside)
    assert found.best.correlation[:3].mean() > 0.2  # the reference, found in noise
    assert found.resolution.frequency * size < limit + 1
    assert np.abs(found.best.correlation[5:11]).max() < 0.143


def test_without_a_mask_the_resolution_of_identical_volumes_is_that_of_the_pixels():
    volume = noise(1, 16)
    found = half_curve(volume, volume, ball(16, 7, 2))
    assert not found.resolution.crossed
    assert found.random_from is None
    assert found.corrected is found.masked
    assert found.resolution.frequency == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("one", "two", "window", "message"),
    [
        (noise(0, 8), noise(0, 9), None, "one shape"),
        (noise(0, 8), noise(0, 8), ball(9, 3), "one shape"),
        (noise(0, 8), noise(0, 8), np.zeros((8, 8, 8)), "some that are not 0"),
        (noise(0, 8)[:6], noise(0, 8)[:6], None, "cubic box"),
        (noise(0, 8), np.full((8, 8, 8), np.inf, np.float32), None, "finite"),
    ],
)
def test_refused(one, two, window, message):
    with pytest.raises(UserError, match=message):
        half_curve(one, two, window)


def drifted(size, rotation, shift, seed=2):
    """A smooth asymmetric thing, and the same in another frame, with noise of its own."""
    thing = gaussian_filter(noise(seed, size), 1.5) * ball(size, 0.35 * size, 3)
    thing /= thing.std()
    center = (size // 2,) * 3
    other = rotate(thing, rotation, shift, order=3, center=center)
    return thing + 0.5 * noise(20, size), other + 0.5 * noise(21, size)


@pytest.mark.parametrize(("angle", "shift"), [(0.0, (0.0, 0.0, 0.0)), (4.0, (0.6, -0.4, 0.3)), (9.0, (-1.0, 0.8, 1.2))])
def test_frames_that_drifted_are_found_and_told(angle, shift):
    axis = np.array([0.48, -0.6, 0.64])
    rotation = Rotation.from_rotvec(np.deg2rad(angle) * axis).as_matrix()
    one, two = drifted(SIZE, rotation, np.array(shift))
    frame = frame_between(one, two, ball(SIZE, 13, 3), radius=7)
    error = Rotation.from_matrix(frame.rotation @ rotation.T).magnitude()
    assert np.rad2deg(error) < 0.5
    assert np.abs(frame.shift - shift).max() < 0.1
    assert frame.angle == pytest.approx(angle, abs=0.5)
    assert frame.distance == pytest.approx(np.linalg.norm(shift), abs=0.15)
    assert frame.after >= frame.before
    if angle:
        apart = half_curve(one, two, ball(SIZE, 13, 3))
        together = half_curve(one, frame.brought(two), ball(SIZE, 13, 3))
        assert together.best.correlation[3:8].mean() > apart.best.correlation[3:8].mean() + 0.1


def test_poses_are_told_in_the_other_frame():
    """A particle of the second half, averaged by its poses in the first frame, comes out in the first frame."""
    rotation, shift = Rotation.from_rotvec([0.1, -0.05, 0.2]).as_matrix(), np.array([0.5, -1.0, 0.25])
    one, two = drifted(SIZE, rotation, shift)
    frame = frame_between(one, two, radius=7)
    rotations, shifts = Rotation.random(1, random_state=2).as_matrix(), np.array([[1.0, 0.5, -0.5]])
    center = (SIZE // 2,) * 3
    particle = rotate(two, rotations[0], shifts[0], order=3, center=center)
    turns, moves = frame.poses(rotations, shifts)
    sums = half_sums([particle], turns, moves, [None], [1], size=SIZE)["1"]
    inside = ball(SIZE, 11, 2).ravel()
    found, expected = average(sums).ravel() * inside, frame.brought(two).ravel() * inside
    assert np.corrcoef(found, expected)[0, 1] > 0.9
    smooth = (gaussian_filter(volume, 1.0).ravel() * inside for volume in (average(sums), one))
    assert np.corrcoef(*smooth)[0, 1] > 0.85


def test_frames_of_other_shapes_are_refused():
    with pytest.raises(UserError, match="one shape"):
        frame_between(noise(0, 8), noise(0, 10))
    with pytest.raises(UserError, match="not empty"):
        frame_between(noise(0, 8), noise(1, 8), np.zeros((8, 8, 8)))
