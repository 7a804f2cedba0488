"""Keeps as many jobs of workers in a batch system as were asked for, until the work is done.

dask-jobqueue submits jobs and forgets them: one that is cancelled, that reaches its walltime, or whose workers retire
before it, is not replaced. `Jobs` looks after them from a thread of the process that runs the work.
"""

import dataclasses
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dtomo.distributed.batch import JOB_NAME
from dtomo.distributed.reach import MARK
from dtomo.errors import DtomoError, StoppedError, UserError, shown

if TYPE_CHECKING:
    from dask_jobqueue import JobQueueCluster
    from distributed import Client

POLL = 2.0
"""Seconds between two looks at the workers."""
ASK = 10.0
"""Seconds between two questions to the batch system, which is asked only while a job has no worker."""
SILENT = 10.0
"""Seconds without a worker before it is said that jobs wait."""
GONE = 20.0
"""Seconds without a worker after which a job is over, where the batch system cannot be asked."""
BARREN = 3
"""Jobs in a row that may end without any worker before no more are submitted."""
PAUSE = 15.0
"""Seconds until the next try, times the tries that have failed."""
ANSWER = 30.0
"""Seconds that the batch system may take to answer."""
SETTLE = 6.0
"""Seconds within which the batch system knows that a job has ended."""

