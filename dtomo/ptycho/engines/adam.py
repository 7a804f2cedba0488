"""Adam with complex parameters: the second moment is of |g|², one real number for each complex entry.

D. P. Kingma and J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1. A complex parameter moves
along its complex gradient, whichever way the complex plane is turned; taken as pairs of reals it would not.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dtomo.errors import UserError
from dtomo.ptycho.engine import Parameters
from dtomo.ptycho.engines.gradient import REFINED, GradientEngine, known_names, size_of
from dtomo.ptycho.engines.moments import no_moments, step_of_rows, step_of_whole
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
                moments[name] = no_moments(parameter, isinstance(gradient, Rows))
            if isinstance(gradient, Rows):
                parameters[name] = step_of_rows(self, parameter, gradient, moments[name], rate)
            else:
                parameters[name] = step_of_whole(self, parameter, gradient, moments[name], rate)
        if "moves" in sums:
            moments["positions"]["first"][self.move(parameters, sums["moves"])] = 0
        self.settle(state, parameters, tuple(gradients))
        state = {**state, "parameters": parameters, "moments": moments}
        self.count_frames(state, sums["frames"])
        return state
