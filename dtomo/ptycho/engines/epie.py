"""ePIE and rPIE: frames correct object and probe, one after another or some together, with momentum.

ePIE: A. M. Maiden and J. M. Rodenburg, Ultramicroscopy 109 (2009) 1256; the regularised form (rPIE) and momentum
(mPIE): A. Maiden, D. Johnson and P. Li, Optica 4 (2017) 736. A frame j with χ = ψ − Π(ψ) changes the object by
−step · conj(P) χ / ((1 − α)|P|² + α max|P|²), and the probe likewise; α = 1 is ePIE. Several frames together
change it by the sum of all conj(P) χ, with the sum of all |P|² below.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module
from dtomo.device import to_host
from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.kernels import steps
from dtomo.ptycho.engine import Parameters
from dtomo.ptycho.engines.gradient import GradientEngine, frames_of, squared_modulus
from dtomo.ptycho.engines.secondary import require_projection, step_secondary
from dtomo.ptycho.frames import FrameBlock
from dtomo.ptycho.views import places
from dtomo.windows import Window

STEP, MOMENTUM = 0.5, 0.8
"""Where nothing else is said, and several frames make a step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Epie(GradientEngine):
    """ePIE: the step at each pixel goes by the largest illumination.

    With `batch` 1 the method is sequential: every frame starts from what the last one left, so that one worker works.

    Attributes
    ----------
    alpha, probe_alpha
        How much of the largest illumination (of the object, of the probe by transmission) is in the one that is divided
        by, above 0 and at most 1.
    step
        Part of a whole correction; default: 1 for single frames, else 0.5.
    momentum
        How much of the last change comes again; default: 0 for single frames, else 0.8.
    rate
        Part of a whole step of positions, background and so on; see `dtomo.ptycho.engines.secondary`.

    Raises
    ------
    UserError
        Names that nothing has, or numbers out of range.
    """

    batch: int | None = 1
    alpha: float = 1.0
    probe_alpha: float = 1.0
    step: float | None = None
    momentum: float | None = None
    rate: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha <= 1 or not 0 < self.probe_alpha <= 1:
            raise UserError(f"alpha is above 0 and at most 1; got {self.alpha} and {self.probe_alpha}")
        step, momentum = self.lengths
        if not 0 < step <= 2 or not 0 <= momentum < 1 or not self.rate > 0:
            raise UserError(
                f"the step is above 0 and at most 2, momentum from 0 to below 1, the rate above 0; got {step}, "
                f"{momentum} and {self.rate}"
            )

    @property
    def sequential(self) -> bool:
        """Whether each frame needs what the one before made, so that a second worker is of no use."""
        return self.batch == 1

    @property
    def lengths(self) -> tuple[float, float]:
        """Step and momentum."""
        usual = (1.0, 0.0) if self.sequential else (STEP, MOMENTUM)
        return usual[0] if self.step is None else self.step, usual[1] if self.momentum is None else self.momentum

    def begin(self, parameters: Parameters) -> dict[str, Any]:
        """Nothing moves yet."""
        require_projection(self.model, parameters, self.wanted, "ePIE")
        return {**super().begin(parameters), "velocities": {}}

    def evaluate(self, sent: Mapping[str, Any], block: FrameBlock, kept: Any) -> tuple[dict[str, Any], Any]:
        """Gradients, and the light that they are divided by."""
        wanted = self.wanted_in(sent["shared"]["epoch"])
        sums = self.evaluated(sent, block, wanted)
        return {**sums, "light": light_of(sent["parameters"], block.indices, wanted)}, None

    def update(self, state: dict[str, Any], sums: dict[str, Any]) -> dict[str, Any]:
        """Object and probe corrected."""
        parameters = state["parameters"] = dict(state["parameters"])
        found, light = dict(sums["gradients"]), dict(sums["light"])
        fraction = sums["frames"] / frames_of(parameters)
        if self.lengths[1] or self.constraints:
            found = self.whole_gradients(parameters, sums)
        if "object" in found:
            window, below = found["object"], light["object"]
            if not isinstance(window, Window):
                window = Window(window, (0, 0))
                below = Window(below.put_into(parameters["object"].shape[-2:]), (0, 0))
            place = parameters["object"][place_of(window)]
            self._move(state, "object", place, window.values, below.values, self.alpha)
        if "probe" in found:
            self._move(state, "probe", parameters["probe"], found["probe"], light["probe"], self.probe_alpha)
        step_secondary(state, parameters, found, fraction, self.rate)
        if "moves" in sums:
            self.move(parameters, sums["moves"])
        self.settle(state, parameters, tuple(found))
        self.count_frames(state, sums["frames"])
        return state

    def _move(
        self, state: dict[str, Any], name: str, array: NDArray[Any], gradient: NDArray[Any], light: Any, alpha: float
    ) -> None:
        """Correct `array` in its place."""
        most = float(light.max())
        if most == 0:
            return
        step, momentum = self.lengths
        less, least = (1 - alpha) / step, alpha * most / step

        def correct(z: Any, g: Any, h: Any) -> None:
            z -= g * (1 / (less * h + least))

        def accelerate(z: Any, g: Any, h: Any, v: Any) -> None:
            change = g * (1 / (less * h + least))
            v *= momentum
            v -= change
            z += momentum * v
            z -= change

        if not momentum:
            in_pieces(correct, array, gradient, light)
            return
        if name not in state["velocities"]:
            state["velocities"] = {**state["velocities"], name: np.zeros_like(array)}
        in_pieces(accelerate, array, gradient, light, state["velocities"][name])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rpie(Epie):
    """rPIE: ePIE with steps that grow where less light falls."""

    alpha: float = 0.5
    probe_alpha: float = 1.0


def place_of(window: Window) -> tuple[Any, ...]:
    """Where a window lies in its image, as an index."""
    (row, column), (rows, columns) = window.origin, window.values.shape[-2:]
    return (..., slice(row, row + rows), slice(column, column + columns))


def light_of(parameters: Mapping[str, Any], indices: NDArray[np.int64], names: tuple[str, ...]) -> dict[str, Any]:
    """What corrections of some frames are divided by, at whole pixels: Σ |P|² for the object, Σ |T|² for the probe."""
    image, probe = parameters["object"], parameters["probe"]
    where = places(parameters["positions"][indices], probe.shape[-2:], image.shape[-2:], False)
    weights = np.ones(len(indices))
    if "scale" in parameters:
        weights = np.asarray(to_host(parameters["scale"][indices]), np.float64) ** 2
    found: dict[str, Any] = {}
    if "object" in names:
        power = squared_modulus(probe).sum(0)
        values = steps.light(power, weights, where.corners - where.origin, where.extent)
        found["object"] = Window(values, where.origin)
    if "probe" in names:
        found["probe"] = array_module(image).zeros(probe.shape[-2:], image.real.dtype)
        steps.transmitted(image[:, 0], weights, where.corners, found["probe"])
    return found
