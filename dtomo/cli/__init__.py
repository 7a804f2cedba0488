"""The command line: `main` is the entry point, one module per command."""

import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 done; 2 bad input or refused, nothing touched; 3 stopped part-way, resumable; 130 interrupted, by Ctrl-C or
    by the SIGTERM of a batch system. ``--debug`` anywhere shows tracebacks and the log of the cluster.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--debug" in words:
        words.remove("--debug")
        os.environ["DTOMO_DEBUG"] = "1"
    for stream in (sys.stdout, sys.stderr):  # names and signs that the terminal cannot show end no command
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    unsaid = next((word for word in words if not _is_text(word)), None)
    if unsaid is not None:  # settings, metadata and messages to workers are UTF-8
        print(f"dtomo: the name {unsaid!r} is not UTF-8, as the other files of a run are; rename it", file=sys.stderr)
        return 2
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        from dtomo.cli.commands import app

        app(args=words, prog_name="dtomo")
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
