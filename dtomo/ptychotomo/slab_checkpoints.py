"""Checkpoints of a run: a folder for each epoch, in it a folder for each slab and one for what slabs share.

Slabs are written from where they are; what they share is written last, by the client, and makes the epoch count. The
last two epochs are kept, each piece as `dtomo.io.checkpoints` does: whole or not at all, with checksums.
"""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.io.checkpoints import Checkpoints
from dtomo.ptycho.nested import flatten, unflatten

KEPT = 2
"""Epochs that are kept."""

_EPOCH = re.compile(r"epoch-(\d{7})")
_COMMON = "common"


class Damaged(Exception):
    """A piece of an epoch is not there, or not whole."""


def save_slab(folder: Path, slab: int, epoch: int, local: Mapping[str, Any], made_with: Mapping[str, Any]) -> None:
    """Write the arrays of a slab."""
    _save(_folder(folder, epoch) / _name(slab), local, made_with, {})


def save_common(
    folder: Path, epoch: int, history: NDArray[np.float64], common: Mapping[str, Any], made_with: Mapping[str, Any]
) -> None:
    """Write what slabs share: now the epoch counts, and older ones go."""
    _save(_folder(folder, epoch) / _COMMON, {"history": history, "common": dict(common)}, made_with, {"epoch": epoch})
    for old in [number for number in _epochs(folder) if number <= epoch][:-KEPT]:
        shutil.rmtree(_folder(folder, old), ignore_errors=True)
    for later in [number for number in _epochs(folder) if number > epoch]:
        shutil.rmtree(_folder(folder, later), ignore_errors=True)


def load_slab(folder: Path, slab: int, epoch: int, made_with: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a slab, as they lay in memory.

    Raises
    ------
    Damaged
        It is not there whole.
    UserError
        It was made with other settings.
    """
    found: dict[str, Any] = _load(_folder(folder, epoch) / _name(slab), made_with)
    return found


def load_common(folder: Path, epoch: int, made_with: Mapping[str, Any]) -> tuple[dict[str, Any], NDArray[np.float64]]:
    """What slabs share, and the history; see `load_slab`."""
    found = _load(_folder(folder, epoch) / _COMMON, made_with)
    return found["common"], np.asarray(found["history"]).reshape(-1, 2)


def epochs_kept(folder: Path) -> list[int]:
    """Epochs that count, the newest first."""
    return [number for number in reversed(_epochs(folder)) if (_folder(folder, number) / _COMMON).is_dir()]


def _epochs(folder: Path) -> list[int]:
    found = (_EPOCH.fullmatch(item.name) for item in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(match[1]) for match in found if match)


def _folder(folder: Path, epoch: int) -> Path:
    return folder / f"epoch-{epoch:07d}"


def _name(slab: int) -> str:
    return f"slab-{slab:05d}"


def _save(folder: Path, value: Mapping[str, Any], made_with: Mapping[str, Any], info: Mapping[str, Any]) -> None:
    form, leaves = flatten(dict(value), "state")
    Checkpoints(folder, made_with=made_with, devices=True).save(leaves, {**info, "form": form})


def _load(folder: Path, made_with: Mapping[str, Any]) -> Any:
    found = Checkpoints(folder, made_with=made_with, devices=True).load()
    if found is None:
        raise Damaged(f"{folder} holds no state that is whole")
    return unflatten(found.info["form"], found.state)
