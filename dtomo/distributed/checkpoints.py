"""Checkpoints of a state that lies on the workers: one folder per iteration, and new roots for what goes on.

A checkpoint is a folder ``iteration-0000000020`` with the state of each slab (`dtomo.io.checkpoints`) and
``slabs.json``; it gets its name when all slabs are in it, and the last two are kept. The folder must be one that all
workers and the client see.
"""

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtomo.arrays import is_array
from dtomo.distributed import graph
from dtomo.distributed.graph import PinnedTask
from dtomo.distributed.queue import TaskFailed
from dtomo.distributed.slab_array import SlabArray
from dtomo.distributed.slabs import Slab
from dtomo.errors import StoppedError, UserError, shown
from dtomo.io.checkpoints import Checkpoints

if TYPE_CHECKING:
    from distributed import Client

GENERATIONS = 2
"""Checkpoints that are kept."""

_MANIFEST = "slabs.json"
_NAME = re.compile(r"iteration-(\d{10})")
_ARRAY = "array"


class DamagedState(Exception):
    """A slab's part of a checkpoint that is not whole."""


def save(state: SlabArray, folder: Path | str, iteration: int, made_with: Mapping[str, Any] | None = None) -> SlabArray:
    """Write a checkpoint, each slab from its worker, and return the state as new roots.

    The returned parts are the same memory, but depend on nothing: drop `state`, and what made it is forgotten by the
    scheduler. A part that is lost later is read from the checkpoint.

    Parameters
    ----------
    state
        Parts are arrays, or dicts of arrays, numbers and `numpy.random.Generator`. Of arrays on a device copies in
        host memory are kept; they come back to the device of whatever worker has one.
    folder
        Of all checkpoints of this problem, and of nothing else.
    iteration
        How many are done.
    made_with
        JSON values that decide the result; `restore` refuses others.

    Raises
    ------
    TaskFailed
        A slab that could not be computed or written.
    StoppedError
        The folder cannot be written to.
    """
    folder = Path(folder)
    target, part = folder / f"iteration-{iteration:010d}", folder / f".part-iteration-{iteration:010d}"
    try:
        for old in (target, *folder.glob(".part-*")):
            shutil.rmtree(old, ignore_errors=True)
        part.mkdir(parents=True)
    except OSError as error:
        raise StoppedError(f"no checkpoint could be written to {folder} ({error.strerror})") from error
    try:
        state.update(_save_part, part).wait()
    except TaskFailed as failed:
        if isinstance(failed.cause, StoppedError):
            raise failed.cause from failed
        raise
    content = {"iteration": iteration, "axis": state.axis, "made_with": plain(made_with)}
    content["slabs"] = [dataclasses.astuple(slab) for slab in state.slabs]
    try:
        (part / _MANIFEST).write_text(json.dumps(content), encoding="utf-8")
        os.rename(part, target)
    except OSError as error:
        raise StoppedError(f"no checkpoint could be written to {folder} ({error.strerror})") from error
    for number in _iterations(folder)[:-GENERATIONS]:
        shutil.rmtree(folder / f"iteration-{number:010d}", ignore_errors=True)
    return _as_roots(state, target).wait()


def restore(
    client: "Client",
    folder: Path | str,
    *,
    made_with: Mapping[str, Any] | None = None,
    only: Sequence[int] | None = None,
    most: int | None = None,
) -> tuple[SlabArray, int] | None:
    """The newest whole checkpoint as (state on the present workers, iterations done), None if there is none.

    Parameters
    ----------
    client, folder
        As for `save`.
    made_with
        What the checkpoint must have been made with.
    only
        Numbers of the slabs to restore; default: all.
    most
        The latest iteration that may be restored.

    Raises
    ------
    UserError
        It was made with other values.
    TaskFailed
        Workers that died.
    """
    folder = Path(folder)
    for number in reversed(_iterations(folder)):
        if most is not None and number > most:
            continue
        path = folder / f"iteration-{number:010d}"
        try:
            slabs, axis, before = _read_manifest(path / _MANIFEST)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not whole: the one before it
        _refuse_other(path, before, plain(made_with))
        homes = graph.spread(len(slabs), graph.workers_in_order(client))
        chosen = [place for place, slab in enumerate(slabs) if only is None or slab.index in only]
        wanted, where = [slabs[place] for place in chosen], [homes[place] for place in chosen]
        try:
            return SlabArray.create(client, _load_part, path, wanted, where, axis=axis).wait(), number
        except TaskFailed as failed:
            if not isinstance(failed.cause, DamagedState):
                raise
    return None


def _as_roots(state: SlabArray, path: Path) -> SlabArray:
    """The same parts under new keys that depend on nothing but the checkpoint."""
    name = graph.unique("root")
    tasks = [
        PinnedTask((name, slab.index), home, _adopt, (part.key, path, slab))
        for slab, home, part in zip(state.slabs, state.homes, state.parts)
    ]
    return dataclasses.replace(state, parts=tuple(graph.submit(state.client, tasks)))


def _adopt(key: Any, path: Path, slab: Slab) -> Any:
    """What this worker holds under `key`; if it is gone (this task runs again after a loss), what was saved."""
    from distributed import get_worker

    held = get_worker().data.get(key)
    return held if held is not None else _load_part(path, slab)


def _slab_folder(path: Path, slab: Slab) -> Path:
    return path / f"slab-{slab.index:06d}"


def _save_part(path: Path, slab: Slab, part: Any) -> None:
    if is_array(part):
        part = {_ARRAY: part}
    elif not isinstance(part, dict) or set(part) == {_ARRAY}:
        raise UserError(f"a checkpoint keeps arrays and dicts of arrays, not {type(part).__name__}")
    Checkpoints(_slab_folder(path, slab)).save(part)


def _load_part(path: Path, slab: Slab) -> Any:
    kept = Checkpoints(_slab_folder(path, slab))
    found = kept.load()
    if found is None:
        raise DamagedState(f"{path} has no whole state of {slab}: {'; '.join(kept.notes)}")
    return found.state[_ARRAY] if set(found.state) == {_ARRAY} else found.state


def _iterations(folder: Path) -> list[int]:
    found = (_NAME.fullmatch(item.name) for item in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(match[1]) for match in found if match)


def _read_manifest(path: Path) -> tuple[tuple[Slab, ...], int, dict[str, Any]]:
    """Slabs, axis and what the checkpoint was made with; raises what damaged JSON raises."""
    content = json.loads(path.read_text(encoding="utf-8"))
    slabs = tuple(Slab(*slab) for slab in content["slabs"])
    borders = [0, *(number for slab in slabs for number in (slab.start, slab.stop))]
    if not slabs or sorted(map(int, borders)) != borders or not isinstance(content["made_with"], dict):
        raise ValueError(f"{path} is not what was written")
    return slabs, int(content["axis"]), content["made_with"]


def plain(made_with: Mapping[str, Any] | None) -> Any:
    """What decides the result, as JSON would give it back."""
    return json.loads(json.dumps(dict(made_with or {})))


def _refuse_other(path: Path, before: Any, now: Any) -> None:
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise UserError(
                f"the checkpoint {path} was made with {name} {shown(before.get(name))} and not {shown(now.get(name))}: "
                "give the same, or remove it to begin anew"
            )
