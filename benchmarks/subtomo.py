"""Subtomograms aligned and averaged, against the truth: ``python -m benchmarks.subtomo [SECTION …]``, all by default.

local: particles of a map under a missing wedge, from poses that are off, by the average of the list alone. search: the
same from a reference of 60 Å and all rotations. noise: particles of nothing but noise, aligned to that reference: what
resolution their halves seem to have. binning: shifts found with binning 1, 2 and 4. uneven: blocks pulled by workers
one of which is four times slower; total time beside the ideal, and the bits of the average.

The map is --map (MRC or EM), else a built one.
"""

import argparse
import dataclasses
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import environment
from benchmarks.measure import number, table, write_json

START = 60.0


def settings_for(truth: Any, folder: Path, chosen: argparse.Namespace, **more: Any) -> Any:
    """As the command would have them."""
    from dtomo.settings import AlignSettings

    diameter = 0.75 * len(truth.reference) * truth.pixel_size
    asked: dict[str, Any] = {"particle_diameter": diameter, "low_pass": START, "iterations": 8}
    listed = truth.path / "particles.xml"
    return AlignSettings(particle_list=listed, output=folder / "out", **{**asked, **more})


def simulated(chosen: argparse.Namespace, folder: Path, count: int, box: int, **more: Any) -> Any:
    """Particles of the map, 5.4 Å a voxel unless the map says otherwise."""
    from dtomo.simulate.particles import simulate_particles

    return simulate_particles(
        folder, chosen.map, count, box=box, pixel_size=chosen.pixel_size, **{"snr": 0.05, "seed": 1, **more}
    )


def iterated(settings: Any, client: Any) -> tuple[Any, Any]:
    """Inputs, and the last iteration."""
    from dtomo.subtomo import refine
    from dtomo.subtomo.inputs import open_inputs

    inputs = open_inputs(settings)
    step = refine.begin(inputs.fixed, inputs.poses, inputs.references, settings, client)
    while step.number < settings.iterations and step.settled < 2:
        step = refine.next_step(inputs.fixed, step, settings, client)
        found = step.curves[0].resolution.period
        print(f"  iteration {step.number}: {found:.1f} Å, increment {step.increment:.2f}°", flush=True)
    return inputs, step


def compared(truth: Any, inputs: Any, step: Any) -> dict[str, float]:
    """Errors of the poses, but for the frame of the whole; likeness of the average within its resolution."""
    from scipy.spatial.transform import Rotation

    from dtomo.subtomo import refine
    from dtomo.subtomo.filters import low_pass

    whole = refine.whole_average(step)
    frame = refine.frame_between(truth.reference, whole, inputs.fixed.mask)
    turned, moved = frame.poses(step.poses.rotations, step.poses.shifts)
    off = (Rotation.from_matrix(turned) * Rotation.from_matrix(truth.rotations).inv()).magnitude()
    resolution = step.curves[0].resolution.period
    pair = [low_pass(one, resolution, truth.pixel_size) for one in (truth.reference, frame.brought(whole))]
    inside = inputs.fixed.mask > 0.5
    return {
        "degrees": float(np.median(np.rad2deg(off))),
        "voxels": float(np.median(np.linalg.norm(moved - truth.shifts, axis=1))),
        "likeness": float(np.corrcoef(pair[0][inside], pair[1][inside])[0, 1]),
        "resolution": resolution,
    }


def local(chosen: argparse.Namespace, folder: Path, client: Any) -> dict[str, Any]:
    """From 10 degrees and 2 voxels."""
    count, box = (24, 24) if chosen.quick else (200, 48)
    truth = simulated(
        chosen, folder / "local", count, box, angle_error=10, shift_error=2, snr=0.5 if chosen.quick else 0.05
    )
    started = time.perf_counter()
    inputs, step = iterated(settings_for(truth, folder, chosen, iterations=3 if chosen.quick else 8), client)
    found = compared(truth, inputs, step) | {"seconds": time.perf_counter() - started}
    print(f"{count} particles of {box}³ voxels, SNR {truth.snr:g}, ±60°, from 10° and 2 voxels at most, no reference")
    _print(found)
    return {"found": found, "good": (found["degrees"] <= 2 and found["voxels"] <= 0.3) or chosen.quick}


