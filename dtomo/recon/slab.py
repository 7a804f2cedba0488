"""One task of a run: read a slab, prepare it, reconstruct it, write it; a small summary comes back."""

import dataclasses
import os
import resource
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtomo import io
from dtomo.arrays import empty_aligned
from dtomo.distributed.slabs import Slab
from dtomo.geometry import ParallelBeam
from dtomo.kernels.layout import projections_inside_out
from dtomo.memory import keep_memory
from dtomo.prep.flats import NormalizeReport
from dtomo.recon.prepare import line_integrals
from dtomo.settings import ReconSettings
from dtomo.threads import set_threads

MUCH = 0.01
"""Part of the pixels or values above which repairs are worth a warning."""

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
        Sentences.
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


def peak_memory() -> int:
    """Highest resident memory of this process so far, in bytes.

    From Linux's ``VmHWM`` where there is one: ``ru_maxrss`` also counts what the parent held when it forked.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


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
        From attenuation per pixel to the unit of the output.
    block
        Slices worked on at a time.
    threads
        Compute threads of a worker.
    output
        The volume, created already.
    """

    scan: io.Scan
    settings: ReconSettings
    fold_about: float | None
    geometry: ParallelBeam
    scale: float
    block: int
    threads: int
    output: Path


def reconstruct_slab(job: Job, slab: Slab) -> SlabSummary:
    """Take a slab from the raw scan to the output.

    Raises
    ------
    UserError
        Input that cannot be read any more.
    StoppedError
        Output that cannot be written.
    """
    with _BUSY:
        set_threads(job.threads)
        keep_memory()
        watch = Stopwatch()
        report = NormalizeReport()
        residuals: list[float] = []
        volume: NDArray[np.float32] | None = None
        for block in slab.blocks(job.block):
            data, found = line_integrals(job.scan, job.settings, block.rows, job.fold_about, watch.lap)
            report += found
            data = np.swapaxes(projections_inside_out(data), 1, 2)
            part, residual = solve(data, job.geometry, job.settings)
            del data
            residuals += residual
            part *= np.float32(job.scale)
            if len(block) == len(slab):
                volume = part
            else:
                volume = _empty_like_part(part, len(slab)) if volume is None else volume
                volume[block.start - slab.start : block.stop - slab.start] = part
            del part
            watch.lap("computing")
        assert volume is not None
        io.open_writer(job.output).write_slab(slab.start, volume)
        watch.lap("writing")
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
    )


def solve(
    data: NDArray[np.float32], geometry: ParallelBeam, settings: ReconSettings
) -> tuple[NDArray[np.float32], list[float]]:
    """Slices (z, y, x) from line integrals (angle, row, column), and the residual left of each slice."""
    from dtomo import algorithms
    from dtomo.operators import ParallelProjector

    if settings.algorithm == "fbp":
        volume = algorithms.fbp(
            data, geometry, filter=settings.filter, method=settings.method, padding=settings.padding, overwrite=True
        )
        if settings.nonnegative:
            np.maximum(volume, 0, out=volume)
        return volume, []
    operator = ParallelProjector(geometry, data.shape[1], np.float32)
    if settings.algorithm == "sirt":
        lower = 0.0 if settings.nonnegative else None
        result = algorithms.sirt(operator, data, iterations=settings.iterations, lower=lower)
    else:
        result = algorithms.cgls(operator, data, iterations=settings.iterations)
    first, last = result.residuals[0], result.residuals[-1]
    return result.solution, [float(ratio) for ratio in last[first > 0] / first[first > 0]]


def _empty_like_part(part: NDArray[np.float32], slices: int) -> NDArray[np.float32]:
    """An uninitialised slab (z, y, x) in the memory layout of one of its parts."""
    if part.strides[0] == part.itemsize:
        return np.moveaxis(empty_aligned((*part.shape[1:], slices)), 2, 0)
    return empty_aligned((slices, *part.shape[1:]))
