"""What a run left beside its output, read without trust: whatever is missing or damaged is left out of the page."""

import dataclasses
import datetime
import json
import math
from pathlib import Path
from typing import Any

import yaml

from dtomo.distributed.plan import size
from dtomo.distributed.progress import duration
from dtomo.report.page.html import Bar, Card
from dtomo.runs.record import run_file, summary_file
from dtomo.yaml_text import load_yaml

_MANY = 16


@dataclasses.dataclass(frozen=True)
class Record:
    """Settings, what was found, versions, and the summary of a run; empty where there is none."""

    settings: dict[str, Any]
    found: dict[str, Any]
    inputs: list[dict[str, Any]]
    versions: dict[str, Any]
    summary: dict[str, Any]
    ended: datetime.datetime | None
    file: Path

    @classmethod
    def beside(cls, output: Path) -> "Record":
        """The record of the run that made `output`."""
        run, summary = run_file(output), summary_file(output)
        try:
            kept = load_yaml(run.read_text("utf-8"))
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            kept = {}
        try:
            told = json.loads(summary.read_text("utf-8"))
            ended = datetime.datetime.fromtimestamp(summary.stat().st_mtime).astimezone()
        except (OSError, ValueError, RecursionError):
            told, ended = {}, None
        kept = kept if isinstance(kept, dict) else {}
        parts = {name: _dict(kept.get(name)) for name in ("settings", "found", "versions")}
        listed = kept.get("inputs")
        inputs = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        return cls(**parts, inputs=inputs, summary=_dict(told), ended=ended, file=run)

    def number(self, name: str) -> float | None:
        """A number of the summary; None if it is not there or not finite."""
        return number(self.summary.get(name))

    @property
    def notes(self) -> list[str]:
        """Warnings and notes of the run."""
        return [str(note) for name in ("scan_warnings", "warnings", "notes") for note in _list(self.summary.get(name))]


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and math.isfinite(value) else None


def numbers(value: Any) -> list[float]:
    """Numbers of a list, NaN for what is none; empty for anything else."""
    return [math.nan if (found := number(one)) is None else found for one in _list(value)]


def when(record: Record) -> str:
    """When the run ended, for the line below the title; empty if it is not known."""
    return "" if record.ended is None else f", finished {record.ended:%Y-%m-%d %H:%M %Z}"


def time_tiles(record: Record) -> list[tuple[str, str]]:
    """Tiles of time and workers."""
    tiles = []
    seconds = record.number("seconds")
    if seconds is not None:
        tiles.append((duration(seconds) if seconds >= 10 else f"{seconds:.1f} s", "wall time"))
    workers, threads = record.number("workers"), record.number("threads")
    if workers and threads:
        tiles.append((f"{workers:.0f} × {threads:.0f}", "workers × threads"))
    elif threads:
        tiles.append((f"{threads:.0f}", "threads"))
    return tiles


def resource_cards(record: Record) -> list[Card]:
    """Boxes of time by stage, memory, and data."""
    return [_stages(record), _memory(record), _amounts(record)]


def _stages(record: Record) -> Card:
    stages = {name: number(value) for name, value in _dict(record.summary.get("seconds_by_stage")).items()}
    order = sorted((name for name in stages if stages[name] is not None), key=lambda name: -(stages[name] or 0.0))
    total = sum(stages[name] or 0.0 for name in order) or 1.0
    bars = tuple(
        Bar(name, stages[name] or 0.0, f"{stages[name]:.3g} s, {100 * (stages[name] or 0.0) / total:.0f} %")
        for name in order
    )
    return Card("Time by stage", bars=bars, below="Sums over all workers.")


def _memory(record: Record) -> Card:
    planned, client = record.number("planned_memory"), record.number("client_peak_memory")
    peaks = [number(value) for value in _dict(record.summary.get("peak_memory")).values()]
    known = sorted((peak for peak in peaks if peak is not None), reverse=True)
    bars = [Bar(f"worker {place}", peak, size(peak), planned) for place, peak in enumerate(known[:_MANY], 1)]
    if client is not None:
        bars.append(Bar("this process", client, size(client), record.number("planned_client_memory")))
    below = f"The {len(known) - _MANY} workers with less are not shown. " if len(known) > _MANY else ""
    if not bars and planned is not None:
        return Card("Memory", rows=(("planned for each worker", size(planned)),))
    return Card(
        "Peak of memory",
        bars=tuple(bars),
        below=below + ("The upright line is what was planned." if planned is not None else ""),
    )


def _amounts(record: Record) -> Card:
    rows = []
    for name, what in (("bytes_read", "read"), ("bytes_written", "written")):
        value = record.number(name)
        if value is not None:
            rows.append((what, size(value)))
    planned, seconds = record.number("planned_seconds"), record.number("seconds")
    if planned is not None:
        rows.append(("time planned", f"{planned:g} s"))
    if seconds is not None:
        rows.append(("time taken", f"{seconds:g} s"))
    slabs = _list(record.summary.get("slabs"))
    if slabs:
        rows.append(("slabs", f"{len(slabs)}, of {record.summary.get('slab', '?')} slices"))
    before = record.number("slabs_done_before")
    if before:
        rows.append(("slabs done by an interrupted run", f"{before:.0f}"))
    for name, what in (("dead_pixels", "dead pixels repaired"), ("repaired_values", "single values repaired")):
        value = record.number(name)
        if value is not None:
            rows.append((what, f"{value:.0f}"))
    return Card("Amounts", rows=tuple(rows))


def record_cards(record: Record, command: str) -> list[Card]:
    """Boxes of settings, inputs and versions; `command` repeats the run."""
    given = tuple((name, shown(value)) for name, value in record.settings.items() if value not in (None, [], {}, ""))
    inputs = tuple((size(number(one.get("size")) or 0), str(one.get("path"))) for one in record.inputs)
    repeat = f"The same again: dtomo {command} --config {record.file} --overwrite" if command else ""
    return [
        Card("Settings", rows=given, below=repeat),
        Card("Inputs", rows=inputs),
        Card("Versions", rows=tuple((name, str(value)) for name, value in record.versions.items())),
    ]


def shown(value: Any) -> str:
    """A value of a record for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(map(shown, value))
    return str(value)
