"""A batch script for Slurm that runs one command until its output is complete, over as many allocations as it takes."""

import dataclasses
import math
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from dtomo.distributed.batch import (
    JOB_NAME,
    BatchRequest,
    environment_lines,
    memory_directives,
    walltime_text,
)

CLIENT = 1_000_000_000
"""Bytes asked for beside the workers', for the process that runs the work, its scheduler and dashboard."""
WALLTIME = 4 * 3600
"""Seconds of an allocation if none are given."""


@dataclasses.dataclass(frozen=True)
class Allocation:
    """What is asked of Slurm: `nodes`, and on each of them `workers` with `threads` and `memory` bytes each.

    With GPUs, which are for one node, the workers are shared out over those that Slurm gives the job.
    """

    nodes: int
    workers: int
    threads: int
    memory: int
    request: BatchRequest

    @property
    def walltime(self) -> int:
        """Seconds."""
        return self.request.walltime or WALLTIME

    @property
    def margin(self) -> int:
        """Seconds before the walltime at which the run is stopped and its successor submitted."""
        return min(max(self.walltime // 10, 40), 600)


def directives(allocation: Allocation) -> list[str]:
    """The options of ``sbatch`` that an allocation comes to, without their prefix."""
    request = allocation.request
    # the client's part of the memory is shared out over the workers, so that all ways to ask for memory hold it
    memory = allocation.memory + math.ceil(CLIENT / allocation.workers)
    line, others = memory_directives(request, memory, allocation.workers, allocation.threads)
    return [
        f"--job-name={JOB_NAME}",
        f"--nodes={allocation.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={allocation.workers * allocation.threads}",
        *([f"--mem={line}"] if line is not None else []),
        *others,
        f"--time={walltime_text(allocation.walltime)}",
        f"--signal=B:USR1@{allocation.margin}",
        f"--output={JOB_NAME}-%j.log",
        *([f"--partition={request.queue}"] if request.queue else []),
        *([f"--account={request.account}"] if request.account else []),
        *([f"--gres=gpu:{request.gpus}"] if request.gpus else []),
        *request.extra,
    ]


def slurm_script(
    command: Sequence[str], allocation: Allocation, output: Path, progress: Path, *, overwrite: bool = False
) -> str:
    """The text of the script.

    Parameters
    ----------
    command
        Words after ``dtomo``, without ``--resume``, ``--overwrite`` and what says where it runs.
    allocation
        What is asked of Slurm.
    output, progress
        The volume, and the folder that is there while it is unfinished; absolute.
    overwrite
        Whether the first allocation replaces an output that exists.
    """
    many = allocation.nodes > 1
    where = [] if many else ["--workers", str(allocation.workers), "--threads", str(allocation.threads)]
    where += [] if many else ["--memory", f"{allocation.memory}B"]
    where += ["--cluster", "cuda"] if allocation.request.gpus else []
    run = shlex.join([sys.executable, "-m", "dtomo", *command, *where])
    parts = [
        "#!/usr/bin/env bash",
        *(f"#SBATCH {line}" for line in directives(allocation)),
        "",
        "# Submit with sbatch. Shortly before its time is over the job stops the run, which keeps what is done, and",
        "# submits itself again, until the output is complete or an allocation has brought nothing new.",
        "set -u",
        f"cd {shlex.quote(os.getcwd())}",
        f"output={shlex.quote(str(output))}",
        f"progress={shlex.quote(str(progress))}",
        f"overwrite={'--overwrite' if overwrite else ''}",
        f"run=({run})",
        "",
        _BEGIN.strip(),
        "",
        *(_many_nodes(allocation) if many else []),
        _RUN.strip(),
        "",
    ]
    return "\n".join(parts)


def _many_nodes(allocation: Allocation) -> list[str]:
    """Shell lines that start a scheduler here and workers on all nodes."""
    python = shlex.quote(sys.executable)
    interface = ["--interface", allocation.request.interface] if allocation.request.interface else []
    scheduler = shlex.join(["--port", "0", "--dashboard-address", ":0", *interface])
    workers = shlex.join(
        [
            *("--nworkers", str(allocation.workers), "--nthreads", str(allocation.threads)),
            *("--memory-limit", f"{allocation.memory}B", "--death-timeout", "120", *interface),
        ]
    )
    parts = ("distributed.worker.", "distributed.scheduler.")
    return [
        *environment_lines(allocation.threads, parts),
        _CLUSTER.strip().format(python=python, scheduler=scheduler, workers=workers),
        "",
    ]


_BEGIN = r"""
stamp=$(mktemp)
helpers=()
client=
stopped=
finish() {
    [ ${#helpers[@]} -eq 0 ] || kill "${helpers[@]}" 2>/dev/null
    rm -rf "$stamp" ${folder:+"$folder"}
}
stop() {
    stopped=$1
    [ -z "$client" ] || kill -TERM "$client" 2>/dev/null
}
trap finish EXIT
trap 'stop time' USR1
trap 'stop cancelled' TERM INT

if [ -e "$progress" ] && { [ -z "$overwrite" ] || [ -n "${DTOMO_CONTINUED:-}" ]; }; then
    run+=(--resume)
elif [ -n "${DTOMO_CONTINUED:-}" ] && [ -e "$output" ]; then
    echo "$output is complete"
    exit 0
elif [ -n "$overwrite" ]; then
    run+=("$overwrite")
fi
"""

_CLUSTER = r"""
folder=$(mktemp -d "$PWD/.dtomo-cluster-XXXXXX")
{python} -m distributed.cli.dask_scheduler --scheduler-file "$folder/scheduler.json" {scheduler} \
    > "$folder/scheduler.log" 2>&1 &
helpers+=($!)
srun --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=0 \
    {python} -m distributed.cli.dask_worker --scheduler-file "$folder/scheduler.json" {workers} \
    > "$folder/workers.log" 2>&1 &
helpers+=($!)
for _ in $(seq 120); do [ -s "$folder/scheduler.json" ] && break; sleep 1; done
address=$({python} -c 'import json, sys; print(json.load(open(sys.argv[1]))["address"])' "$folder/scheduler.json") || {{
    tail -n 20 "$folder/scheduler.log" >&2
    exit 1
}}
run+=(--cluster "$address")
"""

_RUN = r"""
[ -z "$stopped" ] || exit 130
"${run[@]}" &
client=$!
while :; do
    wait "$client"
    code=$?
    # more than 128: a signal came to this script, or the run ended with that code
    [ "$code" -gt 128 ] && kill -0 "$client" 2>/dev/null || break
done
if [ "$code" -eq 0 ] || [ "$stopped" != time ]; then
    [ "$code" -eq 0 ] || [ -z "${folder:-}" ] || tail -n 20 "$folder"/*.log >&2
    exit "$code"
fi
new=$(find "$progress" -type f -newer "$stamp" \
    ! -name lock.json ! -name settings.json ! -name '*claim*' -print -quit 2>/dev/null)
if [ -z "$new" ]; then
    echo "nothing was finished within this allocation, so no other is asked for; give a longer --walltime," \
        "fewer slices per --slab, or a shorter --checkpoint-every" >&2
    exit 3
fi
echo "the time is over; the run goes on in a new job:"
DTOMO_CONTINUED=1 sbatch --export=ALL,DTOMO_CONTINUED=1 --dependency="afterany:$SLURM_JOB_ID" "$0"
"""
