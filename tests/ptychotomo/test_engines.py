"""Solvers bring the loss down and the volume back; constraints are what they say, on one slab and on several."""

from typing import Any

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.ptychotomo.constraints import VolumeConstraints
from dtomo.ptychotomo.driver import JointProblem, run
from dtomo.ptychotomo.engine import SlabPlace
from dtomo.ptychotomo.engines.adam import JointAdam
from dtomo.ptychotomo.engines.conjugate import JointConjugateGradient
from dtomo.threads import using_threads
from tests.ptychotomo.scenes import Scene, scene

WIDTH = 24
BOUND = VolumeConstraints(support=9.0, signs=True)


@pytest.fixture(scope="module")
def given() -> Scene:
    found = scene(rows=36, width=WIDTH, frame=10, angles=20, step=3)
    y, x = np.indices((WIDTH, WIDTH)) - (WIDTH - 1) / 2
    assert np.abs(found.volume[:, x * x + y * y > 81]).max() < 0.1 * np.abs(found.volume).max()
    return found


def zeros(place: SlabPlace) -> Any:
    return np.zeros((place.height, WIDTH, WIDTH), np.complex64)


def solved(given: Scene, engine: Any, epochs: int, height: int | None = None, start: Any = zeros, **over: Any) -> Any:
    reach = 3 if "shifts" in engine.refine else 0
    problem = JointProblem(engine, given.source, given.layout(height, reach), start)
    result, slabs = run(problem, {**given.parameters, **over}, epochs)
    return result, np.concatenate(slabs)


def inner_error(given: Scene, volume: Any) -> float:
    """Where frames have light from many sides."""
    rows = slice(10, 26)
    return float(np.linalg.norm(volume[rows] - given.volume[rows]) / np.linalg.norm(given.volume[rows]))


@pytest.mark.parametrize("kind", [JointAdam, JointConjugateGradient])
def test_the_volume_comes_back(given: Scene, kind: Any) -> None:
    engine = kind(model=given.model, refine=("volume",), constraints=BOUND)
    result, volume = solved(given, engine, 60)
    assert result.losses[-1] < 0.01 * result.losses[0]
    assert inner_error(given, volume) < 0.25
    assert volume.real.max() <= 0
    assert volume.imag.min() >= 0


def test_conjugate_gradients_never_go_up(given: Scene) -> None:
    engine = JointConjugateGradient(model=given.model, refine=("volume", "probe"))
    result, _ = solved(given, engine, 15, probe=given.parameters["probe"] * np.complex64(0.9))
    assert (np.diff(result.losses) < 1e-6 * result.losses[0]).all()


def test_a_probe_that_is_wrong_is_refined(given: Scene) -> None:
    probe = given.parameters["probe"]
    y, x = np.indices(probe.shape[-2:])
    wrong = (probe * np.exp(0.02j * ((x - 5) ** 2 - (y - 5) ** 2))).astype(np.complex64)
    fixed, _ = solved(given, JointAdam(model=given.model, refine=("volume",), constraints=BOUND), 30, probe=wrong)
    engine = JointAdam(model=given.model, refine=("volume", "probe"), constraints=BOUND)
    refined, _ = solved(given, engine, 30, probe=wrong)
    assert refined.losses[-1] < 0.3 * fixed.losses[-1]


def test_shifts_are_found_by_trial_and_gradient() -> None:
    given = scene(rows=36, width=WIDTH, frame=10, angles=16, step=3, seed=2)
    random = np.random.default_rng(0)
    wrong = random.uniform(-2, 2, (16, 2)) * (1, 0)  # along the axis, where nothing else moves the images
    wrong -= wrong.mean(0)
    engine = JointAdam(
        model=given.model, refine=("volume", "shifts"), constraints=BOUND, search_trials=3, search_epochs=30,
        search_reach=1.5, reach=3.0,
    )  # fmt: skip
    true = given.volume
    result, _ = solved(given, engine, 40, start=lambda place: true[place.start : place.stop].copy(), shifts=wrong)
    rows = result.parameters["shifts"][:, 0]
    assert np.sqrt(((rows - rows.mean()) ** 2).mean()) < 0.3 < np.sqrt((wrong[:, 0] ** 2).mean())


