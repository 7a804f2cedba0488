"""Samples of balls for joint scans: projections of theirs are chords in closed form."""

import dataclasses
import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.simulate.detector import generator

FINE = 4
"""Samples along each side of a pixel or voxel that it is the mean of."""
BALLS = 11
"""Stream of random numbers."""


@dataclasses.dataclass(frozen=True, eq=False)
class Balls:
    """A sample: balls of uniform material, whose refractive indices add up.

    Attributes
    ----------
    middles
        ``(ball, 3)``: z, y, x in voxels from the middle of the volume.
    radii
        ``(ball,)``, voxels.
    values
        v = k Δ (-δ + iβ) of each, complex128 ``(ball,)``, radians per voxel.
    """

    middles: NDArray[np.float64]
    radii: NDArray[np.float64]
    values: NDArray[np.complex128]

    def volume(self, rows: int, columns: int) -> NDArray[np.complex64]:
        """Mean of v over each voxel ``(z, y, x)``; at the edges of balls, of samples in it."""
        found = np.zeros((rows, columns, columns), np.complex64)
        shape = np.array([rows, columns, columns])
        for place, radius, value in zip(self.middles, self.radii, self.values):
            middle = place + (shape - 1) / 2
            planes, *spans = (_span(one, radius + 1, count) for one, count in zip(middle, shape))
            y = np.arange(spans[0].start, spans[0].stop)[:, None] - middle[1]
            x = np.arange(spans[1].start, spans[1].stop)[None] - middle[2]
            for plane in range(planes.start, planes.stop):
                z = plane - middle[0]
                found[plane, spans[0], spans[1]] += value * _filled(z, y, x, radius)
        return found

    def projection(
        self, rows: int, columns: int, angle: float, depths: tuple[float, float] = (-np.inf, np.inf)
    ) -> NDArray[np.complex128]:
        """∫ v along the beam ``(row, column)``, of the part between two depths (voxels, from the axis)."""
        found = np.zeros((rows, columns), np.complex128)
        turn = np.deg2rad(angle)
        inside = (np.arange(FINE) + 0.5) / FINE - 0.5
        for (z, y, x), radius, value in zip(self.middles, self.radii, self.values):
            across, depth = x * np.cos(turn) + y * np.sin(turn), -x * np.sin(turn) + y * np.cos(turn)
            down, along = (
                _span(place + (count - 1) / 2, radius + 1, count) for place, count in ((z, rows), (across, columns))
            )
            v = (np.arange(down.start, down.stop)[:, None] + inside).ravel() - (rows - 1) / 2 - z
            u = (np.arange(along.start, along.stop)[:, None] + inside).ravel() - (columns - 1) / 2 - across
            half = np.sqrt((radius**2 - v[:, None] ** 2 - u**2).clip(0))
            chord = np.minimum(depth + half, depths[1]) - np.maximum(depth - half, depths[0])
            chord = chord.clip(0) * (half > 0)
            shape = (down.stop - down.start, FINE, along.stop - along.start, FINE)
            found[down, along] += value * chord.reshape(shape).mean((1, 3))
        return found


def _filled(z: float, y: NDArray[Any], x: NDArray[Any], radius: float) -> NDArray[np.float64]:
    """Part of each voxel of a plane ``(y, x)`` that a ball about 0 fills."""
    distance = np.sqrt(z**2 + y**2 + x**2)
    filled = (distance < radius).astype(np.float64)
    edge = np.abs(distance - radius) <= np.sqrt(3) / 2
    v, u = (np.broadcast_to(grid, edge.shape)[edge] for grid in (y, x))
    inside = (np.arange(FINE) + 0.5) / FINE - 0.5
    total = np.zeros(len(v))
    for dz, dy, dx in itertools.product(inside, repeat=3):
        total += (z + dz) ** 2 + (v + dy) ** 2 + (u + dx) ** 2 < radius**2
    filled[edge] = total / FINE**3
    return filled


def _span(middle: float, reach: float, count: int) -> slice:
    first = min(max(0, int(np.floor(middle - reach))), count)
    return slice(first, max(first, min(count, int(np.ceil(middle + reach)) + 1)))


def sample_of_balls(size: int, radius: float, *, phase: float = 1.5, seed: int = 0) -> Balls:
    """A ball with smaller ones in it, some denser and some hollow, δ and β not in proportion.

    Parameters
    ----------
    size
        Voxels along a side of the volume.
    radius
        Of the large ball, voxels.
    phase
        Of its middle, radians.
    seed
        Of the small ones.
    """
    random = generator(seed, BALLS)
    large = radius
    step = phase / (2 * large)
    middles, radii, values = [np.zeros(3)], [large], [step * (-1 + 0.1j)]
    for _ in range(40):
        radius = random.uniform(0.06, 0.25) * large
        direction = random.standard_normal(3)
        place = direction / np.linalg.norm(direction) * (large - radius - 1) * random.uniform(0, 1) ** (1 / 3)
        middles.append(place)
        radii.append(radius)
        if random.uniform() < 0.5:
            values.append(step * (0.9 - 0.09j))  # nearly hollow
        else:
            values.append(step * (-random.uniform(0.5, 1.5) + random.uniform(0.02, 0.3) * 1j))
    return Balls(np.array(middles), np.array(radii), np.array(values))
