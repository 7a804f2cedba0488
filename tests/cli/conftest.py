"""The real command in a process of its own, and a small scan to run it on."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dtomo.simulate import simulate_scan

ROOT = Path(__file__).resolve().parents[2]
Command = Callable[..., subprocess.CompletedProcess[str]]
RUNS = ("recon", "ptycho", "ptychotomo", "align", "fit")
"""Commands that write a page about what they did, if nothing else is said."""


def environment() -> dict[str, str]:
    """With this source tree first, whatever is installed."""
    return os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def words_of(words: tuple[object, ...], report: bool) -> list[str]:
    """The words as text, without the page about each run where a test does not ask for it: it takes a second each."""
    line = [str(word) for word in words]
    quiet = line[:1] in [[name] for name in RUNS] or line[:2] in (["subtomo", "align"], ["subtomo", "average"])
    return [*line, "--no-report"] if quiet and not report else line


@pytest.fixture
def dtomo(tmp_path: Path) -> Command:
    """Runs ``dtomo WORDS…`` in an empty folder and returns what came of it."""

    def command(
        *words: object, cwd: Path = tmp_path, timeout: float = 120, report: bool = False
    ) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "dtomo", *words_of(words, report)]
        return subprocess.run(line, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=timeout)

    return command


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """As `dtomo`, but in this process, which is quicker."""
    from dtomo.cli import main

    monkeypatch.chdir(tmp_path)

    def command(*words: object, report: bool = False) -> subprocess.CompletedProcess[str]:
        line = words_of(words, report)
        capfd.readouterr()
        code = main(line)
        said = capfd.readouterr()
        return subprocess.CompletedProcess(line, code, said.out, said.err)

    return command


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts ``dtomo WORDS…`` in a process group of its own; what still runs at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def command(*words: object) -> subprocess.Popen[str]:
        line = [sys.executable, "-m", "dtomo", *words_of(words, report=False)]
        process = subprocess.Popen(
            line,
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(process)
        return process

    yield command
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """Address of a cluster of one worker, so that not every run has to start its own."""
    from dtomo.distributed.clusters import Resources, connect

    with connect(Resources(1, 2, 2_000_000_000, dashboard=":0")) as client:
        yield client.scheduler.address


@pytest.fixture(scope="session")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw scan: 64 slices of 64 × 64 voxels, axis at column 38.5."""
    path = tmp_path_factory.mktemp("scan") / "scan.h5"
    simulate_scan(path, size=64, rows=64, angles=90, center=38.5, photons=1e5)
    return path
