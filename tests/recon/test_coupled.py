"""Dask arrays in geometries whose rays cross slabs: the same solution, wherever the slabs are."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray

from dtomo import recon
from dtomo.algorithms import Denoiser, Discrepancy, TotalVariation
from dtomo.distributed import graph
from dtomo.distributed.clusters import TRIES, Resources, connect
from dtomo.distributed.crews import run_crews
from dtomo.distributed.queue import TaskFailed
from dtomo.errors import StoppedError, UserError
from dtomo.geometry import ParallelBeam, cone_beam
from dtomo.operators import ParallelProjector, RayProjector
from tests import laws

CONE = cone_beam(
    np.arange(0, 360, 15), 20, 18, source_axis=60, source_detector=90, pixel=1.6, shape=(13, 12, 12), voxel=1.0
)
DATA = RayProjector(CONE).forward(np.abs(laws.draw(CONE.shape)))
BEAM = ParallelBeam(np.arange(0, 180, 9.0), 16)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with connect(Resources(2, 1, 1_500_000_000, dashboard=None)) as found:
        yield found


def largest(found: Any, expected: NDArray[Any]) -> float:
    """Difference, as part of the largest value."""
    return float(np.abs(np.asarray(found) - expected).max() / np.abs(expected).max())


def test_slabs_on_workers_are_the_whole(client: Any) -> None:
    weights = 0.5 + np.abs(laws.draw((1, 20, 18)))
    mask = np.ones((13, 12, 12), bool)
    mask[4:] = np.abs(laws.draw((9, 12, 12))) > 0.1
    options: dict[str, Any] = {"iterations": 6, "lower": 0.0, "weights": weights, "mask": mask}
    options |= {"stop": Discrepancy(np.full((20, 1), 1e-6)), "initial": np.abs(laws.draw((13, 12, 12)))}
    whole = recon.sirt(DATA, CONE, **options)
    blocks = da.from_array(DATA, chunks=(7, 9, 18))
    given = options | {"initial": da.from_array(options["initial"], chunks=5)}
    found = recon.sirt(blocks, CONE, slabs=3, **given)
    assert found.shape == CONE.shape
    assert found.dtype == np.float32
    assert [len(c) for c in found.chunks] == [3, 1, 1]
    assert largest(found.compute(), whole) <= 1e-5
    assert np.array_equal(found[5:7, 3].compute(), found.compute()[5:7, 3])
    before = len(graph.workers_in_order(client))
    assert recon.sirt(blocks, CONE, iterations=1).numblocks[0] == before


def test_total_variation_joins_slabs_of_a_parallel_beam(client: Any) -> None:
    body = np.abs(laws.draw((9, 16, 16)))
    data = ParallelProjector(BEAM, 9).forward(body)
    blocks = da.from_array(data, chunks=(20, 4, 16))
    whole = recon.tv(data, BEAM, strength=0.5, iterations=8, spacing=(2.0, 1.0, 1.0))
    found = recon.tv(blocks, BEAM, strength=0.5, iterations=8, spacing=(2.0, 1.0, 1.0), slabs=4)
    assert largest(found.compute(), whole) <= 1e-5
    prior = TotalVariation(0.5)
    found = recon.fista(blocks, BEAM, prior=prior, iterations=5)
    whole = recon.fista(data, BEAM, prior=prior, iterations=5)
    assert largest(found.compute(), whole) <= 1e-3  # the step of each slice's curvature, or of all
    with pytest.raises(UserError, match="joins all slices"):
        recon.fista(blocks, BEAM, prior=Denoiser(lambda x: x))


def test_without_a_cluster_it_is_a_task() -> None:
    blocks = da.from_array(DATA, chunks=(7, 9, 18))
    with dask.config.set(scheduler="synchronous"):
        found = recon.cgls(blocks, CONE, iterations=3).compute()
    assert np.array_equal(found, recon.cgls(DATA, CONE, iterations=3))


def test_what_slabs_cannot_have_is_refused(client: Any) -> None:
    blocks = da.from_array(DATA, chunks=(7, 9, 18))
    for options, what in (
        ({"coarse": (2,)}, "initial"),
        ({"checkpoints": object()}, "kept by dtomo.recon.run"),
        ({"slabs": 14}, "from 1 to that of the slices, 13"),
        ({"lower": 2.0, "upper": 1.0}, "nothing between them"),
    ):
        with pytest.raises(UserError, match=what):
            recon.sirt(blocks, CONE, iterations=1, **options)


def _dies(party: Any, mark: Path, own: None) -> tuple[int, int]:
    """Sums until the end; the process of party 2 dies in an iteration, if that has not happened often enough."""
    total = 0
    for number in range(5):
        if party.number == 2 and number == 3 and len(list(mark.glob("death-*"))) < int((mark / "deaths").read_text()):
            (mark / f"death-{len(list(mark.glob('death-*')))}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        total += int(party.total(np.array([1.0 + party.number]))[0])
        party.report((number, total))
    return party.number, total


@pytest.mark.parametrize("deaths", [1, 99])
def test_killed_workers(client: Any, tmp_path: Path, deaths: int) -> None:
    (tmp_path / "deaths").write_text(str(deaths))
    reports: list[Any] = []
    if deaths > TRIES:
        with pytest.raises(StoppedError, match="without getting further"):
            run_crews(client, _dies, tmp_path, 4, on_report=reports.append)
        assert len(list(tmp_path.glob("death-*"))) in (TRIES, TRIES + 1)  # reports may come before a death or after
        return
    found = client.gather(run_crews(client, _dies, tmp_path, 4, on_report=reports.append))
    assert found == [(number, 50) for number in range(4)]
    assert (tmp_path / "death-0").exists()
    assert max(reports) == (4, 50)


def _raises(party: Any, shared: None, own: int) -> None:
    if own == 3:
        raise ValueError("bad row")
    party.receive(3)


def test_what_a_party_raises_ends_the_run(client: Any) -> None:
    with pytest.raises(TaskFailed, match="bad row"):
        run_crews(client, _raises, None, 4, own=lambda homes: range(4))


def test_a_run_is_a_task_for_each_worker(client: Any) -> None:
    def tasks() -> int:
        return client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.transition_counter)

    blocks = da.from_array(DATA, chunks=(24, 20, 18)).persist()
    counts = []
    for iterations in (1, 1, 41):
        before = tasks()
        recon.cgls(blocks, CONE, iterations=iterations, slabs=4)
        counts.append(tasks() - before)
    # reports of progress, by time, are a few; an iteration of 4 parties would be 4 tasks at least, 160 in all
    assert abs(counts[2] - counts[1]) <= 80, "the scheduler sees iterations"
