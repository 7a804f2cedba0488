"""``dtomo recon`` through a real Slurm: the same bits as here, whatever happens to its jobs; and the batch script."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

from dtomo.simulate import simulate_scan

ROOT = Path(__file__).resolve().parents[2]
DTOMO = [sys.executable, "-m", "dtomo"]
Squeue = Callable[[], dict[str, tuple[str, str]]]
QUICK = ("--center", 38.5)
SLOW = (*QUICK, "--algorithm", "sirt", "--iterations", 100, "--slab", 8)
ON_SLURM = ("--cluster", "slurm", "--interface", "lo", "--threads", 1, "--memory", "600MB", "--queue", "main")


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def _run(folder: Path, *words: object, timeout: float = 170) -> subprocess.CompletedProcess[str]:
    line = [*DTOMO, *map(str, words)]
    return subprocess.run(line, cwd=folder, env=_environment(), capture_output=True, text=True, timeout=timeout)


@contextlib.contextmanager
def _started(folder: Path, *words: object) -> Iterator[subprocess.Popen[str]]:
    line = [*DTOMO, *map(str, words)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(line, cwd=folder, env=_environment(), stdout=pipe, stderr=pipe, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def _wait_for(condition: Callable[[], object], what: str, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"no {what} after {seconds} s"
        time.sleep(0.1)


def _slabs(output: Path) -> list[Path]:
    return list((output / ".dtomo").glob("slab-*.json"))


def _voxels(output: Path) -> np.ndarray:
    assert not (output / ".dtomo").exists(), f"{output} is unfinished"
    return np.asarray(zarr.open(output, mode="r")["0"])


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 slices of 64 × 64 voxels, axis at column 38.5."""
    path = tmp_path_factory.mktemp("scan") / "scan.h5"
    simulate_scan(path, size=64, rows=64, angles=90, center=38.5, photons=1e5)
    return path


@pytest.fixture(scope="module")
def expected(scan: Path) -> dict[str, np.ndarray]:
    """The volumes of workers on this machine."""
    volumes = {}
    for name, options in {"quick": QUICK, "slow": SLOW}.items():
        done = _run(scan.parent, "recon", scan, f"{name}.zarr", *options, "--workers", 1, "--memory", "1GB")
        assert done.returncode == 0, done.stderr
        volumes[name] = _voxels(scan.parent / f"{name}.zarr")
    return volumes


def test_the_same_bits_as_here(slurm: Path, scan: Path, expected: dict[str, np.ndarray], tmp_path: Path) -> None:
    done = _run(tmp_path, "recon", scan, "out.zarr", *QUICK, *ON_SLURM, "--workers", 2, "--walltime", "10m")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(_voxels(tmp_path / "out.zarr"), expected["quick"])
    assert "Warning" not in done.stderr


@pytest.mark.slow
def test_a_job_cancelled_half_way(
    slurm: Path, scan: Path, expected: dict[str, np.ndarray], tmp_path: Path, squeue: Squeue
) -> None:
    output = tmp_path / "out.zarr"
    with _started(tmp_path, "recon", scan, output, *SLOW, *ON_SLURM, "--workers", 2) as run:
        _wait_for(lambda: len(_slabs(output)) >= 2, "slab")
        job = sorted(squeue())[0]
        subprocess.run(["scancel", job], check=True)
        _, said = run.communicate(timeout=170)
    assert run.returncode == 0, said
    np.testing.assert_array_equal(_voxels(output), expected["slow"])
    assert f"job {job} ended; new ones are submitted in their place" in said
    assert not squeue()


