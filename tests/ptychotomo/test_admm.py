"""ADMM brings loss and volume where the others do, on any number of slabs; its total variation is the true one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from dtomo.errors import UserError
from dtomo.ptychotomo.constraints import VolumeConstraints
from dtomo.ptychotomo.driver import JointProblem, run
from dtomo.ptychotomo.engine import SlabPlace
from dtomo.ptychotomo.engines import admm
from dtomo.ptychotomo.engines.admm import JointADMM
from dtomo.ptychotomo.engines.edges import Edges
from dtomo.settings import JointSettings
from dtomo.threads import using_threads
from tests.ptychotomo.scenes import Scene, scene

WIDTH = 24
BOUND = VolumeConstraints(support=9.0, signs=True)
EDGES = VolumeConstraints(support=9.0, signs=True, total_variation=3.0)


@pytest.fixture(scope="module")
def given() -> Scene:
    return scene(rows=36, width=WIDTH, frame=10, angles=20, step=3)


def zeros(place: SlabPlace) -> Any:
    return np.zeros((place.height, WIDTH, WIDTH), np.complex64)


def solved(given: Scene, epochs: int, height: int | None = None, folder: Path | None = None, **options: Any) -> Any:
    probe = options.pop("probe", given.parameters["probe"])
    layout = given.layout(height)
    asked: dict[str, Any] = {"refine": ("volume",), "constraints": BOUND} | options
    problem = JointProblem(JointADMM(model=given.model, layout=layout, **asked), given.source, layout, zeros)
    result, slabs = run(problem, {**given.parameters, "probe": probe}, epochs, folder=folder, every=1)
    return result, np.concatenate(slabs)


def inner_error(given: Scene, volume: Any) -> float:
    rows = slice(10, 26)
    return float(np.linalg.norm(volume[rows] - given.volume[rows]) / np.linalg.norm(given.volume[rows]))


def test_the_volume_comes_back(given: Scene) -> None:
    result, volume = solved(given, 50)
    assert result.losses[-1] < 1e-4 * result.losses[0]
    assert inner_error(given, volume) < 0.05
    assert volume.real.max() <= 0
    assert volume.imag.min() >= 0
    waves = given.model.transmissions(volume, np.arange(20))
    true = given.model.transmissions(given.volume, np.arange(20))
    assert np.abs(waves - true)[:, :, 10:26].max() < 0.1


def test_the_total_variation_helps_against_noise() -> None:
    given = scene(rows=36, width=WIDTH, frame=10, angles=20, step=3, counts=300.0)
    given.frames = np.random.default_rng(0).poisson(given.frames).astype(np.float32)
    plain, edges = (inner_error(given, solved(given, 20, constraints=one)[1]) for one in (BOUND, EDGES))
    assert edges < 0.8 * plain


def test_few_counts_by_their_likelihood() -> None:
    given = scene(rows=36, width=WIDTH, frame=10, angles=20, step=3, loss="poisson")
    result, volume = solved(given, 30)
    assert result.losses[-1] < 1e-3 * result.losses[0]
    assert inner_error(given, volume) < 0.1


def test_a_probe_that_is_wrong_is_refined(given: Scene) -> None:
    y, x = np.indices(given.parameters["probe"].shape[-2:])
    wrong = (given.parameters["probe"] * np.exp(0.02j * ((x - 5) ** 2 - (y - 5) ** 2))).astype(np.complex64)
    fixed, _ = solved(given, 30, probe=wrong)
    refined, volume = solved(given, 30, probe=wrong, refine=("volume", "probe"))
    assert refined.losses[-1] < 0.1 * fixed.losses[-1]
    assert refined.parameters["probe"].dtype == np.complex64
    assert inner_error(given, volume) < 0.2


@pytest.mark.parametrize("constraints", [BOUND, EDGES])
def test_three_slabs_come_to_what_one_comes_to(given: Scene, constraints: VolumeConstraints) -> None:
    one, three = (
        solved(given, 6, height, constraints=constraints, refine=("volume", "probe"))[1] for height in (None, 12)
    )
    np.testing.assert_allclose(three, one, atol=2e-5 * np.abs(one).max())


def test_bits_depend_neither_on_threads_nor_on_stops(given: Scene, tmp_path: Path) -> None:
    found = []
    for threads in (1, 3):
        with using_threads(threads):
            found.append(solved(given, 4, 18, constraints=EDGES)[1].tobytes())
    solved(given, 2, 18, constraints=EDGES, folder=tmp_path)
    found.append(solved(given, 4, 18, constraints=EDGES, folder=tmp_path)[1].tobytes())
    assert found[0] == found[1] == found[2]


def test_workers_and_files_do_not_change_bits() -> None:
    given = scene(rows=48, width=16, frame=10, angles=6, step=5)
    layout = given.layout(12)

    def start(place: SlabPlace) -> Any:
        return np.zeros((place.height, 16, 16), np.complex64)

    engine = JointADMM(model=given.model, layout=layout, constraints=VolumeConstraints(total_variation=1.0))
    alone, slabs = run(JointProblem(engine, given.source, layout, start), given.parameters, 3)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        for memory in (None, 0):
            problem = JointProblem(engine, given.source, layout, start, slab_memory=memory)
            result, found = run(problem, given.parameters, 3, client=client)
            assert result.history.tobytes() == alone.history.tobytes()
            assert result.parameters["probe"].tobytes() == alone.parameters["probe"].tobytes()
            assert [one.tobytes() for one in found] == [one.tobytes() for one in slabs]


def test_the_light_is_what_the_frames_say(given: Scene) -> None:
    """Against the part of the gradient that counts do not enter: P̄ P at waves of one, frames of nothing."""
    engine = JointADMM(model=given.model, layout=given.layout(12))
    some = np.flatnonzero(given.angle_of_frame == 3)
    block = given.block(some)
    nothing = type(block)(some, np.zeros_like(block.intensities))
    ones = np.ones((1, *given.model.image_shape), np.complex64)
    _, _, gradients = given.model.meet(ones, 0, 3, nothing, given.parameters, given.positions, ("images",))
    found = np.concatenate([engine._light(place, 3, given.parameters) for place in given.layout(12).places])
    true = gradients["images"][0].real
    np.testing.assert_allclose(found, true, atol=1e-5 * true.max())


@pytest.mark.parametrize("turn", [1, 1j, 0.6 - 0.8j])
def test_a_step_is_denoised_as_theory_says(turn: complex) -> None:
    """Least |v - b|² + β TV(v), b a step of n planes a side: each side moves by β / 2n towards the other."""
    strength, planes, weight = 0.6, 6, 0.2
    place = SlabPlace(0, 0, 2 * planes, 2 * planes)
    measured = np.zeros((2 * planes, 4, 5), np.complex64)
    measured[planes:] = turn
    volume = measured.copy()
    edges = Edges(weight, strength / (2 * weight))
    local = {"volume": volume, **Edges.begin(place, volume)}
    for _ in range(600):
        walk = edges.walk(local, None)
        for rows in (slice(0, 5), slice(5, 12)):
            pull, _ = edges.step(walk, rows, volume[rows.stop : rows.stop + 1] if rows.stop < 12 else None)
            volume[rows] += (measured[rows] - volume[rows] - weight * pull) / (1 + 12 * weight)
    moved = strength / (2 * planes)
    expected = np.zeros_like(measured)
    expected[:planes], expected[planes:] = turn * moved, turn * (1 - moved)
    np.testing.assert_allclose(volume, expected, atol=1e-3)


def test_penalties_follow_their_residuals(given: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    far, _ = solved(given, 20, penalty=300.0)
    monkeypatch.setattr(admm, "RATIO", np.inf)
    stuck, _ = solved(given, 20, penalty=300.0)
    assert far.losses[-1] < 0.2 * stuck.losses[-1]


@pytest.mark.parametrize(
    "options",
    [
        {"refine": ("volume", "shifts")},
        {"refine": ("probe",)},
        {"subsets": 2},
        {"inner": 0},
        {"iterations": 0},
        {"penalty": 0.0},
        {"edge_penalty": -1.0},
        {"probe_rate": 2.0},
    ],
)
def test_what_cannot_be_asked_for(given: Scene, options: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        JointADMM(model=given.model, layout=given.layout(), **options)


@pytest.mark.parametrize(
    ("options", "said"), [({"slices": 2}, "--slices"), ({"loss": "intensity"}, "--loss"), ({"subsets": 3}, "--subsets")]
)
def test_settings_say_what_does_not_go_together(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        JointSettings(scan="scan.h5", output="out.zarr", engine="admm", **options)


def test_intensities_have_no_parabola() -> None:
    given = scene(rows=20, width=16, frame=8, angles=3, loss="intensity")
    with pytest.raises(UserError, match="amplitude or poisson"):
        JointADMM(model=given.model, layout=given.layout())
