"""The loop through the epochs: what is reported, kept and left alone, in one process and with a runner that fails."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtomo.distributed.clusters import TRIES
from dtomo.errors import StoppedError, UserError
from dtomo.ptycho.driver import Setback
from dtomo.ptychotomo.driver import JointProblem, LocalJointRunner, run
from dtomo.ptychotomo.engine import SlabPlace
from dtomo.ptychotomo.engines.adam import JointAdam
from tests.ptychotomo.exact import Gradients, exact_scene
from tests.ptychotomo.scenes import Scene, scene

WIDTH = 16


@pytest.fixture(scope="module")
def given() -> Scene:
    return scene(rows=30, width=WIDTH, frame=8, angles=6, step=4, extra=("shifts",))


def zeros(place: SlabPlace) -> Any:
    return np.zeros((place.height, WIDTH, WIDTH), np.complex64)


def problem(given: Scene, subsets: int = 2, **options: Any) -> JointProblem:
    engine = JointAdam(model=given.model, refine=("volume", "probe", "shifts"), subsets=subsets, reach=2)
    return JointProblem(engine, given.source, given.layout(10, 2), zeros, **options)


def bits(found: Any) -> list[bytes]:
    result, parts = found
    values = [np.asarray(value).tobytes() for _, value in sorted(result.parameters.items())]
    return [result.history.tobytes(), *values, *(np.ascontiguousarray(part).tobytes() for part in parts)]


def test_what_a_run_reports(given: Scene) -> None:
    told = []
    result, parts = run(problem(given), given.parameters, 5, on_epoch=told.append)
    assert [(report.epoch, report.epochs) for report in told] == [(k, 5) for k in range(1, 6)]
    assert result.history.tolist() == [[report.loss, report.count] for report in told]
    assert (result.history[:, 1] == given.frames.size).all()
    np.testing.assert_allclose(result.losses, result.history[:, 0] / given.frames.size)
    assert (result.epochs, result.setbacks) == (5, 0)
    assert [part.shape for part in parts] == [(10, WIDTH, WIDTH)] * 3
    assert all(report.seconds > 0 for report in told)


def test_the_first_loss_is_that_of_the_first_guesses(given: Scene) -> None:
    expected, empty = 0.0, np.ones((1, 30, WIDTH), np.complex64)
    for angle in range(6):
        block = given.block(np.flatnonzero(given.angle_of_frame == angle))
        expected += given.model.meet(empty, 0, angle, block, given.parameters, given.positions, ())[0]
    result, _ = run(problem(given, 1), given.parameters, 1)
    assert result.history[0, 0] == pytest.approx(expected, rel=1e-6)


def test_first_guesses_and_results_are_not_one_array(given: Scene) -> None:
    before = {name: np.array(value) for name, value in given.parameters.items()}
    result, _ = run(problem(given), given.parameters, 2)
    for name, value in before.items():
        np.testing.assert_array_equal(given.parameters[name], value)
        assert not np.array_equal(result.parameters[name], value)
        assert not np.shares_memory(result.parameters[name], given.parameters[name])


def test_a_callback_ends_the_run(given: Scene) -> None:
    result, parts = run(problem(given), given.parameters, 9, on_epoch=lambda report: report.epoch == 3)
    assert result.epochs == len(result.history) == 3
    assert bits((result, parts)) == bits(run(problem(given), given.parameters, 3))


def test_a_run_that_was_ended_goes_on_where_it_ended(given: Scene, tmp_path: Path) -> None:
    run(problem(given), given.parameters, 9, on_epoch=lambda report: report.epoch == 3, folder=tmp_path, every=5)
    told: list[int] = []
    again = run(
        problem(given), given.parameters, 4, on_epoch=lambda report: told.append(report.epoch), folder=tmp_path, every=5
    )
    assert told == [4]
    assert bits(again) == bits(run(problem(given), given.parameters, 4))


def test_a_checkpoint_made_with_something_else_is_refused(given: Scene, tmp_path: Path) -> None:
    run(problem(given), given.parameters, 1, folder=tmp_path, every=1, made_with={"frames": 1})
    with pytest.raises(UserError, match="was made with frames 1 and not 2"):
        run(problem(given), given.parameters, 2, folder=tmp_path, every=1, made_with={"frames": 2})


def test_finish_is_called_for_each_slab(given: Scene) -> None:
    seen = run(problem(given), given.parameters, 1, finish=lambda place, rows: (place.start, rows.shape[0]))[1]
    assert seen == [(0, 10), (10, 10), (20, 10)]


def test_each_angle_once_in_an_epoch_and_its_order_from_the_seed(given: Scene) -> None:
    orders = []
    for seed in (0, 1):
        asked = problem(given, 3, seed=seed)
        for epoch in range(4):
            steps = asked.steps(epoch)
            assert sorted(np.concatenate(steps)) == list(range(6))
            assert [part.tolist() for part in steps] == [part.tolist() for part in asked.steps(epoch)]
            orders.append([part.tolist() for part in steps])
    assert len({str(order) for order in orders}) > 2


def test_only_the_first_pass_of_a_step_is_in_the_history() -> None:
    given = exact_scene()
    histories = []
    for passes in (1, 3):
        engine = Gradients(model=given.model, names=("images",), passes=passes)
        asked = JointProblem(engine, given.source, given.layout(), lambda place: given.volume)
        runner = LocalJointRunner(asked)
        runner.begin(given.parameters)
        histories.append([runner.epoch(0), runner.epoch(1)])
        assert runner.common["passes"] == 2 * passes
        assert runner.common["found"]["slabs"] == {"voxels": given.volume.size}
        assert runner.common["found"]["fraction"] == 1
    assert histories[0] == histories[1]


@dataclasses.dataclass
class Failing:
    """Fails in the epochs that it is told to, each as often as it is named."""

    epochs: list[int]

    def into(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = LocalJointRunner.epoch

        def epoch(runner: LocalJointRunner, number: int) -> tuple[float, float]:
            if number in self.epochs:
                self.epochs.remove(number)
                raise Setback("a worker was lost")
            return whole(runner, number)

        monkeypatch.setattr(LocalJointRunner, "epoch", epoch)


@pytest.mark.parametrize("kept", [True, False])
def test_setbacks_cost_epochs_but_no_bits(given: Scene, tmp_path: Path, monkeypatch: Any, kept: bool) -> None:
    expected = bits(run(problem(given), given.parameters, 4))
    Failing([1, 3, 3]).into(monkeypatch)
    told: list[int] = []
    found = run(
        problem(given), given.parameters, 4, folder=tmp_path if kept else None, every=2,
        on_epoch=lambda report: told.append(report.epoch),
    )  # fmt: skip
    assert found[0].setbacks == 3
    assert told == ([1, 1, 2, 3, 3, 3, 4] if kept else [1, 1, 2, 3, 1, 2, 3, 1, 2, 3, 4])
    assert bits(found) == expected


def test_setbacks_without_end_end_the_run(given: Scene, monkeypatch: Any) -> None:
    Failing([1] * 50).into(monkeypatch)
    with pytest.raises(StoppedError, match=f"lost {TRIES} times"):
        run(problem(given), given.parameters, 3)
