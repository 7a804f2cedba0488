"""A whole run: from the diffraction frames of all angles on disk to δ and β on disk."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo import io
from dtomo.algorithms.resolution import FourierCorrelation, fourier_correlation, resolution, soft_mask
from dtomo.distributed import clusters
from dtomo.distributed.progress import Counter, duration
from dtomo.errors import StoppedError, UserError
from dtomo.io.output import clear, progress_folder, unlocked_at_end
from dtomo.io.progress import Progress
from dtomo.ptycho.job import LINES_APART
from dtomo.ptychotomo import coarse, cost, results, scans, signs
from dtomo.ptychotomo.driver import JointProblem, JointReport, JointResult
from dtomo.ptychotomo.driver import run as run_problem
from dtomo.ptychotomo.engine import SlabPlace
from dtomo.ptychotomo.setup import JointData, prepare
from dtomo.runs import record
from dtomo.runs.session import Say, memory_peaks, part_way, resources_of, resumable, speaker
from dtomo.settings import JointSettings, checkpoint_interval
from dtomo.threads import using_threads

if TYPE_CHECKING:
    from distributed import Client

EVERY = 5
"""Epochs between two checkpoints, where minutes are asked for."""

LARGEST_CORRELATED = 256
"""Voxels along a side of the middle of the volume that two halves are compared in."""

PARTS = ("whole", "first half", "second half")


@dataclasses.dataclass(frozen=True, eq=False)
class JointRun:
    """What came of a run.

    Attributes
    ----------
    output
        Where the result is.
    plan
        What it was said to take.
    summary
        What is in the JSON summary beside the output; empty if only planned.
    """

    output: Path
    plan: cost.JointPlan
    summary: dict[str, Any]


def run(
    settings: JointSettings,
    *,
    plan_only: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> JointRun:
    """Reconstruct a volume.

    All input is checked before anything is touched. The output counts as unfinished until it is whole.

    Parameters
    ----------
    settings
        What to do.
    plan_only
        Print memory per worker, bytes and time, and stop.
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
    started, say = time.monotonic(), speaker(quiet)
    if settings.output.suffix.lower() != ".zarr":
        raise UserError(f"{settings.output}: results are folders, so give the output a name that ends with .zarr")
    opened = scans.open_joint(settings, look=not plan_only)
    data = opened.data
    scans.check_halves(data, settings)
    scans.check_start(data, settings)
    coarse.levels(data, settings)  # refuses frames that are too small
    for note in (*opened.warnings, *scans.doubts(data, settings)):
        say(f"note: {note}")
    wanted = resources_of(settings, say)
    inputs = record.describe_inputs(opened.inputs)
    if not plan_only:
        needed = cost.sizes_of(settings, data).on_disk
        io.check_output(settings.output, inputs=opened.inputs, overwrite=overwrite, resume=resume, bytes_needed=needed)
    found = record.found_before(settings, inputs) if resume else None
    with contextlib.ExitStack() as stack:
        client = None
        if wanted.address is not None:
            client = stack.enter_context(clusters.connect(wanted, say=say))
            wanted = clusters.measured(client, wanted)
        plan = cost.make_plan(cost.sizes_of(settings, data), wanted, None if found is None else found["slab_rows"])
        cost.refuse_if_too_big(plan)
        if plan_only:
            print("\n".join(plan.lines()))
            return JointRun(settings.output, plan, {})
        begun = found or {"slab_rows": plan.slab_rows}
        setup = prepare(
            data, settings, plan.slab_rows
        )  # what the solver does not take is refused before anything is written
        setup.engine.begin_common(setup.parameters)
        if client is None and not plan.here:
            client = stack.enter_context(clusters.connect(wanted, say=say))
        with resumable(settings.output), unlocked_at_end(settings.output):
            _begin(settings, inputs, begun, resumed=found is not None)
            with part_way(settings.output), using_threads(wanted.threads if plan.here else None):
                summary = _Work(data, settings, plan, client, quiet).done() | memory_peaks(client)
            stack.close()
            Progress(progress_folder(settings.output)).remove()
    summary = {**begun, **summary, **cost.as_numbers(plan), "seconds": round(time.monotonic() - started, 3)}
    _report(settings, summary, say)
    return JointRun(settings.output, plan, summary)


