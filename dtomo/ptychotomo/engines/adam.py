"""Adam for the volume and all that is shared, with ordered subsets of the angles.

D. P. Kingma and J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1, with one real second
moment for each complex number (see `dtomo.ptycho.engines.adam`). Voxels that hardly any light passes have hardly any
gradient; so that they do not move as far as the others, a part of the mean second moment of all voxels is added to
their own. The first step only finds out how large that is.

Gradients of shifts point the right way within the size of the finest structure of the light only. Shifts that are wrong
by more are searched for at random: passes that only take losses try others, each angle for itself, and what is better
stays.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.kernels.moments import adam_step
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

NEAREST = 0.2
"""Pixels that the last trials of a search are away."""

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
    search_trials
        Of shifts, in each step; 0: none.
    search_reach
        Pixels, root mean square in rows and columns, that the first trials are away; later ones are nearer.
    search_epochs
        In which shifts are searched for.

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
    damping: float = 0.03
    search_trials: int = 0
    search_reach: float = 3.0
    search_epochs: int = 30

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
        if self.search_trials < 0 or not self.search_reach > 0 or self.search_epochs < 1:
            raise UserError(
                "trials of a search are from 0, its reach above 0 pixels, its epochs 1 at least; got "
                f"{self.search_trials}, {self.search_reach} and {self.search_epochs}"
            )
        if self.search_trials and "shifts" not in self.refine:
            raise UserError("a search is for shifts; refine them, or leave search_trials out")
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
        common |= {"moments": moments, "units": self._units(parameters), "steps": 0, "level": 0.0}
        common |= {"phase": "gradient", "trial": 0, "best": {}}
        return self._next_step(common)

    def wanted(self, common: Common) -> tuple[str, ...]:
        """Nothing but losses while shifts are searched for."""
        return super().wanted(common) if common["phase"] == "gradient" else ()

    def more(self, common: Common) -> bool:
        """Until the gradient has come."""
        return int(common["trial"]) > 0

    def prepare(self, place: SlabPlace, local: Local, common: Common) -> None:
        """An empty gradient, where one comes."""
        if common["phase"] == "gradient":
            super().prepare(place, local, common)

    def absorb(
        self, place: SlabPlace, local: Local, common: Common, above: NDArray[Any] | None, below: NDArray[Any] | None
    ) -> dict[str, Any]:
        """A step of the volume, and what the second moment of all voxels is the mean of."""
        if "volume" not in self.refined(common) or common["phase"] != "gradient":
            return {"square": 0.0, "voxels": 0}
        volume, gradient = local["volume"], local["gradient"]
        self.constraints.penalize(volume, gradient, above, below, 1 / self.subsets)
        steps = int(common["steps"]) + 1
        rate = self._rate("volume", common) if steps > 1 else 0.0
        least = self.epsilon + self.damping * float(common["level"]) ** 0.5
        kept = self.first, self.second
        adam_step(volume, local["first"], local["second"], gradient, kept=kept, steps=steps, rate=rate, epsilon=least)
        self.constraints.project(place, volume)
        return {
            "square": float(local["second"].sum(dtype=np.float64)) / (1 - self.second**steps),
            "voxels": gradient.size,
        }

    def advance(self, common: Common, sums: Mapping[str, Any]) -> Common:
        """Steps of all that is shared, or the next trial of a search."""
        if common["phase"] != "gradient":
            return self._tried(common, sums)
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
        return self._next_step(common)

    def _next_step(self, common: Common) -> Common:
        """A step begins with a search while there is one."""
        since = self.epoch(common) - self.start.get("shifts", 0)
        searching = self.search_trials > 0 and 0 <= since < self.search_epochs
        common |= {"phase": "search" if searching else "gradient", "trial": 0}
        return common

    def _tried(self, common: Common, sums: Mapping[str, Any]) -> Common:
        """Keep what was better for its angle; try again, or go on to the gradient."""
        angles, trial = sums["angles"], int(common["trial"])
        shifts, losses = np.array(common["parameters"]["shifts"]), sums["losses"][angles]
        if trial == 0:
            best = {"shifts": shifts.copy(), "losses": losses}
        else:
            best = common["best"]
            better = losses < best["losses"]
            best["losses"] = np.where(better, losses, best["losses"])
            best["shifts"][angles[better]] = shifts[angles[better]]
        found = best["shifts"].copy()
        last = trial == self.search_trials
        if not last:
            progress = (self.epoch(common) - self.start.get("shifts", 0)) / self.search_epochs
            reach = self.search_reach * (NEAREST / self.search_reach) ** progress
            random = np.random.default_rng([self.epoch(common), int(angles[0]), trial])
            found[angles] += reach * random.standard_normal((len(angles), 2))
        else:
            moved = angles[(found[angles] != common["first"][angles]).any(1)] if "first" in common else angles[:0]
            common["moments"]["shifts"]["first"][moved] = 0
        if trial == 0:
            common["first"] = best["shifts"].copy()
        common["parameters"] = {**common["parameters"], "shifts": found}
        self.bounded(common)
        common |= {"best": best, "trial": trial + 1, "phase": "gradient" if last else "search"}
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
