"""One task of a run: read a slab, prepare it, reconstruct it, write it; a small summary comes back."""

import dataclasses
import os
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dtomo import device, io
from dtomo.dashboard import Feed, SlabFeed, Solving, watch_slab
from dtomo.distributed.slabs import Slab
from dtomo.geometry import ParallelBeam
from dtomo.kernels.layout import projections_inside_out
from dtomo.memory import keep_memory, peak_memory
from dtomo.prep.flats import NormalizeReport
from dtomo.recon import ahead
from dtomo.recon.ahead import ReadAhead, RowReader, UploadAhead
from dtomo.recon.assembly import Assembly
from dtomo.recon.checkpoints import Finished, SlabCheckpoints
from dtomo.recon.given import given_to
from dtomo.recon.prepare import as_read, line_integrals
from dtomo.recon.solvers import Given, solve_block
from dtomo.settings import ReconSettings
from dtomo.threads import set_threads

MUCH = 0.01
"""Part of the pixels or values above which repairs are worth a warning."""

_READ_AHEAD, _UPLOAD_AHEAD = ReadAhead(), UploadAhead()
_BLOCK_SIZES: "WeakKeyDictionary[Job, device.BlockSize]" = WeakKeyDictionary()
"""Of the jobs that this process works for."""
_BUSY = threading.Lock()
"""One slab at a time in a process, whatever the cluster's threads: each is given all of them."""


@dataclasses.dataclass(frozen=True)
class SlabSummary:
    """What happened to one slab.

    Attributes
    ----------
    start, stop
        Slices of the volume.
    seconds
        Wall time by stage: ``reading``, ``preparing``, ``computing``, ``writing``.
    pixels, dead_pixels, values, repaired_values
        Counts of what was read and of what was repaired in it.
    residual
        Residual at the end over the one at the start, of the slice where it is largest; None for "fbp".
    peak_memory
        Bytes, the highest of the process so far.
    worker
        Number of the process.
    warnings
        Sentences about what was read.
    notes
        Sentences about the run: checkpoints that were damaged or could not be written.
    resumed
        Iterations that were not made again, thanks to a checkpoint; of a slab in blocks, of all blocks together.
    device_memory
        Bytes that the process has taken of its device's memory; 0 on the CPU.
    convergence
        Residual at the start of each iteration over the first, mean of the slices; empty where nothing was iterated.
    """

    start: int
    stop: int
    seconds: dict[str, float]
    pixels: int
    dead_pixels: int
    values: int
    repaired_values: int
    residual: float | None
    peak_memory: int
    worker: int
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    resumed: int = 0
    device_memory: int = 0
    convergence: tuple[float, ...] = ()


def repairs(slabs: Sequence[SlabSummary]) -> str:
    """One line about what was repaired in the raw data; empty if nothing was."""
    parts, worst = [], 0.0
    for what, many, count in (
        ("pixels are dead", sum(slab.pixels for slab in slabs), sum(slab.dead_pixels for slab in slabs)),
        ("values were repaired", sum(slab.values for slab in slabs), sum(slab.repaired_values for slab in slabs)),
    ):
        if count:
            worst = max(worst, count / many)
            parts.append(f"{count} of {many} {what} ({float(f'{100 * count / many:.2g}'):g} %)")
    if not parts:
        return ""
    start = "warning: much of the raw data is unusable: " if worst > MUCH else "raw data: "
    return start + " and ".join(parts)


class Course:
    """How the residuals of the slices of a slab fell, block by block: sums, so that a long run stays small."""

    def __init__(self) -> None:
        self._sums: NDArray[np.float64] = np.zeros(0)
        self._slices = 0

    def add(self, residuals: NDArray[np.float64]) -> None:
        """Residuals ``(iteration, slice)`` of a block; one that ended sooner stays at its last."""
        there = residuals[:, residuals[0] > 0]
        if not there.shape[1]:
            return
        sums = (there / there[0]).sum(1)
        length = max(len(sums), len(self._sums))
        if not self._slices:
            self._sums = np.zeros(length)
        self._sums = np.pad(self._sums, (0, length - len(self._sums)), mode="edge")
        self._sums += np.pad(sums, (0, length - len(sums)), mode="edge")
        self._slices += there.shape[1]

    def mean(self) -> tuple[float, ...]:
        """Residual of each iteration over the first, mean of the slices; empty if nothing was iterated."""
        return tuple(float(f"{part:.6g}") for part in self._sums / max(1, self._slices))


class Stopwatch:
    """Adds up wall time by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """The time since the last lap belongs to `stage`."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """All that a task needs to know, but its slab; small, sent to each worker once.

    Attributes
    ----------
    scan
        Cropped, binned, frames left out.
    settings
        What was asked for.
    fold_about
        Column of the axis if views half a turn apart are to be joined, else None.
    geometry
        Of the prepared projections.
    scale
        From values per pixel to the unit of the output.
    block
        Slices worked on at a time.
    threads
        Compute threads of a worker.
    output
        The volume, created already.
    feed
        Goes to the page of the dashboard; None: there is none.
    ahead
        Whether rows may be read ahead.
    device_memory
        Bytes that the worker may take of its device; None: it computes on the CPU.
    """

    scan: io.Scan
    settings: ReconSettings
    fold_about: float | None
    geometry: ParallelBeam
    scale: float
    block: int
    threads: int
    output: Path
    feed: Feed | None = None
    ahead: bool = False
    device_memory: int | None = None

    @property
    def on_device(self) -> bool:
        """Whether blocks are worked on on the worker's device."""
        return self.device_memory is not None


