"""A run and its user: lines on the terminal, what it computes on, and how Ctrl-C leaves it."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from dtomo.distributed import clusters
from dtomo.distributed.cuda import device_share
from dtomo.errors import StoppedError
from dtomo.settings import RunSettings

Say = Callable[[str], None]


class Interrupted(StoppedError):
    """The user pressed Ctrl-C; the output can be resumed."""

    exit_code = 130


def speaker(quiet: bool) -> Say:
    """Prints lines for the user on stderr, or nothing."""
    return _silent if quiet else _say


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _silent(line: str) -> None:
    """Say nothing."""


def resources_of(settings: RunSettings, say: Say) -> clusters.Resources:
    """What the settings say of the cluster, and whether its workers compute on devices."""
    wanted = clusters.resources(
        settings.cluster,
        workers=settings.workers,
        threads=settings.threads,
        memory=settings.memory,
        devices=settings.devices,
        workers_per_device=settings.workers_per_device,
        device_memory=settings.device_memory,
        options=settings.batch_options(),
    )
    if wanted.devices:
        wanted = dataclasses.replace(wanted, device_share=device_share(wanted))
    if wanted.devices and wanted.device_share is None:
        say("note: CuPy and a driver are not both here, so workers own their devices but compute on the CPU")
    return wanted


@contextlib.contextmanager
def resumable(output: Path) -> Iterator[None]:
    """Ctrl-C leaves the output marked unfinished, and the user is told how to finish it."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"interrupted; what is done is kept in {output}: the same command with --resume finishes it"
        ) from error
    except MemoryError as error:
        raise StoppedError(
            f"this process found no memory; what is done is kept in {output}: go on with --resume"
        ) from error
