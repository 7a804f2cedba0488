"""The score against its definition, evaluated by brute force in double precision; peaks, limits, binning, threads."""

import itertools

import numpy as np
import pytest
import scipy.ndimage
from scipy.spatial.transform import Rotation

from dtomo.geometry.wedge import Wedge
from dtomo.kernels.matching import Reference
from dtomo.kernels.wedges import frequencies

TURNS = Rotation.random(6, random_state=8).as_matrix()


def places(shape):
    """(x, y, z) of each voxel from the center n // 2, float64 (z, y, x, 3)."""
    return np.stack(np.indices(shape), -1)[..., ::-1] - [n // 2 for n in shape[::-1]]


def ball(shape, radius, edge=2.0):
    return np.clip((radius - np.linalg.norm(places(shape), axis=-1)) / edge + 0.5, 0, 1)


def blobs(shape, count=12, width=1.3, seed=1, spread=0.25):
    """A small asymmetric object about the center, smooth enough for its grid."""
    rng = np.random.default_rng(seed)
    middles = rng.uniform(-spread, spread, (count, 3)) * min(shape)
    heights = rng.uniform(0.4, 1.5, count)
    squares = ((places(shape)[..., None, :] - middles) ** 2).sum(-1)
    return (np.exp(-squares / (2 * width**2)) @ heights).astype(np.float32)


def turned_blobs(shape, matrix, shift, count=12, width=1.3, seed=1, spread=0.25):
    """The same object turned and shifted, without interpolation."""
    rng = np.random.default_rng(seed)
    middles = rng.uniform(-spread, spread, (count, 3)) * min(shape) @ matrix.T + shift
    heights = rng.uniform(0.4, 1.5, count)
    squares = ((places(shape)[..., None, :] - middles) ** 2).sum(-1)
    return (np.exp(-squares / (2 * width**2)) @ heights).astype(np.float32)


def definition(volume, mask, particle, weights, matrix, lags, spherical, band=None):
    """FLCF at some lags (x, y, z) from the words of the module: exact rotation, sums over voxels, double precision."""
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
    waves = np.exp(-2j * np.pi * (nu @ matrix) @ places(shape).reshape(-1, 3).T)
    transform = (waves @ reference.reshape(-1)) * np.exp(-2j * np.pi * nu @ centers)
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
        local = (weight * moved).sum() / total
        sigma = np.sqrt((weight * moved**2).sum() / total - local**2)
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
        ((16, 16, 16), None, None, 2.5),
        ((14, 14, 14), None, Wedge((-60, 45)), 2.5),
        ((13, 13, 13), None, Wedge((-50, 50), smooth=2.0), None),
        ((18, 18, 18), (0.05, 0.3), Wedge((-60, 60)), 2.5),
        ((16, 14, 18), (0.0, 0.35), Wedge((-40, 60)), None),
    ],
)
def test_the_definition(mask_name, shape, band, wedge, most):
    mask = MASKS[mask_name](shape).astype(np.float32)
    volume = blobs(shape) + 0.3
    half = (*shape[:2], shape[2] // 2 + 1)
    weights = np.ones(half, np.float32) if wedge is None else wedge.weights(shape)
    noise = np.random.default_rng(3).standard_normal(shape)
    particle = (turned_blobs(shape, TURNS[0], (1, -0.5, 0.7)) + 0.3 * noise).astype(np.float32)
    limits = (None, None) if band is None else band
    reference = Reference(volume, mask, band=limits, max_shift=most)
    assert reference.spherical == ("ball" in mask_name)
    prepared = reference.prepare(particle, weights)
    maps = reference._maps(prepared, TURNS[:2])
    for one, matrix in zip(maps, TURNS[:2]):
        expected = definition(volume, mask, particle, weights, matrix, LAGS, reference.spherical, band)
        found = [one[tuple(list(axis).index(s) for axis, s in zip(reference.lags, lag[::-1]))] for lag in LAGS]
        np.testing.assert_allclose(found, expected, atol=1e-4)
    assert abs(maps).max() <= 1 + 1e-4
