"""What ePIE, LSQ-ML and the projections have in common: bits, masks, complex sums, restarts, all else refined."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtomo import threads
from dtomo.io.checkpoints import Checkpoints, Schedule
from dtomo.io.sources import ArraySource
from dtomo.ptycho.driver import run
from dtomo.ptycho.engine import Engine
from dtomo.ptycho.engines.epie import Epie, Rpie
from dtomo.ptycho.engines.lsqml import LeastSquaresML
from dtomo.ptycho.engines.projections import RAAR, DifferenceMap
from dtomo.ptycho.gauge import position_error
from tests.ptycho.scans import SmallScan, small_scan
from tests.ptycho.solvers import same

ENGINES: list[Any] = [
    pytest.param(Epie, {}, id="epie"),
    pytest.param(Rpie, {"batch": 12}, id="rpie"),
    pytest.param(LeastSquaresML, {"batch": 12}, id="lsqml"),
    pytest.param(DifferenceMap, {}, id="dm"),
    pytest.param(RAAR, {}, id="raar"),
]


@pytest.fixture(scope="module")
def scan() -> SmallScan:
    return small_scan(size=24, side=5, step=3.0, modes=2)


@pytest.mark.parametrize(("kind", "options"), ENGINES)
def test_bits_do_not_depend_on_threads(scan: SmallScan, kind: type[Engine], options: dict[str, Any]) -> None:
    before = threads.get_threads()
    found = []
    try:
        for count in (1, 2, 3):
            threads.set_threads(count)
            found.append(run(kind(model=scan.model, **options), scan.source, scan.guess, 2).parameters)
    finally:
        threads.set_threads(before)
    assert same(found[0], found[1])
    assert same(found[0], found[2])


@pytest.mark.parametrize(("kind", "options"), ENGINES)
def test_what_is_under_the_mask_is_never_looked_at(
    scan: SmallScan, kind: type[Engine], options: dict[str, Any]
) -> None:
    """C17: not a bit of the result depends on it; and the mask matters."""
    mask = np.ones(scan.model.frame_shape, bool)
    mask[3:5, :], mask[:, 20] = False, False
    model = dataclasses.replace(scan.model, mask=mask)
    bad = ~np.fft.fftshift(mask)
    found = []
    for value in (0.0, np.nan, -1.0, 4294967295.0):
        frames = scan.source.read().copy()
        frames[:, bad] = value
        found.append(run(kind(model=model, **options), ArraySource(frames), scan.guess, 2).parameters)
    assert all(same(found[0], other) for other in found[1:])
    assert np.isfinite(found[0]["object"]).all()
    whole = run(kind(model=scan.model, **options), scan.source, scan.guess, 2).parameters
    assert not same(found[0], whole)


@pytest.mark.parametrize(("kind", "options"), ENGINES)
def test_c16_an_imaginary_part_comes_back(kind: type[Engine], options: dict[str, Any]) -> None:
    """C16: from a flat, real object and a real probe to the phases of the truth."""
    scan = small_scan(size=24, side=5, step=3.0)
    guess = {**scan.guess, "probe": scan.truth["probe"]}
    result = run(kind(model=scan.model, **options, wanted=("object",)), scan.source, guess, 25).parameters["object"]
    assert result.dtype == np.complex64
    assert result.shape == scan.truth["object"].shape
    inside = np.s_[0, 0, 16:-16, 16:-16]
    imaginary, expected = result[inside].imag.ravel(), scan.truth["object"][inside].imag.ravel()
    assert np.corrcoef(imaginary, expected)[0, 1] > 0.9


@pytest.mark.parametrize(("kind", "options"), ENGINES)
def test_a_run_goes_on_from_a_checkpoint(
    tmp_path: Path, scan: SmallScan, kind: type[Engine], options: dict[str, Any]
) -> None:
    engine = kind(model=scan.model, **options)
    whole = run(engine, scan.source, scan.guess, 4)
    checkpoints = Checkpoints(tmp_path / "run", schedule=Schedule(iterations=1))
    run(engine, scan.source, scan.guess, 4, checkpoints=checkpoints, on_epoch=lambda report: report.epoch == 2)
    again = Checkpoints(tmp_path / "run", schedule=Schedule(iterations=1))
    resumed = run(engine, scan.source, scan.guess, 4, checkpoints=again)
    assert same(whole.parameters, resumed.parameters)
    assert resumed.history.tolist() == whole.history.tolist()


@pytest.mark.parametrize(
    ("kind", "options", "most"),
    [(Epie, {}, 0.6), (Rpie, {"batch": 16}, 0.4), (LeastSquaresML, {"batch": 16}, 0.4)],
)
def test_positions_come_back(kind: type[Engine], options: dict[str, Any], most: float) -> None:
    scan = small_scan(side=8, step=4.0)
    off = np.random.default_rng(3).normal(0, 0.8, scan.guess["positions"].shape)
    guess = {**scan.guess, "positions": scan.guess["positions"] + off}
    engine: Any = kind(model=scan.model, wanted=("object", "probe", "positions"), start={"positions": 3}, **options)
    found = run(engine, scan.source, guess, 30).parameters["positions"]
    before, after = (position_error(p, scan.truth["positions"]) for p in (guess["positions"], found))
    assert after < most * before


@pytest.mark.parametrize(("kind", "options"), [(Rpie, {"batch": 12}), (LeastSquaresML, {"batch": 12})])
def test_background_and_scale_come_back(scan: SmallScan, kind: type[Engine], options: dict[str, Any]) -> None:
    numbers = np.arange(25)
    truth = {
        **scan.truth,
        "background": np.full(scan.model.frame_shape, 4.0, np.float32),
        "scale": np.random.default_rng(0).uniform(0.8, 1.2, 25).astype(np.float32),
    }
    frames = np.fft.fftshift(scan.model.intensities(truth, numbers), (-2, -1))
    guess = {
        **scan.guess,
        "background": np.ones(scan.model.frame_shape, np.float32),
        "scale": np.ones(25, np.float32),
    }
    engine: Any = kind(model=scan.model, wanted=("object", "probe", "background", "scale"), **options)
    held: Any = kind(model=scan.model, **options)
    refined, kept = (run(e, ArraySource(frames), guess, 30) for e in (engine, held))
    assert kept.parameters["background"].tobytes() == guess["background"].tobytes()
    assert refined.losses[-1] < 0.15 * kept.losses[-1]
    assert np.median(refined.parameters["background"]) == pytest.approx(4.0, rel=0.25)
    assert np.corrcoef(refined.parameters["scale"], truth["scale"])[0, 1] > 0.9
