"""Workers as jobs of a real Slurm: started, cancelled, retired, refused, waiting, out of reach."""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dtomo.distributed.clusters import Resources, connect
from dtomo.distributed.jobs import jobs_of, slurm_states
from dtomo.distributed.queue import run_tasks
from dtomo.distributed.slurm import slurm_client
from dtomo.errors import StoppedError, UserError

Squeue = Callable[[], dict[str, tuple[str, str]]]
OPTIONS = {"interface": "lo", "walltime": "10m"}


def wanted(workers: int = 1, **options: Any) -> Resources:
    """Workers of 400 MB with one thread each."""
    return Resources(
        workers, 1, 400_000_000, dashboard=":0", kind="slurm", options=OPTIONS | {"queue": "main"} | options
    )


@pytest.fixture(scope="module")
def client(slurm: Path) -> Iterator[Any]:
    """Two workers in a job each."""
    with connect(wanted(2)) as found:
        found.wait_for_workers(2, timeout=120)
        yield found


def _environment() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in ("DTOMO_THREADS", "OMP_NUM_THREADS", "SLURM_JOB_ID")}


def _configuration(dask_worker: Any) -> tuple[Any, ...]:
    import dask

    limit = dask_worker.memory_manager.memory_limit
    names = ("target", "spill", "pause", "terminate")
    return limit, *(dask.config.get(f"distributed.worker.memory.{name}") for name in names)


