"""HDF5 files opened safely for reading, written whole, and single values looked up in them."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401  (registers the compression filters beamlines use)
import numpy as np

from dtomo.errors import UserError
from dtomo.io.damage import DAMAGE, too_large
from dtomo.io.heads import refuse_missing
from dtomo.io.output import replaced

_DEEPEST = 8
"""Virtual datasets made of virtual datasets."""
_PARTS = 1024
"""Files of a virtual dataset that are looked into."""


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """A file open for reading, without locks, so that other programs may hold it open too.

    No chunk cache: bands of rows are read once, and HDF5 then fetches from an uncompressed chunk only the
    rows asked for.

    Raises
    ------
    UserError
        The file is missing, not HDF5, truncated, damaged, or must not be read.
    """
    refuse_missing(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder, expected an HDF5 file")
    try:
        file = _open_unlocked(path)
    except PermissionError as error:
        raise UserError(f"{path} may not be read by this user; change its permissions") from error
    except OSError as error:
        raise UserError(f"{path} cannot be opened as HDF5 ({_reason(error)}); copy it again or convert it") from error
    try:
        yield file
    except UserError:
        raise
    except MemoryError as error:
        raise too_large(path, error) from error
    except DAMAGE as error:  # what h5py raises where the structure is damaged
        raise UserError(f"{path} cannot be read as HDF5 ({_reason(error)}); it is damaged: copy it again") from error
    finally:
        file.close()


@contextlib.contextmanager
def new_hdf5(target: Path) -> Iterator[h5py.File]:
    """A new HDF5 file that appears under its name only when whole; it replaces what is there.

    HDF5 writes what it has buffered when it closes a dataset or file; where that fails the error is lost,
    the file stays half closed, and the process crashes later. So nothing may be left in buffers (flush after
    every dataset), and after any error the file's blocks are given back before it is closed: it is thrown away
    anyhow.

    Raises
    ------
    UserError
        The disk is full or refuses the file.
    """
    with replaced(target) as part, _of_the_system(), h5py.File(part, "w", locking=False, rdcc_nbytes=0) as file:
        try:
            yield file
        except BaseException:
            os.truncate(part, 0)
            raise


@contextlib.contextmanager
def _of_the_system() -> Iterator[None]:
    """Errors that are the system's, of whichever class h5py makes of them, as OSError with their number."""
    try:
        yield
    except RuntimeError as error:
        number = re.search(r"errno = (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def _open_unlocked(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "r", locking=False, rdcc_nbytes=0)
    except OSError as error:
        if "locking flag" not in str(error):
            raise
    return h5py.File(path, "r", rdcc_nbytes=0)  # open in this process already, with locks: as there, then


def _reason(error: Exception) -> str:
    text = str(error).strip("'\"")
    if "truncated" in text:
        return "the file is truncated: " + text[text.index("truncated") :].rstrip(")")
    if "signature not found" in text:
        return "it is not an HDF5 file"
    return text.strip().split("\n")[0]


def node(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset | None:
    """The group or dataset `name`, or None if it is absent or behind a broken link."""
    try:
        found = group.get(name)
    except (KeyError, OSError, RuntimeError):
        return None
    if isinstance(found, h5py.Dataset):
        refuse_foreign_values(found)
    return found if isinstance(found, h5py.Group | h5py.Dataset) else None


def refuse_foreign_values(data: h5py.Dataset) -> None:
    """Refuse a dataset whose values are bytes of another file, or that is made of itself.

    HDF5 can take values from any file that this user may read, and does not survive a virtual dataset that leads back
    to itself. Virtual datasets and links to datasets of other HDF5 files pass.

    Raises
    ------
    UserError
        Values in another file, or a dataset that leads back to itself.
    """
    if data.external:
        raise UserError(
            f"{data.file.filename}:{data.name} keeps its values in {data.external[0][0]}, which is no HDF5; "
            "h5repack copies them into one file"
        )
    if data.is_virtual:
        _refuse_circles(data, ())


def _refuse_circles(data: h5py.Dataset, above: tuple[tuple[str, str], ...]) -> None:
    here = (os.path.realpath(data.file.filename), data.name)
    if here in above or len(above) >= _DEEPEST:
        raise UserError(f"{here[0]}:{here[1]} is a virtual dataset made of itself, or of too many others; repair it")
    parts = dict.fromkeys((part.file_name, part.dset_name) for part in data.virtual_sources())
    for name, inside in list(parts)[:_PARTS]:
        with contextlib.ExitStack() as stack:
            file = data.file
            if name != ".":
                path = Path(os.path.dirname(here[0]), name)
                if not path.is_file() or not h5py.is_hdf5(path):
                    continue
                file = stack.enter_context(_open_unlocked(path))
            found = file.get(inside)
            if isinstance(found, h5py.Dataset) and found.is_virtual:
                _refuse_circles(found, (*above, here))


def text_attribute(item: h5py.Group | h5py.Dataset, name: str) -> str | None:
    """An attribute as text (the first, if it is a list), or None."""
    try:
        value = item.attrs.get(name)
    except (OSError, RuntimeError, TypeError):
        return None
    if isinstance(value, np.ndarray):
        value = value.flat[0] if value.size else None
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def number(group: h5py.Group, name: str) -> tuple[float, str | None] | None:
    """A single number and its unit; None if absent, not a number, or different values along an array."""
    data = node(group, name)
    if not isinstance(data, h5py.Dataset) or data.dtype.kind not in "uif" or not data.size or data.size > 10**6:
        return None
    try:
        values = np.asarray(data[()], np.float64).reshape(-1)
    except (OSError, RuntimeError):
        return None
    if not np.isfinite(values).all() or np.ptp(values) > 1e-6 * abs(values[0]):
        return None
    return float(values[0]), text_attribute(data, "units") or text_attribute(data, "unit")
