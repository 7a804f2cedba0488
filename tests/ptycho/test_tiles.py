"""An object in bands on the workers gives the bits of any other number of workers, and the values of the whole."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtomo.distributed import graph
from dtomo.distributed.clusters import Resources, connect
from dtomo.errors import UserError
from dtomo.io.checkpoints import Checkpoints, Schedule
from dtomo.ptycho import tiles
from dtomo.ptycho.blocks import Blocks, cut_frames
from dtomo.ptycho.driver import run
from dtomo.ptycho.engines.adam import Adam
from dtomo.ptycho.model import PtychoModel
from dtomo.ptycho.tiles import Bands, cut_bands, with_windows, without_windows
from dtomo.windows import Window
from tests.ptycho.solvers import SIZE, Descent, Passes, same, scan

TILE = 20
ENGINES = {
    "whole": Descent(tiled=True),
    "batches": Descent(tiled=True, batch=30),
    "two passes": Passes(tiled=True, passes=2, batch=50),
}


@pytest.fixture(scope="module")
def data() -> Any:
    return scan(12)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with connect(Resources(3, 1, 1_000_000_000, dashboard=None)) as found:
        yield found


def test_bands_hold_all_rows_and_each_frame_has_its_own() -> None:
    bands = cut_bands(77, SIZE, TILE)
    assert bands == Bands((0, 20, 40, 77), SIZE + 1)
    assert len(bands) == 3
    assert bands.rows(2) == slice(40, 77)
    positions = np.array([[0, 0], [19.99, 5], [20, 0], [60.5, 0], [-0.2, 0]])
    assert bands.of_frames(positions).tolist() == [0, 0, 1, 2, 0]
    assert cut_bands(10, 8, 30) == Bands((0, 10), 9)
    with pytest.raises(UserError, match="17 rows; got 16"):
        cut_bands(77, SIZE, 16)


def test_windows_are_taken_out_of_sums_and_put_back() -> None:
    window = Window(np.ones((2, 2)), (0, 0))
    sums = {"loss": 1.0, "gradients": {"object": window, "probe": 2.0}}
    rest, windows = without_windows(sums)
    assert rest == {"loss": 1.0, "gradients": {"probe": 2.0}}
    assert windows == {("gradients", "object"): window}
    assert with_windows(rest, windows) == sums
    assert rest == {"loss": 1.0, "gradients": {"probe": 2.0}}


@pytest.mark.parametrize("name", ENGINES)
def test_tiles_give_the_whole_and_the_same_bits_on_any_number_of_workers(
    client: Any, data: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, parameters = data
    whole = run(ENGINES[name], source, parameters, 3) if name == "whole" else None
    every, found = graph.workers_in_order, []
    for count in (1, 2, 3):
        monkeypatch.setattr(graph, "workers_in_order", lambda client, count=count: every(client)[:count])
        found.append(run(ENGINES[name], source, parameters, 3, client=client, tile=TILE))
    for other in found[1:]:
        assert same(other.parameters, found[0].parameters)
        assert np.array_equal(other.history, found[0].history)
    assert found[0].losses[-1] < found[0].losses[0]
    if whole is not None:
        assert found[0].parameters["object"].shape == parameters["object"].shape
        for part in ("object", "probe", "scale"):
            scale = np.abs(whole.parameters[part]).max()
            np.testing.assert_allclose(found[0].parameters[part], whole.parameters[part], rtol=0, atol=1e-5 * scale)
        np.testing.assert_allclose(found[0].history, whole.history, rtol=1e-5)
    assert not any(client.run(_held).values())


def test_adam_on_the_model_of_ptychography_in_tiles_gives_what_it_gives_on_the_whole(client: Any, data: Any) -> None:
    source, guesses = data
    parameters = {name: guesses[name] for name in ("positions", "scale")}
    parameters |= {"object": guesses["object"][None, None], "probe": guesses["probe"][None]}
    parameters["positions"] = parameters["positions"] + np.random.default_rng(0).uniform(-0.4, 0.4, (144, 2))
    engine = Adam(model=PtychoModel((SIZE, SIZE)), batch=48, wanted=("object", "probe", "scale"), epsilon=1e-3)
    whole = run(engine, source, parameters, 2)
    found = run(engine, source, parameters, 2, client=client, tile=TILE)
    for name, value in whole.parameters.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(found.parameters[name], value, rtol=0, atol=1e-5 * scale)
    np.testing.assert_allclose(found.history, whole.history, rtol=1e-5)


def test_some_of_the_frames_in_blocks_of_their_own_can_be_taken(client: Any, data: Any) -> None:
    source, parameters = data
    half = parameters["positions"][::2]
    cut = cut_frames(half, (SIZE, SIZE), block=13)
    blocks = Blocks(tuple(2 * frames for frames in cut.frames), cut.batches)
    whole = run(ENGINES["whole"], source, parameters, 2, blocks=blocks)
    found = run(ENGINES["whole"], source, parameters, 2, blocks=blocks, client=client, tile=TILE)
    np.testing.assert_allclose(found.parameters["object"], whole.parameters["object"], rtol=0, atol=1e-5)
    assert found.history[0, 1] == 72 * SIZE * SIZE


def _held() -> list[str]:
    return list(tiles._RUNS)


def test_a_killed_worker_and_a_checkpoint_cost_no_bits(client: Any, data: Any, tmp_path: Path) -> None:
    source, parameters = data
    expected = run(ENGINES["whole"], source, parameters, 5, client=client, tile=TILE)
    harmful = dataclasses.replace(ENGINES["whole"], harm=tmp_path / "harm", harm_at=3)
    checkpoints = Checkpoints(tmp_path / "state", schedule=Schedule(iterations=2))
    first = run(harmful, source, parameters, 4, client=client, tile=TILE, checkpoints=checkpoints)
    assert first.setbacks == 1
    seen: list[int] = []
    found = run(
        ENGINES["whole"], source, parameters, 5, client=client, tile=TILE, checkpoints=checkpoints,
        on_epoch=lambda report: seen.append(report.epoch),
    )  # fmt: skip
    assert seen == [3, 4, 5]
    for other in ({}, {"client": client}, {"client": client, "tile": TILE + 1}):
        with pytest.raises(UserError, match="in other tiles"):
            run(ENGINES["whole"], source, parameters, 5, checkpoints=checkpoints, **other)
    assert same(found.parameters, expected.parameters)


def test_what_tiles_cannot_do_is_refused(client: Any, data: Any) -> None:
    source, parameters = data
    for engine in (Descent(tiled=True, keeps=True), Descent()):
        with pytest.raises(UserError, match="Descent with these options needs the whole object"):
            run(engine, source, parameters, 1, client=client, tile=TILE)
    with pytest.raises(UserError, match="workers of a cluster"):
        run(Descent(), source, parameters, 1, tile=TILE)
