"""Nonlinear conjugate gradients for all frames at once, preconditioned, with a line search over sums of losses.

Directions of E. Polak and G. Ribière (Rev. Fr. Inform. Rech. Opér. 3-R1 (1969) 35), set back to the gradient where
their factor turns negative (J. C. Gilbert and J. Nocedal, SIAM J. Optim. 2 (1992) 21), or of Y. H. Dai and Y. Yuan
(SIAM J. Optim. 10 (1999) 177). A step takes a pass for the gradient and, as a rule, one for the loss at a trial point:
the parabola through both gives the step length, exactly so where the loss is quadratic.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from dtomo.errors import UserError
from dtomo.ptycho.curvatures import curvatures
from dtomo.ptycho.engine import Parameters
from dtomo.ptycho.engines.gradient import GradientEngine, whole_array
from dtomo.ptycho.frames import FrameBlock

REACH = 4.0
"""Step lengths are trusted up to so many times the trial's, and down to one part in so many of it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConjugateGradient(GradientEngine):
    """Conjugate gradients; an epoch is one step.

    Attributes
    ----------
    rule
        ``"polak-ribiere"`` or ``"dai-yuan"``.
    damping
        Added to the curvatures that gradients are divided by, in units of the largest: keeps pixels calm that hardly
        any light falls on.
    tries
        Passes of a line search at most.

    Raises
    ------
    UserError
        Names that nothing has, numbers out of range, or a distance to be refined: nothing is known of its curvature.
    """

    rule: Literal["polak-ribiere", "dai-yuan"] = "polak-ribiere"
    damping: float = 0.01
    tries: int = 8

    searches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch is not None:
            raise UserError("conjugate gradients take all frames in each step; leave the batch out, or use adam")
        if "distance" in self.wanted:
            raise UserError("conjugate gradients do not refine the distance; use adam for it")
        if self.rule not in ("polak-ribiere", "dai-yuan"):
            raise UserError(f"rules are polak-ribiere and dai-yuan; got {self.rule}")
        if not self.damping > 0 or self.tries < 1:
            raise UserError(f"damping is above 0 and tries at least 1; got {self.damping} and {self.tries}")

    def begin(self, parameters: Parameters) -> dict[str, Any]:
        """No direction yet; the first pass is for the gradient."""
        state = super().begin(parameters)
        state["shared"]["phase"] = "gradient"
        return {**state, "base": {}, "direction": {}, "gradient": {}, "length": 1.0, "tries": 0}

    def steps(self, epoch: int, batches: int) -> Sequence[Sequence[int]]:
        """One step with everything."""
        return [list(range(batches))]

    def more(self, state: Mapping[str, Any]) -> bool:
        """While a line search is on."""
        return state["shared"]["phase"] == "trial"

    def evaluate(self, sent: Mapping[str, Any], block: FrameBlock, kept: Any) -> tuple[dict[str, Any], Any]:
        """Loss, and gradients where a direction is to be found."""
        searching = sent["shared"]["phase"] == "trial"
        return self.evaluated(sent, block, () if searching else self.wanted_in(sent["shared"]["epoch"])), None

    def update(self, state: dict[str, Any], sums: dict[str, Any]) -> dict[str, Any]:
        """A new direction and a trial along it, or what a trial tells."""
        state = dict(state)
        parameters = state["parameters"]
        if state["shared"]["phase"] == "trial":
            return self._tried(state, float(sums["loss"]) + self.constraints.value(parameters))
        value = float(sums["loss"]) + self.constraints.value(parameters)
        if state["base"] and value > state["loss"] and not self.constraints.projections and state["tries"] < self.tries:
            return self._tried(state, value)
        gradients = {name: whole_array(part, parameters[name]) for name, part in sums["gradients"].items()}
        gradients = self.constraints.penalized(parameters, gradients)[1]
        if "moves" in sums:
            state["moves"] = sums["moves"]
        return self._turned(state, value, gradients)

    def finish(self, state: dict[str, Any]) -> Parameters:
        """The last point that a step ended at."""
        if state["shared"]["phase"] == "trial":
            return {**state["parameters"], **state["base"]}
        return dict(state["parameters"])

    def _turned(self, state: dict[str, Any], value: float, gradients: dict[str, Any]) -> dict[str, Any]:
        """A direction from the gradient, and the first trial along it."""
        downhill = self._preconditioned(state["parameters"], gradients)
        factor = self._factor(state, gradients, downhill)
        direction = downhill
        if factor > 0:
            direction = {name: part + factor * state["direction"][name] for name, part in downhill.items()}
        slope = inner(gradients, direction)
        if slope >= 0:
            direction, slope = downhill, inner(gradients, downhill)
        base = {name: state["parameters"][name] for name in direction}
        state |= {"base": base, "loss": value, "direction": direction, "slope": slope, "tries": 0}
        state |= {"gradient": gradients, "decrease": inner(gradients, downhill)}
        if slope == 0:
            return self._ended(state)
        return self._trial(state, float(state["length"]))

    def _factor(self, state: dict[str, Any], gradients: dict[str, Any], downhill: dict[str, Any]) -> float:
        """How much of the last direction goes into the new one (β)."""
        before = state["gradient"]
        if before.keys() != gradients.keys():
            return 0.0
        if self.rule == "polak-ribiere":
            below = state["decrease"]
            change = inner(gradients, downhill) - inner(before, downhill)
        else:
            below = state["slope"] - inner(gradients, state["direction"])
            change = inner(gradients, downhill)
        return max(0.0, change / below) if below else 0.0

    def _preconditioned(self, parameters: Parameters, gradients: dict[str, Any]) -> dict[str, Any]:
        """Minus the gradients over the curvatures."""
        bends = curvatures(parameters, tuple(gradients), exponential=self.model.exponential)
        result = {}
        for name, gradient in gradients.items():
            bend = bends[name]
            bend = bend + self.damping * (bend.max() if np.ndim(bend) else bend)
            result[name] = (-gradient / bend).astype(gradient.dtype, copy=False)
        return result

    def _trial(self, state: dict[str, Any], length: float) -> dict[str, Any]:
        """The point at this length, to be evaluated."""
        state |= {"length": length, "tries": state["tries"] + 1, "parameters": self._point(state, length)}
        state["shared"] = {**state["shared"], "phase": "trial"}
        return state

    def _tried(self, state: dict[str, Any], value: float) -> dict[str, Any]:
        """Loss of the point at the present length: another trial, or the end of the step."""
        length = float(state["length"])
        best = lowest(length, value - state["loss"], state["slope"])
        nearest = min(max(best, length / REACH**2), length * REACH**2)
        if length / REACH <= best <= length * REACH or state["tries"] >= self.tries:
            return self._ended({**state, "length": nearest})
        return self._trial(state, nearest)

    def _ended(self, state: dict[str, Any]) -> dict[str, Any]:
        """The step is over, at the present length."""
        parameters = self._point(state, state["length"])
        changed = tuple(state["base"])
        if "moves" in state and len(self.move(parameters, state.pop("moves"))):
            state |= {"base": {}, "gradient": {}}
        self.settle(state, parameters, changed)
        state |= {"parameters": parameters, "shared": {**state["shared"], "phase": "gradient"}}
        self.count_frames(state, len(parameters["positions"]))
        return state

    def _point(self, state: dict[str, Any], length: float) -> Parameters:
        """Parameters at a length along the direction."""
        moved = {
            name: (start + length * state["direction"][name]).astype(start.dtype, copy=False)
            for name, start in state["base"].items()
        }
        return {**state["parameters"], **moved}


def inner(gradients: Mapping[str, Any], changes: Mapping[str, Any]) -> float:
    """What changes of the parameters change of the loss, to first order, float64: 2 Re ⟨∂L/∂z̄, δz⟩ and ⟨dL/dx, δx⟩."""
    total = 0.0
    for name, gradient in gradients.items():
        product = gradient.real * changes[name].real
        if np.iscomplexobj(gradient):
            product = 2 * (product + gradient.imag * changes[name].imag)
        total += float(product.sum(dtype=np.float64))
    return total


def lowest(length: float, change: float, slope: float) -> float:
    """Where the parabola with this slope at 0 and this change at `length` is lowest."""
    if not np.isfinite(change):
        return 0.0
    bend = (change - slope * length) / length**2
    return -slope / (2 * bend) if bend > 0 else np.inf
