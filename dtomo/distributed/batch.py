"""What is asked of a batch system for one job of workers: time, memory, cores, directives, and how workers start.

Site settings come from dask-jobqueue's own configuration (``~/.config/dask/jobqueue.yaml``); what the user gave
wins over them.
"""

import dataclasses
import inspect
import math
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dtomo.distributed.configuration import CONFIGURATION, thread_variables
from dtomo.errors import UserError, shown

MIB = 2**20
NANNY = 128 * MIB
"""Memory of the process that watches over a worker, asked for beside the worker's limit."""
LEAST_WALLTIME = 60
JOB_NAME = "dtomo"
MEMORY_LINES = ("mem", "mem-per-cpu", "mem-per-gpu", "all", "none")

_KEYS = (
    *("queue", "account", "walltime", "interface", "extra", "workers_per_job", "gpus", "memory_line"),
    *("lifetime", "lifetime_stagger"),
)
_WALLTIME = re.compile(r"(?:(?P<days>\d{1,4})-)?(?P<parts>\d{1,6}(?::\d{1,2}){0,2})")
_SECONDS_OF = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Wanted(Protocol):
    """The part of `clusters.Resources` that a batch system is asked for."""

    @property
    def kind(self) -> str:
        """``"slurm"``, ``"pbs"``, …"""

    @property
    def workers(self) -> int:
        """Worker processes."""

    @property
    def threads(self) -> int:
        """Compute threads of each worker."""

    @property
    def memory(self) -> int:
        """Limit of each worker in bytes."""

    @property
    def dashboard(self) -> str | None:
        """Where the dashboard listens."""


@dataclasses.dataclass(frozen=True)
class BatchRequest:
    """What a user asks of a batch system; None: what the site's configuration says.

    Attributes
    ----------
    queue, account
        Partition, and who pays.
    walltime, lifetime, lifetime_stagger
        Seconds that a job may run, after which its workers retire, and by how much that varies.
    interface
        Network interface that the scheduler and all workers are reached by, such as ``ib0``.
    extra
        More directives, without their prefix, such as ``--qos=long``.
    workers_per_job
        Processes in one job.
    gpus
        GPUs of a job.
    memory_line
        How memory is asked for, one of `MEMORY_LINES`: ``mem``, ``mem-per-cpu``, ``mem-per-gpu``, ``all`` of the
        node (``--mem=0``), or ``none`` where the site forbids it.
    """

    queue: str | None = None
    account: str | None = None
    walltime: int | None = None
    interface: str | None = None
    extra: tuple[str, ...] = ()
    workers_per_job: int | None = None
    gpus: int | None = None
    memory_line: str = "mem"
    lifetime: int | None = None
    lifetime_stagger: int | None = None


def parse_walltime(value: object, option: str = "--walltime") -> int:
    """Seconds meant by a time as Slurm writes it, or by a number with a unit.

    ``"02:00:00"``, ``"1-12:00:00"`` (days), ``"90"`` (minutes), ``"90:00"`` (minutes and seconds), ``"1-12"``,
    ``"2h"``, ``"45m"``.

    Raises
    ------
    UserError
        Not such a time, less than a minute, or a bare number, which YAML makes of 12:00:00.
    """
    if not isinstance(value, str):
        raise UserError(
            f"{option} is a time such as '02:00:00' in quotes, since YAML reads 12:00:00 as a number; "
            f"got {shown(repr(value))}"
        )
    text = value.strip().lower()
    seconds = None
    unit = re.fullmatch(r"(\d{1,7}(?:\.\d+)?)\s*([smhd])\w*", text)
    match = _WALLTIME.fullmatch(text)
    if unit:
        seconds = int(float(unit[1]) * _SECONDS_OF[unit[2]])
    elif match:
        parts = [int(part) for part in match["parts"].split(":")]
        # after days, the first is hours; else one or two parts begin with minutes
        scales = (3600, 60, 1) if match["days"] or len(parts) == 3 else (60, 1)
        seconds = 86400 * int(match["days"] or 0) + sum(a * b for a, b in zip(parts, scales))
        if any(part > 59 for part in parts[-2:]) and len(parts) == 3:
            seconds = None  # 99:99:99
        if match["days"] and parts[0] > 23:
            seconds = None
    if seconds is None or seconds < LEAST_WALLTIME:
        raise UserError(f"{option} is a time such as 02:00:00 or 2h, a minute at least; got {shown(repr(value))}")
    return seconds


