"""What iterations of large volumes cost beside their kernels: ``python -m benchmarks.scale``.

Builds the very graphs that dtomo would send, for 2000³ and 8000³ voxels on 4, 64 and 1024 workers, without arrays and
without workers, and counts: tasks, bytes of the graph, time to build it, bytes over the network, memory of a worker.
With the cost of a task for scheduler and client (measured here, or --cost) it says how many workers an iteration can
use before sending out its tasks takes longer than computing them.

separable  a SIRT iteration of complex projections: one task per slab, nothing is exchanged
coupled    the same with a 3-D regulariser: one slice of each neighbour, and a sum of three numbers
shared     the same with a gradient of what all slabs share (an image of 2048² complex64), summed and sent back

A second table is for joint ptycho-tomography (`dtomo.ptychotomo`), an epoch of Adam with 6 subsets of 1000 angles and
2000 frames of 256² each: tasks, bytes and memory as the run would have them, and seconds predicted from the rates of
this machine's kernels (frames through the model, voxels projected), measured first.
"""

import argparse
import dataclasses
import functools
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import number, table, write_json
from dtomo.distributed import graph
from dtomo.distributed.halo import plan_halo
from dtomo.distributed.plan import size
from dtomo.distributed.slab_array import halo_operands, slab_tasks, sum_tasks
from dtomo.distributed.slabs import cut, slab_height
from dtomo.distributed.sums import moved, plan_sum

COMPLEX64 = 8
IMAGE = 2048 * 2048 * COMPLEX64
"""Bytes of what all slabs share in the kind "shared"."""
PROJECTING = 20e9
"""Voxels times angles that one core projects or back-projects in a second: half of what it does of float32, which was
measured (docs/benchmarks.md)."""
KINDS = ("separable", "coupled", "shared")


@dataclasses.dataclass(frozen=True)
class Iteration:
    """A volume of `width`³ voxels with `angles` projections on `workers` workers of `threads` threads."""

    kind: str
    width: int
    workers: int
    threads: int
    angles: int

    @functools.cached_property
    def slabs(self) -> Any:
        """Of the volume."""
        return cut(self.width, slab_height(self.width, self.workers))

    @functools.cached_property
    def homes(self) -> tuple[str, ...]:
        """A worker for each slab."""
        return graph.spread(len(self.slabs), [f"tcp://10.0.{i // 250}.{i % 250}:40000" for i in range(self.workers)])

    def tasks(self) -> list[graph.PinnedTask]:
        """All tasks of an iteration, those of sums and borders counted."""
        keys = [("dtomo-slab-000000000000", slab.index) for slab in self.slabs]
        operands: list[list[Any]] = [[graph.Ref(key)] for key in keys]
        tasks: list[graph.PinnedTask] = []
        if self.kind == "coupled":
            plans = plan_halo(self.slabs, 1, "edge")
            borders, cuts = halo_operands(plans, keys, self.homes, self.homes, 0, "solution")
            operands = [[*own, border] for own, border in zip(operands, borders)]
            tasks += cuts
        shared = graph.Ref("dtomo-shared-000000000000") if self.kind == "shared" else None
        updates = slab_tasks("dtomo-slab-111111111111", self.slabs, self.homes, _update, shared, operands)
        tasks += updates
        if self.kind != "separable":
            tasks += sum_tasks("dtomo-sum-000000000000", [task.key for task in updates], self.homes, None)
        return tasks

    def network(self) -> dict[str, int]:
        """Bytes between workers by purpose."""
        sent: dict[str, int] = {}
        used = len(set(self.homes))
        if self.kind == "coupled":
            plans = plan_halo(self.slabs, 1, "edge")
            # a border goes once to each worker that needs it
            journeys = {
                (piece, self.homes[index])
                for index, plan in enumerate(plans)
                for piece in plan.pieces
                if self.homes[piece.slab] != self.homes[index]
            }
            sent["borders"] = sum(piece.stop - piece.start for piece, _ in journeys) * self.width**2 * COMPLEX64
        if self.kind != "separable":
            block = IMAGE if self.kind == "shared" else 3 * 8
            partial = len(list(moved(plan_sum(self.homes), self.homes)))
            sent["sums"] = partial * block
            sent["shared"] = (used - 1) * block
        return sent

    def memory(self) -> int:
        """Bytes of the busiest worker: solution, projections, and the arrays of one slab that is being updated."""
        height = max(len(slab) for slab in self.slabs)
        voxels, rows = height * self.width**2 * COMPLEX64, height * self.width * self.angles * COMPLEX64
        busiest = max(self.homes.count(home) for home in set(self.homes))
        held = busiest * (voxels + rows) + 2 * voxels + 2 * rows
        border = 2 * self.width**2 * COMPLEX64
        return held + {"separable": 0, "coupled": voxels + border, "shared": 9 * IMAGE}[self.kind]

    def kernel_seconds(self, workers: int | None = None) -> float:
        """Projecting and back-projecting: on these workers, or spread ideally over so many."""
        work = 2 * self.width**3 * self.angles / PROJECTING / self.threads
        if workers is not None:
            return work / workers
        busiest = max(self.homes.count(home) for home in set(self.homes))
        return work * busiest * max(len(slab) for slab in self.slabs) / self.width


