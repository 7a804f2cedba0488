"""What runs that go slab by slab have in common: what is left to do, sending it out, and what is said at the end."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dtomo import io
from dtomo.distributed import queue
from dtomo.distributed.plan import Plan
from dtomo.distributed.progress import Counter, duration
from dtomo.distributed.slabs import Slab
from dtomo.io.output import progress_folder
from dtomo.io.progress import Progress
from dtomo.memory import peak_memory
from dtomo.recon.faults import stopped
from dtomo.recon.slab import SlabSummary, repairs
from dtomo.runs import record
from dtomo.settings import ReconSettings

if TYPE_CHECKING:
    from distributed import Client


def waiting(settings: ReconSettings, plan: Plan) -> list[Slab]:
    """The slabs that a run before has not finished."""
    done = set(Progress(progress_folder(settings.output)).slabs())
    return [slab for slab in plan.slabs if (slab.start, slab.stop) not in done]


def send_out(
    client: "Client",
    task: Callable[..., SlabSummary],
    job: Any,
    plan: Plan,
    settings: ReconSettings,
    *,
    ahead: bool = False,
    quiet: bool = False,
) -> list[SlabSummary]:
    """Run ``task(job, slab)`` for the slabs that are not done yet, and wait for them.

    Parameters
    ----------
    ahead
        Whether a worker is told of the slab that comes next (``task(job, slab, following)``).

    Raises
    ------
    StoppedError
        A slab could not be reconstructed or written.
    """
    left = waiting(settings, plan)
    summaries: list[SlabSummary] = []
    with Counter(len(plan.slabs), "slabs", done=len(plan.slabs) - len(left), quiet=quiet) as counter:

        def finished(slab: Slab, summary: SlabSummary) -> None:
            summaries.append(summary)
            counter.advance()

        try:
            queue.run_tasks(client, task, job, left, finished, ahead=ahead)
        except queue.TaskFailed as failed:
            named = f"{failed.item} (slab {failed.item.index + 1} of {len(plan.slabs)})"
            raise stopped(failed, named, plan, settings.output) from failed.cause
    return summaries


def finish(
    settings: ReconSettings,
    plan: Plan,
    writer: io.VolumeWriter,
    begun: dict[str, Any],
    slabs: list[SlabSummary],
    seconds: float,
    say: Callable[[str], None],
    doubts: Sequence[str] = (),
) -> dict[str, Any]:
    """Write the summary beside the finished volume, say what was made, and return the summary.

    `doubts` are what was said of the scan when it was opened.
    """
    summary = _summary(plan, begun, slabs, seconds) | {"scan_warnings": list(doubts)}
    written = record.write_summary(settings.output, summary)
    if repaired := repairs(slabs):
        say(repaired)
    for note in summary["notes"]:
        say(f"note: {note}")
    shape = " × ".join(map(str, writer.shape))
    say(f"{settings.output}: {shape} (z, y, x), {begun['unit']}, in {duration(summary['seconds'])}")
    say(f"settings in {record.run_file(settings.output)}, summary in {written}")
    return summary


def _summary(plan: Plan, begun: dict[str, Any], slabs: list[SlabSummary], seconds: float) -> dict[str, Any]:
    """What happened, for the JSON file; sums over the slabs done in this run."""
    stages = sorted({stage for slab in slabs for stage in slab.seconds})
    peaks: dict[str, int] = {}
    for slab in slabs:
        peaks[str(slab.worker)] = max(peaks.get(str(slab.worker), 0), slab.peak_memory)
    return {
        **begun,
        "seconds": round(seconds, 3),
        "seconds_by_stage": {stage: round(sum(s.seconds.get(stage, 0.0) for s in slabs), 3) for stage in stages},
        "workers": plan.resources.workers,
        "threads": plan.resources.threads,
        "peak_memory": peaks,
        "planned_memory": plan.worker_memory,
        **({} if plan.resources.device_share is None else {"planned_device_memory": plan.device_memory}),
        "client_peak_memory": peak_memory(),
        "planned_client_memory": plan.client_memory,
        "planned_seconds": round(sum(plan.seconds.values()), 1),
        "bytes_read": plan.bytes_read,
        "bytes_written": plan.bytes_written,
        "dead_pixels": sum(slab.dead_pixels for slab in slabs),
        "repaired_values": sum(slab.repaired_values for slab in slabs),
        "warnings": sorted({warning for slab in slabs for warning in slab.warnings}),
        "notes": sorted({note for slab in slabs for note in slab.notes}),
        "slabs_done_before": len(plan.slabs) - len(slabs),
        "slabs": [dataclasses.asdict(slab) for slab in sorted(slabs, key=lambda slab: slab.start)],
    }
