"""Pictures of a ptychographic result: object, probe, positions, loss, ring correlation, errors of frames."""

import functools
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import hsv_to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dtomo.algorithms.resolution import resolution, threshold_values
from dtomo.errors import UserError
from dtomo.io.ptycho.result import PtychoResult
from dtomo.ptycho.curvatures import illumination
from dtomo.report.draw import BAR, INK, LINE, STYLE, gray_range, new_figure, show_slice

GRAY = "#9aa5b1"
LIT = 0.1
"""Where the object has less than this part of the light it usually has, it is left white."""
MOST_PIXELS = 1600
"""Rows or columns of a picture at most; larger objects are drawn with every n-th pixel."""
MOST_MODES, MOST_SLICES = 12, 12
THRESHOLDS = ("half-bit", "one-bit")

Panel = Callable[[Figure, Axes], None]


def write_pictures(
    result: PtychoResult, output: str | os.PathLike[str], *, folder: str | os.PathLike[str] | None = None
) -> list[Path]:
    """Write PNG pictures of a result beside it.

    Parameters
    ----------
    result
        What to draw.
    output
        Where the result is; its name is the heading.
    folder
        Where to write; default ``OUT.pictures`` beside the result. Pictures of the same name are replaced.

    Returns
    -------
    list of Path
        ``overview.png``, then single ones: ``amplitude.png``, ``phase.png``, ``probe.png``, ``positions.png``,
        ``loss.png``, and ``slices.png``, ``frc.png`` and ``errors.png`` where there is something to show.

    Raises
    ------
    UserError
        The folder cannot be written.
    """
    output = Path(output)
    where = output.with_name(f"{output.name}.pictures") if folder is None else Path(folder)
    try:
        where.mkdir(parents=True, exist_ok=True)
        with mpl.rc_context(STYLE):
            return [_saved(figure, where / f"{name}.png") for name, figure in _figures(result, output.name).items()]
    except OSError as error:
        raise UserError(f"pictures cannot be written to {where}: {error.strerror or error}") from error


def _saved(figure: Figure, path: Path) -> Path:
    figure.savefig(path)
    return path


def _figures(result: PtychoResult, heading: str) -> dict[str, Figure]:
    """By name."""
    view = _View(result)
    panels: dict[str, Panel] = {
        "amplitude": view.amplitude,
        "phase": view.phase,
        "probe": functools.partial(_probe_mode, result=result, mode=0),
        "positions": lambda figure, axes: _positions(axes, result),
        "loss": lambda figure, axes: _loss(axes, result),
    }
    if result.frc is not None:
        panels["frc"] = lambda figure, axes: _correlation(axes, result)
    if result.frame_error is not None:
        panels["errors"] = lambda figure, axes: _errors(figure, axes, result)
    figures = {"overview": _sheet(list(panels.values()), 3 if len(panels) <= 6 else 4, heading)}
    for name, panel in panels.items():
        wide = name in ("loss", "frc")
        figures[name] = new_figure(6.4, 4.2 if wide else 5.6)
        panel(figures[name], figures[name].add_subplot())
    modes = min(len(result.probe), MOST_MODES)
    figures["probe"] = _sheet(
        [functools.partial(_probe_mode, result=result, mode=mode) for mode in range(modes)],
        min(4, modes),
        "probe" if len(result.probe) == modes else f"the first {modes} of {len(result.probe)} probe modes",
    )
    slices = min(result.object.shape[1], MOST_SLICES)
    if slices > 1:
        shown = [functools.partial(view.slice_phase, number=number) for number in range(slices)]
        figures["slices"] = _sheet(shown, min(4, slices), "slices of the object")
    return figures


