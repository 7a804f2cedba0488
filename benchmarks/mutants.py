"""One line broken at a time, to see that a test fails: ``python -m benchmarks.mutants``.

Breaks are those of ``benchmarks/mutants.txt``, chosen by hand, and some that are found in the syntax of each
module (`benchmarks.mutants_found`), the same ones for the same ``--seed``. Each is made in a copy of the tree, never in
the tree itself, and only the tests of its module run, until the first one fails. A break that no test notices is an
error, unless that file says why nothing can be noticed.

Kernels are compiled in a cache of the copy's own. Of a broken kernel only what depends on its module is compiled again.
"""

import argparse
import ast
import collections
import dataclasses
import importlib.machinery
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import environment, mutants_table
from benchmarks.measure import table, write_json
from benchmarks.mutants_found import Break, chosen
from benchmarks.mutants_table import Module

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("dtomo", "tests", "benchmarks", "examples", "docs", "pyproject.toml", "README.md", "CHANGELOG.md")
LONGEST = 240.0
"""Seconds after which tests are taken to hang, which counts as caught."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a break: `by` is the test that failed, or "" where none did."""

    broken: Break
    by: str
    seconds: float
    equivalent: str = ""

    @property
    def survived(self) -> bool:
        """Whether no test noticed a break that could be noticed."""
        return not self.by and not self.equivalent