@dataclasses.dataclass(frozen=True, eq=False)
class _Work:
    """The reconstruction, its halves, and what is written of them."""

    data: JointData
    settings: JointSettings
    plan: cost.JointPlan
    client: "Client | None"
    quiet: bool

    def done(self) -> dict[str, Any]:
        """Everything, into the output; numbers for the summary."""
        output = self.settings.output
        writers = results.create_volumes(output, self.data, self.plan.slab_rows)
        result, sums = self._part("whole", self.data, results.WriteSlab(writers, self.data.wavenumber or 1.0))
        for writer in writers.values():
            writer.finish()
        moments = np.sum(sums, axis=0)  # of the slabs, in their order
        summary: dict[str, Any] = {
            "epochs": result.epochs,
            "losses": [float(loss) for loss in result.losses],
            "setbacks": result.setbacks,
            "mean_delta": float(moments[1] / max(1.0, moments[0]) / (self.data.wavenumber or 1.0)),
            "delta_beta_correlation": signs.correlation(moments),
        }
        curve = self._halves() if self.settings.halves else None
        if curve is not None:
            found = resolution(curve)
            summary["fsc"] = {"threshold": found.threshold, "frequency": found.frequency, "nyquist": curve.nyquist}
        results.write_parameters(output, result, self.data, self.settings, curve)
        return summary

    def _part(
        self, name: str, data: JointData, finish: Callable[[SlabPlace, NDArray[Any]], Any]
    ) -> tuple[JointResult, list[Any]]:
        """One reconstruction, from coarse to fine."""
        kept = progress_folder(self.settings.output) / f"coarse-{PARTS.index(name)}"
        levels, before = coarse.levels(data, self.settings), None
        for number, (some, settings) in enumerate(levels):
            if number == len(levels) - 1:
                return self._level(name, number, some, settings, finish, before)
            rows, columns = some.image_shape
            volume = coarse.KeptVolume.create(Path(f"{kept}-{number}"), (rows, columns, columns))
            result, _ = self._level(name, number, some, settings, volume, before)
            before = coarse.Found(some, result.parameters, volume.path)
        raise AssertionError("there is no level")

    def _level(
        self,
        name: str,
        number: int,
        data: JointData,
        settings: JointSettings,
        finish: Callable[[SlabPlace, NDArray[Any]], Any],
        before: coarse.Found | None,
    ) -> tuple[JointResult, list[Any]]:
        """One level, with a line for its epochs."""
        plan, last = self.plan, number == len(self.settings.coarse)
        slab_rows = plan.slab_rows
        if not last:
            slab_rows = coarse.slab_rows_of(data, settings, coarse.ratio_of(data, self.data), slab_rows)
        setup = prepare(data, settings, slab_rows)
        start = scans.first_volume(data, settings, self.client) if before is None else before.start(data)
        parameters = setup.parameters if before is None else before.first(data, setup.parameters)
        problem = JointProblem(
            setup.engine,
            data.frames.source,
            setup.layout,
            start,
            seed=settings.seed,
            frame_memory=plan.frame_memory,
            arrange=setup.arrange,
            slab_memory=None if plan.here else plan.slab_memory,
            device_memory=plan.resources.device_share,
            device_slabs=plan.device_slabs,
        )
        minutes, epochs = checkpoint_interval(settings.checkpoint_every)
        folder = progress_folder(settings.output) / f"checkpoints-{PARTS.index(name)}-{number}"
        what = "epochs" if name == "whole" else f"epochs of the {name}"
        what += "" if last else f" with voxels {self.settings.coarse[number]:g} times as large"
        with Counter(settings.epochs_wanted, what, quiet=self.quiet, lines_apart=LINES_APART) as counter:

            def told(report: JointReport) -> None:
                loss = report.loss / report.count if report.count else float("nan")
                if not np.isfinite(loss):
                    raise StoppedError(
                        f"the loss is not finite after epoch {report.epoch}: the frames hold such values, which want "
                        "--mask, or the steps were too large, see --option"
                    )
                counter.advance(f"loss {loss:.5g}", to=report.epoch)

            return run_problem(
                problem,
                parameters,
                settings.epochs_wanted,
                client=self.client,
                finish=finish,
                on_epoch=told,
                folder=None if epochs is None and minutes is None else folder,
                every=epochs or EVERY,
                made_with=self.settings.that_decide_the_result()
                | {"slab_rows": slab_rows, "part": name, "level": number},
            )

    def _halves(self) -> FourierCorrelation:
        """Shell correlation of what two halves of the angles give of δ, in the middle of the volume."""
        order = np.argsort(np.mod(self.data.angles, 180.0), kind="stable")
        middles = []
        for name, first in (("first half", 0), ("second half", 1)):
            some = self.data.some(np.sort(order[first::2]))
            _, parts = self._part(name, some, results.Middle(LARGEST_CORRELATED))
            middles.append(np.concatenate([part for part in parts if len(part)]))
        window = soft_mask(np.ones(middles[0].shape, bool))
        pixel = self.data.frames.pixel_size
        return fourier_correlation(middles[0], middles[1], window=window, pixel_size=1.0 if pixel is None else pixel[1])


def _begin(settings: JointSettings, inputs: list[dict[str, Any]], begun: dict[str, Any], *, resumed: bool) -> None:
    """From here on the output counts as unfinished, with its settings beside it."""
    progress = Progress(progress_folder(settings.output))
    if not resumed and settings.output.is_dir():
        clear(settings.output)
    progress.start(settings.output)
    if not resumed:
        record.write_run(settings.output, settings, inputs, begun)
    progress.save_settings({"settings": settings.that_decide_the_result(), **begun})


def _report(settings: JointSettings, summary: dict[str, Any], say: Say) -> None:
    """The last lines, and the files beside the output."""
    written = record.write_summary(settings.output, summary)
    losses = summary["losses"]
    say(f"{settings.output}: δ and β, loss {losses[-1]:.5g}, in {duration(summary['seconds'])}")
    if summary["delta_beta_correlation"] < signs.AGAINST:
        say(f"note: {signs.wrong_sign(settings.sign)}")
    if "fsc" in summary:
        found = summary["fsc"]
        say(f"the two halves of the angles agree to {found['frequency'] / found['nyquist']:.2f} of Nyquist")
    say(f"settings in {record.run_file(settings.output)}, summary in {written}")
