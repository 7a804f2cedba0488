"""What a request for a cluster comes to, and clusters that really start."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster

from dtomo.distributed import clusters
from dtomo.distributed.clusters import Resources, connect, machine, measured, parse_memory, resources
from dtomo.errors import UserError


def _environment() -> dict[str, Any]:
    return {name: os.environ.get(name) for name in ("DTOMO_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS")}


def test_default_uses_all_cores_and_shares_the_memory() -> None:
    cores, free = machine()
    found = resources()
    assert found.cores <= cores
    assert found.cores > cores // 2
    assert found.memory * found.workers <= 1.1 * free


def test_threads_are_the_cores_of_a_worker() -> None:
    cores, _ = machine()
    assert resources(workers=1).threads == cores
    assert resources(workers=10 * cores).threads == 1


@pytest.mark.parametrize(("text", "count"), [("4GB", 4_000_000_000), ("1.5 GiB", 1_610_612_736), (1000, 1000)])
def test_memory_sizes(text: str | int, count: int) -> None:
    assert parse_memory(text) == count


@pytest.mark.parametrize("text", ["", "lots", "-1GB", "0", "4 QB", "nan", "inf"])
def test_memory_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--memory is a size such as 4GB"):
        parse_memory(text)


@pytest.mark.parametrize("name", ["", "locale", "localhost:8786", "missing.yaml"])
def test_unknown_clusters_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="cluster"):
        resources(name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- local", "must hold keys and values"),
        ("workers: many", "--workers is a whole number"),
        ("workers: 0", "--workers is a whole number"),
        ("nodes: 3", "unknown keys nodes"),
        ("cluster: local\naddress: tcp://a:1", "both cluster and address"),
        ("{", "not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
        ("cluster: slurm\nslurm: 3", "key slurm of the cluster file .* must hold keys and values"),
        ("cluster: local\nslurm: {queue: long}", "unknown keys slurm"),
        ("cluster: slurm\ndevices: [0]", "--devices is for clusters on this machine"),
        ("devices: '0,,1'", "--devices takes indices"),
        ("devices: {a: 1}", "--devices takes indices"),
        ("devices: 0\nworkers_per_device: 0", "--workers-per-device is a whole number"),
        ("devices: 0\ndevice_memory_limit: much", "--device-memory is a size"),
        ("devices: 0\nrmm_pool_size: 1GB", "rmm_pool_size is for workers that own CUDA devices; give --cluster cuda"),
        ("devices: 0\nprotocol: ucx", "protocol is for workers that own CUDA devices; give --cluster cuda"),
        ("device_memory_limit: 1GB", "--device-memory is for workers that own CUDA devices; give --devices"),
        ("dashboard: [1]", "key dashboard .* is text"),
        ("dashboard: everywhere", "key dashboard .* is text"),
    ],
)
def test_cluster_files_are_checked(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        resources(str(path))


def test_cluster_file_is_read_and_options_win(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("cluster: local\nworkers: 3\nthreads: 1\nmemory: 2GB\n")
    assert resources(str(path), memory="1GB") == Resources(3, 1, 1_000_000_000)


def test_cluster_file_with_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    path = tmp_path / "cluster.yaml"
    path.write_text("devices: [3, 1]\nworkers_per_device: 2\ndevice_memory_limit: 8GB\nmemory: 1GB\n")
    found = resources(str(path))
    assert (found.kind, found.workers, found.threads, found.devices) == ("local", 4, 1, ("3", "1"))
    assert (found.workers_per_device, found.device_memory) == (2, 8_000_000_000)
    assert resources(str(path), devices="0", workers_per_device=1).workers == 1


def test_cluster_file_of_a_batch_system(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("cluster: slurm\nworkers: 4\nmemory: 2GB\nslurm:\n  queue: long\n  walltime: '02:00:00'\n")
    found = resources(str(path), options={"queue": "short"})
    assert (found.kind, found.workers, found.threads, found.memory) == ("slurm", 4, 1, 2_000_000_000)
    assert found.options == {"queue": "short", "walltime": "02:00:00"}
    assert found.address is None


def test_a_batch_system_takes_what_is_not_given_from_the_site() -> None:
    import dask

    with dask.config.set({"jobqueue.slurm": {"cores": 8, "processes": 2, "memory": "16GB"}}):
        found = resources("slurm", workers=6)
    assert (found.workers, found.threads, found.memory) == (6, 4, 8_000_000_000)


def test_local_cluster_keeps_to_its_limits_and_its_address(tmp_path: Path) -> None:
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = Resources(2, 3, 700_000_000, dashboard=f":{taken.getsockname()[1]}")
        with connect(wanted, say=said.append) as client:
            assert client.scheduler.address.startswith("tcp://127.0.0.1:")
            workers = client.scheduler_info(n_workers=-1)["workers"].values()
            assert [worker["nthreads"] for worker in workers] == [1, 1]
            assert [worker["memory_limit"] for worker in workers] == [700_000_000] * 2
            for variables in client.run(_environment).values():
                assert set(variables.values()) == {"3"}
            scratch = {Path(worker["local_directory"]).parents[1] for worker in workers}
            assert measured(client, wanted) == wanted
        assert len(said) == 1
        assert said[0].startswith("dashboard: http://127.0.0.1:")
        assert str(taken.getsockname()[1]) not in said[0]
    assert not any(folder.exists() for folder in scratch)


def test_scheduler_by_address() -> None:
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", host="127.0.0.1") as found:
        with connect(found.scheduler_address) as client:
            resources_there = measured(client, resources(found.scheduler_address))
            assert (resources_there.workers, resources_there.threads) == (1, 1)
            assert client.submit(sum, (1, 2)).result() == 3
        assert found.scheduler.status.name == "running"


def test_nobody_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "WAIT_FOR_WORKERS", 1.0)
    with (
        pytest.raises(UserError, match=r"no scheduler answers at tcp://127.0.0.1:9"),
        connect("tcp://127.0.0.1:9"),
    ):
        pass


@pytest.mark.parametrize("program", [None, "unguarded.py"])
def test_a_program_that_workers_cannot_import_is_told_so(tmp_path: Path, program: str | None) -> None:
    text = "from dtomo.distributed.clusters import Resources, connect\nwith connect(Resources(1, 1, 10**9)): pass\n"
    if program is not None:
        (tmp_path / program).write_text(text)
    line = [sys.executable, program or "-"]
    root = Path(clusters.__file__).resolve().parents[2]
    done = subprocess.run(
        line,
        input=None if program else text,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode != 0
    assert "if __name__ == '__main__'" in done.stderr


def test_workers_have_their_threads_though_the_program_imports_dtomo_first(tmp_path: Path) -> None:
    """Workers import the program before they are told their share of the cores."""
    text = (
        "from dtomo.threads import get_threads\nfrom dtomo.distributed.clusters import Resources, connect\n"
        "if __name__ == '__main__':\n    with connect(Resources(1, 2, 10**9, dashboard=None)) as client:\n"
        "        print(get_threads(), client.submit(get_threads).result())\n"
    )
    (tmp_path / "program.py").write_text(text)
    root = Path(clusters.__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root), "DTOMO_THREADS": "5"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout.split() == ["5", "2"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="signal masks are read from /proc")
def test_the_server_of_workers_never_sees_ctrl_c() -> None:
    text = (
        "import multiprocessing.forkserver as m, pathlib, signal\n"
        "from dtomo.distributed.forkserver import start_forkserver\n"
        "start_forkserver()\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))\n"
        "print(pathlib.Path(f'/proc/{m._forkserver._forkserver_pid}/status').read_text())\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("set()")
    blocked = next(line for line in done.stdout.splitlines() if line.startswith("SigBlk"))
    assert int(blocked.split()[1], 16) & 1 << signal.SIGINT - 1
