"""What a run leaves beside its output: all settings and versions to repeat it, and what happened."""

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from dtomo import __version__
from dtomo.errors import StoppedError, UserError
from dtomo.io.output import progress_folder
from dtomo.io.progress import Progress
from dtomo.settings import RunSettings
from dtomo.yaml_text import load_yaml

_PACKAGES = ("numpy", "numba", "scipy", "dask", "distributed", "zarr", "h5py", "finufft", "algotom")


def run_file(output: Path) -> Path:
    """``volume.zarr.run.yaml`` beside ``volume.zarr``."""
    return output.with_name(output.name + ".run.yaml")


def summary_file(output: Path) -> Path:
    """``volume.zarr.summary.json`` beside ``volume.zarr``."""
    return output.with_name(output.name + ".summary.json")


def versions() -> dict[str, str]:
    """Versions that may change the bits of a result."""
    found = {"dtomo": __version__, "python": platform.python_version(), "machine": platform.machine()}
    return found | {name: importlib.metadata.version(name) for name in _PACKAGES}


def describe_inputs(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Path, size and time of change (ns) of each input file; of a folder, those of what lies in it together.

    A resumed run compares them.
    """
    return [_describe(Path(path)) for path in sorted(set(paths))]


def _describe(path: Path) -> dict[str, Any]:
    state = path.stat()
    size, changed = state.st_size, state.st_mtime_ns
    if path.is_dir():
        with os.scandir(path) as entries:
            states = [entry.stat() for entry in entries if entry.is_file()]
        size = sum(state.st_size for state in states)
        changed = max((state.st_mtime_ns for state in states), default=changed)
    return {"path": str(path), "size": size, "changed": changed}


def write_run(output: Path, settings: RunSettings, inputs: list[dict[str, Any]], found: dict[str, Any]) -> Path:
    """Write the settings, versions and inputs of a run; `found` is what was worked out from them.

    Raises
    ------
    StoppedError
        The file cannot be written.
    """
    content = {
        "settings": settings.plain(),
        "found": found,
        "inputs": inputs,
        "versions": versions(),
    }
    _write(run_file(output), yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return run_file(output)


def write_summary(output: Path, summary: dict[str, Any]) -> Path:
    """Write what happened, as JSON."""
    _write(summary_file(output), json.dumps(summary, indent=1) + "\n")
    return summary_file(output)


def _write(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise StoppedError(f"cannot write {path}: {error.strerror}") from error


def check_resume(output: Path, settings: RunSettings, inputs: list[dict[str, Any]]) -> dict[str, Any]:
    """What the interrupted run had worked out, if `settings` and `inputs` are still the same.

    Raises
    ------
    UserError
        No record of the run, other settings, or input that has changed since.
    """
    path = run_file(output)
    try:
        record = load_yaml(path.read_text(encoding="utf-8"))
        before = type(settings)(**record["settings"]).that_decide_the_result()
        inputs_before, found = record["inputs"], record["found"]
    except FileNotFoundError as error:
        raise UserError(f"{output} cannot be resumed: its settings {path} are missing; use --overwrite") from error
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError) as error:
        raise UserError(f"{output} cannot be resumed: its settings {path} are damaged; use --overwrite") from error
    now = settings.that_decide_the_result()
    changed = sorted(name for name in now if now[name] != before[name])
    if changed:
        differences = ", ".join(f"{name} was {before[name]} and is {now[name]}" for name in changed)
        raise UserError(f"{output} was begun with other settings ({differences}); give the same, or --overwrite")
    if inputs_before != inputs:
        names = [one["path"] for one in inputs if one not in inputs_before] or ["the input"]
        raise UserError(f"{names[0]} has changed since {output} was begun; start again with --overwrite")
    return found


def found_before(settings: RunSettings, inputs: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What an interrupted run had worked out; None if there is none to be resumed, or it had only just begun.

    Raises
    ------
    UserError
        See `check_resume`.
    """
    progress = Progress(progress_folder(settings.output))
    if not progress.folder.exists() or not (run_file(settings.output).exists() or progress.slabs()):
        return None
    return check_resume(settings.output, settings, inputs)
