"""A page as HTML: all texts are escaped, nothing is asked of any server, and no other script than its own may run."""

import base64
import dataclasses
import hashlib
import html
import json
from collections.abc import Sequence
from importlib.resources import files

from dtomo.report.page.stacks import Plane, Stack
from dtomo.report.page.svg import histogram

_MOST = 600
"""Characters of a single text."""


@dataclasses.dataclass(frozen=True)
class Bar:
    """A length among others: its name, how long it is, what is written behind it, and a mark in it (or None)."""

    name: str
    value: float
    text: str
    mark: float | None = None


@dataclasses.dataclass(frozen=True)
class Card:
    """A box of the page: a title, and one of a plot (SVG), bars, rows of names and values, or a picture; a line below.

    A picture is an address that holds its data, and its box is as wide as the page.
    """

    title: str
    plot: str = ""
    bars: tuple[Bar, ...] = ()
    rows: tuple[tuple[str, str], ...] = ()
    below: str = ""
    picture: str = ""

    def __bool__(self) -> bool:
        return bool(self.plot or self.bars or self.rows or self.picture)


@dataclasses.dataclass(frozen=True)
class Page:
    """What a page says, as plain text and plots.

    Attributes
    ----------
    title, lead
        Above all: the name of the output, and a line about what it is.
    tiles
        Values with what they are.
    notes
        Warnings.
    stacks
        Pictures of volumes.
    curves, resources, records
        Boxes: how it went and what came out; time and memory; settings and versions.
    foot
        The last line.
    """

    title: str
    lead: str
    tiles: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    stacks: Sequence[Stack] = ()
    curves: Sequence[Card] = ()
    resources: Sequence[Card] = ()
    records: Sequence[Card] = ()
    foot: str = ""

    def html(self) -> str:
        """The whole file."""
        style, script = _part("page.css"), _part("page.js")
        allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
        policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"
        tiles = "".join(
            f"<div class='tile'><b>{text(value)}</b><span>{text(what)}</span></div>" for value, what in self.tiles
        )
        notes = "".join(f"<li>{text(note)}</li>" for note in self.notes)
        grays = [_gray_values(stack, len(self.stacks) > 1) for stack in self.stacks]
        images = "".join(_stack(stack) for stack in self.stacks if len(stack.planes) == 1)
        body = [
            f"<header><h1>{text(self.title)}</h1><p>{text(self.lead)}</p></header>",
            f"<div class='tiles'>{tiles}</div>" * bool(tiles),
            f"<ul class='notes'>{notes}</ul>" * bool(notes),
            *(_stack(stack) for stack in self.stacks if len(stack.planes) > 1),
            f"<div class='images'>{images}</div>" * bool(images),
            _section("Values and course", [*grays, *self.curves]),
            _section("Time and memory", self.resources),
            _section("To repeat it", self.records),
            f"<footer>{text(self.foot)}</footer>",
        ]
        return (
            "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            "<meta name='viewport' content='width=device-width, initial-scale=1'>"
            "<link rel='icon' href='data:,'>"
            f"<title>{text(self.title)} · dtomo</title><style>{style}</style></head>\n"
            f"<body><main>{''.join(body)}</main>\n<script>{script}</script></body></html>\n"
        )


def text(value: object) -> str:
    """Any text, for HTML; what is too long is cut in its middle."""
    plain = str(value)
    if len(plain) > _MOST:
        plain = f"{plain[: _MOST // 2]} … {plain[-_MOST // 2 :]}"
    return html.escape(plain)


def text_of_address(address: str) -> str:
    """The address of embedded data, whole; any other is left out."""
    return html.escape(address) if address.startswith("data:image/") else ""


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _section(title: str, cards: Sequence[Card]) -> str:
    there = [card for card in cards if card]
    if not there:
        return ""
    return f"<section><h2>{text(title)}</h2><div class='cards'>{''.join(map(_card, there))}</div></section>"


def _card(card: Card) -> str:
    rows = "".join(f"<tr><td>{text(name)}</td><td>{text(value)}</td></tr>" for name, value in card.rows)
    inside = card.plot + _bars(card.bars) + (f"<table>{rows}</table>" if rows else "")
    if card.picture:
        inside += f"<img class='picture' alt='{text(card.title)}' src='{text_of_address(card.picture)}'>"
    below = f"<p>{text(card.below)}</p>" if card.below else ""
    return f"<div class='card{' wide' * bool(card.picture)}'><h3>{text(card.title)}</h3>{inside}{below}</div>"


