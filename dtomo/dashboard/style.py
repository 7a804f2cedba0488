"""Colors and small texts of the page."""

import html
import math
from collections.abc import Iterable

from dtomo.distributed.progress import duration

INK = "#1f2933"
GRID = "#e4e7eb"
WAITING = "#dde2e8"
ACCENT = "#2f6f9f"
ALARM = "#b4232a"
WORKERS = ("#2f6f9f", "#d9822b", "#3d9a6c", "#8e5ea2", "#c0504d", "#5b8c9e", "#a68a3e", "#6b7a8f")
"""Worker i has color i, counted round."""

STATES = {
    "running": ("running", ACCENT),
    "done": ("finished", "#2c7a51"),
    "stopped": ("stopped", ALARM),
    "lost": ("lost", ALARM),
}
"""What is said of the states of a run, and its color."""


WRAPPED = {"flex-wrap": "wrap"}
"""Of rows whose parts go below one another where the window is narrow."""


def escaped(text: object, most: int = 300) -> str:
    """Text that may hold anything, for HTML; what is longer than `most` is cut in its middle."""
    plain = str(text)
    if len(plain) > most:
        plain = f"{plain[: most // 2]} … {plain[-most // 2 :]}"
    return html.escape(plain)


def tile(value: str, label: str) -> str:
    """A number with what it is below it; `value` and `label` are HTML."""
    return f"<div class='tile'><b>{value}</b><span>{label}</span></div>"


def span_of_time(seconds: float) -> str:
    """A duration, or a dash for none."""
    return duration(seconds) if math.isfinite(seconds) else "–"


def rate(slices: float) -> str:
    """Slices per second or minute, whichever is a number to be read; a dash for none."""
    if not math.isfinite(slices):
        return "–"
    if slices >= 1:
        return f"{slices:.{0 if slices >= 10 else 1}f} slices/s"
    return f"{60 * slices:.2g} slices/min"


def colors_of(workers: Iterable[str]) -> dict[str, str]:
    """A color for each worker, in the order given."""
    return {worker: WORKERS[index % len(WORKERS)] for index, worker in enumerate(workers)}


SHEET = f"""
:host {{ color: {INK}; font-size: 13px; font-family: Helvetica, Arial, sans-serif; }}
.bk-clearfix {{ width: 100%; }}
.head {{ display: flex; flex-wrap: wrap; width: 100%; align-items: flex-start; gap: 8px 28px; }}
.head {{ box-sizing: border-box; padding: 8px 4px 0 4px; }}
.name {{ flex: 1; min-width: min(100%, 320px); }}
.name b {{ font-size: 18px; overflow-wrap: anywhere; }}
.name p {{ margin: 3px 0 0 0; color: #52606d; }}
.tile {{ text-align: right; white-space: nowrap; }}
.tile b {{ display: block; font-size: 18px; }}
.tile span {{ color: #52606d; }}
.why {{ color: {ALARM}; margin: 3px 0 0 0; overflow-wrap: anywhere; }}
.help {{ max-width: 46em; margin: 60px auto; line-height: 1.6; font-size: 15px; }}
.help code {{ background: #eef1f4; padding: 2px 6px; border-radius: 3px; }}
.panel {{ font-weight: bold; font-size: 13px; }}
.panel span {{ font-weight: normal; color: #52606d; }}
table {{ border-collapse: collapse; font-size: 12px; width: 100%; table-layout: fixed; }}
td {{ padding: 1px 6px 1px 0; vertical-align: top; overflow-wrap: anywhere; }}
td:first-child {{ color: #52606d; width: 92px; }}
"""
"""Of all texts on the page."""
