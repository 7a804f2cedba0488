"""Torch modules: sums over blocks are those of the whole batch, complex too; the user's objects stay the user's."""

import copy
from typing import Any

import cloudpickle
import numpy as np
import pytest

from dtomo.distributed.sums import tree_sum
from dtomo.errors import UserError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from dtomo.fitting.torch_models import TorchSteps, TorchTrainable  # noqa: E402
from dtomo.fitting.torch_task import to_numpy  # noqa: E402

RNG = np.random.default_rng(1)


class Small(torch.nn.Module):
    """Real, with a buffer and dropout if asked."""

    def __init__(self, normalised: bool = False, dropped: float = 0.0) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(5, 7),
            torch.nn.BatchNorm1d(7, momentum=0.5) if normalised else torch.nn.Tanh(),
            torch.nn.Dropout(dropped),
            torch.nn.Linear(7, 2),
        )

    def forward(self, values: Any) -> Any:
        return self.body(values)


class Imaginary(torch.nn.Module):
    """A loss of Im z alone, or of all of z."""

    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        self.z = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))
        self.unused = torch.nn.Parameter(torch.ones(2))
        self.whole = whole

    def loss(self, goals: Any) -> Any:
        off = self.z - goals
        return (off.abs() ** 2 if self.whole else off.imag**2).sum(1)


def data(count: int = 23) -> tuple[Any, Any]:
    return RNG.normal(size=(count, 5)).astype(np.float32), RNG.normal(size=(count, 2)).astype(np.float32)


def blocks_of(batch: Any, size: int) -> list[Any]:
    parts = batch if isinstance(batch, tuple) else (batch,)
    cut = [tuple(part[k : k + size] for part in parts) for k in range(0, len(parts[0]), size)]
    return [block if isinstance(batch, tuple) else block[0] for block in cut]


def sums(model: TorchTrainable, batch: Any, size: int, *, gradient: bool = True, key: int = 0) -> Any:
    """As workers would: of a copy of the task, block by block."""
    task = cloudpickle.loads(cloudpickle.dumps(model.task))
    values = {**model.parameters(), **model.buffers()}
    blocks = [(block, key + number) for number, block in enumerate(blocks_of(batch, size))]
    return tree_sum(task.evaluate_blocks(values, blocks, gradient=gradient))


def fitted(model: TorchTrainable, steps: TorchSteps, batch: Any, size: int, count: int) -> list[float]:
    losses = []
    for number in range(count):

        def evaluate(number: int = number) -> Any:
            total = sums(model, batch, size, key=1000 * number)
            model.store_buffers(total["buffers"], total["count"])
            means = {name: value / total["count"] for name, value in total["gradients"].items()}
            return total["loss"] / total["count"], means, total["used"]

        losses.append(steps.step(evaluate))
        steps.end_epoch(losses[-1])
    return losses


def own_loop(module: Any, optimizer: Any, loss: Any, batch: Any, count: int, scheduler: Any = None) -> list[float]:
    """What a user would write without this package."""
    tensors = [torch.from_numpy(part) for part in batch]
    losses = []
    for _ in range(count):

        def closure() -> Any:
            optimizer.zero_grad()
            value = loss(module(tensors[0]), tensors[1])
            value.backward()
            return value

        losses.append(optimizer.step(closure).item())
        if scheduler is not None:
            scheduler.step()
    return losses


@pytest.mark.parametrize("form", ["mean", "samples", "pair"])
def test_sums_of_blocks_are_those_of_the_batch(form: str) -> None:
    def loss(found: Any, wanted: Any) -> Any:
        each = ((found - wanted) ** 2).mean(1)
        return {"mean": each.mean(), "samples": each, "pair": (each.sum(), len(each))}[form]

    torch.manual_seed(0)
    model = TorchTrainable(Small(), loss)
    batch = data()
    whole, parts = sums(model, batch, 23), sums(model, batch, 4)
    assert parts["count"] == whole["count"] == 23
    assert parts["loss"] == pytest.approx(whole["loss"], rel=1e-6)
    for name, value in whole["gradients"].items():
        np.testing.assert_allclose(parts["gradients"][name], value, atol=2e-6)
    held = sums(model, batch, 4, gradient=False)
    assert held["loss"] == pytest.approx(whole["loss"], rel=1e-6)


