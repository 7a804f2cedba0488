"""What reconstructing a scan takes: memory of a worker stage by stage, bytes and time."""

import dataclasses
import math

from dtomo import io, prep
from dtomo.algorithms.fbp import NUFFT_FROM
from dtomo.distributed.clusters import Resources
from dtomo.distributed.plan import Plan
from dtomo.distributed.slabs import Slab, cut, slab_height
from dtomo.geometry import ParallelBeam
from dtomo.recon.prepare import PHASE_BAND, full_height, phase_bands, phase_options
from dtomo.recon.scans import rows_searched
from dtomo.settings import ReconSettings

PROGRAMS = 260_000_000
"""Python, libraries and compiled kernels in a worker (measured)."""
CLIENT = 250_000_000
"""The same of the client, with its scheduler and dashboard (measured)."""

FLOAT = 4
PIECE = 64 * 2**20
"""Bytes that MRC and TIFF are written in at a time."""
POINT, POINT_OF_THREAD = 90, 80
"""Bytes per frequency of all lines that the non-uniform transform takes, once and for each thread (measured)."""

# Seconds per unit on one core of a server of 2023 (measured); machines differ by a factor of 2.
READING = 1 / 1.0e9  # per byte
PREPARING = 22e-9  # per value
FILTERING = 6e-9  # per value
WRITING = 2.2e-9  # per byte
BACKPROJECTING = 1 / 25e9  # per voxel and angle
PROJECTING = 1 / 40e9  # per voxel and angle, either way
TRANSFORMING = 50e-9  # per frequency of a line
STARTING = 3.0  # cluster, libraries, compiled kernels


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the rows of a scan and of the slices made from them."""

    scan: io.Scan
    settings: ReconSettings
    geometry: ParallelBeam

    @property
    def raw_row(self) -> int:
        """Bytes in the file of a row (before binning, several) of all projections."""
        angles, _, columns = self.scan.shape
        return angles * columns * self.scan.dtype.itemsize * self.scan.binning**2

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

    @property
    def frequencies(self) -> int:
        """Of all lines of a slice, as the non-uniform transform takes them."""
        return len(self.geometry.angles) * (self.geometry.columns + 1)

    @property
    def by_nufft(self) -> bool:
        """Whether filtered back projection sums spectra."""
        width = min(self.geometry.width, self.geometry.height)
        return self.settings.method == "nufft" or (self.settings.method == "auto" and width >= NUFFT_FROM)


def peak(sizes: Sizes, slices: int, block: int, threads: int) -> dict[str, int]:
    """Bytes in a worker at the worst moment, by name."""
    slices_done = {"finished slices": slices * sizes.slice} if block < slices else {}
    finished = slices_done
    rows = _rows_at_once(sizes, block)
    data = rows * sizes.data_row
    if sizes.settings.delta_beta is not None:
        finished = {**finished, "retrieved": block * sizes.data_row}
    stages = [
        {"counts": 2 * rows * sizes.raw_row, **finished},
        {"counts": rows * sizes.raw_row, "projections": data, **finished},
        {"projections": 2 * data if sizes.settings.zingers or sizes.settings.delta_beta else data, **finished},
        {"projections": block * sizes.data_row, "folded": block * sizes.solved_row, **slices_done},
        {"projections": block * sizes.solved_row, **_solver(sizes, block, threads), **slices_done},
        {"volume": slices * sizes.slice, "writing": _writing(sizes, slices)},
    ]
    sums = [sum(stage.values()) for stage in stages]
    return {"programs": PROGRAMS, **stages[sums.index(max(sums))]}


def _rows_at_once(sizes: Sizes, block: int) -> int:
    """Rows read at once: with phase retrieval a band and its halo, of the whole detector."""
    if sizes.settings.delta_beta is None:
        return block
    halo = prep.paganin_halo_rows(**phase_options(sizes.scan, sizes.settings))
    return min(full_height(sizes.scan)[0].shape[1], PHASE_BAND + 2 * halo)


def _rows_read(sizes: Sizes, slab: Slab, block: int) -> int:
    """Rows read for a slab, counted as often as they are read: with phase retrieval all of each band for each block."""
    if sizes.settings.delta_beta is None:
        return len(slab)
    bands = [phase_bands(sizes.scan, sizes.settings, part.rows) for part in slab.blocks(block)]
    return sum(read.stop - read.start for part in bands for _, read in part)


def _solver(sizes: Sizes, block: int, threads: int) -> dict[str, int]:
    """Arrays of the algorithms beside the data."""
    data, volume = block * sizes.solved_row, block * sizes.slice
    if sizes.settings.algorithm == "sirt":
        return {"residuals": 2 * data, "volumes": 2 * volume}
    if sizes.settings.algorithm == "cgls":
        return {"residuals": 2 * data, "volumes": 3 * volume}
    if sizes.by_nufft:
        return {"transforms": sizes.frequencies * (POINT + threads * POINT_OF_THREAD), "volume": volume}
    return {"filtered": data, "volume": volume}


def _writing(sizes: Sizes, slices: int) -> int:
    """Shards on their way to the disk and the coarser levels, or pieces of a file."""
    volume = slices * sizes.slice
    zarr = io.volumes.volume_format(sizes.settings.output) == "zarr"
    return volume * 5 // 4 if zarr else min(2 * volume, 2 * PIECE)


def make_plan(
    scan: io.Scan,
    settings: ReconSettings,
    geometry: ParallelBeam,
    resources: Resources,
    height: int | None = None,
) -> Plan:
    """The plan of a run: as many slices at a time as fit, in slabs of `slab_height` or of just these.

    `height`, or else the settings, may fix the slices of a slab. If nothing fits, the smallest is returned.
    """
    sizes = Sizes(scan, settings, geometry)
    fixed = height or settings.slab
    wanted = min(fixed or slab_height(scan.shape[1], resources.workers), scan.shape[1])
    plan = None
    for block in (wanted, 48, 32, 16, 8, 4, 2, 1):
        for slab in (wanted,) if fixed else (wanted, block):
            if block <= wanted:
                plan = _plan(sizes, resources, slab, block)
                if plan.fits:
                    return plan
    assert plan is not None
    return plan


def _plan(sizes: Sizes, resources: Resources, height: int, block: int) -> Plan:
    slabs = tuple(cut(sizes.scan.shape[1], height))
    largest = max(len(slab) for slab in slabs)
    rows = sum(_rows_read(sizes, slab, block) for slab in slabs)
    shape = (sizes.scan.shape[1], sizes.geometry.height, sizes.geometry.width)
    return Plan(
        slabs=slabs,
        block=block,
        resources=resources,
        worker_parts=peak(sizes, largest, block, resources.threads),
        client_parts=_client(sizes),
        bytes_read=rows * sizes.raw_row,
        bytes_written=io.volumes.written_bytes(sizes.settings.output, shape),
        seconds=_seconds(sizes, resources, len(slabs), largest, rows / sizes.scan.shape[1]),
    )


def _client(sizes: Sizes) -> dict[str, int]:
    """Memory of the client: rows to find the axis from, seven times."""
    searched = sizes.settings.center == "auto"
    rows = rows_searched(sizes.scan) * sizes.data_row
    return {"programs": CLIENT, **({"axis search": 7 * rows} if searched else {})}


def _seconds(sizes: Sizes, resources: Resources, slabs: int, height: int, readings: float) -> dict[str, float]:
    """Wall time by stage; each row is read and prepared `readings` times on average."""
    rounds = min(math.ceil(slabs / resources.workers) * height, sizes.scan.shape[1])
    voxels, values = sizes.slice / FLOAT, sizes.solved_row / FLOAT
    angles = len(sizes.geometry.angles)
    if sizes.settings.algorithm != "fbp":
        compute = sizes.settings.iterations * voxels * angles * 2 * PROJECTING
    elif sizes.by_nufft:
        compute = sizes.frequencies * TRANSFORMING
    else:
        compute = voxels * angles * BACKPROJECTING + values * FILTERING
    return {
        "starting": STARTING,
        "reading": rounds * readings * sizes.raw_row * READING,
        "preparing": rounds * readings * sizes.data_row / FLOAT * PREPARING / resources.threads,
        "computing": rounds * compute / resources.threads,
        "writing": rounds * sizes.slice * WRITING,
    }