def walltime_text(seconds: int, kind: str = "slurm") -> str:
    """A time in the words of a batch system: ``HH:MM:SS``, for LSF ``HH:MM``."""
    minutes, rest = divmod(seconds, 60)
    if kind == "lsf":
        minutes += rest > 0
        return f"{minutes // 60:02d}:{minutes % 60:02d}"
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}"


def parse_request(kind: str, options: Mapping[str, Any]) -> BatchRequest:
    """The request that `options` (from the command line and a cluster file) come to.

    Raises
    ------
    UserError
        An unknown key, or a value that does not fit.
    """
    unknown = sorted(str(name) for name in options if name not in _KEYS)
    if unknown:
        raise UserError(f"{kind} has no option {shown(unknown[0])}; known are {', '.join(_KEYS)}")
    given = {name: value for name, value in options.items() if value is not None}
    for name in ("queue", "account", "interface"):
        if name in given:
            given[name] = _word(f"--{name}", given[name])
    for name in ("workers_per_job", "gpus"):
        value = given.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise UserError(f"{name} of {kind} is a whole number from 1; got {shown(repr(value))}")
    for name in ("walltime", "lifetime", "lifetime_stagger"):
        if name in given:
            given[name] = parse_walltime(given[name], f"--{name.replace('_', '-')}")
    given["extra"] = _directives(given.get("extra", ()))
    given["memory_line"] = _memory_line(given.get("memory_line", "mem"))
    request = BatchRequest(**given)
    if request.gpus and kind != "slurm":
        raise UserError(f"gpus is known for slurm only; give {kind}'s own directive as extra")
    if request.memory_line == "mem-per-gpu" and not request.gpus:
        raise UserError("memory_line mem-per-gpu needs gpus, the number of GPUs of a job")
    named = [line for line in request.extra if line.startswith("--mem")]
    if len(named) > 1:
        raise UserError(f"give one of {' and '.join(shown(line) for line in named)}, not both")
    return request


def _word(option: str, value: Any) -> str:
    text = str(value).strip()
    if not re.fullmatch(r"[\w.,:@/+=%-]+", text) or text.startswith("-"):
        raise UserError(f"{option} is one word; got {shown(repr(value))}")
    return text


def _directives(value: Any) -> tuple[str, ...]:
    lines = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else None
    if lines is None or not all(isinstance(line, str) and line.strip() and "\n" not in line for line in lines):
        raise UserError(f"--slurm-extra is a directive in one line, such as --qos=long; got {shown(repr(value))}")
    return tuple(line.strip().removeprefix("#SBATCH").strip() for line in lines)


def _memory_line(value: Any) -> str:
    text = {"True": "mem", "False": "none", "0": "all"}.get(str(value), value)
    if text not in MEMORY_LINES:
        raise UserError(f"memory_line is {', '.join(MEMORY_LINES[:-1])} or none; got {shown(repr(value))}")
    return str(text)


def walltime_of(request: BatchRequest, site: Mapping[str, Any]) -> int | None:
    """Seconds that a job may run, as asked for or as the site says; None: neither says."""
    return request.walltime or (parse_walltime(site["walltime"], "walltime") if site.get("walltime") else None)


