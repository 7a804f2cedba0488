"""A whole run: from a ptychographic scan on disk to object and probe on disk."""

import contextlib
import dataclasses
import time
from pathlib import Path
from typing import Any

from dtomo import io
from dtomo.distributed import clusters
from dtomo.distributed.forkserver import start_forkserver
from dtomo.distributed.progress import Counter, duration
from dtomo.errors import UserError
from dtomo.io.checkpoints import Checkpoints, Schedule
from dtomo.io.output import clear, progress_folder, unlocked_at_end
from dtomo.io.progress import Progress
from dtomo.io.ptycho.results import write_results
from dtomo.ptycho import cost, optics, scans
from dtomo.ptycho.driver import EpochReport
from dtomo.ptycho.result import PtychoResult
from dtomo.ptycho.setup import Data, Setup, place_of, prepare
from dtomo.ptycho.solve import Kept, Where, solve, told
from dtomo.runs import record
from dtomo.runs.session import Say, memory_peaks, part_way, resources_of, resumable, speaker
from dtomo.settings import PtychoSettings, checkpoint_interval
from dtomo.threads import using_threads

FORMATS = (".h5", ".hdf5", ".hdf", ".cxi", ".zarr")
PARTS = ("whole", "first half", "second half")

NEEDED = ("dtomo.ptycho.cluster_driver", "dtomo.ptycho.setup")
"""What workers import."""

LINES_APART = 1.0
"""Seconds between two lines of progress where there is no terminal."""


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """What came of a run.

    Attributes
    ----------
    output
        Where the result is.
    plan
        What it was said to take.
    result
        Object, probe and the rest; None if only planned.
    summary
        What is in the JSON summary beside the output; empty if only planned.
    """

    output: Path
    plan: cost.PtychoPlan
    result: PtychoResult | None
    summary: dict[str, Any]


