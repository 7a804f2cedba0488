"""FDK of a cone beam: a phantom by `dtomo.algorithms.fdk`, and by RTK's on the same cores.

``python -m benchmarks.cone --sizes 128 256 --rtk /path/to/python/with/itk-rtk``. A size N is N³ voxels from N views of
N² pixels. Errors are against the phantom, root mean square in the ball that all views see, in the middle slices, over
the phantom's range; the difference between the packages likewise.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import cores, describe
from benchmarks.measure import runs
from dtomo import threads
from dtomo.algorithms import fdk
from dtomo.geometry import VectorGeometry, cone_beam
from dtomo.operators.voxels import add_backprojection, voxel_volume
from dtomo.simulate import head, ray_integrals, voxel_values

ROUND = {"source_axis": 3.0, "source_detector": 4.5}
"""Distances over the width of the volume."""


def options() -> argparse.ArgumentParser:
    """What can be chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for the repeats of one task")
    parser.add_argument("--cores", type=int, help="threads of every package; default all")
    parser.add_argument("--rtk", type=Path, help="interpreter of an environment with itk-rtk")
    parser.add_argument("--json", type=Path, help="also write what was measured here")
    parser.add_argument("--quick", action="store_true", help="a tiny size, to see that it works")
    return parser


def geometry_of(size: int) -> VectorGeometry:
    """N views over a whole turn; the ball that all views see fills the slice."""
    angles = np.arange(size) * 360 / size
    distances = {name: value * size for name, value in ROUND.items()}
    return cone_beam(angles, size, size, **distances, pixel=1.5, shape=(size, size, size), voxel=0.95)


def measure(size: int, chosen: argparse.Namespace) -> dict[str, Any]:
    """Seconds, updates per second and errors of one size."""
    geometry = geometry_of(size)
    unit = 0.45 * size * 0.95
    projections = ray_integrals(head(), geometry, unit=unit, fine=2)
    truth = voxel_values(head(), geometry, unit=unit)
    volume, seconds = runs(lambda: fdk(projections, geometry), chosen.repeats, chosen.limit)
    lines = np.ascontiguousarray(projections.swapaxes(1, 2))
    target = voxel_volume(geometry, (0, size))
    every = slice(0, geometry.views)
    _, back = runs(
        lambda: add_backprojection(lines, target, geometry, every, (0, size), 0), chosen.repeats, chosen.limit
    )
    updates = float(np.prod(geometry.shape)) * geometry.views
    row: dict[str, Any] = {
        "size": size, "cores": chosen.cores, "seconds": min(seconds), "back projection": min(back),
        "updates per second": updates / min(back), "error": error(volume, truth),
    }  # fmt: skip
    if chosen.rtk:
        other, theirs = run_rtk(projections, geometry, chosen)
        row["RTK seconds"], row["RTK error"] = min(theirs), error(other, truth)
        row["times faster"], row["difference"] = min(theirs) / min(seconds), error(volume, other)
    return row


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """Root mean square difference in the ball, in the middle fifth of the slices, over the range of the phantom."""
    size = len(expected)
    middle = slice(2 * size // 5, size - 2 * size // 5)
    y, x = np.indices(expected.shape[1:]) - (size - 1) / 2
    inside = np.hypot(x, y) < 0.45 * size
    return float(np.sqrt(np.mean((found[middle, inside] - expected[middle, inside]) ** 2)))


def run_rtk(
    projections: np.ndarray, geometry: VectorGeometry, chosen: argparse.Namespace
) -> tuple[np.ndarray, list[float]]:
    """Volume and seconds of RTK's FDK, by its own interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder, "projections.npy"), Path(folder, "volume.npy")
        np.save(given, projections)
        size = geometry.columns
        task = {
            "projections": str(given), "out": str(out), "angles": list(np.arange(size) * 360 / size), "pixel": 1.5,
            **{name: value * size for name, value in ROUND.items()}, "voxel": 0.95, "shape": geometry.shape,
            "cores": chosen.cores, "repeats": chosen.repeats,
        }  # fmt: skip
        script = Path(__file__).with_name("cone_rtk.py")
        done = subprocess.run(
            [str(chosen.rtk), str(script), json.dumps(task)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"RTK's FDK did not run:\n{done.stderr[-2000:]}")
        return np.load(out), json.loads(done.stdout.splitlines()[-1])["seconds"]


def main() -> None:
    """Measure, print a table, write JSON."""
    chosen = options().parse_args()
    if chosen.quick:
        chosen.sizes, chosen.repeats = [32], 1
    chosen.cores = chosen.cores or cores()
    threads.set_threads(chosen.cores)
    fdk(np.zeros((8, 8, 8), np.float32), geometry_of(8))  # compiled before it is timed
    rows = []
    for size in chosen.sizes:
        row = measure(size, chosen)
        rows.append(row)
        print("  ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps({"environment": describe(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
