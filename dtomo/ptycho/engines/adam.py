"""Adam with complex parameters: the second moment is of |g|², one real number for each complex entry.

D. P. Kingma and J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1. A complex parameter moves
along its complex gradient, whichever way the complex plane is turned; taken as pairs of reals it would not.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dtomo.arrays import array_module
from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.ptycho.engine import Parameters
from dtomo.ptycho.engines.gradient import REFINED, GradientEngine, known_names, size_of, squared_modulus
from dtomo.windows import Rows

RATES: Mapping[str, float] = {
    "object": 0.05,
    "probe": 0.05,
    "variable_probe": 0.05,
    "probe_weights": 0.01,
    "background": 0.01,
    "scale": 0.002,
    "positions": 0.2,
    "distance": 0.001,
}
"""Steps where nothing else is said, in units of `dtomo.ptycho.engines.gradient.size_of`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam(GradientEngine):
    """Adam, a step for each batch.

    Attributes
    ----------
    rates
        Length of the first steps by name, in units of the parameter: of 1 for the object, of the largest modulus of
        the first probe for the probe, of pixels for positions, and so on; default: `RATES`.
    decay
        Factor of all rates from one epoch to the next.
    first, second
        How much of the moments is kept at each step (β₁, β₂).
    epsilon
        Added to the root of the second moment, in the units of the gradients.

    Raises
    ------
    UserError
        Names that nothing has, or numbers out of range.
    """

    batch: int | None = 32
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    decay: float = 0.99
    first: float = 0.9
    second: float = 0.999
    epsilon: float = 1e-8
    tiled: bool = dataclasses.field(init=False)

    searches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        coupled = any(penalty.parameter == "object" for penalty in self.constraints.penalties)
        object.__setattr__(self, "tiled", not coupled and "positions" not in self.wanted)
        known_names(self.rates, REFINED, "has a rate")
        for name, rate in self.rates.items():
            if not np.isfinite(rate) or rate < 0:
                raise UserError(f"the rate of {name} is a number from 0; got {rate}")
        for name, kept in (("first", self.first), ("second", self.second)):
            if not 0 <= kept < 1:
                raise UserError(f"how much is kept of the {name} moment is from 0 to below 1; got {kept}")
        if not 0 < self.decay <= 1 or not self.epsilon > 0:
            raise UserError(f"decay is above 0 and at most 1, epsilon above 0; got {self.decay} and {self.epsilon}")

    def begin(self, parameters: Parameters) -> dict[str, Any]:
        """No moments yet."""
        state = super().begin(parameters)
        return {**state, "sizes": {name: size_of(name, parameters) for name in self.wanted}, "moments": {}}

    def update(self, state: dict[str, Any], sums: dict[str, Any]) -> dict[str, Any]:
        """A step."""
        parameters, moments = dict(state["parameters"]), dict(state["moments"])
        decay = self.decay ** state["shared"]["epoch"]
        gradients = self.whole_gradients(parameters, sums)
        for name, gradient in gradients.items():
            rate = float(self.rates.get(name, RATES[name]) * state["sizes"][name] * decay)
            parameter = parameters[name]
            if name not in moments:
                moments[name] = _no_moments(parameter, isinstance(gradient, Rows))
            if isinstance(gradient, Rows):
                parameters[name] = self._step_of_rows(parameter, gradient, moments[name], rate)
            else:
                parameters[name] = self._step(parameter, gradient, moments[name], rate)
        if "moves" in sums:
            moments["positions"]["first"][self.move(parameters, sums["moves"])] = 0
        self.settle(state, parameters, tuple(gradients))
        state = {**state, "parameters": parameters, "moments": moments}
        self.count_frames(state, sums["frames"])
        return state

    def _step(self, parameter: Any, gradient: Any, moments: dict[str, Any], rate: float) -> Any:
        """The parameter after a step; moments change in place."""
        steps = moments["steps"] = int(moments["steps"]) + 1
        if np.ndim(parameter) == 0:
            return self._step_of_number(parameter, gradient, moments, rate)
        first, second = self.first, self.second
        bias = 1 - first**steps, 1 - second**steps

        def work(z: Any, m: Any, v: Any, g: Any) -> None:
            m *= first
            m += (1 - first) * g
            v *= second
            v += (1 - second) * squared_modulus(g)
            z -= (rate / bias[0]) * m / (np.sqrt(v / bias[1]) + self.epsilon)

        in_pieces(work, parameter, moments["first"], moments["second"], gradient)
        return parameter

    def _step_of_number(self, parameter: Any, gradient: Any, moments: dict[str, Any], rate: float) -> Any:
        moments["first"] = self.first * moments["first"] + (1 - self.first) * gradient
        moments["second"] = self.second * moments["second"] + (1 - self.second) * abs(gradient) ** 2
        root = (moments["second"] / (1 - self.second ** moments["steps"])) ** 0.5
        return parameter - rate * moments["first"] / (1 - self.first ** moments["steps"]) / (root + self.epsilon)

    def _step_of_rows(self, parameter: Any, gradient: Rows, moments: dict[str, Any], rate: float) -> Any:
        """Only rows that have a gradient move, and each has its own count of steps."""
        xp = array_module(parameter)
        rows, g = xp.asarray(gradient.index), gradient.values
        moments["steps"][rows] += 1
        steps = moments["steps"][rows].reshape(-1, *(1,) * (parameter.ndim - 1)).astype(np.float64)
        m = self.first * moments["first"][rows] + (1 - self.first) * g
        v = self.second * moments["second"][rows] + (1 - self.second) * squared_modulus(g)
        moments["first"][rows], moments["second"][rows] = m, v
        root = np.sqrt(v / (1 - self.second**steps)) + self.epsilon
        parameter[rows] -= (rate * m / (1 - self.first**steps) / root).astype(parameter.dtype)
        return parameter


def _no_moments(parameter: Any, per_frame: bool) -> dict[str, Any]:
    xp = array_module(parameter)
    steps = xp.zeros(len(parameter), np.int64) if per_frame else 0
    return {"steps": steps, "first": xp.zeros_like(parameter), "second": xp.zeros_like(parameter.real)}
