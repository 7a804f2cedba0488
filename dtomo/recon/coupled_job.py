"""Runs whose slabs depend on one another: a party for each slab, all at once on the workers.

Iterative algorithms for a scan with a geometry, whose rays cross slabs; in a parallel beam total variation that joins
slices. Each party reads and prepares its own rows of the detector, keeps its part of the solver's state in checkpoints
that all parties write at the same iteration, and writes its slab when all are done.
"""

import dataclasses
import hashlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo import algorithms, dashboard, io
from dtomo.algorithms import TotalVariation
from dtomo.dashboard import watch_slab
from dtomo.distributed import queue
from dtomo.distributed.clusters import Resources
from dtomo.distributed.crew_checkpoints import CrewCheckpoints
from dtomo.distributed.crews import run_crews
from dtomo.distributed.plan import Plan
from dtomo.distributed.progress import Counter
from dtomo.distributed.slabs import Slab, Slabs, slab_height
from dtomo.distributed.together import Party
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam, VectorGeometry
from dtomo.io.checkpoints import Schedule
from dtomo.io.output import progress_folder
from dtomo.memory import keep_memory, peak_memory
from dtomo.recon.cost import CLIENT, PREPARING, PROGRAMS, READING, STARTING, WRITING
from dtomo.recon.coupled import Coupled, Span
from dtomo.recon.faults import stopped
from dtomo.recon.geometry_slab import GeometryJob, rows_needed
from dtomo.recon.given import check_given, given_to
from dtomo.recon.prepare import line_integrals
from dtomo.recon.scans import check_counted, volume_dtype
from dtomo.recon.slab import SlabSummary, Stopwatch
from dtomo.recon.solvers import needs_of, solver_options
from dtomo.settings import ReconSettings, checkpoint_interval
from dtomo.threads import set_threads

if TYPE_CHECKING:
    from distributed import Client

FLOAT = 4
PROJECTING_RAYS = 1 / 2.5e9
"""Seconds per voxel and view of one core, either way (measured)."""
EXCHANGED = 4
"""Sets of a party's rows that are in memory while rows are exchanged: made, on their way, arrived (measured)."""
SUMS = {"sirt": (1, 1), "os-sart": (1, 1), "tv": (1, 2), "mlem": (1, 0), "osem": (0, 0)}
"""Volumes and data for sums of columns and rows, which differ by slice."""


@dataclasses.dataclass(frozen=True, eq=False)
class CoupledJob:
    """All that a party needs to know, but its slab.

    Attributes
    ----------
    scan, settings, problem
        Cropped and binned, what was asked for, and geometry and slabs.
    scale
        From values per unit of length to the unit of the output.
    threads
        Compute threads of a worker.
    output
        The volume, created already.
    fold_about
        Column that a scan over 360° is folded about; None: it is not.
    feed
        Goes to the page of the dashboard; None: there is none.
    """

    scan: io.Scan
    settings: ReconSettings
    problem: Coupled
    scale: float
    threads: int
    output: Path
    fold_about: float | None = None
    feed: dashboard.Feed | None = None


def check(scan: io.Scan, settings: ReconSettings, geometry: VectorGeometry) -> None:
    """Refuse what the slabs of a geometry cannot have.

    Raises
    ------
    UserError
        A prior that joins slices and is not total variation, a start on larger voxels, counts that are none, volumes
        that do not fit.
    """
    if settings.prior == "nuclear" or (settings.coupled and settings.prior == "wavelets"):
        raise UserError(
            f"--prior {settings.prior} joins all slices, but the volume of {scan.path} is solved in slabs; take "
            "--prior tv, or wavelets without --coupled"
        )
    if settings.start == "coarse":
        raise UserError(f"--start coarse is for a parallel beam, not for {scan.path}; take --start fbp")
    if settings.start == "fbp":
        algorithms.check_fdk(np.broadcast_to(np.float32(0), scan.shape), geometry)
    check_counted(scan, settings)
    check_given(settings, scan, geometry.shape)


def make_plan(job: GeometryJob, resources: Resources, height: int | None = None) -> Plan:
    """The plan of a run: all slabs are in memory at once, consecutive ones on one worker.

    Raises
    ------
    UserError
        Workers with devices; more slabs than the detector has rows.
    """
    settings, geometry = job.settings, job.geometry
    if resources.device_share is not None:
        raise UserError(
            f"--algorithm {settings.algorithm} with a geometry works on CPUs so far; leave out --cluster cuda"
        )
    depth = geometry.shape[0]
    least = math.ceil(depth / geometry.rows)  # a party has a row at least
    most = min(height or settings.slab or max(least, slab_height(depth, resources.workers)), depth)
    slabs = Slabs(depth, most)
    Coupled.of(geometry, spans(slabs))  # refuses too many
    return _plan(job, resources, slabs)


