"""Plots as SVG whose colors are those of the page, in light and in dark; every text that goes in is escaped."""

import dataclasses
import html
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

WIDTH, HEIGHT = 470, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 16, 14, 50
_MOST_POINTS = 600
"""Of a line; more are thinned out, they could not be told apart."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A curve: values `y` over `x`, with the name it has in the legend."""

    name: str
    x: ArrayLike
    y: ArrayLike
    dashed: bool = False


def plot(
    lines: Sequence[Line],
    across: str,
    up: str,
    *,
    log: bool = False,
    levels: Sequence[tuple[float, str]] = (),
    marks: Sequence[tuple[float, str]] = (),
    low: float | None = None,
    high: float | None = None,
) -> str:
    """Curves in one frame, as SVG; an empty text if no value is finite.

    Parameters
    ----------
    lines
        The curves; points that are not finite are left out.
    across, up
        What the axes are, with their units.
    log
        Logarithmic values, if all are above 0.
    levels, marks
        Dashed lines across and upright, with what is written at them.
    low, high
        Ends of the upright axis; None: of the values.
    """
    points = [(line, *_finite(line)) for line in lines]
    points = [(line, x, y) for line, x, y in points if len(x)]
    if not points:
        return ""
    xs, ys = np.concatenate([x for _, x, _ in points]), np.concatenate([y for _, _, y in points])
    frame = _Frame.around(xs, np.concatenate([ys, [level for level, _ in levels]]), log, low, high)
    parts = [frame.axes(across, up)]
    for value, text in levels:
        parts.append(frame.level(value, text))
    for value, text in marks:
        parts.append(frame.mark(value, text))
    for number, (line, x, y) in enumerate(points):
        parts.append(frame.curve(x, y, number, line.dashed))
    legend = "" if len(points) == 1 else _legend([line for line, _, _ in points])
    return _svg("".join(parts), f"{up} over {across}") + legend


def histogram(counts: NDArray[np.integer], edges: NDArray[np.floating], unit: str, limits: tuple[float, float]) -> str:
    """Bars of a histogram on a logarithmic scale, with the gray values of black and white of the pictures, as SVG.

    Parameters
    ----------
    counts, edges
        As ``numpy.histogram`` gives them.
    unit
        Of the values.
    limits
        Values of black and white.
    """
    heights = np.log10(1.0 + np.asarray(counts, np.float64))
    frame = _Frame.around(np.asarray(edges, np.float64), np.array([0.0, heights.max()]), False, 0.0, None)
    x = np.repeat(np.asarray(edges, np.float64), 2)[1:-1]
    outline = " ".join(f"{frame.x(a):.1f},{frame.y(b):.1f}" for a, b in zip(x, np.repeat(heights, 2)))
    floor = frame.y(0)
    area = (
        f"<polygon class='area' points='{frame.x(x[0]):.1f},{floor:.1f} {outline} {frame.x(x[-1]):.1f},{floor:.1f}'/>"
    )
    names = {float(p): f"1e{p}" if p > 3 else str(10**p) for p in range(int(heights.max()) + 2)}
    axes = frame.axes(unit, "voxels", {height: name for height, name in names.items() if height <= frame.top})
    marks = "".join(frame.mark(value, text) for value, text in zip(limits, ("black", "white")))
    return _svg(axes + area + marks, "histogram of the values")


def _finite(line: Line) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, y = np.asarray(line.x, np.float64), np.asarray(line.y, np.float64)
    there = np.isfinite(x) & np.isfinite(y)
    x, y = x[there], y[there]
    step = max(1, math.ceil(len(x) / _MOST_POINTS))
    return x[::step], y[::step]


def _legend(lines: Sequence[Line]) -> str:
    entries = "".join(
        f"<span><i class='c{number % 6}{' dashed' if line.dashed else ''}'></i>{html.escape(line.name)}</span>"
        for number, line in enumerate(lines)
    )
    return f"<div class='legend'>{entries}</div>"


def _svg(inside: str, label: str) -> str:
    return f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{html.escape(label)}'>{inside}</svg>"


def _number(value: float) -> str:
    text = f"{value:.6g}"
    return "0" if text in ("-0", "0") else text.replace("e+0", "e").replace("e-0", "e-")


def _steps(low: float, high: float, most: int, least: float = 0.0) -> list[float]:
    """Round numbers from `low` to `high`, at most about `most`, no closer than `least`."""
    rough = max((high - low) / most, least)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [
        round(index * step, 12 - math.floor(math.log10(step))) for index in range(first, int(high / step + 1e-9) + 1)
    ]


