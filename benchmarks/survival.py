"""Runs that are killed, against one that is not: ``python -m benchmarks.survival``.

workers  in each of some runs a random worker is killed (``kill -9``) at a random time, and the run finishes.
groups   in some more, command and workers are all killed at a random time, and ``--resume`` finishes the run.
Every volume must have the bits of the undisturbed run; what each kill cost is the wall time beyond it.
"""

import argparse
import dataclasses
import itertools
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks import environment
from benchmarks.measure import number, table, write_json
from benchmarks.recon import axis, digest, run_dtomo

DTOMO = [sys.executable, "-c", "import sys; from dtomo.cli import main; sys.exit(main())"]
ITERATIONS = {"fbp": 0, "sirt": 60, "cgls": 60}
LONGEST = 600.0
"""Seconds after which a run counts as hanging."""


@dataclasses.dataclass(frozen=True)
class Undisturbed:
    """A run to compare with: what it computed, and the median of how long it took."""

    digest: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Row:
    """A run that was disturbed.

    Attributes
    ----------
    what, algorithm
        "worker" or "group" was killed; of which algorithm.
    at
        Seconds after the start of the command.
    seconds
        Wall time, of both commands where there were two.
    lost
        Seconds beyond the undisturbed run.
    resumed
        Iterations (of all slabs together) that a checkpoint saved.
    same
        Whether the bits are those of the undisturbed run.
    """

    what: str
    algorithm: str
    at: float
    seconds: float
    lost: float
    resumed: int
    same: bool


