"""Joint ptycho-tomography beside its two steps: ``python -m benchmarks.ptychotomo [SECTION …]``, all by default.

overlap: a phantom scanned with normal and with low overlap at each angle, reconstructed angle by angle and then by
filtered back projection, and jointly: errors of the images of single angles and of the volumes, and a picture.
solvers: the same scan by Adam, conjugate gradients and ADMM, with and without total variation, and from coarse to fine.
shifts: images that are off by up to three pixels at each angle, found while reconstructing. thick: a sample several
times as thick as the depth of focus, as one projection and in slices. memory: a volume whose slabs do not fit the
memory of two workers; bytes that moved.

The light is a measured probe where --probe names one (an archive with ``probe``, such as Tike's), else a simulated one.
"""

import argparse
import bz2
import io
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import environment
from benchmarks.measure import number, table, write_json


def light(path: Path | None, frame: int) -> Any:
    """The measured probe on frame × frame pixels, or None."""
    if path is None:
        return None
    from dtomo.simulate.ptychotomo import resampled_probe

    content = path.read_bytes()
    probe = np.load(io.BytesIO(bz2.decompress(content) if path.suffix == ".bz2" else content))["probe"]
    return resampled_probe(probe.reshape(-1, *probe.shape[-2:])[0], frame)


def error(found: NDArray[Any], truth: NDArray[Any]) -> float:
    """‖found - truth‖ / ‖truth‖"""
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


def settings_for(scan: Path, size: int, frame: int, **more: Any) -> Any:
    """As the command would have them, with the sample's radius and a little room."""
    from dtomo.settings import JointSettings
    from dtomo.simulate.ptychotomo import FILL

    radius = FILL * (size - 0.7 * frame) * 1.12
    return JointSettings(scan=scan, output=scan.with_suffix(".zarr"), **{"support": radius, **more})


def joint(settings: Any, epochs: int, parameters: Any = None) -> tuple[NDArray[Any], Any, float]:
    """The joint reconstruction in this process: volume, result, seconds."""
    from dtomo.ptychotomo import scans, setup
    from dtomo.ptychotomo.driver import JointProblem, run

    data = scans.open_joint(settings).data
    made = setup.prepare(data, settings)
    begin = scans.first_volume(data, settings)
    problem = JointProblem(made.engine, data.frames.source, made.layout, begin, arrange=made.arrange)
    started = time.perf_counter()
    result, slabs = run(problem, made.parameters | (parameters or {}), epochs)
    return np.concatenate(slabs), result, time.perf_counter() - started


