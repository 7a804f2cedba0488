"""A whole run: from a raw scan on disk to a volume on disk, slab by slab on a cluster."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtomo import dashboard, io
from dtomo.distributed import clusters, performance
from dtomo.distributed.plan import Plan, refuse_if_too_big
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.io.output import unlocked_at_end
from dtomo.kernels.compiling import cache_folder
from dtomo.kernels.nufft import installed_for_devices
from dtomo.recon import ahead, cost, coupled_job, slabwise, staging
from dtomo.recon.coupled import Coupled
from dtomo.recon.coupled_job import CoupledJob
from dtomo.recon.geometry_job import run_geometry
from dtomo.recon.given import check_given, files
from dtomo.recon.scans import (
    Axis,
    check_counted,
    check_usable,
    find_axis,
    geometry_of,
    given_axis,
    is_folded,
    open_scan,
    origin_of,
    scale_of,
    volume_dtype,
)
from dtomo.recon.slab import Job, SlabSummary, reconstruct_slab
from dtomo.runs import record
from dtomo.runs.session import part_way, resources_of, resumable, speaker
from dtomo.settings import ReconSettings

if TYPE_CHECKING:
    from distributed import Client


@dataclasses.dataclass(frozen=True)
class Run:
    """What came of a run.

    Attributes
    ----------
    output
        The volume.
    plan
        What it was said to take.
    axis
        Where the axis of rotation is; None where the scan has a geometry.
    summary
        What is in the JSON summary beside the output; empty if only planned.
    """

    output: Path
    plan: Plan
    axis: Axis | None
    summary: dict[str, Any]


def run(
    settings: ReconSettings,
    *,
    plan_only: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    performance_report: Path | None = None,
) -> Run:
    """Reconstruct a scan into a volume.

    All input is checked before anything is touched. The output is marked unfinished until it is complete.

    Parameters
    ----------
    settings
        What to do.
    plan_only
        Print memory per worker, bytes, tasks and time, and stop.
    resume
        Finish output that was interrupted, with the same bits as without the interruption.
    overwrite
        Replace output that exists.
    quiet
        Print only errors.
    performance_report
        HTML file for Dask's report of what the workers did, written if the run gets to its end.

    Raises
    ------
    UserError
        Bad input or a refused request; nothing was touched.
    StoppedError
        Stopped part-way (a full disk, a slab that kills its workers, Ctrl-C); the output can be resumed.
    """
    started = time.monotonic()
    say = speaker(quiet)
    io.volume_format(settings.output)
    report = performance.Report(performance_report, overwrite)
    scan = open_scan(settings)
    for warning in scan.warnings:
        say(f"note: {warning}")
    wanted = _resources(settings, say)
    if scan.geometry is not None or settings.algorithm == "fdk":
        if settings.algorithm == "fbp":  # of such scans it is this, and the output's settings say so
            settings = settings.model_copy(update={"algorithm": "fdk"})
        plan, summary = run_geometry(
            settings, scan, wanted, say, plan_only=plan_only, resume=resume, overwrite=overwrite, quiet=quiet
        )  # fmt: skip
        return Run(settings.output, plan, None, summary)
    check_counted(scan, settings)
    check_given(settings, scan)
    read = [*scan.inputs, *files(settings)]
    inputs = record.describe_inputs(read)
    if not plan_only:
        io.check_output(settings.output, inputs=read, overwrite=overwrite, resume=resume)
    found = record.found_before(settings, inputs) if resume else None
    if not any(Path(cache_folder()).rglob("*.nbi")):
        say("first run on this machine: kernels are compiled and kept, which takes about 10 s")
    axis = _axis(scan, settings, found)
    say(f"axis of rotation: column {axis.detector_column:.2f}, {axis.how}")
    folded = is_folded(scan, axis.column, settings)
    geometry = geometry_of(scan, axis.column, folded)
    check_given(settings, scan, (scan.shape[1], geometry.height, geometry.width))
    with contextlib.ExitStack() as stack:
        client = None
        if wanted.address is not None:
            client = stack.enter_context(clusters.connect(wanted, say=say))
            wanted = clusters.measured(client, wanted)
        plan = _plan(scan, settings, geometry, wanted, found)
        staged = staging.decide(scan, settings, plan, slabwise.waiting(settings, plan) if found else None)
        plan = staging.planned(plan, staged)
        at_once = settings.exchanges_planes and wanted.device_share is None
        if not at_once:
            plan = ahead.planned(plan, scan, settings, geometry)
        if staged.line and not plan_only:
            say(staged.line)
        if plan_only:
            print("\n".join(plan.lines()))
            return Run(settings.output, plan, axis, {})
        scale, unit = scale_of(scan)
        begun = found or {
            "center": axis.detector_column,
            "how": axis.how,
            "unit": unit,
            "slab": len(plan.slabs[0]),
        }
        if client is None:
            client = stack.enter_context(clusters.connect(wanted, say=say))
        with resumable(settings.output), unlocked_at_end(settings.output):
            again = {"resume": resume, "overwrite": overwrite}
            writer = _create(scan, settings, geometry, begun, inputs, recorded=found is not None, **again)
            writer.check_slabs((slab.start, slab.stop) for slab in plan.slabs)
            fold_about = axis.column if folded else None
            with (
                part_way(settings.output),
                staging.staged(client, scan, staged, plan, settings, inputs, say, quiet=quiet) as read_from,
                report.recording(),
            ):
                if at_once:
                    problem = Coupled.of(geometry, coupled_job.spans(plan.slabs), volume_dtype(scan))
                    crew = CoupledJob(read_from, settings, problem, scale, wanted.threads, writer.path, fold_about)
                    summaries = coupled_job.send_out(client, crew, plan, begun, quiet=quiet)
                else:
                    job = Job(
                        read_from, settings, fold_about, geometry, scale, plan.block, wanted.threads, writer.path,
                        ahead=plan.ahead, device_memory=wanted.device_share,
                    )  # fmt: skip
                    summaries = _one_by_one(client, job, plan, _shown(settings, plan, writer, begun), quiet=quiet)
            stack.close()  # a worker that was told to let go of a slab may still be at it, and must not write now
            writer.finish()
    summary = slabwise.finish(settings, plan, writer, begun, summaries, time.monotonic() - started, say, scan.warnings)
    report.save()
    return Run(settings.output, plan, axis, summary)


def _one_by_one(client: "Client", job: Job, plan: Plan, shown: dict[str, Any], *, quiet: bool) -> list[SlabSummary]:
    """Reconstruct the slabs, which do not depend on one another."""
    with dashboard.show_run(client, **shown) as feed:
        job = dataclasses.replace(job, feed=feed)
        return slabwise.send_out(client, reconstruct_slab, job, plan, job.settings, ahead=plan.ahead, quiet=quiet)


def _resources(settings: ReconSettings, say: Callable[[str], None]) -> clusters.Resources:
    """What the settings say of the cluster, and whether its workers compute on devices."""
    wanted = resources_of(settings, say)
    _check_method(settings, wanted)
    return wanted


def _check_method(settings: ReconSettings, wanted: clusters.Resources) -> None:
    """Refuse what devices cannot do here, before anything is started."""
    if settings.exchanges_planes and settings.slab is not None and wanted.device_share is not None:
        raise UserError("--coupled on devices takes the whole volume on one; leave out --slab, or compute on CPUs")
    asked = settings.algorithm == "fbp" and settings.method == "nufft"
    if asked and wanted.device_share is not None and not installed_for_devices():
        raise UserError(
            "--method nufft takes cufinufft on a GPU, which is not installed: pip install 'dtomo[cuda12]', "
            "or use --method backprojection"
        )


def _axis(scan: io.Scan, settings: ReconSettings, found: dict[str, Any] | None) -> Axis:
    if found is not None:
        return Axis.on_detector(float(found["center"]), settings, str(found["how"]))
    given = given_axis(scan, settings)
    if given is None:
        return find_axis(scan, settings)
    check_usable(scan, settings)
    return given


def _plan(
    scan: io.Scan,
    settings: ReconSettings,
    geometry: ParallelBeam,
    wanted: clusters.Resources,
    found: dict[str, Any] | None,
) -> Plan:
    """The plan, refused if it does not fit; a resumed run keeps its slabs."""
    height = None if found is None else int(found["slab"])
    plan = cost.make_plan(scan, settings, geometry, wanted, height)
    if not plan.fits:
        free = settings.model_copy(update={"slab": None})
        smaller = None if height else cost.make_plan(scan, free, geometry, wanted)
        refuse_if_too_big(plan, smaller if smaller is not None and smaller.fits else None)
    return plan


def _create(
    scan: io.Scan,
    settings: ReconSettings,
    geometry: ParallelBeam,
    begun: dict[str, Any],
    inputs: list[dict[str, Any]],
    *,
    recorded: bool,
    resume: bool,
    overwrite: bool,
) -> io.VolumeWriter:
    """The output, marked unfinished, with its settings beside it."""
    writer = io.create_volume(
        settings.output,
        (scan.shape[1], geometry.height, geometry.width),
        volume_dtype(scan),
        voxel_size_um=scan.pixel_size,
        origin_um=origin_of(scan, geometry),
        attributes={"settings": settings.that_decide_the_result(), **begun},
        slab=begun["slab"],
        levels=settings.levels,
        compression=settings.compression,
        overwrite=overwrite,
        resume=resume,
        inputs=scan.inputs,
    )
    if not recorded:
        record.write_run(settings.output, settings, inputs, begun)
    return writer


def _shown(settings: ReconSettings, plan: Plan, writer: io.VolumeWriter, begun: dict[str, Any]) -> dict[str, Any]:
    """What the page of the dashboard is told of a run: settings that are not what they are by default, and results."""
    waiting = {slab.index for slab in slabwise.waiting(settings, plan)}
    resources = plan.resources
    return {
        "name": str(settings.output),
        "shape": writer.shape,
        "slabs": plan.slabs,
        "done": [slab.index for slab in plan.slabs if slab.index not in waiting],
        "algorithm": settings.algorithm,
        "iterations": None if settings.algorithm == "fbp" else settings.iterations,
        "unit": begun["unit"],
        "planned_memory": plan.worker_memory,
        "settings": settings.model_dump(mode="json", exclude_defaults=True)
        | {"center": f"{begun['center']:.2f}, {begun['how']}", "dtype": writer.dtype}
        | {
            "workers": f"{resources.workers}, {resources.threads} thread{'s' * (resources.threads > 1)} each",
            "slab": f"{begun['slab']} slices",
        },
    }
