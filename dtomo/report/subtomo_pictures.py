"""Pictures of an alignment: FSC curves, orientations, slices of the average and scores, iteration by iteration."""

import json
import os
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io import open_volume
from dtomo.report.draw import LINE, STYLE, gray_range, new_figure
from dtomo.subtomo.results import read_fsc

MOST_COLUMNS = 8
"""Iterations that are drawn beside one another; of more, evenly chosen ones."""
BINS = 40


def write_pictures(output: str | os.PathLike[str], *, folder: str | os.PathLike[str] | None = None) -> list[Path]:
    """Write PNG pictures of a result beside it.

    Parameters
    ----------
    output
        Folder of `dtomo subtomo align`.
    folder
        Where to write; default ``OUT.pictures`` beside it.

    Returns
    -------
    list of Path
        ``overview.png``, ``averages.png``.

    Raises
    ------
    UserError
        No result, or a folder that cannot be written.
    """
    output = Path(output)
    where = output.with_name(f"{output.name}.pictures") if folder is None else Path(folder)
    steps = _steps(output)
    try:
        where.mkdir(parents=True, exist_ok=True)
        with mpl.rc_context(STYLE):
            written = []
            for name, figure in {"overview": _overview(output, steps), "averages": _averages(output, steps)}.items():
                figure.savefig(where / f"{name}.png")
                written.append(where / f"{name}.png")
            return written
    except OSError as error:
        raise UserError(f"pictures cannot be written to {where}: {error.strerror or error}") from error


def _steps(output: Path) -> list[dict[str, Any]]:
    found = [
        {"folder": path.parent, **json.loads(path.read_text("utf-8"))}
        for path in sorted(output.glob("iteration-*/summary.json"))
    ]
    steps = [step for step in found if step["iteration"] > 0]
    if not steps:
        raise UserError(f"{output} holds no iteration of an alignment")
    return steps


def _overview(output: Path, steps: list[dict[str, Any]]) -> Figure:
    figure = new_figure(13, 8)
    axes = figure.subplots(2, 3)
    _curves(axes[0, 0], steps)
    _resolution(axes[0, 1], steps)
    _moved(axes[0, 2], steps)
    with np.load(steps[-1]["folder"] / "poses.npz") as file:
        poses = {name: file[name] for name in file.files}
    _orientations(figure, axes[1, 0], poses)
    _scores(axes[1, 1], steps)
    _shifts(axes[1, 2], poses)
    figure.suptitle(f"{output.name}: {int(poses['read'].sum())} particles, {len(steps)} iterations")
    return figure


def _curves(axis: Axes, steps: list[dict[str, Any]]) -> None:
    """FSC of the first and of the last iterations, later ones darker."""
    for number, step in enumerate(_some(steps)):
        for path in sorted(step["folder"].glob("class-*-fsc.txt")):
            names, table = read_fsc(path)
            best = "corrected" if "corrected" in names else "unmasked"
            shade = 0.25 + 0.75 * (number + 1) / min(len(steps), MOST_COLUMNS)
            axis.plot(table[names.index("frequency")], table[names.index(best)], color=LINE, alpha=shade, lw=1.5)
    axis.axhline(0.143, color="0.6", lw=1, ls="--")
    axis.set(title="FSC of the halves, later ones darker", xlabel="frequency, 1/Å", ylim=(-0.1, 1.05))


def _resolution(axis: Axes, steps: list[dict[str, Any]]) -> None:
    for kind in range(len(steps[0]["classes"])):
        values = [step["classes"][kind].get("resolution") or np.nan for step in steps]
        axis.plot([step["iteration"] for step in steps], values, "o-", label=f"class {kind + 1}")
    if len(steps[0]["classes"]) > 1:
        axis.legend()
    axis.set(title="resolution, Å", xlabel="iteration")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _moved(axis: Axes, steps: list[dict[str, Any]]) -> None:
    there = [step for step in steps if step["moved"]]
    numbers = [step["iteration"] for step in there]
    axis.plot(numbers, [step["moved"]["degrees"] for step in there], "o-", color=LINE, label="degrees")
    axis.plot(numbers, [step["moved"]["voxels"] for step in there], "s--", color="0.4", label="voxels")
    axis.plot(numbers, [step["increment"] for step in there], ":", color="0.6", label="increment, degrees")
    axis.legend()
    axis.set(title="moved, median", xlabel="iteration", ylim=(0, None))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _orientations(figure: Figure, axis: Axes, poses: dict[str, NDArray[Any]]) -> None:
    """Where the axes z of the particles point, equal areas: one cell for each step of azimuth and of the cosine."""
    read = poses["read"].astype(bool)
    axes = poses["rotations"][read][:, :, 2]
    azimuth = np.rad2deg(np.arctan2(axes[:, 1], axes[:, 0]))
    counts, columns, rows = np.histogram2d(azimuth, axes[:, 2].clip(-1, 1), bins=(24, 12), range=((-180, 180), (-1, 1)))
    drawn = axis.pcolormesh(columns, rows, counts.T, cmap="viridis")
    figure.colorbar(drawn, ax=axis, label="particles")
    axis.set(title="axes of the particles", xlabel="azimuth, degrees", ylabel="cosine of the tilt")


def _scores(axis: Axes, steps: list[dict[str, Any]]) -> None:
    for step, color in ((steps[0], "0.7"), (steps[-1], LINE)):
        with np.load(step["folder"] / "poses.npz") as file:
            scores = file["scores"][np.isfinite(file["scores"])]
        if len(scores):
            axis.hist(scores, bins=BINS, histtype="step", lw=1.5, label=f"iteration {step['iteration']}", color=color)
    axis.legend()
    axis.set(title="scores", xlabel="FLCF", ylabel="particles")


def _shifts(axis: Axes, poses: dict[str, NDArray[Any]]) -> None:
    lengths = np.linalg.norm(poses["shifts"][poses["read"].astype(bool)], axis=1)
    axis.hist(lengths, bins=BINS, color=LINE)
    axis.set(title="shifts", xlabel="voxels", ylabel="particles")


def _averages(output: Path, steps: list[dict[str, Any]]) -> Figure:
    """Middle slices of the averages along z, y and x."""
    shown = _some(steps)
    classes = len(steps[0]["classes"])
    figure = new_figure(2.0 * len(shown) + 0.5, 2.2 * 3 * classes)
    axes = figure.subplots(3 * classes, len(shown), squeeze=False)
    for column, step in enumerate(shown):
        for kind in range(classes):
            volume = open_volume(step["folder"] / f"class-{kind + 1}.mrc").source.read(slice(None))
            low, high = gray_range([volume])
            for plane in range(3):
                axis = axes[3 * kind + plane, column]
                axis.imshow(np.take(volume, volume.shape[plane] // 2, plane), cmap="gray", vmin=low, vmax=high)
                axis.set_axis_off()
                if plane == 0:
                    found = step["classes"][kind].get("resolution")
                    axis.set_title(f"{step['iteration']}: " + ("—" if found is None else f"{found:.1f} Å"), fontsize=9)
    figure.suptitle(f"{output.name}: averages, slices across z, y, x")
    return figure


def _some(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_COLUMNS)).round().astype(int))
    return [steps[number] for number in chosen]
