"""A whole run: from a model's name and data on disk to fitted parameters on disk."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dtomo import io
from dtomo.dashboard.feed import TOPIC, show_run
from dtomo.distributed import clusters
from dtomo.distributed.progress import Counter, duration
from dtomo.distributed.slabs import Slab
from dtomo.errors import UserError
from dtomo.fitting.callbacks import Callback, EarlyStopping, JsonLines, callback_of
from dtomo.fitting.checks import PLACE, raised_by
from dtomo.fitting.data import Columns, Split
from dtomo.fitting.fits import BATCH, check_clip, made_with, running
from dtomo.fitting.history import History
from dtomo.fitting.inputs import asked_optimizer, make_model, merged, open_data
from dtomo.fitting.loop import Loop, Plan, save_split
from dtomo.fitting.model import steps_of, trainable_of
from dtomo.io.checkpoints import Checkpoints, Schedule
from dtomo.io.output import progress_folder, unlocked_at_end
from dtomo.io.progress import Progress
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
from dtomo.settings import FitSettings, checkpoint_interval
from dtomo.threads import using_threads

if TYPE_CHECKING:
    from distributed import Client

LINES_APART = 2.0
"""Seconds between two lines of progress where there is no terminal."""


@dataclasses.dataclass(frozen=True, eq=False)
class FitRun:
    """What came of a run.

    Attributes
    ----------
    output
        Folder of the results.
    history
        None if only planned.
    summary
        What is in the JSON summary; empty if only planned.
    """

    output: Path
    history: History | None
    summary: dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class _Asked:
    """A fit that is set up."""

    columns: Columns
    split: Split
    plan: Plan
    trainable: Any
    steps: Any
    callbacks: list[Callback]

    def lines(self) -> list[str]:
        """What it takes, in words."""
        count = len(self.split.training)
        batch = min(self.plan.batch or count, count)
        parameters = self.trainable.parameters()
        size = sum(value.nbytes for value in parameters.values())
        sample = sum(int(np.prod(part.shape[1:])) * np.dtype(part.dtype).itemsize for part in self.columns.parts)
        return [
            f"samples: {count} to train on, {len(self.split.held_out)} held out, {sample / 1e6:.3g} MB each",
            f"steps: {-(-count // batch)} in an epoch, of {batch} samples in blocks of {self.plan.block}",
            f"epochs: {self.plan.epochs}",
            f"parameters: {sum(value.size for value in parameters.values())} numbers in {len(parameters)} arrays, "
            f"{size / 1e6:.3g} MB to each worker and back in a step",
        ]


def run(
    settings: FitSettings,
    *,
    plan_only: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> FitRun:
    """Fit a model to data.

    Model, data and a first block are checked before anything is touched. The output is a folder with
    ``parameters.npz`` (and ``model.pt`` of a Torch module), ``history.jsonl``, and ``split.npz``: which samples were
    held out.

    Parameters
    ----------
    settings
        What to do.
    plan_only
        Print samples, steps and bytes, and stop.
    resume
        Go on from the last checkpoint, with the same bits as without the interruption.
    overwrite
        Replace output that exists.
    quiet
        Print only errors.

    Raises
    ------
    UserError
        Bad input, a refused request, or a model that returns what it must not; nothing was touched.
    StoppedError
        Stopped part-way; the run can be resumed.
    """
    started, say, output = time.monotonic(), speaker(quiet), settings.output
    check_folder_name(output)
    asked = _set_up(settings)
    if plan_only:
        print("\n".join(asked.lines()))
        return FitRun(output, None, {})
    files = [Path(str(path).rpartition(":/")[0] or path) for path in (settings.scan, *settings.also)]
    inputs = record.describe_inputs(files)
    io.check_output(output, inputs=files, overwrite=overwrite, resume=resume)
    found = record.found_before(settings, inputs) if resume else None
    wanted = resources_of(settings, say)
    here = wanted.kind == "local" and wanted.workers == 1 and not wanted.devices
    with contextlib.ExitStack() as stack:
        client = None if here else stack.enter_context(clusters.connect(wanted, say=say))
        stack.enter_context(using_threads(wanted.threads if here else None))
        runner = stack.enter_context(running(asked.trainable.task, asked.columns, client, None))
        kept = _checkpoints(settings, asked)
        counter = stack.enter_context(Counter(asked.plan.epochs, "epochs", quiet=quiet, lines_apart=LINES_APART))
        shown = _Shown(client, settings, asked.plan.epochs)
        told = [_Counted(counter), shown, JsonLines(output / "history.jsonl"), *asked.callbacks]
        loop = Loop(asked.trainable, asked.steps, runner, asked.columns, asked.split, asked.plan, told, kept)
        stack.enter_context(_told(asked))
        loop.first_look()
        with resumable(output), unlocked_at_end(output), shown.on_page():
            begin_folder(settings, inputs, "fit", resumed=found is not None)
            save_split(output, asked.split)
            with part_way(output):
                history = loop.run()
            asked.trainable.save(output)
            peaks = memory_peaks(client)
            Progress(progress_folder(output)).remove()
    summary = _summary(history, asked, wanted, time.monotonic() - started) | peaks
    _report(settings, summary, kept.notes, say)
    return FitRun(output, history, summary)


def _set_up(settings: FitSettings) -> _Asked:
    columns = open_data(settings.scan, settings.also)
    model, came = make_model(settings.model, columns)
    arguments = merged(settings, came)
    split = Split.of(len(columns), arguments.get("validation", 0.1), settings.seed)
    plan = Plan.of(
        arguments.get("epochs", 10),
        arguments.get("batch", BATCH),
        arguments.get("block"),
        arguments.get("gradient_clip"),
        arguments.get("best", False),
        settings.seed,
        len(split.training),
    )
    trainable = trainable_of(model, arguments.get("loss"))
    steps = steps_of(trainable, asked_optimizer(settings, came, trainable), arguments.get("scheduler"))
    check_clip(plan, steps)
    callbacks = [callback_of(one) for one in arguments.get("callbacks", ())]
    if settings.patience is not None:
        callbacks.append(EarlyStopping(settings.patience))
    return _Asked(columns, split, plan, trainable, steps, callbacks)


def _checkpoints(settings: FitSettings, asked: _Asked) -> Checkpoints:
    return Checkpoints(
        progress_folder(settings.output) / "checkpoints-0-0",
        made_with=made_with(asked.columns, asked.split, asked.plan, asked.trainable, asked.steps),
        schedule=Schedule(*checkpoint_interval(settings.checkpoint_every)),
        devices=False,
    )


@contextlib.contextmanager
def _told(asked: _Asked) -> Iterator[None]:
    """What the model's own code raises, in one sentence."""
    try:
        yield
    except Exception as error:
        if not hasattr(error, PLACE):
            raise
        samples = ", ".join(f"{part.dtype} {('n', *part.shape[1:])}" for part in asked.columns.parts)
        name = type(getattr(asked.trainable, "model", getattr(asked.trainable, "module", None))).__name__
        raise UserError(
            f"{raised_by(f'the model {name}', error)}; it was given {samples.replace(chr(39), '')}"
        ) from error


