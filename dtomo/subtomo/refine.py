"""The loop: align to the references of the halves, average, compare the halves, filter, and again.

Halves stay apart for good: a particle is only ever compared with the average of its own half, which has been filtered
by how well the two agree (S. H. W. Scheres and S. Chen, Nature Methods 9 (2012) 853). What they share at the start is
low-passed. Nothing holds the frames of the halves together but that start, so after each pass the second is brought
into the frame of the first by one rigid motion.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.geometry.wedge import Wedge
from dtomo.settings import AlignSettings
from dtomo.subtomo.align import Pass, Passed, Poses, Search, run_pass
from dtomo.subtomo.averaging import average
from dtomo.subtomo.boxes import Boxes
from dtomo.subtomo.comparison import HalfCurve, half_curve
from dtomo.subtomo.filters import adaptive_increment, fsc_filtered, radius_of, start_reference
from dtomo.subtomo.frames import Frame, frame_between
from dtomo.subtomo.symmetry import angle_between, symmetry_group

if TYPE_CHECKING:
    from distributed import Client

Halves = tuple[NDArray[np.float32], NDArray[np.float32]]

APART = (0.1, 0.1)
"""Degrees and voxels that the frames of halves may differ by before one is brought into the other."""
SETTLED = 0.25
"""Part of the increment that half of the particles turn by less than, when nothing moves any more."""
BETTER = 0.01
"""Part by which the resolution has to become finer to count."""


@dataclasses.dataclass(frozen=True, eq=False)
class Particle:
    """What does not change of the particles of a run.

    Attributes
    ----------
    boxes
        Where they are.
    weights
        Of each: a wedge, the name of a file of CTF², or None.
    mask
        From 0 to 1 ``(z, y, x)``.
    pixel_size
        Ångström.
    starts
        Poses that priors are about; None: those before each iteration.
    """

    boxes: Boxes
    weights: tuple[Wedge | str | None, ...]
    mask: NDArray[np.float32]
    pixel_size: float
    starts: Poses | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """What an iteration leaves: all that the next one needs.

    Attributes
    ----------
    number
        Of the iteration, from 1; 0: what the run begins with.
    poses
        Of the particles.
    halves
        Averages of each class, unfiltered; those of the second half in the frame of the first.
    curves
        Of each class; empty where nothing was compared yet.
    increment
        Degrees between the rotations that were tried.
    counts
        Particles of each class and half.
    moved
        Median angle (degrees) and distance (voxels) that particles moved by; None: they were not aligned.
    frames
        How the frame of the second half lay, of each class.
    settled
        Iterations in a row in which nothing moved.
    """

    number: int
    poses: Poses
    halves: tuple[Halves, ...]
    curves: tuple[HalfCurve, ...] = ()
    increment: float = 0.0
    counts: tuple[tuple[int, int], ...] = ()
    moved: tuple[float, float] | None = None
    frames: tuple[Frame, ...] = ()
    settled: int = 0

    @property
    def resolution(self) -> float:
        """The coarsest of the classes, Ångström."""
        return max((curve.resolution.period for curve in self.curves), default=math.inf)


OnBlock = Callable[[int], None]


def begin(
    particles: Particle,
    poses: Poses,
    references: list[NDArray[np.float32]],
    settings: AlignSettings,
    client: "Client | None" = None,
    on_block: OnBlock | None = None,
    device: bool = False,
) -> Step:
    """What the first iteration aligns to: given references, or the averages of the particles as they lie."""
    if references:
        started = [start_reference(one, particles.pixel_size, settings.low_pass) for one in references]
        return Step(0, poses, tuple((one, one) for one in started), increment=settings.angle_increment)
    work = Pass(particles.boxes, poses, particles.weights, device=device)
    passed = run_pass(work, client, on_block)
    step = compared(particles, passed, settings, Step(0, poses, ()))
    filtered = tuple(
        tuple(start_reference(one, particles.pixel_size, settings.low_pass) for one in pair) for pair in step.halves
    )
    return dataclasses.replace(step, number=0, halves=filtered, curves=(), increment=settings.angle_increment)  # type: ignore[arg-type]


def next_step(
    particles: Particle,
    before: Step,
    settings: AlignSettings,
    client: "Client | None" = None,
    on_block: OnBlock | None = None,
    device: bool = False,
) -> Step:
    """One iteration."""
    search = search_of(particles, before, settings)
    work = Pass(
        particles.boxes,
        before.poses,
        particles.weights,
        references_of(before),
        particles.mask,
        search,
        particles.starts,
        classes=len(before.halves),
        weighting=settings.weighting,
        device=device,
    )
    return compared(particles, run_pass(work, client, on_block), settings, before, search)


def search_of(particles: Particle, before: Step, settings: AlignSettings) -> Search:
    """What the iteration after a step tries."""
    everywhere = before.number < settings.global_iterations
    increment = settings.global_increment if everywhere else settings.angle_increment
    if settings.adaptive and not everywhere and before.curves and settings.particle_diameter is not None:
        resolution = before.resolution
        if math.isfinite(resolution):
            increment = min(increment, adaptive_increment(resolution, settings.particle_diameter))
    size, pixel = particles.boxes.size, particles.pixel_size
    coarsest = None if settings.high_pass is None else radius_of(settings.high_pass, size, pixel)
    finest = None if settings.finest is None else radius_of(settings.finest, size, pixel)
    return Search(
        everywhere,
        settings.angle_shells,
        increment,
        settings.rotation_set,
        settings.symmetry,
        settings.binning,
        settings.max_shift if settings.max_shift is not None else size / 4,
        (coarsest, finest),
        settings.score,
        settings.shift_prior,
        settings.rotation_prior,
    )


def references_of(step: Step) -> tuple[Halves, ...]:
    """Averages of the halves, each filtered by how well it agrees with the other; what a run begins with as it is."""
    if not step.curves or step.number == 0:
        return step.halves
    return tuple(
        (
            fsc_filtered(first, curve.best, curve.resolution, "half"),
            fsc_filtered(second, curve.best, curve.resolution, "half"),
        )
        for (first, second), curve in zip(step.halves, step.curves)
    )


def compared(
    particles: Particle, passed: Passed, settings: AlignSettings, before: Step, search: Search | None = None
) -> Step:
    """Averages of the halves of each class, in one frame, and how well they agree.

    Raises
    ------
    UserError
        A half of a class has no particle.
    """
    group = symmetry_group(settings.symmetry)
    poses, halves, curves, frames, counts = passed.poses, [], [], [], []
    for kind, sums in enumerate(passed.sums):
        counts.append((int(sums["1"]["count"]), int(sums["2"]["count"])))
        if min(counts[-1]) == 0:
            raise UserError(_why_empty(kind, counts[-1], len(passed.sums)))
        first, second = (average(sums[half], group) for half in ("1", "2"))
        frame = frame_between(first, second, particles.mask)
        if search is not None and (frame.angle > APART[0] or frame.distance > APART[1]) and len(group) == 1:
            second = frame.brought(second)
            poses = _brought(poses, frame, kind)
        halves.append((first, second))
        frames.append(frame)
        curves.append(half_curve(first, second, particles.mask, particles.pixel_size, seed=settings.seed))
    step = Step(before.number + 1, poses, tuple(halves), tuple(curves), 0.0, tuple(counts), None, tuple(frames))
    if search is None:
        return step
    moved = _moved(before.poses, poses, group)
    still = moved[0] < SETTLED * search.increment and not step.resolution < (1 - BETTER) * before.resolution
    settled = before.settled + 1 if still and not search.everywhere else 0
    return dataclasses.replace(step, increment=search.increment, moved=moved, settled=settled)


def _why_empty(kind: int, counts: tuple[int, int], classes: int) -> str:
    if classes == 1:
        return (
            f"a half has no particle that can be read ({counts[0]} and {counts[1]}); halves are compared, so each "
            "takes some"
        )
    return (
        f"class {kind + 1} has {counts[0]} and {counts[1]} particles in its halves, the others fit another reference "
        "better; halves are compared, so give fewer --reference, or others"
    )


def whole_average(step: Step, kind: int = 0) -> NDArray[np.float32]:
    """Average of both halves of a class, each as its particles count, unfiltered."""
    (first, second), (one, two) = step.halves[kind], step.counts[kind]
    return np.asarray((first * np.float32(one) + second * np.float32(two)) / np.float32(one + two))


def _brought(poses: Poses, frame: Frame, kind: int) -> Poses:
    """Poses of the second half of a class, told in the frame of the first."""
    some = (poses.halves == 2) & (poses.classes == kind)
    rotations, shifts = np.array(poses.rotations), np.array(poses.shifts)
    rotations[some], shifts[some] = frame.poses(rotations[some], shifts[some])
    return dataclasses.replace(poses, rotations=rotations, shifts=shifts)


def _moved(before: Poses, after: Poses, group: NDArray[Any]) -> tuple[float, float]:
    good = after.read
    if not good.any():
        return 0.0, 0.0
    angles = angle_between(before.rotations[good], after.rotations[good], group)
    ways = np.linalg.norm(after.shifts[good] - before.shifts[good], axis=1)
    return float(np.median(angles)), float(np.median(ways))