@pytest.mark.slow
def test_an_interrupted_run_leaves_no_jobs_and_is_resumed(
    slurm: Path, scan: Path, expected: dict[str, np.ndarray], tmp_path: Path, squeue: Squeue
) -> None:
    output = tmp_path / "out.zarr"
    with _started(tmp_path, "recon", scan, output, *SLOW, *ON_SLURM) as run:
        _wait_for(lambda: len(_slabs(output)) >= 2, "slab")
        assert squeue()
        run.send_signal(signal.SIGTERM)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 130, said
    assert "--resume" in said
    _wait_for(lambda: not squeue(), "end of the jobs", 30)
    done = _run(tmp_path, "recon", scan, output, *SLOW, *ON_SLURM, "--resume")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(_voxels(output), expected["slow"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--queue", "none"), "the batch system does not take the job: .*invalid partition"),
        (("--walltime", "soon"), "--walltime is a time such as 02:00:00"),
        (("--interface", "ib7"), "this machine has no network interface ib7"),
        (("--slurm-extra", "--no-such-option"), "the batch system does not take the job: .*no-such-option"),
    ],
)
def test_what_slurm_does_not_take_is_refused(
    slurm: Path, scan: Path, tmp_path: Path, options: tuple[str, str], words: str
) -> None:
    done = _run(tmp_path, "recon", scan, "out.zarr", *QUICK, *ON_SLURM, *options)
    assert done.returncode == 2
    assert re.search(words, done.stderr)
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def _script(folder: Path, *words: object) -> Path:
    done = _run(folder, "slurm-script", *words, "--threads", 1, "--memory", "600MB")
    assert done.returncode == 0, done.stderr
    path = folder / "job.sh"
    path.write_text(done.stdout)
    subprocess.run(["bash", "-n", path], check=True)
    return path


def _submit(script: Path) -> str:
    done = subprocess.run(
        ["sbatch", "--parsable", script], cwd=script.parent, env=_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _logs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("dtomo-*.log")))


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_script_does_it_all(
    slurm: Path, scan: Path, expected: dict[str, np.ndarray], tmp_path: Path, squeue: Squeue, nodes: int
) -> None:
    options = ("--nodes", nodes, "--walltime", "10m", "--interface", "lo", "--queue", "main")
    _submit(_script(tmp_path, scan, "out.zarr", *QUICK, *options))
    _wait_for(lambda: not squeue(), "end of the job", 170)
    log = _logs(tmp_path)
    assert (tmp_path / "out.zarr").exists(), log
    np.testing.assert_array_equal(_voxels(tmp_path / "out.zarr"), expected["quick"])
    assert "Traceback" not in log
    assert not list(tmp_path.glob(".dtomo-cluster-*"))


@pytest.mark.slow
def test_the_script_submits_itself_until_the_output_is_complete(
    slurm: Path, scan: Path, expected: dict[str, np.ndarray], tmp_path: Path, squeue: Squeue
) -> None:
    """The signal that Slurm sends before the walltime comes by hand, so that nobody waits for it."""
    output = tmp_path / "out.zarr"
    first = _submit(_script(tmp_path, scan, output, *SLOW, "--walltime", "10m", "--queue", "main"))
    _wait_for(lambda: len(_slabs(output)) >= 2, f"slab ({_logs(tmp_path)})")
    subprocess.run(["scancel", "--signal=USR1", "--batch", first], check=True)
    _wait_for(lambda: first not in squeue(), "end of the first job", 60)
    assert len(_slabs(output)) < 8, "the run was over before its time"
    _wait_for(lambda: not squeue(), "end of the second job", 170)
    log = _logs(tmp_path)
    assert "the time is over; the run goes on in a new job" in log
    np.testing.assert_array_equal(_voxels(output), expected["slow"])
    assert len(list(tmp_path.glob("dtomo-*.log"))) == 2


@pytest.mark.slow
def test_the_script_does_not_go_on_for_ever(slurm: Path, scan: Path, tmp_path: Path, squeue: Squeue) -> None:
    """An allocation that brought nothing new has no successor, and neither has one that was cancelled."""
    output = tmp_path / "out.zarr"
    words = (scan, output, *QUICK, "--algorithm", "sirt", "--iterations", 10**6, "--walltime", "10m")
    script = _script(tmp_path, *words)
    for name, says in (("USR1", "nothing was finished within this allocation"), ("TERM", "interrupted")):
        job = _submit(script)
        log = tmp_path / f"dtomo-{job}.log"
        _wait_for(lambda log=log: log.exists() and "dashboard:" in log.read_text(), "workers")
        time.sleep(2)
        subprocess.run(["scancel", f"--signal={name}", "--batch", job], check=True)
        _wait_for(lambda: not squeue(), "end of the job", 60)
        assert says in log.read_text()
    assert len(list(tmp_path.glob("dtomo-*.log"))) == 2
