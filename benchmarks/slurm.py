"""A run of five minutes in jobs of two: ``python -m benchmarks.slurm`` on a real Slurm of this machine alone."""

import argparse
import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from dtomo.simulate import simulate_scan

ONE_NODE = Path(__file__).resolve().parents[1] / "tests" / "slurm" / "one_node.sh"
SLABS = 24


@contextlib.contextmanager
def running(folder: Path) -> Iterator[None]:
    """A Slurm of two small nodes, for the commands started meanwhile."""
    started = subprocess.run([ONE_NODE, "start", folder], capture_output=True, text=True, check=False)
    if started.returncode:
        sys.exit(f"Slurm does not start ({started.stderr.strip()}); apt-get install slurm-wlm munge")
    os.environ["SLURM_CONF"] = started.stdout.strip()
    try:
        yield
    finally:
        subprocess.run([ONE_NODE, "stop", folder], check=True)


def recon(scan: Path, output: Path, iterations: int, *where: str) -> tuple[float, str]:
    """Seconds and messages of ``dtomo recon``."""
    words = ("--center", "74.5", "--algorithm", "sirt", "--iterations", str(iterations), "--slab", str(128 // SLABS))
    line = [sys.executable, "-m", "dtomo", "recon", scan, output, "--overwrite", *words, *where]
    begun = time.monotonic()
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return time.monotonic() - begun, done.stderr


def digest(store: Path) -> str:
    """Of all chunks of the finest level."""
    total = hashlib.sha256()
    for path in sorted(path for path in (store / "0").rglob("*") if path.is_file()):
        total.update(path.relative_to(store).as_posix().encode() + path.read_bytes())
    return total.hexdigest()


def main() -> None:
    """Print what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="of work for one worker")
    parser.add_argument("--iterations", type=int, help="instead of what --minutes come to")
    parser.add_argument("--walltime", default="00:02:00", help="of a job")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dtomo-slurm-") as name, running(Path(name, "slurm")):
        folder = Path(name)
        scan = folder / "scan.h5"
        simulate_scan(scan, size=128, rows=128, center=74.5, photons=1e5)
        local = ("--workers", "1", "--threads", "1", "--memory", "1GB")
        iterations = given.iterations
        if iterations is None:
            few, many = (recon(scan, folder / "try.zarr", count, *local)[0] for count in (1, 11))
            iterations = max(2, round(10 * 60 * given.minutes / max(0.1, many - few)))
        alone, _ = recon(scan, folder / "alone.zarr", iterations, *local)
        jobs = ("--cluster", "slurm", "--interface", "lo", "--walltime", given.walltime, "--checkpoint-every", "0.1")
        seconds, said = recon(scan, folder / "jobs.zarr", iterations, *jobs, *local)
        same = digest(folder / "alone.zarr") == digest(folder / "jobs.zarr")
        ended = [line for line in said.splitlines() if "in their place" in line]
        print(f"{iterations} iterations of SIRT on 128³ in slabs of {128 // SLABS}, one worker with one thread")
        print(f"here: {alone:.0f} s; in jobs of {given.walltime}: {seconds:.0f} s, {len(ended) + 1} jobs")
        print("\n".join(ended))
        print(f"the same bits: {same}")
    sys.exit(not same)


if __name__ == "__main__":
    main()
