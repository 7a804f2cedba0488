"""LSQ-ML: gradients of a batch, divided by the illumination, with the step lengths that suit its frames best.

M. Odstrčil, A. Menzel and M. Guizar-Sicairos, "Iterative least-squares solver for generalized maximum-likelihood
ptychography", Optics Express 26 (2018) 3108. A step takes two passes over the frames of a batch: the first gives χ and
the directions ΔT and ΔP (equations 13 to 16), the second the two step lengths of each frame that bring
χ + α P ΔT + β ΔP T nearest to zero (equations 19 to 21), from the χ that the first one kept: no transforms. The changes
of object and probe are scaled with the means of these over the frames.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, empty_aligned
from dtomo.device import to_host
from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.kernels import steps
from dtomo.ptycho.curvatures import coverage, illumination
from dtomo.ptycho.engine import Parameters
from dtomo.ptycho.engines.gradient import GradientEngine, frames_of
from dtomo.ptycho.engines.secondary import PRIMARY, require_projection, step_secondary
from dtomo.ptycho.frames import FrameBlock

RIDGE = 1e-6
"""Added to the diagonal of the system of a frame, as part of it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeastSquaresML(GradientEngine):
    """Least-squares solver for maximum likelihood, with the loss of amplitudes.

    Attributes
    ----------
    damping
        Added to the illumination that object and probe gradients are divided by, in units of its largest value.
    step
        Part of the best step lengths.
    momentum
        How much of the last change comes again.
    rate
        Part of a whole step of positions, background and so on.

    Raises
    ------
    UserError
        Names that nothing has, or numbers out of range.
    """

    batch: int | None = 64
    damping: float = 0.3
    step: float = 0.5
    momentum: float = 0.7
    rate: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.damping > 0 or not 0 < self.step <= 1 or not 0 <= self.momentum < 1 or not self.rate > 0:
            raise UserError(
                "damping and rate are above 0, the step above 0 and at most 1, momentum from 0 to below 1; got "
                f"{self.damping}, {self.rate}, {self.step} and {self.momentum}"
            )

    def begin(self, parameters: Parameters) -> dict[str, Any]:
        """Nothing moves yet; the first pass is for directions."""
        require_projection(self.model, parameters, self.wanted, "LSQ-ML")
        state = super().begin(parameters)
        state["shared"]["directions"] = {}
        return {**state, "velocities": {}, "light": {}, "light_of": 0, "waiting": {}}

    def more(self, state: Mapping[str, Any]) -> bool:
        """While step lengths are to be found."""
        return bool(state["shared"]["directions"])

    def evaluate(self, sent: Mapping[str, Any], block: FrameBlock, kept: Any) -> tuple[dict[str, Any], Any]:
        """Gradients, or sums of the best step lengths."""
        directions = sent["shared"]["directions"]
        if directions:
            lengths = step_lengths(sent["parameters"], directions, kept)
            return {"loss": 0.0, "count": 0, "frames": len(block), "lengths": lengths}, None
        wanted = self.wanted_in(sent["shared"]["epoch"])
        kept = {}
        loss, count, gradients = self.model.loss_and_gradient(sent["parameters"], block, wanted, keep=kept)
        sums = {"loss": loss, "count": count, "frames": len(block), "gradients": gradients}
        return self.searched(sent, block, wanted, sums), kept

    def update(self, state: dict[str, Any], sums: dict[str, Any]) -> dict[str, Any]:
        """Directions, or the step along them."""
        state = dict(state)
        if self.more(state):
            return self._step(state, sums)
        gradients = self.whole_gradients(state["parameters"], sums)
        primary = {name: gradients[name] for name in PRIMARY if name in gradients}
        state["waiting"] = {name: gradient for name, gradient in gradients.items() if name not in primary}
        if "moves" in sums:
            state["moves"] = sums["moves"]
        if not primary:
            return self._step(state, {**sums, "lengths": np.zeros(2)})
        light = self._light(state)
        directions = {}
        for name, gradient in primary.items():
            directions[name] = _divided(gradient, light[name], self.damping)
        state["shared"] = {**state["shared"], "directions": directions}
        return state

    def _light(self, state: dict[str, Any]) -> dict[str, Any]:
        """Illumination of the object and its transmission through the probe, by all frames; renewed ever less often."""
        epoch, parameters = state["shared"]["epoch"], state["parameters"]
        if not state["light"] or epoch - state["light_of"] > epoch // 8:
            state["light"] = {"object": illumination(parameters), "probe": coverage(parameters)}
            state["light_of"] = epoch
        light: dict[str, Any] = state["light"]
        return light

    def _step(self, state: dict[str, Any], sums: dict[str, Any]) -> dict[str, Any]:
        """Object and probe moved, and all that waited for it."""
        parameters = state["parameters"] = dict(state["parameters"])
        frames, directions, waiting = sums["frames"], state["shared"]["directions"], state["waiting"]
        for name, length in zip(PRIMARY, sums["lengths"].tolist()):
            if name in directions:
                self._move(state, name, directions[name], self.step * length / frames)
        step_secondary(state, parameters, waiting, frames / frames_of(parameters), self.rate)
        if "moves" in state:
            self.move(parameters, state.pop("moves"))
        self.settle(state, parameters, (*directions, *waiting))
        state["shared"], state["waiting"] = {**state["shared"], "directions": {}}, {}
        self.count_frames(state, frames)
        return state

    def _move(self, state: dict[str, Any], name: str, direction: NDArray[Any], length: float) -> None:
        momentum = self.momentum
        if name not in state["velocities"]:
            state["velocities"] = {**state["velocities"], name: np.zeros_like(direction)}

        def move(z: Any, v: Any, d: Any) -> None:
            change = length * d
            v *= momentum
            v += change
            z += momentum * v
            z += change

        in_pieces(move, state["parameters"][name], state["velocities"][name], direction)


