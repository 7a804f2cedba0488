"""The score against its definition, evaluated by brute force in double precision; peaks, limits, binning, threads."""

import itertools

import numpy as np
import pytest
import scipy.ndimage
from scipy.spatial.transform import Rotation

from dtomo.errors import UserError
from dtomo.geometry.wedge import Wedge
from dtomo.kernels.cropping import fourier_crop
from dtomo.kernels.matching import Prior, Reference
from dtomo.kernels.wedges import frequencies
from dtomo.threads import using_threads

TURNS = Rotation.random(6, random_state=8).as_matrix()


def places(shape):
    """(x, y, z) of each voxel from the center n // 2, float64 (z, y, x, 3)."""
    return np.stack(np.indices(shape), -1)[..., ::-1] - [n // 2 for n in shape[::-1]]


def ball(shape, radius, edge=2.0):
    return np.clip((radius - np.linalg.norm(places(shape), axis=-1)) / edge + 0.5, 0, 1)


def blobs(shape, matrix=None, shift=(0, 0, 0), width=1.3, seed=1):
    """A small asymmetric object about the center, turned and shifted without interpolation."""
    rng = np.random.default_rng(seed)
    middles = rng.uniform(-0.25, 0.25, (12, 3)) * min(shape) @ (np.eye(3) if matrix is None else matrix).T + shift
    heights = rng.uniform(0.4, 1.5, 12)
    squares = ((places(shape)[..., None, :] - middles) ** 2).sum(-1)
    return (np.exp(-squares / (2 * width**2)) @ heights).astype(np.float32)


def definition(volume, mask, particle, weights, matrix, lags, spherical, band=None, local=True):
    """FLCF or NXCF at some lags (x, y, z) as the module says: exact rotation, sums over voxels, double precision."""
    shape = volume.shape
    z, y, x = frequencies(shape)
    radius = np.sqrt(z * z + y * y + x * x)
    kept = weights * (radius <= 0.5 + 1e-9)
    if band is not None:
        edge = 2 / min(shape)
        kept = kept * (0.5 + 0.5 * np.cos(np.pi * np.clip((radius - band[1]) / edge, 0, 1)))
        kept *= 0.5 + 0.5 * np.cos(np.pi * np.clip((band[0] - radius) / edge, 0, 1))
    outside = mask == 0
    reference = volume.astype(float) - volume[outside].mean(dtype=float)
    largest = min((n - 1) // 2 for n in shape)
    beyond = np.clip((np.linalg.norm(places(shape), axis=-1) - largest) / 2 + 1, 0, 1)
    reference *= 0.5 + 0.5 * np.cos(np.pi * beyond)
    nu = np.stack(np.broadcast_arrays(x, y, z), -1).reshape(-1, 3)
    centers = np.array([n // 2 for n in shape[::-1]])
    waves = [
        np.exp(-2j * np.pi * rate[:, None] * (np.arange(n) - n // 2)) for rate, n in zip((nu @ matrix).T, shape[::-1])
    ]
    transform = (waves[0] @ reference.reshape(-1, shape[2]).T).reshape(-1, shape[0], shape[1])
    transform = np.einsum("fzy,fy,fz->f", transform, waves[1], waves[2], optimize=True)
    transform = transform * np.exp(-2j * np.pi * nu @ centers)
    turned = np.fft.irfftn(transform.reshape(radius.shape) * kept, s=shape, axes=(0, 1, 2))
    data = particle.astype(float)
    data = np.fft.irfftn(np.fft.rfftn(data - data.mean()) * kept, s=shape, axes=(0, 1, 2))
    weight = mask.astype(float)
    if not spherical:
        back = matrix.T[::-1, ::-1]
        middle = centers[::-1]
        weight = scipy.ndimage.affine_transform(weight, back, middle - back @ middle, order=1)
    total = weight.sum()
    mean = (weight * turned).sum() / total
    deviation = np.sqrt((weight * turned**2).sum() / total - mean**2)
    found = []
    for lag in lags:
        moved = np.roll(data, [-s for s in lag[::-1]], (0, 1, 2))  # moved[r] = data[r + s]
        sigma = data.std()
        if local:
            sigma = np.sqrt((weight * moved**2).sum() / total - ((weight * moved).sum() / total) ** 2)
        found.append((weight * (turned - mean) * moved).sum() / (total * deviation * sigma))
    return np.array(found)


LAGS = list(itertools.product((-2, 0, 1), (-1, 0, 2), (0, 1)))

MASKS = {
    "ball": lambda shape: ball(shape, 0.33 * min(shape)),
    "sharp ball": lambda shape: (np.linalg.norm(places(shape), axis=-1) <= 0.3 * min(shape)).astype(float),
    "ellipsoid": lambda shape: ball(shape, 0.35 * min(shape)) * (abs(places(shape)[..., 2]) <= 0.2 * min(shape)),
    "off center": lambda shape: np.roll(ball(shape, 0.25 * min(shape)), (1, 0, -2), (0, 1, 2)),
}


@pytest.mark.parametrize("mask_name", MASKS)
@pytest.mark.parametrize(
    ("shape", "band", "wedge", "most"),
    [
        ((14, 14, 14), None, None, 2.5),
        ((14, 14, 14), None, Wedge((-60, 45)), 2.5),
        ((13, 13, 13), None, Wedge((-50, 50), smooth=2.0), None),
        ((16, 16, 16), (0.05, 0.3), Wedge((-60, 60)), 2.5),
        ((16, 14, 18), (0.0, 0.35), Wedge((-40, 60)), None),
    ],
)
@pytest.mark.parametrize("local", [True, False], ids=["FLCF", "NXCF"])
def test_the_definition(mask_name, shape, band, wedge, most, local):
    mask = MASKS[mask_name](shape).astype(np.float32)
    volume = blobs(shape) + 0.3
    half = (*shape[:2], shape[2] // 2 + 1)
    weights = np.ones(half, np.float32) if wedge is None else wedge.weights(shape)
    noise = np.random.default_rng(3).standard_normal(shape)
    particle = (blobs(shape, TURNS[0], (1, -0.5, 0.7)) + 0.3 * noise).astype(np.float32)
    limits = (None, None) if band is None else band
    reference = Reference(volume, mask, band=limits, max_shift=most, local=local)
    assert reference.spherical == ("ball" in mask_name)
    prepared = reference.prepare(particle, weights)
    maps = reference._maps(prepared, TURNS[:2])
    for one, matrix in zip(maps, TURNS[:2]):
        expected = definition(volume, mask, particle, weights, matrix, LAGS, reference.spherical, band, local)
        found = [one[tuple(list(axis).index(s) for axis, s in zip(reference.lags, lag[::-1]))] for lag in LAGS]
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0 if local else 1e-4)
    assert not local or abs(maps).max() <= 1 + 1e-4


def everything(shape):
    return np.ones((*shape[:2], shape[2] // 2 + 1), np.float32)


@pytest.mark.parametrize("most", [4.0, None])
@pytest.mark.parametrize("side", [32, 27])
def test_a_turned_and_shifted_object_is_found(side, most):
    """The true rotation scores about 1, at the true shift: to 0.1 voxel by parabolas, 0.02 upsampled."""
    shape = (side,) * 3
    wedge = Wedge((-60, 60)).weights(shape)
    reference = Reference(blobs(shape, width=1.6), ball(shape, 0.38 * side).astype(np.float32), max_shift=most)
    for number, shift in enumerate([(1.3, -2.4, 0.6), (-0.5, 0.0, 2.25), (0.0, 0.0, 0.0)]):
        particle = reference.prepare(blobs(shape, TURNS[number], shift, width=1.6), wedge)
        found = reference.match(particle, TURNS)
        assert found.index == number
        assert found.score > 0.995
        np.testing.assert_allclose(found.shift, shift, atol=0.02)
        coarse = reference.match(particle, TURNS, upsample=False)
        np.testing.assert_allclose(coarse.shift, shift, atol=0.1)
        assert np.delete(reference.scores(particle, TURNS).values, number).max() < 0.9


def test_a_prior_chooses_among_what_fits_alike():
    """Two copies of an object, and two rotations: the likely ones win, with their own scores."""
    shape, wedge = (40, 40, 40), Wedge((-60, 60)).weights((40, 40, 40))
    mask = ball(shape, 9).astype(np.float32)
    reference = Reference(blobs(shape, width=1.2) * ball(shape, 9), mask, max_shift=12)
    here, there = np.array([-7.0, 0.3, 1.0]), np.array([7.5, -1.0, 0.0])
    one, two = (blobs(shape, TURNS[0], shift, width=1.2) for shift in (here, there))
    particle = reference.prepare((1.02 * one + two).astype(np.float32), wedge)
    free = reference.match(particle, TURNS[:1])
    for center in (here, there):
        for upsample in (True, False):
            found = reference.match(particle, TURNS[:1], upsample, Prior(center + np.array([3.0, 3.0, 0]), 5.0))
            assert np.linalg.norm(found.shift - center) < 0.6
            assert abs(found.score - free.score) < 0.1  # times the prior it would be 0.7 of that
    wide = reference.match(particle, TURNS[:1], prior=Prior(there, 1e4))
    np.testing.assert_allclose(wide.shift, free.shift, atol=1e-3)
    np.testing.assert_allclose(wide.score, free.score, atol=1e-5)

    scores = reference.scores(particle, TURNS[:3])
    assert scores.values.argmax() == 0
    other = reference.match(particle, TURNS[:3], False, Prior(rotations=np.array([1e-6, 1e-6, 1.0])))
    assert other.index == 2
    assert other.score == scores.values[2]


def test_shifts_stay_within_their_limit():
    shape = (24, 24, 24)
    mask = ball(shape, 8).astype(np.float32)
    particle = blobs(shape, shift=(4, 0, 0))
    for most in (0.0, 1.0, 2.5, 6.0, 9.0):
        reference = Reference(blobs(shape), mask, max_shift=most)
        prepared = reference.prepare(particle, everything(shape))
        found = reference.scores(prepared, np.eye(3)[None])
        best = reference.match(prepared, np.eye(3)[None])
        for shift in (found.shifts[0], best.shift):
            assert np.linalg.norm(shift) <= most + 1e-9
        assert (abs(best.shift[0] - 4) < 0.05) == (most > 4)


def test_the_score_knows_neither_brightness_nor_contrast():
    shape = (20, 20, 20)
    mask = ball(shape, 7).astype(np.float32)
    particle = blobs(shape, TURNS[1], (1, 0, -1))
    one = Reference(blobs(shape), mask)
    two = Reference(700 * blobs(shape) - 1e4, 3 * mask)
    first = one.scores(one.prepare(particle, everything(shape)), TURNS)
    second = two.scores(two.prepare(0.01 * particle + 0.5, everything(shape)), TURNS)
    np.testing.assert_allclose(second.values, first.values, atol=2e-5)
    np.testing.assert_allclose(second.shifts, first.shifts, atol=1e-3)
    inverted = one.scores(one.prepare(-particle, everything(shape)), TURNS[1:2])
    assert inverted.values[0] < first.values[1]


def test_signed_weights_of_the_reference():
    """A particle with a CTF fits the reference times that CTF, with its sign."""
    shape = (24, 24, 24)
    z, y, x = frequencies(shape)
    ctf = np.sin(40 * (x**2 + y**2 + z**2) + 0.2).astype(np.float32)
    volume, mask = blobs(shape), ball(shape, 9).astype(np.float32)
    particle = np.fft.irfftn(np.fft.rfftn(blobs(shape, TURNS[2])) * ctf, s=shape, axes=(0, 1, 2)).astype(np.float32)
    reference = Reference(volume, mask, max_shift=2)
    with_ctf = reference.match(reference.prepare(particle, everything(shape), ctf), TURNS)
    assert with_ctf.index == 2
    assert with_ctf.score > 0.99
    assert reference.match(reference.prepare(particle, everything(shape)), TURNS).score < 0.95


@pytest.mark.parametrize("spherical", [True, False])
def test_the_same_bits_with_any_number_of_threads(spherical):
    shape = (18, 18, 18)
    reference = Reference(blobs(shape), ball(shape, 6).astype(np.float32), spherical=spherical)
    prepared = reference.prepare(blobs(shape, TURNS[3]), everything(shape))
    turns = Rotation.random(40, random_state=5).as_matrix()
    results = []
    for threads in (1, 2, 5):
        with using_threads(threads):
            results.append(reference.scores(prepared, turns))
    for other in results[1:]:
        assert np.array_equal(other.values, results[0].values)
        assert np.array_equal(other.shifts, results[0].shifts)
    alone = [reference.scores(prepared, turn[None]).values[0] for turn in turns]
    np.testing.assert_allclose(alone, results[0].values, atol=1e-6)


def test_a_mask_called_spherical_scores_as_one_that_turns():
    shape = (20, 20, 20)
    mask = ball(shape, 7, edge=4).astype(np.float32)
    particle = blobs(shape, TURNS[0])
    found = []
    for spherical in (True, False):
        reference = Reference(blobs(shape), mask, spherical=spherical)
        found.append(reference.scores(reference.prepare(particle, everything(shape)), TURNS).values)
    np.testing.assert_allclose(found[0], found[1], atol=0.01)


def test_binning_keeps_shifts():
    """Binning 1, 2 and 4 give the same shift within 0.2 unbinned voxels."""
    shape, shift = (64, 64, 64), np.array([3.3, -5.6, 2.1])
    noise = np.random.default_rng(6).standard_normal(shape)
    volume, mask = blobs(shape, width=4), ball(shape, 24)
    particle = blobs(shape, TURNS[4], shift, width=4) + 0.1 * noise
    for binning in (1, 2, 4):
        small = fourier_crop(volume, binning)
        reference = Reference(small, ball(small.shape, 24 / binning).astype(np.float32), max_shift=8 / binning)
        assert mask.shape[0] // binning == small.shape[0]
        prepared = reference.prepare(fourier_crop(particle, binning), Wedge().weights(small.shape))
        found = reference.match(prepared, TURNS)
        assert found.index == 4
        np.testing.assert_allclose(found.shift * binning, shift, atol=0.2)


def test_what_cannot_be_compared_is_refused():
    shape = (12, 12, 12)
    volume, mask = blobs(shape), ball(shape, 4).astype(np.float32)
    for wrong, sentence in (
        (lambda: Reference(volume, mask[1:]), "volumes .* of one shape"),
        (lambda: Reference(volume, -mask), "no negative values"),
        (lambda: Reference(volume, 0 * mask), "some that are positive"),
        (lambda: Reference(volume * np.nan, mask), "no finite numbers"),
        (lambda: Reference(volume + 1j, mask), "real volumes"),
        (lambda: Reference(0 * volume, mask), "same value everywhere"),
        (lambda: Reference(volume, mask, band=(0.3, 0.2)), "a band goes from"),
        (lambda: Reference(volume, mask, max_shift=-1), "longest shift"),
    ):
        with pytest.raises(UserError, match=sentence):
            wrong()
    reference = Reference(volume, mask)
    with pytest.raises(UserError, match="of the reference's shape"):
        reference.prepare(volume[1:], everything(shape))
    with pytest.raises(UserError, match="weights of a box"):
        reference.prepare(volume, np.ones(shape))
    for empty in (volume * np.nan, 0 * volume + 3):
        with pytest.raises(UserError, match="empty after filtering"):
            reference.prepare(empty, everything(shape))
    prepared = reference.prepare(volume, everything(shape))
    with pytest.raises(UserError, match=r"shape \(rotation, 3, 3\)"):
        reference.scores(prepared, np.eye(3))
    with pytest.raises(UserError, match="matrix 1 is no rotation"):
        reference.scores(prepared, np.stack([np.eye(3), np.diag([1, 1, -1])]))
    with pytest.raises(UserError, match="one rotation or more"):
        reference.match(prepared, np.empty((0, 3, 3)))