@pytest.mark.parametrize("kind", ["Adam", "SGD", "LBFGS"])
def test_steps_are_those_of_a_loop_of_ones_own(kind: str) -> None:
    def optimizer(parameters: Any) -> Any:
        return getattr(torch.optim, kind)(parameters, lr=0.05)

    def halved(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    torch.manual_seed(0)
    module, loss = Small().double(), torch.nn.MSELoss()
    batch = tuple(part.astype(float) for part in data())
    other = copy.deepcopy(module)
    theirs = optimizer(other.parameters())
    expected = own_loop(other, theirs, loss, batch, 5, halved(theirs))
    model = TorchTrainable(module, loss)
    losses = fitted(model, TorchSteps(model, optimizer, halved), batch, 6, 5)
    np.testing.assert_allclose(losses, expected, rtol=1e-9)
    for one, two in zip(module.parameters(), other.parameters()):
        np.testing.assert_allclose(to_numpy(one), to_numpy(two), atol=1e-9)


def test_objects_stay_the_users() -> None:
    module = Small()
    names = set(vars(module))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    model = TorchTrainable(module, torch.nn.MSELoss())
    steps = TorchSteps(model, optimizer, scheduler)
    first = next(module.parameters())
    before = to_numpy(first)
    fitted(model, steps, data(), 8, 2)
    assert model.module is module
    assert steps.optimizer is optimizer
    assert steps.scheduler is scheduler
    assert set(vars(module)) == names
    assert next(module.parameters()) is first
    assert not np.array_equal(to_numpy(first), before)
    assert steps.rate == pytest.approx(0.025)


def test_imaginary_part_falls_as_fast_as_a_real_parameter() -> None:
    """With SGD of rate 0.1, (y − 2)² from 0: y ← y − 0.1 · 2 (y − 2)."""
    goals = np.full((7, 3), 1 + 2j, np.complex64)
    model = TorchTrainable(Imaginary())
    steps = TorchSteps(model, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    losses = fitted(model, steps, goals, 2, 6)
    np.testing.assert_allclose(losses, [3 * (2 * 0.8**k) ** 2 for k in range(6)], rtol=1e-5)
    found = model.parameters()["z"]
    assert found.dtype == np.complex64
    np.testing.assert_allclose(found.imag, 2 - 2 * 0.8**6, rtol=1e-5)
    assert not found.real.any()
    assert np.array_equal(model.parameters()["unused"], [1, 1])


def test_complex_gradient_is_half_of_torchs() -> None:
    goals = (RNG.normal(size=(5, 3)) + 1j * RNG.normal(size=(5, 3))).astype(np.complex64)
    total = sums(TorchTrainable(Imaginary(whole=True)), goals, 2)
    np.testing.assert_allclose(total["gradients"]["z"], -goals.sum(0), rtol=1e-5)  # ∂|z − g|²/∂z̄ = z − g
    assert total["used"] == {"z": 3.0, "unused": 0.0}


def test_buffers_are_averaged_by_count() -> None:
    module, (values, targets) = Small(normalised=True), data(10)
    model = TorchTrainable(module, torch.nn.MSELoss())
    total = sums(model, (values, targets), 4)
    model.store_buffers(total["buffers"], total["count"])
    hidden = to_numpy(module.body[0](torch.from_numpy(values)))
    expected = sum(len(part) * 0.5 * part.mean(0) for part in (hidden[:4], hidden[4:8], hidden[8:])) / 10
    np.testing.assert_allclose(model.buffers()["body.1.running_mean"], expected, atol=1e-6)
    assert model.buffers()["body.1.num_batches_tracked"] == 1


def test_random_numbers_are_those_of_the_block() -> None:
    model = TorchTrainable(Small(dropped=0.5), torch.nn.MSELoss())
    batch = data()
    before = torch.get_rng_state()
    one, same, other = (sums(model, batch, 5, key=key)["loss"] for key in (7, 7, 8))
    assert one == same != other
    assert torch.equal(torch.get_rng_state(), before)
    assert sums(model, batch, 5, gradient=False, key=1) == sums(model, batch, 5, gradient=False, key=2)


@pytest.mark.parametrize("kind", ["Adam", "LBFGS"])
def test_state_goes_through_bytes_bit_for_bit(kind: str) -> None:
    def made(seed: int) -> tuple[TorchTrainable, TorchSteps]:
        torch.manual_seed(seed)
        model = TorchTrainable(Small(dropped=0.2), torch.nn.MSELoss())
        return model, TorchSteps(
            model,
            lambda parameters: getattr(torch.optim, kind)(parameters, lr=0.1),
            lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
        )

    batch = data()
    model, steps = made(0)
    fitted(model, steps, batch, 6, 3)
    packed, values = steps.pack(), model.parameters()
    straight = fitted(model, steps, batch, 6, 3)
    again, resumed = made(1)
    again.store(values)
    resumed.unpack(packed)
    assert fitted(again, resumed, batch, 6, 3) == straight
    assert all(np.array_equal(value, again.parameters()[name]) for name, value in model.parameters().items())


def test_metrics_are_the_modules_own() -> None:
    class Measured(Small):
        def metrics(self, values: Any, wanted: Any) -> Any:
            return {"off": (self(values) - wanted).abs().sum()}

    batch = data()
    model = TorchTrainable(Measured(), torch.nn.MSELoss())
    total = sums(model, batch, 4, gradient=False)
    with torch.no_grad():
        expected = float((model.module(torch.from_numpy(batch[0])) - torch.from_numpy(batch[1])).abs().sum())
    assert total["metrics"]["off"] == pytest.approx(expected, rel=1e-5)


def test_counts_of_detectors_and_read_only_arrays_are_taken() -> None:
    model = TorchTrainable(Small(), lambda found, wanted: (found - wanted.float()).abs().mean(1))
    values, wanted = data(6)
    frames = np.abs(wanted * 100).astype(np.uint16)
    values.flags.writeable = frames.flags.writeable = False
    assert sums(model, (values, frames), 4)["loss"] > 0


def test_refusals() -> None:
    module, other = Small(), Small()
    frozen = Small().requires_grad_(False)
    loss = torch.nn.MSELoss()
    model = TorchTrainable(module, loss)
    with pytest.raises(UserError, match="Small needs a loss"):
        TorchTrainable(module)
    with pytest.raises(UserError, match="no parameter that requires a gradient"):
        TorchTrainable(frozen, loss)
    with pytest.raises(UserError, match="4 parameters that are not those of Small"):
        TorchSteps(model, torch.optim.Adam(other.parameters()))
    with pytest.raises(UserError, match="one of Torch's optimizers"):
        TorchSteps(model, "adam")
    optimizer = torch.optim.Adam(module.parameters())
    with pytest.raises(UserError, match="belongs to another optimizer"):
        TorchSteps(model, optimizer, torch.optim.lr_scheduler.StepLR(torch.optim.Adam(module.parameters()), 1))
    with pytest.raises(UserError, match=r"one of torch\.optim\.lr_scheduler"):
        TorchSteps(model, optimizer, 3)
    for wrong, says in (
        (lambda found, wanted: found - wanted, r"one number for each of 3 samples.*shape \(3, 2\)"),
        (lambda found, wanted: 1.0, r"is a real tensor; got 1\.0"),
        (lambda found, wanted: (found * 1j).sum(), "got a complex tensor"),
    ):
        with pytest.raises(UserError, match=says):
            sums(TorchTrainable(module, wrong), data(3), 3)
