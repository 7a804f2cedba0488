"""Fits of Torch modules: on any number of workers, complex, killed and resumed; optimizers stay the user's."""

import functools
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import dtomo
from dtomo.distributed.clusters import Resources, connect
from dtomo.threads import using_threads

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

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
        assert history == found[0][1]
        for name, value in values.items():
            assert np.array_equal(value, found[0][0][name])
    assert history.losses[-1] < history.losses[0]


@pytest.mark.parametrize("dropped", [0.0, 0.2])
def test_threads_do_not_change_the_bits(dropped: float, client: Any) -> None:
    """Of gradients that are zero but for rounding, as those of a bias before a norm, Adam would make other steps."""
    images = np.random.default_rng(0).normal(size=(21, 2, 24, 24)).astype(np.float32)
    before, found = torch.get_num_threads(), []
    for threads in (1, 3, None):
        torch.manual_seed(0)
        module = torch.nn.Sequential(
            torch.nn.Conv2d(2, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Dropout(dropped),
            torch.nn.Conv2d(16, 2, 3, padding=1),
        )  # fmt: skip
        with using_threads(threads):
            history = dtomo.fit(
                module, images, loss=torch.nn.MSELoss(), batch=12, block=3, epochs=2, client=None if threads else client
            )
        found.append((numbers(module), history))
        assert torch.get_num_threads() == before
    for values, history in found[1:]:
        assert history == found[0][1]
        assert all(np.array_equal(value, found[0][0][name]) for name, value in values.items())


def test_lbfgs_with_batch_normalisation(client: Any) -> None:
    """Its trials leave no trace in running means: these are those of the first evaluation of each step, everywhere."""
    found = []
    for where in ({}, {"client": client}):
        module = network().double()
        optimizer = torch.optim.LBFGS(module.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
        history = dtomo.fit(
            module, DATA.astype(float), loss=torch.nn.MSELoss(), epochs=3, batch=None, block=16, validation=0,
            optimizer=optimizer, **where,
        )  # fmt: skip
        assert module[1].num_batches_tracked == 3
        found.append((numbers(module), history))
    assert history.losses[-1] < 0.8 * history.losses[0]
    assert found[0][1] == found[1][1]
    assert all(np.array_equal(value, found[1][0][name]) for name, value in found[0][0].items())
    one = network().double()
    dtomo.fit(one, DATA.astype(float), loss=torch.nn.MSELoss(), epochs=1, batch=None, block=16, validation=0,
              optimizer=torch.optim.LBFGS(one.parameters(), max_iter=7))  # fmt: skip
    mean = 0.1 * network().double()[0](torch.from_numpy(DATA.astype(float))).mean(0).detach().numpy()
    np.testing.assert_allclose(one[1].running_mean.numpy(), mean, atol=1e-12)


class Marked(torch.nn.Module):
    """Knows the objects that blocks came to, which nothing else does."""

    seen: ClassVar[set[int]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(6, 6)
        self.lock: Any = None

    def loss(self, samples: Any) -> Any:
        Marked.seen.add(id(self))
        if samples.isnan().any():
            raise ValueError("a sample is not a number")
        return ((self.body(samples) - samples) ** 2).mean(1)


def test_blocks_are_evaluated_on_copies_where_these_can_be_made() -> None:
    found = []
    for lock in (None, threading.Lock()):
        torch.manual_seed(0)
        module = Marked()
        module.lock = lock
        Marked.seen.clear()
        with using_threads(3):
            found.append(dtomo.fit(module, DATA, batch=16, epochs=2))
        assert Marked.seen == {id(module)} if lock else (len(Marked.seen) == 3 and id(module) not in Marked.seen)
    assert found[0] == found[1]
    broken = DATA.copy()
    broken[40] = np.nan
    with using_threads(3), pytest.raises(ValueError, match="a sample is not a number"):
        dtomo.fit(Marked(), broken, batch=16)


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
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    whole, resumed = network(0.3), network(0.3)
    expected = dtomo.fit(whole, DATA, **settings(whole))
    assert dtomo.fit(resumed, DATA, **settings(resumed), checkpoints=tmp_path / "kept") == expected
    for name, value in numbers(whole).items():
        assert np.array_equal(numbers(resumed)[name], value)
