"""Line coverage of ``dtomo/`` on CPUs: ``python -m benchmarks.coverage`` (extras ``test`` and ``coverage``).

Three kinds of parts, each a run of pytest under coverage with its own data:

- a folder of tests, as in CI; the folder ``.`` is the files of tests/ itself. Processes that tests start count, workers
  of Dask too, unless they are killed. Lines of kernels are not seen, because they are compiled; what emits vector
  instructions is, because kernels are compiled anew.
- ``interpreted``: tests of kernels, operators and preparation with ``NUMBA_DISABLE_JIT=1``. Kernels that use vector
  instructions cannot be interpreted: tests that meet one, or that take too long so, are skipped, and lines that only
  such tests reach count as not covered.
- ``simulator``: tests/cuda with ``NUMBA_ENABLE_CUDASIM=1``, kernels for devices in Numba's simulator.

Prints lines of each folder of ``dtomo/``, and the modules that lack most. Exit code 1 where tests fail or the total is
below ``fail_under`` in ``pyproject.toml``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import coverage

from benchmarks.measure import table

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
INTERPRETED, SIMULATOR = "interpreted", "simulator"
SPECIAL = {
    INTERPRETED: {"NUMBA_DISABLE_JIT": "1"},
    SIMULATOR: {"NUMBA_ENABLE_CUDASIM": "1"},
}
"""Parts that are no folder of tests -> environment."""

ARGUMENTS = {
    INTERPRETED: [
        *("-p", "benchmarks.interpreted", "--timeout=10", "tests/kernels", "tests/operators"),
        *(f"tests/prep/test_{name}.py" for name in ("flats", "halfturn", "phase", "stripes")),
    ],
    SIMULATOR: ["tests/cuda"],
    ".": [str(path.relative_to(ROOT)) for path in sorted(TESTS.glob("test_*.py"))],
}


def folders() -> list[str]:
    """Of tests, and "." for the files beside them."""
    return [*sorted({path.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/test_*.py")}), "."]


def options() -> argparse.ArgumentParser:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", metavar="PART", help="folders of tests/, interpreted, simulator; else all")
    parser.add_argument("--data", type=Path, help="keep the data here; parts that lie here from before count too")
    parser.add_argument("--report", action="store_true", help="run nothing: report what lies in --data")
    parser.add_argument("--slow", action="store_true", help="with tests marked slow")
    parser.add_argument("--processes", type=int, default=1, help="files of tests at a time (pytest-xdist)")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which a part is stopped")
    parser.add_argument("--worst", type=int, default=15, help="how many modules are named")
    parser.add_argument("--lines", action="store_true", help="also which lines these lack")
    return parser


def run(part: str, data: Path, chosen: argparse.Namespace) -> bool:
    """Run a part under coverage, its data into a folder of its own; whether all tests passed."""
    place = data / part.replace(".", "files")
    place.mkdir(parents=True, exist_ok=True)
    for old in place.iterdir():
        old.unlink()
    environment = {**os.environ, **SPECIAL.get(part, {})}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment["COVERAGE_FILE"] = str(place / "coverage")
    environment["NUMBA_CACHE_DIR"] = str(data / "compiled")  # empty at first: what emits instructions runs
    command = [sys.executable, "-m", "coverage", "run", "-m", "pytest", "--durations=0", "-p", "no:cacheprovider"]
    command += ["--slow"] if chosen.slow else []
    command += ["-n", str(chosen.processes), "--dist", "loadfile"] if chosen.processes > 1 else []
    command += ARGUMENTS.get(part, [f"tests/{part}"])
    start, said = time.monotonic(), data / f"{place.name}.log"
    with said.open("w") as out:
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT, timeout=chosen.limit
            )
            code = done.returncode
        except subprocess.TimeoutExpired:
            code = 1
            out.write(f"\nstopped after {chosen.limit:g} s")
    text = said.read_text(errors="replace")
    if code:
        print(text)
    print(f"{part}: {text.splitlines()[-1] if text else ''} ({time.monotonic() - start:.0f} s)", flush=True)
    return code == 0


def measured(data: Path) -> dict[str, dict]:
    """What coverage says of each module of ``dtomo``, from the data of all parts together.

    Parameters
    ----------
    data
        Folder with a folder of data files for each part; they stay.
    """
    files = sorted(str(path) for path in data.glob("*/coverage.*"))
    with tempfile.TemporaryDirectory() as folder:
        found = coverage.Coverage(data_file=str(Path(folder, "all")), config_file=str(ROOT / "pyproject.toml"))
        found.combine(files, strict=True, keep=True)
        found.json_report(outfile=str(Path(folder, "all.json")))
        modules: dict[str, dict] = json.loads(Path(folder, "all.json").read_text())["files"]
    return {str(Path(name).relative_to("dtomo")): entry for name, entry in modules.items()}


def row(name: str, modules: list[dict]) -> dict[str, object]:
    """Of the table: sums over modules."""
    lines = sum(m["summary"]["num_statements"] for m in modules)
    covered = sum(m["summary"]["covered_lines"] for m in modules)
    return {"folder": name, "lines": lines, "covered": covered, "%": f"{100 * covered / max(lines, 1):.1f}"}


def spans(lines: list[int]) -> str:
    """1, 2, 3, 7 -> "1-3 7"."""
    ends: list[list[int]] = []
    for line in lines:
        if ends and line == ends[-1][1] + 1:
            ends[-1][1] = line
        else:
            ends.append([line, line])
    return " ".join(f"{first}-{last}" if last > first else str(first) for first, last in ends)


def report(modules: dict[str, dict], worst: int, lines: bool) -> float:
    """Print both tables; per cent of all lines."""
    groups: dict[str, list[dict]] = defaultdict(list)
    for name, module in modules.items():
        parents = Path(name).parts[:-1]
        groups["kernels/cuda" if parents[:2] == ("kernels", "cuda") else (*parents, ".")[0]].append(module)
    rows = [*(row(name, groups[name]) for name in sorted(groups)), row("all", list(modules.values()))]
    total = rows[-1]
    print(table(list(total), [[str(entry) for entry in line.values()] for line in rows]))
    by_missing = sorted(modules, key=lambda name: -modules[name]["summary"]["missing_lines"])[:worst]
    print(f"\nThe {len(by_missing)} modules that lack most lines:")
    for name in by_missing:
        summary = modules[name]["summary"]
        which = f"  {spans(modules[name]['missing_lines'])}" if lines else ""
        print(f"{summary['missing_lines']:5d} of {summary['num_statements']:4d}  {name}{which}")
    return float(str(total["%"]))


def main() -> int:
    """The command."""
    parser = options()
    chosen = parser.parse_args()
    possible = [*folders(), *SPECIAL]
    unknown = sorted(set(chosen.parts) - set(possible))
    if unknown or (chosen.report and chosen.data is None):
        parser.error(f"{unknown[0]} is none of {', '.join(possible)}" if unknown else "--report needs --data")
    least = float(coverage.Coverage(config_file=str(ROOT / "pyproject.toml")).get_option("report:fail_under"))
    with tempfile.TemporaryDirectory() as temporary:
        data = chosen.data.resolve() if chosen.data else Path(temporary)
        parts = [] if chosen.report else chosen.parts or possible
        passed = [run(part, data, chosen) for part in parts]
        reached = report(measured(data), chosen.worst, chosen.lines)
    print(f"\n{reached} % of the lines of dtomo/ run on CPUs; wanted {least:g} %")
    return 0 if all(passed) and reached >= least else 1


if __name__ == "__main__":
    sys.exit(main())
