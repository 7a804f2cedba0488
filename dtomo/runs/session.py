"""A run and its user: lines on the terminal, what it computes on, how its folder begins, how Ctrl-C leaves it."""

import contextlib
import dataclasses
import errno
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtomo import __version__
from dtomo.distributed import clusters
from dtomo.distributed.cuda import device_share
from dtomo.errors import StoppedError, UserError, shown
from dtomo.io.output import clear, mark_folder, progress_folder
from dtomo.io.progress import Progress
from dtomo.memory import peak_memory
from dtomo.runs import record
from dtomo.settings import RunSettings

if TYPE_CHECKING:
    from distributed import Client

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


def check_folder_name(output: Path) -> None:
    """Refuse the name of a file for results that are a folder (UserError)."""
    if output.suffix:
        raise UserError(f"{output}: results are a folder of files, so give a name without {output.suffix}")


def begin_folder(settings: RunSettings, inputs: list[dict[str, Any]], kind: str, *, resumed: bool) -> None:
    """From here on the folder of results counts as unfinished, with its settings beside it.

    Parameters
    ----------
    settings, inputs
        Of the run; see `dtomo.runs.record`.
    kind
        Of the results, as the mark in the folder says.
    resumed
        Whether it goes on with what is there.
    """
    output = settings.output
    progress = Progress(progress_folder(output))
    if not resumed and output.is_dir():
        clear(output)
    progress.start(output)
    mark_folder(output, {"version": __version__, "kind": kind})
    if not resumed:
        record.write_run(output, settings, inputs, {})
    progress.save_settings({"settings": settings.that_decide_the_result()})


def memory_peaks(client: "Client | None") -> dict[str, Any]:
    """The most memory that each worker and this process had, in bytes, for the summary of a run."""
    found = {} if client is None else client.run(peak_memory, on_error="ignore")
    return {"peak_memory": {str(worker): peak for worker, peak in found.items()}, "client_peak_memory": peak_memory()}


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


@contextlib.contextmanager
def part_way(output: Path) -> Iterator[None]:
    """The output has begun: a `UserError` or `OSError` from here on has stopped the run part-way (`StoppedError`)."""
    unfinished = f"{output} is unfinished: put that right and go on with --resume, or start again with --overwrite"
    try:
        yield
    except UserError as error:  # data that turn out to be damaged when all of them are read
        raise StoppedError(f"{error}; {unfinished}") from error
    except OSError as error:
        if error.errno == errno.EPIPE:  # whoever read what is printed has gone
            raise
        named = "" if error.filename is None else f"{shown(error.filename, 200)}: "
        raise StoppedError(f"{named}{error.strerror or error}; {unfinished}") from error
