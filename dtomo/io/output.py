"""Whether an output may be written, asked before anything is touched; and disk errors in plain words."""

import contextlib
import errno
import json
import os
import re
import resource
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py

from dtomo.errors import StoppedError, UserError, shown
from dtomo.io.em import looks_like_em
from dtomo.io.lock import refuse_if_locked, release_lock

PROGRESS = ".dtomo"
"""Name (for folders) or suffix (for files) of the folder that marks an output as unfinished."""
MARK = "dtomo.json"
"""File in a folder that dtomo wrote and that is no store."""
_PROGRESS_FILE = re.compile(
    r"\.?(settings|lock|slab-\d+-\d+)\.json(\.\d+)?|volume\.part|checkpoints-\d+-\d+|coarse-\d+-\d+|staged|\.nfs\w+"
)


def progress_folder(path: Path) -> Path:
    """Where an unfinished output keeps its settings and its list of slabs."""
    if _is_store_name(path):
        return path / PROGRESS
    return path.with_name(path.name + PROGRESS)


def _is_store_name(path: Path) -> bool:
    """Whether an output of this name is a folder: a store, or one of a run that writes many files; others are files."""
    return path.name.lower().endswith(".zarr") or not path.suffix


def check_output(
    path: str | os.PathLike[str],
    *,
    inputs: Iterable[str | os.PathLike[str]] = (),
    overwrite: bool = False,
    resume: bool = False,
    bytes_needed: int = 0,
) -> Path:
    """Refuse an output that must not or cannot be written; touches nothing.

    Returns
    -------
    Path
        The path with links and ``..`` resolved.

    Raises
    ------
    UserError
        It exists (without `overwrite` or `resume`), is an input or holds one, is not a dtomo output (with
        `overwrite`), is being written by another process, its folder is missing or not writable, or the disk
        has less than `bytes_needed` free.
    """
    asked = Path(path)
    if not asked.name or asked.name in (".", ".."):
        raise UserError(f"{path} is not a name for an output; give a file or store such as volume.zarr")
    target = Path(os.path.realpath(asked))
    _check_inputs(asked, target, [Path(os.path.realpath(item)) for item in inputs])
    parent = target.parent
    if not parent.is_dir():
        raise UserError(f"the folder {parent} for the output does not exist; create it first")
    present = target.exists() or os.path.lexists(target)
    if target.is_dir() and not _is_store_name(target):
        raise UserError(f"{asked} is a folder, but the output is one file; remove the folder or give another name")
    unfinished = os.path.lexists(progress_folder(target))
    if unfinished:
        _check_progress(asked, progress_folder(target))
    if present or unfinished:
        _check_existing(asked, target, present, unfinished, overwrite, resume)
    _check_writable(parent if not target.is_dir() else target, asked)
    _check_space(target, bytes_needed, overwrite, resume)
    return target


def _check_inputs(asked: Path, target: Path, inputs: list[Path]) -> None:
    for item in inputs:
        same = item.exists() and target.exists() and os.path.samefile(item, target)
        if item == target or same:
            raise UserError(f"{asked} is the input itself; give the output another name")
        if target in item.parents:
            raise UserError(f"{asked} is a folder that holds the input {item}; give the output another name")
        inside = item in target.parents and item.is_dir()
        if inside and (_is_store(item) or target.suffix.lower() in (".tif", ".tiff")):
            raise UserError(f"{asked} lies inside the input {item}; write the output elsewhere")


def _is_store(path: Path) -> bool:
    return any((path / name).is_file() for name in ("zarr.json", ".zgroup", ".zarray"))


def _check_progress(asked: Path, folder: Path) -> None:
    """Refuse what another run is writing, and what only bears the name of a progress folder."""
    strange = sorted(item.name for item in folder.iterdir() if not _is_ours(item)) if folder.is_dir() else []
    if strange and (folder / "settings.json").is_file():
        raise UserError(
            f"the progress of {asked} lies in {folder}, which also holds {shown(strange[0])}, not written by dtomo; "
            "move that away"
        )
    if strange or not folder.is_dir():
        raise UserError(f"{asked} needs the name {folder} for its progress, which is in use; give another name")
    refuse_if_locked(folder, asked)


def _is_ours(item: Path) -> bool:
    return _PROGRESS_FILE.fullmatch(item.name) is not None


