"""Adam: its steps written out, complex parameters kept complex, rows per frame, small scans against the truth."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dtomo import threads
from dtomo.distributed.sums import tree_sum
from dtomo.errors import UserError
from dtomo.ptycho.driver import run
from dtomo.ptycho.engines.adam import Adam
from dtomo.ptycho.frames import FrameBlock
from dtomo.ptycho.gauge import error
from dtomo.ptycho.regularisers import Constraints, PhaseOnly, Smoothness
from dtomo.windows import Rows
from tests.ptycho.scans import small_scan


@dataclasses.dataclass(frozen=True)
class Distance:
    """A model: Σ over frames |z − target|² of an object of one pixel."""

    target: complex = 1 + 2j
    exponential: bool = False

    def loss_and_gradient(self, parameters: Mapping[str, Any], block: FrameBlock, wanted: Iterable[str]) -> Any:
        off = parameters["object"] - np.complex64(self.target)
        loss = float((np.abs(off) ** 2).sum(dtype=float)) * len(block)
        return loss, len(block), {name: off * np.float32(len(block)) for name in wanted}


def _pixel(frames: int) -> dict[str, Any]:
    return {
        "object": np.zeros((1, 1, 1, 1), np.complex64),
        "probe": np.ones((1, 1, 1), np.complex64),
        "positions": np.zeros((frames, 2)),
    }


def _blocks(frames: int, parts: int) -> list[FrameBlock]:
    return [FrameBlock(index, np.zeros((len(index), 1, 1))) for index in np.array_split(np.arange(frames), parts)]


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_the_imaginary_part_of_a_summed_gradient(parts: int) -> None:
    engine = Adam(model=Distance(), wanted=("object",), batch=None, rates={"object": 0.1}, decay=0.985)  # type: ignore[arg-type]
    state = engine.begin(_pixel(6))
    whole = engine.evaluate(state, _blocks(6, 1)[0], None)[0]["gradients"]["object"]
    first = None
    for _ in range(500):
        sums = tree_sum(engine.evaluate(state, block, None)[0] for block in _blocks(6, parts))
        first = sums["gradients"]["object"] if first is None else first
        state = engine.update(state, sums)
    assert first is not None
    assert first.dtype == np.complex64
    assert first == pytest.approx(whole, rel=1e-6)
    assert first.imag == pytest.approx(-12)
    found = state["parameters"]["object"]
    assert found.dtype == np.complex64
    assert found.shape == (1, 1, 1, 1)
    assert complex(found[0, 0, 0, 0]) == pytest.approx(1 + 2j, abs=1e-3)


def test_steps_are_those_of_the_paper_with_one_second_moment_for_a_complex_number() -> None:
    random = np.random.default_rng(0)
    gradients = random.normal(size=(5, 4, 3)) + 1j * random.normal(size=(5, 4, 3))
    start = random.normal(size=(4, 3)) + 1j * random.normal(size=(4, 3))
    engine = Adam(model=Distance(), rates={"object": 0.03}, first=0.8, second=0.95, batch=None, decay=1)  # type: ignore[arg-type]
    parameters = {
        "object": start.copy()[None, None],
        "probe": np.ones((1, 2, 2), complex),
        "positions": np.zeros((7, 2)),
    }
    state = engine.begin(parameters)
    z, m, v = start.copy(), np.zeros_like(start), np.zeros(start.shape)
    for t, g in enumerate(gradients, 1):
        sums = {"loss": 0.0, "count": 1, "frames": 7, "gradients": {"object": g[None, None]}}
        state = engine.update(state, sums)
        m = 0.8 * m + 0.2 * g
        v = 0.95 * v + 0.05 * np.abs(g) ** 2
        z = z - 0.03 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-8)
        assert state["parameters"]["object"][0, 0] == pytest.approx(z, rel=1e-12)
    assert state["shared"]["epoch"] == 5


def test_the_first_step_has_the_length_of_the_rate_whichever_way_the_complex_plane_is_turned() -> None:
    moved = []
    for turn in (1, np.exp(0.7j)):
        engine = Adam(model=Distance(target=complex(turn * (1 + 2j))), wanted=("object",), rates={"object": 0.1})  # type: ignore[arg-type]
        state = engine.begin(_pixel(2))
        state = engine.update(state, engine.evaluate(state, _blocks(2, 1)[0], None)[0])
        moved.append(complex(state["parameters"]["object"][0, 0, 0, 0]) / turn)
    assert moved[0] == pytest.approx(0.1 * (1 + 2j) / abs(1 + 2j), rel=1e-5)
    assert moved[1] == pytest.approx(moved[0], rel=1e-5)


def test_rows_of_frames_that_are_not_in_the_batch_stay_and_each_has_its_own_first_step() -> None:
    engine = Adam(model=Distance(), wanted=("positions",), rates={"positions": 0.5}, batch=2, decay=1)  # type: ignore[arg-type]
    parameters = _pixel(4) | {"object": np.ones((1, 1, 30, 30), np.complex64), "positions": np.full((4, 2), 9.0)}
    state = engine.begin(parameters)
    for rows in ([0, 2], [0, 1]):
        gradient = Rows(np.array(rows), np.array([[1.0, -2.0], [-3.0, 0.0]]))
        state = engine.update(state, {"loss": 0.0, "count": 1, "frames": 2, "gradients": {"positions": gradient}})
    moved = state["parameters"]["positions"] - 9
    assert moved == pytest.approx(np.array([[-1, 1], [0.5, 0], [0.5, 0], [0, 0]]), abs=1e-6)


def test_complex_weights_of_frames_move_by_the_rate_against_their_gradients() -> None:
    """One second moment, of the modulus, also for rows of complex numbers."""
    engine = Adam(model=Distance(), wanted=("probe_weights",), rates={"probe_weights": 0.1}, batch=2, decay=1)  # type: ignore[arg-type]
    weights = np.zeros((3, 2), np.complex64)
    parameters = _pixel(3) | {"probe_weights": weights, "variable_probe": np.ones((2, 1, 1, 1), np.complex64)}
    values = np.array([[3 + 4j, 2j], [-5, 1 - 1j]], np.complex64)
    gradient = Rows(np.array([2, 0]), values)
    state = engine.begin(parameters)
    state = engine.update(state, {"loss": 0.0, "count": 1, "frames": 2, "gradients": {"probe_weights": gradient}})
    moved = state["parameters"]["probe_weights"]
    assert moved.dtype == np.complex64
    assert moved[[2, 0]] == pytest.approx(-0.1 * values / np.abs(values), rel=1e-5)
    assert not moved[1].any()


def test_positions_stay_on_the_object() -> None:
    engine = Adam(model=Distance(), wanted=("positions",), rates={"positions": 5.0})  # type: ignore[arg-type]
    parameters = _pixel(2) | {"object": np.ones((1, 1, 10, 10), np.complex64), "positions": np.array([[1.0, 8.0]] * 2)}
    gradient = Rows(np.arange(2), np.array([[1.0, -1.0], [-1.0, 1.0]]))
    sums = {"loss": 0.0, "count": 1, "frames": 2, "gradients": {"positions": gradient}}
    found = engine.update(engine.begin(parameters), sums)["parameters"]["positions"]
    assert found == pytest.approx(np.array([[0, 9], [6, 3]]), abs=1e-6)


def test_real_numbers_alone_and_tables_of_numbers() -> None:
    engine = Adam(model=Distance(), wanted=("distance", "background"), batch=None)  # type: ignore[arg-type]
    parameters = _pixel(3) | {"distance": np.array(0.02), "background": np.full((2, 2), 3.0, np.float32)}
    state = engine.begin(parameters)
    gradients = {"distance": -4.0, "background": np.full((2, 2), 1e-3, np.float32)}
    state = engine.update(state, {"loss": 0.0, "count": 1, "frames": 3, "gradients": gradients})
    assert float(state["parameters"]["distance"]) == pytest.approx(0.02 * 1.001)
    assert state["parameters"]["background"] == pytest.approx(3 * 0.99, rel=1e-4)
    assert state["parameters"]["background"].dtype == np.float32


def test_what_starts_later_stays_until_then() -> None:
    scan = small_scan(side=4)
    wanted = ("object", "probe", "positions")
    engine = Adam(model=scan.model, wanted=wanted, start={"probe": 1, "positions": 2}, batch=8)
    seen: list[dict[str, Any]] = []
    run(engine, scan.source, scan.guess, 3, on_epoch=lambda report: seen.append(report.parameters()))
    same = [[np.array_equal(found[name], scan.guess[name]) for name in wanted] for found in seen]
    assert same == [[False, True, True], [False, False, True], [False, False, False]]


@pytest.mark.parametrize("photons", [None, 1e5], ids=["exact", "noise"])
def test_a_small_scan_against_the_truth(photons: float | None) -> None:
    scan = small_scan(photons=photons)
    found = run(
        Adam(model=scan.model, batch=4, rates={"object": 0.1, "probe": 0.1}, decay=0.97), scan.source, scan.guess, 100
    )
    assert found.losses[-1] < found.losses[0] / 100
    image = found.parameters["object"][0, 0]
    assert image.dtype == np.complex64
    assert error(image, scan.truth["object"][0, 0], scan.region) < 0.12


def test_bits_do_not_depend_on_threads() -> None:
    scan = small_scan(side=4, modes=2)
    engine = Adam(model=scan.model, batch=8, wanted=("object", "probe", "positions"))
    results = []
    before = threads.get_threads()
    try:
        for number in (1, 3):
            threads.set_threads(number)
            results.append(run(engine, scan.source, scan.guess, 2).parameters)
    finally:
        threads.set_threads(before)
    for name, value in results[0].items():
        assert value.tobytes() == results[1][name].tobytes()


def test_constraints_are_kept() -> None:
    scan = small_scan(side=4)
    engine = Adam(model=scan.model, constraints=Constraints((Smoothness(10.0),), (PhaseOnly(),)))
    image = run(engine, scan.source, scan.guess, 2).parameters["object"]
    assert np.abs(image) == pytest.approx(1, abs=1e-6)
    free = run(dataclasses.replace(engine, constraints=Constraints()), scan.source, scan.guess, 2).parameters["object"]
    assert _roughness(image) < _roughness(free)


def _roughness(image: NDArray[Any]) -> float:
    return float((np.abs(np.diff(image, axis=-1)) ** 2).sum())


def test_what_can_be_cut_into_tiles() -> None:
    scan = small_scan(side=4)
    assert Adam(model=scan.model).tiled
    assert not Adam(model=scan.model, constraints=Constraints((Smoothness(1.0),))).tiled
    assert not Adam(model=scan.model, wanted=("object", "positions")).tiled


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rates": {"sample": 0.1}}, "sample is not a parameter that has a rate"),
        ({"rates": {"object": -1.0}}, "rate of object"),
        ({"wanted": ("object", "lens")}, "lens is not a parameter that can be refined"),
        ({"wanted": ()}, "nothing is to be refined"),
        ({"start": {"positions": 3}}, "positions is not a parameter that is refined"),
        ({"first": 1.0}, "first moment"),
        ({"decay": 0.0}, "decay is above 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Adam(model=Distance(), **given)  # type: ignore[arg-type]


def test_what_is_refined_needs_a_first_guess() -> None:
    engine = Adam(model=Distance(), wanted=("object", "background"))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="background is to be refined but has no first guess"):
        engine.begin(_pixel(1))
