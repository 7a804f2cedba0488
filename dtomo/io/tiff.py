"""Scans as TIFF frames: a folder of one-frame files, or one file of many pages; flats and darks by name.

TIFF frames carry no angles: the user gives them.
"""

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from dtomo.errors import UserError
from dtomo.io.damage import DAMAGE, too_large
from dtomo.io.reading import Reading
from dtomo.io.sources import Source, check_frames, numeric_order
from dtomo.io.tiff_source import TiffSource

SUFFIXES = (".tif", ".tiff")
_FLAT = re.compile(r"flat|white|open_?beam", re.IGNORECASE)
_DARK = re.compile(r"dark", re.IGNORECASE)
_BROKEN_CHAIN = re.compile(r"invalid (next )?page ")


def is_tiff(head: bytes) -> bool:
    """Whether a file's first four bytes are those of a TIFF or BigTIFF."""
    return head[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def read_tiff(path: Path) -> Reading:
    """A folder of frames (flats and darks told by their names, there or beside it), or a file of many pages.

    Raises
    ------
    UserError
        No frames, frames of different shapes, colour pictures, or a file that is truncated.
    """
    if path.is_file():
        source = tiff_source(path)
        reading = Reading(path, "tiff", source, inputs=[path])
        folder = path.parent
    else:
        folder = path
        names = _frame_names(path)
        kinds = [_kind(name) for name in names]
        frames = [name for name, kind in zip(names, kinds) if kind is None]
        if not frames:
            raise UserError(f"{path} holds no TIFF frames that are projections{_hint(path)}")
        source = _folder_source(path, frames)
        reading = Reading(path, "tiff", source, inputs=[path])
        reading.warnings += _gaps(path, frames)
        for what in ("flats", "darks"):
            own = [name for name, kind in zip(names, kinds) if kind == what]
            if own:
                _put(reading, what, _folder_source(path, own), "by their names")
    reading.found["projections"] = source.location
    for place in (folder, folder.parent) if path.is_dir() else (folder,):
        _references_near(reading, place, path)
    return reading


def tiff_source(path: Path) -> TiffSource:
    """Frames of one TIFF file, or of all TIFF files of a folder in numeric order."""
    if path.is_dir():
        names = _frame_names(path)
        if not names:
            raise UserError(f"{path} holds no TIFF files{_hint(path)}")
        return _folder_source(path, names)
    shape, dtype, _ = _describe(path)
    return TiffSource.of(path.parent, [path.name], shape, dtype)


def _kind(name: str) -> str | None:
    return "flats" if _FLAT.search(name) else "darks" if _DARK.search(name) else None


def _frame_names(folder: Path) -> list[str]:
    try:
        names = [item.name for item in folder.iterdir() if item.suffix.lower() in SUFFIXES and item.is_file()]
    except OSError as error:
        raise UserError(f"{folder} cannot be listed ({error.strerror})") from error
    return sorted((name for name in names if not name.startswith(".")), key=numeric_order)


def _hint(folder: Path) -> str:
    """What else is in a folder without frames, in words."""
    inside = [(item, len(_frame_names(item))) for item in sorted(folder.iterdir()) if item.is_dir()]
    filled = [(item, count) for item, count in inside if count and _kind(item.name) is None]
    if filled:
        return f"; its folder {filled[0][0].name} holds {filled[0][1]}: open that"
    others = sorted(
        item.name for item in folder.iterdir() if item.suffix.lower() in (".h5", ".hdf5", ".nxs", ".mrc", ".zarr")
    )
    return f"; it holds {others[0]}: open that" if others else ""


@contextlib.contextmanager
def _listening() -> Iterator[list[str]]:
    """What tifffile logs meanwhile: it goes on after a page it cannot find, and only says so there."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("tifffile")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def _describe(path: Path) -> tuple[tuple[int, int, int], np.dtype[Any], int]:
    """Shape, dtype and size in bytes at least, of a TIFF file."""
    try:
        with _listening() as said, tifffile.TiffFile(path) as file:
            series = file.series[0]
            if any(_BROKEN_CHAIN.search(line) for line in said):
                raise UserError(f"{path} is truncated: its list of pages leads beyond its end; copy it again")
            shape, dtype = tuple(series.shape), np.dtype(series.dtype).newbyteorder("=")
            page = file.pages.first
            if page.samplesperpixel > 1 or page.photometric.name == "PALETTE":
                raise UserError(f"{path} is a colour picture; frames need one gray value per pixel")
            if len(file.series) > 1:
                raise UserError(f"{path} holds pages of different shapes; frames must be alike")
            needed = int(
                max(
                    (offset + count for offset, count in zip(page.dataoffsets, page.databytecounts)),
                    default=0,
                )
            )
            if series.dataoffset is not None:
                needed = max(needed, series.dataoffset + series.nbytes)
    except UserError:
        raise
    except MemoryError as error:
        raise too_large(path, error) from error
    except DAMAGE as error:
        raise UserError(f"{path} cannot be read as TIFF ({str(error).strip() or type(error).__name__})") from error
    shape = (1, *shape) if len(shape) == 2 else shape
    while len(shape) > 3 and 1 in shape[:-2]:
        shape = tuple(np.delete(shape, shape.index(1)).tolist())
    check_frames(shape, dtype, str(path))
    size = path.stat().st_size
    if size < needed:
        raise UserError(f"{path} is truncated: {size} bytes where its first frames need {needed}; copy it again")
    return shape, dtype, needed


def _folder_source(folder: Path, names: Sequence[str]) -> TiffSource:
    """One source of one-frame files; the first is read, the sizes of all are compared."""
    shape, dtype, _ = _describe(folder / names[0])
    if shape[0] != 1:
        if len(names) == 1:
            return TiffSource.of(folder, names, shape, dtype)
        raise UserError(
            f"{folder / names[0]} holds {shape[0]} pages but {folder} has {len(names)} TIFF files; "
            "give one file of many pages or a folder of files of one frame each"
        )
    first = (folder / names[0]).stat().st_size
    for name in names[1:]:
        size = (folder / name).stat().st_size
        if size != first:  # compressed, another frame shape, or truncated
            other, kind, _ = _describe(folder / name)
            if other != shape or kind != dtype:
                raise UserError(
                    f"{folder / name} has a frame of {kind} {other[1:]} where {names[0]} has {dtype} "
                    f"{shape[1:]}; all must be alike"
                )
    return TiffSource.of(folder, names, (len(names), *shape[1:]), dtype)


def _gaps(folder: Path, names: Sequence[str]) -> list[str]:
    """A warning where the numbers in the names leave some out."""
    found = [re.findall(r"\d+", Path(name).stem) for name in names]
    numbers = [int(parts[-1]) for parts in found if parts]
    if len(numbers) != len(names) or len(set(numbers)) != len(numbers):
        return []
    missing = (
        sorted(set(range(min(numbers), max(numbers) + 1)) - set(numbers)) if len(numbers) * 3 > np.ptp(numbers) else []
    )
    if not missing or np.gcd.reduce(np.diff(np.sort(numbers))) > 1:
        return []
    return [
        f"{folder}: {len(missing)} numbers are missing between {names[0]} and {names[-1]}, the first is {missing[0]}"
    ]


def _references_near(reading: Reading, folder: Path, opened: Path) -> None:
    """Flats and darks not found yet: folders or files of that name in `folder`, where their frames fit."""
    for what in ("flats", "darks"):
        if getattr(reading, what) is not None:
            continue
        items = [item for item in sorted(folder.iterdir(), key=lambda item: numeric_order(item.name)) if item != opened]
        items = [item for item in items if _kind(item.name) == what]
        folders = [item for item in items if item.is_dir() and _frame_names(item)]
        files = [item.name for item in items if item.is_file() and item.suffix.lower() in SUFFIXES]
        if not folders and not files:
            continue
        try:
            source = tiff_source(folders[0]) if folders else _folder_source(folder, files)
        except UserError as error:
            reading.warnings.append(f"{what} in {folder} are not used: {error}")
            continue
        if source.shape[1:] != reading.projections.shape[1:]:
            reading.warnings.append(
                f"{what} {source.location} are not used: frames of {source.shape[1:]}, not "
                f"{reading.projections.shape[1:]}"
            )
            continue
        _put(reading, what, source, "by their names")


def _put(reading: Reading, what: str, source: TiffSource, how: str) -> None:
    setattr(reading, what, source)
    reading.found[what] = f"{source.location} ({how})"
    names = source.names
    reading.inputs += [source.folder / name for name in names[:1]] if len(names) == 1 else [source.folder]


def nearby_angle_files(path: Path) -> list[Path]:
    """Files beside or in a scan that look like lists of angles, for messages."""
    folders = [path, path.parent] if path.is_dir() else [path.parent]
    found = []
    for folder in folders:
        for item in sorted(folder.iterdir()):
            listed = item.suffix.lower() in (".tlt", ".rawtlt")
            named = re.search(r"angle|theta", item.name, re.IGNORECASE) and item.suffix.lower() in (
                ".txt",
                ".csv",
                ".npy",
            )
            if item.is_file() and (listed or named):
                found.append(item)
    return found


def reference_source(path: Path) -> Source:
    """Flats or darks from a TIFF file or folder the user names."""
    return tiff_source(path)
