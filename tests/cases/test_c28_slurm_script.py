"""C28: the script asks for enough memory in exactly one way, and a network that does not fit is named at once."""

import re
import socket
import time
from typing import Any

import pytest

from dtomo.distributed.clusters import Resources, parse_memory
from dtomo.distributed.reach import unreachable
from dtomo.errors import UserError

pytest.importorskip("dask_jobqueue")
from dtomo.distributed.slurm import job_script, make_cluster, parse_request

MEMORY = re.compile(r"^#SBATCH (--mem\S*)", re.MULTILINE)


def script(**options: Any) -> str:
    """The script of a job of two workers that share 24 GB."""
    two = Resources(2, 4, parse_memory("24GB") // 2, kind="slurm")
    return job_script(two, {"workers_per_job": 2, **options})


def limits(text: str) -> int:
    """Bytes that the workers of a job may use together."""
    processes, limit = re.search(r"--nworkers (\d+)", text), re.search(r"--memory-limit (\d+)B", text)
    assert processes
    assert limit
    return int(processes[1]) * int(limit[1])


def test_c28_the_request_is_at_least_the_sum_of_the_limits() -> None:
    (line,) = MEMORY.findall(script())
    mebibytes = re.fullmatch(r"--mem=(\d+)M", line)
    assert mebibytes
    assert limits(script()) == 24_000_000_000
    assert int(mebibytes[1]) >= 22889
    assert int(mebibytes[1]) * 2**20 >= limits(script())


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, r"--mem=\d+M"),
        ({"memory_line": "mem-per-cpu"}, r"--mem-per-cpu=\d+M"),
        ({"memory_line": "mem-per-gpu", "gpus": 2}, r"--mem-per-gpu=\d+M"),
        ({"memory_line": "all"}, "--mem=0"),
        ({"memory_line": 0}, "--mem=0"),
        ({"extra": ["--mem=30G"]}, "--mem=30G"),
        ({"extra": ["--mem-per-cpu=4G"]}, "--mem-per-cpu=4G"),
    ],
)
def test_c28_exactly_one_way_to_ask_for_memory(options: dict[str, Any], line: str) -> None:
    text = script(**options)
    (found,) = MEMORY.findall(text)
    assert re.fullmatch(line, found)
    number = re.search(r"(\d+)M$", found)
    if number:
        parts = {"--mem-per-cpu": 8, "--mem-per-gpu": 2}.get(found.partition("=")[0], 1)
        assert int(number[1]) * parts * 2**20 >= limits(text)


@pytest.mark.parametrize("value", [False, "none"])
def test_c28_no_memory_line_where_the_site_forbids_it(value: Any) -> None:
    assert not MEMORY.findall(script(memory_line=value))


def test_c28_gpus() -> None:
    assert "#SBATCH --gres=gpu:2\n" in script(gpus=2)


def test_c28_nobody_at_the_schedulers_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert unreachable(f"tcp://127.0.0.1:{port}", "lo", 2) is None
    begun = time.monotonic()
    reason = unreachable(f"tcp://127.0.0.1:{port}", "lo", 2)
    assert time.monotonic() - begun < 10
    assert reason
    assert f"tcp://127.0.0.1:{port} (interface lo)" in reason
    assert "Connection refused" in reason


def test_c28_an_address_that_swallows_packets() -> None:
    begun = time.monotonic()
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        fill = [socket.socket() for _ in range(3)]
        for one in fill:
            one.setblocking(False)
            one.connect_ex(address)
        reason = unreachable(f"tcp://127.0.0.1:{address[1]}", None, 3)
        for one in fill:
            one.close()
    assert time.monotonic() - begun < 20
    assert reason
    assert f"tcp://127.0.0.1:{address[1]}" in reason


def test_c28_an_interface_that_is_not_there() -> None:
    reason = unreachable("tcp://127.0.0.1:9", "ib7", 2)
    assert reason
    assert "no network interface ib7 to reach the scheduler at tcp://127.0.0.1:9" in reason
    assert "lo" in reason


def test_c28_an_interface_that_this_machine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(UserError, match=r"no network interface ib7; it has .*lo"):
        make_cluster(Resources(1, 1, 10**9, kind="slurm"), parse_request("slurm", {"interface": "ib7"}))


def test_c28_no_batch_system_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="needs the command sbatch, which is not found here"):
        make_cluster(Resources(1, 1, 10**9, kind="slurm"), parse_request("slurm", {}))
