"""A whole run: from a series on disk to an alignment, aligned views and what pictures are drawn of."""

import contextlib
import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dtomo import io
from dtomo.align.cost import AlignPlan, Effort, Sizes, make_plan, refuse_if_too_big
from dtomo.align.driver import Options, Stage, align_views, with_sign
from dtomo.align.keeping import parts_of, stage_of
from dtomo.align.levels import empty_level
from dtomo.align.showing import Shown, show
from dtomo.align.views import Coarse, Work
from dtomo.align.written import write_mrc, write_zarr
from dtomo.distributed import clusters
from dtomo.distributed.progress import Counter, duration
from dtomo.errors import StoppedError, UserError
from dtomo.geometry import Alignment
from dtomo.io.checkpoints import Checkpoints, Schedule
from dtomo.io.output import progress_folder, unlocked_at_end
from dtomo.io.progress import Progress
from dtomo.io.tilts import AlignedSource, read_alignment, write_alignment, write_tlt, write_xf
from dtomo.recon.aligned import PreparedSource, prepared
from dtomo.recon.scans import open_scan
from dtomo.runs import record
from dtomo.runs.session import (
    Say,
    begin_folder,
    check_folder_name,
    memory_peaks,
    part_way,
    resources_of,
    resumable,
    speaker,
)
from dtomo.settings import AlignmentSettings, checkpoint_interval
from dtomo.threads import using_threads

if TYPE_CHECKING:
    from distributed import Client

NAME = "alignment"
"""Of the files of the alignment."""
LINES_APART = 3.0
"""Seconds between two lines of progress where there is no terminal."""
LEVELS_SIDE = 256
"""Pixels of the shorter side of the binned views in which empty space is looked for, at least."""


@dataclasses.dataclass(frozen=True, eq=False)
class AlignRun:
    """What came of a run.

    Attributes
    ----------
    output
        Folder of the results.
    begin, alignment
        What it began with (the start that fitted best), and what was found; None if only planned.
    before, after
        What the views make up as they were, and as they are aligned; None if not asked for.
    summary
        What is in the JSON summary; empty if only planned.
    """

    output: Path
    begin: Alignment | None
    alignment: Alignment | None
    before: Shown | None
    after: Shown | None
    summary: dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class _Asked:
    """A run that is set up."""

    scan: io.Scan
    raw: PreparedSource
    begin: Alignment
    options: Options


def run(
    settings: AlignmentSettings,
    *,
    plan_only: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    pictures: bool = True,
) -> AlignRun:
    """Align the views of a series.

    All input is checked before anything is touched. The output is a folder with ``alignment.yaml``, the same as IMOD's
    ``alignment.xf`` and ``alignment.tlt``, and the aligned views.

    Parameters
    ----------
    settings
        What to do.
    plan_only
        Print memory, bytes and time, and stop.
    resume
        Go on from the last checkpoint, with the same bits as without the interruption.
    overwrite
        Replace output that exists.
    quiet
        Print only errors.
    pictures
        Whether to find out what is drawn.

    Raises
    ------
    UserError
        Bad input or a refused request; nothing was touched.
    StoppedError
        Stopped part-way; the run can be resumed.
    """
    started, say = time.monotonic(), speaker(quiet)
    check_folder_name(settings.output)
    asked = _set_up(settings, say)
    inputs = record.describe_inputs([*asked.scan.inputs, *([settings.begin] if settings.begin else [])])
    if not plan_only:
        files = [Path(one["path"]) for one in inputs]
        io.check_output(settings.output, inputs=files, overwrite=overwrite, resume=resume)
    found = record.found_before(settings, inputs) if resume else None
    wanted = resources_of(settings, say)
    if wanted.devices:
        say("note: alignments are computed on CPUs; devices stay idle")
    sizes = Sizes(asked.begin, asked.options, asked.scan.dtype.itemsize, settings.views != "none")
    with contextlib.ExitStack() as stack:
        client = None
        if wanted.address is not None:
            client = stack.enter_context(clusters.connect(wanted, say=say))
            wanted = clusters.measured(client, wanted)
        plan = make_plan(sizes, wanted)
        refuse_if_too_big(plan)
        if plan_only:
            print("\n".join(plan.lines()))
            return AlignRun(settings.output, None, None, None, None, {})
        if client is None and not plan.here:
            client = stack.enter_context(clusters.connect(wanted, say=say))
        stack.enter_context(using_threads(wanted.threads * (wanted.workers if plan.here else 1)))
        with resumable(settings.output), unlocked_at_end(settings.output):
            begin_folder(settings, inputs, "alignment", resumed=found is not None)
            done = _Doing(settings, asked, plan, client, wanted.threads if client is not None else None, say, quiet)
            with part_way(settings.output):
                result = done.all(pictures)
            peaks = memory_peaks(client)
            Progress(progress_folder(settings.output)).remove()
    summary = _summary(result, plan, time.monotonic() - started) | peaks | {"notes": done.kept.notes}
    _report(settings, result, summary, say)
    return dataclasses.replace(result, summary=summary)


