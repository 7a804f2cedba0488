"""Ribosomes and decoys of PyTom's own test of GLocal: known orientations, white noise, a missing wedge."""

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dtomo.geometry.wedge import Wedge
from dtomo.kernels.cropping import fourier_crop
from dtomo.kernels.matching import Reference
from dtomo.subtomo.rotations import local_rotations, uniform_rotations
from dtomo.subtomo.symmetry import angle_between

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "pytom_glocal_particles"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the measured data lie beside the project, not in it")

RIBOSOMES, DECOYS = (0, 2, 4), (1, 3)
ANGLES = {  # Z1, X, Z2 of the list, degrees
    0: (303.99186654901735, 75.7028845495521, 272.8635850585089),
    2: (101.46162398389338, 111.3064194015597, 272.0895134966006),
    4: (169.9713775629768, 78.15093038168106, 36.25243490461169),
    1: (282.1674920525181, 85.78745174742404, 109.19258138841388),
    3: (291.67820495877226, 55.826562477479875, 324.77974215824975),
}
TRUTH = {k: Rotation.from_euler("zxz", angles, degrees=True).as_matrix() for k, angles in ANGLES.items()}
WEDGE = Wedge((-60, 60))


def read(name: str) -> np.ndarray:
    """A little-endian EM file of float32: 512 bytes, then x fastest."""
    raw = (DATA / name).read_bytes()
    width, height, depth = np.frombuffer(raw, "<i4", 3, 4)
    return np.frombuffer(raw, "<f4", offset=512).reshape(depth, height, width).astype(np.float32)


@pytest.fixture(scope="module")
def binned() -> tuple[Reference, dict]:
    """Reference and particles of 25³ voxels."""
    volume, mask = (fourier_crop(read(name), 2) for name in ("ribo.em", "mask_45.em"))
    reference = Reference(volume, np.clip(mask, 0, 1), band=(None, 0.2), max_shift=2)
    weights = WEDGE.weights(volume.shape)
    return reference, {k: reference.prepare(fourier_crop(read(f"particle_{k}.em"), 2), weights) for k in TRUTH}


@pytest.fixture(scope="module")
def whole() -> tuple[Reference, dict]:
    volume, mask = read("ribo.em"), read("mask_45.em")
    reference = Reference(volume, mask, band=(None, 0.3), max_shift=4)
    weights = WEDGE.weights(volume.shape)
    return reference, {k: reference.prepare(read(f"particle_{k}.em"), weights) for k in TRUTH}


def test_a_local_search_from_ten_degrees_off(whole):
    """From 10 degrees off, around a direction that is none of the axes; the decoys score clearly lower."""
    reference, particles = whole
    assert reference.spherical
    scores = {}
    for number, particle in particles.items():
        axis = np.array([1.0, -2.0, 2.0]) / 3 if number % 4 else np.array([2.0, 1.0, -2.0]) / 3
        found = TRUTH[number] @ Rotation.from_rotvec(np.deg2rad(10) * axis).as_matrix()
        for shells, increment in ((2, 5.0), (2, 2.0), (1, 1.0)):
            turns = local_rotations(found, shells, increment)
            best = reference.match(particle, turns)
            found = turns[best.index]
        scores[number] = best.score
        if number in RIBOSOMES:
            assert angle_between(found, TRUTH[number]) <= 3
            assert np.linalg.norm(best.shift) < 0.5
    assert min(scores[k] for k in RIBOSOMES) > 2 * max(scores[k] for k in DECOYS)


@pytest.mark.slow
def test_a_global_search(binned, whole):
    """All rotations, 20 degrees apart, on the binned box and at low resolution; then around the best ten of them."""
    reference, particles = binned
    every = uniform_rotations(20)
    scores = {}
    for number, particle in particles.items():
        values = reference.scores(particle, every).values
        best = every[np.argsort(values)[-10:]]
        turns = np.concatenate([local_rotations(start, 2, 7.0) for start in best])
        found = turns[reference.match(particle, turns).index]
        for shells, increment in ((2, 3.5), (2, 1.7)):
            turns = local_rotations(found, shells, increment)
            match = whole[0].match(whole[1][number], turns)
            found = turns[match.index]
        scores[number] = match.score
        if number in RIBOSOMES:
            assert angle_between(found, TRUTH[number]) <= 3
            assert np.linalg.norm(match.shift) < 0.5
    assert min(scores[k] for k in RIBOSOMES) > 2 * max(scores[k] for k in DECOYS)
