"""What reconstructing a scan takes: memory of a worker stage by stage, bytes and time."""

import dataclasses
import math

from dtomo import io, prep
from dtomo.distributed.clusters import Resources
from dtomo.distributed.plan import Plan
from dtomo.distributed.slabs import QUANTUM, cut, slab_height
from dtomo.geometry import ParallelBeam
from dtomo.recon.prepare import PHASE_BAND, phase_options
from dtomo.settings import ReconSettings

PROGRAMS = 260_000_000
"""Python, libraries and compiled kernels in a worker (measured)."""
CLIENT = 250_000_000
"""The same of the client, with its scheduler and dashboard (measured)."""

FLOAT = 4
# Seconds per unit on one core of a server of 2023 (measured); machines differ by a factor of 2.
READING = 1 / 1.2e9  # per byte
PREPARING = 12e-9  # per value
WRITING = 2.5e-9  # per byte
BACKPROJECTING = 1 / 25e9  # per voxel and angle
PROJECTING = 1 / 20e9
TRANSFORMING = 25e-9  # NUFFT, per value and voxel
STARTING = 3.0  # cluster, libraries, compiled kernels


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Counts of one slab of `slices`, worked on `block` slices at a time."""

    scan: io.Scan
    settings: ReconSettings
    geometry: ParallelBeam

    @property
    def raw_row(self) -> int:
        """Bytes of a row of all projections, as read."""
        angles, _, columns = self.scan.shape
        return angles * columns * (self.scan.dtype.itemsize if self.scan.binning == 1 else FLOAT)

    @property
    def data_row(self) -> int:
        """Bytes of a row of line integrals, before folding."""
        angles, _, columns = self.scan.shape
        return angles * columns * FLOAT

    @property
    def solved_row(self) -> int:
        """Bytes of a row of line integrals, as the algorithm gets them."""
        return len(self.geometry.angles) * self.geometry.columns * FLOAT

    @property
    def slice(self) -> int:
        """Bytes of a slice of the volume."""
        return self.geometry.width * self.geometry.height * FLOAT


def peak(sizes: Sizes, slices: int, block: int) -> dict[str, int]:
    """Bytes in a worker at the worst moment, by name."""
    whole = slices * sizes.slice if block < slices else 0
    stages = [
        {
            "counts": _rows_read(sizes, block) * sizes.raw_row,
            "projections": _rows_read(sizes, block) * sizes.data_row,
        },
        {"projections": block * sizes.solved_row, **_solver(sizes, block)},
        {"volume": slices * sizes.slice, "writing": _writing(sizes, slices)},
    ]
    if sizes.settings.zingers or sizes.settings.delta_beta:
        stages.append({"projections": 2 * _rows_read(sizes, block) * sizes.data_row})
    worst = max(stages[:2] + stages[3:], key=lambda stage: sum(stage.values()))
    if sum(worst.values()) + whole < sum(stages[2].values()):
        return {"programs": PROGRAMS, **stages[2]}
    return {"programs": PROGRAMS, **worst, **({"finished slices": whole} if whole else {})}


def _rows_read(sizes: Sizes, block: int) -> int:
    if sizes.settings.delta_beta is None:
        return block
    return min(
        sizes.scan.shape[1],
        PHASE_BAND + 2 * prep.paganin_halo_rows(**phase_options(sizes.scan, sizes.settings)),
    )


def _solver(sizes: Sizes, block: int) -> dict[str, int]:
    """Arrays of the algorithms beside the data."""
    data, volume = block * sizes.solved_row, block * sizes.slice
    if sizes.settings.algorithm == "fbp":
        return {"filtered": data, "volume": volume}
    if sizes.settings.algorithm == "sirt":
        return {"residual": data, "volume": 2 * volume}
    return {"residual": 2 * data, "volume": 3 * volume}


def _writing(sizes: Sizes, slices: int) -> int:
    return slices * sizes.slice


def blocks_to_try(height: int) -> list[int]:
    """Slices at a time: all, then fewer, in multiples of 16 while it can be."""
    tries = [height] + [block for block in (64, 32, 16, 8, 4, 2, 1) if block < height]
    return tries


def make_plan(
    scan: io.Scan,
    settings: ReconSettings,
    geometry: ParallelBeam,
    resources: Resources,
    height: int | None = None,
) -> Plan:
    """The plan of a run; slabs and blocks are the largest that fit.

    `height`, or else the settings, may fix the slices of a slab.
    """
    rows = scan.shape[1]
    sizes = Sizes(scan, settings, geometry)
    wanted = height or settings.slab or slab_height(rows, resources.workers)
    candidates = [wanted] if height or settings.slab else [*range(wanted, 0, -QUANTUM), 8, 4, 2, 1]
    for candidate in candidates:
        for block in blocks_to_try(candidate):
            if block < min(QUANTUM, candidate):
                break
            plan = _plan(sizes, resources, candidate, block)
            if plan.fits:
                return plan
    return _plan(sizes, resources, candidates[0], min(candidates[0], QUANTUM))


def _plan(sizes: Sizes, resources: Resources, height: int, block: int) -> Plan:
    slabs = tuple(cut(sizes.scan.shape[1], height))
    largest = max(len(slab) for slab in slabs)
    block = min(block, largest)
    read = sum(min(_rows_read(sizes, len(slab)), sizes.scan.shape[1]) for slab in slabs) * sizes.raw_row
    shape = (sizes.scan.shape[1], sizes.geometry.height, sizes.geometry.width)
    return Plan(
        slabs=slabs,
        block=block,
        resources=resources,
        worker_parts=peak(sizes, largest, block),
        client_parts={"programs": CLIENT},
        bytes_read=read,
        bytes_written=io.volumes.written_bytes(sizes.settings.output, shape),
        seconds=_seconds(sizes, resources, len(slabs), largest),
    )


def _seconds(sizes: Sizes, resources: Resources, slabs: int, height: int) -> dict[str, float]:
    rounds = math.ceil(slabs / resources.workers) * height
    voxels, values = sizes.slice / FLOAT, sizes.solved_row / FLOAT
    angles = len(sizes.geometry.angles)
    if sizes.settings.algorithm == "fbp":
        compute = min(voxels * angles * BACKPROJECTING, (voxels + values) * TRANSFORMING)
    else:
        compute = sizes.settings.iterations * voxels * angles * (BACKPROJECTING + PROJECTING)
    return {
        "starting": STARTING,
        "reading": rounds * sizes.raw_row * READING,
        "preparing": rounds * sizes.data_row / FLOAT * PREPARING / resources.threads,
        "computing": rounds * compute / resources.threads,
        "writing": rounds * sizes.slice * WRITING,
    }
