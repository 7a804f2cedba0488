"""Iterations survive dead workers with the same bits; checkpoints are new roots; a poisonous slab is named."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dtomo import io
from dtomo.distributed import graph
from dtomo.distributed.checkpoints import restore, save
from dtomo.distributed.clusters import TRIES, Resources, connect
from dtomo.distributed.iterating import iterate
from dtomo.distributed.queue import TaskFailed
from dtomo.distributed.slab_array import Halo, SlabArray
from dtomo.distributed.slabs import Slab, cut
from dtomo.errors import StoppedError, UserError

SLABS = cut(13, 2)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with connect(Resources(2, 1, 1_500_000_000, dashboard=None)) as found:
        yield found


def _start(shared: None, slab: Slab) -> dict[str, NDArray[Any]]:
    rows = [np.random.default_rng(z).standard_normal((6, 5), np.float32) for z in range(slab.start, slab.stop)]
    return {"solution": np.stack(rows), "momentum": np.zeros((len(slab), 6, 5), np.complex64)}


class Problem:
    """Smoothing along z with momentum and a mean over all slabs; `hurt` may kill workers or raise."""

    def __init__(self, client: Any, hurt: Any = None, *, coupled: bool = True) -> None:
        self.client, self.hurt, self.coupled = client, hurt, coupled
        self.steps: list[int] = []

    def create(self, slabs: tuple[Slab, ...], homes: tuple[str, ...]) -> SlabArray:
        return SlabArray.create(self.client, _start, None, slabs, homes)

    def step(self, state: SlabArray, iteration: int) -> SlabArray:
        self.steps.append(iteration)
        if not self.coupled:
            return state.update(_alone, (iteration, self.hurt))
        total = state.update(_sum).sum()
        return state.update(_smooth, total, Halo(state, 2, "edge", "solution")).update(_harm, (iteration, self.hurt))

    def run(self, iterations: int, **options: Any) -> NDArray[Any]:
        state = iterate(self.client, SLABS, self.create, self.step, iterations, separable=not self.coupled, **options)
        parts = self.client.gather(list(state.parts))
        return np.concatenate([part["solution"] + part["momentum"] for part in parts])


def _sum(shared: None, slab: Slab, part: Any) -> Any:
    return part["solution"].sum(0)


def _smooth(total: Any, slab: Slab, part: Any, padded: Any) -> Any:
    mean = (padded[:-4] + padded[1:-3] + padded[3:-1] + padded[4:]) / np.float32(4)
    momentum = np.complex64(0.5j) * part["momentum"] + (mean - part["solution"])
    return {"solution": mean + np.float32(0.01) * total, "momentum": momentum}


def _alone(shared: Any, slab: Slab, part: Any) -> Any:
    _harm(shared, slab, None)
    return {"solution": part["solution"] * np.float32(1.1), "momentum": part["momentum"] + part["solution"] * 1j}


def _harm(shared: Any, slab: Slab, part: Any) -> Any:
    iteration, hurt = shared
    if hurt is not None:
        hurt(iteration, slab)
    return part


class KillOnce:
    """Kills the worker of a slab in an iteration, the first `times` times; counts what is computed."""

    def __init__(self, folder: Path, iteration: int, index: int, times: int = 1) -> None:
        self.folder, self.iteration, self.index, self.times = folder, iteration, index, times

    def __call__(self, iteration: int, slab: Slab) -> None:
        (self.folder / f"{iteration}-{slab.index}-{time.monotonic_ns()}").touch()
        if (iteration, slab.index) == (self.iteration, self.index):
            deaths = len(list(self.folder.glob("death-*")))
            if deaths < self.times:
                (self.folder / f"death-{deaths}").touch()
                time.sleep(0.05)
                os.kill(os.getpid(), signal.SIGKILL)

    def computed(self, iteration: int, index: int) -> int:
        """How often a slab was computed in an iteration."""
        return len(list(self.folder.glob(f"{iteration}-{index}-*")))


@pytest.fixture(scope="module")
def undisturbed(client: Any) -> dict[bool, NDArray[Any]]:
    return {coupled: Problem(client, coupled=coupled).run(7) for coupled in (True, False)}


@pytest.mark.parametrize("coupled", [True, False])
@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_killed_worker_changes_no_bit(
    client: Any, undisturbed: Any, tmp_path: Path, coupled: bool, checkpoints: bool
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    hurt = KillOnce(marks, 5, 4)
    found = Problem(client, hurt, coupled=coupled).run(7, folder=tmp_path / "kept" if checkpoints else None, every=2)
    assert (marks / "death-0").exists()
    assert found.tobytes() == undisturbed[coupled].tobytes()
    if checkpoints:
        assert {hurt.computed(0, index) for index in range(len(SLABS))} == {1}
        assert hurt.computed(3, 4) == 1
    if not coupled:
        assert hurt.computed(0, 0) == 1, "a slab of the other worker was computed again"


def test_a_slab_that_kills_every_worker_is_named(client: Any, tmp_path: Path) -> None:
    hurt = KillOnce(tmp_path, 1, 5, times=99)
    with pytest.raises(TaskFailed, match=r"rows 10:12: 3 workers died on it") as caught:
        Problem(client, hurt, coupled=False).run(4)
    assert caught.value.killed
    assert len(list(tmp_path.glob("death-*"))) == TRIES


class Raise:
    """Raises in slab 3."""

    def __call__(self, iteration: int, slab: Slab) -> None:
        if slab.index == 3:
            raise FloatingPointError("the step is not finite")


def test_a_slab_that_raises_stops_the_iterations(client: Any) -> None:
    with pytest.raises(TaskFailed, match="rows 6:8: the step is not finite"):
        Problem(client, Raise()).run(3)


def test_iterations_go_on_from_the_checkpoint(client: Any, undisturbed: Any, tmp_path: Path) -> None:
    Problem(client).run(5, folder=tmp_path, every=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iteration-0000000002", "iteration-0000000004"]
    again = Problem(client)
    found = again.run(7, folder=tmp_path, every=2, resume=True)
    assert again.steps == [4, 5, 6]
    assert found.tobytes() == undisturbed[True].tobytes()


def test_a_damaged_checkpoint_is_passed_over(client: Any, undisturbed: Any, tmp_path: Path) -> None:
    Problem(client).run(5, folder=tmp_path, every=2)
    chunk = next(
        path for path in (tmp_path / "iteration-0000000004" / "slab-000003").rglob("c/*/*/*") if path.is_file()
    )
    chunk.write_bytes(chunk.read_bytes()[:-5])
    again = Problem(client)
    found = again.run(7, folder=tmp_path, every=2, resume=True)
    assert again.steps == [2, 3, 4, 5, 6]
    assert found.tobytes() == undisturbed[True].tobytes()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"slabs": 3}',
        b"\xff\xfe",
        b'{"slabs": [], "axis": 0, "made_with": {}}',
        b'{"slabs": [[0, "a", 2]], "axis": 0, "made_with": {}}',
        b'{"slabs": [[0, 0, 2]], "axis": 0, "made_with": 3}',
    ],
)
def test_a_checkpoint_without_its_list_of_slabs_is_none(client: Any, tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "iteration-0000000002"
    folder.mkdir()
    (folder / "slabs.json").write_bytes(content)
    assert restore(client, tmp_path) is None


def test_a_checkpoint_of_other_settings_is_refused(client: Any, tmp_path: Path) -> None:
    Problem(client).run(3, folder=tmp_path, every=2, made_with={"step": 0.5})
    with pytest.raises(UserError, match=r"step 0\.5 and not 0\.6"):
        Problem(client).run(7, folder=tmp_path, made_with={"step": 0.6}, resume=True)
    with pytest.raises(UserError, match="other slabs"):
        iterate(client, cut(13, 3), Problem(client).create, Problem(client).step, 7, folder=tmp_path,
                made_with={"step": 0.5}, resume=True)  # fmt: skip


def test_a_checkpoint_moves_nothing_and_forgets_what_led_to_it(client: Any, tmp_path: Path) -> None:
    others = _slab_tasks(client)
    state = SlabArray.create(client, _start, None, SLABS)
    for iteration in range(4):
        state = Problem(client, coupled=False).step(state, iteration)
    state.wait()
    before = graph.bytes_sent(client)
    kept = save(state, tmp_path, 4)
    assert graph.bytes_sent(client) == before
    expected = [part["momentum"] for part in client.gather(list(state.parts))]
    del state
    wanted = {str(part.key) for part in kept.parts}
    deadline = time.monotonic() + 10
    while (known := _slab_tasks(client) - others) != wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    assert known == wanted
    found, done = restore(client, tmp_path) or (kept, 0)
    assert done == 4
    for part, other in zip(client.gather(list(found.parts)), expected):
        assert np.array_equal(part["momentum"], other)


def _slab_tasks(client: Any) -> set[str]:
    """What the scheduler knows of slabs."""
    known = client.run_on_scheduler(_keys)
    return {key for key in known if "dtomo-slab" in key or "dtomo-root" in key}


def _keys(dask_scheduler: Any) -> list[str]:
    return [str(key) for key in dask_scheduler.tasks]


def test_a_folder_that_cannot_be_written_to_stops_the_run(client: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoppedError, match="no checkpoint could be written"):
        Problem(client).run(3, folder=tmp_path / "file", every=1)


@pytest.mark.parametrize(("iterations", "every"), [(-1, 1), (1, 0)])
def test_counts_that_make_no_sense_are_refused(client: Any, iterations: int, every: int) -> None:
    with pytest.raises(UserError, match="iterations count from 0"):
        Problem(client).run(iterations, every=every)


def test_the_example_of_the_docs_runs(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "distribution.md"
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    (example,) = (block for block in blocks if "smooth.zarr" in block)
    noisy = np.random.default_rng(0).standard_normal((70, 8, 8), np.float32)
    writer = io.create_volume(tmp_path / "noisy.zarr", noisy.shape, np.float32, slab=70)
    writer.write_slab(0, noisy)
    writer.finish()
    (tmp_path / "example.py").write_text(example.replace("step, 100,", "step, 11,"))
    environment = os.environ | {"PYTHONPATH": str(page.parents[1])}
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = io.open_volume(tmp_path / "smooth.zarr").source.read()
    solution = np.zeros_like(noisy)
    for _ in range(11):
        padded = np.pad(solution, [(1, 1), (0, 0), (0, 0)], mode="edge")
        pull = noisy - solution / (1 + (solution**2).mean())
        solution = solution + np.float32(0.1) * (pull + padded[:-2] + padded[2:] - 2 * padded[1:-1])
    assert np.allclose(found, solution, atol=1e-4)
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["iteration-0000000010"]
