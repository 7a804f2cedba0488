"""What distribution costs and gains: ``python -m benchmarks.distribution``.

overhead  iterations of 125 slabs whose kernel does nothing: milliseconds per slab, and bytes moved between iterations
graph     a 64 GB iteration (2000³ complex64): tasks, bytes of its graph, time to build it
sums      a sum of 16 arrays over four workers: bytes moved local-first, and added in pairs placed at random
speedup   SIRT of a stack of slices on two workers and on one, of one thread each: medians of paired runs; beside them
          the same work in two bare processes, each with its half: what the machine itself gives
"""

import argparse
import concurrent.futures
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import environment
from benchmarks.measure import number, table, write_json

PARTS = ("overhead", "graph", "sums", "speedup")


def _small(shared: None, slab: Any) -> NDArray[np.complex64]:
    return np.full((len(slab), 64, 64), slab.index, np.complex64)


def _nothing(shared: Any, slab: Any, part: Any) -> Any:
    return part


def overhead(client: Any, slabs: int, iterations: int) -> dict[str, float]:
    """Milliseconds per slab and iteration without any kernel, and bytes that moved."""
    from dtomo.distributed import graph
    from dtomo.distributed.slab_array import SlabArray
    from dtomo.distributed.slabs import cut

    array = SlabArray.create(client, _small, None, cut(slabs, 1)).wait()
    before, walls, processor = graph.bytes_sent(client), [], time.process_time()
    for _ in range(iterations):
        start = time.perf_counter()
        array = array.update(_nothing).wait()
        walls.append((time.perf_counter() - start) * 1e3 / slabs)
    processor = (time.process_time() - processor) * 1e3 / slabs / iterations
    return {
        "slabs": slabs,
        "iterations": iterations,
        "ms_per_slab": statistics.median(walls),
        "least_ms_per_slab": min(walls),
        "processor_ms_per_slab": processor,
        "bytes_moved": graph.bytes_sent(client) - before,
    }


def graph_of_64_gigabytes() -> dict[str, float]:
    """Of 125 slabs of 16 slices and of 32 slabs of 64, on eight workers; no arrays are made."""
    from dtomo.distributed import graph
    from dtomo.distributed.slab_array import slab_tasks
    from dtomo.distributed.slabs import cut

    found: dict[str, float] = {}
    for height in (16, 64):
        slabs = cut(2000, height)
        homes = graph.spread(len(slabs), [f"tcp://10.0.0.{i}:40000" for i in range(8)])
        operands: list[list[Any]] = [[graph.Ref(("dtomo-slab-000000000000", slab.index))] for slab in slabs]
        times = []
        for _ in range(10):
            start = time.perf_counter()
            tasks = slab_tasks("dtomo-slab-111111111111", slabs, homes, _nothing, None, operands)
            graph.build(tasks)
            times.append(time.perf_counter() - start)
        found |= {f"bytes_{len(slabs)}": graph.graph_bytes(tasks), f"ms_{len(slabs)}": statistics.median(times) * 1e3}
    return found


def _block(megabytes: int, slab: Any) -> NDArray[np.float32]:
    return np.full(megabytes * 250_000, slab.index, np.float32)


def _add(left: Any, right: Any) -> Any:
    return left + right


def sums(client: Any, blocks: int, megabytes: int) -> dict[str, float]:
    """Megabytes moved by a sum over consecutive blocks, and by pairs of blocks that lie anywhere."""
    from distributed import wait

    from dtomo.distributed import graph
    from dtomo.distributed.slab_array import SlabArray
    from dtomo.distributed.slabs import cut

    array = SlabArray.create(client, _block, megabytes, cut(blocks, 1)).wait()
    before = graph.bytes_sent(client)
    wait(array.sum())
    local = graph.bytes_sent(client) - before
    workers = graph.workers_in_order(client)
    scattered = np.random.default_rng(0).permutation([workers[i % len(workers)] for i in range(blocks)])
    array = SlabArray.create(client, _block, megabytes, cut(blocks, 1), [str(home) for home in scattered]).wait()
    before = graph.bytes_sent(client)
    parts = list(array.parts)
    while len(parts) > 1:
        parts = [client.submit(_add, a, b, pure=False) for a, b in zip(parts[::2], parts[1::2])]
    wait(parts)
    return {
        "blocks": blocks,
        "megabytes": megabytes,
        "workers": len(workers),
        "local_first_mb": local / 1e6,
        "pairwise_mb": (graph.bytes_sent(client) - before) / 1e6,
    }


def _sinograms(spec: tuple[int, int, int], slab: Any) -> NDArray[np.float32]:
    """Noise (angle, row, column), rows innermost in memory: the time of SIRT does not depend on the values."""
    width, angles, _ = spec
    values = np.random.default_rng(slab.index).random((angles, width, len(slab)), np.float32)
    return values.swapaxes(1, 2)


