"""A picture of a geometry: where source, detector and volume lie, and what the detector sees of the volume."""

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dtomo.geometry import VectorGeometry
from dtomo.report.draw import BAR, INK, LINE, STYLE, new_figure

Points = NDArray[np.float64]

_SHOWN = 5
"""Views whose detectors are drawn."""
_EDGES = [(a, b) for a, b in itertools.combinations(range(8), 2) if bin(a ^ b).count("1") == 1]


def draw_geometry(geometry: VectorGeometry, path: str | os.PathLike[str] | None = None, title: str = "") -> Figure:
    """Draw a geometry from outside and from the source of its first view.

    On the left the volume (box), the way of the source (or the directions that a parallel beam comes from), the
    detector in some of the views, with rays to its corners in the first. On the right the detector of the first view,
    row 0 on top, with the edges of the volume as they are seen on it.

    Parameters
    ----------
    path
        Where to write the picture (its ending says in what format); None: nowhere.

    Returns
    -------
    matplotlib.figure.Figure
    """
    with rc_context(STYLE):
        figure = new_figure(11, 5.5)
        outside: Any = figure.add_subplot(1, 2, 1, projection="3d")
        _draw_outside(outside, geometry)
        _draw_seen(figure.add_subplot(1, 2, 2), geometry)
        sizes = " × ".join(f"{n}" for n in geometry.shape)
        figure.suptitle(
            title or f"{geometry.beam} beam, {geometry.views} views of {geometry.rows} × {geometry.columns} pixels, "
            f"{sizes} voxels"
        )  # fmt: skip
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path)
    return figure


def _box(geometry: VectorGeometry) -> Points:
    """Corners of the volume, ``(8, 3)``: x, y, z."""
    signs = np.array(list(itertools.product((-0.5, 0.5), repeat=3)))
    return np.array(geometry.middle) + signs * geometry.lengths[::-1]


def _frame(geometry: VectorGeometry, view: int, behind: float) -> Points:
    """Corners (row, column) = first first, first last, last last, last first of a detector, ``(4, 3)``."""
    corners = [
        geometry.detector[view]
        + column * geometry.columns / 2 * geometry.column_step[view]
        + row * geometry.rows / 2 * geometry.row_step[view]
        for row, column in ((-1, -1), (-1, 1), (1, 1), (1, -1))
    ]
    if geometry.beam != "parallel":
        return np.array(corners)
    # of a parallel beam it does not matter how far away: behind the volume, where it can be seen
    direction = geometry.source[view] / np.linalg.norm(geometry.source[view])
    now = (geometry.detector[view] - geometry.middle) @ direction
    return np.array(corners) + max(behind - now, 0.0) * direction


def _draw_outside(axes: Any, geometry: VectorGeometry) -> None:
    box = _box(geometry)
    reach = float(np.linalg.norm(geometry.lengths)) / 2
    for a, b in _EDGES:
        axes.plot(*box[[a, b]].T, color=INK, linewidth=1)
    directions = geometry.source / np.linalg.norm(geometry.source, axis=1, keepdims=True)
    places = geometry.source if geometry.beam != "parallel" else geometry.middle - 2 * reach * directions
    axes.plot(*places.T, ".-" if geometry.views < 60 else "-", color=LINE, linewidth=1, markersize=4)
    axes.plot(*places[:1].T, "o", color=LINE, markersize=6)
    axes.text(*places[0], "source\n(view 0)" if geometry.beam != "parallel" else "beam from\n(view 0)", color=LINE)
    count = min(_SHOWN, geometry.views)
    for view in np.unique(np.linspace(0, geometry.views - 1, count + (geometry.views > count)).astype(int)[:count]):
        frame = _frame(geometry, int(view), 1.3 * reach)
        first = view == 0
        axes.plot(*frame[[0, 1, 2, 3, 0]].T, color=BAR, linewidth=2 if first else 1, alpha=1 if first else 0.6)
        axes.plot(*frame[[0, 1]].T, color="#b7791f", linewidth=2.5 if first else 1.5)
        if first:
            _draw_rays(axes, geometry, frame, places[0])
    for axis, name in enumerate("xyz"):
        tip = np.array(geometry.middle) + np.eye(3)[axis] * geometry.lengths[2 - axis] * 0.75
        axes.plot(*np.array([geometry.middle, tip]).T, color="#7b8794", linewidth=0.8)
        axes.text(*tip, name, color="#7b8794")
    axes.set_xlabel("x")
    axes.set_ylabel("y")
    axes.set_zlabel("z")
    axes.set_aspect("equal")
    axes.tick_params(labelsize=7)
    axes.set_title("volume, source, detector (dark edge: row 0)")


def _draw_rays(axes: Any, geometry: VectorGeometry, frame: Points, source: Points) -> None:
    steps = geometry.row_step[0] * geometry.rows / 2
    for number, corner in enumerate(frame):
        if geometry.beam == "parallel":
            direction = geometry.source[0] / np.linalg.norm(geometry.source[0])
            start = corner - ((corner - source) @ direction) * direction
        else:
            start = source + ((-1, -1, 1, 1)[number] * steps if geometry.beam == "fan" else 0)
        axes.plot(*np.array([start, corner]).T, color=LINE, linewidth=0.7, alpha=0.7)
    axes.text(*frame[0], "pixel (0, 0)", color="#b7791f")


def _draw_seen(axes: Axes, geometry: VectorGeometry) -> None:
    rows, columns = geometry.rows, geometry.columns
    edge = np.array([[-0.5, -0.5], [columns - 0.5, -0.5], [columns - 0.5, rows - 0.5], [-0.5, rows - 0.5]])
    axes.fill(*edge.T, facecolor=BAR, alpha=0.25, edgecolor=BAR, linewidth=2)
    axes.plot(*edge[:2].T, color="#b7791f", linewidth=2.5)
    box = _box(geometry)
    numbers = np.column_stack([box, np.ones(8)]) @ geometry.matrices()[0].T
    if (numbers[:, 2] > 1e-9).all():
        column, row = numbers[:, 0] / numbers[:, 2], numbers[:, 1] / (1 if geometry.beam == "fan" else numbers[:, 2])
        names = ("x", "y", "z")
        for a, b in _EDGES:
            axes.plot(column[[a, b]], row[[a, b]], color=INK, linewidth=1)
        for bit, name in zip((4, 2, 1), names):
            axes.annotate(
                name, (column[0], row[0]), xytext=(column[bit], row[bit]), color=LINE, fontweight="bold",
                arrowprops={"arrowstyle": "<-", "color": LINE},
            )  # fmt: skip
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.set_xlabel("column")
    axes.set_ylabel("row")
    axes.set_title("detector and edges of the volume in view 0")
    axes.spines[["top", "right"]].set_visible(False)
