"""Pictures of an alignment: shifts of the views, a view beside its reprojection, slices before and after."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dtomo.align.showing import Shown
from dtomo.errors import UserError
from dtomo.geometry import Alignment
from dtomo.report.draw import LINE, STYLE, gray_range, new_figure, show_slice


def write_align_pictures(folder: Path, begin: Alignment, found: Alignment, before: Shown, after: Shown) -> list[Path]:
    """Write ``shifts.png``, ``views.png`` and ``slices.png``.

    Raises
    ------
    UserError
        A file that cannot be written.
    """
    with mpl.rc_context(STYLE):
        return [
            _saved(_shifts(begin, found), folder / "shifts.png"),
            _saved(_views(before, after), folder / "views.png"),
            _saved(_slices(before, after), folder / "slices.png"),
        ]


def _shifts(begin: Alignment, found: Alignment) -> Figure:
    figure = new_figure(9, 3.6)
    order = np.argsort(found.tilts, kind="stable")
    for place, (axes, name) in enumerate(zip(figure.subplots(1, 2), ("rows (along the axis)", "columns (across it)"))):
        axes.axhline(0, color="0.8", linewidth=1)
        axes.plot(begin.tilts[order], begin.shifts[order, place], color="0.55", label="before")
        axes.plot(found.tilts[order], found.shifts[order, place], "o-", color=LINE, ms=3, label="found")
        axes.set_xlabel("tilt (degrees)")
        axes.set_ylabel(f"shift of {name}, pixels")
    figure.axes[0].legend()
    return figure


def _views(before: Shown, after: Shown) -> Figure:
    figure = new_figure(9.6, 6.6)
    axes = figure.subplots(2, 3)
    limits = gray_range([after.view], 0.5, 99.9)
    for row, (name, one) in enumerate((("before", before), ("aligned", after))):
        apart = one.view - one.again
        most = float(np.abs(before.view - before.again).max()) or 1.0
        names = ("row", "column")
        show_slice(axes[row, 0], one.view, limits, f"{name}: view at {one.tilt:g}°", names)
        show_slice(axes[row, 1], one.again, limits, "reprojection", names)
        drawn = show_slice(axes[row, 2], apart, (-most, most), "view - reprojection", names, cmap="RdBu_r")
        figure.colorbar(drawn, ax=axes[row, 2], shrink=0.8)
    return figure


def _slices(before: Shown, after: Shown) -> Figure:
    count = len(after.slices) + len(after.along)
    figure = new_figure(3.1 * count, 6.4)
    axes = figure.subplots(2, count)
    for row, (name, one) in enumerate((("before", before), ("aligned", after))):
        for column, (title, image, axis_names) in enumerate(_planes(one)):
            show_slice(axes[row, column], image, gray_range([image], 0.5, 99.9), f"{name}: {title}", axis_names)
    return figure


def _planes(shown: Shown) -> list[tuple[str, NDArray[Any], tuple[str, str]]]:
    found: list[tuple[str, NDArray[Any], tuple[str, str]]] = [
        (f"slice z = {row * shown.binning}", plane, ("y", "x")) for row, plane in shown.slices.items()
    ]
    return [*found, ("middle y", shown.along[0], ("z", "x")), ("middle x", shown.along[1], ("z", "y"))]


def _saved(figure: Figure, path: Path) -> Path:
    try:
        figure.savefig(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
    return path
