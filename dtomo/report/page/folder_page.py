"""The pages of outputs that are folders: ``dtomo align``, ``dtomo subtomo`` and ``dtomo fit``."""

import base64
import io as memory
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from dtomo.fitting.history import History
from dtomo.geometry import Alignment
from dtomo.io.tilts.alignment_file import read_alignment
from dtomo.report.page.html import Card, Page
from dtomo.report.page.records import (
    Record,
    number,
    record_cards,
    resource_cards,
    time_tiles,
    when,
)
from dtomo.report.page.stacks import stacks_of
from dtomo.report.page.svg import Line, plot
from dtomo.subtomo.results import read_fsc

_WIDE = 1200
"""Pixels of a picture that was drawn by the run, at most."""
_CURVES = 6


def is_alignment(output: Path) -> bool:
    """Whether `output` is a result of ``dtomo align``."""
    return (output / "alignment.yaml").is_file()


def is_fit(output: Path) -> bool:
    """Whether `output` is a result of ``dtomo fit``."""
    return (output / "history.jsonl").is_file()


def is_subtomo(output: Path) -> bool:
    """Whether `output` is a result of ``dtomo subtomo align`` or ``average``."""
    return next(output.glob("iteration-*/summary.json"), None) is not None


def alignment_page(output: Path, foot: str) -> Page:
    """Shifts of the views, how the reprojections came to fit, and the pictures that the run drew.

    Raises
    ------
    UserError
        An alignment that cannot be read.
    """
    record = Record.beside(output)
    kept = _yaml(output / "alignment.yaml")
    told = record.summary
    tiles = [(str(told.get("views", "–")), "views")]
    for name, what, form in (
        ("axis_angle", "angle of the axis", "{:.2f}°"),
        ("axis", "column of the axis", "{:.2f}"),
        ("misfit", "misfit of the reprojections", "{:.2%}"),
    ):
        value = record.number(name)
        if value is not None:
            tiles.append((form.format(value), what))
    curves = [_shifts(read_alignment(output / "alignment.yaml")), _misfits(kept)]
    curves += [_drawn(output / f"{name}.png", title) for name, title in (("views", "Views"), ("slices", "Slices"))]
    return Page(
        output.name, f"Alignment{when(record)}. {output}", [*tiles, *time_tiles(record)], record.notes, (), curves,
        resource_cards(record), record_cards(record, "align"), foot,
    )  # fmt: skip


def _shifts(found: Alignment) -> Card:
    order = np.argsort(found.tilts, kind="stable")
    tilts, shifts = found.tilts[order], found.shifts[order]
    lines = [Line("rows (along the axis)", tilts, shifts[:, 0]), Line("columns (across it)", tilts, shifts[:, 1])]
    return Card("Alignment: shifts of the views", plot=plot(lines, "tilt, degrees", "pixels"))


def _misfits(kept: dict[str, Any]) -> Card:
    about = kept.get("about")
    history = about.get("history") if isinstance(about, dict) else None
    notes = [note for note in history if isinstance(note, dict)] if isinstance(history, list) else []
    values = [number(note.get("misfit")) for note in notes]
    known = [value for value in values if value is not None]
    drawn = plot([Line("misfit", np.arange(1, len(known) + 1), known)], "reprojection", "misfit", log=True)
    return Card("Convergence", plot=drawn, below="What reprojections miss of the views.")


def _drawn(path: Path, title: str) -> Card:
    """A picture that the run drew, made smaller."""
    try:
        with Image.open(path) as opened:
            picture = opened.convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError):
        return Card(title)
    if picture.width > _WIDE:
        picture = picture.resize((_WIDE, max(1, round(picture.height * _WIDE / picture.width))))
    file = memory.BytesIO()
    picture.save(file, "jpeg", quality=85)
    return Card(title, picture="data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii"))


def fit_page(output: Path, foot: str) -> Page:
    """Losses over the epochs, rates and metrics.

    Raises
    ------
    UserError
        A history that cannot be read.
    """
    record, history = Record.beside(output), History.read(output / "history.jsonl")
    epochs = np.array([epoch.number for epoch in history])
    told = record.summary
    tiles = [(str(len(history)), "epochs")]
    for name, what in (("loss", "loss"), ("validation", "validation"), ("best_epoch", "best epoch"),
                       ("samples", "samples"), ("held_out", "held out")):  # fmt: skip
        value = record.number(name)
        if value is not None:
            tiles.append((f"{value:.5g}", what))
    lines = [Line("training", epochs, history.losses), Line("validation", epochs, history.validations)]
    rates = Line("rate", epochs, [epoch.rate for epoch in history])
    curves = [
        Card("Convergence", plot=plot(lines, "epoch", "loss", log=True), below=f"Ended by: {told.get('reason', '–')}"),
        Card("Factor of the rate", plot=plot([rates], "epoch", "factor")),
        *(_metric(history, name) for name in sorted({name for epoch in history for name in epoch.metrics})[:8]),
    ]
    return Page(
        output.name, f"Fit of a model{when(record)}. {output}", [*tiles, *time_tiles(record)], record.notes, (),
        curves, resource_cards(record), record_cards(record, "fit"), foot,
    )  # fmt: skip