def _update(shared: None, slab: Any, part: Any) -> Any:
    """Stands for the function of a slab, which travels by name."""
    return part


def measure(iteration: Iteration, cost: float) -> dict[str, Any]:
    """Counts of one iteration; `cost`: seconds of scheduler and client per task."""
    start = time.perf_counter()
    tasks = iteration.tasks()
    graph.build(tasks)
    build = time.perf_counter() - start
    network = iteration.network()
    scheduling, kernel = cost * len(tasks), iteration.kernel_seconds()
    return {
        **dataclasses.asdict(iteration),
        "slabs": len(iteration.slabs),
        "slices": len(iteration.slabs[0]),
        "workers_used": len(set(iteration.homes)),
        "tasks": len(tasks),
        "graph_bytes": graph.graph_bytes(tasks),
        "build_seconds": build,
        "network_bytes": network,
        "worker_memory": iteration.memory(),
        "scheduling_seconds": scheduling,
        "kernel_seconds": kernel,
        "most_workers": int(iteration.kernel_seconds(1) / scheduling),
    }


@dataclasses.dataclass(frozen=True)
class Rates:
    """Of one core: seconds for a frame of 256² (loss and gradients), and for a complex voxel and angle, to and fro."""

    frame: float
    voxel: float


def kernel_rates(quick: bool = False) -> Rates:
    """Measured with one thread."""
    import numpy as np

    from dtomo.geometry import ParallelBeam
    from dtomo.operators.projection import ParallelProjector
    from dtomo.ptycho.frames import FrameBlock
    from dtomo.ptycho.model import PtychoModel
    from dtomo.threads import using_threads

    width, slices, angles = (64, 16, 16) if quick else (512, 64, 32)
    random = np.random.default_rng(0)
    given = {
        "object": np.ones((1, 1, 400, 400), np.complex64),
        "probe": random.standard_normal((1, 256, 256)).astype(np.complex64),
        "positions": random.uniform(0, 140, (16, 2)),
    }
    block = FrameBlock(np.arange(16), random.poisson(9, (16, 256, 256)).astype(np.uint16))
    model, projector = (
        PtychoModel((256, 256)),
        ParallelProjector(ParallelBeam(np.linspace(0, 180, angles), width), slices, np.complex64),
    )
    volume = projector.zeros()

    def least(work: Any) -> float:
        work()
        samples = []
        for _ in range(2 if quick else 5):
            start = time.perf_counter()
            work()
            samples.append(time.perf_counter() - start)
        return min(samples)

    with using_threads(1):
        frame = least(lambda: model.loss_and_gradient(given, block)) / 16
        voxel = least(lambda: projector.adjoint(projector.forward(volume))) / (volume.size * angles)
    return Rates(frame, voxel)


