"""Who is writing an unfinished output: a small file that keeps two runs out of one output.

It lies in the progress folder and names the process by host, number and time of start, so that the number of
a process that has died and was given to another one is not mistaken for a run. A killed run leaves its file
behind; the next run on the same host takes it over.
"""

import contextlib
import dataclasses
import json
import os
import socket
from pathlib import Path

import psutil

from dtomo.errors import UserError

LOCK = "lock.json"
"""Name of the file in the progress folder."""

_SAME_START = 5.0
"""Seconds by which two readings of one process's start may differ: the clock of the host may be set."""


@dataclasses.dataclass(frozen=True)
class Owner:
    """A process: its host, its number there, when it was started (seconds since 1970), and its Slurm job, if any."""

    host: str
    pid: int
    started: float
    job: str | None = None

    @classmethod
    def this_process(cls) -> "Owner":
        """The process that asks."""
        job = os.environ.get("SLURM_JOB_ID")
        return cls(socket.gethostname(), os.getpid(), psutil.Process().create_time(), job)

    def is_here(self) -> bool:
        """Whether it is, or was, on this host."""
        return self.host == socket.gethostname()

    def is_this_process(self) -> bool:
        """Whether it is the process that asks."""
        return self.pid == os.getpid() and self.is_here() and self.is_alive()

    def is_alive(self) -> bool:
        """Whether it still runs; only to be asked on its own host."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < _SAME_START
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:  # somebody's, so the number is in use
            return True


def refuse_if_locked(folder: Path, output: Path) -> None:
    """Let pass an output that no other process writes.

    Parameters
    ----------
    folder
        The progress folder of the output.
    output
        The output as the user named it, for the message.

    Raises
    ------
    UserError
        Another process is writing it, or may be: one on another host, or one that cannot be told.
    """
    lock = folder / LOCK
    owner = _owner(lock, output)
    if owner is None or owner.is_this_process():
        return
    if not owner.is_here():
        if _is_of_an_ended_job(owner, lock):
            return
        raise UserError(
            f"{output} is being written by a run on {owner.host} (process {owner.pid}); if that run is dead, "
            f"remove {lock} and try again"
        )
    if owner.is_alive():
        raise UserError(
            f"{output} is being written by another run (process {owner.pid}); wait for its end or stop it, "
            "or give another name"
        )


def _is_of_an_ended_job(owner: Owner, lock: Path) -> bool:
    """Whether a process on another host belonged to a job of this user that Slurm has ended, perhaps by killing it."""
    from dtomo.distributed.jobs import ENDED, slurm_states

    if owner.job is None or lock.stat().st_uid != os.getuid():
        return False
    states = slurm_states([owner.job])
    return states is not None and states[owner.job].state in ENDED


def take_lock(folder: Path, output: Path) -> None:
    """Name this process as the one that writes an output; `folder` must exist.

    Raises
    ------
    UserError
        Another process writes it; see `refuse_if_locked`.
    OSError
        The file cannot be written.
    """
    lock = folder / LOCK
    part = folder / f".{LOCK}.{os.getpid()}"
    part.write_text(json.dumps(dataclasses.asdict(Owner.this_process())))
    try:
        os.link(part, lock)  # fails if it is there: of two runs that begin at once, one is refused
    except OSError:  # it is there, or the file system has no links
        refuse_if_locked(folder, output)
        os.replace(part, lock)
    finally:
        part.unlink(missing_ok=True)


def release_lock(folder: Path) -> None:
    """Take back what `take_lock` wrote; the lock of another process stays."""
    with contextlib.suppress(OSError, UserError):  # what cannot be removed counts no more once this process ends
        owner = _owner(folder / LOCK, folder)
        if owner is not None and owner.is_this_process():
            (folder / LOCK).unlink()


def _owner(lock: Path, output: Path) -> Owner | None:
    try:
        found = json.loads(lock.read_text())
        job = found.get("job")
        return Owner(str(found["host"]), int(found["pid"]), float(found["started"]), None if job is None else str(job))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{lock} cannot be read, so a run may be writing {output}; if none does, remove that file and try again"
        ) from error
