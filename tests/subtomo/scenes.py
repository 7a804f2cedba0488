"""Small particles for tests of the loop: a lump of balls, turned, shifted, under a wedge, with noise."""

import dataclasses
from pathlib import Path

import mrcfile
import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from dtomo.geometry.wedge import Wedge
from dtomo.io.particles import Particles, write_particles
from dtomo.kernels.rotation import rotate

SIZE, PIXEL = 24, 10.0
WEDGE = Wedge((-60.0, 60.0))


def lump(size: int = SIZE) -> NDArray[np.float32]:
    """Balls of several sizes, about the center n // 2."""
    z, y, x = np.ogrid[:size, :size, :size]
    volume, c, unit = np.zeros((size,) * 3), size // 2, size / 24
    for place, radius, value in (
        ((0, 0, 0), 3.5, 1.0), ((4, 2, 0), 2.5, 1.2), ((-3, 4, 1), 2.0, 0.9), ((1, -4, 4), 1.8, 1.4),
        ((-2, -3, -4), 2.2, 0.8),
    ):  # fmt: skip
        distance = np.sqrt(sum((one - c - unit * p) ** 2 for one, p in zip((z, y, x), place)))
        volume += value / (1 + np.exp(2 * (distance - unit * radius)))
    return volume.astype(np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class Scene:
    """A list on disk and the truth."""

    path: Path
    particles: Particles
    truth: NDArray[np.float32]


def scene(
    folder: Path,
    count: int,
    *,
    snr: float = 1.0,
    off: tuple[float, float] = (0.0, 0.0),
    size: int = SIZE,
    seed: int = 0,
) -> Scene:
    """Particles in files, and a list whose poses are off by up to so many degrees and voxels."""
    random = np.random.default_rng(seed)
    truth = lump(size)
    turns = Rotation.random(count, random_state=seed)
    shifts = random.uniform(-2, 2, (count, 3))
    box, seen = (size,) * 3, WEDGE.weights((size,) * 3)
    noise = np.sqrt(truth.var() / snr) if np.isfinite(snr) else 0.0
    folder.mkdir(exist_ok=True)
    names = []
    for number in range(count):
        turned = rotate(truth, turns[number].as_matrix(), shifts[number], order=3, center=(size // 2,) * 3)
        turned = turned + random.normal(0, noise, box) if noise else turned
        particle = scipy.fft.irfftn(scipy.fft.rfftn(turned) * seen, s=box).astype(np.float32)
        names.append(f"particle_{number:03d}.mrc")
        with mrcfile.new(folder / names[-1], particle, overwrite=True) as file:
            file.voxel_size = PIXEL
    true = Particles(turns.as_matrix(), shifts, names, wedges=[WEDGE] * count)
    axes = random.standard_normal((count, 3))
    axes *= np.deg2rad(random.uniform(0.3, 1, (count, 1)) * off[0]) / np.linalg.norm(axes, axis=1, keepdims=True)
    ways = random.uniform(-off[1], off[1], (count, 3))
    given = dataclasses.replace(
        true, rotations=(Rotation.from_rotvec(axes) * turns).as_matrix(), shifts=shifts + ways, origin=None
    )
    write_particles(folder / "list.xml", given)
    return Scene(folder / "list.xml", true, truth)


def angles_off(found: NDArray[np.float64], true: NDArray[np.float64]) -> NDArray[np.float64]:
    """Degrees between orientations."""
    return np.rad2deg((Rotation.from_matrix(found) * Rotation.from_matrix(true).inv()).magnitude())
