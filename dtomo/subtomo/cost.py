"""What a run of alignment takes: memory per worker, tasks, time; told and refused before anything is touched."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from dtomo.distributed.clusters import Resources
from dtomo.distributed.devices import described
from dtomo.distributed.plan import size
from dtomo.distributed.progress import duration
from dtomo.errors import UserError
from dtomo.settings import AlignSettings
from dtomo.subtomo.align import block_size
from dtomo.subtomo.averaging import OVERSAMPLING
from dtomo.subtomo.rotations import local_rotations, uniform_rotations

if TYPE_CHECKING:
    from dtomo.subtomo.inputs import Inputs

PROGRAMS = 350 * 2**20
"""Bytes of a worker before it has done anything."""
ROTATION = 40e-9
"""Seconds of one core for a voxel and a rotation: turning, two transforms of real numbers, the peak."""
AVERAGING = 1.2e-6
"""Seconds of one core for a voxel of a particle that is added to an average."""
AT_ONCE = 14
"""Arrays as large as a box (complex half spectra count as one) while a particle is matched, and per thread two more."""


@dataclasses.dataclass(frozen=True)
class AlignPlan:
    """What a run takes.

    Attributes
    ----------
    resources
        That it is for.
    particles, box, rotations, blocks
        Numbers; rotations of the first iteration.
    worker_memory, client_memory
        Bytes.
    seconds
        Of an iteration.
    iterations
        At most.
    """

    resources: Resources
    particles: int
    box: int
    rotations: int
    blocks: int
    worker_memory: int
    client_memory: int
    seconds: float
    iterations: int

    @property
    def here(self) -> bool:
        """Whether this process does it alone."""
        resources = self.resources
        return resources.kind == "local" and resources.workers == 1 and not resources.devices

    def lines(self) -> list[str]:
        """For the user."""
        resources = self.resources
        where = " (this process)" if self.here else ""
        limit = resources.device_share if resources.device_share is not None else resources.memory
        return [
            f"particles: {self.particles} boxes of {self.box}³ voxels in {self.blocks} blocks",
            f"rotations: {self.rotations} of each particle at first",
            f"workers: {resources.workers} with {resources.threads} threads each{where}",
            *([] if resources.devices is None else [f"devices: {described(resources.devices, resources.workers)}"]),
            f"memory per worker: {size(self.worker_memory)} of {size(limit)}",
            f"memory of this process: {size(self.client_memory)}",
            f"tasks of an iteration: {2 * self.blocks}",
            f"about {duration(self.seconds)} for an iteration, {self.iterations} at most",
        ]


def make_plan(settings: AlignSettings, inputs: "Inputs", resources: Resources) -> AlignPlan:
    """From sizes alone."""
    box, count = inputs.fixed.boxes.size, len(inputs.poses)
    classes = max(1, len(inputs.references))
    if settings.global_iterations:
        rotations = len(uniform_rotations(settings.global_increment, settings.symmetry))
    else:
        start = inputs.poses.rotations[0]
        rotations = len(
            local_rotations(start, settings.angle_shells, settings.angle_increment, kind=settings.rotation_set)
        )
    one, small = 4 * box**3, 4 * (box // settings.binning) ** 3
    blocks = -(-count // block_size(count))
    partial = classes * 2 * one * 3 // 2  # data and weights of both halves
    levels = max(1, math.ceil(math.log2(max(2, blocks / resources.workers))))
    matching = small * (AT_ONCE + 2 * resources.threads) * classes + 2 * one * classes
    adding = int(6 * one * OVERSAMPLING**3) + 2 * partial
    worker = PROGRAMS + (levels + 2) * partial + max(matching, adding)
    work = count * (rotations * classes * (box / settings.binning) ** 3 * ROTATION + box**3 * AVERAGING)
    seconds = work / (resources.workers * resources.threads)
    return AlignPlan(
        resources, count, box, rotations, blocks, worker, PROGRAMS + 4 * partial + 12 * one * classes, seconds,
        settings.iterations,
    )  # fmt: skip


def refuse_if_too_big(plan: AlignPlan) -> None:
    """Refuse what does not fit, with what would.

    Raises
    ------
    UserError
        So.
    """
    share = plan.resources.device_share
    limit, option = (share, "--device-memory") if share is not None else (plan.resources.memory, "--memory")
    if plan.worker_memory > limit:
        raise UserError(
            f"a worker needs {size(plan.worker_memory)} for boxes of {plan.box}³ voxels but may take {size(limit)}; "
            f"give more {option}, fewer --workers, or --binning"
        )


def as_numbers(plan: AlignPlan) -> dict[str, Any]:
    """For the summary."""
    return {
        "planned": {
            "worker_memory": plan.worker_memory,
            "client_memory": plan.client_memory,
            "seconds_per_iteration": plan.seconds,
            "rotations": plan.rotations,
            "blocks": plan.blocks,
        }
    }