def lifetime_of(request: BatchRequest, walltime: int) -> tuple[int, int]:
    """Seconds after which workers retire and by how much that varies, all of it before `walltime`.

    Raises
    ------
    UserError
        A lifetime that does not end before the walltime.
    """
    margin = min(max(20, walltime // 10), 300)
    stagger = request.lifetime_stagger
    if request.lifetime is None:
        stagger = margin // 2 if stagger is None else stagger
        lifetime = walltime - margin - stagger
    else:
        lifetime = request.lifetime
        stagger = min(lifetime // 10, margin // 2) if stagger is None else stagger
    if lifetime <= stagger or lifetime + stagger >= walltime:
        raise UserError(
            f"workers that live {lifetime} s, give or take {stagger} s, do not fit into a walltime of {walltime} s; "
            "give a longer --walltime or a shorter lifetime"
        )
    return lifetime, stagger


def job_memory(memory: int, processes: int) -> int:
    """MiB that a job of `processes` workers with `memory` bytes each asks for: never less than they may use."""
    return math.ceil((memory + NANNY) * processes / MIB)


def jobs_for(wanted: Wanted, request: BatchRequest, site: Mapping[str, Any]) -> tuple[int, int]:
    """Jobs, and workers in each: as many workers as wanted or a few more, so that all jobs are alike."""
    processes = min(request.workers_per_job or site.get("processes") or 1, wanted.workers)
    return math.ceil(wanted.workers / processes), processes


def memory_directives(request: BatchRequest, memory: int, processes: int, threads: int) -> tuple[str | None, list[str]]:
    """Slurm's own memory line (None: to be left out) and what is said instead; together at most one.

    Parameters
    ----------
    request
        What the user asks for; a ``--mem…`` among its extra directives stands for all others.
    memory, processes, threads
        Bytes of each worker, workers of a job, threads of each.
    """
    total = job_memory(memory, processes)
    if any(line.startswith("--mem") for line in request.extra) or request.memory_line == "none":
        return None, []
    if request.memory_line == "all":
        return "0", []
    if request.memory_line == "mem-per-cpu":
        return None, [f"--mem-per-cpu={math.ceil(total / (processes * threads))}M"]
    if request.memory_line == "mem-per-gpu":
        return None, [f"--mem-per-gpu={math.ceil(total / (request.gpus or 1))}M"]
    return f"{total}M", []


def environment_lines(threads: int, parts: str | tuple[str, ...] = "distributed.worker.") -> list[str]:
    """Shell lines that give workers in a job the configuration that local ones have, or more `parts` of it."""
    exports = dict(thread_variables(threads))
    for name, value in CONFIGURATION.items():
        if name.startswith(parts):
            exports["DASK_" + name.upper().replace(".", "__").replace("-", "_")] = str(value)
    return [f"export {name}={shlex.quote(value)}" for name, value in exports.items()]


def log_folder(site: Mapping[str, Any]) -> Path:
    """Where jobs write what they say: the site's folder, or one in the user's cache."""
    given = site.get("log-directory")
    if given:
        return Path(os.path.expandvars(str(given))).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dtomo" / "jobs"


def job_arguments(wanted: Wanted, request: BatchRequest, site: Mapping[str, Any], job_class: type) -> dict[str, Any]:
    """Keyword arguments for a cluster class of dask-jobqueue.

    Parameters
    ----------
    wanted, request
        What is asked for.
    site
        dask-jobqueue's configuration of this batch system.
    job_class
        Its class of jobs, whose parameters tell what it can be asked for.

    Raises
    ------
    UserError
        The batch system has no such thing, or times do not fit.
    """
    known = set(inspect.signature(job_class).parameters)
    _, processes = jobs_for(wanted, request, site)
    arguments: dict[str, Any] = {
        "cores": processes * wanted.threads,
        "processes": processes,
        "memory": processes * (wanted.memory + NANNY),
        "job_name": JOB_NAME,
        "python": site.get("python") or sys.executable,
        "interface": request.interface or site.get("interface"),
        "log_directory": str(log_folder(site)),
        "job_script_prologue": [*(site.get("job-script-prologue") or []), *environment_lines(wanted.threads)],
        "worker_extra_args": list(site.get("worker-extra-args") or []),
        "job_extra_directives": _extras(wanted.kind, request, site),
        "job_directives_skip": list(site.get("job-directives-skip") or []),
    }
    arguments |= _accounting(wanted.kind, request, known)
    walltime = walltime_of(request, site)
    if walltime is not None:
        lifetime, stagger = lifetime_of(request, walltime)
        arguments["worker_extra_args"] += ["--lifetime", f"{lifetime}s", "--lifetime-stagger", f"{stagger}s"]
    if wanted.kind == "slurm":
        line, directives = memory_directives(request, wanted.memory, processes, wanted.threads)
        if line is None:
            arguments["job_directives_skip"].append("--mem=")
        else:
            arguments["job_mem"] = line
        arguments["job_extra_directives"] += directives
        if request.gpus:
            arguments["job_extra_directives"].append(f"--gres=gpu:{request.gpus}")
    return arguments


def _accounting(kind: str, request: BatchRequest, known: set[str]) -> dict[str, Any]:
    """Queue, account and walltime as arguments, where the batch system has them."""
    account = "account" if "account" in known else "project"
    walltime = None if request.walltime is None else walltime_text(request.walltime, kind)
    given = {"queue": request.queue, account: request.account, "walltime": walltime}
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if name not in known:
            raise UserError(f"{kind} knows no {name}; give its own directive as extra")
    return given


def _extras(kind: str, request: BatchRequest, site: Mapping[str, Any]) -> Any:
    """Directives of the site and of the user; HTCondor's are names and values."""
    theirs = site.get("job-extra-directives") or []
    if kind != "htcondor":
        return [*theirs, *request.extra]
    pairs = [line.partition("=") for line in request.extra]
    if not all(equals and name.strip() for name, equals, _ in pairs):
        raise UserError("extra directives of htcondor are names and values, such as 'requirements = HasX'")
    return dict(theirs) | {name.strip(): value.strip() for name, _, value in pairs}
