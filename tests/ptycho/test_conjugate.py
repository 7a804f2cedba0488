"""Conjugate gradients: a quadratic problem in as many steps as it has unknowns, line searches, small scans."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dtomo import threads
from dtomo.distributed.sums import tree_sum
from dtomo.errors import UserError
from dtomo.ptycho.blocks import cut_frames
from dtomo.ptycho.curvatures import coverage, curvatures, illumination
from dtomo.ptycho.driver import EpochReport, run
from dtomo.ptycho.engines.conjugate import ConjugateGradient, inner
from dtomo.ptycho.frames import FrameBlock
from dtomo.ptycho.gauge import error
from dtomo.ptycho.regularisers import Constraints, PhaseOnly, TotalVariation
from tests.ptycho.scans import SmallScan, small_scan


@dataclasses.dataclass(frozen=True, eq=False)
class Quadratic:
    """A model: (z − target)ᴴ A (z − target) of an object of one row, shared out evenly over the frames."""

    matrix: NDArray[np.complex128]
    target: NDArray[np.complex128]
    bend: float = 0.0
    exponential: bool = False

    def loss_and_gradient(self, parameters: Mapping[str, Any], block: FrameBlock, wanted: Iterable[str]) -> Any:
        off = parameters["object"][0, 0, 0] - self.target
        part = len(block) / len(parameters["positions"])
        squares = float((np.abs(off) ** 2).sum())
        loss = part * float(np.vdot(off, self.matrix @ off).real + self.bend * squares**2)
        slope = part * (self.matrix @ off + 2 * self.bend * squares * off)
        return loss, len(block), {name: slope.reshape(parameters["object"].shape) for name in wanted}


def _matrix(size: int, seed: int = 0) -> NDArray[np.complex128]:
    random = np.random.default_rng(seed)
    root = random.normal(size=(size, size)) + 1j * random.normal(size=(size, size))
    return root @ root.conj().T + 0.5 * np.eye(size)


def _problem(size: int, dtype: Any = np.complex128) -> dict[str, Any]:
    return {
        "object": np.zeros((1, 1, 1, size), dtype),
        "probe": np.ones((1, 1, size), dtype),
        "positions": np.zeros((6, 2)),
    }


def _steps(engine: ConjugateGradient, state: dict[str, Any], number: int, parts: int = 1) -> tuple[dict[str, Any], int]:
    """The state after some steps, and how many passes they took."""
    blocks = [FrameBlock(index, np.zeros((len(index), 1, 1))) for index in np.array_split(np.arange(6), parts)]
    passes = 0
    for _ in range(number):
        first = True
        while first or engine.more(state):
            sums = tree_sum(engine.evaluate(state, block, None)[0] for block in blocks)
            state, first, passes = engine.update(state, sums), False, passes + 1
    return state, passes


@pytest.mark.parametrize("rule", ["polak-ribiere", "dai-yuan"])
@pytest.mark.parametrize("size", [1, 3, 6])
def test_a_quadratic_problem_takes_as_many_steps_as_it_has_unknowns(rule: Any, size: int) -> None:
    target = np.arange(1, size + 1) * (1 - 2j)
    engine = ConjugateGradient(model=Quadratic(_matrix(size), target), wanted=("object",), rule=rule)  # type: ignore[arg-type]
    state, passes = _steps(engine, engine.begin(_problem(size)), size)
    assert engine.finish(state)["object"][0, 0, 0] == pytest.approx(target, abs=1e-9 * size)
    assert passes <= 3 * size
    early = _steps(engine, engine.begin(_problem(size)), size - 1)[0] if size > 1 else engine.begin(_problem(size))
    assert np.abs(early["parameters"]["object"][0, 0, 0] - target).max() > 1e-4


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_the_imaginary_part_of_a_summed_gradient(parts: int) -> None:
    engine = ConjugateGradient(model=Quadratic(np.eye(1) + 0j, np.array([1 + 2j])), wanted=("object",))  # type: ignore[arg-type]
    state, _ = _steps(engine, engine.begin(_problem(1, np.complex64)), 2, parts)
    found = engine.finish(state)["object"]
    assert found.dtype == np.complex64
    assert found.shape == (1, 1, 1, 1)
    assert complex(found[0, 0, 0, 0]) == pytest.approx(1 + 2j, abs=1e-6)


def test_a_loss_that_is_not_quadratic_never_rises() -> None:
    model = Quadratic(_matrix(4, 1), np.array([1, 2j, -1, 3 - 1j]), bend=3.0)
    engine = ConjugateGradient(model=model, wanted=("object",))  # type: ignore[arg-type]
    state = engine.begin(_problem(4))
    losses = []
    for _ in range(25):
        state, _ = _steps(engine, state, 1)
        losses.append(
            model.loss_and_gradient(state["parameters"], FrameBlock(np.arange(6), np.zeros((6, 1, 1))), ())[0]
        )
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(losses))
    assert losses[-1] < 1e-6 * losses[0]


def test_a_first_length_that_is_far_off_is_mended() -> None:
    for factor in (1e-4, 1e4):
        model = Quadratic(factor * _matrix(3), np.array([1, 2j, -1]))
        engine = ConjugateGradient(model=model, wanted=("object",))  # type: ignore[arg-type]
        state, passes = _steps(engine, engine.begin(_problem(3)), 3)
        assert state["parameters"]["object"][0, 0, 0] == pytest.approx(model.target, abs=1e-6)
        assert passes <= 15


def test_first_order_changes_of_a_loss() -> None:
    gradients = {"object": np.array([1 + 2j, -1j]), "scale": np.array([3.0, 1.0])}
    changes = {"object": np.array([0.1j, 0.2]), "scale": np.array([-1.0, 2.0])}
    assert inner(gradients, changes) == pytest.approx(2 * 0.2 - 3 + 2)


def test_light_on_the_object_and_coverage_of_the_probe() -> None:
    scan = small_scan(side=3, modes=2)
    truth = scan.truth | {"scale": np.linspace(0.5, 1.5, 9).astype(np.float32)}
    truth["positions"] = np.round(truth["positions"])
    light, cover = np.zeros(truth["object"].shape[-2:]), np.zeros(truth["probe"].shape[-2:])
    for (row, column), scale in zip(truth["positions"].astype(int), truth["scale"]):
        light[row : row + 32, column : column + 32] += scale**2 * (np.abs(truth["probe"]) ** 2).sum(axis=0)
        cover += scale**2 * np.abs(truth["object"][0, 0, row : row + 32, column : column + 32]) ** 2
    assert illumination(truth) == pytest.approx(light, abs=1e-5 * light.max())
    assert coverage(truth) == pytest.approx(cover, rel=1e-4)
    some = np.array([1, 4])
    assert illumination(truth, some).max() < illumination(truth).max()
    assert illumination(truth).dtype == np.float32


EXTRAS = {
    "scale": lambda scan: np.ones(len(scan.truth["positions"]), np.float32),
    "background": lambda scan: np.full((32, 32), 0.5, np.float32),
    "variable_probe": lambda scan: (0.05 * scan.guess["probe"][None, :, ::-1]).astype(np.complex64),
    "probe_weights": lambda scan: (0.1 * np.random.default_rng(3).normal(size=(36, 1))).astype(np.complex64),
    "positions": lambda scan: scan.guess["positions"] + np.random.default_rng(4).normal(size=(36, 2)) * 0.2,
}


@pytest.mark.parametrize("name", ["scale", "background", "variable_probe", "probe_weights", "positions"])
def test_whatever_is_refined_lowers_the_loss(name: str) -> None:
    scan = small_scan(photons=1e5)
    extras = ("variable_probe", "probe_weights") if name in ("variable_probe", "probe_weights") else (name,)
    guess = scan.truth | {extra: EXTRAS[extra](scan) for extra in extras}
    found = run(ConjugateGradient(model=scan.model, wanted=(name,)), scan.source, guess, 6)
    assert found.losses[-1] < found.losses[0]
    assert (np.diff(found.losses) <= 1e-7 * found.losses[0]).all()
    assert not np.array_equal(found.parameters[name], guess[name])
    assert found.parameters[name].dtype == guess[name].dtype
    assert np.array_equal(found.parameters["object"], guess["object"])


@pytest.mark.parametrize(("modes", "photons"), [(1, None), (2, 1e5)], ids=["exact", "noise and two modes"])
def test_a_small_scan_against_the_truth(modes: int, photons: float | None) -> None:
    scan = small_scan(modes=modes, photons=photons)
    found = run(ConjugateGradient(model=scan.model), scan.source, scan.guess, 60)
    assert found.losses[-1] < found.losses[0] / 100
    image = found.parameters["object"][0, 0]
    assert image.dtype == np.complex64
    assert error(image, scan.truth["object"][0, 0], scan.region) < 0.15


@pytest.mark.parametrize("exponential", [False, True])
def test_objects_that_are_exponents(exponential: bool) -> None:
    scan = small_scan()
    model = dataclasses.replace(scan.model, exponential=exponential)
    guess = scan.guess | {"object": scan.guess["object"] * np.complex64(0 if exponential else 1)}
    found = run(ConjugateGradient(model=model), scan.source, guess, 30)
    assert found.losses[-1] < found.losses[0] / 50
    assert set(curvatures(guess, ("object", "probe"), exponential=exponential)) == {"object", "probe"}


def test_bits_do_not_depend_on_threads_and_hardly_on_blocks() -> None:
    scan = small_scan(side=4, modes=2)
    engine = ConjugateGradient(model=scan.model)
    before = threads.get_threads()
    results = []
    try:
        for number in (1, 3):
            threads.set_threads(number)
            results.append(run(engine, scan.source, scan.guess, 3).parameters)
    finally:
        threads.set_threads(before)
    for name, value in results[0].items():
        assert value.tobytes() == results[1][name].tobytes()
    blocks = cut_frames(scan.guess["positions"], (32, 32), None, block=3)
    other = run(engine, scan.source, scan.guess, 3, blocks=blocks).parameters
    assert other["object"] == pytest.approx(results[0]["object"], abs=1e-3)


def test_parameters_start_when_they_are_told_to() -> None:
    scan = small_scan(side=4)
    engine = ConjugateGradient(model=scan.model, wanted=("object", "probe"), start={"probe": 2})
    seen: list[bool] = []

    def look(report: EpochReport) -> None:
        seen.append(np.array_equal(report.parameters()["probe"], scan.guess["probe"]))

    run(engine, scan.source, scan.guess, 3, on_epoch=look)
    assert seen == [True, True, False]


def test_constraints_are_kept(recwarn: pytest.WarningsRecorder) -> None:
    scan = small_scan(side=4)
    constraints = Constraints((TotalVariation(50.0, smoothing=0.05),), (PhaseOnly(),))
    bound = run(ConjugateGradient(model=scan.model, constraints=constraints), scan.source, scan.guess, 8).parameters
    free = run(ConjugateGradient(model=scan.model), scan.source, scan.guess, 8).parameters
    assert np.abs(bound["object"]) == pytest.approx(1, abs=1e-6)
    assert _variation(bound, scan) < _variation(free, scan)
    assert not recwarn.list


def _variation(parameters: dict[str, Any], scan: SmallScan) -> float:
    return TotalVariation(1.0).value_and_gradient(parameters["object"])[0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batch": 10}, "take all frames"),
        ({"wanted": ("object", "distance")}, "do not refine the distance"),
        ({"rule": "fletcher-reeves"}, "rules are"),
        ({"damping": 0.0}, "damping is above 0"),
        ({"wanted": ("sample",)}, "sample is not a parameter"),
    ],
)
def test_settings_that_mean_nothing_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ConjugateGradient(model=Quadratic(np.eye(1) + 0j, np.ones(1, complex)), **given)  # type: ignore[arg-type]