def spans(slabs: Sequence[Slab]) -> tuple[Span, ...]:
    """Slices (first, last + 1) of each slab."""
    return tuple((slab.start, slab.stop) for slab in slabs)


def _plan(job: GeometryJob, resources: Resources, slabs: Slabs) -> Plan:
    scan, settings, geometry = job.scan, job.settings, job.geometry
    lanes = volume_dtype(scan).itemsize // FLOAT
    height, parties = len(slabs[0]), math.ceil(len(slabs) / resources.workers)
    rows = math.ceil(geometry.rows / len(slabs))
    row = geometry.views * geometry.columns * FLOAT * lanes
    raw_row = len(scan.angles) * scan.shape[2] * scan.dtype.itemsize * scan.binning**2
    data, volume = rows * row, height * geometry.shape[1] * geometry.shape[2] * FLOAT * lanes
    volumes, sets = _solver_needs(settings)
    exchanged = EXCHANGED * data + volume if len(slabs) > 1 else 0  # and back projections of some views
    parts = {
        "projections": parties * data,
        "residuals": int(parties * sets * data),
        "volumes": int(parties * volumes * volume),
        "exchanged": parties * exchanged,
        "counts": max(0, rows * raw_row - int(sets * data) - int(volumes * volume)),  # gone before these are made
    }
    voxels = math.prod(geometry.shape) * geometry.views * lanes
    share = parties / len(slabs) / resources.threads
    views = needs_of(_joined(settings)).work * (2 * settings.iterations + 2)
    seconds = {
        "starting": STARTING,
        "reading": geometry.rows * raw_row * READING * parties / len(slabs),
        "preparing": geometry.rows * row / FLOAT * PREPARING * share,
        "computing": voxels * views * PROJECTING_RAYS * share,
        "writing": volume / height * geometry.shape[0] * WRITING * parties / len(slabs),
    }
    return Plan(
        slabs=slabs,
        block=height,
        resources=resources,
        worker_parts={"programs": PROGRAMS, **{name: size for name, size in parts.items() if size}},
        client_parts={"programs": CLIENT},
        bytes_read=geometry.rows * raw_row,
        bytes_written=io.volumes.written_bytes(settings.output, geometry.shape, volume_dtype(scan), settings.levels),
        seconds=seconds,
        notes=(f"all slabs at once, {parties} on a worker: rays cross them",) if len(slabs) > 1 else (),
    )


def _joined(settings: ReconSettings) -> ReconSettings:
    """With total variation in three dimensions: slices are joined in any case."""
    joins = settings.algorithm == "tv" or settings.prior == "tv"
    return settings.model_copy(update={"coupled": True}) if joins else settings


def _solver_needs(settings: ReconSettings) -> tuple[float, float]:
    """Volumes and sets of data that a party takes beside its data, at the worst moment."""
    needs = needs_of(_joined(settings))
    volumes, data = SUMS.get(settings.algorithm, (0, 0))
    if settings.algorithm == "osem":
        volumes = settings.subsets
    return needs.volumes + volumes, needs.data + data


def send_out(client: "Client", job: CoupledJob, plan: Plan, begun: dict[str, Any], *, quiet: bool) -> list[SlabSummary]:
    """Run all parties to the end, and return what happened to their slabs.

    Raises
    ------
    StoppedError
        A slab could not be solved or written, or workers were lost again and again.
    """
    settings = job.settings
    shown = {
        "name": str(settings.output),
        "shape": job.problem.volume,
        "slabs": plan.slabs,
        "algorithm": settings.algorithm,
        "iterations": settings.iterations,
        "unit": begun["unit"],
        "planned_memory": plan.worker_memory,
        "settings": settings.model_dump(mode="json", exclude_defaults=True)
        | {name: str(begun[name]) for name in ("geometry", "center") if name in begun},
    }
    with (
        dashboard.show_run(client, **shown) as feed,
        Counter(settings.iterations, "iterations", quiet=quiet) as counter,
    ):

        def told(message: tuple[int, float]) -> None:
            done, left = message
            if done > 0:
                counter.advance(f"residual {left:.4g} of the first" if done < settings.iterations else "", to=done)

        shared = dataclasses.replace(job, feed=feed)
        try:
            parts = run_crews(client, reconstruct, shared, len(plan.slabs), on_report=told)
        except queue.TaskFailed as failed:
            named = f"slab {failed.item[0] + 1} of {len(plan.slabs)}"
            raise stopped(failed, named, plan, settings.output) from failed.cause
        found: list[SlabSummary] = client.gather(parts)
    return found


