"""What simulated ptychographic scans are made of: an object, a probe and its modes, positions; all by a seed.

The two pictures of an object, its amplitude and its phase, are dead leaves: things of all sizes that lie upon one
another, their numbers falling with the third power of the size, which gives the same look at every magnification
(A. B. Lee, D. Mumford, J. Huang, International Journal of Computer Vision 41 (2001) 35). One is made of grains, the
other of bars, so that none of them is a copy of the other.
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from dtomo.errors import UserError

Aperture = Literal["circle", "rectangle", "zone plate"]
ScanPath = Literal["spiral", "grid"]

SMALLEST, LARGEST = 2.0, 48.0
"""Radius of the smallest and largest leaves, pixels."""
COVERED = 3.0
"""How often the leaves cover the picture."""
PHASES, AMPLITUDES = (-1.5, 0.1), (0.7, 1.0)
"""Range of the two pictures, radians and part of the wave that comes through."""
PUPIL = 0.16
"""Radius of the lens's aperture in the probe's Fourier transform, cycles per pixel."""
GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))
JITTER = 0.25
"""Largest random step off a grid, as part of its spacing."""


def leaves(shape: tuple[int, int], seed: list[int], bars: bool) -> NDArray[np.float64]:
    """A picture of dead leaves ``(row, column)`` with values from 0 to 1; grains, or else bars."""
    random = np.random.default_rng(seed)
    mean_area = 2 * math.pi * math.log(LARGEST / SMALLEST) / (SMALLEST**-2 - LARGEST**-2)
    count = math.ceil(COVERED * shape[0] * shape[1] / mean_area)
    share = random.uniform(size=count)
    radii = (SMALLEST**-2 * (1 - share) + LARGEST**-2 * share) ** -0.5
    middles = random.uniform(-LARGEST / 2, np.add(shape, LARGEST / 2), (count, 2))
    values, turns = random.uniform(0.1, 1, count), random.uniform(0, np.pi, count)
    slim = random.uniform(0.5, 1, count) if not bars else random.uniform(0.15, 0.5, count)
    picture = np.zeros(shape)
    for radius, (row, column), value, turn, part in zip(radii, middles, values, turns, slim):
        reach = radius * (1.0 if not bars else 1.5)
        first = max(0, int(row - reach)), max(0, int(column - reach))
        last = min(shape[0], int(row + reach) + 2), min(shape[1], int(column + reach) + 2)
        if first[0] >= last[0] or first[1] >= last[1]:
            continue
        y, x = np.arange(first[0], last[0])[:, None] - row, np.arange(first[1], last[1]) - column
        along, across = y * np.cos(turn) + x * np.sin(turn), (x * np.cos(turn) - y * np.sin(turn)) / part
        inside = np.maximum(np.abs(along), np.abs(across)) < radius if bars else along**2 + across**2 < radius**2
        picture[first[0] : last[0], first[1] : last[1]][inside] = value
    return np.asarray(gaussian_filter(picture, 0.6), np.float64)


def transmission(shape: tuple[int, int], seed: int) -> NDArray[np.complex64]:
    """An object ``(row, column)``: grains in its phase, bars in its amplitude."""
    amplitude = AMPLITUDES[1] - (AMPLITUDES[1] - AMPLITUDES[0]) * leaves(shape, [seed, 1], bars=True)
    phase = PHASES[1] + (PHASES[0] - PHASES[1]) * leaves(shape, [seed, 0], bars=False)
    return (amplitude * np.exp(1j * phase)).astype(np.complex64)


def focused_probe(size: int, aperture: Aperture = "circle", width: float = 0.28) -> NDArray[np.complex128]:
    """What a lens makes some way out of its focus, ``(row, column)``, power 1, in the middle of its array.

    Parameters
    ----------
    size
        Rows and columns.
    aperture
        Of the lens; a zone plate has a stop in its middle.
    width
        Diameter of the light, as part of the array.
    """
    row = (np.arange(size) - size // 2) / size
    y, x = row[:, None], row[None]
    radius, limit = np.hypot(y, x), PUPIL
    soft = 1.5 / size

    def inside(distance: NDArray[np.float64], edge: float) -> NDArray[np.float64]:
        return np.asarray(0.5 - 0.5 * np.tanh((distance - edge) / soft))

    if aperture == "rectangle":
        pupil = inside(np.abs(y), limit) * inside(np.abs(x), 0.75 * limit)
    else:
        pupil = inside(radius, limit)
    if aperture == "zone plate":
        pupil = pupil * (1 - inside(radius, 0.45 * limit))
    # light of the pupil's frequency f lands defocus * f from the middle; a little astigmatism, coma and curvature more
    u, v = y / limit, x / limit
    defocus = defocus_of(size, width)
    waves = 0.5 * defocus * radius**2 + 0.15 * (u**2 - v**2) + 0.1 * (u**2 + v**2) * u + 0.1 * (u**2 + v**2) ** 2
    probe = np.fft.fftshift(np.fft.ifft2(np.fft.ifftshift(pupil * np.exp(-2j * np.pi * waves)), norm="ortho"))
    return np.asarray(probe / np.linalg.norm(probe))


def defocus_of(size: int, width: float = 0.28) -> float:
    """How far out of focus that is, λ z in pixels²: light of frequency f lands so many times f from the middle."""
    return 0.5 * width * size / PUPIL


def diffuser_probe(size: int, seed: int) -> NDArray[np.complex128]:
    """Light behind a diffuser that fills most of its array and fades before its border, power 1."""
    random = np.random.default_rng([seed, 4])
    row = np.abs(np.arange(size) - (size - 1) / 2) / size
    fade = 0.5 - 0.5 * np.tanh((row - 0.36) * 30)
    noise = gaussian_filter(random.normal(size=(2, size, size)), (0, 2.5, 2.5), mode="wrap")
    noise *= 0.7 / noise.std()
    probe = fade[:, None] * fade * (1 + 0.25 * noise[0]) * np.exp(1j * noise[1])
    return np.asarray(probe / np.linalg.norm(probe))


def mode_powers(modes: int) -> NDArray[np.float64]:
    """Part of the light in each mode, each a quarter of the one before: 0.8 and 0.2, for two."""
    powers = 0.25 ** np.arange(modes)
    return powers / powers.sum()


def with_modes(probe: NDArray[np.complex128], powers: NDArray[np.float64]) -> NDArray[np.complex128]:
    """Orthogonal modes ``(mode, row, column)`` of given powers: the probe, and what a shaking of the source adds to it.

    The first is the probe; others are it times polynomials of the place, made orthogonal, as the Taylor series of a
    tilted beam gives them.
    """
    size = probe.shape[0]
    row = (np.arange(size) - (size - 1) / 2) / size * 6
    y, x = row[:, None], row[None]
    terms = [(p - q, q) for p in range(len(powers)) for q in range(p + 1)][: len(powers)]
    columns = np.stack([(probe * y**p * x**q).ravel() for p, q in terms], 1)
    basis, triangle = np.linalg.qr(columns)
    basis = basis * np.exp(1j * np.angle(np.diag(triangle)))
    return np.asarray((basis * np.sqrt(powers)).T.reshape(-1, size, size))


def light_diameter(probe: NDArray[np.complex128]) -> float:
    """Diameter in pixels of a disk as large as the probe's light: (Σ I)² / Σ I² pixels."""
    light = (np.abs(probe) ** 2).sum(0)
    return float(2 * math.sqrt(light.sum() ** 2 / (light**2).sum() / math.pi))


def scan_positions(count: int, step: float, path: ScanPath, seed: int) -> NDArray[np.float64]:
    """Row and column of each frame ``(frame, 2)``, about the middle of the scan; a frame for each step² of area.

    Parameters
    ----------
    count
        Frames.
    step
        Pixels.
    path
        "spiral": turned by the golden angle from frame to frame (X. Huang et al., Optics Express 22 (2014) 12634), or
        "grid": row by row, each position moved at random by up to `JITTER` of a step.
    seed
        Of the grid.

    Raises
    ------
    UserError
        Another path.
    """
    number = np.arange(count)
    if path == "spiral":
        radius, angle = step * np.sqrt((number + 0.5) / math.pi), GOLDEN_ANGLE * number
        return np.stack([radius * np.sin(angle), radius * np.cos(angle)], 1)
    if path != "grid":
        raise UserError(f"there is no scan path {path!r}; choose spiral or grid")
    across = math.ceil(math.sqrt(count))
    grid = np.stack([number // across, number % across], 1) * step
    grid = grid + np.random.default_rng([seed, 2]).uniform(-JITTER, JITTER, grid.shape) * step
    return np.asarray(grid - grid.mean(0))
