"""Workers as jobs of Slurm, or of another batch system that dask-jobqueue knows.

The scheduler and the run stay in this process; each job brings workers, which retire before the walltime of their job
and are replaced by those of a new one, until the work is done.
"""

import contextlib
import inspect
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dtomo.distributed.batch import (
    JOB_NAME,
    NANNY,
    BatchRequest,
    Wanted,
    job_arguments,
    jobs_for,
    lifetime_of,
    log_folder,
    parse_request,
    walltime_of,
)
from dtomo.distributed.configuration import CONFIGURATION, quiet_logs
from dtomo.distributed.jobs import Jobs, check_commands, refused, slurm_states
from dtomo.errors import UserError

if TYPE_CHECKING:
    from dask_jobqueue import JobQueueCluster
    from distributed import Client


@contextlib.contextmanager
def slurm_client(
    wanted: Wanted, request: Mapping[str, Any] | None = None, say: Callable[[str], None] | None = None
) -> Iterator["Client"]:
    """A client whose workers are jobs of a batch system; the jobs are cancelled on leaving.

    Waits for the first worker as long as the batch system lets the jobs wait.

    Parameters
    ----------
    wanted
        Kind of the batch system, workers, threads and bytes of memory of each.
    request
        What is asked of it beside that; see `batch.BatchRequest` for the names.
    say
        Called with lines for the user: which jobs wait and why, which were replaced.

    Raises
    ------
    UserError
        A request that does not fit, jobs that are not taken, or workers that cannot reach the scheduler.
    """
    import dask
    from distributed import Client

    asked = parse_request(wanted.kind, request or {})
    with contextlib.ExitStack() as stack:
        stack.enter_context(dask.config.set(CONFIGURATION))
        stack.enter_context(quiet_logs())
        cluster = stack.enter_context(make_cluster(wanted, asked))
        client = stack.enter_context(Client(cluster))
        site = site_settings(wanted.kind)
        count, _ = jobs_for(wanted, asked, site)
        states = slurm_states if wanted.kind == "slurm" else None
        jobs = Jobs(cluster, count, log_folder(site), states, say)
        cluster.dtomo_jobs = jobs
        stack.callback(jobs.stop)
        jobs.start()
        jobs.wait(UserError)
        yield client
        jobs.stop()
        if not site.get("log-directory"):
            jobs.remove_logs()  # all went well, so nobody reads them


def site_settings(kind: str) -> dict[str, Any]:
    """dask-jobqueue's configuration of a batch system: the site's file over its defaults.

    Raises
    ------
    UserError
        dask-jobqueue is not installed.
    """
    import dask

    _jobqueue(kind)
    found = dask.config.get(f"jobqueue.{kind}", {})
    if not isinstance(found, Mapping):
        raise UserError(f"jobqueue.{kind} in dask's configuration must hold keys and values")
    return dict(found)


def workers_live(wanted: Wanted, request: Mapping[str, Any]) -> int | None:
    """Seconds that every worker lives at least before it retires; None: no walltime is known.

    Raises
    ------
    UserError
        A request that does not fit, or dask-jobqueue is not installed.
    """
    asked = parse_request(wanted.kind, request)
    walltime = walltime_of(asked, site_settings(wanted.kind))
    if walltime is None:
        return None
    lifetime, stagger = lifetime_of(asked, walltime)
    return lifetime - stagger


def job_script(wanted: Wanted, request: Mapping[str, Any] | None = None) -> str:
    """The script of a job of workers, without submitting it; the scheduler's address is left open.

    Raises
    ------
    UserError
        A request that does not fit.
    """
    job_class = _job_class(_cluster_class(wanted.kind))
    asked = parse_request(wanted.kind, request or {})
    arguments = job_arguments(wanted, asked, site_settings(wanted.kind), job_class)
    with _plain_errors(wanted.kind):
        return str(job_class("tcp://<address of the scheduler>:8786", f"{JOB_NAME}-0", **arguments).job_script())


