"""Steps of Adam with complex parameters; see `dtomo.ptycho.engines.adam`."""

from typing import Any, Protocol

import numpy as np

from dtomo.arrays import array_module
from dtomo.kernels.moments import adam_step
from dtomo.ptycho.engines.gradient import squared_modulus
from dtomo.windows import Rows


class Decay(Protocol):
    """How much of the moments is kept at each step, and what is added to the root of the second one."""

    @property
    def first(self) -> float:
        """β₁"""

    @property
    def second(self) -> float:
        """β₂"""

    @property
    def epsilon(self) -> float:
        """ε, in the units of the gradients."""


def no_moments(parameter: Any, per_row: bool = False) -> dict[str, Any]:
    """Moments before the first step; `per_row`: each row of the parameter has its own count of steps."""
    xp = array_module(parameter)
    steps = xp.zeros(len(parameter), np.int64) if per_row else 0
    return {"steps": steps, "first": xp.zeros_like(parameter), "second": xp.zeros_like(parameter.real)}


def step_of_whole(decay: Decay, parameter: Any, gradient: Any, moments: dict[str, Any], rate: float) -> Any:
    """The parameter after a step, in its own memory if it is an array; moments change in place."""
    steps = moments["steps"] = int(moments["steps"]) + 1
    if np.ndim(parameter) == 0:
        return _step_of_number(decay, parameter, gradient, moments, rate)
    adam_step(
        parameter,
        moments["first"],
        moments["second"],
        gradient,
        kept=(decay.first, decay.second),
        steps=steps,
        rate=rate,
        epsilon=decay.epsilon,
    )
    return parameter


def step_of_rows(decay: Decay, parameter: Any, gradient: Rows, moments: dict[str, Any], rate: float) -> Any:
    """Only rows that have a gradient move, and each has its own count of steps."""
    xp = array_module(parameter)
    rows, g = xp.asarray(gradient.index), gradient.values
    moments["steps"][rows] += 1
    steps = moments["steps"][rows].reshape(-1, *(1,) * (parameter.ndim - 1)).astype(np.float64)
    m = decay.first * moments["first"][rows] + (1 - decay.first) * g
    v = decay.second * moments["second"][rows] + (1 - decay.second) * squared_modulus(g)
    moments["first"][rows], moments["second"][rows] = m, v
    root = np.sqrt(v / (1 - decay.second**steps)) + decay.epsilon
    parameter[rows] -= (rate * m / (1 - decay.first**steps) / root).astype(parameter.dtype)
    return parameter


def _step_of_number(decay: Decay, parameter: Any, gradient: Any, moments: dict[str, Any], rate: float) -> Any:
    moments["first"] = decay.first * moments["first"] + (1 - decay.first) * gradient
    moments["second"] = decay.second * moments["second"] + (1 - decay.second) * abs(gradient) ** 2
    root = (moments["second"] / (1 - decay.second ** moments["steps"])) ** 0.5
    return parameter - rate * moments["first"] / (1 - decay.first ** moments["steps"]) / (root + decay.epsilon)
