"""Small models of arrays that tests fit."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np


def line(count: int = 103, seed: int = 0) -> tuple[Any, Any]:
    """Points ``(count, 5)`` and values of a linear function of them, with noise."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(count, 5))
    return points, points @ np.arange(5.0) + 0.1 * rng.normal(size=count)


class Line:
    """Least squares by real weights and a complex offset, of which the data sees the real part."""

    def __init__(self) -> None:
        self.parameters = {"weights": np.zeros(5), "offset": np.full(2, 0.5 + 0.5j, np.complex64)}

    def loss_and_gradient(self, parameters: Any, batch: Any) -> Any:
        points, values = batch
        residual = points @ parameters["weights"] + parameters["offset"].real.sum() - values
        offset = np.full(2, residual.sum(), np.complex64)
        return float((residual**2).sum()), len(values), {"weights": 2 * points.T @ residual, "offset": offset}

    def metrics(self, parameters: Any, batch: Any) -> Any:
        points, values = batch
        return {"off": float(np.abs(points @ parameters["weights"] - values).sum())}


class OfIm:
    """The mean of |Im z - sample|² for complex z: nothing depends on Re z."""

    def __init__(self, real: bool = False) -> None:
        self.real = real
        self.parameters = {"z": np.zeros((), np.float32 if real else np.complex64)}

    def loss_and_gradient(self, parameters: Any, batch: Any) -> Any:
        z = parameters["z"]
        off = (z if self.real else z.imag) - batch
        # d/dz̄ = (d/dx + i d/dy) / 2
        slope = 2 * off.sum() if self.real else np.complex64(1j * off.sum())
        return float((off**2).sum()), len(batch), {"z": slope}


class C16:
    """|z - (1 + 2i)|² for every sample."""

    def __init__(self) -> None:
        self.parameters = {"z": np.zeros(1, np.complex64)}

    def loss_and_gradient(self, parameters: Any, batch: Any) -> Any:
        off = parameters["z"] - (1 + 2j)
        return len(batch) * float(np.sum(np.abs(off) ** 2)), len(batch), {"z": (len(batch) * off).astype(np.complex64)}


class KillsOnce(Line):
    """Ends its process the first time that it meets a file."""

    def __init__(self, trigger: Path) -> None:
        super().__init__()
        self.trigger = trigger

    def loss_and_gradient(self, parameters: Any, batch: Any) -> Any:
        if self.trigger.exists():
            self.trigger.unlink(missing_ok=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss_and_gradient(parameters, batch)


class KillsAlways(Line):
    """Ends every worker that it comes to."""

    def loss_and_gradient(self, parameters: Any, batch: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class Noisy(Line):
    """With random numbers in each block."""

    def loss_and_gradient(self, parameters: Any, batch: Any, rng: Any = None) -> Any:
        points, values = batch
        return super().loss_and_gradient(parameters, (points + 0.1 * rng.normal(size=points.shape), values))
