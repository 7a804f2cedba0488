"""Joint ptycho-tomography on a device against the CPU, and how long an epoch takes, for `benchmarks.gpu`."""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.gpu_checks import Checker
from benchmarks.gpu_place import Clock, Place
from dtomo.geometry import ParallelBeam
from dtomo.io.sources import ArraySource
from dtomo.operators.sections import SectionsProjector
from dtomo.ptycho.frames import FrameBlock, to_detector_order
from dtomo.ptycho.model import NearField, PtychoModel
from dtomo.ptychotomo.constraints import VolumeConstraints
from dtomo.ptychotomo.driver import JointReport, run
from dtomo.ptychotomo.engine import SlabPlace
from dtomo.ptychotomo.engines.adam import JointAdam
from dtomo.ptychotomo.engines.admm import JointADMM
from dtomo.ptychotomo.engines.conjugate import JointConjugateGradient
from dtomo.ptychotomo.engines.volume_engine import VolumeEngine
from dtomo.ptychotomo.layout import Layout, cut
from dtomo.ptychotomo.model import PARAMETERS, JointModel
from dtomo.ptychotomo.problem import IMAGES, JointProblem

ALLOWED = 1e-4
"""Of gradients in float32, relative to the largest value."""
AFTERWARDS = 2e-3
"""Of volume and parameters after a few epochs, in which what is rounded grows."""
COUNTS = 1e4
ENGINES = ("adam", "cg", "admm")


@dataclasses.dataclass(frozen=True, eq=False)
class Scene:
    """A model of a joint scan, and what it is handed.

    Attributes
    ----------
    model
        Of one slice, or several.
    parameters
        Beside the volume.
    positions, angle_of_frame
        Of all frames.
    frames
        Counts in model order.
    """

    model: JointModel
    parameters: dict[str, Any]
    positions: Any
    angle_of_frame: Any
    frames: Any

    @property
    def start(self) -> "Begin":
        """Makes the first volume."""
        return Begin(self.model.geometry.width)


@dataclasses.dataclass(frozen=True)
class Begin:
    """A smooth first volume, the same in any slab."""

    width: int

    def __call__(self, place: SlabPlace) -> Any:
        axis = np.linspace(-1, 1, self.width, dtype=np.float32)
        blob = np.exp(-4 * (axis[:, None] ** 2 + axis**2))
        z = np.arange(place.start, place.stop, dtype=np.float32) / place.rows
        return (-0.5 / self.width * (1 - 0.2j) * (1 + z[:, None, None]) * blob).astype(np.complex64)


