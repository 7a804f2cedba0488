"""Pictures of fits: losses and rates over the epochs, slices before and after."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.fitting.history import History
from dtomo.report.draw import BAR, LINE, STYLE, gray_range, new_figure, show_slice

MOST_METRICS = 3
"""Metrics that are drawn, each in a picture of its own."""


def draw_history(path: str | os.PathLike[str], history: History, title: str = "") -> Path:
    """Write a PNG of losses, validation, the best epoch, rates and metrics.

    Parameters
    ----------
    path
        Of the picture.
    history
        With at least one epoch.
    title
        Above it.

    Raises
    ------
    UserError
        No epochs, or a file that cannot be written.
    """
    if not len(history):
        raise UserError("there is no epoch to be drawn: the history is empty")
    names = sorted({name for epoch in history for name in (*epoch.metrics, *epoch.validation_metrics)})[:MOST_METRICS]
    with mpl.rc_context(STYLE):
        figure = new_figure(4.5 * (2 + len(names)), 3.6)
        axes = figure.subplots(1, 2 + len(names))
        _losses(axes[0], history)
        _rates(axes[1], history)
        for axis, name in zip(axes[2:], names):
            _metric(axis, history, name)
        if title:
            figure.suptitle(title)
        return _saved(figure, Path(path))


def draw_slices(path: str | os.PathLike[str], volumes: Mapping[str, NDArray[Any]]) -> Path:
    """Write a PNG of the middle slices across z and y of volumes ``(z, y, x)`` by name, in the same gray values.

    Raises
    ------
    UserError
        No volumes, or a file that cannot be written.
    """
    if not volumes:
        raise UserError("there is no volume to be drawn")
    cuts = {name: (one[one.shape[0] // 2], one[:, one.shape[1] // 2]) for name, one in volumes.items()}
    limits = gray_range([cut for pair in cuts.values() for cut in pair])
    with mpl.rc_context(STYLE):
        figure = new_figure(3.6 * len(cuts), 7)
        axes = figure.subplots(2, len(cuts), squeeze=False)
        for column, (name, (across_z, across_y)) in enumerate(cuts.items()):
            show_slice(axes[0, column], across_z, limits, name)
            show_slice(axes[1, column], across_y, limits, "", ("z", "x"))
        return _saved(figure, Path(path))


def _losses(axis: Axes, history: History) -> None:
    numbers = [epoch.number for epoch in history]
    axis.plot(numbers, history.losses, "o-", color="0.55", ms=3, label="training")
    if np.isfinite(history.validations).any():
        axis.plot(numbers, history.validations, "o-", color=LINE, ms=3, label="held out")
    if history.best is not None:
        axis.axvline(history.best.number, color=BAR, lw=1.2, ls="--", label="best")
    if (history.losses > 0).all() and not (history.validations <= 0).any():
        axis.set_yscale("log")
    axis.legend()
    _dressed(axis, "loss")


def _rates(axis: Axes, history: History) -> None:
    axis.plot([epoch.number for epoch in history], [epoch.rate for epoch in history], "o-", color=LINE, ms=3)
    _dressed(axis, "rate")


def _metric(axis: Axes, history: History, name: str) -> None:
    numbers = [epoch.number for epoch in history]
    for label, color, found in (
        ("training", "0.55", [epoch.metrics.get(name) for epoch in history]),
        ("held out", LINE, [epoch.validation_metrics.get(name) for epoch in history]),
    ):
        if any(value is not None for value in found):
            values = [np.nan if value is None else value for value in found]
            axis.plot(numbers, values, "o-", color=color, ms=3, label=label)
    axis.legend()
    _dressed(axis, name)


def _dressed(axis: Axes, title: str) -> None:
    axis.set(title=title, xlabel="epoch")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _saved(figure: Figure, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise UserError(f"the picture cannot be written to {path}: {error.strerror or error}") from error
    return path
