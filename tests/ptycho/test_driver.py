"""The driver in one process: history, callbacks, copies, checkpoints that go on with the same bits."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtomo import threads
from dtomo.errors import StoppedError, UserError
from dtomo.io.checkpoints import Checkpoints, Schedule
from dtomo.ptycho import driver
from dtomo.ptycho.blocks import cut_frames
from dtomo.ptycho.driver import EpochReport, LocalRunner, Setback, run
from dtomo.ptycho.nested import bytes_of, flatten, mapped, unflatten
from tests.ptycho.solvers import SIZE, Descent, Passes, same, scan

ENGINES = {
    "whole": Descent(),
    "momentum of batches": Descent(batch=20),
    "one frame at a time": Descent(batch=1, rate=0.1),
    "kept from epoch to epoch": Descent(keeps=True),
    "two passes": Passes(passes=2),
}


@pytest.fixture(scope="module")
def data() -> Any:
    return scan(8)


@pytest.mark.parametrize("name", ENGINES)
def test_the_loss_falls_and_first_guesses_stay_as_they_are(data: Any, name: str) -> None:
    source, parameters = data
    before = mapped(parameters, np.array)
    result = run(ENGINES[name], source, parameters, 8)
    assert result.epochs == 8
    assert result.reason == "epochs"
    assert result.history.shape == (8, 2)
    assert (result.history[:, 1] == 64 * SIZE * SIZE).all()
    assert result.losses[-1] < 0.7 * result.losses[0]
    assert same(parameters, before)
    assert result.parameters["object"].dtype == np.complex64


def test_a_step_of_the_driver_is_the_engine_on_the_sum_over_all_frames(data: Any) -> None:
    source, parameters = data
    engine = Descent()
    found = run(engine, source, parameters, 1, blocks=cut_frames(parameters["positions"], (SIZE, SIZE), block=7))
    whole = run(engine, source, parameters, 1, blocks=cut_frames(parameters["positions"], (SIZE, SIZE), block=64))
    np.testing.assert_allclose(found.parameters["object"], whole.parameters["object"], atol=1e-6)
    np.testing.assert_allclose(found.parameters["scale"], whole.parameters["scale"], atol=1e-6)
    assert found.history[0, 0] == pytest.approx(whole.history[0, 0], rel=1e-12)


def test_the_bits_do_not_depend_on_threads_or_on_what_is_kept_in_memory(data: Any) -> None:
    source, parameters = data
    expected = run(ENGINES["momentum of batches"], source, parameters, 2)
    before = threads.get_threads()
    try:
        threads.set_threads(3)
        other = run(ENGINES["momentum of batches"], source, parameters, 2, frame_memory=0)
    finally:
        threads.set_threads(before)
    assert same(other.parameters, expected.parameters)
    assert np.array_equal(other.history, expected.history)


def test_the_seed_decides_the_batches(data: Any) -> None:
    source, parameters = data
    one, other = (run(ENGINES["momentum of batches"], source, parameters, 1, seed=seed) for seed in (0, 1))
    assert not same(one.parameters, other.parameters)


def test_the_callback_sees_each_epoch_and_may_stop(data: Any) -> None:
    source, parameters = data
    seen: list[EpochReport] = []

    def report(epoch: EpochReport) -> bool:
        seen.append(epoch)
        return epoch.epoch == 2

    result = run(Descent(), source, parameters, 5, on_epoch=report)
    assert [(epoch.epoch, epoch.epochs) for epoch in seen] == [(1, 5), (2, 5)]
    assert result.reason == "callback"
    assert [(epoch.loss, epoch.count) for epoch in seen] == [tuple(row) for row in result.history]
    assert same(seen[-1].parameters(), result.parameters)
    assert all(epoch.seconds > 0 for epoch in seen)


def test_no_epochs_give_back_the_first_guesses(data: Any) -> None:
    source, parameters = data
    result = run(Descent(), source, parameters, 0)
    assert same(result.parameters, parameters)
    assert result.history.shape == (0, 2)


@pytest.mark.parametrize("name", ENGINES)
def test_a_run_goes_on_from_a_checkpoint_with_the_same_bits(data: Any, name: str, tmp_path: Path) -> None:
    source, parameters = data
    expected = run(ENGINES[name], source, parameters, 5)
    folder = tmp_path / "state"
    saved = Checkpoints(folder, schedule=Schedule(iterations=2))
    run(ENGINES[name], source, parameters, 3, checkpoints=saved)
    seen: list[int] = []
    resumed = run(
        ENGINES[name],
        source,
        parameters,
        5,
        checkpoints=Checkpoints(folder),
        on_epoch=lambda report: seen.append(report.epoch),
    )
    assert seen == [3, 4, 5]
    assert same(resumed.parameters, expected.parameters)
    assert np.array_equal(resumed.history, expected.history)


def test_a_checkpoint_of_another_algorithm_is_refused(data: Any, tmp_path: Path) -> None:
    source, parameters = data
    Checkpoints(tmp_path).save({"solution": np.zeros(3)})
    with pytest.raises(UserError, match="another algorithm"):
        run(Descent(), source, parameters, 1, checkpoints=Checkpoints(tmp_path))


def test_a_full_disk_is_noted_and_stops_nothing(data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, parameters = data
    checkpoints = Checkpoints(tmp_path, schedule=Schedule(iterations=1))

    def full(*_: Any) -> None:
        raise StoppedError("no checkpoint could be written")

    monkeypatch.setattr(checkpoints, "save", full)
    assert run(Descent(), source, parameters, 2, checkpoints=checkpoints).epochs == 2
    assert "the run goes on" in checkpoints.notes[0]


def test_frames_and_positions_must_be_as_many(data: Any) -> None:
    source, parameters = data
    with pytest.raises(UserError, match="64 frames for 63 positions"):
        run(Descent(), source, {**parameters, "positions": parameters["positions"][:-1]}, 1)
    with pytest.raises(UserError, match="epochs"):
        run(Descent(), source, parameters, -1)


class Unsteady(LocalRunner):
    """Loses its state in some epochs."""

    copies = True
    losses: list[int]

    def epoch(self, number: int) -> tuple[float, float]:
        if number in self.losses:
            self.losses.remove(number)
            self.state = {}
            raise Setback("gone")
        return super().epoch(number)


@pytest.mark.parametrize("lost", [[0], [3], [12], [3, 3, 11]])
def test_what_is_lost_is_done_again_from_the_last_copy(
    data: Any, lost: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, parameters = data
    expected = run(ENGINES["kept from epoch to epoch"], source, parameters, 13)
    monkeypatch.setattr(driver, "LocalRunner", Unsteady)
    monkeypatch.setattr(Unsteady, "losses", list(lost), raising=False)
    seen: list[int] = []
    found = run(
        ENGINES["kept from epoch to epoch"], source, parameters, 13, on_epoch=lambda report: seen.append(report.epoch)
    )
    assert same(found.parameters, expected.parameters)
    assert np.array_equal(found.history, expected.history)
    assert found.setbacks == len(lost)
    again = 11 if lost[-1] > 10 else 1
    assert seen[-(14 - again) :] == list(range(again, 14))


def test_losses_without_progress_end_the_run(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source, parameters = data
    monkeypatch.setattr(driver, "LocalRunner", Unsteady)
    monkeypatch.setattr(Unsteady, "losses", [2] * 9, raising=False)
    with pytest.raises(StoppedError, match="3 times in epoch 3"):
        run(Descent(), source, parameters, 4)


def test_an_error_of_the_engine_is_raised_as_it_is(data: Any) -> None:
    source, parameters = data
    with pytest.raises(ValueError, match="no good"):
        run(dataclasses.replace(ENGINES["whole"], failure="no good"), source, parameters, 6)


def test_states_are_flattened_and_made_again() -> None:
    state = {
        "a": {"b": np.arange(3.0), "none": None, "empty": {}},
        "phase": "search",
        "pair": (1, 2.5, [np.float32(3), True]),
        "kept": {0: {"chi": np.ones(2, np.complex64)}, 7: None},
        "distance": np.array(0.25),
    }
    form, leaves = flatten(state, "run")
    again = unflatten(form, {**leaves, "run.distance": np.float64(0.25)})
    assert set(leaves) == {"run.a.b", "run.pair.0", "run.pair.1", "run.pair.2.0", "run.pair.2.1", "run.kept.0.chi",
                           "run.distance"}  # fmt: skip
    assert again["pair"] == state["pair"]
    assert again["a"]["none"] is None
    assert again["a"]["empty"] == {}
    assert again["phase"] == "search"
    assert again["kept"][7] is None
    assert again["kept"][0]["chi"] is state["kept"][0]["chi"]
    assert isinstance(again["distance"], np.ndarray)
    assert again["distance"].shape == ()
    assert bytes_of(state) == 24 + 16 + 8
    with pytest.raises(TypeError, match=r"run\.x is set"):
        flatten({"x": {1}}, "run")