def overlap(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Errors with normal and with low overlap."""
    from dtomo.ptychotomo import scans
    from dtomo.ptychotomo.start import two_step
    from dtomo.simulate.ptychotomo import expected_images, simulate_ptychotomo

    size, angles, frame, epochs = (32, 20, 16, 25) if chosen.quick else (128, 90, 64, chosen.epochs)
    lines, rows, shown = [], [], []
    for name, step in (("normal", frame / 8), ("low", chosen.low * frame)):
        scan = folder / f"{name}.h5"
        truth = simulate_ptychotomo(
            scan, size, angles=angles, frame=frame, step=step, photons=1e5, probe=light(chosen.probe, frame)
        )
        asked = settings_for(scan, size, frame, refine=("none",))
        started = time.perf_counter()
        steps = two_step(scans.open_joint(asked).data, asked, epochs=25 if chosen.quick else 80)
        seconds = time.perf_counter() - started
        volume, _, joint_seconds = joint(asked, epochs)
        image = expected_images(truth, size, 0)
        alone = _image_error(steps.images[0], image)
        errors = error(steps.volume, truth.volume), error(volume, truth.volume)
        per_angle = len(truth.positions) / angles
        rows.append({"overlap": name, "step": step, "image": alone, "two_step": errors[0], "joint": errors[1]})
        cells = [name, f"{step:.1f}", f"{per_angle:.0f}", number(alone), number(errors[0]), number(errors[1])]
        lines.append([*cells, f"{seconds:.0f}", f"{joint_seconds:.0f}"])
        shown.append((name, image, steps.images[0], truth.volume, steps.volume, volume))
    head = ["overlap", "step, pixels", "frames per angle", "error of an image alone", "two steps", "joint"]
    print(f"{size}³ voxels, {angles} angles, frames of {frame} × {frame}, 10⁵ photons each; errors are ‖v - v₀‖ / ‖v₀‖")
    print(table([*head, "s, two steps", "s, joint"], lines), flush=True)
    if chosen.pictures:
        print(f"pictures in {_draw(shown, chosen.pictures)}", flush=True)
    good = rows[0]["joint"] <= 1.02 * rows[0]["two_step"] and rows[1]["joint"] <= 0.5 * rows[1]["two_step"]
    return {"rows": rows, "good": bool(good) or chosen.quick}


def _image_error(found: NDArray[Any], truth: NDArray[Any]) -> float:
    """Of the image of one angle, where the sample is, but for a constant: part of what it differs from vacuum by."""
    inside = np.abs(truth - 1) > 0.02
    factor = np.vdot(found[inside], truth[inside]) / np.vdot(found[inside], found[inside]).real
    return float(np.linalg.norm(factor * found[inside] - truth[inside]) / np.linalg.norm(truth[inside] - 1))


def _draw(shown: list[Any], folder: Path) -> Path:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 6), layout="constrained")
    axes = figure.subplots(len(shown), 5, squeeze=False)
    for row, (name, image, alone, truth, steps, volume) in zip(axes, shown):
        middle, limit = len(truth) // 2, float(-truth.real.min())
        pictures = [np.angle(image), np.angle(alone), *(-v[middle].real for v in (truth, steps, volume))]
        titles = ["image at 0°, phase", "alone", "true slice, k Δ δ", "two steps", "joint"]
        for column, (axis, picture, title) in enumerate(zip(row, pictures, titles)):
            span = {} if column < 2 else {"vmin": 0, "vmax": limit}
            axis.imshow(picture, cmap="gray", **span)
            axis.set_title(f"{title}, {name} overlap")
            axis.set_axis_off()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "overlap.png", dpi=90)
    return folder


def solvers(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The same scan by each solver, and from coarse to fine: errors after the same number of passes over the frames."""
    from dtomo import ptychotomo
    from dtomo.simulate.ptychotomo import simulate_ptychotomo

    size, angles, frame, passes = (32, 12, 16, 8) if chosen.quick else (64, 45, 32, 60)
    scan = folder / "solvers.h5"
    probe = light(chosen.probe, frame)
    truth = simulate_ptychotomo(
        scan, size, angles=angles, frame=frame, step=frame / 4, photons=1e5, probe=probe, seed=1
    )
    data, radius = ptychotomo.open(scan), settings_for(scan, size, frame).support
    ways: dict[str, dict[str, Any]] = {
        "adam": {"epochs": passes},
        "adam, a third of the passes": {"epochs": passes // 3},
        "adam, a third, after voxels twice as large": {"epochs": passes // 3, "coarse": 2, "coarse_epochs": passes},
        "cg": {"engine": "cg", "epochs": passes // 2},
        "admm": {"engine": "admm", "epochs": passes // 2},
        "admm, total variation": {"engine": "admm", "epochs": passes // 2, "total_variation": 300.0},
        "adam, total variation": {"epochs": passes, "total_variation": 300.0},
    }
    rows, lines = [], []
    for name, asked in ways.items():
        started = time.perf_counter()
        found = ptychotomo.reconstruct(data, refine=(), support=radius, **asked)
        seconds = time.perf_counter() - started
        rows.append({"solver": name, "error": error(_cut(found.volume, data, truth), truth.volume), "seconds": seconds})
        lines.append([name, number(rows[-1]["error"]), f"{seconds:.1f}"])
    per_angle = len(truth.positions) / angles
    print(
        f"{size}³ voxels, {angles} angles, {per_angle:.0f} frames of {frame} × {frame} each, {passes} passes over them"
    )
    print(table(["solver", "error", "s"], lines), flush=True)
    by_name = {row["solver"]: row["error"] for row in rows}
    third = by_name["adam, a third, after voxels twice as large"] < by_name["adam, a third of the passes"]
    return {"rows": rows, "good": third or chosen.quick}


def _cut(volume: NDArray[Any], data: Any, truth: Any) -> NDArray[Any]:
    """The part of a volume that the true one stands for."""
    down = round(float(data.frames.positions[:, 0].min() - truth.positions[:, 0].min()))
    rows, size, _ = truth.volume.shape
    beside = (volume.shape[1] - size) // 2
    return volume[down : down + rows, beside : beside + size, beside : beside + size]


def shifts(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Shifts of three pixels at each angle."""
    from dtomo.ptychotomo.align import without_sample_shift
    from dtomo.simulate.ptychotomo import simulate_ptychotomo

    size, angles, frame, epochs = (32, 12, 16, 8) if chosen.quick else (64, 45, 32, 60)
    scan = folder / "shifts.h5"
    probe = light(chosen.probe, frame)
    truth = simulate_ptychotomo(
        scan, size, angles=angles, frame=frame, step=frame / 8, photons=1e6, probe=probe, shifts=3
    )
    searched = {"search_trials": 3, "search_epochs": 2 * epochs // 3}
    asked = settings_for(scan, size, frame, refine=("shifts",), options=searched)
    volume, result, seconds = joint(asked, epochs)
    from dtomo.geometry import ParallelBeam

    geometry = ParallelBeam(truth.angles, size)
    before, after = (without_sample_shift(shift - truth.shifts, geometry) for shift in (0, result.parameters["shifts"]))
    cells = [[number(float(f(np.abs(part)))) for f in (_rms, np.max)] for part in (before, after)]
    print(f"{size}³ voxels, {angles} angles; shifts wrong by up to 3 pixels in rows and columns")
    print(
        table(["shifts", "rms, pixels", "largest, pixels"], [["before", *cells[0]], ["after", *cells[1]]]), flush=True
    )
    print(
        f"error of the volume {number(error(volume, truth.volume))} (moved as a whole or not), {seconds:.0f} s",
        flush=True,
    )
    return {"before": _rms(before), "after": _rms(after), "good": chosen.quick or _rms(after) <= 0.3}


def _rms(values: NDArray[Any]) -> float:
    return float(np.sqrt((np.asarray(values) ** 2).mean()))


def thick(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One projection and slices, for a sample thicker than the depth of focus."""
    from dtomo.ptychotomo.thickness import depth_of_focus
    from dtomo.simulate.ptychotomo import simulate_ptychotomo

    size, angles, frame, epochs, fine = (32, 12, 16, 6, 8) if chosen.quick else (64, 45, 32, 60, 32)
    pixel, wavelength = 0.5e-9, 1.409e-10
    scan = folder / "thick.h5"
    probe = light(chosen.probe, frame)
    truth = simulate_ptychotomo(
        scan, size, angles=angles, frame=frame, step=frame / 8, photons=1e6, probe=probe, slices=fine,
        pixel_size=pixel, wavelength=wavelength,
    )  # fmt: skip
    focus = depth_of_focus(pixel, wavelength)
    lines, rows = [], []
    for slices in (1, 4, 8):
        asked = settings_for(scan, size, frame, refine=("none",), slices=slices)
        volume, result, seconds = joint(asked, epochs)
        rows.append({"slices": slices, "error": error(volume, truth.volume), "loss": float(result.losses[-1])})
        lines.append([str(slices), number(rows[-1]["error"]), number(rows[-1]["loss"]), f"{seconds:.0f}"])
    print(
        f"{size}³ voxels of {pixel * 1e9:g} nm, {size * pixel / focus:.1f} times the depth of focus of a voxel; frames "
        f"simulated in {fine} slices",
        flush=True,
    )
    print(table(["slices of the model", "error of the volume", "loss per pixel", "s"], lines), flush=True)
    what = "loss" if chosen.quick else "error"  # a few epochs tell nothing of the volume yet
    return {"rows": rows, "good": rows[-1][what] < rows[0][what]}


def memory(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Two workers with room for a part of the slabs."""
    from dtomo.distributed.clusters import Resources, connect
    from dtomo.distributed.graph import bytes_sent
    from dtomo.ptychotomo import scans, setup
    from dtomo.ptychotomo.driver import JointProblem, run
    from dtomo.recon.slab import peak_memory
    from dtomo.simulate.ptychotomo import simulate_ptychotomo

    size, angles, frame, height = (48, 6, 16, 24) if chosen.quick else (256, 24, 32, 32)
    scan = folder / "memory.h5"
    simulate_ptychotomo(scan, size, angles=angles, frame=frame, step=frame / 2, photons=1e5)
    asked = settings_for(scan, size, frame, refine=("probe",), subsets=2)
    data = scans.open_joint(asked).data
    made = setup.prepare(data, asked, height)
    whole = size**3 * made.engine.bytes_per_voxel()
    begin = scans.first_volume(data, asked)
    sent: list[int] = []
    with connect(Resources(2, 1, 2 * 10**9, dashboard=None)) as client:
        client.run(_warm)
        idle = max(client.run(peak_memory).values())
        problem = JointProblem(
            made.engine, data.frames.source, made.layout, begin, arrange=made.arrange, slab_memory=0,
            frame_memory=0,
        )  # fmt: skip
        started = time.perf_counter()
        run(
            problem,
            made.parameters,
            3,
            client=client,
            finish=_nothing,
            on_epoch=lambda _: sent.append(bytes_sent(client)),
        )
        seconds = time.perf_counter() - started
        peaks = client.run(peak_memory).values()
    layout, model = made.layout, made.engine.model
    borders = 2 * (layout.above + layout.below) * angles * model.image_shape[1] * 8
    moved = sent[-1] - sent[-2]
    above = max(peaks) - idle
    lines = [
        ["volume and state of the solver, MB", number(whole / 1e6)],
        ["a quarter of it, MB", number(whole / 4e6)],
        ["peak of a worker above an idle one (kernels loaded), MB", number(above / 1e6)],
        ["moved in an epoch, MB", number(moved / 1e6)],
        ["borders of images and derivatives, MB", number(borders / 1e6)],
        ["the rest: sums of the probe, losses, messages, MB", number((moved - borders) / 1e6)],
        ["s per epoch", number(seconds / 3)],
    ]
    print(f"{size}³ voxels in {layout.slabs} slabs on 2 workers, all slabs in files, frames read in each epoch")
    print(table(["", ""], lines), flush=True)
    return {
        "whole": whole,
        "above": above,
        "moved": moved,
        "borders": borders,
        "good": chosen.quick or above <= whole / 4,
    }


def _warm() -> None:
    """Load what a worker needs, so that it is not counted as memory of the problem."""
    from dtomo.ptychotomo.engines.adam import JointAdam
    from dtomo.ptychotomo.setup import ENGINES
    from dtomo.ptychotomo.slab_store import SlabStore
    from tests.ptychotomo.scenes import scene

    assert ENGINES["adam"] is JointAdam
    assert SlabStore(None) is not None
    from dtomo.ptychotomo.driver import JointProblem, run

    given = scene(rows=24, width=16, frame=8, angles=4)
    engine = JointAdam(model=given.model, subsets=2)
    start = np.zeros((24, 16, 16), np.complex64)
    run(JointProblem(engine, given.source, given.layout(), lambda place: start), given.parameters, 1)


def _nothing(place: Any, rows: Any) -> None:
    return None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help="overlap, solvers, shifts, thick, memory; default all")
    parser.add_argument("--probe", type=Path, help="archive with a measured probe")
    parser.add_argument("--epochs", type=int, default=80, help="of the joint reconstruction")
    parser.add_argument("--low", type=float, default=0.44, help="step of the low overlap, as part of a frame")
    parser.add_argument("--pictures", type=Path, help="folder for a picture")
    parser.add_argument("--folder", type=Path, help="work here; default a temporary folder")
    parser.add_argument("--json", type=Path, help="also write what was measured here")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    chosen = parser.parse_args()
    environment.restart_clean()
    sections = {"overlap": overlap, "solvers": solvers, "shifts": shifts, "thick": thick, "memory": memory}
    names = chosen.sections or list(sections)
    for name in names:
        if name not in sections:
            parser.error(f"sections are {', '.join(sections)}, not {name}")
    print(f"{environment.processor()}, {environment.cores()} threads", flush=True)
    with tempfile.TemporaryDirectory(dir=chosen.folder) as temporary:
        found = {name: sections[name](chosen, Path(temporary)) for name in names}
    write_json(chosen.json, ["numba", "numpy", "dask", "distributed", "scipy"], **found)
    sys.exit(0 if all(section["good"] for section in found.values()) else 1)


if __name__ == "__main__":
    main()
