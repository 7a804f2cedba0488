"""GPU clusters as far as a machine without GPUs can tell: what is refused, and what dask-cuda is told."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from dtomo.distributed import cuda
from dtomo.distributed.clusters import Resources, connect, resources
from dtomo.distributed.local import environments
from dtomo.errors import UserError

GPU = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
LIBRARIES = ("cupy", "dask_cuda", "pynvml")


@pytest.fixture(autouse=True)
def _environment_of_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUPY_GPU_MEMORY_LIMIT"):
        monkeypatch.delenv(name, raising=False)


def has_gpu() -> bool:
    """Whether the driver of this machine finds a GPU."""
    try:
        return cuda.check_cuda() > 0
    except UserError:
        return False


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Say which libraries are installed."""

    def say(*names: str) -> None:
        monkeypatch.setattr(cuda, "find_spec", lambda name: object() if name in names else None)

    return say


@pytest.mark.parametrize(
    ("installed", "missing"), [((), "CuPy"), (("cupy",), "dask-cuda"), (("cupy", "dask_cuda"), "nvidia-ml-py")]
)
def test_what_is_not_installed_is_named_with_how_to_install_it(present, installed, missing):
    present(*installed)
    for devices in (None, "0", "3,1"):
        with pytest.raises(UserError, match=rf"needs {missing}, .* pip install 'dtomo\[cuda12\]'") as refused:
            resources("cuda", devices=devices)
        assert refused.value.exit_code == 2


def test_a_pool_needs_rmm(present, tmp_path):
    present(*LIBRARIES)
    path = tmp_path / "gpus.yaml"
    path.write_text("cluster: cuda\ndevices: [0]\nrmm_pool_size: 1GB\n")
    with pytest.raises(UserError, match="rmm_pool_size needs RMM"):
        resources(str(path))


@pytest.mark.parametrize(
    ("protocol", "words"),
    [("ucx", "needs distributed-ucxx"), ("smoke", "protocol is tcp or ucx"), ("[1]", "tcp or ucx")],
)
def test_protocols_that_are_not_there_are_refused(present, tmp_path, protocol, words):
    present(*LIBRARIES)
    path = tmp_path / "gpus.yaml"
    path.write_text(f"cluster: cuda\ndevices: [0]\nprotocol: {protocol}\n")
    with pytest.raises(UserError, match=words):
        resources(str(path))


def test_ucx_is_for_workers_with_devices_of_their_own():
    options = {"protocol": "ucx"}
    alone = Resources(2, 1, 10**9, kind="cuda", devices=("3", "1"), options=options)
    assert cuda._keywords(alone, "/scratch", [3, 1], environments(alone))["protocol"] == "ucx"
    shared = Resources(2, 1, 10**9, kind="cuda", devices=("0", "0"), options=options)
    with pytest.raises(UserError, match="one worker on each device"):
        cuda.cuda_client(shared)


@pytest.mark.skipif(find_spec("pynvml") is None, reason="nvidia-ml-py is not installed")
@pytest.mark.skipif(has_gpu(), reason="this machine has a GPU")
def test_a_machine_without_driver_is_told_so(present):
    present(*LIBRARIES)
    with pytest.raises(UserError, match="finds no NVIDIA driver that works on this machine"):
        resources("cuda")


@pytest.mark.skipif(not has_gpu(), reason="needs a GPU with its driver, CuPy and dask-cuda")
def test_indices_beyond_the_machine_are_refused():
    with pytest.raises(UserError, match="counted from 0"):
        resources("cuda", devices="1000")


def test_an_empty_environment_means_the_cpu_even_without_libraries(present, monkeypatch):
    present()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = resources("cuda", workers=2)
    assert (found.kind, found.devices, found.workers) == ("local", (), 2)


def test_the_environment_lists_the_devices(monkeypatch):
    monkeypatch.setattr(cuda, "check_cuda", lambda devices=(), pool=False: 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    found = resources("cuda", device_memory="4GB")
    assert (found.kind, found.devices, found.workers, found.threads) == ("cuda", ("3", "1"), 2, 1)
    assert found.device_memory == 4_000_000_000
    assert resources("cuda", devices="1").devices == ("1",)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert resources("cuda").devices == tuple("01234567")


@pytest.mark.parametrize(
    ("devices", "workers", "fits"),
    [
        (("3", "1"), 2, True),
        (("3", "1"), 1, True),
        ((GPU, "MIG-41b3359c"), 2, True),
        (("3", "1"), 3, False),
        (("0", "0", "1"), 3, False),
        (("0", "0"), 1, True),
        ((GPU, "GPU-8932f937"), 2, False),
        (("0", GPU), 2, False),
    ],
)
def test_dask_cuda_is_used_where_each_worker_has_a_device_of_its_own(devices, workers, fits):
    assert cuda.one_worker_per_device(Resources(workers, 1, 10**9, kind="cuda", devices=devices)) is fits


def test_what_dask_cuda_is_told():
    wanted = Resources(
        2,
        1,
        10**9,
        kind="cuda",
        devices=("3", "1"),
        device_memory=2 * 10**9,
        options={"rmm_pool_size": 512 * 10**6},
    )
    own = environments(wanted)
    told = cuda._keywords(wanted, "/scratch", [3, 1], own)
    assert told["CUDA_VISIBLE_DEVICES"] == [3, 1]
    assert (told["n_workers"], told["threads_per_worker"], told["memory_limit"]) == (2, 1, 10**9)
    assert (told["device_memory_limit"], told["rmm_pool_size"]) == (1600 * 10**6, 512 * 10**6)  # less than the pool
    assert not [variables for variables in own if "DTOMO_RMM_POOL" in variables]


def _environment() -> dict[str, Any]:
    names = ("CUDA_VISIBLE_DEVICES", "DTOMO_DEVICE", "DTOMO_THREADS", "OMP_NUM_THREADS")
    return {name: os.environ.get(name) for name in names}


@pytest.mark.skipif(find_spec("dask_cuda") is None, reason="dask-cuda is not installed")
def test_dask_cudas_cluster_keeps_our_environment(monkeypatch):
    monkeypatch.setenv("DASK_CUDA_TEST_DISABLE_DEVICE_SPECIFIC", "1")  # its own way to run without GPUs
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    wanted = Resources(2, 1, 10**9, dashboard=":0", kind="cuda", devices=("3", "1"), device_memory=10**9)
    with connect(wanted) as client:
        from dask_cuda import LocalCUDACluster

        assert isinstance(client.cluster, LocalCUDACluster)
        workers = client.scheduler_info(n_workers=-1)["workers"]
        found = client.run(_environment)
    seen = {workers[address]["name"]: variables for address, variables in found.items()}
    for device in (3, 1):
        assert seen[device] == {
            "CUDA_VISIBLE_DEVICES": str(device),
            "DTOMO_DEVICE": str(device),
            "DTOMO_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
