"""Phantoms with closed-form projections, and the real data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"


def ellipse_lines(
    columns: int, center: float, angles: Any, ellipses: list[tuple[float, float, float, float, float, float]]
) -> np.ndarray:
    """Line integrals (angle, column) of ellipses (x, y, half axis a, half axis b, tilt in radians, value)."""
    theta = np.deg2rad(np.asarray(angles, float))
    u = np.arange(columns) - center
    out = np.zeros((len(theta), columns))
    for x, y, a, b, tilt, value in ellipses:
        square = (a * np.cos(theta - tilt)) ** 2 + (b * np.sin(theta - tilt)) ** 2
        distance = u - (x * np.cos(theta) + y * np.sin(theta))[:, None]
        inside = np.maximum(square[:, None] - distance**2, 0)
        out += 2 * value * a * b * np.sqrt(inside) / square[:, None]
    return out.astype(np.float32)


def random_scan(
    columns: int, center: float, angles: Any, *, rows: int = 2, seed: int = 0, full: bool = False
) -> np.ndarray:
    """Projections (angle, row, column) of ten random ellipses per row, all within the field of the scan."""
    rng = np.random.default_rng(seed)
    sides = (center, columns - 1 - center)
    field = (max(sides) if full else min(sides)) - 2
    out = []
    for _ in range(rows):
        ellipses = []
        for _ in range(10):
            radius, phase = field * rng.uniform(0, 0.7), rng.uniform(0, 2 * np.pi)
            a, b = rng.uniform(0.05, 1, 2) * (field - radius) * 0.8
            x, y = radius * np.cos(phase), radius * np.sin(phase)
            ellipses.append((x, y, a, b, rng.uniform(0, np.pi), rng.uniform(0.2, 1) * 0.75 / field))
        out.append(ellipse_lines(columns, center, angles, ellipses))
    return np.stack(out, axis=1)


def count_photons(attenuation: np.ndarray, photons: float, seed: int = 0) -> np.ndarray:
    """The attenuation as measured with so many photons per pixel of open beam."""
    counts = np.random.default_rng(seed).poisson(photons * np.exp(-attenuation.astype(float)))
    return (-np.log(np.maximum(counts, 1) / photons)).astype(np.float32)


@pytest.fixture
def lines() -> Callable[..., np.ndarray]:
    return ellipse_lines


@pytest.fixture
def scan() -> Callable[..., np.ndarray]:
    return random_scan


@pytest.fixture
def photons() -> Callable[..., np.ndarray]:
    return count_photons


@pytest.fixture
def data() -> Callable[[str], Path]:
    def find(name: str) -> Path:
        if not (DATA / name).exists():
            pytest.skip(f"real data {name} is not beside the repository")
        return DATA / name

    return find
