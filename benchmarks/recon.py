"""The whole command, from raw scan to volume: ``python -m benchmarks.recon``.

efficiency  ``dtomo recon`` with workers against its parts in one process: reading, preparing, computing,
writing. identity    the same bits for 1, 2 and 3 workers and three slab sizes. memory      the peak of the
workers against what ``--plan`` said, each limited to --memory.
"""

import argparse
import hashlib
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks import environment
from benchmarks.measure import number, table, write_json

_UNITS = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_DTOMO = [sys.executable, "-c", "import sys; from dtomo.cli import main; sys.exit(main())"]


def run_dtomo(*arguments: object) -> tuple[float, dict[int, int], str]:
    """Run the command: wall time, peak resident bytes of each child process, and what it printed."""
    command = [*_DTOMO, *(str(argument) for argument in arguments)]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    peaks: dict[int, int] = {}
    watcher = threading.Thread(target=_watch, args=(process.pid, peaks), daemon=True)
    watcher.start()
    output, _ = process.communicate()
    elapsed = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"dtomo {' '.join(map(str, arguments))} failed with {process.returncode}:\n{output}")
    watcher.join()
    return elapsed, peaks, output


def _watch(identifier: int, peaks: dict[int, int]) -> None:
    """Keep the highest resident memory of every child, sampled 10 times a second, until the parent ends."""
    try:
        parent = psutil.Process(identifier)
        while parent.is_running() and parent.status() != psutil.STATUS_ZOMBIE:
            for child in parent.children(recursive=True):
                try:
                    peaks[child.pid] = max(peaks.get(child.pid, 0), child.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue
            time.sleep(0.1)
    except psutil.NoSuchProcess:
        return


def planned_memory(text: str) -> float:
    """Bytes per worker, from what ``--plan`` printed."""
    found = re.search(r"memory per worker: ([\d.]+) ([kMGT]?B)", text)
    if not found:
        raise SystemExit(f"--plan says nothing about the memory per worker:\n{text}")
    return float(found[1]) * _UNITS[found[2]]


def bare_parts(scan_path: Path, output: Path, slab: int) -> dict[str, float]:
    """Seconds for reading, preparing, computing and writing all slabs, one by one in this process."""
    import dtomo
    from dtomo.algorithms import fbp
    from dtomo.io import create_volume
    from dtomo.memory import keep_memory
    from dtomo.recon.prepare import line_integrals
    from dtomo.settings import ReconSettings
    from dtomo.simulate import read_truth

    scan = dtomo.open(scan_path)
    settings = ReconSettings(scan=scan_path, output=output)
    geometry = dtomo.ParallelBeam(scan.angles, scan.shape[2], read_truth(scan_path).center)
    seconds: dict[str, float] = {}

    def run(stop: int) -> None:
        seconds.clear()
        last = time.perf_counter()

        def lap(stage: str) -> None:
            nonlocal last
            now = time.perf_counter()
            seconds[stage] = seconds.get(stage, 0.0) + now - last
            last = now

        shape = (stop, geometry.height, geometry.width)
        writer = create_volume(output, shape, slab=slab, voxel_size_um=scan.pixel_size, overwrite=True)
        lap("writing")
        for first in range(0, stop, slab):
            rows = slice(first, min(first + slab, stop))
            values, _ = line_integrals(scan, settings, rows, lap=lap)
            volume = fbp(values, geometry, overwrite=True)
            del values
            lap("computing")
            writer.write_slab(first, volume)
            del volume
            lap("writing")
        writer.finish()
        lap("writing")

    keep_memory()  # as workers do
    run(min(slab, scan.shape[1]))  # compiles, or loads what was compiled
    run(scan.shape[1])
    keep_memory(False)
    return seconds


def simulated(folder: Path, size: int) -> Path:
    """A raw scan of `size`, made once."""
    path = folder / f"scan{size}.h5"
    if not path.exists():
        start = time.perf_counter()
        run_dtomo("simulate", "scan", path, "--size", size)
        seconds, size_gb = time.perf_counter() - start, path.stat().st_size / 1e9
        print(f"simulated {path.name}: {size_gb:.2f} GB in {seconds:.0f} s", flush=True)
    return path


def axis(path: Path) -> float:
    """The true center of a simulated scan."""
    from dtomo.simulate import read_truth

    return read_truth(path).center


def efficiency(folder: Path, size: int, workers: int, slab: int, repeats: int) -> dict[str, Any]:
    """The command's wall time against the sum of its parts, and what starting and ending alone take.

    The first of `repeats` runs, if there are more, reads the file into the system's cache and does not count.
    """
    scan, output = simulated(folder, size), folder / "efficiency.zarr"
    options = ("--center", axis(scan), "--workers", workers, "--slab", slab, "--overwrite", "--quiet")
    runs = [run_dtomo("recon", scan, output, *options)[0] for _ in range(repeats)]
    whole = min(runs[1:] or runs)
    little = run_dtomo("recon", scan, output, "--rows", "0:8", *options)[0]
    parts = bare_parts(scan, folder / "bare.zarr", slab)
    bare = sum(parts.values())
    row = {
        "size": size,
        "workers": workers,
        "slab": slab,
        "command": whole,
        "eight_slices": little,
        "parts": parts,
    }
    row |= {"bare": bare, "ratio": whole / bare}
    names = ("reading", "preparing", "computing", "writing")
    head = [
        "N",
        "workers",
        "command, s",
        "8 slices only, s",
        *(f"{name}, s" for name in names),
        "sum, s",
        "ratio",
    ]
    times = [number(value) for value in (whole, little, *(parts.get(name, 0.0) for name in names), bare)]
    print(table(head, [[str(size), str(workers), *times, f"{whole / bare:.2f}"]]), flush=True)
    shutil.rmtree(output, ignore_errors=True)
    shutil.rmtree(folder / "bare.zarr", ignore_errors=True)
    return row


def digest(path: Path) -> str:
    """A fingerprint of all voxels."""
    import numpy as np

    from dtomo.io import open_volume

    array, found = open_volume(path).array, hashlib.sha256()
    for first in range(0, array.shape[0], 32):
        found.update(np.ascontiguousarray(array[first : first + 32]).tobytes())
    return found.hexdigest()[:16]


def identity(folder: Path, size: int, algorithms: tuple[str, ...], slabs: tuple[int, ...]) -> list[dict[str, Any]]:
    """Fingerprints of the volume for 1, 2 and 3 workers and some slab sizes: all alike, or it is a fault."""
    scan, output, rows = simulated(folder, size), folder / "identity.zarr", []
    for algorithm in algorithms:
        for workers, slab in itertools.product((1, 2, 3), slabs):
            run_dtomo(
                "recon", scan, output, "--center", axis(scan), "--workers", workers, "--slab", slab,
                "--algorithm", algorithm, *(("--iterations", 3) if algorithm != "fbp" else ()),
                "--overwrite", "--quiet",
            )  # fmt: skip
            rows.append({"algorithm": algorithm, "workers": workers, "slab": slab, "digest": digest(output)})
            print(f"  {algorithm:5s} {workers} workers, slabs of {slab:4d}: {rows[-1]['digest']}", flush=True)
        found = {row["digest"] for row in rows if row["algorithm"] == algorithm}
        verdict = "the same bits" if len(found) == 1 else "DIFFERENT BITS"
        print(f"{algorithm}, N = {size}: {verdict}", flush=True)
    return rows


def memory(folder: Path, size: int, workers: int, limit: str) -> dict[str, Any]:
    """Peak of the largest worker against the plan."""
    scan, output = simulated(folder, size), folder / "memory.zarr"
    options = ("--center", axis(scan), "--workers", workers, "--memory", limit, "--overwrite")
    planned = planned_memory(run_dtomo("recon", scan, output, "--plan", *options)[2])
    seconds, peaks, _ = run_dtomo("recon", scan, output, *options)
    peak = max(peaks.values())
    row = {
        "size": size,
        "workers": workers,
        "limit": limit,
        "planned": planned,
        "peak": peak,
        "seconds": seconds,
    }
    head = ["N", "workers", "limit", "planned, GB", "largest worker, GB", "ratio", "s"]
    values = [f"{planned / 1e9:.2f}", f"{peak / 1e9:.2f}", f"{peak / planned:.2f}", number(seconds)]
    print(table(head, [[str(size), str(workers), limit, *values]]), flush=True)
    shutil.rmtree(output, ignore_errors=True)
    return row


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["efficiency", "identity", "memory"])
    parser.add_argument("--size", type=int, default=512, help="of the scan for efficiency")
    parser.add_argument("--identity-size", type=int, default=192)
    parser.add_argument("--memory-size", type=int, default=1024)
    parser.add_argument("--memory", default="1.5GB", help="limit of each worker")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--slab", type=int, default=64)
    parser.add_argument("--cores", type=int, help="threads; default all")
    parser.add_argument("--folder", type=Path, help="keep scans here and use them again; default a temporary folder")
    parser.add_argument("--json", type=Path, help="also write what was measured here")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    chosen = parser.parse_args()
    environment.restart_clean(chosen.cores)
    slabs, algorithms, repeats = (16, 64, 128), ("fbp", "sirt", "cgls"), 3
    if chosen.quick:
        chosen.parts, chosen.size, chosen.slab, repeats = ["efficiency"], 64, 32, 1
    print(f"{environment.processor()}, {environment.cores()} threads", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found: dict[str, Any] = {}
        if "efficiency" in chosen.parts:
            found["efficiency"] = efficiency(folder, chosen.size, chosen.workers, chosen.slab, repeats)
        if "identity" in chosen.parts:
            found["identity"] = identity(folder, chosen.identity_size, algorithms, slabs)
        if "memory" in chosen.parts:
            found["memory"] = memory(folder, chosen.memory_size, chosen.workers, chosen.memory)
    write_json(chosen.json, ["numba", "numpy", "dask", "distributed", "zarr", "h5py"], **found)


if __name__ == "__main__":
    main()