NOT_ITS_FAULT = frozenset(
    ["BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "NODE_FAIL", "PREEMPTED", "REVOKED", "TIMEOUT"]
)
"""Ends of a job that no task is to be blamed for."""
FORGOTTEN = "UNKNOWN"
ENDED = NOT_ITS_FAULT | {"FAILED", "OUT_OF_MEMORY", FORGOTTEN}


class JobState(NamedTuple):
    """What a batch system says of a job: its state in Slurm's words, and why it waits."""

    state: str
    reason: str


States = Callable[[Iterable[str]], dict[str, JobState] | None]
"""States of jobs by their ids; None if the batch system does not answer."""


def slurm_states(identifiers: Iterable[str]) -> dict[str, JobState] | None:
    """States of jobs as ``squeue`` knows them; those that it has forgotten are `FORGOTTEN`."""
    command = ["squeue", "--noheader", "--states=all", f"--user={os.getuid()}", "--format=%i|%T|%r"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    rows = [line.split("|", 2) for line in done.stdout.splitlines() if line.count("|") >= 2]
    listed = {row[0]: JobState(row[1], row[2]) for row in rows}
    return {one: listed.get(one, JobState(FORGOTTEN, "")) for one in identifiers}


@dataclasses.dataclass
class _Seen:
    """What is known of a job: when it was first looked at, when it last had a worker, if ever."""

    since: float
    last: float | None = None


class Jobs:
    """The jobs of a cluster, replaced when they end.

    Parameters
    ----------
    cluster
        Whose jobs they are.
    count
        How many there should be at any time.
    logs
        Folder that jobs write what they say into.
    states
        Asks the batch system, or None if it cannot be asked.
    say
        Called with lines for the user.
    """

    def __init__(
        self,
        cluster: "JobQueueCluster",
        count: int,
        logs: Path,
        states: States | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._cluster, self._count, self._logs, self._states = cluster, count, logs, states
        self._say = say or (lambda line: None)
        self._seen: dict[str, _Seen] = {}
        self._submitted: set[str] = set()
        self._job_of_worker: dict[str, str] = {}
        self._known: dict[str, JobState] = {}
        self._asked = 0.0
        self._barren: list[str] = []
        self._not_before = 0.0
        self._had_workers = False
        self._workers = 0
        self._said, self._waiting_since = "", time.monotonic()
        self._problem: str | None = None
        self._change = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dtomo-jobs", daemon=True)

    def start(self) -> None:
        """Submit the jobs and look after them from now on."""
        self._cluster.scale(jobs=self._count)
        self._thread.start()

    def stop(self) -> None:
        """Replace no more jobs."""
        self._stopping.set()
        with self._change:
            self._change.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=60)

    def remove_logs(self) -> None:
        """Remove what the jobs of this cluster wrote."""
        for identifier in self._submitted:
            for path in self._logs.glob(f"{JOB_NAME}-{identifier}.*"):
                path.unlink(missing_ok=True)

    @property
    def identifiers(self) -> list[str]:
        """The jobs that were submitted and not replaced yet."""
        return [job.job_id for job in self._snapshot()[0].values() if job.job_id]

    def wait(self, error: type[DtomoError] = StoppedError) -> None:
        """Wait for a worker, however long the batch system lets jobs wait.

        Raises
        ------
        DtomoError
            Of the kind `error`: no job brings a worker, with the reason.
        """
        with self._change:
            while not self._workers:
                if self._problem is not None:
                    raise error(self._problem)
                if self._stopping.is_set():
                    raise error("the jobs were given up")
                self._change.wait(timeout=1.0)

    def excused(self, address: str, name: str) -> bool:
        """Whether a worker is gone because its time was over or its job was taken away, and not for its task.

        Parameters
        ----------
        address, name
            Of the worker, as the scheduler knew them.
        """
        if self._retired(address):
            return True
        identifier = self._job_of_worker.get(address)
        if identifier is None:
            owners = [job.job_id for job_name, job in self._snapshot()[0].items() if _belongs(name, job_name, job)]
            identifier = owners[0] if owners else None
        if identifier is None or self._states is None:
            return False
        until = time.monotonic() + SETTLE
        while True:
            known = self._states([identifier])
            state = "" if known is None else known[identifier].state
            if state in ENDED and state != FORGOTTEN:
                return state in NOT_ITS_FAULT
            if time.monotonic() > until:
                return False
            time.sleep(1.0)

    def _retired(self, address: str) -> bool:
        async def events() -> list[dict[str, Any]]:
            return [message for _, message in self._cluster.scheduler.get_events(address) if isinstance(message, dict)]

        return any(
            message.get("action") == "closing-worker" and "lifetime" in str(message.get("reason"))
            for message in self._cluster.sync(events)
        )

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._look()
            self._stopping.wait(POLL)

    def _snapshot(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Jobs by name, and names of the present workers by address; taken on the cluster's own thread."""

        async def copy() -> tuple[dict[str, Any], dict[str, str]]:
            present = self._cluster.scheduler.workers.values()
            return dict(self._cluster.workers), {str(worker.address): str(worker.name) for worker in present}

        found: tuple[dict[str, Any], dict[str, str]] = self._cluster.sync(copy)
        return found

    def _look(self) -> None:
        """One look: note who is there, ask the batch system about the others, replace those that have ended."""
        now = time.monotonic()
        jobs, present = self._snapshot()
        self._submitted.update(job.job_id for job in jobs.values() if job.job_id)
        idle = {}
        for name, job in jobs.items():
            record = self._seen.setdefault(job.job_id or name, _Seen(now))
            mine = [address for address, worker in present.items() if _belongs(worker, name, job)]
            if mine:
                record.last, self._barren, self._had_workers = now, [], True
                self._job_of_worker.update(dict.fromkeys(mine, job.job_id))
            else:
                idle[name] = job
        known = self._ask(now, [job.job_id for job in idle.values() if job.job_id])
        over = {
            name: job
            for name, job in idle.items()
            if self._is_over(job.job_id or name, job, known, now) or self._has_retired(job)
        }
        missing = self._count - len(jobs)
        with self._change:
            self._workers = len(present)
            self._change.notify_all()
        if over or missing > 0:
            self._replace(over, now)
        self._report(present, known, now)

    def _ask(self, now: float, identifiers: list[str]) -> dict[str, JobState] | None:
        """States of the jobs without workers, asked for not too often; None if not known."""
        if self._states is None or not identifiers:
            return None
        young = any(now - self._seen[one].since < 60 for one in identifiers)
        if now - self._asked >= (POLL if young else ASK):
            self._asked = now
            answer = self._states(identifiers)
            if answer is None:
                return None
            self._known = answer
        return self._known

    def _is_over(self, key: str, job: Any, known: dict[str, JobState] | None, now: float) -> bool:
        record = self._seen[key]
        if job.job_id is None:
            return getattr(job, "refusal", None) is not None
        if self._states is not None:
            state = (known or {}).get(job.job_id)
            # a job just submitted may not be listed yet
            return state is not None and state.state in ENDED and (state.state != FORGOTTEN or now - record.since > 10)
        return record.last is not None and now - record.last > GONE

    def _has_retired(self, job: Any) -> bool:
        """Whether all workers of a job have retired: its end need not be waited for."""
        mine = [address for address, identifier in self._job_of_worker.items() if identifier == job.job_id]
        return bool(mine) and all(self._retired(address) for address in mine)

    def _replace(self, over: dict[str, Any], now: float) -> None:
        """Submit new jobs for those that are over, unless they end without workers again and again."""
        if now < self._not_before or self._problem is not None:
            return
        for name, job in over.items():
            record = self._seen.pop(job.job_id or name)
            if record.last is None:
                self._barren.append(self._reason(job))
        # one that never began may be wrong altogether; later the batch system may have a bad moment
        if len(self._barren) >= (BARREN if self._had_workers else min(BARREN, self._count)):
            with self._change:
                self._problem = self._barren[-1]
                if self._workers:
                    self._say(f"note: no more jobs are submitted: {self._problem}")
                self._change.notify_all()
            return
        self._not_before = now + PAUSE * len(self._barren)
        if over:
            names = ", ".join(job.job_id or "not taken" for job in over.values())
            self._say(f"{'jobs' if len(over) > 1 else 'job'} {names} ended; new ones are submitted in their place")

        async def again() -> None:
            for name in over:
                job = self._cluster.workers.pop(name, None)
                if job is not None:
                    await job.close()
            self._cluster.scale(jobs=self._count)

        self._cluster.sync(again)

    def _reason(self, job: Any) -> str:
        """Why a job ended before it had a worker, in a sentence."""
        refusal = getattr(job, "refusal", None)
        if job.job_id is None:
            return f"the batch system does not take the job: {refusal}"
        state = self._known.get(job.job_id)
        lines = []
        for path in sorted(self._logs.glob(f"*{job.job_id}*")):
            lines += [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
        marked = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
        if marked:
            return f"job {job.job_id}: {marked[-1]}"
        errors = [line for line in lines if "error" in line.lower()] or lines
        said = f": {shown(errors[-1], 300)}" if errors else ""
        how = f" ({state.state})" if state is not None and state.state != FORGOTTEN else ""
        return f"job {job.job_id} ended{how} before it had a worker{said} (its log is in {self._logs})"

    def _report(self, present: dict[str, str], known: dict[str, JobState] | None, now: float) -> None:
        """Say in one line that jobs wait, when none has a worker for a while, and again when the reason changes."""
        if present or self._problem is not None:
            self._waiting_since = now
            return
        if now - self._waiting_since < SILENT:
            return
        states = known or dict.fromkeys(self.identifiers, JobState("submitted", ""))
        if not states:
            return
        reasons = sorted({f"{state.state}{f': {state.reason}' if _tells(state) else ''}" for state in states.values()})
        line = f"waiting for {'jobs' if len(states) > 1 else 'job'} {', '.join(states)} ({'; '.join(reasons)})"
        if line != self._said:
            self._said = line
            self._say(line)


def jobs_of(client: "Client") -> Jobs | None:
    """The jobs behind a client of `slurm.slurm_client`; None for other clients."""
    found = getattr(client.cluster, "dtomo_jobs", None)
    return found if isinstance(found, Jobs) else None


def _tells(state: JobState) -> bool:
    return state.reason not in ("", "None")


def _belongs(worker: str, name: str, job: Any) -> bool:
    """Whether a worker of this name was started by the job of that name (HTCondor names workers by job)."""
    return worker == name or worker.startswith(f"{name}-") or (bool(job.job_id) and f"--{job.job_id}--" in worker)


def refused(error: BaseException) -> str:
    """What a batch system said when it did not take a job, in one line."""
    if isinstance(error, FileNotFoundError):
        return f"the command {error.filename} is not found on this machine"
    text = str(error)
    said = text.partition("stderr:\n")[2] or text
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return shown(" ".join(lines) or type(error).__name__, 300)


def check_commands(job_class: Any, kind: str) -> None:
    """Refuse to go on where jobs cannot be submitted at all.

    Raises
    ------
    UserError
        The command that submits jobs is not there.
    """
    command = str(job_class.submit_command or "").split()
    if command and shutil.which(command[0]) is None:
        raise UserError(
            f"--cluster {kind} needs the command {command[0]}, which is not found here; run dtomo where jobs are "
            "submitted, or use --cluster local"
        )