def _bars(bars: Sequence[Bar]) -> str:
    if not bars:
        return ""
    longest = max(max(bar.value, bar.mark or 0.0) for bar in bars) or 1.0
    parts = []
    for bar in bars:
        mark = "" if bar.mark is None else f"<i style='left:{100 * bar.mark / longest:.1f}%'></i>"
        drawn = f"<div><b style='width:{100 * bar.value / longest:.1f}%'></b>{mark}</div>"
        parts.append(f"<span>{text(bar.name)}</span>{drawn}<em>{text(bar.text)}</em>")
    return f"<div class='bars'>{''.join(parts)}</div>"


def _stack(stack: Stack) -> str:
    data = json.dumps([_for_script(plane) for plane in stack.planes]).replace("<", "\\u003c")
    planes = "".join(_plane(plane) for plane in stack.planes)
    black, white = stack.limits
    unit = f" {stack.unit}" * bool(stack.unit)
    said = f"Black {black:.4g}, white {white:.4g}{unit}."
    lines = ""
    if len(stack.planes) > 1:
        said += " A click in a picture moves the other planes there."
        lines = "<label><input type='checkbox' name='lines' checked> lines of the other planes</label>"
    return (
        f"<section><h2>{text(stack.name)}</h2><div class='card stack'>"
        f"<div class='planes{' single' * (len(stack.planes) == 1)}'>{planes}</div>"
        "<div class='knobs' hidden>"
        "<label>brightness <input type='range' name='brightness' min='0.3' max='3' step='0.02' value='1'></label>"
        "<label>contrast <input type='range' name='contrast' min='0.3' max='3' step='0.02' value='1'></label>"
        f"{lines}</div>"
        f"<p>{text(said)}</p><script type='application/json'>{data}</script></div></section>"
    )


def _gray_values(stack: Stack, many: bool) -> Card:
    unit = f" {stack.unit}" * bool(stack.unit)
    return Card(
        f"Gray values: {stack.name}" if many else "Gray values",
        plot=histogram(stack.counts, stack.edges, stack.unit or "value", stack.limits),
        below=f"Mean {stack.mean:.5g}, standard deviation {stack.deviation:.5g}, from {stack.least:.5g} to "
        f"{stack.most:.5g}{unit}. Of {stack.source}.",
    )


def _now(plane: Plane) -> int:
    """Which picture is shown first: the middle one."""
    return min(range(len(plane.at)), key=lambda place: abs(plane.at[place] - plane.length / 2))


def _named(plane: Plane) -> str:
    up, across = plane.sides
    return f"{across}{up}" if len(up) == len(across) == 1 else f"{up}s × {across}s"


def _step(plane: Plane) -> tuple[float | None, str]:
    """From one slice to the next, and its unit: one in which the whole length is a number to be read."""
    if plane.step is None:
        return None, ""
    length = plane.step * plane.length
    factor, unit = (1e3, "nm") if length < 1 else (1e-3, "mm") if length >= 1e4 else (1.0, "µm")
    return plane.step * factor, unit


def _for_script(plane: Plane) -> dict[str, object]:
    now, (step, unit) = _now(plane), _step(plane)
    return {
        "axis": plane.axis, "sides": plane.sides, "size": plane.size, "length": plane.length, "at": plane.at,
        "step": step, "unit": unit, "now": now,
        "pictures": [None if place == now else picture for place, picture in enumerate(plane.pictures)],
    }  # fmt: skip


def _plane(plane: Plane) -> str:
    now = _now(plane)
    at = plane.at[now]
    step, unit = _step(plane)
    far = "" if step is None else f" · {float(f'{at * step:.4g}'):g} {unit}"
    place = f"{plane.axis} = {at} of {plane.length}{far}" if plane.length > 1 else ""
    bar = (
        ""
        if plane.bar is None
        else f"<span class='bar' style='width:{100 * plane.bar[0]:.2f}%'>{text(plane.bar[1])}</span>"
    )
    many = len(plane.pictures) > 1
    label = text(f"slice along {plane.axis}")
    slider = f"<input type='range' min='0' max='{len(plane.pictures) - 1}' value='{now}' aria-label='{label}'>"
    return (
        f"<figure class='plane'><figcaption><b>{text(_named(plane))}</b>"
        f"<output>{text(place)}</output></figcaption>"
        f"<div class='frame' style='aspect-ratio:{plane.proportion:.4f}'>"
        f"<img alt='{text(_named(plane))}' src='{plane.pictures[now]}'>"
        f"<i class='across'></i><i class='up'></i>{bar}</div>"
        f"{slider * many}</figure>"
    )
