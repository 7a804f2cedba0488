"""Small scans for tests of the model: parameters of any kind, counts, and the model written out frame by frame."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.ptycho.frames import FrameBlock

SHAPE = (12, 10)
FRAMES = 7


def waves(random: np.random.Generator, *shape: int) -> NDArray[np.complex128]:
    """Complex numbers of about 1."""
    return random.normal(size=shape) + 1j * random.normal(size=shape)


def parameters(
    *, modes: int = 1, object_modes: int = 1, slices: int = 1, everything: bool = False, seed: int = 0
) -> dict[str, Any]:
    """Random parameters in double precision; `everything`: all that the model knows of."""
    random = np.random.default_rng(seed)
    found: dict[str, Any] = {
        "object": waves(random, object_modes, slices, 30, 28),
        "probe": waves(random, modes, *SHAPE),
        "positions": random.uniform(0, 1, (FRAMES, 2)) * (30 - SHAPE[0] - 1, 28 - SHAPE[1] - 1),
    }
    if everything:
        found["variable_probe"] = waves(random, 2, modes, *SHAPE)
        found["probe_weights"] = 0.3 * waves(random, FRAMES, 2)
        found["background"] = random.uniform(0.2, 1, SHAPE)
        found["scale"] = random.uniform(0.5, 1.5, FRAMES)
    return found


def single(values: dict[str, Any]) -> dict[str, Any]:
    """The same in single precision, positions excepted."""
    kinds = {"c": np.complex64, "f": np.float32}
    return {n: v if n == "positions" else v.astype(kinds[v.dtype.kind]) for n, v in values.items()}


def counts(seed: int = 1, mean: float = 30.0, dtype: Any = np.uint16) -> NDArray[Any]:
    """Counts of all frames, some of them zero."""
    random = np.random.default_rng(seed)
    return random.poisson(mean * random.exponential(1, (FRAMES, *SHAPE))).astype(dtype)


def block(frames: NDArray[Any]) -> FrameBlock:
    """All frames in one block."""
    return FrameBlock(np.arange(len(frames), dtype=np.int64), frames)


def exit_waves(values: dict[str, Any], frame: int, subpixel: bool = True) -> NDArray[np.complex128]:
    """Exit waves of a frame ``(object mode, mode, row, column)``, written out."""
    rows, columns = SHAPE
    probe = values["probe"].astype(complex)
    if "variable_probe" in values:
        probe = probe + sum(w * v for w, v in zip(values["probe_weights"][frame], values["variable_probe"]))
    place = values["positions"][frame]
    corner = np.floor(place + 0.5).astype(int)
    if subpixel:
        down, across = place - corner
        turn = np.fft.fftfreq(rows)[:, None] * down + np.fft.fftfreq(columns) * across
        probe = np.fft.ifft2(np.fft.fft2(probe) * np.exp(-2j * np.pi * turn))
    probe = probe * values.get("scale", np.ones(FRAMES))[frame]
    patch = values["object"][:, 0, corner[0] : corner[0] + rows, corner[1] : corner[1] + columns]
    return np.array([[p * o for p in probe] for o in patch])


def intensities(values: dict[str, Any], subpixel: bool = True) -> NDArray[np.float64]:
    """What the detector sees of all frames, written out, far field."""
    found = []
    for frame in range(FRAMES):
        far = np.fft.fft2(exit_waves(values, frame, subpixel), norm="ortho")
        found.append((np.abs(far) ** 2).sum((0, 1)) + values.get("background", np.zeros(SHAPE)) ** 2)
    return np.array(found)
