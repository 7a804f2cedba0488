"""Small joint scans, made by the model itself: for tests of gradients and solvers, not of the physics."""

import dataclasses
from typing import Any

import numpy as np

from dtomo.geometry import ParallelBeam
from dtomo.io.sources import ArraySource
from dtomo.ptycho.frames import FrameBlock, to_detector_order
from dtomo.ptycho.model import PtychoModel
from dtomo.ptychotomo.layout import Layout, cut
from dtomo.ptychotomo.model import JointModel


@dataclasses.dataclass(eq=False)
class Scene:
    """A model, the truth, and its frames."""

    model: JointModel
    volume: Any
    parameters: dict[str, Any]
    positions: Any
    angle_of_frame: Any
    frames: Any

    def layout(self, height: int | None = None, reach: int = 0) -> Layout:
        return cut(
            self.model.rows, height, self.model.frames.probe_shape[0], self.positions, self.angle_of_frame,
            self.model.angles, reach=reach,
        )  # fmt: skip

    @property
    def source(self) -> ArraySource:
        return ArraySource(to_detector_order(self.frames), "the frames")

    def block(self, indices: Any) -> FrameBlock:
        return FrameBlock(np.asarray(indices), self.frames[indices])


def probe_of(width: int, modes: int = 1) -> Any:
    """A spot with some phase, and weaker ones beside it."""
    y, x = np.indices((width, width)) - width // 2
    spots = [
        np.exp(-((y - k) ** 2 + (x + k) ** 2) / (width / 4.5) ** 2 + 0.02j * (x * x + y * y)) for k in range(modes)
    ]
    return (np.array(spots) * np.power(0.5, np.arange(modes))[:, None, None]).astype(np.complex64)


def blobs(rows: int, width: int, seed: int = 0, strength: float = 0.06) -> Any:
    """A volume with δ and β above zero, v = k Δ (-δ + iβ)."""
    random = np.random.default_rng(seed)
    z, y, x = np.indices((rows, width, width), np.float32)
    volume = np.zeros((rows, width, width), np.complex64)
    for _ in range(8):
        middle = random.uniform(0.38, 0.62, 3) * (rows, width, width)
        size = random.uniform(0.06, 0.12) * width
        distance = (z - middle[0]) ** 2 + (y - middle[1]) ** 2 + (x - middle[2]) ** 2
        volume += np.exp(-distance / size**2) * (-1 + random.uniform(0.05, 0.3) * 1j)
    return (strength * volume).astype(np.complex64)


def scene(
    rows: int = 40,
    width: int = 24,
    frame: int = 12,
    angles: int = 9,
    step: int = 5,
    *,
    counts: float = 1e4,
    loss: str = "amplitude",
    modes: int = 1,
    extra: tuple[str, ...] = (),
    seed: int = 0,
) -> Scene:
    """A scan over all angles; `extra` names parameters that are not at rest."""
    random = np.random.default_rng(seed)
    geometry = ParallelBeam(np.arange(angles) * 180 / angles, width)
    model = JointModel(PtychoModel((frame, frame), loss=loss), geometry, rows)
    volume = blobs(rows, width, seed)
    probe = probe_of(frame, modes)
    probe *= (counts / (np.abs(probe) ** 2).sum()) ** 0.5
    places = []
    for _ in range(angles):
        grid = np.stack(
            np.meshgrid(np.arange(1, rows - frame, step), np.arange(1, width - frame, step), indexing="ij"), -1
        )
        places.append((grid.reshape(-1, 2) + random.uniform(-0.9, 0.9, (grid.size // 2, 2))).clip(0, None))
    angle_of_frame = np.repeat(np.arange(angles), [len(part) for part in places])
    positions = np.concatenate(places).clip(0, (rows - frame, width - frame))
    parameters: dict[str, Any] = {"probe": probe}
    if "probes" in extra:
        parameters["probe"] = np.stack([probe * np.exp(0.1j * k) * (1 + 0.02 * k) for k in range(angles)])
    if "shifts" in extra:
        parameters["shifts"] = random.uniform(-0.8, 0.8, (angles, 2))
    if "ramps" in extra:
        parameters["ramps"] = random.uniform(-0.05, 0.05, (angles, 2))
    if "scale" in extra:
        parameters["scale"] = random.uniform(0.9, 1.1, angles).astype(np.float32)
    if "background" in extra:
        parameters["background"] = random.uniform(0.5, 1.5, (frame, frame)).astype(np.float32)
    frames = np.empty((len(positions), frame, frame), np.float32)
    for angle in range(angles):
        image = model.transmissions(volume, np.array([angle]))[0]
        some = np.flatnonzero(angle_of_frame == angle)
        block = FrameBlock(some, np.zeros((len(some), frame, frame), np.float32))
        _, given = model.seen(np.ascontiguousarray(image), 0, angle, block, parameters, positions)
        frames[some] = model.frames.intensities(given, np.arange(len(some)))
    return Scene(model, volume, parameters, positions, angle_of_frame, frames)