class Bench:
    """A scan, and the options of all runs on it."""

    def __init__(self, folder: Path, size: int, rows: int, workers: int, slab: int, every: str, scale: float) -> None:
        self.scan, self.output = folder / f"survival{size}x{rows}.h5", folder / "survival.zarr"
        if not self.scan.exists():
            run_dtomo("simulate", "scan", self.scan, "--size", size, "--rows", rows)
        self.options = ["--center", axis(self.scan), "--workers", workers, "--slab", slab, "--checkpoint-every", every]
        self.scale = scale

    def start(self, algorithm: str, *more: object) -> subprocess.Popen[str]:
        """The command, in a process group of its own."""
        iterations = ["--iterations", max(1, round(ITERATIONS[algorithm] * self.scale))] if algorithm != "fbp" else []
        words = [self.scan, self.output, "--algorithm", algorithm, *iterations, *self.options, "--quiet", *more]
        return subprocess.Popen(
            [*DTOMO, "recon", *map(str, words)], start_new_session=True, stderr=subprocess.PIPE, text=True
        )

    def finish(self, process: subprocess.Popen[str]) -> None:
        """Wait for its end, which must be a good one."""
        try:
            _, said = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise SystemExit(f"a run did not end within {LONGEST:.0f} s") from None
        if process.returncode:
            raise SystemExit(f"a run failed with {process.returncode}:\n{said}")

    def undisturbed(self, algorithm: str, repeats: int) -> Undisturbed:
        """Some runs that nobody touches."""
        seconds, digests = [], set()
        for _ in range(repeats):
            started = time.perf_counter()
            self.finish(self.start(algorithm, "--overwrite"))
            seconds.append(time.perf_counter() - started)
            digests.add(digest(self.output))
        if len(digests) != 1:
            raise SystemExit(f"undisturbed runs of {algorithm} differ: {digests}")
        return Undisturbed(digests.pop(), statistics.median(seconds))

    def resumed(self) -> int:
        """Iterations that the last run did not have to make again."""
        summary = json.loads(self.output.with_name(self.output.name + ".summary.json").read_text())
        return sum(slab["resumed"] for slab in summary["slabs"])


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The worker processes of a command: forked from a server that it started."""
    try:
        children = psutil.Process(process.pid).children()
        servers = [child for child in children if "forkserver" in " ".join(child.cmdline())]
        return [worker for server in servers for worker in server.children()]
    except psutil.NoSuchProcess:
        return []


def disturb(bench: Bench, what: str, algorithm: str, whole: Undisturbed, rng: random.Random) -> Row:
    """One run with one kill; tried again, with another time, where the run was over before."""
    while True:
        shutil.rmtree(bench.output, ignore_errors=True)
        started = time.perf_counter()
        process = bench.start(algorithm, "--overwrite")
        wanted = rng.uniform(0.1, 0.95) * whole.seconds
        while process.poll() is None and (time.perf_counter() - started < wanted or not workers_of(process)):
            time.sleep(0.005)
        found = workers_of(process)
        if process.poll() is not None or not found:
            bench.finish(process)
            continue
        at = time.perf_counter() - started
        if what == "worker":
            rng.choice(found).kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            process = bench.start(algorithm, "--resume" if bench.output.exists() else "--overwrite")
        bench.finish(process)
        seconds = time.perf_counter() - started
        if (bench.output / ".dtomo").exists():
            left = sorted(str(item) for item in (bench.output / ".dtomo").rglob("*"))
            raise SystemExit(f"a run that ended well left its progress folder, with {left[:20]}")
        same = digest(bench.output) == whole.digest
        return Row(what, algorithm, at, seconds, seconds - whole.seconds, bench.resumed(), same)


def report(rows: list[Row], whole: dict[str, Undisturbed]) -> bool:
    """Tables, and whether all is well."""
    lines = [
        [
            row.what, row.algorithm, f"{row.at:.1f}", f"{whole[row.algorithm].seconds:.1f}", f"{row.seconds:.1f}",
            f"{row.lost:+.1f}", str(row.resumed), "same" if row.same else "DIFFERENT",
        ]
        for row in rows
    ]  # fmt: skip
    head = ["killed", "algorithm", "at, s", "undisturbed, s", "took, s", "lost, s", "iterations saved", "bits"]
    print(table(head, lines) + "\n", flush=True)
    lines = []
    for what, algorithm in itertools.product(("worker", "group"), whole):
        lost = [row.lost for row in rows if (row.what, row.algorithm) == (what, algorithm)]
        if lost:
            values = [number(statistics.median(lost)), number(max(lost))]
            lines.append([what, algorithm, str(len(lost)), f"{whole[algorithm].seconds:.1f}", *values])
    print(
        table(["killed", "algorithm", "runs", "undisturbed, s", "lost, median, s", "lost, most, s"], lines), flush=True
    )
    wrong = [row for row in rows if not row.same]
    print(f"\n{len(rows) - len(wrong)} of {len(rows)} disturbed runs have the bits of the undisturbed one", flush=True)
    return not wrong


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="runs with a worker killed")
    parser.add_argument("--groups", type=int, default=5, help="runs killed altogether, then resumed")
    parser.add_argument("--algorithms", nargs="+", default=["cgls", "sirt", "fbp"], choices=list(ITERATIONS))
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--slab", type=int, default=64)
    parser.add_argument("--checkpoint-every", default="5it")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of iterations")
    parser.add_argument("--repeats", type=int, default=3, help="undisturbed runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep the scan here and use it again; default a temporary folder")
    parser.add_argument("--json", type=Path, help="also write what was measured here")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    chosen = parser.parse_args()
    environment.restart_clean()
    if chosen.quick:
        chosen.kills, chosen.groups, chosen.repeats, chosen.algorithms = 2, 1, 1, ["cgls", "fbp"]
        chosen.size, chosen.rows, chosen.slab = 64, 64, 16
    rng = random.Random(chosen.seed)
    print(f"{environment.processor()}, {environment.cores()} threads", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(
            folder, chosen.size, chosen.rows, chosen.workers, chosen.slab, chosen.checkpoint_every, chosen.scale
        )
        whole = {algorithm: bench.undisturbed(algorithm, chosen.repeats) for algorithm in chosen.algorithms}
        kinds = ["worker"] * chosen.kills + ["group"] * chosen.groups
        turns = itertools.cycle(chosen.algorithms)
        rows = []
        for what, algorithm in zip(kinds, turns):
            rows.append(disturb(bench, what, algorithm, whole[algorithm], rng))
            last = rows[-1]
            print(f"  {what} of {algorithm} at {last.at:.1f} s: lost {last.lost:+.1f} s", flush=True)
        shutil.rmtree(bench.output, ignore_errors=True)
    well = report(rows, whole)
    write_json(chosen.json, ["numba", "numpy", "dask", "distributed", "zarr"], rows=[vars(row) for row in rows])
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
