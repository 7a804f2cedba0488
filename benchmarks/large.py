"""A complex volume larger than the memory, from Zarr to Zarr: ``python -m benchmarks.large --folder DIR``.

A complex scan is simulated on disk, the real command reconstructs it by filtered back projection with workers whose
memory is limited, and random slices are compared with the same slices computed alone in this process (bit for bit) and
with the phantom. 2000 × 2000 × 2000 voxels of 8 bytes are 64 GB: whether they fit on the disk is said beforehand.
"""

import argparse
import collections
import dataclasses
import json
import math
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks import environment
from benchmarks.measure import table, write_json

_DTOMO = [sys.executable, "-c", "import sys; from dtomo.cli import main; sys.exit(main())"]
_SAMPLE_SLICES = 16


@dataclasses.dataclass
class Watched:
    """What a command took: wall seconds, peak resident bytes by process and of all together, bytes read and written.

    Bytes are those of the system calls and, after them, those that went to or came from the disk.
    """

    seconds: float
    output: str
    peaks: dict[str, int]
    together: int
    read: tuple[int, int]
    written: tuple[int, int]


def watch(*arguments: object) -> Watched:
    """Run ``dtomo`` and look at it and its children ten times a second."""
    start = time.perf_counter()
    command = [*_DTOMO, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    peaks: dict[str, int] = {}
    totals: dict[str, int] = {}
    ended = threading.Event()
    watcher = threading.Thread(target=_sample, args=(process.pid, peaks, totals, ended), daemon=True)
    watcher.start()
    output, _ = process.communicate()
    seconds = time.perf_counter() - start
    ended.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"dtomo {' '.join(map(str, arguments))} failed with {process.returncode}:\n{output}")
    read, written = ((totals.get(f"{name}_chars", 0), totals.get(f"{name}_bytes", 0)) for name in ("read", "write"))
    return Watched(seconds, output, peaks, totals["memory"], read, written)


def _sample(identifier: int, peaks: dict[str, int], totals: dict[str, int], ended: threading.Event) -> None:
    """Keep the highest memory of a process and of its children, and of their sums, until it has ended.

    The system adds what a process has read and written to its parent's count when it ends: sums never fall.
    """
    while not ended.wait(0.1):
        try:
            parent = psutil.Process(identifier)
            family = [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        now = collections.Counter[str]()
        for process in family:
            try:
                memory = process.memory_info().rss
                now.update(process.io_counters()._asdict() if hasattr(process, "io_counters") else {})
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            now["memory"] += memory
            name = f"{'client' if process.pid == identifier else 'child'} {process.pid}"
            peaks[name] = max(peaks.get(name, 0), memory)
        totals.update({name: max(count, totals.get(name, 0)) for name, count in now.items()})


def gigabytes(count: float) -> str:
    """``"1.23 GB"``."""
    return f"{count / 1e9:.3g} GB"


def refuse_if_no_room(folder: Path, size: int, angles: int, levels: int) -> None:
    """Stop with a sentence if scan and volume, uncompressed, do not fit on the disk."""
    scan, volume = angles * size * size * 8, size**3 * 8
    volume = volume if levels == 1 else volume * 8 // 7
    old = [folder / name for name in ("scan.zarr", "volume.zarr")]
    free = shutil.disk_usage(folder).free + sum(stored(path) for path in old)
    if scan + volume > free:
        fitting = next(n for n in range(size, 0, -50) if (angles * n * n + n**3) * 8 * 1.02 <= free)
        raise SystemExit(
            f"a scan of {gigabytes(scan)} and a volume of {gigabytes(volume)} before compression do not fit into the "
            f"{gigabytes(free)} free in {folder}; --size {fitting} would"
        )


def stored(path: Path) -> int:
    """Bytes on disk."""
    from dtomo.io.output import disk_size

    return disk_size(path)


class Alone:
    """The same scan in this process, a few slices at a time."""

    def __init__(self, path: Path, center: float) -> None:
        from dtomo.recon.scans import geometry_of, open_scan
        from dtomo.settings import ReconSettings

        self.settings = ReconSettings(scan=path, output=path.with_name("alone.zarr"), center=center)
        self.scan = open_scan(self.settings)
        self.geometry = geometry_of(self.scan, center, False)

    def slices(self, rows: slice) -> Any:
        """Slices (z, y, x), complex64."""
        from dtomo.recon.prepare import line_integrals
        from dtomo.recon.slab import solve

        values, _ = line_integrals(self.scan, self.settings, rows)
        return solve(values, self.geometry, self.settings)[0]


def compressed_part(alone: Alone, folder: Path) -> float:
    """Bytes on disk per byte of the volume, measured on some slices of the middle."""
    from dtomo.io.volumes import store_volume

    middle = alone.scan.shape[1] // 2
    some = alone.slices(slice(middle, min(middle + _SAMPLE_SLICES, alone.scan.shape[1])))
    path = folder / "sample.zarr"
    try:
        return stored(store_volume(some, path, levels=1, overwrite=True)) / some.nbytes
    finally:
        shutil.rmtree(path, ignore_errors=True)


def compare(alone: Alone, volume: Path, count: int) -> dict[str, Any]:
    """Random slices of the volume against the same alone, bit for bit, and against the phantom.

    Errors are RMS differences to the phantom in the circle, relative to the RMS of the phantom there.
    """
    import numpy as np

    from dtomo.io import open_volume
    from dtomo.simulate import truth_slice

    opened = open_volume(volume)
    depth, width, _ = opened.shape
    y, x = np.ogrid[:width, :width]
    inside = (y - (width - 1) / 2) ** 2 + (x - (width - 1) / 2) ** 2 < (0.95 * width / 2) ** 2
    chosen = np.sort(np.random.default_rng(0).choice(depth, min(count, depth), replace=False))
    same, errors = 0, []
    for z in map(int, chosen):
        made = opened.source.read(slice(z, z + 1))[0]
        same += np.array_equal(made, alone.slices(slice(z, z + 1))[0])
        true = truth_slice(alone.settings.scan, z, width)
        parts = [(getattr(made, part)[inside], getattr(true, part)[inside]) for part in ("real", "imag")]
        errors.append([float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2))) for a, b in parts])
    worst = np.max(errors, axis=0)
    return {"slices": chosen.tolist(), "identical": same, "error_real": float(worst[0]), "error_imag": float(worst[1])}


