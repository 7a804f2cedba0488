"""Pictures of a finished volume, and of trial slices for finding the axis.

Only the slices that are shown are read, whatever the size of the volume.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io import open_volume
from dtomo.report.draw import STYLE, gray_range, new_figure, show_histogram, show_residuals, show_slice

SHEET_LIMIT = 49
"""Most pictures on one contact sheet."""

HISTOGRAM_SLICES = 9


def write_pictures(
    volume_path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    truth: NDArray[Any] | None = None,
    residuals: Sequence[float] | None = None,
    pixel_size: float | None = None,
    unit: str | None = None,
    title: str = "",
) -> list[Path]:
    """Write PNG pictures of a volume: central slices, histogram, and what else is known.

    Parameters
    ----------
    volume_path
        OME-Zarr, MRC or TIFF volume (z, y, x).
    folder
        Where to write; made if it does not exist. Pictures of the same name are replaced.
    truth
        True central slice (y, x) of the same unit, for a comparison with number ``z // 2`` of the volume.
    residuals
        One value per iteration.
    pixel_size
        Micrometres; default what the volume says.
    unit
        What a gray value means; default what dtomo noted in the volume, or "attenuation".
    title
        Heading of the slices, for instance the name of the scan.

    Returns
    -------
    list of Path
        ``slices.png``, ``histogram.png``, and ``residuals.png`` and ``comparison.png`` where asked for.

    Raises
    ------
    UserError
        The volume cannot be read or is none, the folder cannot be written, or the truth has another shape.
    """
    volume = open_volume(volume_path)
    array = volume.array
    if array.ndim != 3 or 0 in array.shape:
        raise UserError(f"{volume_path} holds an array of shape {array.shape}; a volume (z, y, x) was expected")
    if pixel_size is None and volume.voxel_size_um is not None:
        pixel_size = volume.voxel_size_um[-1]
    unit = unit or _unit(volume.attributes)
    where = _folder(folder)
    middle = tuple(n // 2 for n in array.shape)
    cuts = [_read(array[middle[0]]), _read(array[:, middle[1]]), _read(array[:, :, middle[2]])]
    if truth is not None and truth.shape != cuts[0].shape:
        raise UserError(f"the true slice is {truth.shape}, but {volume_path} has slices of {cuts[0].shape}")
    limits = gray_range([_inside(cuts[0]), cuts[1], cuts[2]])
    written = []
    with mpl.rc_context(STYLE):
        written.append(_save(_three_slices(cuts, middle, limits, pixel_size, unit, title), where / "slices.png"))
        figure = new_figure(6, 3.4)
        show_histogram(figure.add_subplot(), _some_values(array), unit, limits)
        written.append(_save(figure, where / "histogram.png"))
        if residuals is not None and len(residuals):
            figure = new_figure(6, 3.4)
            show_residuals(figure.add_subplot(), residuals)
            written.append(_save(figure, where / "residuals.png"))
        if truth is not None:
            figure = _comparison(cuts[0], truth, limits, pixel_size, unit)
            written.append(_save(figure, where / "comparison.png"))
    return written


def trial_slices(
    trials: Sequence[tuple[float, NDArray[Any]]],
    folder: str | os.PathLike[str],
    *,
    best: float | None = None,
    pixel_size: float | None = None,
    title: str = "",
) -> list[Path]:
    """Write one labelled PNG for each trial center of rotation, and a contact sheet of all.

    Parameters
    ----------
    trials
        (center, slice (y, x)) pairs, for instance the same slice reconstructed with each center.
    folder
        Where to write; made if it does not exist.
    best
        The center to mark, if one is thought the best.
    pixel_size
        Micrometres, for a scale bar.
    title
        Heading of the contact sheet.

    Returns
    -------
    list of Path
        ``centers.png``, the contact sheet (at most `SHEET_LIMIT` pictures, evenly chosen), then one
        ``center_<column>.png`` for each trial.

    Raises
    ------
    UserError
        No trials, slices of different shapes, or a folder that cannot be written.
    """
    if not trials:
        raise UserError("there are no trial slices to show")
    shapes = {image.shape for _, image in trials}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        raise UserError(f"trial slices must be pictures of one shape; got {sorted(shapes)}")
    where = _folder(folder)
    trials = sorted(trials, key=lambda trial: trial[0])
    limits = gray_range([_inside(image) for _, image in trials])
    with mpl.rc_context(STYLE):
        written = [_save(_contact_sheet(trials, limits, best, title), where / "centers.png")]
        for center, image in trials:
            figure = new_figure(6, 6 * image.shape[0] / image.shape[1] + 0.3)
            axes = figure.add_subplot()
            show_slice(axes, image, limits, f"center {center:.2f}" + _mark(center, best), pixel_size=pixel_size)
            written.append(_save(figure, where / f"center_{center:07.2f}.png"))
    return written


def _unit(attributes: dict[str, Any]) -> str:
    noted = attributes.get("unit")
    if not isinstance(noted, str) or not noted:
        return "attenuation"
    return noted if noted.startswith("per ") else f"attenuation [{noted}]"


def _folder(folder: str | os.PathLike[str]) -> Path:
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder {path} for pictures cannot be made: {error.strerror or error}") from error
    return path


def _save(figure: Figure, path: Path) -> Path:
    try:
        figure.savefig(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def _read(lazy: Any) -> NDArray[Any]:
    """A small part of a lazy array, in memory; complex numbers by their modulus."""
    values = np.asarray(lazy)
    return np.abs(values) if np.iscomplexobj(values) else values.astype(np.float32, copy=False)


def _inside(image: NDArray[Any]) -> NDArray[Any]:
    """The values inside the circle that a reconstruction is good for."""
    rows, columns = image.shape
    y, x = np.ogrid[:rows, :columns]
    radius = max(min(rows, columns) / 2 - 1, 1)
    return image[(y - (rows - 1) / 2) ** 2 + (x - (columns - 1) / 2) ** 2 < radius**2]


def _some_values(array: Any) -> NDArray[Any]:
    """Values of a few slices spread over the height, thinned to about a million."""
    slices = array.shape[0]
    chosen = sorted({int(k) for k in np.linspace(0, slices - 1, min(HISTOGRAM_SLICES + 2, slices))[1:-1]})
    step = max(1, int(np.sqrt(array.shape[1] * array.shape[2] * HISTOGRAM_SLICES / 1e6)))
    return np.concatenate([_read(array[k])[::step, ::step].ravel() for k in chosen or [slices // 2]])


def _three_slices(
    cuts: list[NDArray[Any]],
    middle: tuple[int, ...],
    limits: tuple[float, float],
    pixel_size: float | None,
    unit: str,
    title: str,
) -> Figure:
    figure = new_figure(13, 4.6)
    panels = figure.subplots(1, 3)
    titles = (f"z = {middle[0]}", f"y = {middle[1]}", f"x = {middle[2]}")
    for axes, cut, label, names in zip(panels, cuts, titles, (("y", "x"), ("z", "x"), ("z", "y"))):
        drawn = show_slice(axes, cut, limits, label, names, pixel_size)
    bar = figure.colorbar(drawn, ax=list(panels), fraction=0.025, pad=0.015, extend="both")
    bar.set_label(unit)
    if title:
        figure.suptitle(title)
    return figure


def _comparison(
    image: NDArray[Any], truth: NDArray[Any], limits: tuple[float, float], pixel_size: float | None, unit: str
) -> Figure:
    difference = image - truth
    good = np.isfinite(_inside(image)) & np.isfinite(_inside(truth))
    inside, true = _inside(image)[good], _inside(truth)[good]
    rms = float(np.sqrt(np.mean((inside - true) ** 2, dtype=np.float64))) if good.any() else np.nan
    spread = float(inside.std(dtype=np.float64) * true.std(dtype=np.float64)) if good.any() else 0.0
    figure = new_figure(13.6, 4.6)
    panels = figure.subplots(1, 3)
    show_slice(panels[0], image, limits, "reconstructed", pixel_size=pixel_size)
    shown = show_slice(panels[1], truth, limits, "true", pixel_size=pixel_size)
    figure.colorbar(shown, ax=list(panels[:2]), fraction=0.025, pad=0.015, extend="both").set_label(unit)
    reach = (limits[1] - limits[0]) / 4
    title = f"difference, RMS {rms:.3g}"
    if spread > 0:
        moment = float(np.mean((inside - inside.mean()) * (true - true.mean()), dtype=np.float64))
        title += f", correlation {moment / spread:.4f}"
    shown = show_slice(panels[2], difference, (-reach, reach), title, pixel_size=None, cmap="RdBu_r")
    figure.colorbar(shown, ax=panels[2], fraction=0.046, pad=0.03, extend="both").set_label(unit)
    return figure


def _mark(center: float, best: float | None) -> str:
    return "  (best)" if best is not None and abs(center - best) < 5e-3 else ""


def _contact_sheet(
    trials: Sequence[tuple[float, NDArray[Any]]], limits: tuple[float, float], best: float | None, title: str
) -> Figure:
    if len(trials) > SHEET_LIMIT:
        trials = [trials[int(k)] for k in np.linspace(0, len(trials) - 1, SHEET_LIMIT)]
    across = int(np.ceil(np.sqrt(len(trials))))
    down = -(-len(trials) // across)
    shape = trials[0][1].shape
    figure = new_figure(2.6 * across, down * (2.6 * shape[0] / shape[1] + 0.3) + 0.4)
    panels = figure.subplots(down, across, squeeze=False)
    for axes in panels.flat:
        axes.axis("off")
    for axes, (center, image) in zip(panels.flat, trials):
        axes.imshow(image, cmap="gray", vmin=limits[0], vmax=limits[1], interpolation="antialiased")
        marked = _mark(center, best)
        axes.set_title(f"{center:.2f}{marked}", fontweight="bold" if marked else "normal")
    figure.suptitle(title or "the same slice with the axis at these columns")
    return figure
