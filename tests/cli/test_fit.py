"""``dtomo fit``: from a module of one's own to fitted parameters; killed, resumed, refused in one sentence."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtomo.fitting.history import History
from tests.cli.conftest import environment

MODULE = """
import os, signal
from pathlib import Path
import numpy as np
import dtomo

class Line:
    def __init__(self, size):
        self.parameters = {"weights": np.zeros(size), "phase": np.zeros(2, np.complex64)}

    def loss_and_gradient(self, parameters, batch):
        points, values = batch
        residual = points @ parameters["weights"] + parameters["phase"].imag.sum() - values
        phase = np.full(2, 1j * residual.sum(), np.complex64)
        return float((residual**2).sum()), len(values), {"weights": 2 * points.T @ residual, "phase": phase}

class Bad(Line):
    def loss_and_gradient(self, parameters, batch):
        loss, count, gradients = super().loss_and_gradient(parameters, batch)
        return loss, count, {"weights": gradients["weights"]}

def kill(epoch):
    if epoch.number == 3 and Path("kill").exists():
        os.kill(os.getpid(), signal.SIGKILL)

def make(batch):
    return Line(batch[0].shape[1]), {"optimizer": dtomo.fitting.Adam(rate=0.1), "callbacks": [kill]}

def line():
    return Line(4)

def bad():
    return Bad(4)

def odd():
    return Line(4), {"epoch": 3}

def broken():
    raise OSError("no such weights")

def two(points, values):
    return Line(4)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(53, 4))
    np.save(tmp_path / "points.npy", points)
    np.save(tmp_path / "values.npy", points @ np.arange(4.0) + 1)
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "spoilt.py").write_text("def make(:")
    (tmp_path / "text.npy").write_text("words")
    np.save(tmp_path / "words.npy", np.array(["a", "b"]))
    return tmp_path


WORDS = ("fit", "mine:make", "points.npy", "out", "--also", "values.npy", "--epochs", "5", "--batch", "9")


@pytest.mark.slow
def test_killed_and_resumed_with_the_bits_of_another_number_of_workers(here: Any, folder: Path) -> None:
    words = [*WORDS, "--checkpoint-every", "1it", "--best"]
    (folder / "kill").touch()
    line = [sys.executable, "-m", "dtomo", *words, "--workers", "2"]
    killed = subprocess.run(line, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (folder / "out" / ".dtomo").is_dir()
    os.unlink(folder / "kill")
    refused = here(*words)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    resumed = here(*words, "--workers", "2", "--resume", report=True)
    assert resumed.returncode == 0, resumed.stderr
    assert "loss" in resumed.stderr
    words[3] = "whole"
    whole = here(*words, "--workers", "1", "--no-pictures")
    assert whole.returncode == 0, whole.stderr
    with np.load(folder / "out" / "parameters.npz") as one, np.load(folder / "whole" / "parameters.npz") as other:
        assert sorted(one) == ["phase", "weights"]
        assert one["phase"].dtype == np.complex64
        assert all(np.array_equal(one[name], other[name]) for name in one)
    histories = [History.read(folder / name / "history.jsonl") for name in ("out", "whole")]
    assert histories[0] == histories[1]
    assert len(histories[0]) == 5
    with np.load(folder / "out" / "split.npz") as split:
        assert len(split["held_out"]) == 5
    assert sorted(item.name for item in (folder / "out").iterdir()) == [
        "dtomo.json", "history.jsonl", "history.png", "parameters.npz", "split.npz",
    ]  # fmt: skip
    assert (folder / "out.run.yaml").is_file()
    page = (folder / "out.report.html").read_text("utf-8")
    assert all(words in page for words in ("Fit of a model", "validation", "Convergence"))


def test_a_plan_touches_nothing(here: Any, folder: Path) -> None:
    planned = here(*WORDS, "--plan")
    assert planned.returncode == 0, planned.stderr
    assert "steps: 6 in an epoch, of 9 samples in blocks of 2" in planned.stdout
    assert not (folder / "out").exists()


def test_what_is_wrong_part_way_is_one_sentence(here: Any, folder: Path) -> None:
    """From a worker, too: the line of the model's own code, or the sample that spoils the data."""
    points = np.load(folder / "points.npy")
    np.save(folder / "wide.npy", np.tile(points, 2))
    wide = here(*WORDS[:1], "mine:line", "wide.npy", *WORDS[3:], "--workers", "2")
    assert wide.returncode == 2
    assert "raised ValueError" in wide.stderr
    assert "in mine, line 13; it was given float64 (n, 8), float64 (n,)" in wide.stderr
    assert not (folder / "out").exists()
    points[7] = np.nan
    np.save(folder / "points.npy", points)
    spoilt = here(*WORDS, "--workers", "1")
    assert spoilt.returncode == 3
    assert "is nan in epoch 1, step" in spoilt.stderr
    assert "sample 7 of" in spoilt.stderr


@pytest.mark.torch
def test_a_module_of_torch(here: Any, folder: Path) -> None:
    torch = pytest.importorskip("torch")
    (folder / "net.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Linear(4, 4), {'loss': torch.nn.MSELoss()}\n"
    )
    words = ["fit", "net:make", "points.npy", "out", "--epochs", "2", "--workers", "1"]
    wrong = here(*words)
    assert wrong.returncode == 2
    assert "the model Linear raised RuntimeError" in wrong.stderr
    assert "it was given float64 (n, 4)" in wrong.stderr
    np.save(folder / "points.npy", np.load(folder / "points.npy").astype(np.float32))
    done = here(*words)
    assert done.returncode == 0, done.stderr
    state = torch.load(folder / "out" / "model.pt", weights_only=True)
    with np.load(folder / "out" / "parameters.npz") as kept:
        assert {name: value.numpy().tobytes() for name, value in state.items()} == {
            name: kept[name].tobytes() for name in kept
        }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({1: "mine"}, "package.module:function"),
        ({1: "nowhere:make"}, "cannot be imported"),
        ({1: "mine:nothing"}, "has no nothing"),
        ({1: "mine:bad"}, "no gradient for the parameter 'phase'"),
        ({1: "mine:odd"}, "an argument 'epoch'"),
        ({1: "mine.py:make"}, "not a file: mine:make"),
        ({1: "mine:broken"}, "mine:broken raised OSError (no such weights) in"),
        ({1: "mine:two"}, "2 arguments without a default"),
        ({1: "spoilt:make"}, "the import of spoilt raised SyntaxError"),
        ({2: "text.npy"}, "text.npy is no NPY file"),
        ({2: "words.npy"}, "words.npy holds <U1"),
        ({4: "--validation", 5: "1.5"}, "must be less than 1"),
        ({9: "0"}, "from 1, or all"),
        ({2: "missing.npy"}, "there is no file or folder"),
        ({3: "out.npz"}, "a folder of files"),
        ({5: "points.npz"}, "there is no file or folder"),
        ({7: "0"}, "--epochs"),
        ({9: "none"}, "--batch"),
    ],
)
def test_wrong_requests_are_one_sentence(here: Any, folder: Path, change: dict[int, str], said: str) -> None:
    words = [change.get(place, word) for place, word in enumerate(WORDS)]
    done = here(*words, "--workers", "1")
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (folder / words[3]).exists()