def joint(width: int, workers: int, threads: int, memory: int, rates: Rates, cost: float) -> dict[str, Any]:
    """Counts of an epoch of joint ptycho-tomography of `width`³ voxels."""
    import types

    import numpy as np

    from dtomo.distributed.clusters import Resources
    from dtomo.ptychotomo.cluster_driver import ClusterJointRunner
    from dtomo.ptychotomo.cost import JointSizes, make_plan
    from dtomo.settings import JointSettings

    settings = JointSettings(scan=Path("scan.h5"), output=Path("out.zarr"))
    angles, per_angle = width // 2, width
    sizes = JointSizes(settings, (angles * per_angle, 256, 256), 2, angles, width, width)
    plan = make_plan(sizes, Resources(workers, threads, memory))
    runner = ClusterJointRunner.__new__(ClusterJointRunner)
    key = types.SimpleNamespace(key=("dtomo-joint-000000000000", 0))
    addresses = [f"tcp://10.0.{i // 250}.{i % 250}:40000" for i in range(workers)]
    runner.__dict__ |= {
        "_name": "dtomo-joint-000000000000", "_passes": 0, "_placed": key, "_common": key, "_workers": addresses,
        "_layout": types.SimpleNamespace(slabs=plan.slabs), "_ends": [key] * plan.slabs,
        "_homes": graph.spread(plan.slabs, addresses),
    }  # fmt: skip
    tasks = runner._tasks(np.arange(sizes.subset), ("report", 0))
    steps = -(-angles // sizes.subset)
    busy = min(workers, plan.slabs)
    even = -(-plan.slabs // busy) * busy / plan.slabs
    frames = angles * per_angle * rates.frame / threads / busy * even
    projected = width**3 * angles * rates.voxel / threads / busy * even
    return {
        "width": width,
        "workers": workers,
        "slabs": plan.slabs,
        "slab_rows": plan.slab_rows,
        "in_files": plan.slab_memory is not None,
        "tasks": len(tasks) * steps,
        "graph_bytes": graph.graph_bytes(tasks) * steps,
        "moved": plan.moved,
        "memory": plan.worker_memory,
        "frames_seconds": frames,
        "projecting_seconds": projected,
        "scheduling_seconds": cost * len(tasks) * steps,
        "fits": plan.fits,
    }


def joint_table(rows: list[dict[str, Any]]) -> str:
    """For people."""
    head = ["volume", "workers", "slabs", "tasks", "graphs", "moved", "memory of a worker", "frames", "projecting"]
    lines = [
        [
            f"{row['width']}³",
            str(row["workers"]),
            f"{row['slabs']} × {row['slab_rows']}" + (" (in files)" if row["in_files"] else ""),
            str(row["tasks"]),
            size(row["graph_bytes"]),
            size(row["moved"]),
            size(row["memory"]) + ("" if row["fits"] else " (too much)"),
            f"{number(row['frames_seconds'])} s",
            f"{number(row['projecting_seconds'])} s",
            f"{number(row['scheduling_seconds'])} s",
        ]
        for row in rows
    ]
    return table([*head, "scheduling"], lines)


def task_cost(slabs: int = 125, iterations: int = 8) -> float:
    """Seconds of processor time of scheduler and client per task that does nothing, on two real workers."""
    from dtomo.distributed.clusters import Resources, connect
    from dtomo.distributed.slab_array import SlabArray

    with connect(Resources(2, 1, 1_000_000_000, dashboard=None)) as client:
        array = SlabArray.create(client, _nothing, None, cut(slabs, 1)).wait()
        start = time.process_time()
        for _ in range(iterations):
            array = array.update(_update).wait()
        return (time.process_time() - start) / slabs / iterations


def _nothing(shared: None, slab: Any) -> int:
    return slab.index


def _lines(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            f"{row['width']}³",
            row["kind"],
            f"{row['workers']}" + (f" ({row['workers_used']} used)" if row["workers_used"] < row["workers"] else ""),
            f"{row['slabs']} × {row['slices']}",
            str(row["tasks"]),
            size(row["graph_bytes"]),
            f"{1e3 * row['build_seconds']:.0f} ms",
            size(sum(row["network_bytes"].values())),
            size(row["worker_memory"]),
            f"{number(row['scheduling_seconds'])} s",
            f"{number(row['kernel_seconds'])} s",
            f"{row['most_workers']:,}",
        ]
        for row in rows
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Cost of iterations beside their kernels, without arrays")
    parser.add_argument("--widths", type=int, nargs="+", default=[2000, 8000], help="voxels along an edge")
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 64, 1024])
    parser.add_argument("--threads", type=int, default=8, help="of each worker")
    parser.add_argument("--angles", type=int, help="default: 1.5 times the width")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--cost", type=float, help="milliseconds of scheduler and client per task; default: measured")
    parser.add_argument("--memory", type=float, default=128.0, help="of each worker, GB, for the second table")
    parser.add_argument("--json", type=Path, help="also write what was counted here")
    parser.add_argument("--quick", action="store_true", help="smaller, to see that it works")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.widths, chosen.workers = chosen.widths[:1], chosen.workers[:2]
    cost = chosen.cost / 1e3 if chosen.cost else task_cost()
    print(f"scheduler and client: {1e3 * cost:.2f} ms per task{'' if chosen.cost else ' (measured here)'}\n")
    rows = [
        measure(Iteration(kind, width, workers, chosen.threads, chosen.angles or width * 3 // 2), cost)
        for width in chosen.widths
        for kind in chosen.kinds
        for workers in chosen.workers
    ]
    head = "voxels,kind,workers,slabs × slices,tasks,graph,build,network,memory each,scheduling,kernels,workers to"
    print(table(head.split(","), _lines(rows)))
    print("\nworkers to: as many as an iteration can use before its scheduling takes longer than its kernels\n")
    rates = kernel_rates(chosen.quick)
    memory = int(chosen.memory * 1e9)
    joints = [joint(chosen.widths[0], workers, chosen.threads, memory, rates, cost) for workers in (4, 8, 64)]
    print(
        f"joint ptycho-tomography, {chosen.threads} threads and {size(memory)} for a worker; one core takes "
        f"{1e3 * rates.frame:.2f} ms for a frame of 256², {1e9 * rates.voxel:.3f} ns for a voxel and angle, to and fro"
    )
    print(joint_table(joints))
    write_json(chosen.json, ["dask", "distributed"], task_cost=cost, rows=rows, joint=joints)


if __name__ == "__main__":
    main()
