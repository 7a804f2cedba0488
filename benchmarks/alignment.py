"""Alignment of projections: shifts put on phantoms come back, and a measured tilt series.

``python -m benchmarks.alignment``. Views of a phantom in closed form, in a field larger than the detector, are moved by
phases of their Fourier transform, cut, and given noise. What is found is compared with what was put on, but for the
gauge: a shift of the sample. Beside it stands what scikit-image's ``phase_cross_correlation`` of neighbouring views
adds up to. The measured series is a needle, whose slices should be round. --pictures is a folder for PNGs.
"""

import argparse
import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from skimage.registration import phase_cross_correlation

from benchmarks import environment
from benchmarks.measure import number, table, write_json
from dtomo.align.driver import Options, align_views, with_sign
from dtomo.align.job import AlignRun, run
from dtomo.align.showing import Shown, show
from dtomo.align.starts import by_mass
from dtomo.align.views import Coarse, Work
from dtomo.geometry import Alignment
from dtomo.io.sources import ArraySource
from dtomo.report.align_pictures import write_align_pictures
from dtomo.settings import AlignmentSettings
from dtomo.simulate.phantoms import sample

SECTIONS = ("xray", "tilt", "needle")
NEEDLE = Path(__file__).resolve().parents[1] / ".." / "shared" / "data" / "haadf_needle" / "HAADF_crop.mrc"
AIM = 0.1
"""Pixels, RMS."""
MARGIN = 6
"""Pixels of the larger field beyond the largest shift."""