def test_c16_purely_imaginary_and_real_volumes_come_at_one_rate() -> None:
    """C16: no part of a complex gradient is lost."""
    losses = []
    for turn in (1.0, 1j):
        given = scene(rows=24, width=16, frame=8, angles=8, step=3)
        given.volume = (np.abs(given.volume) * turn * 0.2).astype(np.complex64)
        for angle in range(8):
            image = given.model.transmissions(given.volume, np.array([angle]))[0]
            some = np.flatnonzero(given.angle_of_frame == angle)
            _, parameters = given.model.seen(
                np.ascontiguousarray(image), 0, angle, given.block(some), given.parameters, given.positions
            )
            given.frames[some] = given.model.frames.intensities(parameters, np.arange(len(some)))
        engine = JointAdam(model=given.model, refine=("volume",), subsets=1)
        problem = JointProblem(engine, given.source, given.layout(), lambda p: np.zeros((24, 16, 16), np.complex64))
        result, _ = run(problem, given.parameters, 40)
        losses.append(result.losses[-1] / result.losses[0])
    assert max(losses) < 0.15
    assert 0.5 < losses[0] / losses[1] < 2


def test_three_slabs_come_to_what_one_comes_to(given: Scene) -> None:
    engine = JointAdam(
        model=given.model, refine=("volume", "probe"), constraints=VolumeConstraints(total_variation=0.5, support=9.0)
    )
    one, three = (solved(given, engine, 6, height)[1] for height in (None, 12))
    np.testing.assert_allclose(three, one, atol=2e-3 * np.abs(one).max())


def test_bits_do_not_depend_on_threads(given: Scene) -> None:
    engine = JointAdam(model=given.model, constraints=VolumeConstraints(total_variation=0.1))
    found = []
    for threads in (1, 3):
        with using_threads(threads):
            found.append(solved(given, engine, 2, 18)[1].tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("part", [1.0, 1j])
def test_the_gradient_of_the_total_variation(part: complex) -> None:
    random = np.random.default_rng(0)
    values = random.standard_normal((2, 8, 6, 7))
    volume = (values[0] + 1j * values[1]).astype(np.complex64)
    constraints = VolumeConstraints(total_variation=0.7, smoothing=0.1)
    gradient = np.zeros_like(volume)
    value = constraints.penalize(volume, gradient, None, None)
    assert value == pytest.approx(constraints.value(volume, None))
    at, step = (3, 2, 4), 5e-3
    moved = [volume.copy(), volume.copy()]
    moved[0][at] += step * part
    moved[1][at] -= step * part
    slope = (constraints.value(moved[0], None) - constraints.value(moved[1], None)) / (2 * step)
    assert 2 * (np.conj(gradient[at]) * part).real == pytest.approx(slope, rel=5e-3)
    halves = np.zeros_like(volume)
    total = constraints.penalize(volume[:5], halves[:5], None, volume[5:6])
    total += constraints.penalize(volume[5:], halves[5:], volume[4:5], None)
    assert total == pytest.approx(value)
    np.testing.assert_allclose(halves, gradient, atol=1e-6)


def test_what_cannot_be_asked_for(given: Scene) -> None:
    model = given.model
    for kind, options in (
        (JointAdam, {"refine": ("object",)}),
        (JointAdam, {"refine": ()}),
        (JointAdam, {"subsets": 0}),
        (JointAdam, {"rates": {"volume": -1.0}}),
        (JointAdam, {"first": 1.0}),
        (JointAdam, {"decay": 0.0}),
        (JointAdam, {"search_trials": 2}),
        (JointConjugateGradient, {"refine": ("volume", "shifts")}),
        (JointConjugateGradient, {"subsets": 2}),
        (JointConjugateGradient, {"tries": 0}),
    ):
        with pytest.raises(UserError):
            kind(model=model, **options)
    for wrong in ({"total_variation": -1.0}, {"smoothing": 0.0}, {"support": 0.0}):
        with pytest.raises(UserError):
            VolumeConstraints(**wrong)
    with pytest.raises(UserError, match="first guess"):
        JointAdam(model=model, refine=("volume", "shifts")).begin_common(given.parameters)