def report(done: Watched, planned: str, summary: dict[str, Any], row: dict[str, Any]) -> None:
    """Print what was planned and what was measured."""
    print(planned)
    peaks = sorted(done.peaks.items(), key=lambda item: -item[1])
    lines = [[name, gigabytes(peak)] for name, peak in peaks if peak > 50e6]
    print("\n" + table(["process", "peak resident memory"], [*lines, ["all together", gigabytes(done.together)]]))
    stages = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in summary["seconds_by_stage"].items())
    print(f"\nwall time {done.seconds:.0f} s (planned {summary['planned_seconds']:.0f} s); stages, summed: {stages}")
    print(f"peak of the workers {[gigabytes(peak) for peak in summary['peak_memory'].values()]}, ", end="")
    print(f"planned {gigabytes(summary['planned_memory'])}")
    print(f"read {gigabytes(done.read[0])} in system calls ({gigabytes(done.read[1])} from the disk), ", end="")
    print(f"planned {gigabytes(summary['bytes_read'])} uncompressed")
    print(f"written {gigabytes(done.written[0])} ({gigabytes(done.written[1])} to the disk), ", end="")
    print(f"planned {gigabytes(summary['bytes_written'])} uncompressed; on disk {gigabytes(row['volume_stored'])}")


def main() -> None:
    """Simulate, reconstruct, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where scan and volume lie")
    parser.add_argument("--size", type=int, default=2000)
    parser.add_argument("--angles", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", default="3GB", help="limit of each worker")
    parser.add_argument("--levels", type=int, default=1, help="1: no pyramid")
    parser.add_argument("--check", type=int, default=20, help="slices to compare")
    parser.add_argument("--keep", action="store_true", help="leave scan and volume, and take a scan that is there")
    parser.add_argument("--json", type=Path, help="also write what was measured here")
    chosen = parser.parse_args()
    environment.restart_clean()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    scan, volume = chosen.folder / "scan.zarr", chosen.folder / "volume.zarr"
    refuse_if_no_room(chosen.folder, chosen.size, chosen.angles, chosen.levels)
    print(f"{environment.processor()}, {environment.cores()} threads", flush=True)
    row: dict[str, Any] = {"size": chosen.size, "angles": chosen.angles, "workers": chosen.workers}
    row |= {"memory": chosen.memory, "levels": chosen.levels}
    try:
        if not (chosen.keep and scan.exists()):
            words = ("--complex", "--size", chosen.size, "--angles", chosen.angles, "--overwrite", "--quiet")
            made = watch("simulate", "scan", scan, *words)
            print(f"simulated in {made.seconds:.0f} s, with {gigabytes(made.together)} of memory", flush=True)
            row["simulated"] = made.seconds
        measure(chosen, scan, volume, row)
    finally:
        if not chosen.keep:
            for path in (scan, volume):
                shutil.rmtree(path, ignore_errors=True)
    write_json(chosen.json, ["numba", "numpy", "zarr", "dask", "distributed", "finufft"], **row)
    if row["identical"] != len(row["slices"]):
        raise SystemExit("slices computed alone have OTHER BITS")


def measure(chosen: argparse.Namespace, scan: Path, volume: Path, row: dict[str, Any]) -> None:
    """Reconstruct the scan with the real command and fill in `row`."""
    from dtomo.simulate import read_truth

    truth = read_truth(scan)
    alone = Alone(scan, truth.center)
    part = compressed_part(alone, chosen.folder)
    whole = math.prod((truth.slices, truth.columns, truth.columns)) * 8
    print(f"scan {gigabytes(math.prod(alone.scan.shape) * 8)}, on disk {gigabytes(stored(scan))}; ", end="")
    print(f"volume {gigabytes(whole)}, on disk about {gigabytes(part * whole)}", flush=True)
    options: tuple[object, ...] = ("--center", truth.center, "--workers", chosen.workers, "--memory", chosen.memory)
    options = (*options, "--levels", chosen.levels, "--overwrite")
    planned = watch("recon", scan, volume, "--plan", *options).output
    done = watch("recon", scan, volume, *options)
    summary = json.loads(volume.with_name("volume.zarr.summary.json").read_text())
    row |= {"seconds": done.seconds, "stages": summary["seconds_by_stage"], "peaks": done.peaks}
    row |= {"together": done.together, "read": done.read, "written": done.written}
    row |= {name: summary[name] for name in ("planned_memory", "planned_seconds", "bytes_read", "bytes_written")}
    row |= {"scan_stored": stored(scan), "volume_stored": stored(volume), "expected_stored": part * whole}
    report(done, planned, summary, row)
    start = time.perf_counter()
    row |= compare(alone, volume, chosen.check)
    print(
        f"{row['identical']} of {len(row['slices'])} random slices have the bits of the same computed alone; ", end=""
    )
    print(
        f"error in the circle at most {row['error_real']:.3f} (real) and {row['error_imag']:.3f} (imaginary) of ",
        end="",
    )
    print(f"the phantom; compared in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
