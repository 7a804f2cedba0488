"""Workers that really run here: what each sees of its environment, before and after its process is killed."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dtomo.distributed.clusters import connect, resources
from dtomo.distributed.worker import cuda_is_initialized
from dtomo.errors import UserError

GPU = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
MIG = "MIG-41b3359c-e721-56e5-8009-12e5797ed514"

NAMES = (
    "CUDA_VISIBLE_DEVICES",
    "DTOMO_DEVICE",
    "CUPY_GPU_MEMORY_LIMIT",
    "DTOMO_THREADS",
    "NUMBA_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)


@pytest.fixture(autouse=True)
def _environment_of_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUPY_GPU_MEMORY_LIMIT"):
        monkeypatch.delenv(name, raising=False)


def seen(names: tuple[str, ...], dask_worker: Any) -> dict[str, Any]:
    """What a worker's process finds in its environment."""
    import dtomo.threads

    return {
        "name": dask_worker.name,
        "pid": os.getpid(),
        "threads": dtomo.threads.get_threads(),
        **{name: os.environ.get(name) for name in names},
    }


def by_name(client: Any) -> dict[int, dict[str, Any]]:
    """`seen` in every worker, by its name."""
    return {found["name"]: found for found in client.run(seen, NAMES).values()}


def wait_for_the_new(client: Any, count: int, killed: set[int]) -> dict[int, dict[str, Any]]:
    """`by_name`, once all workers are there again with other processes than those killed."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        workers = client.scheduler_info(n_workers=-1)["workers"]
        if len(workers) == count:
            try:
                found = by_name(client)
            except OSError:  # it was one of those killed
                continue
            if len(found) == count and not killed & {one["pid"] for one in found.values()}:
                return found
        time.sleep(0.1)
    raise AssertionError(f"the workers did not come back: {workers}")


@pytest.mark.parametrize(
    ("devices", "expected", "limits"),
    [
        ("3,1", ["3", "1"], ["4000", "4000"]),
        ("0,0,1", ["0", "0", "1"], ["2000", "2000", "4000"]),
        (GPU, [GPU], ["4000"]),
        (MIG, [MIG], ["4000"]),
    ],
)
def test_a_worker_keeps_its_device_through_the_death_of_its_process(devices, expected, limits):
    wanted = resources(devices=devices, device_memory=4000, memory="1GB", threads=2)
    said: list[str] = []
    with connect(wanted, say=said.append) as client:
        before = by_name(client)
        assert [before[index]["CUDA_VISIBLE_DEVICES"] for index in range(len(expected))] == expected
        assert [before[index]["DTOMO_DEVICE"] for index in range(len(expected))] == expected
        assert [before[index]["CUPY_GPU_MEMORY_LIMIT"] for index in range(len(expected))] == limits
        for found in before.values():
            assert {found[name] for name in NAMES if name.endswith("THREADS")} == {"2"}
            assert found["threads"] == 2
        workers = client.scheduler_info(n_workers=-1)["workers"]
        assert [worker["nthreads"] for worker in workers.values()] == [1] * len(expected)
        killed = {before[0]["pid"], before[len(expected) - 1]["pid"]}
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        after = wait_for_the_new(client, len(expected), killed)
        assert set(client.scheduler_info(n_workers=-1)["workers"]) != set(workers)
    assert said[0] == "devices: " + ", ".join(f"worker {i} on {device}" for i, device in enumerate(expected))
    for index, found in before.items():
        again = {**after[index], "pid": found["pid"]}
        assert again == found


def test_an_empty_list_means_the_cpu_and_is_said(monkeypatch):
    said: list[str] = []
    with connect(resources(devices="", workers=2, memory="1GB"), say=said.append) as client:
        before = by_name(client)
        os.kill(before[1]["pid"], signal.SIGKILL)
        after = wait_for_the_new(client, 2, {before[1]["pid"]})
    for found in (*before.values(), *after.values()):
        assert found["CUDA_VISIBLE_DEVICES"] == ""
        assert found["DTOMO_DEVICE"] == ""
    assert said[0] == "devices: none listed, computing on the CPU"


def test_without_a_list_nothing_is_said_about_devices():
    said: list[str] = []
    with connect(resources(workers=1, memory="1GB"), say=said.append) as client:
        (found,) = by_name(client).values()
    assert found["DTOMO_DEVICE"] is None
    assert not [line for line in said if line.startswith("devices")]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library in place of the driver's: it counts devices once it is initialized."""
    folder = tmp_path_factory.mktemp("driver")
    source = folder / "driver.c"
    source.write_text(
        "static int ready = 0;\n"
        "int cuInit(unsigned flags) { ready = 1; return 0; }\n"
        "int cuDeviceGetCount(int *count) { if (!ready) return 3; *count = 1; return 0; }\n"
    )
    library = folder / "libcuda.so.1"
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no C compiler: {error}")
    return library


def test_whether_cuda_is_initialized_is_found_without_doing_it(driver):
    name = str(driver)
    assert not cuda_is_initialized(name)  # not loaded, and not loaded by asking
    assert not cuda_is_initialized(name)
    loaded = ctypes.CDLL(name)
    assert not cuda_is_initialized(name)
    loaded.cuInit(0)
    assert cuda_is_initialized(name)


def test_a_program_that_uses_cuda_before_its_workers_have_their_devices_is_told_so(driver, tmp_path):
    program = tmp_path / "early.py"
    program.write_text(
        "import ctypes\n"
        "from dtomo.distributed.clusters import connect, resources\n"
        "from dtomo.errors import UserError\n"
        "ctypes.CDLL('libcuda.so.1').cuInit(0)\n"  # as torch.cuda.is_available() at the top of a module does
        "if __name__ == '__main__':\n"
        "    try:\n"
        "        with connect(resources(devices='0,1', memory='1GB')): print('it ran')\n"
        "    except UserError as error: print(error)\n"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver.parent)}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, timeout=100)
    assert "CUDA was initialized before the worker had its device" in done.stdout
    assert "it ran" not in done.stdout


def test_devices_and_addresses_do_not_go_together():
    with pytest.raises(UserError, match="--devices is for clusters that dtomo starts"):
        resources("tcp://127.0.0.1:8786", devices="0")