def reconstruct_slab(job: Job, slab: Slab, following: Slab | None = None) -> SlabSummary:
    """Take a slab from the raw scan to the output; `following` is what this worker will most likely have next.

    Raises
    ------
    UserError
        Input that cannot be read any more.
    StoppedError
        Output that cannot be written.
    """
    with _BUSY, watch_slab(job.feed, slab) as reports:
        set_threads(job.threads)
        keep_memory()
        watch = Stopwatch()
        report = NormalizeReport()
        residuals: list[float] = []
        kept = SlabCheckpoints(job, slab)
        course = Course()
        assembly = Assembly(slab, kept, behind=job.settings.algorithm == "fbp")
        for block, done in _blocks(job, slab, following, kept, watch, reports, course):
            report += done.report
            residuals += done.residuals
            assembly.put(block, done)
            del done
            watch.lap("computing")
        volume = assembly.whole()
        watch.lap("computing")
        kept.check(now=True)
        io.open_writer(job.output).write_slab(slab.start, volume)
        kept.remove()
        watch.lap("writing")
        reports.picture(volume)
    return SlabSummary(
        start=slab.start,
        stop=slab.stop,
        seconds=watch.seconds,
        pixels=report.pixels,
        dead_pixels=report.dead_pixels,
        values=report.values,
        repaired_values=report.repaired,
        residual=max(residuals, default=None),
        peak_memory=peak_memory(),
        worker=os.getpid(),
        warnings=report.warnings,
        notes=tuple(kept.notes),
        resumed=kept.resumed,
        device_memory=device.memory_taken() if job.on_device else 0,
        convergence=course.mean(),
    )


def _blocks(
    job: Job,
    slab: Slab,
    following: Slab | None,
    kept: SlabCheckpoints,
    watch: Stopwatch,
    reports: SlabFeed,
    course: "Course",
) -> Iterator[tuple[Slab, Finished]]:
    """The blocks of a slab, done; half as large as planned from where the device has no memory for one.

    Raises
    ------
    DeviceFull
        No memory for half a block either.
    """
    size = _BLOCK_SIZES.setdefault(job, device.BlockSize(job.block))
    rows_ahead: ReadAhead | UploadAhead = _UPLOAD_AHEAD if job.on_device else _READ_AHEAD
    if job.on_device:
        device.limit_memory(job.device_memory)
        device.bound_plan_cache()
    number, first = 0, slab.start
    while first < slab.stop:
        block = Slab(number, first, min(first + size.value, slab.stop))
        rest = Slab(number + 1, block.stop, slab.stop) if block.stop < slab.stop else following
        after = rest.blocks(size.value)[0].rows if rest and job.ahead else None
        read = rows_ahead.reader(job.scan, after)
        work = partial(_reconstruct_block, job, block, read, kept, watch, reports, course)
        done = size.tried(work, _UPLOAD_AHEAD.forget)
        if done is None and job.settings.joins_slices:
            raise device.DeviceFull("the device has no memory for the whole volume, whose slices this prior joins")
        if done is None:
            kept.notes.append(f"the device had no memory for {len(block)} slices at a time, so {size.value} were taken")
            continue
        yield block, done
        del done  # its memory is needed for the next one
        number, first = number + 1, block.stop


def _reconstruct_block(
    job: Job,
    block: Slab,
    read: RowReader,
    kept: SlabCheckpoints,
    watch: Stopwatch,
    reports: SlabFeed,
    course: "Course",
) -> Finished:
    """A block of a slab, from raw counts to the unit of the output; or what was kept of it before a worker died."""
    done = kept.finished(block)
    if done is not None:
        return done
    arrive = ahead.on_device if job.on_device else as_read
    data, found = line_integrals(job.scan, job.settings, block.rows, job.fold_about, watch.lap, read, arrive)
    data = np.swapaxes(projections_inside_out(data), 1, 2)
    shape = (job.scan.shape[1], job.geometry.height, job.geometry.width)
    given = given_to(job.settings, block.rows, shape, job.scale)
    solving = reports.solving(block, kept.block(block), job.scale)
    part, residuals = solve(data, job.geometry, job.settings, solving, given, course)
    part *= np.float32(job.scale)
    return Finished(part, residuals, found)


def solve(
    data: NDArray[Any],
    geometry: ParallelBeam,
    settings: ReconSettings,
    solving: Solving | None = None,
    given: Given | None = None,
    course: "Course | None" = None,
) -> tuple[NDArray[Any], list[float]]:
    """Slices (z, y, x) from line integrals (angle, row, column), and the residual left of each slice.

    Both are float32, or both complex64. `solving` keeps and reports the states of an iterative algorithm; what it is
    `given` beside the settings is of these slices. `course` learns how the residuals fell.
    """
    from dtomo import algorithms
    from dtomo.operators import ParallelProjector

    if settings.algorithm == "fbp":
        volume = algorithms.fbp(
            data, geometry, filter=settings.filter, method=settings.method, padding=settings.padding, overwrite=True
        )
        if settings.nonnegative:
            np.maximum(volume, 0, out=volume)
        return volume, []
    operator = ParallelProjector(geometry, data.shape[1], data.dtype, like=data)
    watched: Any = {} if solving is None else {"callback": solving.callback, "checkpoints": solving}
    if given is not None and given.mask is not None and not given.mask.any():
        return operator.zeros(), []
    result = solve_block(operator, data, settings, watched, given)
    if course is not None:
        course.add(result.residuals)
    first, last = result.residuals[0], result.residuals[-1]
    return result.solution, [float(ratio) for ratio in last[first > 0] / first[first > 0]]