class Copy:
    """A copy of the tree whose lines are broken and put right again.

    Parameters
    ----------
    folder
        Where the copy and its compiled kernels are; a copy that is there is brought up to date.
    """

    def __init__(self, folder: Path) -> None:
        self.tree, self.cache = folder / "tree", folder / "cache"
        self.tree.mkdir(parents=True, exist_ok=True)
        for name in COPIED:
            _synchronise(ROOT / name, self.tree / name)
        self._users = _users_of_modules(self.tree)
        place = self.tree / "dtomo" / "kernels" / "compiling.py"
        loader = importlib.machinery.SourceFileLoader("compiling_of_the_copy", str(place))
        self._compiling: Any = types.ModuleType(loader.name)
        self._compiling.__file__ = str(place)
        loader.exec_module(self._compiling)

    def test(self, selection: Sequence[str], limit: float = LONGEST) -> tuple[int, str, float]:
        """Run tests until one fails: (exit code of pytest, which one failed, seconds)."""
        variables = {name: value for name, value in os.environ.items() if name not in environment.SLOW}
        variables |= {"PYTHONPATH": str(self.tree), "NUMBA_CACHE_DIR": str(self.cache), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *selection]
        start = time.perf_counter()
        try:
            done = subprocess.run(
                command, cwd=self.tree, env=variables, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            return 1, "(no end)", time.perf_counter() - start
        failed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(\S+)", done.stdout, re.MULTILINE)
        by = failed[1] if failed else f"(exit code {done.returncode})"
        return done.returncode, by, time.perf_counter() - start

    def test_broken(self, broken: Break, selection: Sequence[str]) -> Outcome:
        """Break a line, run tests, put the line right."""
        path = self.tree / broken.module
        text = path.read_text()
        lines = text.splitlines(keepends=True)
        if lines[broken.line - 1].rstrip("\n") != broken.before:
            raise ValueError(f"{broken.module}: line {broken.line} is not what it was")
        lines[broken.line - 1] = broken.after + "\n"
        times = path.stat()
        kernels = self._kernel_folder()
        path.write_text("".join(lines))
        beside = self._kernel_folder()
        if beside != kernels and kernels.exists():
            shutil.rmtree(beside, ignore_errors=True)  # of a run that was killed
            shutil.copytree(kernels, beside, copy_function=os.link)
            for user in self._users[path]:  # Numba looks at the file of a kernel, not at what that imports
                for kept in beside.glob(f"*/{user.stem}.*"):
                    kept.unlink()
        try:
            code, by, seconds = self.test(selection)
        finally:
            path.write_text(text)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            if beside != kernels:
                shutil.rmtree(beside, ignore_errors=True)
        if code in (4, 5):  # of pytest: a wrong command, nothing collected
            raise ValueError(f"no tests in {' '.join(selection)}")
        return Outcome(broken, "" if code == 0 else by, seconds)

    def _kernel_folder(self) -> Path:
        """Where the copy keeps the kernels that it compiles of its present source."""
        os.environ["NUMBA_CACHE_DIR"] = str(self.cache)
        return Path(self._compiling.cache_folder.__wrapped__())


def _synchronise(source: Path, target: Path) -> None:
    """Copy what differs, and remove what is no longer there; times are kept."""
    if source.is_dir():
        if source.name == "__pycache__":
            return
        target.mkdir(exist_ok=True)
        names = {path.name for path in source.iterdir()}
        for old in target.iterdir():
            if old.name not in names:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        for name in names:
            _synchronise(source / name, target / name)
    elif not target.exists() or source.read_bytes() != target.read_bytes():
        shutil.copy2(source, target)


def _users_of_modules(tree: Path) -> dict[Path, set[Path]]:
    """For each module of kernels: itself and the ones that import it, also by way of others."""
    folder = tree / "dtomo" / "kernels"
    imported = {
        path: {
            folder / f"{node.module.rpartition('.')[2]}.py"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dtomo.kernels.")
        }
        for path in folder.glob("*.py")
    }
    users = {path: {path} for path in imported}
    for _ in imported:
        for path, others in imported.items():
            for other in others & imported.keys():
                users[other] |= users[path]
    return users


def run(breaks: Sequence[Break], modules: Mapping[str, Module], copy: Copy, check: bool = True) -> Iterator[Outcome]:
    """Each break in turn; before them, with `check`, their tests as they are.

    Raises
    ------
    ValueError
        Tests that fail with nothing broken.
    """
    if check:
        tests = sorted({test for broken in breaks for test in modules[broken.module].tests})
        code, by, _ = copy.test(tests, limit=20 * LONGEST)
        if code:
            raise ValueError(f"with nothing broken, {by} fails")
    for broken in breaks:
        module = modules[broken.module]
        outcome = copy.test_broken(broken, module.tests)
        if not outcome.by:
            outcome = dataclasses.replace(outcome, equivalent=mutants_table.reason(broken, module))
        print(line_of(outcome), flush=True)
        yield outcome


def line_of(outcome: Outcome) -> str:
    """One outcome in words."""
    verdict = outcome.by or (f"equivalent: {outcome.equivalent}" if outcome.equivalent else "SURVIVED")
    return f"{outcome.seconds:5.0f} s  {outcome.broken.module}:{outcome.broken.line}  {outcome.broken}  {verdict}"


def summary(outcomes: Sequence[Outcome]) -> str:
    """A table of modules."""
    rows = []
    for module, those in _grouped(outcomes).items():
        caught = sum(bool(o.by) for o in those)
        same, left = sum(bool(o.equivalent) for o in those), sum(o.survived for o in those)
        rows.append(
            [module, f"{len(those)}", f"{caught}", f"{same}", f"{left}", f"{sum(o.seconds for o in those):.0f}"]
        )
    return table(["module", "breaks", "caught", "equivalent", "survived", "seconds"], rows)


def _grouped(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    grouped = collections.defaultdict(list)
    for outcome in outcomes:
        grouped[outcome.broken.module].append(outcome)
    return dict(grouped)


def options() -> argparse.ArgumentParser:
    """What the command takes."""
    parser = argparse.ArgumentParser(description="One line broken at a time, to see that a test fails.")
    parser.add_argument("--module", action="append", help="path of a module, or a part of it; again for more")
    parser.add_argument("--seed", type=int, default=1, help="which breaks are found in a module")
    parser.add_argument("--count", type=int, default=2, help="breaks found in each module; 0: those by hand alone")
    parser.add_argument("--most", type=int, help="breaks by hand in each module, at most")
    parser.add_argument("--found-only", action="store_true", help="leave out those by hand")
    parser.add_argument("--quick", action="store_true", help="a dozen of the breaks by hand")
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests as they are first")
    parser.add_argument("--folder", type=Path, help="keep the copy and its compiled kernels here for the next time")
    parser.add_argument("--list", action="store_true", help="say which breaks there are, and make none")
    parser.add_argument("--json", type=Path, help="also write what was found to this file")
    return parser


def planned(settings: argparse.Namespace, modules: Mapping[str, Module]) -> list[Break]:
    """The breaks to be made, in the order of the modules."""
    breaks = []
    for name, module in modules.items():
        if not any(part in name for part in settings.module or [""]):
            continue
        some = [] if settings.found_only else list(mutants_table.by_hand(ROOT, name, module))[: settings.most]
        some += [] if settings.quick else chosen(ROOT, name, settings.count, settings.seed)
        breaks += sorted(some, key=lambda broken: broken.line)
    return breaks[:: max(1, len(breaks) // 12)][:12] if settings.quick else breaks


def main() -> int:
    """Make the breaks; 1 where one survives."""
    settings = options().parse_args()
    modules = mutants_table.read(ROOT)
    breaks = planned(settings, modules)
    if settings.list:
        print("\n".join(f"{b.module}:{b.line}  {b}" for b in breaks))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        copy = Copy((settings.folder or Path(scratch)).resolve())
        outcomes = list(run(breaks, modules, copy, not settings.unchecked))
    print(summary(outcomes))
    survivors = [outcome for outcome in outcomes if outcome.survived]
    print(f"{len(outcomes)} breaks, {sum(bool(o.by) for o in outcomes)} caught, {len(survivors)} survived")
    print("\n".join(line_of(outcome) for outcome in survivors))
    write_json(settings.json, ["numba", "numpy", "pytest"], outcomes=[dataclasses.asdict(o) for o in outcomes])
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