def run(
    settings: PtychoSettings,
    *,
    plan_only: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> Run:
    """Reconstruct a scan.

    All input is checked before anything is touched. The output appears when it is whole.

    Parameters
    ----------
    settings
        What to do.
    plan_only
        Print memory per worker, bytes and time, from metadata alone, and stop.
    resume
        Go on from the checkpoints of a run that was interrupted, with the same bits as without the interruption.
    overwrite
        Replace output that exists.
    quiet
        Print only errors.

    Raises
    ------
    UserError
        Bad input or a refused request; nothing was touched.
    StoppedError
        Stopped part-way (a full disk, workers that are killed, Ctrl-C); the run can be resumed.
    """
    started = time.monotonic()
    say = speaker(quiet)
    _check_name(settings.output)
    opened = scans.open_data(settings, look=False)
    place = place_of(opened.data, settings)
    sizes = cost.sizes_of(settings, opened.data, place)
    wanted = cost.suited(settings, sizes, resources_of(settings, say))
    inputs = record.describe_inputs(opened.inputs)
    if not plan_only:
        io.check_output(settings.output, inputs=opened.inputs, overwrite=overwrite, resume=resume)
    found = record.found_before(settings, inputs) if resume else None
    with contextlib.ExitStack() as stack:
        client = None
        if wanted.address is not None:
            client = stack.enter_context(clusters.connect(wanted, say=say))
            wanted = clusters.measured(client, wanted)
        plan = cost.make_plan(settings, sizes, wanted, _tile_before(found))
        cost.refuse_if_too_big(plan)
        if plan_only:
            _say_notes(opened, say)
            print("\n".join(plan.lines()))
            return Run(settings.output, plan, None, {})
        if wanted.kind in ("local", "cuda") and not plan.here:
            start_forkserver(NEEDED)  # while this process looks at the scan
        opened = scans.open_data(settings)
        _say_notes(opened, say)
        data = opened.data
        if settings.check_orientation and found is None:
            say(scans.check_orientation(data, settings))
        setup = prepare(data, settings, place)
        for doubt in optics.doubts((setup.model.propagation, *setup.model.between)):
            say(f"note: {doubt}")
        if plan.tile is None:
            setup.engine.begin(setup.parameters)  # what the solver does not take is refused before anything is written
        if client is None and not plan.here:
            client = stack.enter_context(clusters.connect(wanted, say=say))
        begun = found or {"tile": plan.tile, "object": list(place.shape), "origin": list(place.origin)}
        with resumable(settings.output), unlocked_at_end(settings.output):
            _begin(settings, inputs, begun, resumed=found is not None)
            kept = _checkpoints(settings, begun)
            where = Where(client, plan.frame_memory, wanted.device_share, plan.tile)
            with part_way(settings.output), using_threads(wanted.threads if plan.here else None):
                result = _solved(data, setup, settings, where, kept, quiet)
            peaks = memory_peaks(client)
            stack.close()
            write_results(settings.output, result, overwrite=True)
            _forget(settings.output)
    notes = sorted({note for part in kept.values() for store in (part.states, part.end) for note in store.notes})
    summary = _summary(plan, begun, result, notes, time.monotonic() - started) | peaks
    _report(settings, result, summary, say)
    return Run(settings.output, plan, result, summary)


def _say_notes(opened: scans.Opened, say: Say) -> None:
    for warning in opened.warnings:
        say(f"note: {warning}")


def _check_name(output: Path) -> None:
    if output.suffix.lower() not in FORMATS:
        raise UserError(f"{output}: results are written as {', '.join(FORMATS)}; give the output such a name")


def _forget(output: Path) -> None:
    """The output is whole (what marked it unfinished went with the folder, where it is one)."""
    progress = Progress(progress_folder(output))
    if progress.folder.exists():
        progress.remove()


def _tile_before(found: dict[str, Any] | None) -> int | str | None:
    """How an interrupted run had cut the object."""
    if found is None:
        return None
    return "no" if found["tile"] is None else int(found["tile"])


def _begin(settings: PtychoSettings, inputs: list[dict[str, Any]], begun: dict[str, Any], *, resumed: bool) -> None:
    """From here on the output counts as unfinished, with its settings beside it."""
    progress = Progress(progress_folder(settings.output))
    if not resumed:
        if settings.output.is_dir():
            clear(settings.output)
        elif progress.folder.exists():
            progress.remove()
    progress.start(settings.output)
    if not resumed:
        record.write_run(settings.output, settings, inputs, begun)
    progress.save_settings({"settings": settings.that_decide_the_result(), **begun})


def _checkpoints(settings: PtychoSettings, begun: dict[str, Any]) -> dict[str, Kept]:
    """For the whole scan and its halves, in the progress folder."""
    folder = progress_folder(settings.output)
    schedule = Schedule(*checkpoint_interval(settings.checkpoint_every))
    made_with = settings.that_decide_the_result() | begun

    def store(number: int, end: int) -> Checkpoints:
        return Checkpoints(
            folder / f"checkpoints-{number}-{end}",
            made_with=made_with | {"part": PARTS[number]},
            schedule=schedule,
            devices=False,
        )

    return {name: Kept(store(number, 0), store(number, 1)) for number, name in enumerate(PARTS)}


def _solved(
    data: Data, setup: Setup, settings: PtychoSettings, where: Where, kept: dict[str, Kept], quiet: bool
) -> PtychoResult:
    """The reconstruction, with a line for its epochs."""
    counters: dict[str, Counter] = {}
    with contextlib.ExitStack() as stack:

        def on_epoch(part: str, report: EpochReport) -> None:
            if part not in counters:
                what = "epochs" if part == "whole" else f"epochs of the {part}"
                stack.pop_all().close()
                counters[part] = stack.enter_context(Counter(report.epochs, what, quiet=quiet, lines_apart=LINES_APART))
            loss = report.loss / report.count if report.count else float("nan")
            counters[part].advance(f"loss {loss:.5g}", to=report.epoch)

        return solve(data, setup, settings, where, on_epoch=on_epoch, kept=kept)


def _summary(
    plan: cost.PtychoPlan, begun: dict[str, Any], result: PtychoResult, notes: list[str], seconds: float
) -> dict[str, Any]:
    """What happened, for the JSON file."""
    return {
        **begun,
        "seconds": round(seconds, 3),
        "workers": plan.resources.workers,
        "threads": plan.resources.threads,
        "planned_memory": plan.worker_memory,
        "planned_seconds": round(sum(plan.seconds.values()), 1),
        **told(result),
        "notes": notes,
    }


def _report(settings: PtychoSettings, result: PtychoResult, summary: dict[str, Any], say: Say) -> None:
    """The last lines, and the files beside the output."""
    written = record.write_summary(settings.output, summary)
    for note in summary["notes"]:
        say(f"note: {note}")
    modes, slices, rows, columns = result.object.shape
    parts = [f"object of {rows} × {columns} pixels", f"{len(result.probe)} probe mode{'s' * (len(result.probe) > 1)}"]
    parts += [f"{slices} slices"] * (slices > 1) + [f"{modes} object modes"] * (modes > 1)
    loss = f"loss {result.history[-1]:.5g}" if len(result.history) else "no epoch"
    say(f"{settings.output}: {', '.join(parts)}, {loss}, in {duration(summary['seconds'])}")
    if "positions_moved" in summary:
        moved = summary["positions_moved"]
        say(f"positions moved by {moved['mean']:.2f} pixels on average, {moved['most']:.2f} at most")
    if "frc" in summary:
        say(_resolution(summary["frc"], result))
    say(f"settings in {record.run_file(settings.output)}, summary in {written}")


def _resolution(frc: dict[str, Any], result: PtychoResult) -> str:
    part = frc["frequency"] / frc["nyquist"]
    if not frc["frequency"] > 0:
        return "the two half-scans do not agree at any frequency"
    half = 0.5 / frc["frequency"]
    length = f"{half * 1e9:.3g} nm" if result.pixel_size is not None else f"{half:.3g} pixels"
    limit = "" if frc["crossed"] else ", which the pixels limit"
    return f"the two half-scans agree to {part:.2f} of Nyquist ({frc['threshold']}): half-period {length}{limit}"