def search(chosen: argparse.Namespace, folder: Path, client: Any) -> dict[str, Any]:
    """From nothing but a reference of 60 Å."""
    count, box = (24, 24) if chosen.quick else (200, 48)
    truth = simulated(chosen, folder / "search", count, box, angle_error=180, snr=0.5 if chosen.quick else 0.05)
    settings = settings_for(
        truth, folder, chosen, reference=(str(truth.path / "reference.mrc"),), global_iterations=1,
        global_increment=30.0 if chosen.quick else 12.0, iterations=2 if chosen.quick else 8,
        binning=2 - chosen.quick,
    )  # fmt: skip
    started = time.perf_counter()
    inputs, step = iterated(settings, client)
    found = compared(truth, inputs, step) | {"seconds": time.perf_counter() - started}
    print(f"{count} particles of {box}³ voxels, SNR {truth.snr:g}, ±60°, poses unknown, a reference of {START:g} Å")
    _print(found)
    return {"found": found, "good": found["likeness"] >= 0.95 or chosen.quick}


def noise(chosen: argparse.Namespace, folder: Path, client: Any) -> dict[str, Any]:
    """Noise aligned to a reference."""
    count, box = (24, 24) if chosen.quick else (100, 48)
    truth = simulated(chosen, folder / "noise", count, box, snr=0.0, angle_error=10, shift_error=2)
    settings = settings_for(
        truth, folder, chosen, reference=(str(truth.path / "reference.mrc"),), iterations=1 if chosen.quick else 4
    )
    _, step = iterated(settings, client)
    curve = step.curves[0]
    seen = {"resolution": curve.resolution.period, "first crossing": curve.first_crossing.period}
    print(f"{count} particles of noise alone, aligned to a reference of {START:g} Å")
    print(table(["resolution, Å", "first crossing, Å"], [[number(value) for value in seen.values()]]), flush=True)
    return {"found": seen, "good": curve.resolution.period >= 0.95 * START or chosen.quick}


def binning(chosen: argparse.Namespace, folder: Path, client: Any) -> dict[str, Any]:
    """Shifts with binning 1, 2 and 4."""
    from dtomo.subtomo import refine
    from dtomo.subtomo.align import Pass, run_pass
    from dtomo.subtomo.inputs import open_inputs
    from dtomo.subtomo.refine import Step

    count, box = (8, 32) if chosen.quick else (24, 64)
    truth = simulated(chosen, folder / "binning", count, box, snr=0.5, shift_error=2)
    rows, lines = [], []
    for factor in (1, 2) if chosen.quick else (1, 2, 4):
        settings = settings_for(truth, folder, chosen, binning=factor, angle_shells=1, angle_increment=1.0)
        inputs = open_inputs(settings)
        pair = (truth.reference, truth.reference)
        step = Step(0, inputs.poses, (pair,))
        work = Pass(
            inputs.fixed.boxes, inputs.poses, inputs.fixed.weights, (pair,), inputs.fixed.mask,
            refine.search_of(inputs.fixed, step, settings),
        )  # fmt: skip
        poses = run_pass(work, client).poses
        off = np.linalg.norm(poses.shifts - truth.shifts, axis=1)
        rows.append(
            {"binning": factor, "median": float(np.median(off)), "most": float(off.max()), "shifts": poses.shifts}
        )
        lines.append([str(factor), number(rows[-1]["median"]), number(rows[-1]["most"])])
    apart = max(float(np.median(np.linalg.norm(row["shifts"] - rows[0]["shifts"], axis=1))) for row in rows[1:])
    print(f"{count} particles of {box}³ voxels: error of the shifts, voxels; median apart {apart:.3f}")
    print(table(["binning", "median", "most"], lines), flush=True)
    for row in rows:
        del row["shifts"]
    return {"found": rows, "apart": apart, "good": apart <= 0.2 or chosen.quick}


