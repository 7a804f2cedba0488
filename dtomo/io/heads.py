"""The first bytes of an input, which say what it is; pipes and devices are refused before they are waited for."""

import stat
from pathlib import Path

from dtomo.errors import UserError, shown


def refuse_missing(path: Path, what: str = "") -> None:
    """Refuse a path at which nothing lies that can be opened and read twice.

    Parameters
    ----------
    what
        Said behind the name, such as " for the flats".

    Raises
    ------
    UserError
        Nothing there, a name that cannot be, a folder that may not be entered, a pipe, a socket or a device.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"there is no file or folder {path}{what}") from error
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{shown(path, 200)}{what} cannot be opened ({reason})") from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{path}{what} is a pipe, a socket or a device; store its content in a file first")


def head_of(path: Path, count: int = 1024) -> bytes:
    """The first `count` bytes of a file.

    Raises
    ------
    UserError
        As `refuse_missing`, and a file that must not be read or is empty.
    """
    refuse_missing(path)
    try:
        with path.open("rb") as file:
            head = file.read(count)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error
    if not head:
        raise UserError(f"{path} is empty (0 bytes)")
    return head
