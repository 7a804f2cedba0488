"""Single pictures of arrays: a slice with its scale, a histogram, a residual curve. No display is needed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from dtomo.report.scales import bar_length, gray_range

INK = "#1f2933"
BAR = "#f7c948"
LINE = "#2f6f9f"
STYLE = {
    "font.size": 9,
    "axes.edgecolor": "#7b8794",
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
}


def new_figure(width: float, height: float) -> Figure:
    """An empty figure (inches) that draws into memory, without any display."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def show_slice(
    axes: Axes,
    image: NDArray[Any],
    limits: tuple[float, float],
    title: str = "",
    names: tuple[str, str] = ("y", "x"),
    pixel_size: float | None = None,
    cmap: str = "gray",
    place: tuple[float, float, float, float] | None = None,
) -> Any:
    """Draw one slice with row 0 on top; with a pixel size (µm) also a scale bar. Returns the drawn image.

    `image` may also hold colors ``(row, column, 3)``. `place` says where its edges lie if it is a part of a larger one,
    or coarser: first row, first column, and after the last row and column, in pixels.
    """
    top, left, bottom, right = place or (0.0, 0.0, *map(float, image.shape[:2]))
    rows, columns = bottom - top, right - left
    thin = max(rows, columns) > 12 * min(rows, columns)
    drawn = axes.imshow(
        image,
        cmap=cmap,
        vmin=limits[0],
        vmax=limits[1],
        aspect="auto" if thin else "equal",
        extent=(left - 0.5, right - 0.5, bottom - 0.5, top - 0.5),
        interpolation="antialiased",
    )
    axes.set_title(title)
    axes.set_xlabel(f"{names[1]} [pixel]")
    axes.set_ylabel(f"{names[0]} [pixel]")
    axes.tick_params(length=2)
    if pixel_size is not None and not thin:
        _scale_bar(axes, (top, left), (rows, columns), pixel_size)
    return drawn


def _scale_bar(axes: Axes, first: tuple[float, float], size: tuple[float, float], pixel_size: float) -> None:
    rows, columns = size
    length, label = bar_length(columns, pixel_size)
    left, bottom = first[1] + columns * 0.05 - 0.5, first[0] + rows * 0.94 - 0.5
    rim = [withStroke(linewidth=2, foreground="black", alpha=0.7)]
    axes.plot([left, left + length], [bottom, bottom], color="black", linewidth=5, alpha=0.5, solid_capstyle="butt")
    axes.plot([left, left + length], [bottom, bottom], color=BAR, linewidth=3, solid_capstyle="butt")
    above = bottom - rows * 0.02
    axes.text(left, above, label, color=BAR, ha="left", va="bottom", fontweight="bold", path_effects=rim)


def show_histogram(axes: Axes, values: NDArray[Any], unit: str, limits: tuple[float, float]) -> None:
    """Draw the histogram of the finite values on a logarithmic scale, with the gray range of the pictures."""
    finite = values[np.isfinite(values)]
    low, high = gray_range([finite], 0.01, 99.99)
    margin = 0.05 * (high - low)
    counts, edges = np.histogram(finite, bins=200, range=(low - margin, high + margin))
    axes.stairs(counts, edges, fill=True, color=LINE, alpha=0.85)
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=0)
    for value in limits:
        axes.axvline(value, color=BAR, linewidth=1.2, linestyle="--")
    axes.set_xlabel(unit)
    axes.set_ylabel("voxels")
    axes.set_title("gray values (dashed: black and white of the pictures)")
    axes.spines[["top", "right"]].set_visible(False)


def show_residuals(axes: Axes, residuals: Sequence[float]) -> None:
    """Draw the residual over the iterations, logarithmic where it can be."""
    values = np.asarray(residuals, np.float64)
    axes.plot(np.arange(len(values)), values, color=LINE, marker="o", markersize=3, linewidth=1.5)
    if (values > 0).all():
        axes.set_yscale("log")
    axes.set_xlabel("iteration")
    axes.set_ylabel("residual ‖A x − b‖")
    axes.set_title("convergence")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