@dataclasses.dataclass(frozen=True, eq=False)
class Slowed:
    """Work of which a particle takes so many seconds, four times as many on the first worker to come."""

    work: Any
    seconds: float
    slow: str


def slowed_block(given: Slowed, block: tuple[int, ...]) -> dict[str, Any]:
    """As `dtomo.subtomo.align.align_block`, after a wait."""
    from distributed import get_worker

    from dtomo.subtomo.align import align_block

    started = time.perf_counter()
    found = align_block(given.work, block)
    wanted = given.seconds * len(block) * (4 if get_worker().address == given.slow else 1)
    time.sleep(max(0.0, wanted - (time.perf_counter() - started)))
    return found


def uneven(chosen: argparse.Namespace, folder: Path, client: Any) -> dict[str, Any]:
    """Workers of different speed."""
    from dtomo.distributed.clusters import connect
    from dtomo.distributed.queue import map_reduce
    from dtomo.subtomo.align import Pass, run_pass
    from dtomo.subtomo.inputs import open_inputs

    workers, count, seconds = (3, 40, 0.05) if chosen.quick else (21, 1000, 0.5)
    truth = simulated(chosen, folder / "uneven", count, 12 if chosen.map is None else 16, snr=1.0)
    inputs = open_inputs(settings_for(truth, folder, chosen))
    work = Pass(inputs.fixed.boxes, inputs.poses, inputs.fixed.weights)
    alone = run_pass(work).sums
    with connect("local", workers=workers, threads=1, memory="700MB") as other:
        names = sorted(other.scheduler_info(n_workers=-1)["workers"])
        other.run(_warm, work)
        given = Slowed(work, seconds, names[0])
        started = time.perf_counter()
        total = map_reduce(other, slowed_block, given, work.blocks()).result()
        taken = time.perf_counter() - started
    ideal = count * seconds / (workers - 1 + 0.25)
    same = all(
        np.asarray(total["sums"][0][half][name]).tobytes() == np.asarray(alone[0][half][name]).tobytes()
        for half in ("1", "2")
        for name in ("data", "weights")
    )
    print(
        f"{count} particles of {seconds:g} s on {workers} workers, one 4 times slower, in {len(work.blocks())} blocks"
    )
    print(
        table(
            ["ideal, s", "taken, s", "ratio", "same bits"],
            [[number(ideal), number(taken), number(taken / ideal), str(same)]],
        )
    )
    return {"ideal": ideal, "taken": taken, "same": same, "good": same and (taken <= 1.1 * ideal or chosen.quick)}


def _warm(work: Any) -> None:
    """Libraries and kernels are there before the clock runs."""
    from dtomo.subtomo.align import align_block

    align_block(work, (0,))


def _print(found: dict[str, float]) -> None:
    head = ["degrees off, median", "voxels off", "correlation with the truth", "resolution, Å", "s"]
    print(table(head, [[number(value) for value in found.values()]]), flush=True)


def main() -> None:
    """Measure and print."""
    sections = {"local": local, "search": search, "noise": noise, "binning": binning, "uneven": uneven}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=", ".join(sections) + "; default all")
    parser.add_argument("--map", type=Path, help="of the particle")
    parser.add_argument("--pixel-size", type=float, help="Å, if the map does not say")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="work here; default a temporary folder")
    parser.add_argument("--json", type=Path, help="also write what was measured here")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    chosen = parser.parse_args()
    environment.restart_clean()
    names = chosen.sections or list(sections)
    for name in names:
        if name not in sections:
            parser.error(f"sections are {', '.join(sections)}, not {name}")
    print(f"{environment.processor()}, {environment.cores()} threads", flush=True)
    from dtomo.distributed.clusters import connect

    with (
        tempfile.TemporaryDirectory(dir=chosen.folder) as temporary,
        connect("local", workers=chosen.workers, threads=1, memory="3GB") as client,
    ):
        found = {name: sections[name](chosen, Path(temporary), client) for name in names}
    write_json(chosen.json, ["numba", "numpy", "dask", "distributed", "scipy"], **found)
    sys.exit(0 if all(section["good"] for section in found.values()) else 1)


if __name__ == "__main__":
    main()