def make_cluster(wanted: Wanted, request: BatchRequest) -> "JobQueueCluster":
    """A cluster of dask-jobqueue with its scheduler in this process, and no jobs yet.

    Raises
    ------
    UserError
        dask-jobqueue is not installed, jobs cannot be submitted here, or a setting does not fit.
    """
    cluster_class = _cluster_class(wanted.kind)
    job_class = _job_class(cluster_class)
    check_commands(job_class, wanted.kind)
    site = site_settings(wanted.kind)
    arguments = job_arguments(wanted, request, site, job_class)
    _check_interface(arguments["interface"])
    scheduler = {"dashboard_address": wanted.dashboard, "dashboard": wanted.dashboard is not None}
    with _plain_errors(wanted.kind), warnings.catch_warnings():
        # the port of the dashboard is taken: dask falls back to a free one, and we say which
        warnings.filterwarnings("ignore", message="Port .* is already in use")
        return cluster_class(
            job_cls=job_class,
            name=JOB_NAME,
            scheduler_options=scheduler | dict(site.get("scheduler-options") or {}),
            silence_logs=False,
            **arguments,
        )


def _jobqueue(kind: str) -> Any:
    """dask-jobqueue, whose import makes Ctrl-C end the process with code 0: what Ctrl-C did before is put back."""
    before = signal.getsignal(signal.SIGINT)
    try:
        import dask_jobqueue
    except ImportError as error:
        raise UserError(f"--cluster {kind} needs dask-jobqueue; pip install 'dtomo[hpc]'") from error
    if signal.getsignal(signal.SIGINT) is not before:
        signal.signal(signal.SIGINT, before)
    return dask_jobqueue


def _cluster_class(kind: str) -> Any:
    """The class of dask-jobqueue for a batch system, found by its name."""
    module = _jobqueue(kind)
    names = {name.lower().removesuffix("cluster"): name for name in dir(module) if name.endswith("Cluster")}
    if kind not in names or kind == "jobqueue":
        raise UserError(f"dask-jobqueue knows no batch system {kind}; it knows {', '.join(sorted(names))}")
    return getattr(module, names[kind])


def _job_class(cluster_class: Any) -> Any:
    """The jobs of a cluster class, with exact limits of memory, one task at a time, and a look at the network first."""
    from distributed.core import Status

    base = cluster_class.job_cls

    class WorkerJob(base):  # type: ignore[misc, valid-type]
        """A job of workers of dtomo."""

        refusal: str | None = None

        def __init__(self, scheduler: Any = None, name: Any = None, **arguments: Any) -> None:
            prologue = [*arguments.pop("job_script_prologue", []), _reach_line(scheduler, arguments)]
            super().__init__(scheduler, name, job_script_prologue=prologue, **_own_copies(arguments))

        @property
        def worker_process_threads(self) -> int:
            """Tasks at a time; each has all the threads of its worker."""
            return 1

        @property
        def worker_process_memory(self) -> str:
            """Limit of each worker, not rounded up beyond what the job asks for."""
            return f"{int(self.worker_memory) // int(self.worker_processes) - NANNY}B"

        async def start(self) -> None:
            """Submit the job, and keep what the batch system says if it does not take it."""
            try:
                await super().start()
            except (RuntimeError, ValueError, OSError) as error:
                self.refusal, self.status = refused(error), Status.failed
                raise

        async def close(self) -> None:
            """Cancel the job."""
            await super().close()
            self.status = Status.closed

    # the signature tells what this batch system can be asked for
    WorkerJob.__signature__ = inspect.signature(base)
    WorkerJob.__name__ = base.__name__
    return WorkerJob


def _reach_line(scheduler: Any, arguments: Mapping[str, Any]) -> str:
    interface = arguments.get("interface") or ""
    return f"{arguments['python']} -m dtomo.distributed.reach '{scheduler}' {interface} || exit 1".replace("  ", " ")


def _own_copies(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Lists copied, since dask-jobqueue appends to those that it is given."""
    return {name: list(value) if isinstance(value, list) else value for name, value in arguments.items()}


def _check_interface(interface: str | None) -> None:
    import psutil

    names = sorted(psutil.net_if_addrs())
    if interface is not None and interface not in names:
        raise UserError(f"this machine has no network interface {interface}; it has {', '.join(names)}")


@contextlib.contextmanager
def _plain_errors(kind: str) -> Iterator[None]:
    """What dask-jobqueue and the scheduler say about settings that do not fit, as one sentence."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError, OSError) as error:
        raise UserError(f"the cluster of {kind} cannot be set up: {refused(error)}") from error
