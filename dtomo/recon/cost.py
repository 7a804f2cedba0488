"""What reconstructing a scan takes: memory of a worker stage by stage, bytes and time."""

import dataclasses
import math

from dtomo import io, prep
from dtomo.algorithms.fbp import sums_spectra
from dtomo.device import STAGE
from dtomo.distributed.cluster_file import BATCH_SYSTEMS
from dtomo.distributed.clusters import Resources
from dtomo.distributed.plan import Plan
from dtomo.distributed.progress import duration
from dtomo.distributed.slabs import Slabs, slab_height
from dtomo.geometry import ParallelBeam
from dtomo.io.checkpoints import GENERATIONS
from dtomo.io.tilts.aligned import TOGETHER
from dtomo.kernels.nufft import installed_for_devices
from dtomo.recon.prepare import PHASE_BAND, full_detector, phase_bands, phase_options, stripe_method
from dtomo.recon.scans import rows_searched, views_searched, volume_dtype
from dtomo.recon.solvers import NEEDS, needs_of, solver_bytes, state_bytes
from dtomo.settings import ReconSettings

PROGRAMS = 260_000_000
"""Python, libraries and compiled kernels in a worker (measured)."""
CLIENT = 250_000_000
"""The same of the client, with its scheduler and dashboard (measured)."""

CUDA_PROGRAMS = 1_200_000_000
"""What CUDA and its libraries take in a worker's host memory beside this (a guess on the safe side)."""

FLOAT = 4
MOST_BANDS = 2048
"""Blocks whose bands of the phase filter are counted; more are estimated from so many of them."""
DEVICE_WORK = 512 * 2**20
"""Bytes of work areas on a device: batches of lines, views or rows of up to 256 MiB, and plans of cuFFT."""
_PHASE_FRAMES, _PHASE_BYTES = 8, 32
"""Frames in a batch of the phase filter on a device at least, and bytes of a pixel there."""
PIECE = 64 * 2**20
"""Bytes that MRC and TIFF are written in at a time."""
POINT, POINT_OF_THREAD = 90, 80
"""Bytes per frequency of all lines that the non-uniform transform takes, once and for each thread (measured)."""

