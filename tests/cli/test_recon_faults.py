"""Runs that are disturbed: Ctrl-C, killed workers, a full disk, changed input. The bits come out the same."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from dtomo.io import open_volume

SLOW = ["--center", 38.5, "--algorithm", "sirt", "--iterations", 60, "--slab", 8, "--workers", 2]
"""Eight slabs that take long enough to be disturbed."""


def _slabs_done(output: Path) -> int:
    return len(list((output / ".dtomo").glob("slab-*.json")))


def _wait_for_slabs(process: subprocess.Popen[str], output: Path, count: int) -> None:
    end = time.monotonic() + 60
    while _slabs_done(output) < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.005)


def _workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The workers: forked from a server that the command started."""
    command = psutil.Process(process.pid)
    servers = [child for child in command.children() if "forkserver" in " ".join(child.cmdline())]
    return [worker for server in servers for worker in server.children()]


@pytest.fixture(scope="module")
def undisturbed(scan, tmp_path_factory) -> np.ndarray:
    """The volume of `SLOW`, from a run in this process."""
    from dtomo.recon import run
    from dtomo.settings import ReconSettings

    output = tmp_path_factory.mktemp("undisturbed") / "out.zarr"
    run(
        ReconSettings(scan=scan, output=output, center=38.5, algorithm="sirt", iterations=60, workers=1, slab=64),
        quiet=True,
    )
    return np.asarray(open_volume(output).array)


def test_ctrl_c_leaves_a_marked_store_that_resume_finishes(here, start, scan, tmp_path, undisturbed):
    output = tmp_path / "out.zarr"
    process = start("recon", scan, output, *SLOW)
    _wait_for_slabs(process, output, 2)
    pressed = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - pressed < 10
    assert "--resume" in said
    assert "Traceback" not in said
    assert 2 <= _slabs_done(output) < 8
    assert not psutil.Process().children() or not [c for c in psutil.process_iter() if c.ppid() == process.pid]

    refused = here("convert", output, "copy.mrc")
    assert refused.returncode == 2
    assert "unfinished" in refused.stderr
    refused = here("recon", scan, output, *SLOW)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr

    other = [*SLOW[:5], 61, *SLOW[6:]]
    refused = here("recon", scan, output, *other, "--resume")
    assert refused.returncode == 2
    assert "iterations was 60 and is 61" in refused.stderr

    kept = {path.name: path.stat().st_mtime_ns for path in (output / ".dtomo").glob("slab-*.json")}
    assert kept
    resumed = here("recon", scan, output, *SLOW, "--resume", "--workers", 1)
    assert resumed.returncode == 0, resumed.stderr
    assert np.array_equal(np.asarray(open_volume(output).array), undisturbed)


@pytest.mark.slow
def test_termination_of_the_command_alone_is_the_same(dtomo, start, scan, tmp_path, undisturbed):
    """As a batch system sends it: the signal reaches the command and not its workers."""
    output = tmp_path / "out.mrc"
    process = start("recon", scan, output, *SLOW)
    end = time.monotonic() + 60
    while not list(tmp_path.glob("out.mrc.dtomo/slab-*.json")):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert not output.exists()
    assert dtomo("recon", scan, output, *SLOW, "--resume").returncode == 0
    assert np.array_equal(np.asarray(open_volume(output).array), undisturbed)


def test_resume_refuses_input_that_has_changed(here, start, scan, tmp_path):
    copy = tmp_path / "copy.h5"
    copy.write_bytes(scan.read_bytes())
    output = tmp_path / "out.zarr"
    process = start("recon", copy, output, *SLOW)
    _wait_for_slabs(process, output, 1)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    os.utime(copy)
    refused = here("recon", copy, output, *SLOW, "--resume")
    assert refused.returncode == 2
    assert "has changed since" in refused.stderr


def test_a_killed_worker_costs_a_slab_and_not_the_run(start, scan, tmp_path, undisturbed):
    output = tmp_path / "out.zarr"
    process = start("recon", scan, output, *SLOW)
    _wait_for_slabs(process, output, 1)
    workers = _workers(process)
    assert len(workers) == 2
    workers[0].kill()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert np.array_equal(np.asarray(open_volume(output).array), undisturbed)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A disk of 8 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small disk needs privileges that are not there")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_disk_that_fills_up_stops_the_run_and_resume_finishes_it(here, start, scan, small_disk, undisturbed):
    output = small_disk / "out.zarr"
    process = start("recon", scan, output, *SLOW)
    _wait_for_slabs(process, output, 1)
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    _, said = process.communicate(timeout=60)
    assert process.returncode == 3, said
    assert "full" in said
    assert "--resume" in said
    assert "Traceback" not in said
    filler.unlink()
    assert here("recon", scan, output, *SLOW, "--resume").returncode == 0
    assert np.array_equal(np.asarray(open_volume(output).array), undisturbed)


def test_a_disk_too_small_is_refused_beforehand(here, scan, small_disk):
    (small_disk / "filler").write_bytes(bytes(7_500_000))
    refused = here("recon", scan, small_disk / "out.zarr", "--center", 38.5)
    assert refused.returncode == 2
    assert "free" in refused.stderr
    assert [path.name for path in small_disk.iterdir()] == ["filler"]
