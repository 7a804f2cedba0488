"""Positions brought back: by gradients, by trial, and kept within a range."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.io.checkpoints import Checkpoints, Schedule
from dtomo.ptycho.driver import run
from dtomo.ptycho.engines.adam import Adam
from dtomo.ptycho.engines.conjugate import ConjugateGradient
from dtomo.ptycho.engines.searching import Search
from dtomo.ptycho.frames import FrameBlock, to_model_order
from dtomo.ptycho.gauge import error, position_error
from dtomo.windows import Rows
from tests.ptycho.scans import SmallScan, small_scan

WANTED = ("object", "probe", "positions")


def _displaced(scan: SmallScan, rms: float, seed: int = 2) -> dict[str, Any]:
    """First guesses with random errors of the positions, of mean zero."""
    errors = np.random.default_rng(seed).normal(size=scan.truth["positions"].shape)
    errors -= errors.mean(axis=0)
    errors *= rms / np.sqrt((errors**2).sum(axis=1).mean())
    return scan.guess | {"positions": scan.truth["positions"] + errors}


def _block(scan: SmallScan, frames: np.ndarray[Any, Any] | None = None) -> FrameBlock:
    indices = np.arange(len(scan.truth["positions"])) if frames is None else frames
    return FrameBlock(indices, to_model_order(scan.source.array)[indices])


@pytest.mark.parametrize("photons", [None, 1e5], ids=["exact", "noise"])
@pytest.mark.parametrize("engine", ["cg", "adam"])
def test_errors_of_positions_are_brought_back(engine: str, photons: float | None) -> None:
    scan = small_scan(32, 8, 4.0, photons=photons)
    guess = _displaced(scan, 1.5)
    common: dict[str, Any] = {"model": scan.model, "wanted": WANTED, "start": {"positions": 5}}
    solver = ConjugateGradient(**common) if engine == "cg" else Adam(batch=8, **common)
    found = run(solver, scan.source, guess, 45).parameters
    assert position_error(guess["positions"], scan.truth["positions"]) == pytest.approx(1.5)
    assert position_error(found["positions"], scan.truth["positions"]) < 0.2
    assert position_error(found["positions"], scan.truth["positions"], affine=True) < 0.1
    assert error(found["object"][0, 0], scan.truth["object"][0, 0], scan.region) < 0.15


def test_trials_find_what_is_nearer() -> None:
    scan = small_scan(32, 4, 5.0)
    displaced = scan.truth | {"positions": scan.truth["positions"].copy()}
    displaced["positions"][5] += [4.0, -2.0]
    search = Search(trials=60, reach=6.0, epochs=4)
    moves = search.moves(scan.model, displaced, _block(scan), 0).values
    after = displaced["positions"] + moves - scan.truth["positions"]
    assert np.hypot(*after[5]) < 1.5
    assert not np.delete(moves, 5, axis=0).any()


def test_trials_become_shorter_and_depend_on_frame_and_epoch_alone() -> None:
    scan = small_scan(32, 4, 5.0, photons=1e5)
    guess = _displaced(scan, 3.0)
    search = Search(trials=3, reach=4.0, epochs=5)
    whole = search.moves(scan.model, guess, _block(scan), 1).values
    parts = [search.moves(scan.model, guess, _block(scan, part), 1) for part in np.split(np.arange(16), 4)]
    assert np.array_equal(np.concatenate([part.values for part in parts]), whole)
    assert 0 < np.hypot(*whole.T).max() <= 4 * 0.8
    late = search.moves(scan.model, guess, _block(scan), 4).values
    assert 0 < np.hypot(*late.T).max() <= 4 * 0.2
    assert [search.on(since) for since in (-1, 0, 4, 5)] == [False, True, True, False]
    assert not Search().on(0)


def test_what_is_masked_or_saturated_is_not_looked_at() -> None:
    scan = small_scan(32, 3, 5.0)
    mask = np.ones((32, 32), bool)
    mask[3:6] = False
    model = dataclasses.replace(scan.model, mask=mask, saturation=float(scan.source.array.max()) / 2)
    guess, block = _displaced(scan, 3.0), _block(scan)
    changed = block.intensities.copy()
    changed[:, 3:6] = -1e9
    changed[changed >= model.saturation] = 1e12
    search = Search(trials=4)
    expected = search.moves(model, guess, block, 0).values
    assert expected.any()
    assert np.array_equal(search.moves(model, guess, FrameBlock(block.indices, changed), 0).values, expected)


def test_adam_takes_the_moves_and_forgets_where_a_frame_was_going() -> None:
    scan = small_scan(32, 2, 5.0)
    engine = Adam(model=scan.model, wanted=("positions",), search_trials=1, rates={"positions": 0.1})
    state = engine.begin({name: value.copy() for name, value in scan.truth.items()})
    slopes = Rows(np.arange(4), np.ones((4, 2)))
    moves = Rows(np.arange(4), np.array([[0.0, 0.0], [2.0, -1.0], [0.0, 0.0], [0.0, 0.0]]))
    sums = {"loss": 0.0, "count": 1, "frames": 4, "gradients": {"positions": slopes}, "moves": moves}
    state = engine.update(state, sums)
    moved = state["parameters"]["positions"] - scan.truth["positions"]
    assert moved == pytest.approx(moves.values - 0.1, abs=1e-6)
    assert state["moments"]["positions"]["first"].any(axis=1).tolist() == [True, False, True, True]


def test_trials_help_where_gradients_stick() -> None:
    scan = small_scan(32, 8, 4.0)
    guess = _displaced(scan, 3.0)
    solver = ConjugateGradient(model=scan.model, wanted=WANTED, start={"positions": 2})
    stuck = run(solver, scan.source, guess, 35)
    searching = dataclasses.replace(solver, search_trials=6, search_reach=4.0, search_epochs=35)
    helped = run(searching, scan.source, guess, 35)
    assert helped.losses[-1] < 0.8 * stuck.losses[-1]


@pytest.mark.parametrize("engine", [Adam, ConjugateGradient])
def test_positions_stay_within_their_range(engine: Any) -> None:
    scan = small_scan(32, 4, 5.0)
    guess = _displaced(scan, 2.0)
    found = run(engine(model=scan.model, wanted=WANTED, position_range=0.3), scan.source, guess, 8).parameters
    moved = np.hypot(*(found["positions"] - guess["positions"]).T)
    assert moved.max() == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"search_trials": 2, "wanted": ("object",)}, "does not search"),
        ({"search_trials": -1}, "trials from 0"),
        ({"search_reach": 0.0}, "reach above 0"),
        ({"position_range": 0.0}, "range of positions"),
    ],
)
def test_settings_that_mean_nothing_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ConjugateGradient(model=small_scan(32, 2, 5.0).model, **{"wanted": WANTED, **given})


@pytest.mark.parametrize("engine", [Adam, ConjugateGradient])
def test_runs_go_on_from_checkpoints_with_the_same_bits(engine: Any, tmp_path: Path) -> None:
    scan = small_scan(32, 4, 5.0, photons=1e5)
    guess = _displaced(scan, 1.0)
    solver = engine(model=scan.model, wanted=WANTED, start={"positions": 1}, search_trials=2, position_range=3.0)
    whole = run(solver, scan.source, guess, 5)
    saved = Checkpoints(tmp_path, schedule=Schedule(iterations=1))
    run(solver, scan.source, guess, 5, checkpoints=saved, on_epoch=lambda report: report.epoch == 3)
    seen: list[int] = []
    resumed = run(
        solver,
        scan.source,
        guess,
        5,
        checkpoints=Checkpoints(tmp_path),
        on_epoch=lambda report: seen.append(report.epoch),
    )
    assert seen == [4, 5]
    assert np.array_equal(resumed.history, whole.history)
    for name, value in whole.parameters.items():
        assert value.tobytes() == resumed.parameters[name].tobytes()
