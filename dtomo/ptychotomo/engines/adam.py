"""Adam for the volume and all that is shared, with ordered subsets of the angles.

D. P. Kingma and J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1, with one real second
moment for each complex number (see `dtomo.ptycho.engines.adam`). Voxels that hardly any light passes have hardly any
gradient; so that they do not move as far as the others, a part of the mean second moment of all voxels is added to
their own. The first step only finds out how large that is.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.ptycho.engines.gradient import squared_modulus
from dtomo.ptycho.engines.moments import no_moments, step_of_rows, step_of_whole
from dtomo.ptychotomo.engine import Common, Local, SlabPlace
from dtomo.ptychotomo.engines.volume_engine import REFINED, VolumeEngine
from dtomo.windows import Rows

RATES: Mapping[str, float] = {
    "volume": 0.1,
    "probe": 0.01,
    "shifts": 0.1,
    "ramps": 0.05,
    "scale": 0.002,
    "background": 0.01,
}
"""Steps where nothing else is said. The volume's: radians on a ray through the whole of it; the probe's: of its largest
modulus; of shifts: pixels; of ramps: pixels of the detector; of the background: of its root mean square."""

PER_ANGLE = ("shifts", "ramps", "scale")


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointAdam(VolumeEngine):
    """Adam, a step for each subset of the angles.

    Attributes
    ----------
    rates
        Length of the first steps by name; default: `RATES`.
    decay
        Factor of all rates from one epoch to the next.
    first, second
        How much of the moments is kept at each step (β₁, β₂).
    epsilon
        Added to the root of the second moment.
    damping
        What is added for the volume, in units of the root of the mean second moment.

    Raises
    ------
    UserError
        Names that nothing has, or numbers out of range.
    """

    subsets: int = 6
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    decay: float = 0.97
    first: float = 0.9
    second: float = 0.99
    epsilon: float = 1e-12
    damping: float = 0.1

    arrays: ClassVar[tuple[tuple[str, type], ...]] = (
        ("gradient", np.complex64),
        ("first", np.complex64),
        ("second", np.float32),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, rate in self.rates.items():
            if name not in REFINED or not np.isfinite(rate) or rate < 0:
                raise UserError(f"rates are numbers from 0 of {', '.join(REFINED)}; got {name}={rate}")
        for name, kept in (("first", self.first), ("second", self.second)):
            if not 0 <= kept < 1:
                raise UserError(f"how much is kept of the {name} moment is from 0 to below 1; got {kept}")
        if not 0 < self.decay <= 1 or not self.epsilon > 0 or not self.damping >= 0:
            raise UserError(
                "decay is above 0 and at most 1, epsilon above 0, damping from 0; got "
                f"{self.decay}, {self.epsilon} and {self.damping}"
            )

    def begin_common(self, parameters: Mapping[str, Any]) -> Common:
        """No moments yet."""
        common = super().begin_common(parameters)
        per_angle = {name: name in PER_ANGLE or np.ndim(parameters[name]) == 4 for name in parameters}
        moments = {name: no_moments(parameters[name], per_angle[name]) for name in self.refine if name != "volume"}
        return {**common, "moments": moments, "units": self._units(parameters), "steps": 0, "level": 0.0}

    def absorb(
        self, place: SlabPlace, local: Local, common: Common, above: NDArray[Any] | None, below: NDArray[Any] | None
    ) -> dict[str, Any]:
        """A step of the volume, and what the second moment of all voxels is the mean of."""
        if "volume" not in self.refined(common):
            return {"square": 0.0, "voxels": 0}
        volume, gradient = local["volume"], local["gradient"]
        self.constraints.penalize(volume, gradient, above, below, 1 / self.subsets)
        steps = int(common["steps"]) + 1
        bias = 1 - self.first**steps, 1 - self.second**steps
        rate = self._rate("volume", common) if steps > 1 else 0.0
        least = self.epsilon + self.damping * float(common["level"]) ** 0.5

        def work(z: Any, m: Any, v: Any, g: Any) -> None:
            m *= self.first
            m += (1 - self.first) * g
            v *= self.second
            v += (1 - self.second) * squared_modulus(g)
            if rate:
                z -= (rate / bias[0]) * m / (np.sqrt(v / bias[1]) + least)

        in_pieces(work, volume, local["first"], local["second"], gradient)
        self.constraints.project(place, volume)
        return {"square": float(local["second"].sum(dtype=np.float64)) / bias[1], "voxels": gradient.size}

    def advance(self, common: Common, sums: Mapping[str, Any]) -> Common:
        """Steps of all that is shared."""
        parameters = common["parameters"]
        for name, gradient in sums["gradients"].items():
            moments, rate = common["moments"][name], self._rate(name, common)
            if len(np.shape(moments["steps"])):
                rows = Rows(sums["angles"], gradient[sums["angles"]])
                parameters[name] = step_of_rows(self, parameters[name], rows, moments, rate)
            else:
                parameters[name] = step_of_whole(self, parameters[name], gradient, moments, rate)
        self.bounded(common)
        if sums["slabs"]["voxels"]:
            common["level"] = sums["slabs"]["square"] / sums["slabs"]["voxels"]
            common["steps"] = int(common["steps"]) + 1
        self.seen(common, sums)
        return common

    def _rate(self, name: str, common: Common) -> float:
        units = float(common["units"].get(name, 1.0))
        return float(self.rates.get(name, RATES[name])) * units * self.decay ** self.epoch(common)

    def _units(self, parameters: Mapping[str, Any]) -> dict[str, float]:
        rows, columns = self.model.frames.probe_shape
        units = {
            "volume": 1 / max(self.model.volume_shape[1:]),
            "probe": float(np.abs(parameters["probe"]).max()),
            "ramps": 2 * np.pi / max(rows, columns),
        }
        if "background" in parameters:
            units["background"] = max(1.0, float((parameters["background"] ** 2).mean(dtype=np.float64)) ** 0.5)
        return units
