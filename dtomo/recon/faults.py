"""What a task that failed means for the user."""

from pathlib import Path

from dtomo.device import DeviceFull
from dtomo.distributed import clusters, queue
from dtomo.distributed.plan import Plan, size
from dtomo.errors import DtomoError, StoppedError


def stopped(failed: queue.TaskFailed, named: str, plan: Plan, output: Path) -> Exception:
    """The error to raise for a task that failed, in a sentence; a fault of the program is handed on as it is.

    Parameters
    ----------
    failed
        What the queue raised.
    named
        The task's item, for the message: ``"rows 0:64 (slab 1 of 8)"``.
    plan, output
        Of the run.
    """
    go_on = f"what is done is kept in {output}: go on with --resume"
    limit = size(plan.resources.memory)
    if failed.killed:
        return StoppedError(
            f"{named} killed each of the {clusters.TRIES} workers that tried it, most likely for want of "
            f"memory (each worker may use {limit}, the plan says {size(plan.worker_memory)}); "
            f"{go_on} and more --memory"
        )
    if isinstance(failed.cause, MemoryError):
        return StoppedError(f"{named} found no memory within {limit}; {go_on} and more --memory")
    if isinstance(failed.cause, DeviceFull):
        return StoppedError(f"{named}: {failed.cause}; {go_on} and less --device-memory, so that blocks are smaller")
    if isinstance(failed.cause, StoppedError):
        return StoppedError(f"{named}: {failed.cause}")
    if isinstance(failed.cause, DtomoError | OSError):
        return StoppedError(f"{named}: {failed.cause}; {go_on}")
    return failed.cause if isinstance(failed.cause, Exception) else RuntimeError(str(failed.cause))
