"""Fits of Torch modules: on any number of workers, complex, killed and resumed; optimizers stay the user's."""

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dtomo
from dtomo.distributed.clusters import Resources, connect
from dtomo.threads import get_threads

torch = pytest.importorskip("torch")

DATA = np.random.default_rng(3).normal(size=(47, 6)).astype(np.float32)


def network(dropped: float = 0.0) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8, bias=False), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Dropout(dropped),
        torch.nn.Linear(8, 6),
    )  # fmt: skip


def numbers(module: Any) -> Any:
    return {name: value.numpy().copy() for name, value in module.state_dict().items()}


@pytest.fixture(scope="module")
def client() -> Any:
    with connect(Resources(3, 1, 4 * 2**30, dashboard=None)) as found:
        yield found


@pytest.mark.parametrize("kind", ["Adam", "SGD"])
def test_any_number_of_workers_gives_the_same(kind: str, client: Any) -> None:
    found = []
    for workers in (0, 1, 2, 3):
        module = network()
        optimizer = getattr(torch.optim, kind)(module.parameters(), lr=0.02)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        where = {"client": client, "workers": workers} if workers else {}
        history = dtomo.fit(
            module, DATA, loss=torch.nn.MSELoss(), epochs=3, batch=13, block=4, optimizer=optimizer,
            scheduler=scheduler, **where,
        )  # fmt: skip
        assert optimizer.param_groups[0]["params"][0] is module[0].weight
        assert module.training
        assert all(part.training for part in module.modules())
        assert [epoch.rate for epoch in history] == pytest.approx([0.02, 0.01, 0.005])
        found.append((numbers(module), history))
    for values, history in found[1:]:
        np.testing.assert_allclose(history.losses, found[0][1].losses, rtol=1e-6)
        np.testing.assert_allclose(history.validations, found[0][1].validations, rtol=1e-6)
        for name, value in values.items():
            np.testing.assert_allclose(value, found[0][0][name], atol=1e-6)
    assert history.losses[-1] < history.losses[0]


class OfIm(torch.nn.Module):
    def __init__(self, real: bool) -> None:
        super().__init__()
        self.z = torch.nn.Parameter(torch.zeros((), dtype=torch.float32 if real else torch.complex64))

    def loss(self, samples: Any) -> Any:
        return ((self.z if not self.z.is_complex() else self.z.imag) - samples[:, 0]) ** 2


def test_a_loss_of_the_imaginary_part_falls_like_one_of_a_real_number(client: Any) -> None:
    curves = {}
    for workers in (0, 1, 3):
        for real in (False, True):
            where = {"client": client, "workers": workers} if workers else {}
            optimizer = functools.partial(torch.optim.SGD, lr=0.05)
            history = dtomo.fit(OfIm(real), DATA + 3, epochs=4, batch=13, optimizer=optimizer, **where)
            curves[workers, real] = history.losses
    for curve in curves.values():
        np.testing.assert_allclose(curve, curves[0, True], rtol=1e-5)
    assert curve[-1] < 0.5 * curve[0]


KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
import torch
import dtomo
from tests.fitting.test_fit_torch import DATA, network, settings

def kill(epoch):
    if epoch.number == 2:
        os.kill(os.getpid(), signal.SIGKILL)

module = network(0.3)
dtomo.fit(module, DATA, **settings(module), callbacks=[kill], checkpoints="kept")
"""


def settings(module: Any) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    loss = torch.nn.MSELoss()
    return {
        "loss": loss,
        "epochs": 5,
        "batch": 13,
        "block": 4,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "best": True,
    }


def test_killed_and_resumed(tmp_path: Path) -> None:
    program = KILLED.format(root=str(Path(__file__).resolve().parents[2]))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"DTOMO_THREADS": str(get_threads())},  # Torch's bits depend on them
    )  # fmt: skip
    assert done.returncode == -9, done.stderr
    whole, resumed = network(0.3), network(0.3)
    expected = dtomo.fit(whole, DATA, **settings(whole))
    assert dtomo.fit(resumed, DATA, **settings(resumed), checkpoints=tmp_path / "kept") == expected
    for name, value in numbers(whole).items():
        assert np.array_equal(numbers(resumed)[name], value)
