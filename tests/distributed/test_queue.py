"""Tasks on real workers: order, failures, killed processes, interruption."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import LocalCluster
from numpy.typing import NDArray

from dtomo.distributed.clusters import TRIES, Resources, connect
from dtomo.distributed.queue import TaskFailed, _Pace, map_reduce, run_tasks
from dtomo.distributed.sums import tree_sum
from dtomo.errors import StoppedError, UserError


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
    time.sleep(0.1)
    Path(folder, str(item)).touch()


def test_a_task_that_raises_is_named_and_the_rest_is_not_started(client: Any, tmp_path: Path) -> None:
    with pytest.raises(TaskFailed) as caught:
        run_tasks(client, _raise_at_two, str(tmp_path), range(50), lambda *_: None)
    assert caught.value.item == 2
    assert not caught.value.killed
    assert isinstance(caught.value.cause, OSError)
    assert caught.value.cause.errno == 28
    time.sleep(0.3)
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


def _done_and_then_dead(folder: str, item: int) -> int:
    """Item 1 is done, and its worker dies a moment later with the result; made again, it takes longer than the rest."""
    mark = Path(folder, "died")
    if item == 1:
        if mark.exists():
            time.sleep(2)
        else:
            mark.touch()
            time.sleep(0.3)
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return item


def test_a_result_that_is_lost_with_its_worker_before_it_is_taken_is_made_again(client: Any, tmp_path: Path) -> None:
    results: list[int] = []

    def take_slowly(item: int, value: int) -> None:
        results.append(value)
        if len(results) == 1:
            time.sleep(1.5)  # both are done, and 1 is lost

    # item 0 is the first that is taken: 1 is handed out after it
    run_tasks(client, _done_and_then_dead, str(tmp_path), range(8), take_slowly)
    assert sorted(results) == list(range(8))
    assert (tmp_path / "died").exists()


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


def _sleep(shared: None, item: int) -> str:
    from distributed import get_worker

    name = str(get_worker().name)
    time.sleep(0.2 if name == "0" else 0.05)
    return name


def test_a_worker_four_times_slower_gets_about_a_quarter(client: Any) -> None:
    done: list[str] = []
    run_tasks(client, _sleep, None, range(40), lambda _, name: done.append(name))
    assert len(done) == 40
    # 8 of 40; sending a task and its result takes both workers as long, which helps the slow one
    assert 4 <= done.count("0") <= 14


def test_a_worker_that_retires_hands_its_task_on_and_no_try_is_counted(tmp_path: Path) -> None:
    with connect(Resources(3, 1, 1_000_000_000, dashboard=None)) as client:
        retiring = iter(list(client.scheduler_info()["workers"])[:2])

        def retire_one(item: int, result: int) -> None:
            if (address := next(retiring, None)) is not None:
                client.retire_workers([address], close_workers=True)

        results: list[int] = []

        def done(item: int, result: int) -> None:
            results.append(result)
            retire_one(item, result)

        run_tasks(client, _slower, str(tmp_path), range(12), done)
        assert sorted(results) == list(range(12))


def _slower(folder: str, item: int) -> int:
    time.sleep(0.3)
    return item


def test_the_end_of_the_last_workers_lifetime_is_no_failed_try(tmp_path: Path) -> None:
    import dask
    import distributed  # noqa: F401  (before its configuration is changed)

    lifetime = {
        "distributed.worker.lifetime.duration": "1 s",
        "distributed.worker.lifetime.restart": True,
    }
    with dask.config.set(lifetime), connect(Resources(1, 1, 1_000_000_000, dashboard=None)) as client:
        results: list[int] = []
        # more lifetimes than tries, each of them in the midst of a task, with nobody there to hand it to
        run_tasks(client, _long_the_first_times, str(tmp_path), range(3), lambda _, value: results.append(value))
        assert sorted(results) == [0, 1, 2]
        assert len(list(tmp_path.iterdir())) == TRIES + 1


def _long_the_first_times(folder: str, item: int) -> int:
    if item == 1 and (before := len(list(Path(folder).iterdir()))) < TRIES + 1:
        Path(folder, str(before)).touch()
        time.sleep(1.5)
    return item


def _with_hint(shared: str, item: int, following: int | None) -> tuple[int, int | None]:
    time.sleep(0.01)
    return os.getpid(), following


def test_ahead_tells_a_worker_what_it_will_have_next(client: Any) -> None:
    seen: dict[int, tuple[int, int | None]] = {}
    run_tasks(client, _with_hint, "", range(30), seen.__setitem__, ahead=True)
    assert set(seen) == set(range(30))
    right = [item for item, (worker, hint) in seen.items() if hint is not None and seen[hint][0] == worker]
    assert len(right) >= 20


def _block(scale: float, item: int) -> tuple[NDArray[np.float32], int]:
    values = np.random.default_rng(item).standard_normal(1000).astype(np.float32)
    return values * np.float32(scale) * np.float32(10.0 ** (item % 7 - 3)), 1


@pytest.mark.parametrize("count", [1, 2, 13, 40])
def test_map_reduce_has_the_bits_of_one_process(client: Any, count: int) -> None:
    done: list[int] = []
    total, weight = map_reduce(client, _block, 0.1, range(count), done.append).result()
    expected, _ = tree_sum([_block(0.1, item) for item in range(count)])
    assert total.tobytes() == expected.tobytes()
    assert weight == count
    assert sorted(done) == list(range(count))


def _slow_block(folder: str, item: int) -> tuple[NDArray[np.float32], int]:
    time.sleep(0.05)
    if item in (3, 21) and not Path(folder, f"died-{item}").exists():
        Path(folder, f"died-{item}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return _block(0.1, item)


def test_map_reduce_survives_dead_workers_with_the_same_bits(client: Any, tmp_path: Path) -> None:
    total, weight = map_reduce(client, _slow_block, str(tmp_path), range(30)).result()
    expected, _ = tree_sum([_block(0.1, item) for item in range(30)])
    assert len(list(tmp_path.iterdir())) == 2
    assert weight == 30
    assert total.tobytes() == expected.tobytes()


def test_a_sum_of_nothing_is_refused(client: Any) -> None:
    with pytest.raises(UserError, match="at least one block"):
        map_reduce(client, _block, 1.0, [])


def test_no_worker_left_is_said() -> None:
    with connect(Resources(1, 1, 1_000_000_000, dashboard=None)) as client:
        client.retire_workers(list(client.scheduler_info()["workers"]))
        with pytest.raises(StoppedError, match="no worker is left, and none comes back"):
            run_tasks(client, _product, 1, range(3), lambda *_: None)


def test_a_worker_that_does_not_come_in_time_is_said() -> None:
    with (
        LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=None) as cluster,
        cluster.get_client() as client,
        pytest.raises(StoppedError, match=r"no worker is left, and none came back within 1 s.* need more --memory"),
    ):
        run_tasks(client, _product, 1, range(3), lambda *_: None, patience=1)


def test_workers_that_die_as_they_start_are_not_waited_for_long() -> None:
    """Their limit is less than what they take before they are there."""
    with connect(Resources(1, 1, 1_000_000_000, dashboard=None)) as client:
        (nanny,) = client.cluster.workers.values()
        nanny.memory_manager.memory_limit = 1_000_000
        begun = time.monotonic()
        while client.scheduler_info()["workers"]:
            time.sleep(0.05)
        with pytest.raises(StoppedError, match=r"no worker is left, and none comes back;.* need more --memory"):
            run_tasks(client, _product, 1, range(3), lambda *_: None)
        assert time.monotonic() - begun < 60


class _KillsWhoeverGetsItFirst:
    """As if a worker were killed while the value that all tasks share was on its way to it."""

    def __init__(self, folder: str, spared: int, deaths: int) -> None:
        self.folder, self.spared, self.deaths = folder, spared, deaths

    def __reduce__(self) -> Any:
        return _arrive, (self.folder, self.spared, self.deaths)


def _arrive(folder: str, spared: int, deaths: int) -> _KillsWhoeverGetsItFirst:
    if os.getpid() != spared and len(list(Path(folder).iterdir())) < deaths:
        Path(folder, str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return _KillsWhoeverGetsItFirst(folder, spared, deaths)


def _deaths(shared: _KillsWhoeverGetsItFirst, item: int) -> int:
    return shared.deaths + item


@pytest.mark.parametrize("deaths", [1, TRIES - 1])
def test_a_worker_killed_while_it_gets_what_is_shared_is_no_tasks_fault(
    client: Any, tmp_path: Path, deaths: int
) -> None:
    results: list[int] = []
    shared = _KillsWhoeverGetsItFirst(str(tmp_path), os.getpid(), deaths)
    run_tasks(client, _deaths, shared, range(9), lambda _, value: results.append(value))
    assert sorted(results) == [deaths + item for item in range(9)]
    assert len(list(tmp_path.iterdir())) == deaths


def test_a_shared_value_that_kills_whoever_gets_it_is_given_up(client: Any, tmp_path: Path) -> None:
    shared = _KillsWhoeverGetsItFirst(str(tmp_path), os.getpid(), 1000)
    with pytest.raises(TaskFailed) as caught:
        run_tasks(client, _deaths, shared, range(9), lambda *_: None)
    assert caught.value.killed
    assert len(list(tmp_path.iterdir())) <= TRIES + 4


def test_a_slow_worker_begins_nothing_that_the_others_would_wait_for() -> None:
    """Three workers of one second and one of four: it begins a task while the others have four seconds to do."""
    pace, present = _Pace(), ["a", "b", "c", "slow"]
    assert not pace.too_slow("slow", present, 0)  # nothing is known of anybody
    for name in "abc":
        pace.note(name, 1.0)
    assert not pace.too_slow("slow", present, 0)
    pace.note("slow", 4.0)
    assert not pace.too_slow("slow", present, 10)
    assert pace.too_slow("slow", present, 8)
    assert not any(pace.too_slow(name, present, 0) for name in "abc")
    assert not pace.too_slow("slow", ["slow"], 1)  # the others are gone
    for _ in range(8):
        pace.note("slow", 1.0)  # it was busy with something else
    assert not pace.too_slow("slow", present, 1)