# Seconds per unit on one core of a server of 2023 (measured); machines differ by a factor of 2.
READING = 1 / 1.0e9  # per byte
PREPARING = 22e-9  # per value, stripes and all
COPYING = 2e-9  # per value that is only looked at and transposed
FILTERING = 6e-9  # per value
WRITING = 2.2e-9  # per byte
BACKPROJECTING = 1 / 25e9  # per voxel and angle
PROJECTING = 1 / 40e9  # per voxel and angle, either way
TRANSFORMING = 50e-9  # per frequency of a line
PER_VOXEL = 20e-9  # of a slice that is summed in Fourier space
SHARING = {0: 0.0, 1: 4.0, 2: 8.0, 3: 12.0, 16: 32.0, 32: 52.0, 64: 64.0}
"""Up to so many slices computed together take as long as this many among 64."""
STARTING = 3.0  # cluster, libraries, compiled kernels


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the rows of a scan and of the slices made from them, on the CPU or on a device."""

    scan: io.Scan
    settings: ReconSettings
    geometry: ParallelBeam
    on_device: bool = False

    @property
    def lanes(self) -> int:
        """Real numbers per value: 2 of complex scans."""
        return volume_dtype(self.scan).itemsize // FLOAT

    @property
    def columns_read(self) -> int:
        """Columns of a row that is read: with phase retrieval all of the detector."""
        return (self.scan if self.settings.delta_beta is None else full_detector(self.scan)[0]).shape[2]

    @property
    def raw_row(self) -> int:
        """Bytes in the file of a row (before binning, several) of all projections."""
        return len(self.scan.angles) * self.columns_read * self.scan.dtype.itemsize * self.scan.binning**2

    @property
    def arrived_row(self) -> int:
        """Bytes of a row of all projections as it is read: as stored, or means of binned pixels."""
        item = self.scan.dtype.itemsize if self.scan.binning == 1 else FLOAT * self.lanes
        return len(self.scan.angles) * self.columns_read * item

    @property
    def read_row(self) -> int:
        """Bytes of a row of transmissions, as wide as it is read."""
        return len(self.scan.angles) * self.columns_read * FLOAT * self.lanes

    @property
    def data_row(self) -> int:
        """Bytes of a row of line integrals, before folding."""
        return len(self.scan.angles) * self.scan.shape[2] * FLOAT * self.lanes

    @property
    def solved_row(self) -> int:
        """Bytes of a row of line integrals, as the algorithm gets them."""
        return len(self.geometry.angles) * self.geometry.columns * FLOAT * self.lanes

    @property
    def slice(self) -> int:
        """Bytes of a slice of the volume."""
        return self.geometry.width * self.geometry.height * FLOAT * self.lanes

    @property
    def frequencies(self) -> int:
        """Of all lines of a slice, as the non-uniform transform takes them."""
        return len(self.geometry.angles) * (self.geometry.columns + 1)

    @property
    def by_nufft(self) -> bool:
        """Whether filtered back projection sums spectra; on a device "auto" does where cuFINUFFT is installed."""
        method = self.settings.method
        there = not self.on_device or method == "nufft" or installed_for_devices()
        return there and sums_spectra(self.geometry, method)


def peak(sizes: Sizes, slices: int, block: int, threads: int) -> dict[str, int]:
    """Bytes in a worker at the worst moment, by name."""
    slices_done = {"finished slices": slices * sizes.slice} if block < slices else {}
    finished = slices_done
    rows = _rows_at_once(sizes, block)
    data = rows * sizes.read_row
    copied = sizes.settings.delta_beta is not None
    if sizes.settings.delta_beta is not None:
        finished = {**finished, "retrieved": block * sizes.data_row}
    stages = [
        {"counts": rows * sizes.raw_row, "projections": data, **finished},
        {"projections": 2 * data if copied else data, **finished},
        {"projections": block * sizes.data_row, "folded": block * sizes.solved_row, **slices_done},
        {"projections": 2 * block * sizes.solved_row, **slices_done},  # turned so that z is innermost
        {"projections": block * sizes.solved_row, **_solver(sizes, block, threads), **slices_done},
        {"volume": slices * sizes.slice},
    ]
    # memory of arrays is kept for the next slab, also while this one is written
    sums = [sum(stage.values()) for stage in stages]
    moved = {} if sizes.settings.alignment is None else {"views being aligned": 3 * TOGETHER}
    return {"programs": PROGRAMS, **moved, **stages[sums.index(max(sums))], "writing": _writing(sizes, slices)}


def host_peak(sizes: Sizes, slices: int, block: int) -> dict[str, int]:
    """Bytes in the host memory of a worker that computes on a device, at the worst moment, by name."""
    return {
        "programs": PROGRAMS + CUDA_PROGRAMS,
        "counts": _rows_at_once(sizes, block) * sizes.raw_row,
        "volume": slices * sizes.slice,
        "pinned buffers": 4 * STAGE,
        "writing": _writing(sizes, slices),
    }


def device_peak(sizes: Sizes, block: int) -> dict[str, int]:
    """Bytes on the device of a worker at the worst moment, by name.

    At any moment the counts of the next block arrive and the slices of the last one leave.
    """
    rows = _rows_at_once(sizes, block)
    counts, data, volume = rows * sizes.arrived_row, rows * sizes.read_row, block * sizes.slice
    solved, work = block * sizes.solved_row, DEVICE_WORK
    moving = {"next counts": 0 if sizes.settings.delta_beta is not None else counts, "last slices": volume}
    retrieved = {}
    if sizes.settings.delta_beta is not None:
        retrieved = {"retrieved": block * sizes.data_row}
        work += _PHASE_FRAMES * _PHASE_BYTES * data // (len(sizes.scan.angles) * FLOAT)
    stages = [
        {"counts": counts, "projections": data, "work": work, **retrieved},
        {"projections": (1 + bool(retrieved)) * data, "work": work, **retrieved},
        {"projections": block * sizes.data_row, "folded": solved, "work": DEVICE_WORK},
        {"projections": 2 * solved, "work": DEVICE_WORK},  # turned so that z is innermost
        {"projections": solved, **_device_solver(sizes, block)},
    ]
    sums = [sum(stage.values()) for stage in stages]
    return {**stages[sums.index(max(sums))], **moving}


def _device_solver(sizes: Sizes, block: int) -> dict[str, int]:
    """Arrays of the algorithms beside the data, on a device."""
    if sizes.settings.algorithm == "fbp" and sizes.by_nufft:
        from dtomo.kernels.cuda import nufft

        size = (sizes.geometry.height, sizes.geometry.width)
        transforms = max(nufft.WORKSPACE, nufft.slice_bytes(sizes.frequencies, size))
        return {"transforms": transforms, "volume": block * sizes.slice, "work": DEVICE_WORK}
    return {**_solver(sizes, block, 1), "work": DEVICE_WORK}


def _rows_at_once(sizes: Sizes, block: int) -> int:
    """Rows read at once: with phase retrieval a band and its halo, of the whole detector."""
    if sizes.settings.delta_beta is None:
        return block
    halo = prep.paganin_halo_rows(**phase_options(sizes.scan, sizes.settings))
    return min(full_detector(sizes.scan)[0].shape[1], PHASE_BAND + 2 * halo)


def _rows_read(sizes: Sizes, slabs: Slabs, block: int) -> int:
    """Rows read, counted as often as they are read: with phase retrieval all of each band for each block."""
    if sizes.settings.delta_beta is None:
        return sizes.scan.shape[1]
    per_slab = math.ceil(slabs.height / block)
    step = max(1, math.ceil(len(slabs) * per_slab / MOST_BANDS))
    some = [part for slab in slabs[::step] for part in slab.blocks(block)]
    bands = [phase_bands(sizes.scan, sizes.settings, part.rows) for part in some]
    read = sum(band.stop - band.start for part in bands for _, band in part)
    return round(read * sizes.scan.shape[1] / sum(len(part) for part in some))


def _solver(sizes: Sizes, block: int, threads: int) -> dict[str, int]:
    """Arrays of the algorithms beside the data."""
    volume = block * sizes.slice
    if sizes.settings.algorithm in NEEDS:
        return solver_bytes(sizes.settings, block, sizes.slice, sizes.solved_row, on_device=sizes.on_device)
    if sizes.by_nufft:
        return {"transforms": sizes.frequencies * (POINT + threads * POINT_OF_THREAD), "volume": volume}
    return {"volume": volume}


def _writing(sizes: Sizes, slices: int) -> int:
    """Shards on their way to the disk and the coarser levels, or pieces of a file."""
    volume = slices * sizes.slice
    if io.volumes.volume_format(sizes.settings.output) != "zarr":
        return min(2 * volume, 2 * PIECE)
    levels = 0 if sizes.settings.levels == 1 else volume // 7
    return 3 * min(volume, math.prod(io.ome_zarr.SHARD) * FLOAT * sizes.lanes) + levels  # voxels, chunks, shard


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
    sizes = Sizes(scan, settings, geometry, resources.device_share is not None)
    depth, share = scan.shape[1], resources.device_share
    even = slab_height(depth, resources.workers)
    if settings.exchanges_planes and share is None:
        return _at_once(sizes, resources, min(height or settings.slab or even, depth))
    fixed = height or (depth if settings.joins_slices else settings.slab)
    wanted = min(fixed or even, depth)
    tried = [
        (slab, block)
        for block in (wanted, 48, 32, 16, 8, 4, 2, 1)
        for slab in ((wanted,) if fixed else (wanted, block))
        if block <= wanted and (block == wanted or not settings.joins_slices)
    ]
    fitting = (
        (slab, block)
        for slab, block in tried
        if sum(_host_parts(sizes, resources, slab, block).values()) <= resources.memory
        and (share is None or sum(device_peak(sizes, block).values()) <= share)
    )
    return _plan(sizes, resources, *next(fitting, tried[-1]))


def _at_once(sizes: Sizes, resources: Resources, height: int) -> Plan:
    """All slabs at once, consecutive ones on one worker: one of them computes, the others keep what they have."""
    plan = _plan(sizes, resources, height, height)
    parties = math.ceil(len(plan.slabs) / resources.workers)
    others = (parties - 1) * (height * sizes.solved_row + sum(_solver(sizes, height, resources.threads).values()))
    parts = plan.worker_parts | ({"other slabs": others} if others else {})
    notes = (f"all slabs at once, {parties} on a worker: they exchange planes",) if len(plan.slabs) > 1 else ()
    scratch = _scratch(sizes, len(plan.slabs), height, height)
    return dataclasses.replace(plan, worker_parts=parts, notes=(*plan.notes, *notes), scratch=scratch)


def _host_parts(sizes: Sizes, resources: Resources, slices: int, block: int) -> dict[str, int]:
    if resources.device_share is None:
        return peak(sizes, slices, block, resources.threads)
    return host_peak(sizes, slices, block)


def _plan(sizes: Sizes, resources: Resources, height: int, block: int) -> Plan:
    slabs = Slabs(sizes.scan.shape[1], height)
    rows = _rows_read(sizes, slabs, block)
    shape = (sizes.scan.shape[1], sizes.geometry.height, sizes.geometry.width)
    settings = sizes.settings
    seconds = _seconds(sizes, resources, slabs, block, rows / sizes.scan.shape[1])
    return Plan(
        slabs=slabs,
        block=block,
        resources=resources,
        worker_parts=_host_parts(sizes, resources, height, block),
        device_parts={} if resources.device_share is None else device_peak(sizes, block),
        client_parts=_client(sizes),
        bytes_read=rows * sizes.raw_row,
        bytes_written=io.volumes.written_bytes(settings.output, shape, volume_dtype(sizes.scan), settings.levels),
        seconds=seconds,
        notes=_short_lives(sizes, resources, slabs, seconds),
        scratch=_scratch(sizes, min(resources.workers, len(slabs)), height, block),
    )


def _short_lives(sizes: Sizes, resources: Resources, slabs: Slabs, seconds: dict[str, float]) -> tuple[str, ...]:
    """A warning where workers of a batch system may not live to the end of a slab of which nothing is kept before."""
    kept = sizes.settings.algorithm != "fbp" and sizes.settings.checkpoint_every != "never"
    if kept or resources.kind not in BATCH_SYSTEMS:
        return ()
    from dtomo.distributed.slurm import workers_live

    live = workers_live(resources, resources.options)
    slab = sum(seconds.values()) / math.ceil(len(slabs) / resources.workers)
    if live is None or 2 * slab < live:
        return ()
    return (
        f"warning: a slab takes about {duration(slab)}, but workers retire after {duration(live)} and nothing of a "
        "slab is kept before it is done; give a smaller --slab or a longer --walltime",
    )


def _scratch(sizes: Sizes, running: int, height: int, block: int) -> dict[str, int]:
    """Checkpoints of the slabs that are being solved: those kept, the one being written, and finished blocks."""
    state = state_bytes(sizes.settings, block * sizes.slice, block * sizes.solved_row)
    if not state or sizes.settings.checkpoint_every == "never":
        return {}
    finished = height * sizes.slice if block < height else 0
    return {"checkpoints": running * ((GENERATIONS + 1) * state + finished)}


def _client(sizes: Sizes) -> dict[str, int]:
    """Memory of the client: rows to find the axis from, seven times."""
    searched = sizes.settings.center == "auto"
    views = len(range(*views_searched(sizes.scan).indices(len(sizes.scan.angles))))
    rows = rows_searched(sizes.scan) * views * sizes.scan.shape[2] * FLOAT * sizes.lanes
    return {"programs": CLIENT, **({"axis search": 7 * rows} if searched else {})}


def _spread(lanes: int) -> float:
    """How many times longer a slice takes where so few real slices share the weights of the rays (measured)."""
    whole, rest = divmod(lanes, 64)
    few = SHARING[next(count for count in SHARING if rest <= count)]
    return (64 * whole + few) / lanes


def _seconds(sizes: Sizes, resources: Resources, slabs: Slabs, block: int, readings: float) -> dict[str, float]:
    """Wall time by stage, without what devices take; each row is read and prepared `readings` times on average."""
    rounds = min(math.ceil(len(slabs) / resources.workers) * slabs.height, sizes.scan.shape[1])
    spread = _spread(min(block, slabs.height) * sizes.lanes)
    voxels, values = sizes.slice / FLOAT, sizes.solved_row / FLOAT  # real numbers
    angles = len(sizes.geometry.angles)
    preparing = PREPARING if stripe_method(sizes.scan, sizes.settings) != "none" else COPYING
    if sizes.settings.algorithm != "fbp":
        compute = sizes.settings.iterations * voxels * angles * 2 * PROJECTING * spread
        compute *= needs_of(sizes.settings).work
    elif sizes.by_nufft:
        compute = sizes.lanes * sizes.frequencies * TRANSFORMING + voxels * PER_VOXEL
    else:
        compute = voxels * angles * BACKPROJECTING * spread + values * FILTERING
    on_cpu = {
        "preparing": rounds * readings * sizes.read_row / FLOAT * preparing / resources.threads,
        "computing": rounds * compute / resources.threads,
    }
    return {
        "starting": STARTING,
        "reading": rounds * readings * sizes.raw_row * READING,
        **(on_cpu if resources.device_share is None else {}),
        "writing": rounds * sizes.slice * WRITING,
    }