def _check_existing(asked: Path, target: Path, present: bool, unfinished: bool, overwrite: bool, resume: bool) -> None:
    if resume and unfinished:
        return
    if target.is_dir() and not any(target.iterdir()):
        return
    if not overwrite:
        if resume:
            raise UserError(
                f"{asked} exists and is not unfinished, so there is nothing to resume; use --overwrite to redo it"
            )
        if unfinished:
            raise UserError(f"{asked} exists and is unfinished; finish it with --resume or replace it with --overwrite")
        raise UserError(f"{asked} exists; give another name, or replace it with --overwrite")
    if present and not is_output(target):
        kind = "folder" if target.is_dir() else "file"
        raise UserError(
            f"{asked} is a {kind} that dtomo did not write, so it is not overwritten; remove it or give another name"
        )


def is_output(path: Path) -> bool:
    """Whether something may be replaced: a store dtomo wrote, or a TIFF, MRC, EM or HDF5 file by its content."""
    if path.is_dir():
        return _written_here(path)
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        head = file.read(1024)
    tiff = head[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
    return tiff or head[208:211] == b"MAP" or bool(h5py.is_hdf5(path)) or looks_like_em(path)


def mark_folder(path: Path, attributes: dict[str, Any]) -> None:
    """Note in a folder that is no store that dtomo writes it."""
    (path / MARK).write_text(json.dumps({"attributes": {"dtomo": attributes}}) + "\n", encoding="utf-8")


def _written_here(path: Path) -> bool:
    if (path / PROGRESS).is_dir():
        return True
    mark = path / ("zarr.json" if _is_store(path) else MARK)
    try:
        attributes = json.loads(mark.read_text())["attributes"]
        return "dtomo" in attributes
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _check_writable(folder: Path, asked: Path) -> None:
    """Open a file without a name in the folder: the one sure test on read-only and networked file systems."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        raise UserError(f"{asked} cannot be written: {folder} refuses new files ({error.strerror})") from error


def _check_space(target: Path, needed: int, overwrite: bool, resume: bool) -> None:
    if not needed:
        return
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if needed > most >= 0 and not _is_store_name(target):  # HDF5 does not survive it
        raise UserError(
            f"{target} needs {needed / 1e9:.3g} GB but files here may have {most / 1e9:.3g} GB; raise the limit "
            "(ulimit -f), or write a store, .zarr"
        )
    free = shutil.disk_usage(target.parent).free
    if overwrite or resume:  # what is removed first, or filled up; a whole file stays until it is replaced
        free += disk_size(target if _is_store_name(target) else progress_folder(target))
    if needed > free:
        raise UserError(
            f"{target} needs {needed / 1e9:.3g} GB but {target.parent} has {free / 1e9:.3g} GB free; "
            "free some space, write elsewhere, or reconstruct fewer rows or with binning"
        )


def disk_size(path: Path) -> int:
    """Bytes a file or folder takes on disk (holes not counted)."""
    items = [path] if path.is_file() else path.rglob("*") if path.is_dir() else []
    return sum(item.lstat().st_blocks * 512 for item in items if not item.is_symlink())


def clear(path: Path) -> None:
    """Remove an output that `check_output` let pass, and what marks it unfinished; not what a run writes now."""
    refuse_if_locked(progress_folder(path), path)
    for item in (path, progress_folder(path)):
        if item.is_dir():
            if item == path and any(item.iterdir()) and not is_output(path):
                raise UserError(f"{path} is a folder that dtomo did not write, so it is not removed")
            shutil.rmtree(item)
        elif item.exists():
            item.unlink()


@contextlib.contextmanager
def unlocked_at_end(path: str | os.PathLike[str]) -> Iterator[None]:
    """However this ends, other processes may resume or replace the output then."""
    try:
        yield
    finally:
        release_lock(progress_folder(Path(os.path.realpath(path))))


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A file beside `path` to write into: it takes its place once it is whole, and goes where that fails.

    Raises
    ------
    UserError
        As `writing`.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with writing(path):
            yield part
            os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: Path, resumable: bool = False) -> Iterator[None]:
    """Full disks and lost permissions as one sentence.

    Raises
    ------
    StoppedError
        If `resumable`: the run can go on with ``--resume`` once there is room.
    UserError
        Otherwise.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what = f"the disk is full while writing {path}"
        elif error.errno == errno.EFBIG:
            what = f"{path} grows larger than files may be here (see ulimit -f)"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EIO):
            what = f"writing {path} failed ({error.strerror})"
        else:
            raise
        if resumable:
            raise StoppedError(f"{what}; what is done is kept: put that right and go on with --resume") from error
        raise UserError(f"{what}; put that right or write elsewhere") from error
