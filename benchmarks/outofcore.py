"""An iterative solve of a volume larger than the memory of all workers: ``python -m benchmarks.outofcore``.

CGLS, from a raw scan to a volume on disk that is four times what all workers together may hold. Prints the limit of
each process and its peak, and compares some slices, bit for bit, with the same ones computed alone.
"""

import argparse
import json
import math
import random
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import environment
from benchmarks.measure import number, table, write_json
from benchmarks.recon import axis, planned_memory, run_dtomo


def rows_for(size: int, limit: int, workers: int, times: float) -> int:
    """Slices of a volume of `times` the memory of all workers, a multiple of 64."""
    return 64 * math.ceil(times * limit * workers / (4 * size**2) / 64)


def differing_slices(scan_path: Path, output: Path, center: float, iterations: int, count: int) -> list[int]:
    """Those of `count` random slices that are not the same, bit for bit, computed alone in this process."""
    from dtomo.io import open_volume
    from dtomo.recon.prepare import line_integrals
    from dtomo.recon.scans import geometry_of, open_scan, scale_of
    from dtomo.recon.slab import solve
    from dtomo.settings import ReconSettings

    settings = ReconSettings(scan=scan_path, output=output, algorithm="cgls", iterations=iterations, center=center)
    scan, volume = open_scan(settings), open_volume(output).array
    geometry, scale = geometry_of(scan, center, False), np.float32(scale_of(scan)[0])
    wrong = []
    for row in sorted(random.Random(0).sample(range(volume.shape[0]), min(count, volume.shape[0]))):
        data, _ = line_integrals(scan, settings, slice(row, row + 1))
        alone = solve(data, geometry, settings)[0] * scale
        if not np.array_equal(alone[0], np.asarray(volume[row])):
            wrong.append(row)
    return wrong


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512, help="width of a slice")
    parser.add_argument("--angles", type=int, default=128)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", type=int, default=400, help="limit of each worker, in MB")
    parser.add_argument("--times", type=float, default=4.0, help="volume over the memory of all workers")
    parser.add_argument("--slices", type=int, default=12, help="slices compared")
    parser.add_argument("--folder", type=Path, help="work here; default a temporary folder")
    parser.add_argument("--json", type=Path, help="also write what was measured here")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    chosen = parser.parse_args()
    environment.restart_clean()
    if chosen.quick:
        chosen.size, chosen.angles, chosen.iterations, chosen.times, chosen.slices = 64, 40, 3, 0.002, 4
    limit = chosen.memory * 10**6
    rows = rows_for(chosen.size, limit, chosen.workers, chosen.times)
    volume = rows * chosen.size**2 * 4
    print(f"{environment.processor()}, {environment.cores()} threads", flush=True)
    with tempfile.TemporaryDirectory(dir=chosen.folder) as temporary:
        scan, output = Path(temporary, "scan.h5"), Path(temporary, "volume.zarr")
        sizes = ("--size", chosen.size, "--rows", rows, "--angles", chosen.angles, "--columns", chosen.size)
        seconds, _, _ = run_dtomo("simulate", "scan", scan, *sizes)
        print(f"simulated {scan.stat().st_size / 1e9:.2f} GB in {seconds:.0f} s", flush=True)
        options = (
            scan, output, "--algorithm", "cgls", "--iterations", chosen.iterations, "--center", axis(scan),
            "--workers", chosen.workers, "--memory", f"{chosen.memory}MB", "--overwrite",
        )  # fmt: skip
        plan = run_dtomo("recon", *options, "--plan")[2]
        print(plan, flush=True)
        seconds, _, _ = run_dtomo("recon", *options)
        summary = json.loads(output.with_name(output.name + ".summary.json").read_text())
        wrong = differing_slices(scan, output, axis(scan), chosen.iterations, chosen.slices)
        shutil.rmtree(output)
    peaks = sorted(summary["peak_memory"].values(), reverse=True)
    head = ["volume, GB", "limit of all workers, GB", "ratio", "planned per worker, MB", "peaks of workers, MB",
            "peak of the client, MB", "s"]  # fmt: skip
    line = [
        f"{volume / 1e9:.2f}", f"{limit * chosen.workers / 1e9:.2f}", f"{volume / limit / chosen.workers:.1f}",
        number(planned_memory(plan) / 1e6), ", ".join(number(peak / 1e6) for peak in peaks),
        number(summary["client_peak_memory"] / 1e6), number(seconds),
    ]  # fmt: skip
    print(table(head, [line]), flush=True)
    within = max(peaks) <= limit
    print(f"every worker {'within' if within else 'BEYOND'} its limit; {chosen.slices - len(wrong)} of {chosen.slices} "
          f"slices have the bits of the same computed alone{f'; DIFFERENT: {wrong}' if wrong else ''}")  # fmt: skip
    write_json(
        chosen.json, ["numba", "numpy", "dask", "distributed", "zarr"], volume=volume, limit=limit,
        workers=chosen.workers, seconds=seconds, peaks=peaks, client=summary["client_peak_memory"], different=wrong,
    )  # fmt: skip
    sys.exit(0 if within and not wrong else 1)


if __name__ == "__main__":
    main()
