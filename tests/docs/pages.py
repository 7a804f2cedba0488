"""Pages of the documentation as programs: their code blocks, run one after another in an empty folder.

=================  =============================================================================================
block              what is done with it
=================  =============================================================================================
```console         lines that begin with ``$`` are run by a shell, what follows each is what it must print
```python          is executed in this process; the names of a page are shared by its blocks
```text            right after a Python block: what that must print
``title="NAME"``   of any other language, or of Python: a file of that name is written
```bash            commands that cannot be run here (they install, or need a site): `dtomo`'s are parsed, not run
=================  =============================================================================================

In what is expected ``…`` stands for any part of a line, and a line of its own ``…`` for any lines. Numbers are equal if
they differ by a twentieth at most, so that another processor's rounding is no fault.
"""

import contextlib
import io
import itertools
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from dtomo.cli.commands import app

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```(\w*)[ ]*([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_TIMEOUT = 200


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, what stands behind that, its text, and its first line."""

    language: str
    mark: str
    text: str
    line: int

    @property
    def title(self) -> str | None:
        """The file that the block is."""
        found = re.search(r'title="([^"]+)"', self.mark)
        return found[1] if found else None


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page."""
    text = page.read_text("utf-8")
    found = [Block(m[1], m[2], m[3], text[: m.start()].count("\n") + 1) for m in _FENCE.finditer(text)]
    assert text.count("```") == 2 * len(found), f"{page.name} has fences that are not at the beginning of a line"
    return found


def commands_of(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block with the lines that it must print."""
    command, expected = "", []
    for line in block.text.splitlines():
        if line.startswith("$ ") or command.endswith("\\"):
            if not command.endswith("\\"):
                if command:
                    yield command, expected
                command, expected = "", []
            command = command.removesuffix("\\") + line.removeprefix("$ ").strip()
        else:
            expected.append(line)
    assert command, f"line {block.line}: a console block without a command"
    yield command, expected


def same_line(expected: str, printed: str) -> bool:
    """Whether a line is what was expected, up to ``…`` and to rounding of numbers."""
    parts = [_NUMBER.split(part) for part in expected.rstrip().split("…")]
    pattern = "(?:.*?)".join(rf"({_NUMBER.pattern})".join(map(re.escape, pieces)) for pieces in parts)
    found = re.fullmatch(pattern, printed.rstrip())
    if not found:
        return False
    numbers = map(float, _NUMBER.findall(expected.replace("…", " … ")))
    return all(math.isclose(a, float(b), rel_tol=0.05) for a, b in zip(numbers, found.groups(), strict=True))


def missing_line(expected: list[str], printed: list[str]) -> str | None:
    """What differs first, a line that was not printed or one that was not expected; None: all are as told."""
    at, free = 0, False
    for line in expected:
        if line.strip() == "…":
            free = True
            continue
        end = len(printed) if free else at + 1
        hit = next((i for i in range(at, min(end, len(printed))) if same_line(line, printed[i])), None)
        if hit is None:
            return f"expected {line!r}" + (f", printed {printed[at]!r}" if at < len(printed) else ", printed no more")
        at, free = hit + 1, False
    return None if free or at >= len(printed) else f"printed {printed[at]!r}, which the page does not show"


def _shell(folder: Path) -> dict[str, str]:
    """Variables in which `dtomo` and `python` are those of this process."""
    programs = folder.parent / "programs"
    programs.mkdir(exist_ok=True)
    main = "from dtomo.cli import main\n\nif __name__ == '__main__':\n    raise SystemExit(main())\n"
    scripts = {"dtomo": f"#!{sys.executable}\n{main}", "python": f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'}
    for name, program in scripts.items():
        (programs / name).write_text(program)
        (programs / name).chmod(0o755)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {"PATH": f"{programs}:{os.environ['PATH']}", "COLUMNS": "160", "PYTHONPATH": ":".join(paths)}
    return os.environ | own


def _run_console(block: Block, folder: Path) -> None:
    for command, expected in commands_of(block):
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=_shell(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, (
            f"line {block.line}, {command}: exit code {done.returncode}; it says:\n{done.stdout}"
        )
        wrong = missing_line(expected, [line for line in done.stdout.splitlines() if line.strip()])
        assert not wrong, f"line {block.line}, {command}: {wrong}; all of it:\n{done.stdout}"


@contextlib.contextmanager
def _modules_of(folder: Path) -> Iterator[None]:
    """Let modules that lie in a folder be imported, and forget them afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]


def run_page(page: Path, folder: Path) -> int:
    """Run the blocks of a page in an empty folder; the number of those that were run."""
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks, ran = blocks_of(page), 0
    with contextlib.chdir(folder), _modules_of(folder):
        for block, after in itertools.zip_longest(blocks, blocks[1:]):
            if block.title:
                Path(block.title).write_text(block.text, "utf-8")
                continue
            if block.language == "console":
                _run_console(block, folder)
            elif block.language == "python":
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(compile("\n" * block.line + block.text, str(page), "exec"), names)
                if after is not None and after.language == "text":
                    wrong = missing_line(after.text.splitlines(), printed.getvalue().splitlines())
                    assert not wrong, f"line {block.line}: {wrong}; all of it:\n{printed.getvalue()}"
            else:
                assert block.language in ("bash", "text", "math"), f"line {block.line}: nobody runs {block.language!r}"
                continue
            ran += 1
    return ran


def parse_command(words: list[str]) -> None:
    """Let dtomo's own parser read the words of a command; what they ask for is not done.

    Raises
    ------
    Exception
        A command or an option that does not exist, or a value of the wrong kind.
    """
    command: Any = typer.main.get_command(app)
    name, rest = "dtomo", list(words)
    while hasattr(command, "commands"):
        name = rest.pop(0)
        assert name in command.commands, f"there is no command {name!r} in {shlex.join(['dtomo', *words])}"
        command = command.commands[name]
    command.make_context(name, rest)


def dtomo_commands(text: str) -> Iterator[list[str]]:
    """The words of each `dtomo` command of a block of shell lines, without comments and redirections."""
    for line in text.replace("\\\n", " ").splitlines():
        for command in re.split(r"&&|\|", line.removeprefix("$ ")):
            if command.strip().startswith("dtomo "):
                yield shlex.split(re.sub(r"\s[>&].*$", "", command), comments=True)[1:]
