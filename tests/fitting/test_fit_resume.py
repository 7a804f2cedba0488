"""A fit that was killed goes on with the same bits: between epochs and within one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dtomo
from dtomo.errors import UserError
from dtomo.fitting import LBFGS, Adam, JsonLines
from dtomo.fitting.history import History
from dtomo.io.checkpoints import Checkpoints, Schedule
from tests.fitting.models import Line, Noisy, line

KILLED = """
import os, signal, sys
import dtomo
from dtomo.fitting import LBFGS, Adam, JsonLines
from tests.fitting.models import Noisy, line

def kill(epoch):
    if epoch.number == 3:
        os.kill(os.getpid(), signal.SIGKILL)

optimizer = {"adam": Adam(rate=0.1), "lbfgs": LBFGS()}[sys.argv[1]]
dtomo.fit(Noisy(), line(), epochs=6, batch=17, best=True, optimizer=optimizer, scheduler=lambda n: 0.9**n,
          callbacks=[JsonLines("history.jsonl"), kill], checkpoints="kept")
"""


@pytest.mark.parametrize("kind", ["adam", pytest.param("lbfgs", marks=pytest.mark.slow)])
def test_killed_and_resumed(kind: str, tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{KILLED}", kind],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == -9, done.stderr
    settings: dict[str, Any] = {
        "epochs": 6, "batch": 17, "best": True, "scheduler": lambda n: 0.9**n,
        "optimizer": {"adam": Adam(rate=0.1), "lbfgs": LBFGS()}[kind],
    }  # fmt: skip
    whole, resumed = Noisy(), Noisy()
    expected = dtomo.fit(whole, line(), **settings)
    lines = JsonLines(tmp_path / "history.jsonl")
    found = dtomo.fit(resumed, line(), **settings, callbacks=[lines], checkpoints=tmp_path / "kept")
    assert found == expected
    assert all(np.array_equal(resumed.parameters[name], whole.parameters[name]) for name in whole.parameters)
    assert [epoch.loss for epoch in History.read(lines.path)] == list(expected.losses)


class Stops(Noisy):
    """Is interrupted at one of its blocks."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls

    def loss_and_gradient(self, parameters: Any, batch: Any, rng: Any = None) -> Any:
        self.calls -= 1
        if not self.calls:
            raise KeyboardInterrupt
        return super().loss_and_gradient(parameters, batch, rng)


def _made_with(state: Path) -> Any:
    return json.loads(json.loads((state / "checkpoint.json").read_text())["content"])["made_with"]


def test_an_epoch_that_was_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 3, "batch": 17, "block": 3, "optimizer": Adam(rate=0.1)}
    whole, resumed = Noisy(), Stops(0)
    expected = dtomo.fit(whole, line(), **settings)

    def kept() -> Checkpoints:
        return Checkpoints(tmp_path / "kept", schedule=Schedule(minutes=1e-9))

    with pytest.raises(KeyboardInterrupt):
        dtomo.fit(Stops(55), line(), **settings, checkpoints=kept())
    (made_with,) = {json.dumps(_made_with(path)) for path in (tmp_path / "kept").glob("state-*")}
    before = Checkpoints(tmp_path / "kept", made_with=json.loads(made_with)).load()
    assert before is not None
    assert 0 < before.info["in_epoch"] < 6
    found = dtomo.fit(resumed, line(), **settings, checkpoints=kept())
    assert found == expected
    assert all(np.array_equal(resumed.parameters[name], whole.parameters[name]) for name in whole.parameters)


def test_a_fit_that_is_over_is_not_done_again_and_more_epochs_go_on(tmp_path: Path) -> None:
    first = dtomo.fit(Line(), line(), epochs=3, checkpoints=tmp_path)
    again = Line()
    assert dtomo.fit(again, line(), epochs=3, checkpoints=tmp_path) == first
    assert again.parameters["weights"].any()
    longer = Line()
    assert dtomo.fit(longer, line(), epochs=5, checkpoints=tmp_path) == dtomo.fit(Line(), line(), epochs=5)


def test_a_fit_that_a_callback_ended_stays_ended(tmp_path: Path) -> None:
    first = dtomo.fit(Line(), line(), epochs=5, callbacks=[lambda epoch: epoch.number == 2], checkpoints=tmp_path)
    assert len(dtomo.fit(Line(), line(), epochs=5, checkpoints=tmp_path)) == len(first) == 2


def test_another_fit_is_refused(tmp_path: Path) -> None:
    dtomo.fit(Line(), line(), epochs=1, checkpoints=tmp_path)
    for change, word in (
        ({"batch": 5}, "batch"),
        ({"optimizer": Adam(rate=0.5)}, "optimizer"),
        ({"seed": 3}, "other samples"),
        ({"validation": 0.3}, "other samples"),
    ):
        with pytest.raises(UserError, match=word):
            dtomo.fit(Line(), line(), epochs=1, checkpoints=tmp_path, **change)
    with pytest.raises(UserError, match="data"):
        dtomo.fit(Line(), line(seed=1), epochs=1, checkpoints=tmp_path)
