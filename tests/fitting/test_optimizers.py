"""Optimizers: minima that are known, complex parameters as pairs of reals, states that can be saved, refusals."""

import io
import itertools
from typing import Any

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.fitting.optimizers import LBFGS, SGD, Adam, AdamW, Optimizer, optimizer_of

ALL = (SGD(rate=0.05), SGD(rate=0.05, momentum=0.9), Adam(rate=0.05), AdamW(rate=0.05, decay=0.01), LBFGS())
NAMES = ("sgd", "momentum", "adam", "adamw", "lbfgs")


def descend(
    optimizer: Optimizer, start: dict[str, Any], evaluate: Any, steps: int
) -> tuple[dict[str, Any], list[float]]:
    """Parameters after some steps, and the loss before each of them."""
    losses: list[float] = []
    parameters, state = start, optimizer.begin(start)
    for _ in range(steps):
        losses.append(evaluate(parameters)[0])
        parameters, state = optimizer.step(parameters, state, evaluate)
    return parameters, losses


def to_one_plus_two_i(parameters: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """|z − (1 + 2i)|², whose gradient ∂L/∂z̄ is z − (1 + 2i)."""
    off = parameters["z"] - np.complex64(1 + 2j)
    return float(np.sum(np.abs(off) ** 2)), {"z": off}


@pytest.mark.parametrize("optimizer", ALL, ids=NAMES)
def test_complex_minimum_is_found(optimizer: Optimizer) -> None:
    found, losses = descend(optimizer, {"z": np.zeros(3, np.complex64)}, to_one_plus_two_i, 400)
    assert found["z"].dtype == np.complex64
    np.testing.assert_allclose(found["z"], 1 + 2j, atol=0.05 if isinstance(optimizer, AdamW) else 2e-3)
    assert losses[-1] < 1e-2 * losses[0]


@pytest.mark.parametrize("optimizer", ALL, ids=NAMES)
def test_imaginary_part_falls_like_a_real_parameter(optimizer: Optimizer) -> None:
    """A loss of Im z alone, of Re z alone and of a real x: the same curve, and the other part stays 0."""
    scales = np.array([1, 3, 0.2])
    goal = np.array([0.5, -2, 4])

    def real(parameters: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        off = parameters["x"] - goal
        return float(np.sum(scales * off**2)), {"x": 2 * scales * off}

    def imaginary(parameters: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        off = parameters["z"].imag - goal
        return float(np.sum(scales * off**2)), {"z": 1j * scales * off}  # ∂L/∂z̄ = (i dL/dy) / 2

    x, expected = descend(optimizer, {"x": np.zeros(3)}, real, 30)
    z, losses = descend(optimizer, {"z": np.zeros(3, complex)}, imaginary, 30)
    np.testing.assert_allclose(losses, expected, rtol=1e-9)
    np.testing.assert_allclose(z["z"].imag, x["x"], rtol=1e-9)
    assert not z["z"].real.any()


def test_adam_turns_with_the_complex_plane() -> None:
    turn = np.exp(0.7j)

    def turned(parameters: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        loss, gradients = to_one_plus_two_i({"z": parameters["z"] / turn})
        return loss, {"z": gradients["z"] * turn}

    plain, _ = descend(Adam(rate=0.1), {"z": np.zeros(1, complex)}, to_one_plus_two_i, 7)
    other, _ = descend(Adam(rate=0.1), {"z": np.zeros(1, complex)}, turned, 7)
    np.testing.assert_allclose(other["z"], plain["z"] * turn, rtol=1e-6)


def rosenbrock(parameters: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    a, b = parameters["a"], parameters["b"]
    loss = float(np.sum((1 - a) ** 2 + 100 * (b - a**2) ** 2))
    return loss, {"a": -2 * (1 - a) - 400 * a * (b - a**2), "b": 200 * (b - a**2)}


def test_lbfgs_goes_through_a_curved_valley() -> None:
    start = {"a": np.full(2, -1.2), "b": np.ones(2)}
    found, losses = descend(LBFGS(iterations=1), start, rosenbrock, 60)
    assert rosenbrock(found)[0] < 1e-8 < 1 < losses[0]
    assert all(later <= earlier for earlier, later in itertools.pairwise(losses))


def test_lbfgs_keeps_what_it_has_where_nothing_is_better() -> None:
    def cliff(parameters: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        there = float(parameters["x"][0])
        return (1.0 if there == 3 else np.nan), {"x": np.ones(1)}

    start = {"x": np.array([3.0])}
    found, _ = LBFGS(trials=3).step(start, LBFGS().begin(start), cliff)
    assert found["x"][0] == 3


@pytest.mark.parametrize("optimizer", ALL, ids=NAMES)
def test_state_goes_through_a_file_bit_for_bit(optimizer: Optimizer) -> None:
    rng = np.random.default_rng(3)
    start = {"a": rng.normal(size=2), "b": rng.normal(size=2).astype(np.float32).astype(float)}
    parameters, state = start, optimizer.begin(start)
    small = optimizer if isinstance(optimizer, LBFGS) else type(optimizer)(**{**vars(optimizer), "rate": 1e-4})
    for _ in range(12):
        parameters, state = small.step(parameters, state, rosenbrock)
    saved = io.BytesIO()
    np.savez(saved, **state)
    saved.seek(0)
    with np.load(saved) as file:
        again = {name: file[name][()] for name in file.files}
    direct, _ = small.step(parameters, state, rosenbrock)
    resumed, _ = small.step(parameters, again, rosenbrock)
    assert all(np.array_equal(direct[name], resumed[name]) for name in direct)


@pytest.mark.parametrize("optimizer", ALL, ids=NAMES)
def test_a_step_changes_nothing_that_it_was_given(optimizer: Optimizer) -> None:
    start = {"a": np.full(2, -1.2, np.float32), "b": np.ones(2, np.float32)}
    _, state = optimizer.step(start, optimizer.begin(start), rosenbrock)
    before = {name: np.copy(value) for name, value in {**start, **state}.items()}
    moved, _ = optimizer.step(start, state, rosenbrock)
    assert all(np.array_equal(value, before[name]) for name, value in {**start, **state}.items())
    assert all(value.dtype == np.float32 for value in moved.values())


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW, LBFGS])
def test_rates_by_name(kind: Any) -> None:
    start = {"a": np.full(2, -1.2), "b": np.ones(2)}
    optimizer = kind(rate={"a": 1e-3})
    optimizer.check(start)
    moved, _ = optimizer.step(start, optimizer.begin(start), rosenbrock)
    assert np.array_equal(moved["b"], start["b"])
    assert not np.array_equal(moved["a"], start["a"])
    with pytest.raises(UserError, match="'c', which is no parameter"):
        kind(rate={"c": 1}).check(start)


def test_first_adam_step_is_the_rate() -> None:
    start = {"x": np.array([3.0, -5.0])}
    moved, _ = Adam(rate=0.1).step(start, Adam().begin(start), lambda p: (0.0, {"x": np.array([1e-3, -70.0])}))
    np.testing.assert_allclose(moved["x"] - start["x"], [-0.1, 0.1], rtol=1e-4)


def test_decay_of_adamw_is_apart_from_the_gradient() -> None:
    start = {"x": np.array([4.0])}
    moved, _ = AdamW(rate=0.1, decay=0.5).step(start, AdamW().begin(start), lambda p: (0.0, {"x": np.zeros(1)}))
    assert moved["x"][0] == 4.0 * (1 - 0.1 * 0.5)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SGD(rate=-1), "rate of an optimizer"),
        (lambda: Adam(rate={"a": float("nan")}), "rate of an optimizer"),
        (lambda: SGD(momentum=1), "momentum of an optimizer is from 0 to below 1; got 1"),
        (lambda: Adam(epsilon=0), "epsilon"),
        (lambda: AdamW(decay=-1), "decay of AdamW"),
        (lambda: LBFGS(memory=0), "memory of L-BFGS"),
        (lambda: LBFGS(rate={"a": 1, "b": 2}), "the same rate"),
        (lambda: optimizer_of("adan"), "SGD, Adam, AdamW, LBFGS"),
    ],
)
def test_refusals(make: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        make()


def test_names() -> None:
    assert optimizer_of(None) == Adam()
    assert optimizer_of("L-BFGS") == LBFGS()
    assert optimizer_of("AdamW") == AdamW()
