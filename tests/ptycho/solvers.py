"""A small solver for tests of the driver, with all that engines may do: momentum, passes, what blocks keep, batches."""

import dataclasses
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.io.sources import ArraySource
from dtomo.ptycho.engine import Engine, Parameters
from dtomo.ptycho.frames import FrameBlock, to_detector_order
from dtomo.windows import Rows, Window

SIZE = 16
"""Rows and columns of a frame."""


def positions_of(side: int, step: float = 5.0) -> NDArray[np.float64]:
    """A raster of side × side positions, slightly uneven."""
    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), -1).reshape(-1, 2) * step
    return grid + np.round(np.random.default_rng(1).uniform(-1, 1, grid.shape)) + 1


def scan(side: int, dtype: Any = np.uint16) -> tuple[ArraySource, Parameters]:
    """Frames in detector order of a random object, and first guesses."""
    random = np.random.default_rng(0)
    positions = positions_of(side)
    extent = int(positions.max()) + SIZE + 1
    sample = np.exp(1j * random.uniform(-0.5, 0.5, (extent, extent))).astype(np.complex64)
    row = np.arange(SIZE) - (SIZE - 1) / 2
    probe = np.exp(-(row[:, None] ** 2 + row**2) / 20 + 0.03j * row**2).astype(np.complex64) * 20
    waves = np.fft.fft2(probe * patches(sample, positions), norm="ortho")
    frames = to_detector_order(np.round(np.abs(waves) ** 2)).astype(dtype)
    parameters = {
        "object": np.ones((extent, extent), np.complex64),
        "probe": probe,
        "scale": np.ones(len(positions), np.float32),
        "positions": positions,
    }
    return ArraySource(frames), parameters


def patches(sample: NDArray[Any], positions: NDArray[np.float64]) -> NDArray[Any]:
    """Parts of an object under the probe, at whole pixels."""
    return np.stack([sample[int(r) : int(r) + SIZE, int(c) : int(c) + SIZE] for r, c in positions])


@dataclasses.dataclass(frozen=True)
class Descent(Engine):
    """Gradient descent with momentum on the amplitude loss of object, probe and scale of each frame.

    Attributes
    ----------
    passes
        Evaluations of the same frames in each step; each is an update.
    harm
        A file: the worker that evaluates frame 0 after `harm_at` passes dies, once, and makes it.
    """

    batch: int | None = None
    keeps: bool = False
    tiled: bool = False
    passes: int = 1
    rate: float = 0.2
    harm: Path | None = None
    harm_at: int = 3
    failure: str = ""

    def begin(self, parameters: Parameters) -> dict[str, Any]:
        moments = {name: np.zeros_like(parameters[name]) for name in ("object", "probe")}
        return {"parameters": parameters, "moments": moments, "shared": {"phase": "first", "pass": 0}}

    def evaluate(self, sent: Mapping[str, Any], block: FrameBlock, kept: Any) -> tuple[dict[str, Any], Any]:
        parameters, shared = sent["parameters"], sent["shared"]
        self._fail(block, int(shared["pass"]))
        positions, scale = parameters["positions"][block.indices], parameters["scale"][block.indices, None, None]
        parts = patches(parameters["object"], positions)
        exits = parameters["probe"] * parts * scale
        waves = np.fft.fft2(exits, norm="ortho")
        amplitude, measured = np.abs(waves), np.sqrt(block.intensities.astype(np.float32))
        chi = np.fft.ifft2(waves - measured * waves / np.maximum(amplitude, np.float32(1e-6)), norm="ortho")
        if self.keeps or self.passes > 1:
            assert (kept is None) == (shared["phase"] == "first" and not (self.keeps and shared["pass"]))
            chi = chi if kept is None else np.float32(0.5) * (chi + kept["chi"])
        first = positions.min(0).astype(int)
        last = positions.max(0).astype(int) + SIZE
        gradient = np.zeros((last[0] - first[0], last[1] - first[1]), np.complex64)
        for change, (row, column) in zip(np.conj(parameters["probe"]) * chi * scale, positions.astype(int) - first):
            gradient[row : row + SIZE, column : column + SIZE] += change
        sums = {
            "loss": float(((amplitude - measured) ** 2).sum(dtype=np.float64)),
            "count": measured.size,
            "object": Window(gradient, (int(first[0]), int(first[1]))),
            "probe": (np.conj(parts) * chi * scale).sum(0),
            "scale": Rows(block.indices, np.real(np.conj(exits) * chi).sum((1, 2))),
        }
        return sums, {"chi": chi} if self.keeps or self.passes > 1 else None

    def update(self, state: dict[str, Any], sums: dict[str, Any]) -> dict[str, Any]:
        parameters, moments = state["parameters"], state["moments"]
        strength = np.float32(self.rate / np.abs(parameters["probe"]).max() ** 2)
        changes = {"object": sums["object"].put_into(parameters["object"].shape) * strength}
        changes["probe"] = sums["probe"] * np.float32(0.01)
        for name, change in changes.items():
            moments[name] *= np.float32(0.5)
            moments[name] += change
            parameters[name] -= moments[name]
        parameters["scale"] -= sums["scale"].put_into(parameters["scale"].shape) * np.float32(1e-6)
        done = int(state["shared"]["pass"]) + 1
        state["shared"] = {"phase": "again" if done % self.passes else "first", "pass": done}
        return state

    def _fail(self, block: FrameBlock, at: int) -> None:
        if 0 not in block.indices or at < self.harm_at:
            return
        if self.failure:
            raise ValueError(self.failure)
        if self.harm is not None and not self.harm.exists():
            self.harm.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Passes(Descent):
    """The same, with several evaluations of the same frames in each step."""

    def more(self, state: Mapping[str, Any]) -> bool:
        return bool(state["shared"]["phase"] == "again")


def same(one: Parameters, other: Parameters) -> bool:
    """Whether parameters have the same bits."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and one[name].tobytes() == other[name].tobytes() for name in one
    )