def _set_up(settings: AlignmentSettings, say: Say) -> _Asked:
    """The scan and what is known of its alignment."""
    plain = settings.of_the_scan()
    scan = open_scan(plain)
    for warning in scan.warnings:
        say(f"note: {warning}")
    if scan.geometry is not None:
        raise UserError(
            f"{scan.path} says where source and detector lie; dtomo align is for parallel beams, whose views it shifts"
        )
    raw = prepared(scan, plain)
    axis = settings.axis or ("keep" if not scan.tilt_series else "search" if scan.tilt_axis is None else "refine")
    if settings.begin is not None:
        begin = read_alignment(settings.begin, scan.angles, scan.shape[1:])
        axis = settings.axis or "keep"
    else:
        angle = settings.axis_angle if settings.axis_angle is not None else scan.tilt_axis or 0.0
        axis = "refine" if axis == "search" and settings.axis is None and settings.axis_angle is not None else axis
        stated = scan.center if angle == 0 and axis == "keep" else None
        begin = Alignment(scan.angles, scan.shape[1:], axis_angles=angle, axis=stated)
    if len(begin) < 3:
        raise UserError(f"{scan.path} has {len(begin)} views; an alignment needs 3 at least")
    if settings.finest > max(1, min(begin.size) // 8):
        raise UserError(f"--finest {settings.finest} leaves less than 8 pixels of views of {begin.shape}")
    options = Options(
        start=settings.start or ("auto" if settings.begin is None else "none"), rounds=settings.rounds,
        finest=settings.finest, iterations=settings.iterations, axis=axis, stretch=settings.stretch,
        thickness=settings.thickness, signed=settings.signed,
    )  # fmt: skip
    return _Asked(scan, raw, begin, options)


class _Doing:
    """The work of a run between its checks and its last lines."""

    def __init__(
        self,
        settings: AlignmentSettings,
        asked: _Asked,
        plan: AlignPlan,
        client: "Client | None",
        threads: int | None,
        say: Say,
        quiet: bool,
    ) -> None:
        self.settings, self.asked, self.client, self.threads, self.quiet = settings, asked, client, threads, quiet
        self._effort = Effort(plan.sizes)
        self._stages = 0
        self._note = ""
        self.kept = Checkpoints(
            progress_folder(settings.output) / "checkpoints-0-0",
            made_with=settings.that_decide_the_result(),
            schedule=Schedule(*checkpoint_interval(settings.checkpoint_every)),
            devices=False,
        )
        self._say = say

    def all(self, pictures: bool) -> AlignRun:
        """Align, and write what was found."""
        kept = self.kept.load()
        resumed = None if kept is None else stage_of(kept)
        with Counter(100, "percent", quiet=self.quiet, lines_apart=LINES_APART, doing="aligning") as counter:
            self._counter = counter
            work = Work(self.asked.raw, self.client, self.threads, self._tell, self._keep, self._tick)
            coarse = Coarse(work)
            begin = self.asked.begin
            if resumed is None:
                begin = begin.replace(levels=self._levels(coarse))
            else:
                begin = begin.replace(levels=resumed.alignment.levels)
                self._effort.skip({note["binning"] for note in resumed.history[:-1]})
            stage = align_views(work, begin, self.asked.options, resumed, coarse)
            self._keep(stage, last=True)
            counter.advance(to=100)
        options = with_sign(work, coarse, begin, self.asked.options)
        before = after = None
        if pictures:
            turned = begin.replace(
                axis_angles=stage.alignment.axis_angles, size=stage.alignment.size, axis=stage.alignment.axis
            )
            before, after = (show(work, coarse, one, options) for one in (turned, stage.alignment))
        alignment = self._write(stage)
        told = _told(stage, options)
        if before is not None and after is not None:
            told |= {"misfit_before": round(before.misfit, 6), "misfit": round(after.misfit, 6)}
        return AlignRun(self.settings.output, begin, alignment, before, after, told)

    def _levels(self, coarse: Coarse) -> Any:
        """The value of empty space in each view."""
        if self.settings.level != "auto":
            return float(self.settings.level)
        if self.asked.begin.levels.any() or not self.asked.scan.tilt_series:
            return self.asked.begin.levels
        binning = coarse.binning
        while min(self.asked.begin.shape) // (2 * binning) >= LEVELS_SIDE:
            binning *= 2
        return np.array([empty_level(view) for view in coarse.at(binning)])

    def _tell(self, line: str) -> None:
        self._note = line.split(",")[0].split(":")[0]
        self._counter.say(line)

    def _tick(self, binning: int, part: float) -> None:
        percent = self._effort.add(binning, part)
        if percent > self._counter.done:
            self._counter.advance(self._note, to=percent)

    def _keep(self, stage: Stage, last: bool = False) -> None:
        self._stages += 1
        if last or self.kept.schedule.due(self._stages):
            try:
                self.kept.save(*parts_of(stage))
            except StoppedError as error:
                self.kept.notes.append(f"{error}; the run goes on without it")
            self.kept.schedule.tried()

    def _write(self, stage: Stage) -> Alignment:
        """Files of the alignment, with as many digits as it then has, and the aligned views."""
        settings, scan, output = self.settings, self.asked.scan, self.settings.output
        about = {"series": str(scan.path), "settings": str(record.run_file(output)), "history": list(stage.history)}
        write_alignment(output / f"{NAME}.yaml", stage.alignment, **about)
        alignment = read_alignment(output / f"{NAME}.yaml")
        write_xf(output / f"{NAME}.xf", alignment)
        write_tlt(output / f"{NAME}.tlt", alignment.tilts)
        views = AlignedSource(self.asked.raw, alignment)
        if settings.views == "mrc":
            write_mrc(output / "aligned.mrc", views, scan.pixel_size, self.client, self.threads)
            write_tlt(output / "aligned.tlt", alignment.tilts)
        elif settings.views == "zarr":
            write_zarr(output / "aligned.zarr", views, scan, self.client, self.threads)
        return alignment


def _told(stage: Stage, options: Options) -> dict[str, Any]:
    """What was found, in numbers."""
    alignment = stage.alignment
    misfits = [note["misfit"] for note in stage.history]
    return {
        "views": len(alignment),
        "misfit": misfits[-1] if misfits else None,
        "reprojections": len(misfits),
        "axis_angle": round(float(alignment.axis_angles.mean()), 4),
        "axis": round(alignment.axis, 4),
        "shifts_rms": [round(float(x), 4) for x in np.sqrt((alignment.shifts**2).mean(0))],
        "shifts_most": [round(float(x), 4) for x in np.abs(alignment.shifts).max(0)],
        "signed": bool(options.signed),
    }


def _summary(result: AlignRun, plan: AlignPlan, seconds: float) -> dict[str, Any]:
    return {
        **result.summary,
        "seconds": round(seconds, 3),
        "workers": 0 if plan.here else plan.resources.workers,
        "threads": plan.resources.threads,
        "planned_memory": plan.worker_memory,
        "planned_seconds": round(plan.seconds, 1),
    }


def _report(settings: AlignmentSettings, result: AlignRun, summary: dict[str, Any], say: Say) -> None:
    written = record.write_summary(settings.output, summary)
    for note in summary["notes"]:
        say(f"note: {note}")
    assert result.alignment is not None
    row, column = summary["shifts_rms"]
    missing = "" if summary["misfit"] is None else f", reprojections miss {100 * summary['misfit']:.2f} %"
    say(
        f"{settings.output}: {summary['views']} views, shifts {row:.2f} and {column:.2f} pixels RMS (row, column), "
        f"axis at {summary['axis_angle']:.2f}°{missing}, in {duration(summary['seconds'])}"
    )
    yaml = settings.output / f"{NAME}.yaml"
    say(f"reconstruct with: dtomo recon {settings.scan} VOLUME --alignment {yaml}")
    if settings.views != "none":
        made = settings.output / f"aligned.{settings.views}"
        say(f"aligned views in {made}, their axis at column {summary['axis']:g}")
    say(f"settings in {record.run_file(settings.output)}, summary in {written}")
