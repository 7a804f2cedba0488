"""Weighted averages: rotations in them, weights, symmetry, missing particles, the same bits however they are spread."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from scipy.spatial.transform import Rotation

from dtomo.distributed.sums import partial_sums, sum_of_parts, tree_sum
from dtomo.errors import UserError
from dtomo.geometry.wedge import Wedge
from dtomo.kernels.rotation import rotate
from dtomo.subtomo.averaging import average, half_sums, particle_sums, symmetrized
from dtomo.subtomo.fourier import by_radius, forward, inverse, radii, shell_means, turned, turned_weights
from dtomo.threads import using_threads

WEDGE = Wedge((-60.0, 60.0))


def blobs(size, places, width=1.0):
    """A sum of Gaussians, asymmetric, with as much above as below 0."""
    steps = np.arange(size) - size // 2
    heights = np.random.default_rng(5).standard_normal(len(places))
    lines = [np.exp(-((steps - places[:, k, None]) ** 2) / (2 * width**2)) for k in range(3)]
    return np.einsum("p,pz,py,px->zyx", heights - heights.mean(), lines[2], lines[1], lines[0]).astype(np.float32)


def sum_particles(particles, rotations, shifts, weights, **options):
    """Sums over all particles, which are in one half."""
    return half_sums(particles, rotations, shifts, weights, np.ones(len(rotations), int), **options)["1"]


def places(size, count=300):
    found = np.random.default_rng(1).uniform(-0.3 * size, 0.3 * size, (count, 3))
    return found[np.linalg.norm(found, axis=1) < 0.3 * size]


def agreement(one, two, size, first, last):
    """Correlation between two radii of Fourier space, parts of the Nyquist frequency."""
    ring = (radii(size) >= first * size / 2) & (radii(size) < last * size / 2)
    a, b = (forward(np.asarray(volume))[ring] for volume in (one, two))
    return float((a * b.conj()).real.sum() / np.sqrt((abs(a) ** 2).sum() * (abs(b) ** 2).sum()))


def poses(count, seed=0, spread=2.0):
    rng = np.random.default_rng(seed)
    return Rotation.random(count, random_state=seed).as_matrix(), rng.uniform(-spread, spread, (count, 3))


def moved(reference_places, size, rotations, shifts):
    return [blobs(size, reference_places @ r.T + s) for r, s in zip(rotations, shifts)]


@pytest.mark.parametrize("size", [32, 31])
def test_a_particle_is_turned_back_onto_its_reference(size):
    spots, (rotations, shifts) = places(size), poses(1)
    truth = forward(blobs(size, spots))
    particle = moved(spots, size, rotations, shifts)[0]
    found = turned(forward(particle), rotations[0], shifts[0])
    back = rotate(
        particle, rotations[0].T, -rotations[0].T @ shifts[0], order=3, center=(size // 2,) * 3
    )  # what a single cubic interpolation gives
    for part, most in ((0.25, 0.01), (0.5, 0.01), (0.67, 0.012), (0.8, 0.04)):
        ring = abs(radii(size) - part * size / 2) < 1
        scale = np.linalg.norm(truth[ring])
        assert np.linalg.norm((found - truth)[ring]) < most * scale
    outer = abs(radii(size) - 0.67 * size / 2) < 1
    plain = np.linalg.norm((forward(back) - truth)[outer])
    assert np.linalg.norm((found - truth)[outer]) < 0.3 * plain


def test_finer_grids_come_closer():
    size, spots, (rotations, shifts) = 24, places(24), poses(1, 3)
    truth = forward(blobs(size, spots))
    particle = forward(moved(spots, size, rotations, shifts)[0])
    ring = abs(radii(size) - 0.67 * size / 2) < 1
    errors = [
        np.linalg.norm((turned(particle, rotations[0], shifts[0], fine) - truth)[ring]) / np.linalg.norm(truth[ring])
        for fine in (1.0, 1.5, 2.0)
    ]
    assert errors[0] > 3 * errors[1] > 3 * 0.7 * errors[2]


@pytest.mark.parametrize("size", [24, 23])
def test_weights_are_turned_like_their_particle(size):
    rotation = poses(1, 4)[0][0]
    axis = np.array([0.3, -0.5, 0.81])

    def smooth(matrix):
        """Even in k: what a weight at R k is."""
        full, half = np.fft.fftfreq(size, 1 / size), np.arange(size // 2 + 1)
        k = np.stack(np.broadcast_arrays(half, full[:, None], full[:, None, None]), -1) @ (matrix.T @ axis)
        return (1 + np.cos(2 * np.pi * k / size * 1.2)).astype(np.float32) / 2

    found = turned_weights(smooth(np.eye(3)), rotation)
    inside = radii(size) < size / 2 - 1
    assert np.abs(found - smooth(rotation))[inside].max() < 0.01
    assert not found[radii(size) >= size / 2].any()
    assert np.abs(turned_weights(smooth(np.eye(3)), np.eye(3)) - smooth(np.eye(3)))[inside].max() < 1e-6


def test_the_weights_of_a_wedge_are_those_of_its_volume_turned():
    size, rotation = 32, poses(1, 6)[0][0]
    sums = particle_sums(np.ones((size,) * 3, np.float32), rotation, weights=WEDGE)
    turned_volume = turned_weights(WEDGE.weights((size,) * 3), rotation)
    inside = (radii(size) < size / 2 - 1) & (radii(size) > 4)
    assert np.corrcoef(sums["weights"][inside], turned_volume[inside])[0, 1] > 0.93
    other = turned_weights(WEDGE.weights((size,) * 3), rotation.T)
    assert np.corrcoef(sums["weights"][inside], other[inside])[0, 1] < 0.7


def test_the_average_at_true_orientations_is_the_truth():
    size, count, spots = 24, 40, places(24)
    truth = blobs(size, spots)
    rotations, shifts = poses(count)
    noise = np.random.default_rng(2)
    level = truth.std() / np.sqrt(0.1)
    present = WEDGE.weights((size,) * 3)
    particles = [
        inverse(present * forward(one + level * noise.standard_normal(one.shape, dtype=np.float32)), size)
        for one in moved(spots, size, rotations, shifts)
    ]
    sums = sum_particles(particles, rotations, shifts, [WEDGE] * count, size=size)
    found = average(sums)
    assert found.dtype == np.float32
    assert sums["count"] == count
    assert agreement(found, truth, size, 0, 0.3) > 0.98
    assert agreement(found, truth, size, 0.3, 0.7) > 0.85
    wrong = average(sum_particles(particles, rotations.transpose(0, 2, 1), shifts, [WEDGE] * count, size=size))
    assert agreement(wrong, truth, size, 0, 0.3) < 0.7


def test_amplitudes_are_those_of_the_truth_where_all_directions_are_covered():
    size, count, spots = 24, 30, places(24)
    rotations, shifts = poses(count, 8, 1.0)
    present = WEDGE.weights((size,) * 3)
    particles = [inverse(present * forward(one), size) for one in moved(spots, size, rotations, shifts)]
    found = average(sum_particles(particles, rotations, shifts, [WEDGE] * count, size=size))
    truth, inside = forward(blobs(size, spots)), radii(size) < 0.7 * size / 2
    difference = np.linalg.norm((forward(found) - truth)[inside]) / np.linalg.norm(truth[inside])
    assert difference < 0.08  # a wedge that is left out of the sum of weights makes it a third


def test_ctf_is_divided_out_once():
    size, count, spots = 24, 12, places(24)
    rotations, shifts = poses(count, 9, 1.0)
    radius = radii(size)
    ctfs = [np.cos(0.25 * radius + phase).astype(np.float32) for phase in np.linspace(0, 3, count)]
    wedge = WEDGE.weights((size,) * 3)
    seen = [ctf**2 * wedge for ctf in ctfs]
    particles = [
        inverse(square * forward(one), size) for square, one in zip(seen, moved(spots, size, rotations, shifts))
    ]
    found = forward(average(sum_particles(particles, rotations, shifts, seen, size=size), edge=0.0))
    truth, inside = forward(blobs(size, spots)), radius < 0.7 * size / 2
    assert np.linalg.norm((found - truth)[inside]) < 0.09 * np.linalg.norm(truth[inside])


def radial_edge(size):
    """Nothing at the faces of the box, where an interpolation finds no neighbours."""
    steps = np.abs(np.arange(size) - size // 2)
    edge = np.clip((size / 2 - 1 - steps) / 3, 0, 1)
    return (edge[:, None, None] * edge[:, None] * edge).astype(np.float32)


def test_one_particle_is_its_own_average_where_it_was_seen():
    size = 20
    particle = gaussian_filter(np.random.default_rng(3).standard_normal((size,) * 3), 1.2).astype(np.float32)
    particle *= radial_edge(size)
    found = forward(average(particle_sums(particle, np.eye(3), weights=WEDGE), edge=0.0))
    kept = (WEDGE.weights((size,) * 3) == 1) & (radii(size) < 0.6 * size / 2)
    expected = forward(particle)
    assert np.linalg.norm((found - expected)[kept]) < 0.03 * np.linalg.norm(expected[kept])
    assert not np.abs(forward(average(particle_sums(particle, np.eye(3)))))[radii(size) >= size / 2].max() > 1e-3


def test_missing_particles_are_not_counted():
    size, spots = 16, places(16)
    rotations, shifts = poses(4, 1, 0.5)
    there = moved(spots, size, rotations, shifts)
    some = sum_particles([there[0], None, there[2], None], rotations, shifts, [None] * 4, size=size)
    only = sum_particles([there[0], there[2]], rotations[::2], shifts[::2], [None] * 2, size=size)
    assert some["count"] == 2
    assert all(np.array_equal(some[name], only[name]) for name in ("data", "weights"))
    with pytest.raises(UserError, match="no particle to average"):
        average(sum_particles([None], rotations[:1], shifts[:1], [None], size=size))


def test_the_bits_do_not_depend_on_who_adds_what():
    size, count, block = 12, 21, 4
    rng = np.random.default_rng(4)
    particles = rng.standard_normal((count, size, size, size)).astype(np.float32)
    (rotations, shifts), halves = poses(count, 2), rng.integers(1, 3, count)

    def one(first):
        part = slice(first, first + block)
        return half_sums(
            particles[part], rotations[part], shifts[part], [WEDGE] * block, halves[part], size=size
        )  # a block of the list, whoever takes it

    starts = range(0, count, block)
    with using_threads(1):
        alone = tree_sum(one(first) for first in starts)
    with using_threads(3):
        blocks = list(enumerate(one(first) for first in starts))
    for groups in ([blocks[:1], blocks[1:]], [blocks[:3], blocks[3:5], blocks[5:]], [blocks[::2], blocks[1::2]]):
        spread = sum_of_parts([partial_sums(group, len(blocks)) for group in groups], len(blocks))
        for half in ("1", "2"):
            assert spread[half]["data"].tobytes() == alone[half]["data"].tobytes()
            assert spread[half]["weights"].tobytes() == alone[half]["weights"].tobytes()
            assert spread[half]["count"] == alone[half]["count"] == (halves == int(half)).sum()
    assert average(spread["1"]).tobytes() == average(alone["1"]).tobytes()
    assert sum(half["count"] for half in alone.values()) == count


def four_fold():
    return Rotation.from_rotvec(np.outer(np.arange(4) * np.pi / 2, [0, 0, 1])).as_matrix()


def test_symmetry_is_that_of_particles_that_come_in_each_orientation():
    size, spots, group = 24, places(24), four_fold()
    rotations, shifts = poses(3, 7, 1.0)
    particles = moved(spots, size, rotations, shifts)
    once = average(sum_particles(particles, rotations, shifts, [WEDGE] * 3, size=size), group)
    everyone = average(
        sum_particles(
            [particle for particle in particles for _ in group],
            np.concatenate([rotation @ group for rotation in rotations]),
            np.repeat(shifts, 4, 0),
            [WEDGE] * 12,
            size=size,
        )
    )
    assert agreement(once, everyone, size, 0, 0.7) > 0.98
    for rotation in group[1:]:
        assert agreement(once, rotate(once, rotation, center=(size // 2,) * 3, order=3), size, 0, 0.7) > 0.99
    plain = average(sum_particles(particles, rotations, shifts, [WEDGE] * 3, size=size))
    assert agreement(plain, rotate(plain, group[1], center=(size // 2,) * 3, order=3), size, 0, 0.7) < 0.6


def test_symmetry_keeps_the_number_of_particles():
    sums = particle_sums(np.random.default_rng(0).standard_normal((12, 12, 12)).astype(np.float32), np.eye(3))
    assert symmetrized(sums, four_fold())["count"] == 1


def test_particles_count_by_their_factor():
    size, rotation = 12, np.eye(3)
    one, two = np.random.default_rng(1).standard_normal((2, size, size, size)).astype(np.float32)
    sums = sum_particles([one, two], [rotation] * 2, np.zeros((2, 3)), [None] * 2, factors=[1.0, 0.0], size=size)
    assert np.allclose(average(sums), average(particle_sums(one, rotation)), atol=1e-5)


@pytest.mark.parametrize(
    ("particle", "weights", "message"),
    [
        (np.zeros((8, 8, 9), np.float32), None, "cubic box"),
        (np.zeros((2, 2, 2), np.float32), None, "at least 4"),
        (np.full((8, 8, 8), np.nan, np.float32), None, "finite"),
        (np.zeros((8, 8, 8), np.float32), np.ones((8, 8, 8), np.float32), r"\(8, 8, 5\), not \(8, 8, 8\)"),
    ],
)
def test_refused(particle, weights, message):
    with pytest.raises(UserError, match=message):
        particle_sums(particle, np.eye(3), weights=weights)


def test_refused_lists():
    particles = [np.zeros((8, 8, 8), np.float32)]
    with pytest.raises(UserError, match="half 1 or 2"):
        half_sums(particles, [np.eye(3)], np.zeros((1, 3)), [None], [0], size=8)
    with pytest.raises(UserError, match="10³ voxels"):
        half_sums(particles, [np.eye(3)], np.zeros((1, 3)), [None], [1], size=10)
    with pytest.raises(UserError, match="floor"):
        average(particle_sums(particles[0], np.eye(3)), floor=0)


def test_shells_and_curves():
    size = 16
    curve = np.linspace(2, 0, size // 2 + 1)
    means = shell_means(by_radius(curve, size))
    assert np.abs(means - curve)[:-1].max() < 0.07  # points of a shell lie up to half a voxel off its radius
    assert means[0] == 2
    ones = np.ones((size, size, size // 2 + 1), np.float32)
    assert (shell_means(ones) == 1).all()
    assert by_radius([1, 1, 1], size).sum() == (radii(size) <= 2).sum()


def test_what_comes_in_from_outside_is_the_mean_or_nothing():
    size = 16
    spectrum = forward(np.full((size,) * 3, 3, np.float32))
    turn = poses(1, 2)[0][0]
    same = inverse(turned(spectrum, turn, (4.0, 0.0, 0.0)), size)
    assert np.allclose(same, 3, atol=1e-4)
    empty = inverse(turned(spectrum, turn, (4.0, 0.0, 0.0), mean_outside=False), size)
    assert empty.min() < 0.5
    assert empty[size // 2, size // 2, size // 2] == pytest.approx(3, rel=0.1)
