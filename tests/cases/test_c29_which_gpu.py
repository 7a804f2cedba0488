"""C29: each worker sees the device listed for it and no other, and nothing makes a CUDA context before that."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dtomo.distributed.clusters import connect, resources
from dtomo.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
GPU = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
MIG = "MIG-41b3359c-e721-56e5-8009-12e5797ed514"


@pytest.fixture(autouse=True)
def _environment_of_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUPY_GPU_MEMORY_LIMIT"):
        monkeypatch.delenv(name, raising=False)


def _visible(dask_worker: Any) -> tuple[int, str | None]:
    return dask_worker.name, os.environ.get("CUDA_VISIBLE_DEVICES")


def _listed(client: Any) -> list[str | None]:
    return [device for _, device in sorted(client.run(_visible).values())]


def test_c29_importing_dtomo_and_starting_workers_makes_no_cuda_context(tmp_path):
    program = (
        "import pkgutil, sys, importlib, dtomo\n"
        "for found in pkgutil.walk_packages(dtomo.__path__, 'dtomo.'):\n"
        "    if not found.name.endswith(('__main__', 'torch_models', 'torch_task')):\n"
        "        importlib.import_module(found.name)\n"
        "from dtomo.distributed.clusters import connect, resources\n"
        "from dtomo.distributed.worker import cuda_is_initialized\n"
        "def look():\n"  # zarr may import CuPy, and our kernels import numba.cuda; that alone makes no context
        "    names = ('rmm', 'dask_cuda', 'torch')\n"
        "    loaded = [name for name in names if name in sys.modules]\n"
        "    return loaded + ['context'] * cuda_is_initialized()\n"
        "if __name__ == '__main__':\n"
        "    with connect(resources(workers=1, memory='1GB')) as client:\n"
        "        print(look(), *client.run(look).values())\n"
    )
    file = tmp_path / "program.py"  # workers import it
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, file],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout.strip() == "[] []", done.stderr


def test_c29_a_run_on_the_cpu_loads_nothing_of_cuda():
    program = (
        "import sys, dtomo.cli.recon, dtomo.recon.job, dtomo.recon.loaded, dtomo.distributed.worker\n"
        "print([name for name in sys.modules if name.startswith(('numba.cuda', 'cufinufft', 'dtomo.kernels.cuda'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "[]", done.stderr


def test_c29_two_clusters_with_disjoint_lists_never_share_a_card():
    with (
        connect(resources(devices="0,2", memory="1GB")) as one,
        connect(resources(devices=f"{GPU},{MIG}", memory="1GB")) as other,
    ):
        assert _listed(one) == ["0", "2"]
        assert _listed(other) == [GPU, MIG]


def test_c29_a_list_in_the_environment_bounds_what_can_be_asked_for(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert resources(devices="1").devices == ("1",)
    with pytest.raises(UserError, match="names 0, but CUDA_VISIBLE_DEVICES of the environment allows only 3,1"):
        resources(devices="1,0")


def test_c29_sharing_is_asked_for_and_bounded():
    found = resources(devices="0,1", workers_per_device=2, device_memory="8GB", memory="1GB")
    assert (found.workers, found.threads) == (4, 1)
    with pytest.raises(UserError, match="--workers 3 and --workers-per-device 2 contradict each other"):
        resources(devices="0,1", workers_per_device=2, workers=3)
    with pytest.raises(UserError, match="--device-memory is a size"):
        resources(devices="0", device_memory="much")


def test_c29_an_empty_list_means_the_cpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = resources("cuda", workers=1, memory="1GB")
    said: list[str] = []
    with connect(found, say=said.append) as client:
        assert _listed(client) == [""]
    assert "devices: none listed, computing on the CPU" in said


@pytest.mark.parametrize("devices", ["0,,1", "-1", "foo", "GPU-", "0,GPU_1"])
def test_c29_a_malformed_list_is_refused_before_anything_starts(devices):
    with pytest.raises(UserError, match="--devices takes indices and identifiers"):
        resources(devices=devices)
