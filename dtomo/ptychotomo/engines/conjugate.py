"""Nonlinear conjugate gradients for the volume and the probe together, with a line search over sums of losses.

Directions of E. Polak and G. Ribière, set back where their factor turns negative; see `dtomo.ptycho.engines.conjugate`,
with which the line search is shared. Volume and probe are brought to one scale by how strongly the loss curves along
each: for the volume by the light on a pixel of the images, times angles, times half of the width (the mean of
Σ Aᵀ W A 1 over the voxels).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.ptycho.engines.conjugate import REACH, inner, lowest
from dtomo.ptychotomo.engine import Common, Local, SlabPlace
from dtomo.ptychotomo.engines.volume_engine import VolumeEngine

REFINED = ("volume", "probe")


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointConjugateGradient(VolumeEngine):
    """Conjugate gradients; an epoch is one step with all angles.

    Attributes
    ----------
    tries
        Passes of a line search at most.

    Raises
    ------
    UserError
        Other things to be refined than volume and probe, subsets, or no try.
    """

    tries: int = 6

    arrays: ClassVar[tuple[tuple[str, type], ...]] = (
        ("gradient", np.complex64),
        ("before", np.complex64),
        ("direction", np.complex64),
    )
    prepared: ClassVar[tuple[str, ...]] = ("volume", "gradient", "before", "direction")

    def __post_init__(self) -> None:
        super().__post_init__()
        other = [name for name in (*self.refine, *self.start) if name not in REFINED]
        if other or self.start:
            named = other[0] if other else next(iter(self.start))
            raise UserError(f"conjugate gradients refine volume and probe from the beginning on; take adam for {named}")
        if self.subsets != 1:
            raise UserError("conjugate gradients take all angles in each step; leave subsets out, or take adam")
        if self.tries < 1:
            raise UserError(f"a line search takes at least one try; got {self.tries}")

    def begin_common(self, parameters: Mapping[str, Any]) -> Common:
        """The first pass is for the gradient."""
        common = super().begin_common(parameters)
        search: Common = {"phase": "gradient", "length": 1.0, "taken": 0.0, "turn": False, "factor": 0.0, "tries": 0}
        search["bends"] = {"volume": 1.0, "probe": 1.0}
        return {**common, **search, "decrease": 0.0, "slope": 0.0, "loss": 0.0, "base": {}, "old": {}, "along": {}}

    def wanted(self, common: Common) -> tuple[str, ...]:
        """Nothing but the loss at a trial point."""
        return () if common["phase"] == "trial" else super().wanted(common)

    def more(self, common: Common) -> bool:
        """While a line search is on."""
        return bool(common["phase"] == "trial")

    def point(self, place: SlabPlace, local: Local, common: Common, rows: slice) -> NDArray[Any]:
        """The volume, or the trial point."""
        if common["phase"] != "trial" or "volume" not in self.refine:
            return local["volume"][rows]
        found: NDArray[Any] = local["volume"][rows] + np.float32(common["length"]) * local["direction"][rows]
        self.constraints.project(place, found)
        return found

    def prepare(self, place: SlabPlace, local: Local, common: Common) -> None:
        """Go to where the last line search ended, or turn to a new direction."""
        if "volume" not in self.refine:
            return
        if common["phase"] == "gradient":
            if common["taken"]:
                local["volume"][...] = self._moved(place, local, common)
            local["gradient"][...] = 0
        elif common["turn"]:
            weight, factor = np.float32(-1 / common["bends"]["volume"]), np.float32(common["factor"])

            def turn(d: Any, before: Any, g: Any) -> None:
                d *= factor
                d += weight * g
                before[...] = g

            in_pieces(turn, local["direction"], local["before"], local["gradient"])

    def absorb(
        self, place: SlabPlace, local: Local, common: Common, above: NDArray[Any] | None, below: NDArray[Any] | None
    ) -> dict[str, Any]:
        """Penalty, and inner products of the gradient with itself, the last one, and the last direction."""
        found = {"penalty": 0.0, "own": 0.0, "before": 0.0, "along": 0.0}
        if "volume" not in self.refine:
            return found
        if common["phase"] == "trial":
            if self.constraints.total_variation:
                point = self.point(place, local, common, slice(0, place.height))
                found["penalty"] = self.constraints.value(point, below)
            return found
        gradient = local["gradient"]
        found["penalty"] = self.constraints.penalize(local["volume"], gradient, above, below)
        for name, other in (("own", gradient), ("before", local["before"]), ("along", local["direction"])):
            found[name] = _product(gradient, other)
        return found

    def advance(self, common: Common, sums: Mapping[str, Any]) -> Common:
        """A new direction and a trial along it, or what a trial tells."""
        value = float(sums["loss"]) + float(sums["slabs"]["penalty"])
        if common["phase"] == "trial":
            return self._tried(common, value, sums)
        gradients, bends = sums["gradients"], self._bends(common, sums)
        of_volume = sums["slabs"]
        downhill = {name: (-gradient / bends[name]).astype(gradient.dtype) for name, gradient in gradients.items()}
        decrease = inner(gradients, downhill) - 2 * of_volume["own"] / bends["volume"]
        change = inner(common["old"], downhill) if common["old"] else 0.0
        change = decrease - (change - 2 * of_volume["before"] / bends["volume"])
        factor = max(0.0, change / common["decrease"]) if common["decrease"] else 0.0
        along = {name: part + factor * common["along"].get(name, 0) for name, part in downhill.items()}
        slope = inner(gradients, along) - 2 * of_volume["own"] / bends["volume"] + factor * 2 * of_volume["along"]
        if slope >= 0:
            factor, along, slope = 0.0, downhill, decrease
        common |= {"decrease": decrease, "slope": slope, "factor": factor, "turn": True, "tries": 0, "loss": value}
        common |= {
            "bends": bends,
            "old": gradients,
            "along": along,
            "base": {name: common["parameters"][name] for name in along},
        }
        if slope == 0:
            return self._ended(common, sums, 0.0)
        return self._trial(common, float(common["length"]))

    def volume(self, place: SlabPlace, local: Local, common: Common) -> NDArray[Any]:
        """Where the last line search ended."""
        ended = common["phase"] == "gradient" and common["taken"] and "volume" in self.refine
        return self._moved(place, local, common) if ended else local["volume"]

    def _moved(self, place: SlabPlace, local: Local, common: Common) -> NDArray[Any]:
        found: NDArray[Any] = local["volume"] + np.float32(common["taken"]) * local["direction"]
        self.constraints.project(place, found)
        return found

    def _bends(self, common: Common, sums: Mapping[str, Any]) -> dict[str, float]:
        """How strongly the loss curves along volume and probe, roughly."""
        frames = sums["count"] / self.model.frames.pixels
        probe = common["parameters"]["probe"]
        light = float((probe.real**2 + probe.imag**2).sum(dtype=np.float64)) * frames
        own = self.model.angles if probe.ndim == 4 else 1
        path = max(self.model.volume_shape[1:]) / 2
        return {"volume": light / own / float(np.prod(self.model.image_shape)) * path, "probe": frames / own}

    def _trial(self, common: Common, length: float) -> Common:
        common |= {"phase": "trial", "length": length, "tries": int(common["tries"]) + 1}
        common["parameters"] = {**common["parameters"], **_moved(common, length)}
        return common

    def _tried(self, common: Common, value: float, sums: Mapping[str, Any]) -> Common:
        """Loss of the point at the present length: another trial, or the end of the step."""
        length = float(common["length"])
        best = lowest(length, value - common["loss"], common["slope"])
        nearest = min(max(best, length / REACH**2), length * REACH**2)
        common["turn"] = False
        if length / REACH <= best <= length * REACH or common["tries"] >= self.tries:
            return self._ended(common, sums, nearest)
        return self._trial(common, nearest)

    def _ended(self, common: Common, sums: Mapping[str, Any], length: float) -> Common:
        common["parameters"] = {**common["parameters"], **_moved(common, length)}
        common |= {"phase": "gradient", "taken": length, "length": length or 1.0, "base": {}}
        self.seen(common, sums)
        return common


def _moved(common: Common, length: float) -> dict[str, Any]:
    """Parameters at a length along the direction."""
    return {
        name: (start + length * common["along"][name]).astype(start.dtype, copy=False)
        for name, start in common["base"].items()
    }


def _product(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Re ⟨one, other⟩ in float64, slice by slice along the slowest axis."""
    total = 0.0
    for a, b in zip(np.moveaxis(one, 1, 0), np.moveaxis(other, 1, 0)):
        total += float((a.real * b.real + a.imag * b.imag).sum(dtype=np.float64))
    return total
