"""The start pages, command by command, with dtomo installed from its wheel alone, in a clean environment.

python -m benchmarks.starts [PAGE …]     # all of docs/start by default, such as: beamline own-model

Builds the wheel, installs it into a new environment, checks what must be in it, and runs the blocks of each page in an
empty folder far from the sources: ``console`` blocks by a shell, all ``python`` blocks of a page by one interpreter.
Prints a table of pages, commands, wall times and exit codes; exit code 1 if any of them is not 0.
"""

import os
import platform
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INSTALLED = "from importlib.resources import files as f; import dtomo; assert f('dtomo').joinpath('py.typed').is_file()"
CHECKS = (
    ("installed", ["python", "-c", f"{INSTALLED}; assert 'site-packages' in dtomo.__file__; print(dtomo.__version__)"]),
    ("installed", ["python", "-m", "dtomo", "--help"]),
    ("installed", ["dtomo", "demo", "--size", "128"]),
)


def install(folder: Path) -> dict[str, str]:
    """Build the wheel, install it into a new environment in `folder`; the variables in which its programs are found."""
    venv.create(folder / "env", with_pip=True)
    pip = [str(folder / "env" / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True, cwd=folder)
    subprocess.run([*pip, "install", str(next(folder.glob("*.whl")))], check=True, cwd=folder)
    own = {"PATH": f"{folder / 'env' / 'bin'}:{os.environ['PATH']}", "NUMBA_CACHE_DIR": str(folder / "cache")}
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own


def run(words: list[str], folder: Path, variables: dict[str, str]) -> tuple[float, int, str]:
    """Wall time, exit code and output of a command."""
    began = time.monotonic()
    done = subprocess.run(
        words, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return time.monotonic() - began, done.returncode, done.stdout


def steps(page: Path, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """What a page tells to do, in its order, each with its name; files that it shows are written on the way."""
    from tests.docs.pages import blocks_of, commands_of

    python = ""
    for block in blocks_of(page):
        if block.title:
            (folder / block.title).write_text(block.text, "utf-8")
        elif block.language == "console":
            for command, _ in commands_of(block):
                yield command, ["bash", "-c", command]
        elif block.language == "python":
            # a page is one session of Python: what stood before is run again, for its names
            python += block.text
            yield f"python, line {block.line}", ["python", "-c", python]


def main(names: list[str]) -> int:
    """Install, check, run the pages and print the table."""
    pages = [ROOT / "docs" / "start" / f"{name}.md" for name in names]
    pages = pages or [page for page in sorted((ROOT / "docs" / "start").glob("*.md")) if page.stem != "index"]
    rows: list[tuple[str, str, float, int]] = []

    def note(page: str, command: str, words: list[str], folder: Path, variables: dict[str, str]) -> None:
        seconds, code, said = run(words, folder, variables)
        rows.append((page, command, seconds, code))
        print(f"| {page} | `{command}` | {seconds:.1f} | {code} |", flush=True)
        if code:
            print(said, file=sys.stderr)

    with tempfile.TemporaryDirectory(prefix="dtomo-starts-") as scratch:
        began = time.monotonic()
        variables = install(Path(scratch))
        print(f"{os.cpu_count()} cores, Python {platform.python_version()}; wheel installed in", end=" ")
        print(f"{time.monotonic() - began:.0f} s\n\n| page | command | seconds | exit code |\n|---|---|---|---|")
        for page, words in CHECKS:
            name = words[-1] if len(words[-1]) < 30 else "what is in it"
            name = name if name == "what is in it" else " ".join(words)
            note(page, name, words, Path(scratch), variables)
        for page in pages:
            folder = Path(scratch) / page.stem
            folder.mkdir()
            for name, words in steps(page, folder):
                note(page.stem, name, words, folder, variables)
    print("\n| page | commands | seconds | failed |\n|---|---|---|---|")
    for page_name in dict.fromkeys(row[0] for row in rows):
        own = [row for row in rows if row[0] == page_name]
        print(f"| {page_name} | {len(own)} | {sum(row[2] for row in own):.0f} | {sum(row[3] != 0 for row in own)} |")
    return int(any(row[3] for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
