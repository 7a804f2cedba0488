"""A whole run for a scan with a geometry of its own (cone, fan, tilted beams): filtered back projection, slab by slab.

A slab of the volume needs the rows of the detector that it is seen in (`rows_seen`), which overlap; each task reads and
prepares them, and writes its slab. The rest (cluster, output, resuming, records) is that of `dtomo.recon.job`.
"""

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dtomo import algorithms, device, io
from dtomo.arrays import on_device
from dtomo.distributed import clusters
from dtomo.distributed.clusters import Resources
from dtomo.distributed.plan import Plan, refuse_if_too_big
from dtomo.distributed.slabs import Slab, Slabs, slab_height
from dtomo.errors import UserError
from dtomo.geometry import VectorGeometry
from dtomo.io.output import unlocked_at_end
from dtomo.kernels.compiling import cache_folder
from dtomo.memory import keep_memory, peak_memory
from dtomo.prep.flats import NormalizeReport
from dtomo.recon import ahead, coupled_job, slabwise
from dtomo.recon.cost import BACKPROJECTING, CLIENT, PREPARING, PROGRAMS, READING, STARTING, WRITING
from dtomo.recon.coupled import Coupled
from dtomo.recon.geometry_slab import GeometryJob
from dtomo.recon.prepare import as_read, line_integrals
from dtomo.recon.scans import check_usable, volume_dtype
from dtomo.recon.slab import SlabSummary, Stopwatch
from dtomo.recon.solvers import NEEDS
from dtomo.runs import record
from dtomo.runs.session import part_way, resumable
from dtomo.settings import ReconSettings
from dtomo.threads import set_threads

FLOAT = 4
HEIGHTS = (64, 48, 32, 16, 8, 4, 2, 1)
"""Slices of a slab that are tried, the largest that fits the memory is taken."""


def check_geometry(scan: io.Scan, settings: ReconSettings) -> VectorGeometry:
    """The geometry of a scan that is to be reconstructed with it.

    Raises
    ------
    UserError
        An algorithm that cannot take it, or what belongs to a parallel beam.
    """
    geometry = scan.geometry
    if geometry is None:
        raise UserError(
            f"--algorithm fdk reconstructs scans that hold their geometry, but {scan.path} is a plain parallel beam; "
            "use fbp"
        )
    for name, given in (("--center", settings.center != "auto"), ("--fold yes", settings.fold == "yes")):
        if given:
            raise UserError(f"{name} belongs to a parallel beam, but {scan.path} says where source and detector lie")
    if settings.algorithm in NEEDS:
        coupled_job.check(scan, settings, geometry)
        return geometry
    algorithms.check_fdk(
        np.broadcast_to(np.float32(0), scan.shape), geometry, filter=settings.filter, padding=settings.padding
    )
    return geometry


def run_geometry(
    settings: ReconSettings,
    scan: io.Scan,
    wanted: Resources,
    say: Callable[[str], None],
    *,
    plan_only: bool,
    resume: bool,
    overwrite: bool,
    quiet: bool,
) -> tuple[Plan, dict[str, Any]]:
    """Reconstruct a scan with its geometry into a volume; arguments and errors as of `dtomo.recon.run`.

    Returns
    -------
    (plan, summary)
        The summary is empty if only planned.
    """
    started = time.monotonic()
    geometry = check_geometry(scan, settings)
    inputs = record.describe_inputs(scan.inputs)
    if not plan_only:
        io.check_output(settings.output, inputs=scan.inputs, overwrite=overwrite, resume=resume)
    found = record.found_before(settings, inputs) if resume else None
    if not any(Path(cache_folder()).rglob("*.nbi")):
        say("first run on this machine: kernels are compiled and kept, which takes about 10 s")
    check_usable(scan, settings)
    say(f"geometry: {geometry.beam} beam, {geometry.views} views, as {scan.found.get('geometry', 'given')} says")
    with contextlib.ExitStack() as stack:
        client = None
        if wanted.address is not None:
            client = stack.enter_context(clusters.connect(wanted, say=say))
            wanted = clusters.measured(client, wanted)
        job = GeometryJob(scan, settings, geometry, 10.0, wanted.threads, settings.output, wanted.device_share)
        plan = make_plan(job, wanted, None if found is None else int(found["slab"]))
        refuse_if_too_big(plan, None)
        if plan_only:
            print("\n".join(plan.lines()))
            return plan, {}
        unit = ("per " if scan.values == "integrals" else "1/") + "cm"
        begun = found or {"geometry": geometry.beam, "unit": unit, "slab": len(plan.slabs[0])}
        if client is None:
            client = stack.enter_context(clusters.connect(wanted, say=say))
        with resumable(settings.output), unlocked_at_end(settings.output):
            again = {"resume": resume, "overwrite": overwrite}
            writer = _create(job, begun, inputs, recorded=found is not None, **again)
            writer.check_slabs((slab.start, slab.stop) for slab in plan.slabs)
            job = dataclasses.replace(job, output=writer.path)
            with part_way(settings.output):
                if settings.algorithm in NEEDS:
                    problem = Coupled.of(geometry, coupled_job.spans(plan.slabs), volume_dtype(scan))
                    crew = coupled_job.CoupledJob(scan, settings, problem, job.scale, job.threads, job.output)
                    summaries = coupled_job.send_out(client, crew, plan, begun, quiet=quiet)
                else:
                    summaries = slabwise.send_out(client, reconstruct_geometry_slab, job, plan, settings, quiet=quiet)
            stack.close()
            writer.finish()
    summary = slabwise.finish(settings, plan, writer, begun, summaries, time.monotonic() - started, say, scan.warnings)
    return plan, summary


