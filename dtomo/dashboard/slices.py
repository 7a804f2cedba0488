"""The middle slices of a run on the page."""

import math
from typing import Any

import numpy as np
from bokeh.layouts import column, row
from bokeh.models import ColumnDataSource, Div, LinearColorMapper, RadioButtonGroup, Range1d
from bokeh.palettes import Greys256
from numpy.typing import NDArray

from dtomo.dashboard.panels import finite_range, new_plot, set_text
from dtomo.dashboard.runs import RunState
from dtomo.dashboard.style import SHEET, WRAPPED
from dtomo.dashboard.thumbnails import PLANES, Grid, Plane

WIDEST, HIGHEST = 256, 244
"""Screen pixels of a picture at most."""
THINNEST = 24
BESIDE = 62
"""Screen pixels for the numbers and the name of the axis beside a picture."""
APART = 2.0
"""Seconds between two updates of the pictures at least."""
NOT_YET = "#e9edf1"
"""Where nothing is reconstructed yet."""


class Slices:
    """Three middle slices, filled as slabs come in; of a complex volume its magnitude or its phase."""

    def __init__(self) -> None:
        self._title = Div(stylesheets=[SHEET], sizing_mode="stretch_width", max_width=640)
        self._choice = RadioButtonGroup(labels=["magnitude", "phase"], active=0, visible=False, width=180, height=26)
        self._plots = row(styles=WRAPPED)
        self._sources: dict[Plane, ColumnDataSource] = {}
        self._titles: dict[Plane, Any] = {}
        self._seen: tuple[Any, ...] = ()
        self._grid: Grid | None = None
        self._next = 0.0
        self.root = column(row(self._title, self._choice, styles=WRAPPED, sizing_mode="stretch_width"), self._plots)

    def update(self, run: RunState, now: float) -> None:
        """Bring them up to date; pictures of the same run no more often than every `APART` seconds."""
        if run.grid != self._grid:
            self._lay_out(run.grid)
        choice = self._choice.active or 0
        seen = (id(run), run.picture_version, choice)
        same_view = self._seen[:1] == seen[:1] and self._seen[2:] == seen[2:]
        if seen == self._seen or (same_view and now < self._next and run.state == "running"):
            return
        self._seen, self._next = seen, now + APART
        self._choice.visible = any(np.iscomplexobj(image) for image in run.pictures.values())
        images = {plane: _shown(image, choice) for plane, image in run.pictures.items()}
        black, white = finite_range(list(images.values()))
        unit = run.unit if not (self._choice.visible and choice) else "rad"
        if images:
            text = f"black {rounded(black, white)}, white {white:.3g} {unit} (0.5 % and 99.7 % of the values)"
        else:
            text = "they come with the first slab"
        set_text(self._title, f"<div class='panel'>Middle slices <span>{text}</span></div>")
        for plane, source in self._sources.items():
            image = images.get(plane)
            source.data = {"image": [_grays(image, black, white, run.grid.pixels(plane))]}
        self._titles["xy"].text = _xy_title(run)

    def _lay_out(self, grid: Grid) -> None:
        """Plots of the shape of the volume."""
        self._grid, self._seen = grid, ()
        sizes = dict(zip("zyx", grid.shape))
        plots = []
        for plane in PLANES:
            across, down = plane
            scale = min(WIDEST / sizes[across], HIGHEST / sizes[down])
            width = max(THINNEST, round(sizes[across] * scale))
            plot = new_plot(
                _title(plane, grid),
                f"{across} [voxel]",
                f"{down} [voxel]",
                width=width + BESIDE,
                width_policy="fixed",
                frame_width=width,
                frame_height=max(THINNEST, round(sizes[down] * scale)),
                x_range=Range1d(0, sizes[across]),
                y_range=Range1d(sizes[down], 0),
            )
            plot.grid.grid_line_color = None
            plot.background_fill_color = NOT_YET
            rows, columns = grid.pixels(plane)
            steps = dict(zip("zyx", grid.steps))
            source = ColumnDataSource({"image": [_grays(None, 0, 1, (rows, columns))]})
            plot.image(
                "image",
                x=0,
                y=0,
                dw=columns * steps[across],
                dh=rows * steps[down],
                source=source,
                color_mapper=LinearColorMapper(palette=[NOT_YET, *Greys256[1:]], low=-0.5, high=255.5),
            )
            self._sources[plane], self._titles[plane] = source, plot.title
            plots.append(plot)
        self._plots.children = plots


def rounded(value: float, beside: float) -> str:
    """A number as exact as the difference to another asks for."""
    digits = math.floor(math.log10(abs(beside - value) or 1.0)) - 2
    return f"{round(value, -digits):.6g}"


def _title(plane: Plane, grid: Grid) -> str:
    z, y, x = grid.middle
    return {"xy": f"xy at z = {z}", "xz": f"xz at y = {y}", "yz": f"yz at x = {x}"}[plane]


def _xy_title(run: RunState) -> str:
    """Which slice it is; at first it is not the middle one."""
    middle = run.grid.middle[0]
    if run.xy_slice is None or run.xy_slice == middle:
        return f"xy at z = {middle}"
    return f"xy at z = {run.xy_slice} (not yet {middle})"


def _shown(image: NDArray[Any], choice: int) -> NDArray[np.float32]:
    if not np.iscomplexobj(image):
        return image
    with np.errstate(invalid="ignore", over="ignore"):
        return np.angle(image) if choice else np.abs(image)


def _grays(image: NDArray[np.float32] | None, black: float, white: float, shape: tuple[int, int]) -> NDArray[np.uint8]:
    """1 to 255 from black to white, 0 where there is nothing (not finite)."""
    if image is None:
        return np.zeros(shape, np.uint8)
    with np.errstate(invalid="ignore", over="ignore"):
        levels = np.clip((image - black) / (white - black), 0, 1)
    known = np.isfinite(levels)
    return np.where(known, 1 + np.round(254 * np.where(known, levels, 0)), 0).astype(np.uint8)
