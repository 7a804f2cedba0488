"""Iterations of a cone beam in slabs: what the cut changes, what two workers gain, tasks of an iteration, memory.

``python -m benchmarks.slabs``. Differences are those of 2 and 4 slabs from one: the largest over the largest value,
with what rounding the data anew (a change of 6e-8 of each) does; "few views": total variation of 60 views at 256³. Two
workers of one thread are compared with one worker of one thread on the same two slabs, in wall time and in processor
time of the busiest worker, which other programs disturb less. Memory is the highest of each worker of `dtomo recon`,
beside its plan.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from benchmarks import environment
from benchmarks.measure import Row, number, table, write_json
from benchmarks.solvers import problem
from dtomo import algorithms, recon, simulate
from dtomo.distributed.clusters import Resources, connect
from dtomo.distributed.together import run_here
from dtomo.geometry import ParallelBeam, VectorGeometry, cone_beam, laminography
from dtomo.operators import RayProjector, SlabLayout, SlabProjector, even_slabs
from dtomo.recon.coupled import Coupled
from dtomo.settings import ReconSettings

SOLVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SIRT, x ≥ 0": ("sirt", {"lower": 0.0}),
    "CGLS": ("cgls", {}),
    "LSQR": ("lsqr", {}),
    "OS-SART, 10 subsets": ("os_sart", {}),
    "MLEM": ("mlem", {}),
    "OSEM, 10 subsets": ("osem", {}),
    "TV, PDHG": ("tv", {"strength": 0.3}),
    "TV, FISTA": ("fista", {"prior": algorithms.TotalVariation(0.3), "lower": 0.0}),
}
MEMORY = ("sirt", "cgls", "os-sart", "tv", "fista")


def geometries(size: int, views: int) -> dict[str, VectorGeometry]:
    """A cone that magnifies 1.5 times, and laminography, whose slabs reach most rows."""
    angles = np.arange(views) * 360 / views
    wide = int(1.2 * size)
    return {
        "cone": cone_beam(
            angles,
            wide,
            wide,
            source_axis=3 * size,
            source_detector=4.5 * size,
            pixel=1.5,
            shape=(size,) * 3,
            voxel=1.0,
        ),
        "laminography": laminography(angles, wide, wide, tilt=30, shape=(size // 4, size, size)),
    }


def measured(geometry: VectorGeometry, noise: float) -> NDArray[np.float32]:
    """Projections of a phantom with noise, not negative."""
    depth, height, width = geometry.shape
    body = simulate.head().volume(max(height, width))[:: max(1, max(height, width) // depth)][:depth, :height, :width]
    data = RayProjector(geometry).forward(np.ascontiguousarray(body, np.float32))
    random = np.random.default_rng(0).standard_normal(data.shape).astype(np.float32)
    return np.maximum(data + np.float32(noise * data.max()) * random, 0)


def solved(geometry: VectorGeometry, data: NDArray[Any], name: str, slabs: int, iterations: int) -> NDArray[Any]:
    """The solution in so many slabs, in this process."""
    layout = SlabLayout.of(geometry, even_slabs(geometry.shape[0], slabs))
    solver, options = SOLVERS[name]

    def work(peers: Any) -> NDArray[Any]:
        rows = slice(*layout.rows[peers.number])
        operator = SlabProjector(layout, peers)
        return np.asarray(
            getattr(algorithms, solver)(operator, data[:, rows], iterations=iterations, **options).solution
        )

    return np.concatenate(run_here(work, slabs))


def differences(size: int, views: int, iterations: int) -> list[Row]:
    """Of 2 and 4 slabs from one."""
    rows = []
    for beam, geometry in geometries(size, views).items():
        data = measured(geometry, 0.01)
        again = data * (1 + 6e-8 * np.random.default_rng(1).choice([-1, 1], data.shape)).astype(np.float32)
        for name in SOLVERS:
            count = max(2, iterations // 4) if "subsets" in name else iterations
            one = solved(geometry, data, name, 1, count)

            def away(found: NDArray[Any], one: NDArray[Any] = one) -> float:
                return float(np.abs(found - one).max() / np.abs(one).max())

            row: Row = {"beam": beam, "solver": name, "iterations": count}
            row |= {f"{n} slabs": away(solved(geometry, data, name, n, count)) for n in (2, 4)}
            rows.append(row | {"rounded data": away(solved(geometry, again, name, 1, count))})
    return rows


def few_views(size: int, iterations: int) -> list[Row]:
    """Total variation in three dimensions of 60 noisy views of a parallel beam, in 1, 2, 4 slabs, beside FBP."""
    operator, volume, data = problem(size, size, 60, 0.02)
    beam: ParallelBeam = operator.geometry  # type: ignore[attr-defined]
    options: dict[str, Any] = {
        "strength": 0.02 * size / 2, "iterations": iterations, "lower": 0.0, "spacing": (1.0, 1.0, 1.0)
    }  # fmt: skip
    norm, plain = np.linalg.norm(volume), algorithms.fbp(data, beam, filter="hann")
    row: Row = {"size": size, "iterations": iterations, "FBP (hann)": float(np.linalg.norm(plain - volume) / norm)}
    one = None
    for count in (1, 2, 4):
        whole = Coupled.of(beam, even_slabs(size, count))

        def work(peers: Any, whole: Coupled = whole) -> NDArray[Any]:
            part = whole.operator(peers)
            return np.asarray(
                algorithms.tv(part, part.arrange(data[:, slice(*whole.rows[peers.number])]), **options).solution
            )

        found = np.concatenate(run_here(work, count))
        if one is None:
            one = found
            row["TV"] = float(np.linalg.norm(found - volume) / norm)
        else:
            row[f"{count} slabs"] = float(np.abs(found - one).max() / np.abs(one).max())
    return [row]


def scaling(size: int, views: int, iterations: int) -> list[Row]:
    """Seconds of an iteration in two slabs on one worker and on two, and what the scheduler has to do with it."""
    rows = []
    for beam, geometry in geometries(size, views).items():
        data, seconds, busy = measured(geometry, 0.01), {}, {}
        for workers in (1, 2):
            with connect(Resources(workers, 1, 4_000_000_000, dashboard=None)) as client:
                blocks = da.from_array(data, chunks=(-1, -(-data.shape[1] // 2), -1)).persist()
                found = []
                for count in (2, 2, 2 + iterations):
                    before, processor, start = _transitions(client), _processor(client), time.perf_counter()
                    solution = recon.cgls(blocks, geometry, iterations=count, slabs=2)
                    spent = time.perf_counter() - start, _transitions(client) - before
                    found.append((*spent, max(after - old for after, old in zip(_processor(client), processor))))
                seconds[workers], transitions, busy[workers] = (
                    (long - short) / iterations for long, short in zip(found[2], found[1])
                )
                del solution
        rows.append(
            {"beam": beam, "one worker, s": seconds[1], "two workers, s": seconds[2], "gain": seconds[1] / seconds[2]}
            | {"gain in processor time": busy[1] / busy[2], "transitions an iteration": transitions}
        )
    return rows


def _transitions(client: Any) -> int:
    return int(client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.transition_counter))


def _processor(client: Any) -> list[float]:
    """Seconds of processor time of each worker so far."""
    found = client.run(time.process_time)
    return [found[address] for address in sorted(found)]


def memory(size: int, views: int) -> list[Row]:
    """Peaks of workers beside the plan, from disk to disk in two slabs."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        scan = simulate.simulate_geometry_scan(Path(folder) / "scan.h5", "cone", size=size, angles=views, photons=1e5)
        for name in MEMORY:
            more: dict[str, Any] = {"strength": 0.02} if name in ("tv", "fista") else {}
            more |= {"prior": "tv"} if name == "fista" else {}
            settings = ReconSettings(
                scan=scan.path, output=Path(folder) / f"{name}.zarr", algorithm=name, iterations=3, workers=2,
                slab=-(-size // 2 // 8) * 8, levels=1, **more,
            )  # fmt: skip
            done = recon.run(settings, quiet=True)
            peaks = done.summary["peak_memory"].values()
            rows.append({"solver": name, "planned, MB": done.plan.worker_memory / 1e6, "peak, MB": max(peaks) / 1e6})
            rows[-1]["ratio"] = rows[-1]["peak, MB"] / rows[-1]["planned, MB"]
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=128, help="voxels along x and y")
    parser.add_argument("--views", type=int, default=90)
    parser.add_argument("--few-size", type=int, default=256, help="of the phantom of 60 views")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--only", choices=["differences", "few views", "scaling", "memory"])
    parser.add_argument("--json", type=Path, help="also write what was measured here")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    chosen = parser.parse_args()
    size, views, iterations = (24, 20, 4) if chosen.quick else (chosen.size, chosen.views, chosen.iterations)
    environment.restart_clean(None)
    found: dict[str, list[Row]] = {}
    measures: dict[str, Callable[[], list[Row]]] = {
        "differences": lambda: differences(size, views, iterations),
        "few views": lambda: few_views(32 if chosen.quick else chosen.few_size, 20 if chosen.quick else 200),
        "scaling": lambda: scaling(size, views, max(4, iterations // 2)),
        "memory": lambda: memory(size, views),
    }
    for name, measure in measures.items():
        if chosen.only in (None, name):
            rows = found[name] = measure()
            lines = [
                [number(value) if isinstance(value, float) else str(value) for value in row.values()] for row in rows
            ]
            print(f"\n{name}\n\n{table(list(rows[0]), lines)}", flush=True)
    write_json(chosen.json, ["numpy", "numba", "distributed"], **found)


if __name__ == "__main__":
    main()
