"""The lock of a run on another node counts no more once Slurm says that its job has ended."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from dtomo.distributed.jobs import ENDED, slurm_states
from dtomo.errors import UserError
from dtomo.io.lock import LOCK, Owner, refuse_if_locked


def _job() -> str:
    line = ["sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 100"]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()


def _wait_for_the_end(job: str) -> None:
    """A cancelled job is still completing for a moment."""
    deadline = time.monotonic() + 60
    while (states := slurm_states([job])) is None or states[job].state not in ENDED:
        assert time.monotonic() < deadline, states
        time.sleep(0.2)


def test_the_lock_of_an_ended_job_on_another_node(slurm: Path, tmp_path: Path) -> None:
    job = _job()
    lock = tmp_path / LOCK
    lock.write_text(json.dumps({"host": "another-node", "pid": 17, "started": 1.0, "job": job}))
    with pytest.raises(UserError, match="is being written by a run on another-node"):
        refuse_if_locked(tmp_path, tmp_path / "out.zarr")
    subprocess.run(["scancel", job], check=True)
    _wait_for_the_end(job)
    refuse_if_locked(tmp_path, tmp_path / "out.zarr")
    lock.write_text(json.dumps({"host": "another-node", "pid": 17, "started": 1.0}))
    with pytest.raises(UserError, match="is being written by a run on another-node"):
        refuse_if_locked(tmp_path, tmp_path / "out.zarr")


def test_a_lock_names_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert Owner.this_process().job == "12"
    monkeypatch.delenv("SLURM_JOB_ID")
    assert Owner.this_process().job is None
    assert Owner.this_process().pid == os.getpid()
