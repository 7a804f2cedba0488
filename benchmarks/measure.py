"""Time one task of one peer, and put what was measured into tables and files."""

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import Case
from benchmarks.environment import cores, describe
from benchmarks.peers import Peer

ITERATIONS = 20
"""Of SIRT."""

Row = dict[str, Any]


def options(description: str, sizes: list[int], slices: list[int], peers: Sequence[str]) -> argparse.ArgumentParser:
    """The options that the benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes, help="width of a slice")
    parser.add_argument("--slices", type=int, nargs="+", default=slices, help="slices at once; peers get the first")
    parser.add_argument("--peers", nargs="*", default=list(peers), choices=list(peers))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for the runs of one task of one peer")
    parser.add_argument("--cores", type=int, help="threads of every package; default all")
    parser.add_argument("--json", type=Path, help="also write what was measured here")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    return parser


def quicken(chosen: argparse.Namespace) -> argparse.Namespace:
    """With --quick: sizes that take a few seconds."""
    if chosen.quick:
        chosen.sizes, chosen.slices, chosen.repeats, chosen.limit = [64], [16, 1], 1, 2.0
    return chosen


def runs(function: Callable[[], Any], repeats: int, limit: float) -> tuple[Any, list[float]]:
    """Result of the last run and seconds of each; stops when the limit (seconds) is spent."""
    samples: list[float] = []
    out = None
    while len(samples) < repeats and (not samples or sum(samples) < limit):
        start = time.perf_counter()
        out = function()
        samples.append(time.perf_counter() - start)
    return out, samples


def time_task(peer: Peer, case: Case, task: str, repeats: int, limit: float) -> tuple[Row, np.ndarray | None]:
    """Milliseconds per slice of forward, back, fbp or sirt after a warm-up, and the result with slices first.

    A stack as high as the number of cores predicts the time: the stack is cut so that the repeats fit the limit,
    but for peers that gain from a high one, which get fewer repeats. SIRT that does not fit even so is measured with
    one and two iterations and extrapolated; it has no result then.
    """
    stack = case.volume if task == "forward" else case.sinograms
    few = len(stack) if peer.whole_stack else min(cores(), len(stack))
    if task == "sirt":
        return _time_sirt(peer, stack, few, repeats, limit)
    function = getattr(peer, task)
    data = peer.load(stack[:few], task)
    function(data)
    out, samples = runs(lambda: function(data), 1, limit)
    slices = _cut(len(stack), few, samples[0] * repeats, limit)
    if samples[0] * 2 < limit:
        data = peer.load(stack[:slices], task)
        if peer.compiles and slices != few:
            function(data)
        out, samples = runs(lambda: function(data), repeats, limit)
    else:
        slices = few
    return _row(samples, slices), peer.unload(out, task)


def _cut(slices: int, few: int, seconds: float, limit: float) -> int:
    """Slices, halved until they fit the limit, if `few` of them take so many seconds."""
    while slices > few and seconds * slices / few > limit:
        slices = max(few, slices // 2)
    return slices


def _time_sirt(peer: Peer, stack: np.ndarray, few: int, repeats: int, limit: float) -> tuple[Row, np.ndarray | None]:
    def solve(data: Any, iterations: int) -> Any:
        return peer.sirt(data, iterations)  # type: ignore[attr-defined]

    data = peer.load(stack[:few], "sirt")
    solve(data, 1)
    one, two = (runs(functools.partial(solve, data, n), 1, limit)[1][0] for n in (1, 2))
    whole = one + (ITERATIONS - 1) * max(two - one, 0)
    if whole > limit and not peer.whole_stack:
        return _row([whole], few) | {"extrapolated": True}, None
    slices = _cut(len(stack), few, whole, limit)
    data = peer.load(stack[:slices], "sirt")
    out, samples = runs(functools.partial(solve, data, ITERATIONS), repeats, limit)
    return _row(samples, slices), peer.unload(out, "sirt")


def _row(samples: list[float], slices: int) -> Row:
    milliseconds = [sample * 1e3 / slices for sample in samples]
    return {
        "slices": slices,
        "runs": len(samples),
        "minimum": min(milliseconds),
        "median": statistics.median(milliseconds),
    }


def measure(name: str, kind: type[Peer], case: Case, tasks: Sequence[str], repeats: int, limit: float) -> list[Row]:
    """Rows of one peer: times, and errors against the phantom or its line integrals.

    Back projection has no truth to compare with: there `adjoint` is |<Ax, y> - <x, By>| / <Ax, y>.
    """
    peer = kind(case.size, case.angles)
    rows: list[Row] = []
    projected = None
    for task in tasks:
        if not hasattr(peer, task):
            continue
        row, out = time_task(peer, case, task, repeats, limit)
        row = {
            "peer": name,
            "task": task,
            "size": case.size,
            "asked": case.slices,
            "angles": len(case.angles),
        } | row
        if task == "forward":
            assert out is not None
            row["error"], projected = case.projection_error(out), out[:1]
        elif task == "back" and projected is not None and out is not None:
            product = float(np.vdot(projected.astype(float), case.sinograms[:1].astype(float)))
            other = float(np.vdot(case.volume[:1].astype(float), out[:1].astype(float)))
            row["adjoint"] = abs(product - other) / product
        elif out is not None and task != "back":
            row["error"] = case.rms_error(out)
        rows.append(row)
        print(_sentence(row), flush=True)
    return rows


def measure_all(
    peers: dict[str, type[Peer]], size: int, slices: int, tasks: Sequence[str], repeats: int, limit: float
) -> list[Row]:
    """Rows of several peers on the same data; those that are not installed are named and left out."""
    rows = []
    for name, kind in peers.items():
        try:
            rows += measure(name, kind, Case(size, slices, kind.center(size)), tasks, repeats, limit)
        except ImportError as error:
            print(f"  {name}: not installed ({error})", flush=True)
    return rows


def _sentence(row: Row) -> str:
    checks = "".join(f", {key} {row[key]:.2g}" for key in ("error", "adjoint") if key in row)
    extra = ", extrapolated from 1 and 2 iterations" if row.get("extrapolated") else ""
    return (
        f"  {row['size']:5d} {row['peer']:22s} {row['task']:8s} {row['minimum']:9.2f} ms per slice "
        f"(median {row['median']:.2f}; {row['slices']} slices, {row['runs']} runs{checks}{extra})"
    )


def number(value: float) -> str:
    """A number for a table: three significant digits, no exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def write_json(path: Path | None, packages: list[str], **content: Any) -> None:
    """Write what was measured, with machine and versions, if a path was given."""
    if path is not None:
        path.write_text(json.dumps(describe(packages) | content, indent=1, default=float) + "\n")
        print(f"\nwritten: {path}")