def _metric(history: History, name: str) -> Card:
    epochs = [epoch.number for epoch in history]
    lines = [
        Line("training", epochs, [epoch.metrics.get(name, np.nan) for epoch in history]),
        Line("validation", epochs, [epoch.validation_metrics.get(name, np.nan) for epoch in history]),
    ]
    return Card(name, plot=plot(lines, "epoch", name))


def subtomo_page(output: Path, foot: str) -> Page:
    """The averages, their FSC, and how resolution, poses and scores went.

    Raises
    ------
    UserError
        An average that cannot be read.
    """
    record = Record.beside(output)
    folders = sorted(path.parent for path in output.glob("iteration-*/summary.json"))
    steps = [(folder, _json(folder / "summary.json")) for folder in folders]
    last = steps[-1][1]
    classes = [one for one in last.get("classes") or [] if isinstance(one, dict)]
    tiles = [(str(last.get("iteration", "–")), "iterations")]
    for place, one in enumerate(classes, 1):
        named = f" of class {place}" if len(classes) > 1 else ""
        tiles.append((str(sum(int(number(count) or 0) for count in one.get("particles") or [])), f"particles{named}"))
        value = number(one.get("resolution"))
        if value is not None:
            tiles.append((f"{value:.2f} Å", f"resolution{named}"))
    names = [output / ("average.mrc" if place == 1 else f"average-{place}.mrc") for place in range(1, len(classes) + 1)]
    stacks = [
        stack
        for place, path in enumerate(names, 1)
        if path.is_file()
        for stack in stacks_of(path, "Average" if len(names) == 1 else f"Average of class {place}")
    ]
    curves = [_shells(folders[-1]), _course(steps, len(classes)), *_poses(steps)]
    return Page(
        output.name, f"Subtomogram average{when(record)}. {output}", [*tiles, *time_tiles(record)], record.notes,
        stacks, curves, resource_cards(record), record_cards(record, ""), foot,
    )  # fmt: skip


def _shells(folder: Path) -> Card:
    """FSC of the halves of the last iteration."""
    lines: list[Line] = []
    for path in sorted(folder.glob("class-*-fsc.txt"))[:_CURVES]:
        names, table = read_fsc(path)
        for name in ("unmasked", "corrected"):
            if name in names:
                title = name if len(lines) < 2 else f"{path.name.removesuffix('-fsc.txt')}, {name}"
                lines.append(Line(title, table[names.index("frequency")], table[names.index(name)], name == "unmasked"))
    drawn = plot(lines, "frequency, 1/Å", "FSC", levels=[(0.143, "0.143")], low=-0.1, high=1.04)
    return Card("FSC of the two halves", plot=drawn)


def _course(steps: list[tuple[Path, dict[str, Any]]], kinds: int) -> Card:
    numbers_of = [step.get("iteration") for _, step in steps]
    lines = []
    for kind in range(min(kinds, _CURVES)):
        found = []
        for _, step in steps:
            classes = step.get("classes") or []
            one = classes[kind] if kind < len(classes) and isinstance(classes[kind], dict) else {}
            found.append(np.nan if (value := number(one.get("resolution"))) is None else value)
        lines.append(Line(f"class {kind + 1}", [number(n) or 0 for n in numbers_of], found))
    return Card("Convergence: resolution", plot=plot(lines, "iteration", "Å"))


def _poses(steps: list[tuple[Path, dict[str, Any]]]) -> list[Card]:
    there = [step for _, step in steps if isinstance(step.get("moved"), dict)]
    places = [number(step.get("iteration")) or 0 for step in there]
    moved = [
        Line(name, places, [number(step["moved"].get(name)) or 0 for step in there]) for name in ("degrees", "voxels")
    ]
    scored = [step for _, step in steps if isinstance(step.get("score"), dict)]
    medians = [number(step["score"].get("median")) or 0 for step in scored]
    scores = [Line("median", [number(step.get("iteration")) or 0 for step in scored], medians)]
    return [
        Card("Alignment: moved, median", plot=plot(moved, "iteration", "degrees, voxels", low=0.0)),
        Card("Score, median", plot=plot(scores, "iteration", "score")),
    ]


def _yaml(path: Path) -> dict[str, Any]:
    try:
        read = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return read if isinstance(read, dict) else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}