def moved_views(
    angles: NDArray[np.float64], size: int, most: float, noise: float
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Views that have moved by up to `most` pixels, with noise of a part of the largest value; and how to move them."""
    margin = int(np.ceil(most)) + MARGIN
    wide = size + 2 * margin
    still = sample(0, 320).projections(angles, size=size, columns=wide, center=(wide - 1) / 2, slices=size)
    still = np.pad(still, ((0, 0), (margin, margin), (0, 0)), mode="edge")
    random = np.random.default_rng(0)
    moved = random.uniform(-most, most, (len(angles), 2))
    rows, columns = (np.fft.fftfreq(n) for n in still.shape[1:])
    views = np.empty((len(angles), size, size), np.float32)
    for k, (view, (down, right)) in enumerate(zip(still, moved)):
        phase = np.exp(-2j * np.pi * (rows[:, None] * down + columns * right))
        views[k] = np.fft.ifft2(np.fft.fft2(view) * phase).real[margin:-margin, margin:-margin]
    views += random.normal(0, noise * views.max(), views.shape).astype(np.float32)
    return views, -moved


def apart(shifts: NDArray[np.float64], truth: NDArray[np.float64], angles: NDArray[np.float64]) -> NDArray[np.float64]:
    """RMS along and across the axis but for the gauge, pixels."""
    turn = np.deg2rad(angles)
    waves = np.stack([np.cos(turn), np.sin(turn)], 1)
    error = shifts - truth
    error[:, 0] -= error[:, 0].mean()
    error[:, 1] -= waves @ np.linalg.lstsq(waves, error[:, 1], rcond=None)[0]
    return np.sqrt((error**2).mean(0))


def by_neighbours(views: NDArray[np.float32]) -> NDArray[np.float64]:
    """Shifts by scikit-image, from view to view."""
    steps = [
        phase_cross_correlation(one, two, upsample_factor=20, normalization=None)[0]
        for one, two in itertools.pairwise(views)
    ]
    return np.concatenate([np.zeros((1, 2)), np.cumsum(steps, axis=0)])


def phantom(name: str, size: int, most: float, noise: float, pictures: Path | None) -> dict[str, Any]:
    """Put shifts on views of a phantom, and find them."""
    angles = np.arange(180.0) if name == "xray" else np.arange(-76.0, 77.0, 2.0)
    views, truth = moved_views(angles, size, most, noise)
    known = Alignment(angles, views.shape[1:])
    work = Work(ArraySource(views))
    coarse = Coarse(work)
    begun = time.perf_counter()
    found = align_views(work, known, Options(), None, coarse).alignment
    seconds = time.perf_counter() - begun
    guesses = {
        "as they are": np.zeros_like(truth),
        "scikit-image, neighbours": by_neighbours(views),
        "center of mass": by_mass(views, known).shifts,
        "aligned": found.shifts,
    }
    errors = {what: apart(shifts, truth, angles) for what, shifts in guesses.items()}
    print(f"{name}: {len(angles)} views of {size}², shifts up to {most:g} pixels, noise {100 * noise:g} %\n")
    lines = [[what, f"{error[0]:.3f}", f"{error[1]:.3f}"] for what, error in errors.items()]
    print(table(["RMS from the truth, pixels", "along the axis", "across it"], lines))
    reached = bool(errors["aligned"].max() <= AIM)
    print(f"\nin {seconds:.0f} s; {AIM:g} pixels {'reached' if reached else 'MISSED'}\n")
    if pictures is not None:
        options = with_sign(work, coarse, known, Options())
        before, after = (show(work, coarse, one, options) for one in (known, found))
        _draw(pictures / name, known, found, before, after)
    return {
        "section": name,
        "seconds": seconds,
        "reached": reached,
        "errors": {what: [float(x) for x in error] for what, error in errors.items()},
    }


def flatness(image: NDArray[np.float32]) -> float:
    """Longer over shorter axis of what is brighter than half of the largest value: 1 for a disc."""
    rows, columns = np.nonzero(image > 0.5 * np.percentile(image, 99.8))
    spread = np.linalg.eigvalsh(np.cov(rows, columns))
    return float(np.sqrt(spread[1] / spread[0]))


def needle(finest: int, pictures: Path | None) -> dict[str, Any]:
    """Align the measured series, and look at its slices."""
    with tempfile.TemporaryDirectory() as folder:
        settings = AlignmentSettings(scan=NEEDLE, output=Path(folder) / "needle", finest=finest)
        done: AlignRun = run(settings, quiet=True)
    assert done.before is not None
    assert done.after is not None
    assert done.begin is not None
    assert done.alignment is not None
    summary = done.summary
    shapes = [[flatness(plane) for plane in one.slices.values()] for one in (done.before, done.after)]
    widths = (done.after.along[0] > 0.05 * done.after.along[0].max()).sum(1)
    print(f"needle: {summary['views']} views at binning {finest}, {summary['seconds']:.0f} s\n")
    lines = [
        ["reprojections miss, %", number(100 * summary["misfit_before"]), number(100 * summary["misfit"])],
        ["longer over shorter axis of slices", *(", ".join(f"{x:.2f}" for x in shape) for shape in shapes)],
        ["shifts RMS along, across, pixels", "0, 0", ", ".join(f"{x:.2f}" for x in summary["shifts_rms"])],
        ["direction of the axis, degrees", "-", f"{summary['axis_angle']:.2f}"],
        ["width at a tenth of the rows from either end, pixels", "-",
         f"{widths[len(widths) // 10]}, {widths[-len(widths) // 10]}"],
    ]  # fmt: skip
    print(table(["", "as it is", "aligned"], lines))
    print()
    if pictures is not None:
        _draw(pictures / "needle", done.begin, done.alignment, done.before, done.after)
    return {"section": "needle", **summary, "flatness": shapes}


def _draw(folder: Path, known: Alignment, found: Alignment, before: Shown, after: Shown) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in write_align_pictures(folder, known, found, before, after):
        print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Alignment of projections.")
    parser.add_argument("--sections", nargs="*", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--size", type=int, default=128, help="of a view of the phantom")
    parser.add_argument("--most", type=float, default=10.0, help="pixels that views are moved by")
    parser.add_argument("--noise", type=float, default=0.02, help="part of the largest value")
    parser.add_argument("--finest", type=int, default=1, help="binning of the needle's last rounds")
    parser.add_argument("--cores", type=int, help="threads; default all")
    parser.add_argument("--pictures", type=Path, help="folder for PNGs")
    parser.add_argument("--json", type=Path, help="also write what was measured here")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    chosen = parser.parse_args()
    environment.restart_clean(chosen.cores)
    if chosen.quick:
        chosen.size, chosen.most, chosen.finest = 32, 3.0, 4
    found = []
    for section in chosen.sections:
        if section != "needle":
            found.append(phantom(section, chosen.size, chosen.most, chosen.noise, chosen.pictures))
        elif NEEDLE.exists():
            found.append(needle(chosen.finest, chosen.pictures))
        else:
            print("needle: the measured data lie beside the project, and are not here\n")
    write_json(chosen.json, ["numpy", "numba", "scikit-image"], sections=found)


if __name__ == "__main__":
    main()
