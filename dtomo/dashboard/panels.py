"""Parts of the page, each with a `root` to be laid out and an `update` that brings it up to a run.

What has not changed is not sent to the browser again.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from bokeh.models import ColumnDataSource, Div, HoverTool, PrintfTickFormatter, Range1d
from bokeh.plotting import figure
from numpy.typing import NDArray

from dtomo.dashboard.runs import RunState
from dtomo.dashboard.style import GRID, INK, SHEET, STATES, WAITING, colors_of, escaped, rate, span_of_time, tile

if TYPE_CHECKING:
    from distributed import Scheduler

HEIGHT = 380
"""Of plots, in screen pixels."""
MOST_CURVES = 64
"""Thin residual curves drawn at most."""
MOST_POINTS = 400
"""Points of a curve at most."""
MOST_WORKERS = 24
"""Workers whose memory is shown; where there are more, those with the most."""


def new_plot(title: str, x: str, y: str, **options: Any) -> Any:
    """An empty plot with its title and the names (and units) of its axes."""
    plot = figure(
        title=title,
        x_axis_label=x,
        y_axis_label=y,
        toolbar_location=None,
        tools="",
        background_fill_color="white",
        border_fill_color=None,
        outline_line_color="#cbd2d9",
        **options,
    )
    plot.title.text_font_size = "13px"
    plot.title.text_color = INK
    plot.grid.grid_line_color = GRID
    for axis in plot.axis:
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_font_size = "12px"
        axis.major_label_text_font_size = "11px"
        axis.axis_line_color = "#9aa5b1"
        axis.major_tick_line_color = "#9aa5b1"
        axis.minor_tick_line_color = None
    return plot


def send(source: ColumnDataSource, data: dict[str, Any]) -> None:
    """New data for a source, unless they are what it has."""
    old = source.data
    if any(name not in old or list(old[name]) != list(column) for name, column in data.items()):
        source.data = data


def set_text(div: Div, text: str) -> None:
    """A new text, unless it is what is there."""
    if div.text != text:
        div.text = text


class Header:
    """What runs, how far it is, and how long it will take."""

    def __init__(self) -> None:
        self.root = Div(sizing_mode="stretch_width", min_height=64, stylesheets=[SHEET])

    def update(self, run: RunState, now: float) -> None:
        """Bring it up to date."""
        state, color = STATES[run.state]
        what = escaped(run.algorithm.upper())
        if run.iterations:
            what += f", {run.iterations} iterations"
        shape = " × ".join(map(str, run.grid.shape))
        why = f"<p class='why'>{escaped(run.why)}</p>" if run.why else ""
        left = run.seconds_left(now) if run.state == "running" else math.nan
        tiles = [
            tile(f"{run.slabs_done} of {len(run.slabs)}", "slabs done"),
            tile(rate(run.throughput(now)), "throughput"),
            tile(span_of_time(run.elapsed(now)), "elapsed"),
            tile(span_of_time(left), "left, about"),
            tile(f"<span style='color:{color}'>{state}</span>", "state"),
        ]
        name = f"<b>{escaped(run.name, 120)}</b><p>{what} · {shape} voxels (z, y, x)</p>{why}"
        set_text(self.root, f"<div class='head'><div class='name'>{name}</div>{''.join(tiles)}</div>")


class Settings:
    """The settings of the run, as a table."""

    def __init__(self) -> None:
        self.root = Div(width=280, max_height=330, stylesheets=[SHEET], styles={"overflow-y": "auto"})

    def update(self, run: RunState, now: float) -> None:
        """Bring it up to date."""
        rows = "".join(f"<tr><td>{escaped(k)}</td><td>{escaped(v)}</td></tr>" for k, v in run.settings.items())
        set_text(self.root, f"<div class='panel'>Settings</div><table>{rows}</table>")


class Curve:
    """The residuals of an iterative run; of any other, slices done over time."""

    def __init__(self) -> None:
        size = {"height": HEIGHT, "sizing_mode": "stretch_width", "min_width": 300}
        self._residuals = new_plot("", "iterations made", "‖A x − b‖ / ‖A x₀ − b‖", y_axis_type="log", **size)
        self._residuals.yaxis.formatter = PrintfTickFormatter(format="%g")
        self._each = ColumnDataSource({"xs": [], "ys": [], "color": []})
        self._mean = ColumnDataSource({"x": [], "y": []})
        self._residuals.multi_line("xs", "ys", source=self._each, line_color="color", line_alpha=0.45, line_width=1)
        self._residuals.line("x", "y", source=self._mean, line_color=INK, line_width=2.5)
        self._slices = new_plot("Slices done", "time since the start [s]", "slices", **size)
        self._made = ColumnDataSource({"x": [], "y": []})
        self._slices.step("x", "y", source=self._made, mode="after", line_color=INK, line_width=2.5)
        self._slices.y_range = Range1d(0, 1)
        self.plots = [self._residuals, self._slices]

    def update(self, run: RunState, now: float, colors: dict[str, str]) -> None:
        """Bring it up to date."""
        self._residuals.visible = run.iterations is not None
        self._slices.visible = run.iterations is None
        if run.iterations is None:
            self._update_slices(run, now)
        else:
            self._update_residuals(run, colors)

    def _update_slices(self, run: RunState, now: float) -> None:
        history = [*run.history, (run.elapsed(now), run.slices_done)]
        unit, name = (60.0, "min") if history[-1][0] > 300 else (1.0, "s")
        self._slices.xaxis.axis_label = f"time since the start [{name}]"
        self._slices.y_range.end = 1.02 * run.grid.shape[0]
        thin = history[:: -(-len(history) // MOST_POINTS)]
        thin = thin if thin[-1] == history[-1] else [*thin, history[-1]]
        send(self._made, {"x": [t / unit for t, _ in thin], "y": [slices for _, slices in thin]})

    def _update_residuals(self, run: RunState, colors: dict[str, str]) -> None:
        curves = [(curve, colors.get(slab.worker, "#9aa5b1")) for slab in run.slabs for curve in slab.curves()]
        length = max((len(curve) for curve, _ in curves), default=0)
        mean = mean_curve([curve for curve, _ in curves], length)
        step = max(1, -(-length // MOST_POINTS))
        shown = curves[:: max(1, -(-len(curves) // MOST_CURVES))]
        places = np.arange(0, length, step)
        send(
            self._each,
            {
                "xs": [places[: -(-len(curve) // step)].tolist() for curve, _ in shown],
                "ys": [positive(curve[::step]) for curve, _ in shown],
                "color": [color for _, color in shown],
            },
        )
        self._residuals.yaxis.ticker = log_ticks(mean)
        send(self._mean, {"x": places.tolist(), "y": positive(mean[::step])})
        self._residuals.title.text = "Residual of each slab; mean in bold" if curves else "Residual"


def mean_curve(curves: list[list[float]], length: int) -> list[float]:
    """Geometric mean of curves that begin at 1, some of which are shorter.

    At each iteration it falls by the mean of the factors of those that have come so far: a curve that ends makes no
    step in it.
    """
    logs, counts = np.zeros(length), np.zeros(length)
    for curve in curves:
        values = np.asarray(curve)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.diff(np.log(values))
        known = np.isfinite(steps)
        logs[1 : len(values)] += np.where(known, steps, 0)
        counts[1 : len(values)] += known
    return np.exp(np.cumsum(logs / np.maximum(counts, 1))).tolist() if length else []


def log_ticks(values: list[float]) -> list[float]:
    """Places of numbers on a logarithmic axis: 1, 2, 5, 10 where it is short, else every so-many-th power of 10."""
    known = [value for value in values if value > 0 and math.isfinite(value)] or [1.0]
    decades = math.log10(max(known) / min(known))
    if decades <= 2:
        return [mantissa * 10.0**power for power in range(-13, 4) for mantissa in (1, 2, 5)]
    return [10.0**power for power in range(-24, 24, max(1, round(decades / 6)))]


def positive(values: list[float]) -> list[float]:
    """What a logarithmic axis can show; the rest as NaN."""
    return [value if value > 0 and math.isfinite(value) else math.nan for value in values]


class Slabs:
    """A bar for each slab: waiting, running or done, in the color of its worker."""

    def __init__(self) -> None:
        self.root = new_plot(
            "Slabs: full is done, pale running",
            "part done [%]",
            "z [slice]",
            height=HEIGHT,
            sizing_mode="stretch_width",
            min_width=300,
            x_range=(0, 100),
        )
        self.root.y_range = Range1d(1, 0)
        self.root.grid.grid_line_color = None
        self._source = ColumnDataSource({name: [] for name in self._columns()})
        box = {"top": "start", "bottom": "stop", "source": self._source, "line_color": "white", "line_width": "line"}
        back = self.root.quad(left=0, right=100, fill_color="back", **box)
        self.root.quad(left=0, right="part", fill_color="front", **box)
        rows = ["number", "slices", "state", "worker", "seconds", "residual"]
        self.root.add_tools(HoverTool(renderers=[back], tooltips=[(row, f"@{row}") for row in rows]))

    @staticmethod
    def _columns() -> list[str]:
        shown = ["number", "slices", "state", "worker", "seconds", "residual"]
        return ["start", "stop", "part", "back", "front", "line", *shown]

    def update(self, run: RunState, now: float, colors: dict[str, str], names: dict[str, str]) -> None:
        """Bring it up to date."""
        self.root.y_range.start = run.grid.shape[0]
        data: dict[str, list[Any]] = {name: [] for name in self._columns()}
        for index, slab in enumerate(run.slabs):
            color = colors.get(slab.worker, "#9aa5b1")
            residuals = [curve[-1] for curve in slab.curves()]
            seconds = (slab.ended if math.isfinite(slab.ended) else now) - slab.began
            row = {
                "start": slab.start,
                "stop": slab.stop,
                "part": round(100 * slab.part_done(run.iterations), 1),
                "back": _pale(color) if slab.state == "running" else WAITING,
                "front": color,
                "line": 1.0 if len(run.slabs) <= 60 else 0.2,
                "number": index,
                "slices": f"{slab.start}:{slab.stop}",
                "state": f"{slab.state} before" if slab.before else slab.state,
                "worker": names.get(slab.worker, slab.worker),
                "seconds": f"{seconds:.0f}" if math.isfinite(seconds) else "–",
                "residual": f"{max(residuals):.3g}" if residuals else "–",
            }
            for name, value in row.items():
                data[name].append(value)
        send(self._source, data)


def _pale(color: str) -> str:
    """A color two thirds on its way to white."""
    return "#" + "".join(f"{(int(color[i : i + 2], 16) + 2 * 255) // 3:02x}" for i in (1, 3, 5))


class Memory:
    """What each worker holds, against its limit and against the plan."""

    def __init__(self, scheduler: "Scheduler") -> None:
        self._scheduler = scheduler
        self.root = new_plot(
            "", "memory [GB]", "worker", height=HEIGHT, sizing_mode="stretch_width", min_width=280, x_range=(0, 1)
        )
        self.root.y_range = Range1d(0.5, -0.5)
        self.root.ygrid.grid_line_color = None
        names = ["y", "used", "color", "limit", "plan", "top", "bottom"]
        self._source = ColumnDataSource({name: [] for name in names})
        self.root.hbar("y", right="used", height=0.6, source=self._source, fill_color="color", line_color=None)
        mark = {"y0": "top", "y1": "bottom", "source": self._source}
        self.root.segment(x0="limit", x1="limit", **mark, line_color="#b4232a", line_width=3, legend_label="limit")
        self.root.segment(
            x0="plan", x1="plan", **mark, line_color=INK, line_width=2, line_dash="dotted", legend_label="plan"
        )
        self.root.legend.orientation = "horizontal"
        self.root.legend.location = "bottom_right"
        self.root.legend.label_text_font_size = "11px"
        self.root.legend.spacing = 14
        self.root.legend.background_fill_alpha = 0.8

    def update(self, run: RunState, colors: dict[str, str], names: dict[str, str]) -> None:
        """Bring it up to date."""
        workers = list(self._scheduler.workers.values())
        held = {worker.address: int(worker.metrics.get("memory", 0)) / 1e9 for worker in workers}
        limits = {worker.address: (worker.memory_limit or 0) / 1e9 for worker in workers}
        shown = sorted(held, key=lambda address: -held[address])[:MOST_WORKERS]
        shown = [address for address in held if address in shown]
        plan = math.nan if run.planned_memory is None else run.planned_memory / 1e9
        count = len(shown)
        send(
            self._source,
            {
                "y": list(range(count)),
                "used": [round(held[address], 3) for address in shown],
                "color": [colors.get(address, "#9aa5b1") for address in shown],
                "limit": [limits[address] or math.nan for address in shown],
                "plan": [plan] * count,
                "top": [place - 0.4 for place in range(count)],
                "bottom": [place + 0.4 for place in range(count)],
            },
        )
        known = [*held.values(), *limits.values(), 0.0 if math.isnan(plan) else plan, 0.01]
        self.root.x_range.end = 1.08 * max(known)
        self.root.y_range.start = max(1.2 * count, 4) - 0.5
        self.root.yaxis.ticker = list(range(count))
        self.root.yaxis.major_label_overrides = {place: names[address] for place, address in enumerate(shown)}
        of = f": {count} of {len(held)}, those with the most" if count < len(held) else ""
        self.root.title.text = f"Memory of the workers now{of}" if count else "There is no worker"


def worker_names(scheduler: "Scheduler") -> tuple[dict[str, str], dict[str, str]]:
    """Name and color of each worker, by its address."""
    workers = {worker.address: str(worker.name)[:24] for worker in scheduler.workers.values()}
    return workers, colors_of(workers)


def finite_range(images: list[NDArray[np.float32]], low: float = 0.5, high: float = 99.7) -> tuple[float, float]:
    """Values shown black and white: percentiles of what is finite in all images, never equal.

    Of large images every other pixel each way is taken, or every third, …: a percentile needs no more.
    """
    images = [image[:: _every(image, 0), :: _every(image, 1)] for image in images]
    values = np.concatenate([image[np.isfinite(image)] for image in images]) if images else np.zeros(0)
    if not values.size:
        return 0.0, 1.0
    black, white = (float(value) for value in np.percentile(values, [low, high]))
    return (black, white) if white > black else (black - 0.5, black + 0.5)


def _every(image: NDArray[np.float32], axis: int) -> int:
    """Every so-many-th pixel along an axis is enough for its gray values."""
    return -(-image.shape[axis] // 200)
