"""A whole run: from a particle list and its subtomograms to averages, their FSC, and a refined list."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dtomo import io
from dtomo.distributed import clusters
from dtomo.distributed.progress import Counter, duration
from dtomo.errors import StoppedError, UserError
from dtomo.io.output import clear, progress_folder, unlocked_at_end
from dtomo.io.progress import Progress
from dtomo.runs import record
from dtomo.runs.session import Say, begin_folder, check_folder_name, memory_peaks, resources_of, resumable, speaker
from dtomo.settings import AlignSettings
from dtomo.subtomo import cost, refine, results
from dtomo.subtomo.align import Pass, run_pass
from dtomo.subtomo.inputs import Inputs, check_search, open_inputs
from dtomo.subtomo.refine import Step
from dtomo.threads import using_threads

if TYPE_CHECKING:
    from distributed import Client

LINES_APART = 2.0
"""Seconds between two lines of progress where there is no terminal."""
ENOUGH = 2
"""Iterations in a row in which nothing moves, after which a run ends."""


@dataclasses.dataclass(frozen=True, eq=False)
class AlignRun:
    """What came of a run.

    Attributes
    ----------
    output
        Folder of the results.
    plan
        What it was said to take.
    summary
        Of the last iteration; empty if only planned.
    """

    output: Path
    plan: cost.AlignPlan
    summary: dict[str, Any]


def run(
    settings: AlignSettings,
    *,
    plan_only: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> AlignRun:
    """Align and average the particles of a list.

    All input is checked before anything is touched. Iterations are whole or not there.

    Parameters
    ----------
    settings
        What to do.
    plan_only
        Print memory per worker, tasks and time, and stop.
    resume
        Go on after the last iteration that is whole, with the same bits as without the interruption.
    overwrite
        Replace output that exists.
    quiet
        Print only errors.

    Raises
    ------
    UserError
        Bad input or a refused request; nothing was touched.
    StoppedError
        Stopped part-way; the run can be resumed.
    """
    started, say = time.monotonic(), speaker(quiet)
    check_folder_name(settings.output)
    inputs = open_inputs(settings)
    check_search(settings, inputs.fixed.boxes.size, inputs.fixed.pixel_size)
    for note in inputs.warnings:
        say(f"note: {note}")
    wanted = resources_of(settings, say)
    described = record.describe_inputs(inputs.files)
    if not plan_only:
        io.check_output(settings.output, inputs=[settings.scan], overwrite=overwrite, resume=resume)
    found = record.found_before(settings, described) if resume else None
    with contextlib.ExitStack() as stack:
        client = None
        if wanted.address is not None:
            client = stack.enter_context(clusters.connect(wanted, say=say))
            wanted = clusters.measured(client, wanted)
        plan = cost.make_plan(settings, inputs, wanted)
        cost.refuse_if_too_big(plan)
        if plan_only:
            print("\n".join(plan.lines()))
            return AlignRun(settings.output, plan, {})
        if client is None and not plan.here:
            client = stack.enter_context(clusters.connect(wanted, say=say))
        with resumable(settings.output), whole_or_gone(settings.output), unlocked_at_end(settings.output):
            begin_folder(settings, described, "subtomo", resumed=found is not None)
            with using_threads(wanted.threads if plan.here else None):
                summary = _Work(settings, inputs, client, say, quiet, wanted.device_share is not None).done()
            summary |= memory_peaks(client)
            stack.close()
            Progress(progress_folder(settings.output)).remove()
    written = record.write_summary(
        settings.output, {**summary, **cost.as_numbers(plan), "seconds": round(time.monotonic() - started, 3)}
    )
    say(f"{settings.output}: {_told(summary)}, in {duration(time.monotonic() - started)}")
    say(f"settings in {record.run_file(settings.output)}, summary in {written}")
    return AlignRun(settings.output, plan, summary)


def average_run(settings: AlignSettings, *, overwrite: bool = False, quiet: bool = False) -> dict[str, Any]:
    """Average the particles of a list in their poses: halves, their FSC, and all of them, filtered; the summary.

    Raises
    ------
    UserError
        Bad input or a refused request; nothing was touched.
    """
    say = speaker(quiet)
    check_folder_name(settings.output)
    inputs = open_inputs(settings)
    for note in inputs.warnings:
        say(f"note: {note}")
    wanted = resources_of(settings, say)
    io.check_output(settings.output, inputs=[settings.scan], overwrite=overwrite)
    plan = cost.make_plan(settings, inputs, wanted)
    cost.refuse_if_too_big(plan)
    with contextlib.ExitStack() as stack:
        client = None if plan.here else stack.enter_context(clusters.connect(wanted, say=say))
        with resumable(settings.output), whole_or_gone(settings.output), unlocked_at_end(settings.output):
            begin_folder(settings, record.describe_inputs(inputs.files), "subtomo", resumed=False)
            with using_threads(wanted.threads if plan.here else None):
                summary = _Work(settings, inputs, client, say, quiet, wanted.device_share is not None).averaged()
            summary |= memory_peaks(client)
            stack.close()
            Progress(progress_folder(settings.output)).remove()
    record.write_summary(settings.output, summary)
    say(f"{settings.output}: {_told(summary)}")
    return summary


@dataclasses.dataclass(frozen=True, eq=False)
class _Work:
    """The iterations, and what is written of them."""

    settings: AlignSettings
    inputs: Inputs
    client: "Client | None"
    say: Say
    quiet: bool
    device: bool

    def done(self) -> dict[str, Any]:
        """All that are left; the summary of the last."""
        settings, fixed = self.settings, self.inputs.fixed
        step = results.last_step(settings.output, fixed.mask, fixed.pixel_size, settings.seed)
        summary: dict[str, Any] = {}
        if step is None:
            with self._counter("particles averaged" if not self.inputs.references else "references") as counter:
                step = refine.begin(
                    fixed, self.inputs.poses, self.inputs.references, settings, self.client,
                    _told_by(counter), self.device,
                )  # fmt: skip
            summary = self._write(step)
        while step.number < settings.iterations and not self._over(step):
            with self._counter(f"particles of iteration {step.number + 1}") as counter:
                step = refine.next_step(fixed, step, settings, self.client, _told_by(counter), self.device)
            summary = self._write(step)
            self.say(f"iteration {step.number}: {_told(summary)}")
        results.publish(settings.output, step, self.inputs.suffix)
        return summary or results.summary_of(step, {})

    def averaged(self) -> dict[str, Any]:
        """The particles as they lie; the summary."""
        inputs, fixed = self.inputs, self.inputs.fixed
        with self._counter("particles averaged") as counter:
            work = Pass(fixed.boxes, inputs.poses, fixed.weights, device=self.device)
            passed = run_pass(work, self.client, _told_by(counter))
        step = refine.compared(fixed, passed, self.settings, Step(0, inputs.poses, ()))
        summary = self._write(step)
        results.publish(self.settings.output, step, inputs.suffix)
        return summary

    def _over(self, step: Step) -> bool:
        if not self.settings.settle or step.settled < ENOUGH:
            return False
        self.say(f"nothing has moved for {ENOUGH} iterations: the run ends (--no-settle goes on)")
        return True

    def _write(self, step: Step) -> dict[str, Any]:
        inputs = self.inputs
        left_out = {number: inputs.fixed.boxes.name(number) for number in _left_out(step)}
        if left_out:
            some = ", ".join(list(left_out.values())[:3])
            self.say(f"note: {len(left_out)} particles are left out, their boxes cannot be read: {some}")
        return results.write_step(
            self.settings.output, step, inputs.particles, inputs.suffix, inputs.fixed.pixel_size, left_out
        )

    def _counter(self, what: str) -> Counter:
        return Counter(len(self.inputs.poses), what, quiet=self.quiet, lines_apart=LINES_APART)


def _told_by(counter: Counter) -> Callable[[int], None]:
    """Counts some more particles."""

    def done(count: int) -> None:
        for _ in range(count):
            counter.advance()

    return done


@contextlib.contextmanager
def whole_or_gone(output: Path) -> Iterator[None]:
    """What only the work itself can find wrong with the input: iterations that are whole stay, else nothing is left.

    Raises
    ------
    UserError
        There was no iteration yet.
    StoppedError
        There was one.
    """
    try:
        yield
    except UserError as error:
        done = sorted(path.parent.name for path in output.glob("iteration-*/summary.json"))
        if done and done[-1] > "iteration-000":
            raise StoppedError(f"{error}; what is done up to {done[-1]} is kept in {output}") from error
        clear(output)
        record.run_file(output).unlink(missing_ok=True)
        raise


def _left_out(step: Step) -> list[int]:
    return [int(number) for number in np.flatnonzero(~step.poses.read)]


def _told(summary: dict[str, Any]) -> str:
    """One line of an iteration."""
    classes = []
    for number, one in enumerate(summary["classes"], 1):
        resolution = one.get("resolution")
        name = f"class {number}: " if len(summary["classes"]) > 1 else ""
        said = "no resolution" if resolution is None else f"{resolution:.1f} Å"
        classes.append(f"{name}{said} from {sum(one['particles'])} particles")
    line = ", ".join(classes)
    if summary["moved"] is not None:
        moved = summary["moved"]
        line += f", moved by {moved['degrees']:.2f}° and {moved['voxels']:.2f} voxels (median)"
    if summary["score"] is not None:
        line += f", score {summary['score']['median']:.3f}"
    return line