@dataclasses.dataclass(frozen=True)
class _Frame:
    """Where values lie in the drawing: `left` … `right` across, `bottom` … `top` upright.

    Heights are logarithms if `log`; what lies across is in `whole` numbers, or not.
    """

    left: float
    right: float
    bottom: float
    top: float
    log: bool
    whole: bool = False

    @classmethod
    def around(
        cls, xs: NDArray[np.float64], ys: NDArray[np.float64], log: bool, low: float | None, high: float | None
    ) -> "_Frame":
        log = log and bool((ys > 0).all())
        if log:
            ys = np.log10(ys)
        bottom, top = float(ys.min()), float(ys.max())
        room = 0.06 * (top - bottom) or 0.06 * abs(top) or 0.5
        bottom, top = bottom - room if low is None else low, top + room if high is None else high
        left, right = float(xs.min()), float(xs.max())
        if not right > left:
            left, right = left - 0.5, right + 0.5
        return cls(left, right, bottom, top, log, bool((xs == np.round(xs)).all()))

    def x(self, value: float) -> float:
        return _LEFT + (value - self.left) / (self.right - self.left) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - (value - self.bottom) / (self.top - self.bottom) * (HEIGHT - _TOP - _BOTTOM)

    def axes(self, across: str, up: str, named: dict[float, str] | None = None) -> str:
        parts = []
        for height, name in (self._heights() if named is None else named).items():
            y = self.y(height)
            parts.append(f"<line class='grid' x1='{_LEFT}' x2='{WIDTH - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}'/>")
            parts.append(f"<text x='{_LEFT - 7}' y='{y + 4:.1f}' text-anchor='end'>{name}</text>")
        floor = HEIGHT - _BOTTOM
        for value in _steps(self.left, self.right, 6, 1.0 if self.whole else 0.0):
            x = self.x(value)
            parts.append(f"<line class='axis' x1='{x:.1f}' x2='{x:.1f}' y1='{floor}' y2='{floor + 4}'/>")
            parts.append(f"<text x='{x:.1f}' y='{floor + 18}' text-anchor='middle'>{_number(value)}</text>")
        parts.append(f"<line class='axis' x1='{_LEFT}' x2='{WIDTH - _RIGHT}' y1='{floor}' y2='{floor}'/>")
        middle = (_TOP + floor) / 2
        parts.append(
            f"<text class='name' x='{(_LEFT + WIDTH - _RIGHT) / 2}' y='{HEIGHT - 8}' text-anchor='middle'>"
            f"{html.escape(across)}</text>"
            f"<text class='name' transform='translate(16 {middle}) rotate(-90)' text-anchor='middle'>"
            f"{html.escape(up)}</text>"
        )
        return "".join(parts)

    def _heights(self) -> dict[float, str]:
        if not self.log:
            return {value: _number(value) for value in _steps(self.bottom, self.top, 5)}
        factors = (1,) if self.top - self.bottom > 2 else (1, 2, 5)
        powers = range(math.floor(self.bottom), math.ceil(self.top) + 1)
        every = max(1, len(powers) // 6)
        found = {
            math.log10(factor) + power: _number(factor * 10.0**power) for power in powers[::every] for factor in factors
        }
        inside = {height: name for height, name in found.items() if self.bottom <= height <= self.top}
        if len(inside) < 2:
            inside = {math.log10(value): _number(value) for value in _steps(10**self.bottom, 10**self.top, 5)}
        return inside

    def level(self, value: float, text: str) -> str:
        y = self.y(math.log10(value) if self.log else value)
        return (
            f"<line class='mark' x1='{_LEFT}' x2='{WIDTH - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}'/>"
            f"<text class='mark' x='{WIDTH - _RIGHT}' y='{y - 5:.1f}' text-anchor='end'>{html.escape(text)}</text>"
        )

    def mark(self, value: float, text: str) -> str:
        if not self.left <= value <= self.right:
            return ""
        x = self.x(value)
        end = x > (_LEFT + WIDTH - _RIGHT) / 2
        return (
            f"<line class='mark' x1='{x:.1f}' x2='{x:.1f}' y1='{_TOP}' y2='{HEIGHT - _BOTTOM}'/>"
            f"<text class='mark' x='{x + (-5 if end else 5):.1f}' y='{_TOP + 11}' "
            f"text-anchor='{'end' if end else 'start'}'>{html.escape(text)}</text>"
        )

    def curve(self, x: NDArray[np.float64], y: NDArray[np.float64], number: int, dashed: bool) -> str:
        heights = np.log10(y) if self.log else y
        heights = np.clip(heights, self.bottom, self.top)
        places = [(self.x(a), self.y(b)) for a, b in zip(x, heights)]
        color = f"c{number % 6}"
        drawn = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        line = f"<polyline class='curve {color}{' dashed' if dashed else ''}' points='{drawn}'/>"
        if len(places) > 40:
            return line
        return line + "".join(f"<circle class='dot {color}' cx='{a:.1f}' cy='{b:.1f}' r='3'/>" for a, b in places)
