"""Damaged files: what libraries raise over them, turned into one sentence."""

import contextlib
import struct
import zlib
from collections.abc import Iterator

import tifffile

from dtomo.errors import UserError

DAMAGE = (
    *(OSError, ValueError, RuntimeError, LookupError, ArithmeticError, AttributeError, TypeError, MemoryError),
    *(struct.error, zlib.error, tifffile.TiffFileError),
)
"""What the libraries raise when they trip over a damaged file."""


@contextlib.contextmanager
def explained(location: str) -> Iterator[None]:
    """Turn what libraries raise over a damaged file into one sentence."""
    try:
        yield
    except UserError:
        raise
    except DAMAGE as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(f"{location} cannot be read ({reason}); the file is missing, truncated or damaged") from error
