"""What alignment leaves on disk: a folder for each iteration, and the last one's averages and list beside them.

In ``OUT/iteration-003``, each of them written whole before its ``summary.json``, the mark of an iteration that is done:

=================================  =================================================================================
``particles.EXT``                  the list with new poses, scores, halves and classes, in the format it came in
``class-1-half-1.mrc``, ``-2``     averages of the halves of a class, unfiltered, in one frame
``class-1.mrc``                    average of both, filtered by their correlation
``class-1-fsc.txt``                FSC by radius: unmasked, masked, phase-randomised, corrected
``poses.npz``                      poses to the last bit, for ``--resume``
``summary.json``                   resolution, increment, counts, what moved, what was left out
=================================  =================================================================================

``OUT/particles.EXT``, ``OUT/average.mrc`` (``average-2.mrc`` … of more classes) and their halves are those of the last
iteration. ``iteration-000`` holds what the run began with.
"""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import StoppedError, UserError
from dtomo.io import create_volume, open_volume
from dtomo.io.damage import DAMAGE
from dtomo.io.particles import Particles, write_particles
from dtomo.subtomo.align import Poses
from dtomo.subtomo.comparison import HalfCurve, half_curve
from dtomo.subtomo.filters import fsc_filtered
from dtomo.subtomo.refine import Halves, Step, whole_average

ANGSTROM = 1e-4
"""µm"""


def folder_of(output: Path, number: int) -> Path:
    """Of an iteration."""
    return output / f"iteration-{number:03d}"


def write_step(
    output: Path, step: Step, particles: Particles, suffix: str, pixel_size: float, left_out: dict[int, str]
) -> dict[str, Any]:
    """Write an iteration; its summary.

    Raises
    ------
    StoppedError
        The disk is full or cannot be written to.
    """
    folder = folder_of(output, step.number)
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        np.savez(folder / "poses.npz", **dataclasses.asdict(step.poses))
        if step.number:
            write_particles(folder / f"particles{suffix}", with_poses(particles, step.poses))
        for kind, (first, second) in enumerate(step.halves):
            name = f"class-{kind + 1}"
            write_volume(folder / f"{name}-half-1.mrc", first, pixel_size)
            write_volume(folder / f"{name}-half-2.mrc", second, pixel_size)
            if step.number:
                curve = step.curves[kind]
                write_volume(folder / f"{name}.mrc", filtered_average(step, kind), pixel_size)
                (folder / f"{name}-fsc.txt").write_text(fsc_table(curve), encoding="utf-8")
        summary = summary_of(step, left_out)
        _write_json(folder / "summary.json", summary)
    except OSError as error:
        raise StoppedError(f"cannot write {folder}: {error.strerror}; with room there, go on with --resume") from error
    return summary


def filtered_average(step: Step, kind: int) -> NDArray[np.float32]:
    """Average of both halves, filtered by their correlation."""
    curve = step.curves[kind]
    return fsc_filtered(whole_average(step, kind), curve.best, curve.resolution)


def publish(output: Path, step: Step, suffix: str) -> None:
    """Copy the last iteration's list and averages to where users look first."""
    folder = folder_of(output, step.number)
    copies = {f"particles{suffix}": f"particles{suffix}"}
    for kind in range(len(step.halves)):
        end = "" if len(step.halves) == 1 else f"-{kind + 1}"
        copies |= {f"class-{kind + 1}.mrc": f"average{end}.mrc", f"class-{kind + 1}-fsc.txt": f"fsc{end}.txt"}
        copies |= {f"class-{kind + 1}-half-{half}.mrc": f"half-{half}{end}.mrc" for half in (1, 2)}
    for source, target in copies.items():
        part = output / f"{target}.part"
        shutil.copyfile(folder / source, part)
        part.replace(output / target)


