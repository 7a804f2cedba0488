"""Difference map and RAAR: exit waves that go to and fro between the measured amplitudes and one object and probe.

P. Thibault, M. Dierolf, O. Bunk, A. Menzel and F. Pfeiffer, Ultramicroscopy 109 (2009) 338; relaxed averaged
alternating reflections: D. R. Luke, Inverse Problems 21 (2005) 37. Each block keeps its exit waves ψ. With P_O the
projection to exit waves P·T of one object and probe, P_M the one to the measured amplitudes, and R = 2P − 1,

    ψ ← [β/2 (R_M R_O + 1) + (1 − β) P_O] ψ = P_O ψ − β χ,    χ = (1 − P_M) (2 P_O ψ − ψ)

where β = 1 is the difference map. P_O takes two passes: one in which all blocks add up what corrects the object, and
one for the probe with the new object (equations 12 and 13 of Thibault et al.), without transforms of frames beyond
those of sub-pixel shifts. The loss of the history is |P_M (2 P_O ψ − ψ) − P_O ψ|², never below the loss of amplitudes
of object and probe, and equal to it in the first iteration.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module
from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.ptycho.engine import Parameters
from dtomo.ptycho.engines.epie import light_of
from dtomo.ptycho.engines.gradient import GradientEngine, squared_modulus, whole_array
from dtomo.ptycho.engines.secondary import PRIMARY, require_projection
from dtomo.ptycho.frames import FrameBlock
from dtomo.threads import run_blocks


@dataclasses.dataclass(frozen=True, kw_only=True)
class DifferenceMap(GradientEngine):
    """Difference map; an epoch is one iteration.

    Attributes
    ----------
    beta
        Of the formula above.
    damping
        Added to the illumination that corrections are divided by, in units of its largest value.

    Raises
    ------
    UserError
        Numbers out of range, a batch, or anything but object and probe to be refined.
    """

    beta: float = 1.0
    damping: float = 1e-3
    keeps: bool = dataclasses.field(default=True, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        others = [name for name in self.wanted if name not in PRIMARY]
        if others:
            raise UserError(f"projections refine object and probe, not {others[0]}; use lsqml for it")
        if self.batch is not None:
            raise UserError("projections take all frames in each step; leave the batch out, or use lsqml")
        if not 0.5 <= self.beta <= 1 or not self.damping > 0:
            raise UserError(f"beta is from 0.5 to 1 and damping above 0; got {self.beta} and {self.damping}")

    def begin(self, parameters: Parameters) -> dict[str, Any]:
        """All exit waves are those of the first guess."""
        require_projection(self.model, parameters, self.wanted, "a projection")
        state = super().begin(parameters)
        state["shared"]["correcting"] = ""
        return state

    def steps(self, epoch: int, batches: int) -> Sequence[Sequence[int]]:
        """One step with everything."""
        return [list(range(batches))]

    def more(self, state: Mapping[str, Any]) -> bool:
        """While the probe is to be corrected for the new object."""
        return bool(state["shared"]["correcting"])

    def evaluate(self, sent: Mapping[str, Any], block: FrameBlock, kept: Any) -> tuple[dict[str, Any], Any]:
        """New exit waves, and what corrects the object; or what corrects the probe."""
        parameters, shared = sent["parameters"], sent["shared"]
        wanted, correcting = self.wanted_in(shared["epoch"]), shared["correcting"]
        views = self.model.views(parameters, block.indices)
        loss, count = 0.0, 0
        if not correcting:
            before = views.waves if kept is None else kept
            reflected = views.waves if kept is None else 2 * views.waves - kept
            _, count, kept = self.model.residual(parameters, views, block, reflected)
            loss = relax(kept, views.waves, before, self.beta)
        names = (correcting,) if correcting else wanted[:1]
        changes = views.waves
        in_pieces(_difference, changes, kept)
        gradients = self.model.adjoint(parameters, views, changes, names)
        light = light_of(parameters, block.indices, names)
        return {"loss": loss, "count": count, "frames": len(block), "gradients": gradients, "light": light}, kept

    def update(self, state: dict[str, Any], sums: dict[str, Any]) -> dict[str, Any]:
        """The object or the probe that suits the exit waves best."""
        parameters, shared = dict(state["parameters"]), dict(state["shared"])
        wanted = self.wanted_in(shared["epoch"])
        gradients = self.whole_gradients(parameters, {**sums, "frames": len(parameters["positions"])})
        for name, gradient in gradients.items():
            light = whole_array(sums["light"][name], parameters[name][(0,) * (parameters[name].ndim - 2)])
            least = self.damping * float(light.max())
            if least > 0:
                in_pieces(_correct(least), parameters[name], gradient, light)
        self.settle(state, parameters, tuple(gradients))
        after = "probe" if not shared["correcting"] and wanted[:1] == ("object",) and "probe" in wanted else ""
        state = {**state, "parameters": parameters, "shared": {**shared, "correcting": after}}
        if not after:
            self.count_frames(state, sums["frames"])
        return state


@dataclasses.dataclass(frozen=True, kw_only=True)
class RAAR(DifferenceMap):
    """Relaxed averaged alternating reflections: stays nearer to the data's noise than the difference map."""

    beta: float = 0.75


def relax(changes: NDArray[Any], waves: NDArray[Any], before: NDArray[Any], beta: float) -> float:
    """New exit waves in the place of χ, and the loss.

    Parameters
    ----------
    changes
        χ ``(frame, …)``; overwritten.
    waves
        P_O ψ.
    before
        ψ.
    beta
        Of the formula in `dtomo.ptycho.engines.projections`.
    """

    def work(start: int, stop: int) -> float:
        chi, new = changes[start:stop], waves[start:stop]
        gap = new - before[start:stop]
        gap -= chi
        chi *= -beta
        chi += new
        return float(squared_modulus(gap).sum(dtype=np.float64))

    return sum(run_blocks(work, len(changes), 1 if array_module(changes) is np else len(changes)))


def _difference(waves: Any, target: Any) -> None:
    """What the waves are too much."""
    waves -= target


def _correct(least: float) -> Any:
    def correct(z: Any, g: Any, h: Any) -> None:
        z -= g / (h + least)

    return correct