def _sheet(panels: Sequence[Panel], columns: int, heading: str) -> Figure:
    rows = -(-len(panels) // columns)
    figure = new_figure(4.6 * columns, 4.1 * rows + 0.4)
    for number, panel in enumerate(panels):
        panel(figure, figure.add_subplot(rows, columns, number + 1))
    figure.suptitle(heading, color=INK, fontsize=11)
    return figure


class _View:
    """The part of the object that was lit, thinned if it is very large; its first mode."""

    def __init__(self, result: PtychoResult) -> None:
        self._result = result
        parameters = {name: getattr(result, name) for name in ("object", "probe", "positions")}
        light = illumination(parameters)
        usual = float(np.percentile(light[light > 1e-3 * light.max()], 75)) if light.max() > 0 else 0.0
        lit = light > LIT * usual if usual > 0 else np.ones(light.shape, bool)
        rows, columns = (np.flatnonzero(lit.any(axis)) for axis in (1, 0))
        first, last = (int(rows[0]), int(columns[0])), (int(rows[-1]) + 1, int(columns[-1]) + 1)
        step = max(1, math.ceil(max(last[0] - first[0], last[1] - first[1]) / MOST_PIXELS))
        self._inside = slice(first[0], last[0], step), slice(first[1], last[1], step)
        self._lit = lit[self._inside]
        self._place = (first[0], first[1], last[0], last[1])

    def amplitude(self, figure: Figure, axes: Axes) -> None:
        """|T| of all slices together."""
        parts = self._part()
        image = np.exp(-parts.imag.sum(0)) if self._result.exponential else np.abs(parts.prod(0))
        self._show(figure, axes, image, "object: amplitude", "amplitude")

    def phase(self, figure: Figure, axes: Axes) -> None:
        """Of T of all slices together."""
        self._show(figure, axes, self._phase(self._part()), "object: phase", "phase [rad]")

    def slice_phase(self, figure: Figure, axes: Axes, number: int) -> None:
        """Of T of one slice."""
        part = self._part()[number : number + 1]
        self._show(figure, axes, self._phase(part), f"slice {number}: phase", "phase [rad]")

    def _part(self) -> NDArray[Any]:
        return self._result.object[(0, slice(None), *self._inside)]

    def _phase(self, parts: NDArray[Any]) -> NDArray[Any]:
        """That of the middle of the values is in the middle of the range, so that few values wrap around."""
        if self._result.exponential:
            return np.asarray(parts.real.sum(0))
        waves = parts.prod(0)
        inside = waves[self._lit]
        turn = np.angle(inside.sum()) if inside.size else 0.0
        return np.asarray(np.angle(waves * np.exp(-1j * turn)) + turn)

    def _show(self, figure: Figure, axes: Axes, image: NDArray[Any], title: str, unit: str) -> None:
        limits = gray_range([image[self._lit]], 0.3, 99.7)
        shown, size = np.where(self._lit, image, np.nan), _micrometres(self._result)
        drawn = show_slice(axes, shown, limits, title, ("row", "column"), size, place=self._place)
        figure.colorbar(drawn, ax=axes, label=unit, shrink=0.8, extend="both")


def _micrometres(result: PtychoResult) -> float | None:
    """Width of an object pixel."""
    return None if result.pixel_size is None else result.pixel_size[1] * 1e6


def colored(waves: NDArray[Any]) -> NDArray[np.float64]:
    """Complex values as colors ``(row, column, 3)``: phase as hue (0 is red), amplitude as brightness."""
    amplitude = np.abs(waves)
    largest = float(amplitude.max()) or 1.0
    hue = np.angle(waves) / (2 * np.pi) % 1
    return np.asarray(hsv_to_rgb(np.stack([hue, np.full(hue.shape, 0.9), amplitude / largest], -1)))


def _probe_mode(figure: Figure, axes: Axes, result: PtychoResult, mode: int) -> None:
    power = 100 * result.mode_powers[mode]
    title = f"probe: {power:.1f} % in mode 1" if len(result.probe) > 1 else "probe"
    title = title if mode == 0 else f"mode {mode + 1}: {power:.1f} %"
    show_slice(axes, colored(result.probe[mode]), (0, 1), title, ("row", "column"), _micrometres(result))
    y, x = np.mgrid[1:-1:64j, -1:1:64j]
    disk = np.clip(np.hypot(y, x), 0, 1) * np.exp(1j * np.arctan2(y, x))
    colors = np.concatenate([colored(disk), (np.hypot(y, x) <= 1)[..., None]], -1)
    wheel = axes.inset_axes((0.77, 0.81, 0.17, 0.17))
    wheel.imshow(colors)
    wheel.axis("off")
    wheel.text(66, 31.5, "0", color="white", fontsize=7, va="center", clip_on=False)
    largest = float(np.abs(result.probe[mode]).max())
    label = f"hue: phase, brightness: amplitude up to {largest:.3g} √count"
    axes.set_xlabel(f"column [pixel]\n{label}", fontsize=8)


def _positions(axes: Axes, result: PtychoResult) -> None:
    """Rows down, columns to the right, as the object is drawn."""
    scale, unit = _length_unit(result)
    after = result.positions * scale
    before = result.start_positions
    size = max(1.5, min(5.0, 80 / math.sqrt(max(1, len(after)))))
    title = f"positions of {len(after)} frames"
    if before is not None:
        steps = np.hypot(*(result.positions - before).T)
        if steps.max() > 1e-6:
            title = f"positions: moved by {steps.mean():.2f} pixels (at most {steps.max():.2f})"
            start = before * scale
            axes.plot(start[:, 1], start[:, 0], "o", color=GRAY, mfc="none", markersize=size + 2, label="start")
            lines = np.stack([start, after, np.full_like(after, np.nan)], 1).reshape(-1, 2)
            axes.plot(lines[:, 1], lines[:, 0], color=GRAY, linewidth=0.8)
    axes.plot(after[:, 1], after[:, 0], ".", color=LINE, markersize=size + 1, label="refined")
    if axes.get_legend_handles_labels()[1] != ["refined"]:
        axes.legend(loc="upper right", fontsize=7, framealpha=0.8)
    _as_object(axes, title, unit)


def _length_unit(result: PtychoResult) -> tuple[NDArray[np.float64], str]:
    """Factors for rows and columns, and the unit they lead to."""
    if result.pixel_size is None:
        return np.ones(2), "pixel"
    return np.asarray(result.pixel_size) * 1e6, "µm"


def _as_object(axes: Axes, title: str, unit: str) -> None:
    axes.set_aspect("equal", adjustable="datalim")
    axes.invert_yaxis()
    axes.set_xlabel(f"column [{unit}]")
    axes.set_ylabel(f"row [{unit}]")
    axes.set_title(title, fontsize=9)
    axes.tick_params(length=2)


def _loss(axes: Axes, result: PtychoResult) -> None:
    values = np.asarray(result.history, np.float64)
    axes.plot(np.arange(1, len(values) + 1), values, color=LINE, linewidth=1.5, marker="o", markersize=2.5)
    if len(values) and (values[np.isfinite(values)] > 0).all():
        axes.set_yscale("log")
    axes.set_xlabel("epoch")
    axes.set_ylabel(f"loss ({result.loss}), normalized")
    axes.set_title(f"loss: {values[-1]:.4g} after {len(values)} epochs" if len(values) else "loss")
    axes.grid(alpha=0.3, which="both")
    axes.spines[["top", "right"]].set_visible(False)


def _correlation(axes: Axes, result: PtychoResult) -> None:
    curve = result.frc
    assert curve is not None
    factor, unit = (1.0, "1/pixel") if result.pixel_size is None else (1e-6, "1/µm")
    frequency = curve.frequency * factor
    axes.plot(frequency, curve.correlation, color=LINE, linewidth=1.5, label="two half-scans")
    for name, style in zip(THRESHOLDS, ("--", ":")):
        axes.plot(frequency, threshold_values(name, curve.count), style, color=GRAY, linewidth=1.2, label=name)
    found = resolution(curve, THRESHOLDS[0])
    title = "ring correlation"
    if found.frequency > 0:
        half = found.half_period
        length = f"{half:.2f} pixels" if result.pixel_size is None else f"{half * 1e9:.3g} nm"
        title = f"ring correlation: half-period {length}" + ("" if found.crossed else " (the pixel's)")
        axes.axvline(found.frequency * factor, color=BAR, linewidth=1.5, label="where it falls below half-bit")
    axes.set_xlim(0, curve.nyquist * factor)
    axes.set_ylim(min(0.0, float(curve.correlation.min())), 1.03)
    axes.set_xlabel(f"spatial frequency [{unit}]")
    axes.set_ylabel("correlation")
    axes.set_title(title)
    axes.legend(fontsize=7, loc="upper right", framealpha=0.8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _errors(figure: Figure, axes: Axes, result: PtychoResult) -> None:
    errors = np.asarray(result.frame_error, np.float64)
    scale, unit = _length_unit(result)
    places = result.positions * scale
    size = max(4.0, min(60.0, 8000 / max(1, len(errors))))
    drawn = axes.scatter(places[:, 1], places[:, 0], c=errors, s=size, cmap="viridis")
    figure.colorbar(drawn, ax=axes, label="loss per pixel", shrink=0.8)
    worst = int(np.argmax(np.where(np.isfinite(errors), errors, -np.inf)))
    _as_object(axes, f"error of each frame: frame {worst} has the largest", unit)