def scene(rng: np.random.Generator, width: int, rows: int, frame: int, angles: int, *, slices: int = 1) -> Scene:
    """Frames on a grid with steps of a third of their width, at all angles; their counts are those of no sample."""
    geometry = ParallelBeam(np.arange(angles) * 180 / angles, width)
    fields = (NearField((frame, frame), (1.0, 1.2), 0.1, 1.0),) * (slices - 1)
    projector = SectionsProjector(geometry, slices, width / slices) if slices > 1 else None
    model = JointModel(PtychoModel((frame, frame), between=fields), geometry, rows, projector)
    step = max(1, frame // 3)
    one = np.stack(np.meshgrid(np.arange(0, rows - frame, step), np.arange(0, width - frame, step), indexing="ij"), -1)
    grid = np.concatenate([one.reshape(-1, 2) + rng.uniform(0, 0.9, (one.size // 2, 2)) for _ in range(angles)])
    y, x = np.indices((frame, frame)) - frame // 2
    probe = np.exp(-(y**2 + x**2) / (frame / 4.5) ** 2 + 0.02j * (y**2 + x**2))[None]
    probe *= (COUNTS / (np.abs(probe) ** 2).sum()) ** 0.5
    parameters = {
        "probe": probe.astype(np.complex64),
        "shifts": rng.uniform(-0.5, 0.5, (angles, 2)),
        "ramps": rng.uniform(-0.05, 0.05, (angles, 2)),
        "scale": rng.uniform(0.9, 1.1, angles).astype(np.float32),
        "background": rng.uniform(0.5, 1.5, (frame, frame)).astype(np.float32),
    }
    number = np.repeat(np.arange(angles), one.size // 2)
    mean = np.abs(np.fft.fft2(parameters["probe"][0], norm="ortho")) ** 2 + 1
    return Scene(model, parameters, grid, number, rng.poisson(mean, (len(grid), frame, frame)).astype(np.float32))


def engine_of(name: str, model: JointModel, layout: Layout) -> VolumeEngine:
    """A solver that does all it can."""
    bounds = VolumeConstraints(total_variation=1.0, signs=True, support=0.45 * model.geometry.width)
    if name == "adam":
        options = {"search_trials": 1, "subsets": min(3, model.angles), "reach": 1.0}
        return JointAdam(model=model, refine=("volume", *PARAMETERS), constraints=bounds, **options)
    if name == "cg":
        return JointConjugateGradient(model=model, constraints=bounds)
    return JointADMM(model=model, layout=layout, constraints=bounds)


def problem_of(place: Place, name: str, given: Scene, height: int | None) -> JointProblem:
    """A solver's run at a place; slabs of `height` rows."""
    model = given.model
    layout = cut(
        model.rows, height, model.frames.frame_shape[0], given.positions, given.angle_of_frame, model.angles, reach=1
    )
    source = ArraySource(to_detector_order(given.frames), "frames of benchmarks.gpu")
    memory = place.room() if place.is_device else None
    return JointProblem(engine_of(name, model, layout), source, layout, given.start, device_memory=memory)


@contextlib.contextmanager
def pool_as_it_was(place: Place) -> Iterator[None]:
    """Runs limit the memory of the device; others come after them."""
    if not place.is_device:
        yield
        return
    pool = place.xp.get_default_memory_pool()
    before = pool.get_limit()
    try:
        yield
    finally:
        pool.set_limit(size=before)


def check_joint(check: Checker) -> None:
    """Gradients of the model with one slice and with three, and short runs of all solvers on one slab and on two."""
    from benchmarks.gpu_place import host

    width = min(check.extent.columns, 40)
    frame, angles = max(4, width // 3), min(check.extent.angles // 2, 12)
    rows = 2 * (frame + 2)
    for slices in (1, 3):
        given = scene(check.rng, width, rows, frame, angles, slices=slices)
        _check_gradients(check, f"joint, {slices} slices", given)
        with pool_as_it_was(check.place):
            for name, height in itertools.product(ENGINES if slices == 1 else ENGINES[:1], (None, rows // 2)):
                where = f"joint run by {name}, {slices} slices, slabs of {height or rows} rows"
                found, expected = (
                    run(problem_of(place, name, given, height), given.parameters, 1) for place in (check.place, host())
                )
                check.value(f"{where}, loss", found[0].history[0, 0], expected[0].history[0, 0], ALLOWED)
                check.close(f"{where}, volume", *(np.concatenate(one[1]) for one in (found, expected)), AFTERWARDS)
                for key, value in expected[0].parameters.items():
                    check.close(f"{where}, {key}", found[0].parameters[key], value, AFTERWARDS)


def _check_gradients(check: Checker, what: str, given: Scene) -> None:
    """Images, losses and all gradients of an angle; ∂L/∂v̄."""
    place, model, angle = check.place, given.model, 1
    number = np.array([angle])
    volume = given.start(SlabPlace(0, 0, model.rows, model.rows))
    some = np.flatnonzero(given.angle_of_frame == angle)
    results = []
    for put in (place.put, np.asarray):
        parameters = {key: put(value) if key in IMAGES else value for key, value in given.parameters.items()}
        images = model.transmissions(put(volume), number)
        image = place.xp.ascontiguousarray(images[0]) if put == place.put else np.ascontiguousarray(images[0])
        block = FrameBlock(some, put(given.frames[some]))
        met = model.meet(image, 0, angle, block, parameters, given.positions, ("images", *PARAMETERS))
        gradients = {key: getattr(value, "values", value) for key, value in met[2].items()}
        back = model.derivative(images, gradients["images"][None], number)
        results.append((met[0], {"image": images, "volume": back, **gradients}))
    (loss, found), (wanted, expected) = results
    check.value(f"{what}, loss", loss, wanted, 1e-5)
    for key, value in expected.items():
        check.close(f"{what}, {key}", np.asarray(place.get(found[key])), np.asarray(value), ALLOWED)


def joint_speed(place: Place, small: bool, clock: Clock, seconds: float) -> Iterator[dict[str, Any]]:
    """Rows of one epoch of each solver, the second one; frames stay where they are, nothing is read anew."""
    width, frame, angles = (6, 4, 2) if small else (512, 128, 90)
    given = scene(np.random.default_rng(0), width, width, frame, angles)
    extent = f"{width}³, {angles} angles, {len(given.frames)} frames of {frame}²"
    for name in ENGINES:
        task = f"joint, one epoch of {name}"
        if clock.left < 2 * seconds:
            yield {"task": task, "extent": extent, "left_out": "no time left"}
            continue
        ends = [time.perf_counter()]

        def stamp(report: JointReport, ends: list[float] = ends) -> bool:
            place.wait()
            ends.append(time.perf_counter())
            return ends[-1] - ends[0] > seconds

        place.free_memory()
        with pool_as_it_was(place):
            problem = problem_of(place, name, given, None)
            run(dataclasses.replace(problem, frame_memory=given.frames.nbytes), given.parameters, 3, on_epoch=stamp)
        best = min(np.diff(ends))
        yield {
            "task": task, "extent": extent, "runs": len(ends) - 1, "seconds": float(best),
            "gups": 2 * float(width) ** 3 * angles / best / 1e9, "frames_per_second": len(given.frames) / best,
            "pool_bytes": place.reserved(),
        }  # fmt: skip
