"""Joint scans in double precision: a dense projector, a solver that only hands out gradients, and such a scene."""

import dataclasses
from typing import Any

import numpy as np

from dtomo.geometry import ParallelBeam
from dtomo.ptycho.model import PtychoModel
from dtomo.ptychotomo.engine import JointEngine
from dtomo.ptychotomo.model import JointModel
from tests.ptychotomo.scenes import Scene, probe_of

EXTRA = ("shifts", "ramps", "scale", "background")


@dataclasses.dataclass(frozen=True, eq=False)
class DenseProjector:
    """Any weights, ``(angle, column, y, x)``, the same for all rows; in the precision of what it is given."""

    weights: Any
    slices: int = 1

    def forward(self, rows: Any, angles: Any) -> Any:
        return np.einsum("acyx,zyx->azc", self.weights[angles], rows)[:, None]

    def adjoint(self, images: Any, angles: Any) -> Any:
        return np.einsum("acyx,azc->zyx", self.weights[angles], images[:, 0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gradients(JointEngine):
    """Keeps the gradient of the volume with the slab and that of the parameters with what is shared; moves nothing."""

    model: JointModel
    names: tuple[str, ...]
    passes: int = 1

    def begin_slab(self, place: Any, volume: Any) -> Any:
        return {
            "volume": np.array(volume),
            "gradient": np.zeros_like(volume),
            "taken": np.zeros(place.height, np.int64),
        }

    def begin_common(self, parameters: Any) -> Any:
        return {"parameters": dict(parameters), "passes": 0}

    def wanted(self, common: Any) -> tuple[str, ...]:
        return self.names

    def more(self, common: Any) -> bool:
        return common["passes"] % self.passes != 0

    def prepare(self, place: Any, local: Any, common: Any) -> None:
        local["gradient"][...] = 0
        local["taken"][...] = 0

    def gather(
        self, place: Any, local: Any, common: Any, angles: Any, rows: slice, images: Any, derivatives: Any
    ) -> None:
        local["gradient"][rows] += self.model.derivative(images, derivatives, angles)
        local["taken"][rows] += len(angles)

    def absorb(self, place: Any, local: Any, common: Any, above: Any, below: Any) -> dict[str, Any]:
        return {"voxels": local["volume"].size}

    def advance(self, common: Any, sums: Any) -> Any:
        return {**common, "passes": common["passes"] + 1, "found": sums}


def exact_scene(loss: str = "amplitude", modes: int = 1, *, own_probes: bool = False, extra: Any = EXTRA) -> Scene:
    """Rows 0 to 29 in double precision, four angles, frames of 8 pixels; counts that fit nothing exactly."""
    random = np.random.default_rng(7)
    rows, width, frame, angles = 30, 14, 8, 4
    geometry = ParallelBeam(np.arange(angles) * 180 / angles, width)
    weights = random.random((angles, width, width, width)) * (random.random((angles, width, width, width)) < 0.1)
    model = JointModel(PtychoModel((frame, frame), loss=loss), geometry, rows, DenseProjector(weights))
    noise = random.standard_normal((2, rows, width, width))
    volume = 0.03 * (noise[0] + 1j * np.abs(noise[1]))
    probe = 3 * probe_of(frame, modes).astype(np.complex128)
    if own_probes:
        probe = np.stack([probe * (1 + 0.1 * k) * np.exp(0.2j * k) for k in range(angles)])
    corner = np.stack(np.meshgrid(np.arange(3, rows - frame - 2, 4), [2, 4], indexing="ij"), -1).reshape(-1, 2)
    positions = np.concatenate([corner + random.uniform(-0.9, 0.9, corner.shape) for _ in range(angles)])
    every: dict[str, Any] = {
        "shifts": random.uniform(-0.9, 0.9, (angles, 2)),
        "ramps": random.uniform(-0.1, 0.1, (angles, 2)),
        "scale": random.uniform(0.8, 1.2, angles),
        "background": random.uniform(0.5, 1.5, (frame, frame)),
    }
    parameters = {"probe": probe} | {name: every[name] for name in extra}
    frames = random.poisson(4.0, (len(positions), frame, frame)).astype(np.float64)
    return Scene(model, volume, parameters, positions, np.repeat(np.arange(angles), len(corner)), frames)