def _sirt(spec: tuple[int, int, int], slab: Any, data: NDArray[np.float32]) -> float:
    from dtomo.algorithms import sirt
    from dtomo.geometry import ParallelBeam
    from dtomo.operators import ParallelProjector
    from dtomo.threads import set_threads

    width, angles, iterations = spec
    set_threads(1)
    operator = ParallelProjector(
        ParallelBeam(np.linspace(0, 180, angles, endpoint=False), width), len(slab), np.float32
    )
    return float(sirt(operator, data, iterations=iterations).solution[0, 0, 0])


_BARE: dict[int, tuple[Any, NDArray[np.float32]]] = {}


def _bare(spec: tuple[int, int, int], slab: Any) -> float:
    """The work of a slab in a process of its own, which keeps its data and its memory as a worker does."""
    from dtomo.memory import keep_memory

    keep_memory()
    if slab.index not in _BARE:
        _BARE[slab.index] = slab, _sinograms(spec, slab)
    return _sirt(spec, *_BARE[slab.index])


class _BareProcesses:
    """Two processes without a scheduler; the even slabs belong to one, the odd ones to the other."""

    def __init__(self, slabs: list[Any]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pools = [concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) for _ in range(2)]
        self._slabs = slabs

    def run(self, spec: tuple[int, int, int]) -> None:
        """All slabs, both processes at once."""
        jobs = [self._pools[slab.index % 2].submit(_bare, spec, slab) for slab in self._slabs]
        for job in jobs:
            job.result()

    def close(self) -> None:
        """End both."""
        for pool in self._pools:
            pool.shutdown()


def speedup(width: int, slices: int, angles: int, iterations: int, repeats: int) -> dict[str, Any]:
    """Seconds of SIRT on one worker, on two, and in two bare processes, in turns; with ratios."""
    from dtomo.distributed.clusters import Resources, connect
    from dtomo.distributed.slab_array import SlabArray
    from dtomo.distributed.slabs import cut, slab_height

    spec = (width, angles, iterations)
    seconds: dict[str, list[float]] = {"1 worker": [], "2 workers": [], "2 bare processes": []}
    one_worker, two_workers, bare = seconds.values()
    with (
        connect(Resources(1, 1, 8_000_000_000, dashboard=None)) as one,
        connect(Resources(2, 1, 8_000_000_000, dashboard=None)) as two,
    ):
        slabs = cut(slices, slab_height(slices, 2))
        one_array, two_array = (SlabArray.create(client, _sinograms, spec, slabs) for client in (one, two))
        processes = _BareProcesses(list(slabs))
        ways: list[Callable[[tuple[int, int, int]], Any]] = [
            lambda spec: one_array.update(_sirt, spec).wait(),
            lambda spec: two_array.update(_sirt, spec).wait(),
            processes.run,
        ]
        for way in ways:
            way((width, angles, 1))
        for _ in range(repeats):
            for way, (name, taken) in zip(ways, seconds.items()):
                start = time.perf_counter()
                way(spec)
                taken.append(time.perf_counter() - start)
                print(f"  {name}: {taken[-1]:.2f} s", flush=True)
        processes.close()
    return {
        "width": width,
        "slices": slices,
        "angles": angles,
        "iterations": iterations,
        "seconds": seconds,
        "ratio": statistics.median(one_worker) / statistics.median(two_workers),
        "median_of_ratios": statistics.median(a / b for a, b in zip(one_worker, two_workers)),
        "ratio_of_bare_processes": statistics.median(one_worker) / statistics.median(bare),
    }


def _with_workers(count: int, measure: Callable[[Any], dict[str, float]]) -> dict[str, float]:
    from dtomo.distributed.clusters import Resources, connect

    with connect(Resources(count, 1, 4_000_000_000, dashboard=None)) as client:
        return measure(client)


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description="Costs and gains of distribution")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--width", type=int, default=512, help="of a slice of SIRT")
    parser.add_argument("--slices", type=int, default=256)
    parser.add_argument("--angles", type=int, default=512)
    parser.add_argument("--iterations", type=int, default=10, help="of SIRT")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs of SIRT")
    parser.add_argument("--json", type=Path, help="also write what was measured here")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    chosen = parser.parse_args()
    environment.restart_clean()
    if chosen.quick:
        chosen.width, chosen.slices, chosen.angles, chosen.iterations, chosen.repeats = 64, 64, 32, 2, 2
    found: dict[str, Any] = {}
    if "overhead" in chosen.parts:
        found["overhead"] = _with_workers(2, lambda client: overhead(client, 125, 3 if chosen.quick else 20))
    if "graph" in chosen.parts:
        found["graph"] = graph_of_64_gigabytes()
    if "sums" in chosen.parts:
        found["sums"] = _with_workers(4, lambda client: sums(client, 16, 1 if chosen.quick else 64))
    if "speedup" in chosen.parts:
        found["speedup"] = speedup(chosen.width, chosen.slices, chosen.angles, chosen.iterations, chosen.repeats)
    for part, values in found.items():
        shown = [
            [name, number(value) if isinstance(value, int | float) else str(value)] for name, value in values.items()
        ]
        print(f"\n{table([part, ''], shown)}")
    write_json(chosen.json, ["dask", "distributed", "numba", "numpy"], **found)


if __name__ == "__main__":
    main()
