"""Projector, back projector and SIRT beside other packages: ``python -m benchmarks.projectors``.

Same exact data for all, same number of threads, one run. dtomo is measured on each of --slices; the others
once, on as many slices as --limit allows, since their time per slice hardly depends on it. Also: the
fraction of the processor's multiply-add peak, counting 4 * angles * columns * size operations per slice
(two entries of two operations for each pair of ray and row), and the time of the first call in a fresh
process.
"""

import os
import subprocess
import sys
import tempfile
import textwrap
from typing import Any

from benchmarks import environment
from benchmarks.cases import Case
from benchmarks.measure import (
    ITERATIONS,
    Row,
    measure,
    measure_all,
    number,
    options,
    quicken,
    table,
    write_json,
)
from benchmarks.peak import fma_peak
from benchmarks.peers import OTHERS, Dtomo

TASKS = ("forward", "back", "sirt")

_COLD = """
import time
start = time.perf_counter()
import numpy as np
from dtomo.geometry import ParallelBeam
from dtomo.operators import ParallelProjector
imported = time.perf_counter()
operator = ParallelProjector(ParallelBeam(np.arange(0, 180, 5.0), 64), {slices})
projections = operator.forward(np.ones((({slices}), 64, 64), np.float32))
forward = time.perf_counter()
operator.adjoint(projections)
print(imported - start, forward - imported, time.perf_counter() - forward)
"""


def first_calls(slices: int = 64) -> list[Row]:
    """Seconds of import, first forward and first back projection, with an empty and with a filled cache."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for cache in ("empty", "filled"):
            variables = os.environ | {"NUMBA_CACHE_DIR": folder}
            program = textwrap.dedent(_COLD).format(slices=slices)
            done = subprocess.run(
                [sys.executable, "-c", program], env=variables, check=True, capture_output=True, text=True
            )
            imported, forward, back = map(float, done.stdout.split())
            rows.append({"cache": cache, "import": imported, "forward": forward, "back": back})
    return rows


def fraction(row: Row, peak: float) -> tuple[float, float]:
    """GFLOP/s and the part of the peak that a forward or back projection reaches."""
    operations = 4.0 * row["angles"] * row["size"] * row["size"]
    rate = operations / (row["minimum"] * 1e-3)
    return rate / 1e9, rate / peak


def ratios(rows: list[Row], peak: float) -> str:
    """dtomo's lines with the ratios of the others to them."""
    others = list(dict.fromkeys(row["peer"] for row in rows if row["peer"] != "dtomo"))
    lines = []
    for own in (row for row in rows if row["peer"] == "dtomo"):
        line = [str(own["size"]), str(own["slices"]), own["task"], number(own["minimum"])]
        line.append(f"{fraction(own, peak)[0]:.0f} ({fraction(own, peak)[1]:.0%})" if own["task"] != "sirt" else "")
        line.append(_error(own))
        for name in others:
            same = [r for r in rows if (r["peer"], r["size"], r["task"]) == (name, own["size"], own["task"])]
            line.append(_beside(same[0], own) if same else "–")
        lines.append(line)
    head = [
        "N",
        "slices",
        "task",
        "dtomo, ms/slice",
        "GFLOP/s (of peak)",
        "error",
        *(f"{name}, ms (ratio; error)" for name in others),
    ]
    return table(head, lines)


def _error(row: Row) -> str:
    return f"{row['adjoint']:.1e} (adjoint)" if "adjoint" in row else f"{row['error']:.4f}" if "error" in row else ""


def _beside(row: Row, own: Row) -> str:
    mark = " †" if row.get("extrapolated") else ""
    error = f"; {_error(row)}" if _error(row) else ""
    ratio = number(row["minimum"] / own["minimum"])
    return f"{number(row['minimum'])}{mark} (**{ratio}×**{error})"


def main() -> None:
    """Measure and print."""
    parser = options(__doc__.splitlines()[0], [512, 1024], [64, 16, 8, 1], list(OTHERS))
    chosen = quicken(parser.parse_args())
    environment.restart_clean(chosen.cores)
    peers = {name: OTHERS[name] for name in chosen.peers}
    packages = ["numba", "numpy", *(kind.package for kind in peers.values())]
    print(
        f"{environment.processor()}, {environment.cores()} threads, {environment.versions(packages)}",
        flush=True,
    )
    peak = fma_peak(environment.cores(), seconds=0.05 if chosen.quick else 0.3)
    print(f"multiply-add peak: {peak / 1e9:.0f} GFLOP/s in float32", flush=True)
    rows: list[Row] = []
    for size in chosen.sizes:
        for slices in chosen.slices:
            rows += measure("dtomo", Dtomo, Case(size, slices, Dtomo.center(size)), TASKS, chosen.repeats, chosen.limit)
        rows += measure_all(peers, size, max(chosen.slices), TASKS, chosen.repeats, chosen.limit)
    starts: list[dict[str, Any]] = [] if chosen.quick else first_calls()
    print(
        f"\nPeak {peak / 1e9:.0f} GFLOP/s. Errors: forward relative to exact line integrals; SIRT "
        f"({ITERATIONS} iterations) RMS in the circle. † extrapolated from 1 and 2 iterations.\n"
    )
    print(ratios(rows, peak))
    for start in starts:
        print(f"\nfresh process, {start['cache']} cache: import {start['import']:.2f} s, first forward "
              f"{start['forward']:.2f} s, first back {start['back']:.2f} s", end="")  # fmt: skip
    print()
    write_json(chosen.json, packages, peak=peak, first_calls=starts, rows=rows)


if __name__ == "__main__":
    main()