def last_step(output: Path, mask: NDArray[np.float32], pixel_size: float, seed: int) -> Step | None:
    """The last iteration that is whole, as it was when it ended; None if there is none.

    Raises
    ------
    UserError
        One that is damaged.
    """
    done = sorted(path.parent for path in output.glob("iteration-*/summary.json"))
    if not done:
        return None
    folder = done[-1]
    try:
        summary = json.loads((folder / "summary.json").read_text("utf-8"))
        with np.load(folder / "poses.npz") as file:
            poses = Poses(**{field.name: file[field.name] for field in dataclasses.fields(Poses)})
        halves = []
        for kind in range(len(summary["classes"])):
            first, second = (
                np.asarray(open_volume(folder / f"class-{kind + 1}-half-{half}.mrc").source.read(slice(None)))
                for half in (1, 2)
            )
            halves.append((np.ascontiguousarray(first, np.float32), np.ascontiguousarray(second, np.float32)))
    except DAMAGE as error:
        raise UserError(
            f"{folder} is damaged ({error}); remove it, and --resume goes on from the one before"
        ) from error
    return _restored(summary, poses, tuple(halves), mask, pixel_size, seed)


def _restored(
    summary: dict[str, Any],
    poses: Poses,
    halves: tuple[Halves, ...],
    mask: NDArray[np.float32],
    pixel: float,
    seed: int,
) -> Step:
    counts = tuple(tuple(one["particles"]) for one in summary["classes"])
    curves = tuple(half_curve(*pair, mask, pixel, seed=seed) for pair in halves) if summary["compared"] else ()
    moved = summary["moved"]
    return Step(
        summary["iteration"],
        poses,
        halves,
        curves,
        summary["increment"],
        counts,
        None if moved is None else (moved["degrees"], moved["voxels"]),
        (),
        summary["settled"],
    )


def summary_of(step: Step, left_out: dict[int, str]) -> dict[str, Any]:
    """Numbers of an iteration, for JSON."""
    classes = []
    for kind in range(len(step.halves)):
        one: dict[str, Any] = {"particles": list(step.counts[kind]) if step.counts else [0, 0]}
        if step.curves:
            curve = step.curves[kind]
            one |= {
                "resolution": _number(curve.resolution.period),
                "first_crossing": _number(curve.first_crossing.period),
                "significant": _number(curve.significant.period),
            }
        if step.frames:
            frame = step.frames[kind]
            one["frame_of_second_half"] = {"degrees": frame.angle, "voxels": frame.distance}
        classes.append(one)
    scores = step.poses.scores[np.isfinite(step.poses.scores)]
    return {
        "iteration": step.number,
        "compared": bool(step.curves) and step.number > 0,
        "increment": step.increment,
        "classes": classes,
        "score": {"median": float(np.median(scores)), "least": float(scores.min())} if len(scores) else None,
        "moved": None if step.moved is None else {"degrees": step.moved[0], "voxels": step.moved[1]},
        "settled": step.settled,
        "left_out": {str(number): why for number, why in left_out.items()},
    }


def with_poses(particles: Particles, poses: Poses) -> Particles:
    """The list with poses of a run."""
    classes = particles.classes
    if poses.classes.any():
        classes = [str(kind + 1) for kind in poses.classes]
    return dataclasses.replace(
        particles,
        rotations=poses.rotations,
        shifts=poses.shifts,
        scores=poses.scores,
        halves=poses.halves,
        classes=list(classes),
    )


def write_volume(path: Path, volume: NDArray[np.float32], pixel_size: float) -> None:
    """A box as MRC, in place of what is there."""
    writer = create_volume(path, volume.shape, np.float32, voxel_size_um=pixel_size * ANGSTROM, overwrite=True)
    writer.write_slab(0, volume)
    writer.finish()


def fsc_table(curve: HalfCurve) -> str:
    """Columns with a line of names."""
    columns = curve.columns()
    lines = ["# " + " ".join(columns) + "  (frequency: 1/Å)"]
    lines += [" ".join(f"{value:.6g}" for value in row) for row in zip(*columns.values())]
    return "\n".join(lines) + "\n"


def read_fsc(path: Path) -> tuple[list[str], NDArray[np.float64]]:
    """Names of the columns and the columns of a table that `fsc_table` made."""
    with path.open(encoding="utf-8") as file:
        names = file.readline().lstrip("# ").split("  ")[0].split()
    return names, np.loadtxt(path, ndmin=2).T


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _write_json(path: Path, content: dict[str, Any]) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
