"""Table of the kernels for GPUs, made without one: what they need on each generation, and their error in the simulator.

``python -m benchmarks.kernels`` runs the tests of device code in Numba's simulator (errors against the CPU's results,
relative to the largest value) and compiles every kernel. It fails where a kernel spills registers, computes in float64
without saying so, does not fit a block, or was never compared in the simulator. Nothing here is a measurement on a GPU.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import ptx

ROOT = Path(__file__).parent.parent

Row = dict[str, Any]


def options() -> argparse.ArgumentParser:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--errors", type=Path, help="what a run of tests/cuda with DTOMO_KERNEL_ERRORS left; no new run"
    )
    parser.add_argument("--no-simulator", action="store_true", help="no errors")
    parser.add_argument("--json", type=Path, help="also write the table here")
    return parser


class Simulation:
    """The tests of device code, run in Numba's simulator by a process of their own while kernels are compiled here."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._errors, said = Path(self._folder.name, "errors.json"), Path(self._folder.name, "said")
        environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "DTOMO_KERNEL_ERRORS": str(self._errors)}
        command = [sys.executable, "-m", "pytest", "tests/cuda"]
        self._said = said
        with said.open("w") as out:
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT)

    def result(self) -> dict[str, Any]:
        """Launches and errors of every kernel, when the tests have ended."""
        code = self._process.wait()
        print(self._said.read_text())
        if code:
            raise SystemExit("the tests of device code do not pass in the simulator")
        return dict(json.loads(self._errors.read_text()))


def examine(name: str, kernel: Any, signature: str) -> tuple[Row, list[str]]:
    """Row of the table for one signature of a kernel, and what is wrong with it."""
    threads = math.prod(kernel.threads)
    row: Row = {"kernel": name, "arguments": signature, "threads": list(kernel.threads), "on": {}}
    wrong = []
    for capability in ptx.CAPABILITIES:
        usage = ptx.assemble(ptx.to_ptx(kernel, signature, capability), capability, kernel.registers)
        wrong += ptx.complaints(f"cc {capability[0]}.{capability[1]}: {name}", signature, usage, threads)
        occupancy = ptx.occupancy(usage, threads, capability)
        row["on"][f"{capability[0]}.{capability[1]}"] = {**vars(usage), "occupancy": occupancy}
    return row, wrong


def unproven(rows: list[Row], errors: dict[str, Any]) -> list[str]:
    """Kernels that the simulator never ran, or whose results were compared with nothing; adds both to the rows."""
    wrong = []
    for row in rows:
        found = errors.get(row["kernel"], {"launches": 0, "error": None})
        row.update(found)
        if not found["launches"]:
            wrong.append(f"{row['kernel']}: never launched in the simulator")
        elif found["error"] is None:
            wrong.append(f"{row['kernel']}: its result was compared with nothing in the simulator")
    return list(dict.fromkeys(wrong))


def table(rows: list[Row]) -> str:
    """In Markdown; a column of numbers for each generation, of most columns one for all."""
    generations = [f"{a}.{b}" for a, b in ptx.CAPABILITIES]
    heads = ["kernel", "arguments", "block", f"registers on {' / '.join(generations)}", "spills", "local", "shared"]
    heads += ["float64", "occupancy", "launches", "error"]
    lines = [" | ".join(heads), " | ".join(["---"] * len(heads))]
    for row in rows:
        on = [row["on"][generation] for generation in generations]
        error = row.get("error")
        cells = [
            row["kernel"],
            f"`{_short(row['arguments'])}`",
            " × ".join(map(str, row["threads"])),
            " / ".join(str(usage["registers"]) for usage in on),
            *(str(max(usage[name] for usage in on)) for name in ("spill_stores", "stack", "shared", "doubles")),
            " / ".join(f"{usage['occupancy']:.0%}" for usage in on),
            str(row.get("launches", "–")),
            "–" if error is None else "0" if error == 0 else f"{error:.0e}",
        ]
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines)


def _short(signature: str) -> str:
    """``void(float32[:, ::1], int64)`` as ``f4[2], i8``."""
    inside, out, depth = signature[signature.index("(") + 1 : signature.rindex(")")], [], 0
    for part in inside.replace(" ", "").split(","):
        if depth:
            out[-1] += "," + part
        else:
            out.append(part)
        depth += part.count("[") - part.count("]")
    names = {"float32": "f4", "float64": "f8", "complex64": "c8", "complex128": "c16"}
    names |= {f"{kind}{bits}": f"{kind[0]}{bits // 8}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
    short = []
    for part in out:
        name, _, axes = part.partition("[")
        short.append(names.get(name, name) + (f"[{axes.count(':') - axes.count('::')}]" if axes else ""))
    runs: list[tuple[str, int]] = []
    for part in short:
        runs = [*runs[:-1], (part, runs[-1][1] + 1)] if runs and runs[-1][0] == part else [*runs, (part, 1)]
    return ", ".join(part if count == 1 else f"{count} {part}" for part, count in runs)


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 where something is wrong."""
    chosen = options().parse_args(arguments)
    if ptx.missing():
        raise SystemExit(f"nothing can be compiled: {ptx.missing()}")
    simulation = None if chosen.no_simulator or chosen.errors else Simulation()
    rows, wrong = [], []
    for name, kernel in ptx.every_kernel().items():
        for signature in kernel.signatures:
            row, found = examine(name, kernel, signature)
            rows.append(row)
            wrong += found
    if not chosen.no_simulator:
        wrong += unproven(rows, simulation.result() if simulation else json.loads(chosen.errors.read_text()))
    print(table(rows))
    kernels = len({row["kernel"] for row in rows})
    print(f"\n{kernels} kernels, {len(rows)} signatures; spills, local and shared memory in bytes; no GPU was used")
    if chosen.json:
        chosen.json.write_text(json.dumps({"kernels": rows, "wrong": wrong}, indent=1))
    print("\n".join(wrong), file=sys.stderr if wrong else sys.stdout, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