def step_lengths(parameters: Parameters, directions: Mapping[str, Any], kept: Mapping[str, Any]) -> NDArray[np.float64]:
    """Sums over frames of the best step lengths along the directions of object and probe.

    The change of the probe is taken without its sub-pixel shift, for the lengths only: they are then wrong by up to a
    fifth, which `LeastSquaresML.step` leaves room for, and no transforms are needed.

    Parameters
    ----------
    parameters
        By name.
    directions
        Of object, probe, or both.
    kept
        "probes" ``(frame or 1, mode, row, column)``, "corners" and "waves" (χ) of the frames.
    """
    image, waves = parameters["object"], kept["waves"]
    changes = {name: directions[name] if name in directions else np.zeros_like(parameters[name]) for name in PRIMARY}
    corners = array_module(image).asarray(kept["corners"])
    arrays = image[:, 0], corners, changes["object"][:, 0], changes["probe"][None], waves
    table = np.asarray(to_host(steps.products(kept["probes"], *arrays)))
    xx, yy, xy, xc, yc = table.T  # a change of zero has a step of zero
    xx, yy = (np.where(square > 0, square * (1 + RIDGE), 1.0) for square in (xx, yy))
    solved = np.stack([xy * yc - yy * xc, xy * xc - xx * yc], 1) / (xx * yy - xy * xy)[:, None]
    return solved.sum(0)


def _divided(gradient: NDArray[Any], light: NDArray[Any], damping: float) -> NDArray[Any]:
    """Minus the gradient over the damped light."""
    out = empty_aligned(gradient.shape, gradient.dtype, array_module(gradient))
    least = damping * float(light.max())
    if least == 0:
        out[...] = 0
        return out

    def divide(d: Any, g: Any, h: Any) -> None:
        np.multiply(g, -1 / (h + least), out=d)

    in_pieces(divide, out, gradient, light)
    return out