def test_workers_are_those_asked_for(client: Any, squeue: Squeue) -> None:
    environments = list(client.run(_environment).values())
    assert len({one.pop("SLURM_JOB_ID") for one in environments}) == 2
    assert environments == [{"DTOMO_THREADS": "1", "OMP_NUM_THREADS": "1"}] * 2
    assert set(client.run(_configuration).values()) == {(400_000_000, False, False, False, 1.0)}
    assert [worker["nthreads"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()] == [1, 1]
    jobs = jobs_of(client)
    assert jobs is not None
    assert sorted(jobs.identifiers) == sorted(squeue())


def _wait_until(folder: str, item: int) -> tuple[int, int]:
    """Item 0 waits until a file appears; the others are quick."""
    Path(folder, f"started-{item}-{os.getpid()}").touch()
    while item == 0 and not Path(folder, "go").exists():
        time.sleep(0.05)
    return item, os.getpid()


def _seen(folder: Path, pattern: str, seconds: float = 60) -> Path:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for path in folder.glob(pattern):
            return path
        time.sleep(0.1)
    raise AssertionError(f"nothing like {pattern} in {folder}")


@pytest.mark.slow
def test_a_cancelled_job_is_replaced_and_costs_no_try(client: Any, tmp_path: Path, squeue: Squeue) -> None:
    """Its task is done by another worker, more often than tasks are tried again when they kill their workers."""
    results: list[tuple[int, int]] = []
    runner = threading.Thread(
        target=run_tasks,
        args=(client, _wait_until, str(tmp_path), range(3), lambda _, value: results.append(value)),
    )
    before = set(squeue())
    runner.start()
    killed: set[int] = set()

    def next_process() -> int:
        """The process in which item 0 has been started again."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            started = {int(path.name.split("-")[2]) for path in tmp_path.glob("started-0-*")} - killed
            if started:
                return started.pop()
            time.sleep(0.1)
        raise AssertionError("the task was not started again")

    for _ in range(4):
        process = next_process()
        killed.add(process)
        address = next(address for address, number in client.run(os.getpid).items() if number == process)
        identifier = client.run(lambda: os.environ["SLURM_JOB_ID"], workers=[address])[address]
        subprocess.run(["scancel", identifier], check=True)
    next_process()
    (tmp_path / "go").touch()
    runner.join(timeout=120)
    assert not runner.is_alive()
    assert sorted(item for item, _ in results) == [0, 1, 2]
    assert not {pid for item, pid in results if item == 0} & killed
    client.wait_for_workers(2, timeout=120)
    assert len(squeue()) == 2
    assert not set(squeue()) & before


def _sleep(folder: str, item: int) -> int:
    time.sleep(0.5)
    Path(folder, f"{item}").touch()
    return item


def test_retired_workers_are_replaced_until_the_work_is_done(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers live 8 s, and one task after the other is done by several of them."""
    said: list[str] = []
    results: list[int] = []
    monkeypatch.setattr("dtomo.distributed.batch.lifetime_of", lambda request, walltime: (8, 1))
    with slurm_client(wanted(), wanted().options, said.append) as client:
        jobs = jobs_of(client)
        assert jobs is not None
        first = set(jobs.identifiers)
        run_tasks(client, _sleep, str(tmp_path), range(20), lambda _, value: results.append(value))
        last = set(jobs.identifiers)
    assert sorted(results) == list(range(20))
    assert not first & last
    assert any("ended; new ones are submitted" in line for line in said)


def test_a_job_that_is_not_started_is_waited_for(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtomo.distributed.jobs.SILENT", 1.0)
    said: list[str] = []

    def open_the_partition() -> None:
        until = time.monotonic() + 60
        while not said and time.monotonic() < until:
            time.sleep(0.1)
        subprocess.run(["scontrol", "update", "PartitionName=closed", "State=UP"], check=True)

    opener = threading.Thread(target=open_the_partition)
    opener.start()
    try:
        with slurm_client(wanted(), OPTIONS | {"queue": "closed"}, said.append) as client:
            assert client.submit(sum, (1, 2)).result(timeout=60) == 3
    finally:
        opener.join()
        subprocess.run(["scontrol", "update", "PartitionName=closed", "State=DOWN"], check=True)
    assert said[0].startswith("waiting for job ")
    assert "(PENDING: PartitionDown)" in said[0] or "(PENDING: PartitionInactive)" in said[0]
    assert len(said) <= 2


def test_jobs_that_slurm_does_not_take(slurm: Path, squeue: Squeue) -> None:
    begun, before = time.monotonic(), squeue()
    with (
        pytest.raises(UserError, match=r"the batch system does not take the job: .*invalid partition") as caught,
        slurm_client(wanted(), OPTIONS | {"queue": "none"}),
    ):
        pass
    assert time.monotonic() - begun < 30
    assert "\n" not in str(caught.value)
    assert squeue() == before


@pytest.mark.slow
def test_workers_that_cannot_reach_the_scheduler(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler tells workers an address at which nobody listens."""
    import dask

    begun = time.monotonic()
    scheduler = {"jobqueue.slurm.scheduler-options": {"contact_address": "tcp://127.0.0.1:9"}}
    with (
        dask.config.set(scheduler),
        pytest.raises(UserError, match=r"at tcp://127\.0\.0\.1:9 \(interface lo\): Connection refused") as caught,
        slurm_client(wanted(), OPTIONS),
    ):
        pass
    assert time.monotonic() - begun < 60
    assert "\n" not in str(caught.value)


def test_jobs_whose_python_is_missing(slurm: Path) -> None:
    import dask

    with (
        dask.config.set({"jobqueue.slurm.python": "/nowhere/python"}),
        pytest.raises(UserError, match=r"ended .*before it had a worker: .*/nowhere/python: No such file"),
        slurm_client(wanted(), OPTIONS),
    ):
        pass


@pytest.mark.slow
def test_the_end_of_all_jobs_stops_the_run(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for ever for workers that do not come: the partition takes no more jobs."""
    monkeypatch.setattr("dtomo.distributed.jobs.PAUSE", 0.5)
    with slurm_client(wanted(), OPTIONS) as client:
        jobs = jobs_of(client)
        assert jobs is not None
        runner: list[BaseException] = []

        def work() -> None:
            try:
                run_tasks(client, _wait_until, str(tmp_path), range(1), lambda *_: None)
            except StoppedError as error:
                runner.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        _seen(tmp_path, "started-0-*")
        subprocess.run(["scontrol", "update", "PartitionName=main", "State=INACTIVE"], check=True)
        try:
            subprocess.run(["scancel", *jobs.identifiers], check=True)
            thread.join(timeout=90)
        finally:
            subprocess.run(["scontrol", "update", "PartitionName=main", "State=UP"], check=True)
        assert not thread.is_alive()
        assert len(runner) == 1
        assert "the batch system does not take the job" in str(runner[0])


def test_states_of_jobs_that_slurm_has_forgotten(slurm: Path) -> None:
    found = slurm_states(["1000000"])
    assert found is not None
    assert found["1000000"].state == "UNKNOWN"


def test_states_when_slurm_does_not_answer(slurm: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "missing.conf"))
    monkeypatch.setattr("dtomo.distributed.jobs.ANSWER", 1.0)
    assert slurm_states(["1"]) is None
