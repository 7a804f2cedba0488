"""What a camera and a beam do to a projection: counts with noise, uneven light, rings, dead and hot pixels.

Every random number is keyed by the seed, what it is for and the number of the frame, so that a frame comes
out the same whatever was computed before it.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

FLAT, DARK, PROJECTION, PIXELS, BEAM = range(5)
"""What a stream of random numbers is for."""

FULL_SCALE = 0.8
"""Part of the largest count that the open beam may reach."""


def generator(seed: int, purpose: int, frame: int = 0) -> np.random.Generator:
    """The random numbers of one frame."""
    return np.random.default_rng([seed, purpose, frame])


def largest_count(dtype: np.dtype) -> int:
    """What a camera of this dtype can count to; one that writes floats counts to 16 bits."""
    return int(np.iinfo(dtype).max) if dtype.kind in "ui" else int(np.iinfo(np.uint16).max)


@dataclasses.dataclass(frozen=True, eq=False)
class Camera:
    """A pixel detector of (row, column) float32 maps.

    Parameters
    ----------
    gain
        Relative response of each pixel: the same in flats and projections, so a flat field removes it.
    change
        Factor by which the response differs in the projections only: what makes rings.
    offset
        Counts in the dark.
    dead, hot
        Pixels that never and that always answer.
    """

    gain: NDArray[np.float32]
    change: NDArray[np.float32]
    offset: NDArray[np.float32]
    dead: NDArray[np.bool_]
    hot: NDArray[np.bool_]
    read_noise: float = 2.0

    def expose(
        self, photons: NDArray[np.floating], conversion: float, dtype: np.dtype, rng: np.random.Generator
    ) -> NDArray[np.generic]:
        """Counts (row, column) for an expected number of photons; `conversion` is counts per photon."""
        counts = rng.poisson(np.maximum(photons, 0)).astype(np.float32)
        counts *= np.float32(conversion)
        counts[self.dead] = 0
        counts += self.offset
        counts += rng.standard_normal(counts.shape, dtype=np.float32) * np.float32(self.read_noise)
        top = float(largest_count(dtype))
        counts[self.hot] = top * (0.95 + 0.02 * rng.random(int(self.hot.sum()), dtype=np.float32))
        if dtype.kind in "ui":
            np.rint(counts, out=counts)
        return np.clip(counts, 0, np.nextafter(np.float32(top), np.float32(0))).astype(dtype)


def camera(shape: tuple[int, int], seed: int, rings: bool, bad: float, dark_level: float) -> Camera:
    """A camera with a fixed pattern; `bad` is the part of its pixels that are dead or hot, half each."""
    rng = generator(seed, PIXELS)
    gain = 1 + 0.03 * rng.standard_normal(shape, dtype=np.float32)
    gain *= (1 + 0.02 * _smooth(rng, shape, 12)).astype(np.float32)
    offset = np.float32(dark_level) * (1 + 0.03 * rng.standard_normal(shape, dtype=np.float32))
    draw = rng.random(shape, dtype=np.float32)
    change = _rings(rng, shape) if rings else np.ones(shape, np.float32)
    return Camera(np.clip(gain, 0.7, 1.3), change, offset, draw < bad / 2, draw > 1 - bad / 2)


def _smooth(rng: np.random.Generator, shape: tuple[int, int], width: float) -> NDArray[np.float32]:
    """A smooth random map of unit spread."""
    field = gaussian_filter(rng.standard_normal(shape, dtype=np.float32), width, mode="wrap")
    return field / max(float(field.std()), 1e-12)


def _rings(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float32]:
    """Response changes that last over rows: every column a little, some columns much, one broad band."""
    rows, columns = shape
    fields = gaussian_filter(rng.standard_normal(shape, dtype=np.float32), (6, 0), mode="wrap")
    change = 1 + 0.004 * fields / max(float(fields.std()), 1e-12)
    for _ in range(max(1, columns // 25)):
        column, first, length = (
            rng.integers(columns),
            rng.integers(rows),
            rng.integers(rows // 4 + 1, rows + 1),
        )
        change[first : first + length, column] *= 1 + rng.choice([-1, 1]) * rng.uniform(0.01, 0.04)
    band = int(rng.integers(columns // 4, 3 * columns // 4 + 1))
    change[:, band : band + max(2, columns // 60)] *= 1.012
    return change.astype(np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class Beam:
    """The open beam: wide across, narrower upright, with bands of a mirror that wander during the scan."""

    across: NDArray[np.float64]
    waves: NDArray[np.float64]
    rows: int
    wander: float = 0.3
    decay: float = 0.01

    def light(self, time: float) -> NDArray[np.float64]:
        """Relative intensity (row, column), about 1 in the middle; `time` runs from 0 to 1 over the scan."""
        y = np.arange(self.rows) - (self.rows - 1) / 2 - self.wander * np.sin(3 * time)
        upright = np.exp(-0.5 * (y / (0.6 * max(self.rows, 200))) ** 2)
        strength, frequency, phase = self.waves
        upright *= 1 + (strength * np.sin(frequency * y[:, None] + phase)).sum(1)
        flicker = 1 - self.decay * time + 0.001 * np.sin(97 * time)
        return (upright * flicker)[:, None] * self.across


def beam(shape: tuple[int, int], seed: int) -> Beam:
    """A beam over a detector of `shape` (row, column)."""
    rng = generator(seed, BEAM)
    x = np.linspace(-1, 1, shape[1])
    across = 1 + 0.08 * rng.uniform(-1, 1) * x - 0.25 * x**2
    frequency = 2 * np.pi / rng.uniform(10, 100, 8)  # bands of 10 to 100 rows
    waves = np.stack([rng.uniform(0.005, 0.02, 8), frequency, rng.uniform(0, 2 * np.pi, 8)])
    return Beam(across, waves, shape[0])
