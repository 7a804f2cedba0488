"""A synthetic scan for tests of solvers: structured object, probe of some modes, far field, noise or none."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.io.sources import ArraySource
from dtomo.ptycho.engine import Parameters
from dtomo.ptycho.frames import to_detector_order
from dtomo.ptycho.model import PtychoModel


@dataclasses.dataclass(frozen=True, eq=False)
class SmallScan:
    """Frames, what made them, and where a solver may begin."""

    source: ArraySource
    truth: Parameters
    guess: Parameters
    model: PtychoModel
    region: NDArray[np.bool_]


def small_scan(
    size: int = 32, side: int = 6, step: float = 5.0, *, modes: int = 1, photons: float | None = None, seed: int = 0
) -> SmallScan:
    """A jittered raster of side² frames over a random object of phase and absorption.

    `photons`: of a frame, with Poisson noise; None: 1e5 and no noise.
    """
    random = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), -1).reshape(-1, 2) * step
    positions = grid + random.uniform(-0.3 * step, 0.3 * step, grid.shape)
    positions = positions - positions.min(axis=0) + 8
    extent = int(positions.max()) + size + 9
    phase, absorption = (smooth((extent, extent), seed + k, 1.2) for k in (1, 2))
    sample = np.exp(0.6j * phase - 0.15 * (absorption + 2.5)).astype(np.complex64)
    probe = lens(size, modes, (photons or 1e5) / float((np.abs(sample) ** 2).mean()))
    truth = {"object": sample[None, None], "probe": probe, "positions": positions}
    model = PtychoModel((size, size))
    frames = model.intensities(truth, np.arange(len(positions)))
    if photons is not None:
        frames = random.poisson(frames).astype(np.float32)
    guess = {"object": np.ones_like(truth["object"]), "probe": blurred(probe), "positions": positions.copy()}
    region = np.zeros(sample.shape, bool)
    low, high = positions.min(axis=0).astype(int) + size // 3, positions.max(axis=0).astype(int) + size - size // 3
    region[low[0] : high[0], low[1] : high[1]] = True
    return SmallScan(ArraySource(to_detector_order(frames)), truth, guess, model, region)


def smooth(shape: tuple[int, int], seed: int, width: float) -> NDArray[Any]:
    """Random and real, smoothed, of mean zero and mean square one."""
    noise = np.random.default_rng(seed).normal(size=shape)
    rows, columns = (np.fft.fftfreq(number) for number in shape)
    low = np.exp(-2 * (np.pi * width) ** 2 * (rows[:, None] ** 2 + columns**2))
    image = np.fft.ifft2(np.fft.fft2(noise) * low).real
    image -= image.mean()
    return image / image.std()


def lens(size: int, modes: int, power: float) -> NDArray[np.complex64]:
    """A defocused spot of the size of a third of the frame, and weaker modes of one and two nodes."""
    row = (np.arange(size) - (size - 1) / 2) / (size / 7)
    r2 = row[:, None] ** 2 + row**2
    base = np.exp(-r2 / 2 + 0.9j * r2)
    found = np.stack([base, 0.5 * base * row[:, None], 0.35 * base * row][:modes])
    return (found * np.sqrt(power / (np.abs(found) ** 2).sum())).astype(np.complex64)


def blurred(probe: NDArray[Any]) -> NDArray[np.complex64]:
    """A guess of a probe: wrong defocus, wrong size, the modes noisy."""
    random = np.random.default_rng(9)
    row = (np.arange(probe.shape[-1]) - (probe.shape[-1] - 1) / 2) / (probe.shape[-1] / 7)
    r2 = row[:, None] ** 2 + row**2
    guess = probe * np.exp(-0.25j * r2) * np.exp(-0.05 * r2)
    noise = random.normal(size=probe.shape) + 1j * random.normal(size=probe.shape)
    guess = guess + 0.02 * np.abs(probe).max() * noise * np.exp(-r2 / 2)
    return (guess * np.sqrt((np.abs(probe) ** 2).sum() / (np.abs(guess) ** 2).sum())).astype(np.complex64)
