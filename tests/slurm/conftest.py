"""A real Slurm on this machine, started for these tests; without one they are skipped."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")
SYSTEM_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
ONE_NODE = Path(__file__).with_name("one_node.sh")


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a Slurm of two small nodes, ``dtomo1`` and ``dtomo2``, with the partition ``main``."""
    pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is not installed: pip install 'dtomo[hpc]'")
    missing = [name for name in PROGRAMS if shutil.which(name, path=SYSTEM_PATH) is None]
    if missing:
        pytest.skip(f"Slurm is not installed ({', '.join(missing)} missing): apt-get install slurm-wlm munge")
    folder = tmp_path_factory.mktemp("slurm")
    started = subprocess.run([ONE_NODE, "start", folder], capture_output=True, text=True, timeout=120)
    if started.returncode:
        if os.environ.get("CI"):
            pytest.fail(f"Slurm is installed but does not start: {started.stderr}")
        pytest.skip(f"Slurm is installed but does not start: {started.stderr.strip()[-300:]}")
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = started.stdout.strip()
    yield folder
    subprocess.run([ONE_NODE, "stop", folder], check=False, timeout=60)
    if before is None:
        del os.environ["SLURM_CONF"]
    else:
        os.environ["SLURM_CONF"] = before


@pytest.fixture
def squeue(slurm: Path) -> Callable[[], dict[str, tuple[str, str]]]:
    """Jobs that have not ended: state and node by their ids."""

    def jobs() -> dict[str, tuple[str, str]]:
        line = ["squeue", "--noheader", "--format=%i|%T|%N", "--states=PENDING,RUNNING"]
        rows = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()
        return {row.split("|")[0]: (row.split("|")[1], row.split("|")[2]) for row in rows}

    return jobs
