"""Damaged and oversized files: what libraries raise over them, turned into one sentence."""

import contextlib
import logging
import struct
import zipfile
import zlib
from collections.abc import Iterator

import psutil
import tifffile

from dtomo.errors import UserError

DAMAGE = (
    *(OSError, ValueError, RuntimeError, LookupError, ArithmeticError, AttributeError, TypeError),
    *(struct.error, zlib.error, tifffile.TiffFileError, zipfile.BadZipFile, EOFError),
)
"""What the libraries raise when they trip over a damaged file; MemoryError is another matter."""

logging.getLogger("tifffile").addHandler(logging.NullHandler())  # it logs to stderr what is raised anyhow


class TooLargeError(UserError, MemoryError):
    """More was asked for than the memory holds."""


def too_large(location: object, error: MemoryError) -> TooLargeError:
    """What a library found no memory for, in one sentence; NumPy says how much that was."""
    reason = str(error).strip().split("\n")[0] or "more memory was asked for than there is"
    return TooLargeError(f"{location} does not fit into memory ({reason}); read less of it, or find more memory")


def refuse_too_large(location: str, shape: tuple[int, ...], itemsize: int) -> None:
    """Refuse what this computer could never hold: the system would hand it out and then kill the process.

    Raises
    ------
    TooLargeError
        An array of that shape is larger than all of the memory.
    """
    size = itemsize
    for length in shape:
        size *= length
    if size < 2**26:
        return
    total = psutil.virtual_memory().total
    if size > total:
        raise TooLargeError(
            f"{location}: reading {' × '.join(map(str, shape))} values takes {size / 1e9:.3g} GB, which does not fit "
            f"into the {total / 1e9:.3g} GB of memory here; read fewer frames, rows or columns"
        )


@contextlib.contextmanager
def explained(location: str) -> Iterator[None]:
    """Turn what libraries raise over a damaged file, or one too large, into one sentence."""
    try:
        yield
    except UserError:
        raise
    except MemoryError as error:
        raise too_large(location, error) from error
    except DAMAGE as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(f"{location} cannot be read ({reason}); the file is missing, truncated or damaged") from error
