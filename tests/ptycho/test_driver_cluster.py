"""On workers the driver gives the bits of one process, whoever dies on the way."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtomo.distributed import graph
from dtomo.distributed.clusters import Resources, connect
from dtomo.io.checkpoints import Checkpoints, Schedule
from dtomo.ptycho import cluster_driver
from dtomo.ptycho.blocks import cut_frames
from dtomo.ptycho.cluster_driver import ClusterRunner
from dtomo.ptycho.driver import LocalRunner, run
from dtomo.ptycho.engines.adam import Adam
from dtomo.ptycho.engines.conjugate import ConjugateGradient
from dtomo.ptycho.engines.epie import Rpie
from dtomo.ptycho.engines.lsqml import LeastSquaresML
from dtomo.ptycho.engines.projections import DifferenceMap
from dtomo.ptycho.evaluator import Problem
from dtomo.ptycho.model import PtychoModel
from dtomo.ptycho.workers import owners, shares_of
from tests.ptycho.solvers import SIZE, Descent, Passes, same, scan

ENGINES = {
    "whole": Descent(),
    "batches": Descent(batch=20),
    "one frame at a time": Descent(batch=1, rate=0.1),
    "kept from epoch to epoch": Descent(keeps=True),
    "two passes": Passes(passes=2),
    "two passes of batches": Passes(passes=2, batch=20),
}


@pytest.fixture(scope="module")
def data() -> Any:
    return scan(8)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with connect(Resources(5, 1, 1_000_000_000, dashboard=None)) as found:
        yield found


@pytest.fixture
def some_workers(client: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets runs see only so many of the workers."""
    every = graph.workers_in_order

    def limit(count: int) -> None:
        monkeypatch.setattr(graph, "workers_in_order", lambda client: every(client)[:count])

    return limit


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ENGINES)
def test_the_bits_are_those_of_one_process(client: Any, data: Any, some_workers: Any, name: str, count: int) -> None:
    source, parameters = data
    blocks = cut_frames(parameters["positions"], (SIZE, SIZE), ENGINES[name].batch, block=4)
    expected = run(ENGINES[name], source, parameters, 3, blocks=blocks)
    some_workers(count)
    found = run(ENGINES[name], source, parameters, 3, blocks=blocks, client=client)
    assert same(found.parameters, expected.parameters)
    assert np.array_equal(found.history, expected.history)
    assert found.setbacks == 0
    assert not any(client.run(_held).values())


def _held() -> list[str]:
    return list(cluster_driver._RUNS)


def _blocks_held(name: str) -> list[int]:
    return sorted(cluster_driver._RUNS[name].runner.evaluator.frames.held)


def test_a_slow_worker_gets_fewer_blocks_and_the_bits_stay(client: Any, data: Any, some_workers: Any) -> None:
    source, parameters = data
    blocks = cut_frames(parameters["positions"], (SIZE, SIZE), block=4)
    problem = Problem(Descent(), source, blocks, 10**7)
    local = LocalRunner(problem)
    local.begin(parameters)
    some_workers(2)
    runner = ClusterRunner(client, problem)
    try:
        runner.begin(parameters)
        first, second = runner._workers
        assert runner.epoch(0) == local.epoch(0)
        runner._assign([1.0, 1.0])
        runner._share_out({first: 1.0, second: 3.0})
        assert runner.epoch(1) == local.epoch(1)
        held = client.run(_blocks_held, runner._name, workers=[first, second])
        assert len(held[second]) == 4
        assert sorted(held[first] + held[second]) == list(range(16))
        assert same(runner.result(), local.result())
    finally:
        runner.close()


@pytest.mark.parametrize("name", ["whole", "kept from epoch to epoch", "two passes of batches", "one frame at a time"])
def test_a_killed_worker_costs_some_epochs_and_no_bits(client: Any, data: Any, name: str, tmp_path: Path) -> None:
    source, parameters = data
    harmful = dataclasses.replace(
        ENGINES[name], harm=tmp_path / "harm", harm_at=5 if name != "one frame at a time" else 130
    )
    blocks = cut_frames(parameters["positions"], (SIZE, SIZE), harmful.batch, block=4)
    expected = run(ENGINES[name], source, parameters, 7, blocks=blocks)
    checkpoints = Checkpoints(tmp_path / "state", schedule=Schedule(iterations=2)) if name == "whole" else None
    found = run(harmful, source, parameters, 7, blocks=blocks, client=client, checkpoints=checkpoints)
    assert (tmp_path / "harm").exists()
    assert found.setbacks == 1
    assert same(found.parameters, expected.parameters)
    assert np.array_equal(found.history, expected.history)


def test_an_error_of_the_engine_is_raised_as_it_is(client: Any, data: Any) -> None:
    source, parameters = data
    with pytest.raises(ValueError, match="no good"):
        run(Descent(failure="no good"), source, parameters, 6, client=client)


def test_a_checkpoint_of_one_process_goes_on_on_workers(client: Any, data: Any, tmp_path: Path) -> None:
    source, parameters = data
    engine = ENGINES["kept from epoch to epoch"]
    expected = run(engine, source, parameters, 4)
    run(engine, source, parameters, 3, checkpoints=Checkpoints(tmp_path, schedule=Schedule(iterations=2)))
    seen: list[int] = []
    found = run(engine, source, parameters, 4, client=client, checkpoints=Checkpoints(tmp_path),
                on_epoch=lambda report: seen.append(report.epoch))  # fmt: skip
    assert seen == [3, 4]
    assert same(found.parameters, expected.parameters)


def test_blocks_are_shared_out_by_speed() -> None:
    assert shares_of([1, 1]) == [0.5, 1.0]
    assert owners(range(10, 20), shares_of([3, 1, 1])) == dict(zip(range(10, 20), [0] * 6 + [1] * 2 + [2] * 2))
    assert set(owners(range(7), shares_of([1] * 9))) == set(range(7))


def _real(name: str) -> Any:
    model = PtychoModel((SIZE, SIZE))
    wanted = ("object", "probe", "scale")
    return {
        "adam": Adam(model=model, batch=30, wanted=wanted),
        "lsqml": LeastSquaresML(model=model, batch=30),
        "cg": ConjugateGradient(model=model),
        "dm": DifferenceMap(model=model),
        "rpie": Rpie(model=model, batch=30),
    }[name]


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("adam", "cg", "rpie", "lsqml")), "dm"]
)
def test_solvers_have_the_bits_of_one_process_on_workers(client: Any, data: Any, some_workers: Any, name: str) -> None:
    source, guesses = data
    parameters = {"positions": guesses["positions"] + 0.25, "scale": guesses["scale"]}
    parameters |= {"object": guesses["object"][None, None], "probe": guesses["probe"][None]}
    blocks = cut_frames(parameters["positions"], (SIZE, SIZE), _real(name).batch, block=6)
    expected = run(_real(name), source, parameters, 3, blocks=blocks)
    assert expected.parameters["object"].dtype == np.complex64
    assert np.abs(expected.parameters["object"].imag).max() > 0.01
    for count in (2, 5):
        some_workers(count)
        found = run(_real(name), source, parameters, 3, blocks=blocks, client=client)
        assert same(found.parameters, expected.parameters)
        assert np.array_equal(found.history, expected.history)