class _Counted(Callback):
    """A line for each epoch."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter

    def after_epoch(self, history: History) -> None:
        epoch = history[-1]
        held = "" if epoch.validation is None else f", validation {epoch.validation:.5g}"
        self.counter.advance(f"loss {epoch.loss:.5g}{held}", to=epoch.number)


class _Shown(Callback):
    """The fit on the page of the dashboard: its validation (or loss) as the curve of a run."""

    def __init__(self, client: "Client | None", settings: FitSettings, epochs: int) -> None:
        self.client, self.settings, self.epochs = client, settings, epochs
        self.run: str | None = None

    @contextlib.contextmanager
    def on_page(self) -> Iterator[None]:
        """For as long as it goes; nothing without a cluster or a page."""
        if self.client is None:
            yield
            return
        plain = self.settings.plain()
        with show_run(
            self.client, name=self.settings.output.name, shape=(1, 1, 1), slabs=[Slab(0, 0, 1)],
            algorithm=f"fit {self.settings.model}", iterations=self.epochs, settings=plain,
        ) as feed:  # fmt: skip
            self.run = None if feed is None else feed.run
            yield

    def begin(self, history: History) -> None:
        """It runs, from the epochs before on."""
        self._send({"kind": "running"})
        if len(history):
            self._send_curve(history, 0)

    def after_epoch(self, history: History) -> None:
        """One more point."""
        self._send_curve(history, len(history) - 1)

    def end(self, history: History) -> None:
        """It is done, unless it stopped."""
        if history.reason:
            self._send({"kind": "done"})

    def _send_curve(self, history: History, first: int) -> None:
        norms = [epoch.score for epoch in history.epochs[first:]]
        self._send({"kind": "residuals", "start": 0, "slices": 1, "first": first, "norms": norms})

    def _send(self, message: dict[str, Any]) -> None:
        if self.run is not None and self.client is not None:
            self.client.log_event(TOPIC, {"run": self.run, "slab": 0, "worker": "", **message})


def _summary(history: History, asked: _Asked, wanted: clusters.Resources, seconds: float) -> dict[str, Any]:
    """What happened, for the JSON file."""
    best = history.best
    return {
        "epochs": len(history),
        "reason": history.reason,
        "loss": history[-1].loss,
        "validation": history[-1].validation,
        "best_epoch": None if best is None else best.number,
        "best_validation": None if best is None else best.validation,
        "kept": "best" if asked.plan.best else "last",
        "samples": len(asked.split.training),
        "held_out": len(asked.split.held_out),
        "workers": wanted.workers,
        "threads": wanted.threads,
        "seconds": round(seconds, 3),
    }


def _report(settings: FitSettings, summary: dict[str, Any], notes: list[str], say: Say) -> None:
    written = record.write_summary(settings.output, {**summary, "notes": notes})
    for note in notes:
        say(f"note: {note}")
    held = "" if summary["validation"] is None else f", validation {summary['validation']:.5g}"
    plural = "s" * (summary["epochs"] > 1)
    took = duration(summary["seconds"])
    say(f"{settings.output}: {summary['epochs']} epoch{plural}, loss {summary['loss']:.5g}{held}, in {took}")
    say(f"settings in {record.run_file(settings.output)}, summary in {written}")
