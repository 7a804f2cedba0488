"""Projection and back projection of cone beams: `RayProjector`, beside it RTK's Joseph and MBIRJAX on the same cores.

``python -m benchmarks.rays --sizes 128 256 --rtk PYTHON --mbirjax PYTHON`` (interpreters of environments that have
them). A size N is N³ voxels, N² pixels, and `--views` views. An update is a voxel in a view. Projections are compared
with RTK's by the root mean square difference over the largest value, which is that of two ways to interpolate; other
geometries are timed without peers.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cone import ROUND
from benchmarks.environment import cores, describe
from benchmarks.measure import runs
from dtomo import threads
from dtomo.geometry import VectorGeometry, cone_beam, fan_beam, laminography, tilt_series
from dtomo.operators.rays import RayProjector
from dtomo.simulate import head, voxel_values

PIXEL, VOXEL = 1.5, 0.95


def options() -> argparse.ArgumentParser:
    """What can be chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for the repeats of one task")
    parser.add_argument("--cores", type=int, help="threads of every package; default all")
    parser.add_argument("--rtk", type=Path, help="interpreter of an environment with itk-rtk")
    parser.add_argument("--mbirjax", type=Path, help="interpreter of an environment with mbirjax")
    parser.add_argument("--json", type=Path, help="also write what was measured here")
    parser.add_argument("--quick", action="store_true", help="a tiny size, to see that it works")
    return parser


def geometries(size: int, views: int) -> dict[str, VectorGeometry]:
    """One of each kind."""
    angles = np.arange(views) * 360 / views
    distances = {name: value * size for name, value in ROUND.items()}
    shape = (size, size, size)
    return {
        "cone": cone_beam(angles, size, size, **distances, pixel=PIXEL, shape=shape, voxel=VOXEL),
        "fan": fan_beam(angles, size, slices=size, **distances, pixel=PIXEL, shape=shape, voxel=VOXEL),
        "laminography": laminography(angles, size, size, tilt=35, shape=shape),
        "cone, turned detector": cone_beam(
            angles, size, size, **distances, pixel=PIXEL, shape=shape, voxel=VOXEL, roll=2
        ),
        "tilt series": tilt_series(np.linspace(-70, 70, views), size, size, shape=shape),
        "tilt series, slanted axis": tilt_series(np.linspace(-70, 70, views), size, size, shape=shape, axis_angle=5),
    }


def measure(size: int, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds and updates per second of one size, in each geometry."""
    rows = []
    for name, geometry in geometries(size, chosen.views).items():
        projector = RayProjector(geometry)
        volume = np.moveaxis(np.ascontiguousarray(np.moveaxis(voxel_values(head(), geometry), 0, -1)), -1, 0)
        stack, forward = runs(lambda p=projector, v=volume: p.forward(v), chosen.repeats, chosen.limit)
        _, back = runs(lambda p=projector, s=stack: p.adjoint(s), chosen.repeats, chosen.limit)
        updates = float(np.prod(geometry.shape)) * geometry.views / 1e9
        row: dict[str, Any] = {
            "geometry": name, "size": size, "cores": chosen.cores, "forward": min(forward), "backward": min(back),
            "GUPS forward": updates / min(forward), "GUPS backward": updates / min(back),
        }  # fmt: skip
        for package in ("rtk", "mbirjax") if name == "cone" else ():
            if getattr(chosen, package):
                row |= beside(package, volume, stack, geometry, row, chosen)
        print("  ".join(f"{key} {value:.4g}" if key != "geometry" else value for key, value in row.items()), flush=True)
        rows.append(row)
    return rows


def beside(
    package: str, volume: np.ndarray, stack: np.ndarray, geometry: VectorGeometry, row: dict[str, Any],
    chosen: argparse.Namespace,
) -> dict[str, Any]:  # fmt: skip
    """Seconds of a peer, by its own interpreter, and how many times as long they are."""
    size = geometry.columns
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder, "volume.npy"), Path(folder, "projections.npy")
        np.save(given, np.ascontiguousarray(volume))
        task = {
            "package": package, "volume": str(given), "out": str(out), "rows": size, "columns": size, "pixel": PIXEL,
            "angles": list(np.arange(chosen.views) * 360 / chosen.views), "voxel": VOXEL, "cores": chosen.cores,
            **{name: value * size for name, value in ROUND.items()}, "repeats": chosen.repeats,
        }  # fmt: skip
        command = [str(getattr(chosen, package)), str(Path(__file__).with_name("rays_peers.py")), json.dumps(task)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{package} did not run:\n{done.stderr[-2000:]}")
        found = np.load(out)
    times = {key: min(seconds) for key, seconds in json.loads(done.stdout.splitlines()[-1]).items()}
    result = {f"{package} {key}": seconds for key, seconds in times.items()}
    result |= {f"{package} times as long, {key}": seconds / row[key] for key, seconds in times.items()}
    if package == "rtk":
        result["difference"] = float(np.sqrt(np.mean((found - stack) ** 2)) / np.abs(stack).max())
    return result


def main() -> None:
    """Measure, print a table, write JSON."""
    chosen = options().parse_args()
    if chosen.quick:
        chosen.sizes, chosen.views, chosen.repeats = [32], 12, 1
    chosen.cores = chosen.cores or cores()
    threads.set_threads(chosen.cores)
    rows = [row for size in chosen.sizes for row in measure(size, chosen)]
    if chosen.json:
        chosen.json.write_text(json.dumps({"environment": describe(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
