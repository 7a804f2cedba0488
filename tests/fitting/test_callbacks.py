"""History and callbacks: lines of JSON, early stopping by the history, TensorBoard and MLflow where there are."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.fitting.callbacks import Callback, EarlyStopping, JsonLines, MLflow, TensorBoard, callback_of, name_of
from dtomo.fitting.history import Epoch, History


def made_of(*scores: float, **more: Any) -> History:
    return History(tuple(Epoch(n, 10 * n, 2 * score, score, **more) for n, score in enumerate(scores, 1)))


def test_history_goes_through_lines_of_json(tmp_path: Path) -> None:
    history = made_of(3.0, 1 / 3, metrics={"psnr": np.float32(20.5)}, validation_metrics={"psnr": 19.0}, rate=0.1)
    history.write(tmp_path / "h.jsonl")
    assert History.read(tmp_path / "h.jsonl") == history
    first = json.loads((tmp_path / "h.jsonl").read_text().splitlines()[0])
    assert first["validation"] == 3.0
    assert first["metrics"] == {"psnr": 20.5}
    np.testing.assert_array_equal(history.losses, [6.0, 2 / 3])


def test_numbers_that_are_none_are_valid_json(tmp_path: Path) -> None:
    History((Epoch(1, 1, 1.0, metrics={"psnr": math.inf}),)).write(tmp_path / "h.jsonl")
    assert json.loads((tmp_path / "h.jsonl").read_text())["metrics"] == {"psnr": None}


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "h.jsonl").write_text(made_of(1.0)[0].json() + "\n{}\n")
    with pytest.raises(UserError, match=r"line 2 of .*h\.jsonl"):
        History.read(tmp_path / "h.jsonl")
    with pytest.raises(UserError, match="cannot be read"):
        History.read(tmp_path / "none.jsonl")


def test_best_is_the_first_of_the_smallest_validation() -> None:
    best = made_of(3, 1, 2, 1).best
    assert best is not None
    assert best.number == 2
    assert History().best is None
    unheld = History((Epoch(1, 1, 2.0), Epoch(2, 2, 1.0))).best
    assert unheld is not None
    assert unheld.number == 2


@pytest.mark.parametrize(
    ("scores", "patience", "least", "ends"),
    [((3, 2, 1), 1, 0.0, False), ((3, 2, 2), 1, 0.0, True), ((3, 2, 2.5, 1.9), 2, 0.0, False),
     ((3, 2, 2.5, 1.9), 2, 0.1, True), ((math.nan, math.nan), 2, 0.0, True), ((-1, -2, -2.1), 1, 0.1, True)],
)  # fmt: skip
def test_early_stopping(scores: tuple[float, ...], patience: int, least: float, ends: bool) -> None:
    assert EarlyStopping(patience, least).after_epoch(made_of(*scores)) is ends


def test_lines_follow_a_resumed_fit(tmp_path: Path) -> None:
    """Epochs that a killed run had written beyond its checkpoint are gone."""
    lines = JsonLines(tmp_path / "h.jsonl")
    lines.begin(History())
    for k in (1, 2, 3):
        lines.after_epoch(made_of(*range(k)))
    again = made_of(0.0)
    lines.begin(again)
    lines.after_epoch(again.plus(Epoch(2, 20, 5.0, 4.0)))
    assert [epoch.score for epoch in History.read(tmp_path / "h.jsonl")] == [0.0, 4.0]


def test_what_a_callback_may_be() -> None:
    seen: list[int] = []

    class Own:
        def after_epoch(self, history: History) -> bool:
            seen.append(-history[-1].number)
            return True

    def stop_at_two(epoch: Epoch) -> bool:
        seen.append(epoch.number)
        return epoch.number == 2

    history = made_of(1, 1)
    function, own = callback_of(stop_at_two), callback_of(Own())
    assert [one.after_epoch(history) for one in (function, own, callback_of(Callback()))] == [True, True, None]
    assert seen == [2, -2]
    own.begin(history)
    assert (name_of(function), name_of(own), name_of(EarlyStopping())) == ("stop_at_two", "Own", "EarlyStopping")
    for wrong in (3, EarlyStopping):
        with pytest.raises(UserError, match="a callback is a function of an epoch"):
            callback_of(wrong)


def test_refusals() -> None:
    with pytest.raises(UserError, match="patience of at least 1"):
        EarlyStopping(0)


def run_through(callback: Callback) -> History:
    history = History()
    callback.begin(history)
    for number in (1, 2, 3):
        history = history.plus(Epoch(number, number, 1 / number, 2 / number, {"psnr": 10.0 * number}))
        callback.after_epoch(history)
    history = History(history.epochs, "epochs")
    callback.end(history)
    return history


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    run_through(TensorBoard(tmp_path))
    (file,) = tmp_path.glob("events*")
    data, place, found = file.read_bytes(), 0, {}
    while place < len(data):
        size = int.from_bytes(data[place : place + 8], "little")
        event = Event.FromString(data[place + 12 : place + 12 + size])
        found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
        place += 16 + size
    assert found["loss", 2] == 0.5
    assert found["validation/loss", 3] == pytest.approx(2 / 3)
    assert found["metrics/psnr", 3] == 30


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    callback = MLflow("fit", run="one", tracking=tmp_path / "store", parameters={"batch": 8})
    run_through(callback)
    client = mlflow.MlflowClient(tracking_uri=str(tmp_path / "store"))
    run = client.get_run(callback.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"batch": "8"}
    assert [(one.step, one.value) for one in client.get_metric_history(callback.run_id, "loss")] == [
        (1, 1.0), (2, 0.5), (3, 1 / 3)
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "package"), [(TensorBoard, "tensorboardX"), (MLflow, "mlflow")])
def test_what_is_missing_is_named(kind: Any, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=r"pip install 'dtomo\["):
        kind("x")