class _Progress:
    """What a party says of its iterations: the first one to those who wait, each of them to the page."""

    def __init__(self, party: Party, callback: Any, kept: CrewCheckpoints) -> None:
        self._party, self._callback, self._kept = party, callback, kept
        self.first = self.last = 0.0
        self.course: list[float] = []

    def __call__(self, iteration: int, norms: NDArray[np.float64]) -> None:
        self.last = float(norms[0])
        self.first = self.first or self._kept.first or self.last
        self.course.append(float(f"{self.last / self.first:.6g}") if self.first else 0.0)
        self._callback(iteration, norms)
        if self._party.number == 0:
            self._party.report((iteration, self.last / self.first if self.first else 0.0))


def reconstruct(party: Party, job: CoupledJob, own: None) -> SlabSummary:
    """What a party does: from its rows of the raw scan to its slab of the output.

    Raises
    ------
    UserError
        Input that cannot be read any more.
    StoppedError
        Output that cannot be written.
    """
    settings, problem = job.settings, job.problem
    slab = Slab(party.number, *problem.slabs[party.number])
    set_threads(job.threads)
    keep_memory()
    watch = Stopwatch()
    data, report = line_integrals(job.scan, settings, slice(*problem.rows[party.number]), job.fold_about, watch.lap)
    operator = problem.operator(party)
    data = operator.arrange(data)
    with watch_slab(job.feed, slab) as reports:
        kept = _checkpoints(party, job)
        solving = reports.solving(slab, kept, job.scale)
        progress = _Progress(party, solving.callback, kept)
        options = _options(job, operator, data, slab) | {"callback": progress, "checkpoints": solving}
        solver = getattr(algorithms, settings.algorithm.replace("-", "_"))
        result = solver(operator, data, **options)
        volume = result.solution
        keep_memory(False)  # what the solver took is not needed again, and writing takes some
        volume *= np.float32(job.scale)
        party.total(np.zeros(1))  # nobody writes before all are done
        watch.lap("computing")
        io.open_writer(job.output).write_slab(slab.start, volume)
        watch.lap("writing")
        reports.picture(volume)
    if party.number == 0:
        party.report((settings.iterations, 0.0))
    return SlabSummary(
        start=slab.start, stop=slab.stop, seconds=watch.seconds, pixels=report.pixels, dead_pixels=report.dead_pixels,
        values=report.values, repaired_values=report.repaired,
        residual=progress.last / progress.first if progress.first else None, peak_memory=peak_memory(),
        worker=os.getpid(), warnings=report.warnings, notes=tuple(kept.notes), resumed=kept.resumed,
        convergence=() if kept.resumed else tuple(progress.course),
    )  # fmt: skip


def _checkpoints(party: Party, job: CoupledJob) -> CrewCheckpoints:
    made_with = job.settings.that_decide_the_result() | {
        "geometry": hashlib.sha256(repr(job.problem.geometry.key).encode()).hexdigest(),
        "slabs": [list(slab) for slab in job.problem.slabs],
    }
    schedule = Schedule(*checkpoint_interval(job.settings.checkpoint_every))
    folder = progress_folder(job.output) / f"checkpoints-{0:08d}-{job.problem.volume[0]:08d}"
    return CrewCheckpoints(party, folder, made_with=made_with, schedule=schedule)


def _options(job: CoupledJob, operator: Any, data: NDArray[Any], slab: Slab) -> dict[str, Any]:
    """Of the solver: strengths of priors are for voxels of length 1, as in a parallel beam."""
    settings, problem = _joined(job.settings), job.problem
    if settings.algorithm in ("mlem", "osem"):
        np.maximum(data, 0, out=data)
    length = problem.voxel[2]  # values of the volume times this are those per voxel
    if settings.prior == "wavelets":
        settings = settings.model_copy(update={"strength": (settings.strength or 0.0) * length})
    given = given_to(settings, slab.rows, problem.volume, job.scale)
    options = solver_options(settings, operator, data, given)
    # differences of values per voxel: of the size of projections, which primal-dual steps are best for
    spacing = tuple(float(size / length / length) for size in problem.voxel)
    if settings.algorithm == "tv":
        options["spacing"] = spacing
    if settings.prior == "tv":
        options["prior"] = TotalVariation(settings.strength or 0.0, spacing)
    if settings.start == "fbp":
        options["initial"] = _filtered(job, slab, data)
    elif given.start is not None:
        options["initial"] = given.start * np.float32(1 / job.scale)
    return options


def _filtered(job: CoupledJob, slab: Slab, data: NDArray[Any]) -> NDArray[Any]:
    """The slab by filtered back projection, from the rows that it is seen in."""
    geometry = job.problem.geometry
    if isinstance(geometry, ParallelBeam):
        return np.asarray(algorithms.fbp(data, geometry))
    rows = slice(*rows_needed(geometry, (slab.start, slab.stop)))
    data, _ = line_integrals(job.scan, job.settings, rows, None)
    found: NDArray[Any] = algorithms.fdk(data, geometry, slices=(slab.start, slab.stop), first_row=rows.start)
    return found