def plan_of(scan: io.Scan, settings: ReconSettings, resources: Resources) -> Plan:
    """The plan of a run for a scan with a geometry, before anything is asked of a cluster."""
    geometry = check_geometry(scan, settings)
    return make_plan(GeometryJob(scan, settings, geometry, 10.0, resources.threads, settings.output), resources)


def make_plan(job: GeometryJob, resources: Resources, height: int | None = None) -> Plan:
    """The plan of a run: the highest slabs that fit the memory of a worker, or those of a run before."""
    if job.settings.algorithm in NEEDS:
        return coupled_job.make_plan(job, resources, height)
    depth = job.geometry.shape[0]
    fixed = height or job.settings.slab
    most = min(fixed or slab_height(depth, resources.workers), depth)
    tried = (most,) if fixed else (most, *(n for n in HEIGHTS if n < most))
    plans = (_plan(job, resources, n) for n in tried)
    found = None
    for found in plans:
        if found.fits:
            return found
    assert found is not None
    return found


def _plan(job: GeometryJob, resources: Resources, height: int) -> Plan:
    scan, settings, geometry = job.scan, job.settings, job.geometry
    slabs = Slabs(geometry.shape[0], height)
    lanes = volume_dtype(scan).itemsize // FLOAT
    spans = [job.rows(slab) for slab in slabs]
    rows = max(span.stop - span.start for span in spans)
    read = sum(span.stop - span.start for span in spans)
    raw_row = len(scan.angles) * scan.shape[2] * scan.dtype.itemsize * scan.binning**2
    data = rows * len(scan.angles) * scan.shape[2] * FLOAT * lanes
    volume = height * geometry.shape[1] * geometry.shape[2] * FLOAT * lanes
    block = data * algorithms.FDK_BLOCK // geometry.views + 1
    stages = [
        {"counts": rows * raw_row, "projections": 2 * data},
        {"projections": data, "views being filtered": 3 * block, "volume": volume},
        {"volume": volume, "writing": 3 * volume},
    ]
    parts = max(stages, key=lambda stage: sum(stage.values()))
    per_core = geometry.shape[1] * geometry.shape[2] * geometry.views * lanes * BACKPROJECTING * 5
    rounds = math.ceil(len(slabs) / resources.workers) / len(slabs)
    seconds = {
        "starting": STARTING,
        "reading": read * raw_row * READING * rounds,
        "preparing": read * data / rows / FLOAT * PREPARING * rounds / resources.threads,
        "computing": geometry.shape[0] * per_core * rounds / resources.threads,
        "writing": volume / height * geometry.shape[0] * WRITING * rounds,
    }
    there = {"projections": 3 * data, "views being filtered": 6 * block, "volume": volume}
    return Plan(
        slabs=slabs,
        block=height,
        resources=resources,
        worker_parts={"programs": PROGRAMS, **parts},
        device_parts=there if resources.device_share is not None else {},
        client_parts={"programs": CLIENT},
        bytes_read=read * raw_row,
        bytes_written=io.volumes.written_bytes(settings.output, geometry.shape, volume_dtype(scan), settings.levels),
        seconds=seconds,
        notes=(),
        scratch={},
    )


def _create(
    job: GeometryJob,
    begun: dict[str, Any],
    inputs: list[dict[str, Any]],
    *,
    recorded: bool,
    resume: bool,
    overwrite: bool,
) -> io.VolumeWriter:
    geometry, settings = job.geometry, job.settings
    voxel = np.array(geometry.voxel) * 1e3
    first = np.array(geometry.middle)[::-1] * 1e3 - (np.array(geometry.shape) - 1) / 2 * voxel
    writer = io.create_volume(
        settings.output,
        geometry.shape,
        volume_dtype(job.scan),
        voxel_size_um=(float(voxel[0]), float(voxel[1]), float(voxel[2])),
        origin_um=(float(first[0]), float(first[1]), float(first[2])),
        attributes={"settings": settings.that_decide_the_result(), **begun},
        slab=begun["slab"],
        levels=settings.levels,
        compression=settings.compression,
        overwrite=overwrite,
        resume=resume,
        inputs=job.scan.inputs,
    )
    if not recorded:
        record.write_run(settings.output, settings, inputs, begun)
    return writer


def reconstruct_geometry_slab(job: GeometryJob, slab: Slab) -> SlabSummary:
    """Take a slab from the raw scan to the output.

    Raises
    ------
    UserError
        Input that cannot be read any more.
    StoppedError
        Output that cannot be written.
    """
    set_threads(job.threads)
    keep_memory()
    watch = Stopwatch()
    there = job.device_memory is not None
    if there:
        device.limit_memory(job.device_memory)
        device.bound_plan_cache()
    rows = job.rows(slab)
    report: NormalizeReport
    arrive = ahead.on_device if there else as_read
    data, report = line_integrals(job.scan, job.settings, rows, None, watch.lap, job.scan.read, arrive)
    volume = algorithms.fdk(
        data, job.geometry, filter=job.settings.filter, padding=job.settings.padding, slices=(slab.start, slab.stop),
        first_row=rows.start,
    )  # fmt: skip
    del data
    volume *= np.float32(job.scale)
    if job.settings.nonnegative:
        np.maximum(volume, 0, out=volume)
    volume = device.to_host(volume) if on_device(volume) else volume
    watch.lap("computing")
    io.open_writer(job.output).write_slab(slab.start, volume)
    watch.lap("writing")
    return SlabSummary(
        start=slab.start, stop=slab.stop, seconds=watch.seconds, pixels=report.pixels, dead_pixels=report.dead_pixels,
        values=report.values, repaired_values=report.repaired, residual=None, peak_memory=peak_memory(),
        worker=os.getpid(), warnings=report.warnings, notes=(), resumed=0,
        device_memory=device.memory_taken() if there else 0,
    )  # fmt: skip
