"""Gradients of the whole joint model against central differences, with one slab and with three; one adjoint."""

from typing import Any

import numpy as np
import pytest

from dtomo.ptycho.frame_store import FrameStore
from dtomo.ptychotomo import slab as slabs
from dtomo.ptychotomo.driver import JointProblem, LocalJointRunner
from dtomo.ptychotomo.engines.adam import JointAdam
from tests.ptychotomo.scenes import Scene, scene

EXTRA = ("shifts", "ramps", "scale", "background")


class Gradient(JointAdam):
    """Hands out the gradient and moves nothing."""

    def absorb(self, place: Any, local: Any, common: Any, above: Any, below: Any) -> dict[str, Any]:
        return {"square": 0.0, "voxels": 0}

    def advance(self, common: Any, sums: Any) -> Any:
        common["found"] = sums
        return common


def evaluated(given: Scene, volume: Any, parameters: Any, height: int | None, reach: int = 2) -> tuple[float, Any, Any]:
    """Loss, gradient of the volume, gradients of the parameters."""
    names = tuple(name for name in ("volume", "probe", *EXTRA) if name == "volume" or name in parameters)
    engine = Gradient(model=given.model, refine=names, subsets=1)
    layout = given.layout(height, reach)
    problem = JointProblem(engine, given.source, layout, lambda place: volume[place.start : place.stop])
    runner = LocalJointRunner(problem)
    runner.begin(parameters)
    loss, _ = runner.epoch(0)
    gradient = np.concatenate([np.array(local["gradient"]) for local in runner.locals])
    return loss, gradient, runner.common["found"]["gradients"]


def slope(given: Scene, volume: Any, parameters: Any, name: str, at: Any, direction: complex, step: float) -> float:
    """Change of the loss with one number, by differences of losses taken at four places (error of fourth order)."""

    def loss(length: float) -> float:
        changed, moved = dict(parameters), volume
        if name == "volume":
            moved = volume.copy()
            moved[at] += length * direction
        else:
            changed[name] = np.array(parameters[name])
            changed[name][at] += np.real(length * direction) if changed[name].dtype.kind == "f" else length * direction
        return evaluated(given, moved, changed, None)[0]

    return float((8 * (loss(step) - loss(-step)) - (loss(2 * step) - loss(-2 * step))) / (12 * step))


@pytest.fixture(scope="module", params=["amplitude", "poisson"])
def given(request: Any) -> Scene:
    return scene(rows=42, width=18, frame=10, angles=5, step=6, loss=request.param, modes=2, extra=EXTRA)


def away(given: Scene) -> tuple[Any, dict[str, Any]]:
    """A volume and parameters that do not fit."""
    random = np.random.default_rng(5)
    noise = random.standard_normal((2, *given.volume.shape))
    volume = (given.volume * 0.7 + 0.004 * (noise[0] + 1j * noise[1])).astype(np.complex64)
    parameters = {name: np.array(value) for name, value in given.parameters.items()}
    parameters["probe"] *= np.complex64(1.05 + 0.1j)
    parameters["shifts"] = parameters["shifts"] + random.uniform(-0.3, 0.3, parameters["shifts"].shape)
    return volume, parameters


@pytest.mark.parametrize("height", [None, 14], ids=["one slab", "three slabs"])
def test_gradients_are_those_of_central_differences(given: Scene, height: int | None) -> None:
    volume, parameters = away(given)
    _, gradient, found = evaluated(given, volume, parameters, height)
    random = np.random.default_rng(3)
    shape = np.array(volume.shape)
    for _ in range(3):
        at = tuple(random.integers(shape // 4, 3 * shape // 4))
        for direction in (1.0, 1j):
            expected = slope(given, volume, parameters, "volume", at, direction, 0.02)
            ours = 2 * (np.conj(gradient[at]) * direction).real
            assert abs(ours - expected) <= 1e-3 * 2 * np.abs(gradient).max()
    steps = {"probe": 0.02 * float(np.abs(parameters["probe"]).max()), "shifts": 0.01, "ramps": 2e-3, "scale": 0.01}
    for name, step in (steps | {"background": 0.05}).items():
        at = tuple(random.integers(np.array(found[name].shape) // 4, 3 * np.array(found[name].shape) // 4 + 1))
        for direction in (1.0, 1j) if name == "probe" else (1.0,):
            expected = slope(given, volume, parameters, name, at, direction, step)
            value = found[name][at]
            ours = 2 * (np.conj(value) * direction).real if name == "probe" else float(value)
            scale = np.abs(found[name]).max() * (2 if name == "probe" else 1)
            assert abs(ours - expected) <= 1e-3 * scale, name


def test_three_slabs_have_the_gradient_of_one(given: Scene) -> None:
    volume, parameters = away(given)
    one, three = (evaluated(given, volume, parameters, height) for height in (None, 14))
    assert three[0] == pytest.approx(one[0], rel=1e-6)
    np.testing.assert_allclose(three[1], one[1], atol=2e-6 * np.abs(one[1]).max())
    for name, value in one[2].items():
        np.testing.assert_allclose(three[2][name], value, atol=5e-6 * np.abs(value).max(), err_msg=name)


def test_each_angle_can_have_its_own_probe() -> None:
    given = scene(rows=30, width=16, frame=10, angles=4, step=6, extra=("probes", "background"))
    volume, parameters = given.volume * np.complex64(0.6), dict(given.parameters)
    _, _, found = evaluated(given, volume, parameters, 15)
    assert found["probe"].shape == parameters["probe"].shape
    at, step = (2, 0, 5, 6), 0.01 * float(np.abs(parameters["probe"]).max())
    for direction in (1.0, 1j):
        expected = slope(given, volume, parameters, "probe", at, direction, step)
        ours = 2 * (np.conj(found["probe"][at]) * direction).real
        assert abs(ours - expected) <= 1e-3 * 2 * np.abs(found["probe"]).max()


def test_the_truth_has_no_loss_and_no_gradient(given: Scene) -> None:
    loss, gradient, _ = evaluated(given, given.volume, given.parameters, 14)
    other, steep, _ = evaluated(given, given.volume * np.complex64(0.9), given.parameters, 14)
    assert loss < 1e-4 * other
    assert np.abs(gradient).max() < 1e-2 * np.abs(steep).max()


def test_blocks_of_angles_change_nothing_but_the_order(given: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    volume, parameters = away(given)
    whole = evaluated(given, volume, parameters, 14)
    monkeypatch.setattr(slabs, "MOST_ANGLES", 2)
    parts = evaluated(given, volume, parameters, 14)
    assert parts[0] == whole[0]
    np.testing.assert_allclose(parts[1], whole[1], atol=2e-6 * np.abs(whole[1]).max())


def test_frames_without_a_slab_are_read_by_none(given: Scene) -> None:
    layout = given.layout(14, 2)
    found = np.sort(np.concatenate(layout.blocks))
    np.testing.assert_array_equal(found, np.arange(len(given.positions)))
    store = FrameStore(given.source, layout.blocks, 10**9)
    for number, block in zip(range(3), store.walk(range(3))):
        assert len(block) == len(layout.blocks[number])
