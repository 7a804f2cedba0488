"""Tasks on real workers: order, failures, killed processes, interruption."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtomo.distributed.clusters import TRIES, Resources, connect
from dtomo.distributed.queue import TaskFailed, run_tasks


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with connect(Resources(2, 1, 2_000_000_000, dashboard=":0")) as found:
        yield found


def _product(factor: int, item: int) -> tuple[int, int]:
    return factor * item, os.getpid()


def test_every_item_is_done_once(client: Any) -> None:
    results: dict[int, tuple[int, int]] = {}
    run_tasks(client, _product, 3, range(20), results.__setitem__)
    assert {item: value for item, (value, _) in results.items()} == {item: 3 * item for item in range(20)}


def _raise_at_two(folder: str, item: int) -> None:
    if item == 2:
        raise OSError(28, "No space left on device")
    Path(folder, str(item)).touch()


def test_a_task_that_raises_is_named_and_the_rest_is_not_started(client: Any, tmp_path: Path) -> None:
    with pytest.raises(TaskFailed) as caught:
        run_tasks(client, _raise_at_two, str(tmp_path), range(50), lambda *_: None)
    assert caught.value.item == 2
    assert not caught.value.killed
    assert isinstance(caught.value.cause, OSError)
    assert caught.value.cause.errno == 28
    time.sleep(0.2)
    assert len(list(tmp_path.iterdir())) < 10


def _die_the_first_time(folder: str, item: int) -> int:
    mark = Path(folder, f"died-{item}")
    if item == 5 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_a_killed_worker_costs_one_task(client: Any, tmp_path: Path) -> None:
    results: list[int] = []
    run_tasks(
        client,
        _die_the_first_time,
        str(tmp_path),
        range(12),
        lambda _, value: results.append(value),
    )
    assert sorted(results) == list(range(12))
    assert (tmp_path / "died-5").exists()


def _die_always(folder: str, item: int) -> int:
    if item == 1:
        Path(folder, f"{os.getpid()}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return item


def test_a_task_that_kills_every_worker_is_given_up_after_the_stated_tries(client: Any, tmp_path: Path) -> None:
    with pytest.raises(TaskFailed) as caught:
        run_tasks(client, _die_always, str(tmp_path), range(200), lambda *_: None)
    assert caught.value.killed
    assert caught.value.item == 1
    assert len(list(tmp_path.iterdir())) == TRIES


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _slow(folder: str, item: int) -> None:
    time.sleep(0.05)
    Path(folder, str(item)).touch()


def test_interruption_starts_nothing_more(client: Any, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_tasks(client, _slow, str(tmp_path), range(100), _interrupt)
    time.sleep(0.3)
    assert len(list(tmp_path.iterdir())) <= 4


def _size(shared: bytes, item: int) -> int:
    return len(shared) + item


def test_shared_value_of_40_megabytes_travels(client: Any) -> None:
    results: list[int] = []
    run_tasks(client, _size, bytes(40_000_000), range(3), lambda _, value: results.append(value))
    assert sorted(results) == [40_000_000, 40_000_001, 40_000_002]
