"""What the page on the dashboard costs: ``python -m benchmarks.dashboard``.

runs   the same reconstruction with the page and without it, in turns, on one cluster: wall time and processor time of
       all processes. parts  each thing by itself: an event, a slab's pictures, an update of the page in a browser.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil

from benchmarks import environment
from benchmarks.measure import table, write_json


def processor_seconds() -> float:
    """Processor time of this process and all it has started and that still run."""
    here = psutil.Process()
    times = [process.cpu_times() for process in (here, *here.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def one_run(settings: Any, with_page: bool) -> tuple[float, float]:
    """Wall and processor seconds of a run."""
    from dtomo.recon import run

    off = mock.patch("dtomo.dashboard.plugin.install", return_value="switched off")
    before, start = processor_seconds(), time.perf_counter()
    if with_page:
        run(settings, overwrite=True, quiet=True)
    else:
        with off:
            run(settings, overwrite=True, quiet=True)
    return time.perf_counter() - start, processor_seconds() - before


def runs(folder: Path, size: int, iterations: int, slab: int, pairs: int) -> list[dict[str, Any]]:
    """Pairs of runs with and without the page; the order changes from pair to pair, and one pair before is thrown away.

    The ratios are medians over the pairs.
    """
    from dtomo.distributed.clusters import Resources, connect
    from dtomo.settings import ReconSettings
    from dtomo.simulate import read_truth, simulate_scan

    scan = folder / f"scan{size}.h5"
    if not scan.exists():
        simulate_scan(scan, size=size)
    rows = []
    with connect(Resources(2, 1, 2_000_000_000, dashboard="127.0.0.1:0")) as client:
        common = {"scan": scan, "output": folder / "out.zarr", "center": read_truth(scan).center, "slab": slab}
        common |= {"cluster": client.scheduler.address, "iterations": iterations}
        for algorithm in ("fbp", "sirt"):
            settings = ReconSettings(algorithm=algorithm, **common)
            found = []
            for pair in range(pairs + 1):
                order = (True, False) if pair % 2 else (False, True)
                found.append({with_page: one_run(settings, with_page) for with_page in order})
            found = found[1:]
            row: dict[str, Any] = {"algorithm": algorithm, "pairs": pairs}
            for place, name in enumerate(("wall", "cpu")):
                row[f"{name}_with"] = statistics.median(pair[True][place] for pair in found)
                row[f"{name}_without"] = statistics.median(pair[False][place] for pair in found)
                row[f"{name}_ratio"] = statistics.median(pair[True][place] / pair[False][place] for pair in found)
            rows.append(row)
    return rows


def best(work: Callable[[], Any], repeats: int = 20) -> float:
    """Seconds of the quickest of some calls."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def parts(width: int, slabs: int) -> dict[str, float]:
    """Seconds of the single things, for a volume of `width` squared slices in `slabs` slabs of 64."""
    from distributed import Client, LocalCluster

    from dtomo.arrays import empty_aligned
    from dtomo.dashboard.feed import SlabFeed, show_run
    from dtomo.dashboard.page import View
    from dtomo.dashboard.plugin import Page
    from dtomo.dashboard.thumbnails import Grid
    from dtomo.distributed.slabs import cut

    shape = (64 * slabs, width, width)
    part = np.moveaxis(empty_aligned((width, width, 64), np.float32), 2, 0)  # as the kernels leave it
    part[...] = np.random.default_rng(0).normal(size=part.shape)
    messages: list[dict[str, Any]] = []
    middle, other = cut(shape[0], 64)[slabs // 2], cut(shape[0], 64)[1]
    found = {}
    for name, slab in (("pictures of the slab in the middle", middle), ("pictures of any other slab", other)):
        feed = SlabFeed(Grid(shape), slab, messages.append)
        messages.clear()
        found[name] = best(lambda feed=feed: feed.picture(part), 5)
    with LocalCluster(0, dashboard_address="127.0.0.1:0") as local, Client(local) as client:
        description = {"name": "o", "shape": shape, "slabs": cut(shape[0], 64), "iterations": 100, "algorithm": "sirt"}
        with show_run(client, **description) as feed:
            assert feed is not None
            runs = local.scheduler.plugins[Page.name].runs
            event = {"run": feed.run, "slab": 1, "kind": "residuals", "start": 64, "slices": 64, "first": 0}
            found["taking in a residual"] = best(lambda: runs.take({**event, "norms": [1.0]}))
            picture = {"run": feed.run, "slab": 1, **messages[0]}
            found["taking in a picture"] = best(lambda: runs.take(picture))
            for index in range(slabs):
                runs.take({**event, "slab": index, "start": 64 * index, "norms": [0.9**i for i in range(100)]})

            async def update() -> float:
                view = View(runs, local.scheduler)

                def change_and_update() -> None:
                    for plane in ("xy", "xz", "yz"):
                        image = np.random.default_rng(0).normal(size=Grid(shape).pixels(plane)).astype(np.float32)
                        runs.by_id[feed.run].pictures[plane] = image
                    runs.by_id[feed.run].picture_version += 1
                    runs.by_id[feed.run].state = "done"  # no waiting for the next picture
                    view.update()

                return best(change_and_update, 5)

            found["an update of an open page with new pictures"] = local.sync(update)
    return found


def main() -> None:
    """Measure, print the tables, and write them as JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=256, help="voxels along each side of the simulated scan")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--slab", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--width", type=int, default=2000, help="voxels along a slice, for the parts")
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    arguments = parser.parse_args()
    environment.restart_clean()
    single = parts(arguments.width, 32)
    print(table(["part", "ms"], [[name, f"{1e3 * seconds:.3g}"] for name, seconds in single.items()]), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        found = runs(Path(folder), arguments.size, arguments.iterations, arguments.slab, arguments.pairs)
    names = ["wall_with", "wall_without", "wall_ratio", "cpu_with", "cpu_without", "cpu_ratio"]
    print(table(["algorithm", *names], [[row["algorithm"], *(f"{row[n]:.4g}" for n in names)] for row in found]))
    write_json(arguments.json, ["bokeh", "dask", "distributed", "numba", "numpy"], parts=single, runs=found)


if __name__ == "__main__":
    main()
