"""Small text files of other programs: read whole, or refused by a sentence."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

from dtomo.errors import UserError, shown

MOST_BYTES = 2**26
"""Larger files are no lists of views."""


def small_text(path: Path) -> str:
    """The text of a file; bytes that are not UTF-8 are taken as Latin-1 (names of users and folders).

    Raises
    ------
    UserError
        Missing, too large, or not text.
    """
    content = small_bytes(path)
    if b"\0" in content:
        raise UserError(f"{path} is not a text file: it holds bytes of value 0")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def small_bytes(path: Path) -> bytes:
    """The content of a file; UserError if it is missing or too large."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise UserError(f"{path} has more than {MOST_BYTES} bytes, which no list of views has")
    return content


@contextlib.contextmanager
def of_file(path: Path) -> Iterator[None]:
    """What is wrong with values that stand in a file is said with its name."""
    try:
        yield
    except UserError as error:
        raise error if path.name in str(error) else UserError(f"{path}: {error}") from error


def number(text: str, where: str) -> float:
    """A finite number; UserError naming `where`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{where}: {shown(repr(text), 40)} is not a finite number")
    return value
