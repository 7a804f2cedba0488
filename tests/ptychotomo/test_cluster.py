"""Slabs on workers: the bits of one process, whatever is lost, and nothing moves but borders and sums."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from dtomo.distributed.graph import bytes_sent
from dtomo.ptychotomo.constraints import VolumeConstraints
from dtomo.ptychotomo.driver import JointProblem, run
from dtomo.ptychotomo.engine import SlabPlace
from dtomo.ptychotomo.engines.adam import JointAdam
from tests.ptychotomo.scenes import Scene, scene

EPOCHS = 4
WIDTH = 16


def zeros(place: SlabPlace) -> Any:
    return np.zeros((place.height, WIDTH, WIDTH), np.complex64)


@pytest.fixture(scope="module")
def given() -> Scene:
    return scene(rows=60, width=WIDTH, frame=10, angles=6, step=5, extra=("shifts", "background"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=5, threads_per_worker=1, processes=True, dashboard_address=None) as running:
        yield running


def problem(given: Scene, slab_memory: int | None = None) -> JointProblem:
    engine = JointAdam(
        model=given.model,
        refine=("volume", "probe", "shifts"),
        subsets=2,
        constraints=VolumeConstraints(total_variation=0.01, signs=True),
        reach=2,
    )
    return JointProblem(engine, given.source, given.layout(12, 2), zeros, slab_memory=slab_memory)


@pytest.fixture(scope="module")
def alone(given: Scene) -> Any:
    return run(problem(given), given.parameters, EPOCHS)


def same(found: Any, expected: Any) -> None:
    result, slabs = found
    assert result.history.tobytes() == expected[0].history.tobytes()
    for name, value in expected[0].parameters.items():
        assert np.asarray(result.parameters[name]).tobytes() == np.asarray(value).tobytes(), name
    for one, other in zip(slabs, expected[1], strict=True):
        assert np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_the_bits_are_those_of_one_process(given: Scene, alone: Any, cluster: LocalCluster, workers: int) -> None:
    cluster.scale(workers)
    with Client(cluster) as client:
        client.wait_for_workers(workers, timeout=60)
        while len(client.scheduler_info(n_workers=-1)["workers"]) > workers:
            client.sync(client.scheduler.identity)
        same(run(problem(given), given.parameters, EPOCHS, client=client), alone)


def test_slabs_in_files_have_the_same_bits_and_leave_nothing(given: Scene, alone: Any, cluster: LocalCluster) -> None:
    cluster.scale(2)
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        same(run(problem(given, slab_memory=0), given.parameters, EPOCHS, client=client), alone)
        left = client.run(lambda dask_worker: list(Path(dask_worker.local_directory).glob("slabs-*")))
    assert not any(left.values())


def test_a_resumed_run_has_the_same_bits(given: Scene, alone: Any, tmp_path: Path) -> None:
    run(problem(given), given.parameters, 2, folder=tmp_path, every=1)
    same(run(problem(given), given.parameters, EPOCHS, folder=tmp_path, every=1), alone)


class Killer:
    """Kills a worker once, in the middle of an epoch's frames."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "killed"

    def __call__(self, frames: Any) -> Any:
        from dtomo.ptycho.frames import to_model_order

        if (self.mark.parent / "go").exists() and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return to_model_order(frames)


def test_a_killed_worker_costs_epochs_since_the_last_checkpoint_and_no_bits(
    given: Scene, alone: Any, cluster: LocalCluster, tmp_path: Path
) -> None:
    import dataclasses

    killed = dataclasses.replace(problem(given), arrange=Killer(tmp_path), frame_memory=0)
    cluster.scale(2)
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)

        def arm(report: Any) -> None:
            if report.epoch == 2:
                (tmp_path / "go").touch()

        found = run(killed, given.parameters, EPOCHS, client=client, folder=tmp_path / "states", every=1, on_epoch=arm)
    assert (tmp_path / "killed").exists()
    assert found[0].setbacks >= 1
    same(found, alone)


def test_only_borders_and_sums_move(given: Scene, cluster: LocalCluster) -> None:
    cluster.scale(2)
    asked = problem(given)
    layout, model = asked.layout, given.model
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        sent = []
        run(
            asked, given.parameters, 3, client=client, finish=lambda place, rows: None,
            on_epoch=lambda report: sent.append(bytes_sent(client)),
        )  # fmt: skip
    rows = 2 * (layout.above + layout.below)  # images out, derivatives back, of the one border between the workers
    images = model.angles * rows * model.image_shape[1] * 8
    planes = 2 * 2 * WIDTH * WIDTH * 8  # for each subset
    shared = 2 * 4 * sum(np.asarray(value).nbytes for value in given.parameters.values())
    a_volume = int(np.prod(model.volume_shape)) * 8
    moved = sent[2] - sent[1]
    assert images <= moved <= images + planes + 3 * shared + 40_000
    assert moved < a_volume
