"""Data of fits: wherever it lies the fit is the same; what is held out, shuffled and cut depends on no worker."""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

import dtomo
from dtomo import io
from dtomo.errors import UserError
from dtomo.fitting.data import Columns, Reader, Split, block_size, blocks_of
from dtomo.io.volumes import store_volume

VALUES = np.random.default_rng(5).normal(2, 1, (23, 4, 6)).astype(np.float32)


class Mean:
    """The mean of the samples."""

    def __init__(self) -> None:
        self.parameters = {"mean": np.zeros(VALUES.shape[1:], np.float32)}

    def loss_and_gradient(self, parameters: Any, batch: Any) -> Any:
        batch = batch[0] if isinstance(batch, tuple) else batch
        off = (parameters["mean"] - batch.reshape(-1, 4, 6)).astype(np.float64)
        return float((off**2).sum()), len(batch), {"mean": 2 * off.sum(0)}


def places(folder: Path) -> dict[str, Any]:
    np.save(folder / "values.npy", VALUES)
    stored = zarr.create_array(str(folder / "values.zarr"), shape=VALUES.shape, chunks=(5, 4, 6), dtype=VALUES.dtype)
    stored[...] = VALUES
    for number, one in enumerate(VALUES):
        np.save(folder / f"{number:02d}.npy", one)
    store_volume(VALUES, folder / "volume.mrc")
    return {
        "memory": VALUES,
        "dask": da.from_array(VALUES, chunks=(4, 2, 6)),
        "dask of zarr": da.from_zarr(str(folder / "values.zarr")),
        "zarr": stored,
        "mapped": np.load(folder / "values.npy", mmap_mode="r"),
        "files": [folder / f"{number:02d}.npy" for number in range(23)],
        "source": io.open_volume(folder / "volume.mrc").source,
    }


def test_data_may_lie_anywhere(tmp_path: Path, fitting_client: Any) -> None:
    found = {}
    for name, data in places(tmp_path).items():
        for client in (None, fitting_client):
            model = Mean()
            history = dtomo.fit(model, data, epochs=2, batch=7, block=2, client=client)
            found[name, client is None] = (history, model.parameters["mean"].tobytes())
    assert all(one == found["memory", True] for one in found.values())


def test_a_scan_gives_projections_and_angles(tmp_path: Path, fitting_client: Any) -> None:
    angles = np.linspace(0, 180, 23, endpoint=False)
    counts = np.arange(23 * 4 * 6, dtype=np.uint16).reshape(23, 4, 6)
    scan = dtomo.Scan(tmp_path / "scan", "memory", io.sources.ArraySource(counts), None, None, angles)
    projections, degrees = Reader(Columns.of(scan), 0).batch(np.array([7, 2, 11]))
    assert np.array_equal(projections, counts[[7, 2, 11]])
    assert np.array_equal(degrees, angles[[7, 2, 11]])
    assert dtomo.fit(Mean(), scan, epochs=1, client=fitting_client) == dtomo.fit(Mean(), scan, epochs=1)


def test_every_sample_is_seen_once_in_each_epoch_and_none_that_is_held_out() -> None:
    split = Split.of(103, 0.2, seed=4)
    assert len(split.held_out) == 21
    assert np.array_equal(np.union1d(split.training, split.held_out), np.arange(103))
    orders = []
    for epoch in range(3):
        batches = list(split.batches(epoch, 17, seed=4))
        assert [len(batch) for batch in batches] == [17, 17, 17, 17, 14]
        orders.append(np.concatenate(batches))
        assert np.array_equal(np.sort(orders[-1]), split.training)
    assert not np.array_equal(orders[0], orders[1])
    assert np.array_equal(np.concatenate(list(split.batches(1, None, seed=4))), orders[1])
    other = Split.of(103, 0.2, seed=5)
    assert not np.array_equal(other.held_out, split.held_out)


@pytest.mark.parametrize(
    ("count", "part", "held"), [(1, 0.1, 0), (2, 0.1, 1), (10, 0, 0), (10, 0.99, 9), (1000, 0.1, 100)]
)
def test_how_many_are_held_out(count: int, part: float, held: int) -> None:
    assert len(Split.of(count, part, 0).held_out) == held


def test_blocks_depend_on_the_batch_alone() -> None:
    assert [len(block) for block in blocks_of(np.arange(17), 5)] == [5, 4, 4, 4]
    assert np.array_equal(np.concatenate(blocks_of(np.arange(17), 5)), np.arange(17))
    assert blocks_of(np.arange(0), 5) == ()
    assert (block_size(32, 1000), block_size(3, 1000), block_size(None, 1000), block_size(50, 20)) == (4, 1, 63, 2)


def test_what_is_read_is_kept_as_far_as_memory_goes(tmp_path: Path) -> None:
    np.save(tmp_path / "values.npy", VALUES)
    columns = Columns.of(np.load(tmp_path / "values.npy", mmap_mode="r"))
    index = np.array([5, 3, 9, 3])
    some, none = Reader(columns, 2 * VALUES[0].nbytes + 1), Reader(columns, 0)
    some.batch(np.array([3, 5]))
    (tmp_path / "values.npy").unlink()
    assert np.array_equal(some.batch(index[[0, 1, 3]]), VALUES[[5, 3, 3]])
    with pytest.raises(UserError, match=r"values\.npy"):
        some.batch(index)
    with pytest.raises(UserError, match=r"values\.npy"):
        none.batch(index[:2])


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ((), "empty tuple"),
        ((np.zeros(3), np.zeros(4)), "all of them as many"),
        (np.zeros((0, 3)), "all of them as many"),
        (3, "data of a fit is"),
        ("scan.h5", "data of a fit is"),
        (np.array(["a"]), "data of a fit is"),
        (["missing.npy"], "there is no file .*missing.npy"),
    ],
)
def test_data_that_do_not_go(data: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        dtomo.fit(Mean(), data)


def test_files_of_other_shapes_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    np.save(tmp_path / "b.npy", np.zeros(4))
    with pytest.raises(UserError, match=r"b\.npy holds float64 of shape \(4,\) but"):
        Columns.of([tmp_path / "a.npy", str(tmp_path / "b.npy")])


def test_an_array_on_a_cluster_is_refused(fitting_client: Any) -> None:
    with pytest.raises(UserError, match="persist"):
        Columns.of(fitting_client.persist(da.ones((4, 3), chunks=2)))


def test_data_in_memory_that_is_too_large_to_send_is_refused(tmp_path: Path, fitting_client: Any) -> None:
    """Of virtual memory that nothing touches: half of what a worker has."""
    large = np.broadcast_to(np.float32(1), (2**15, 2**12))
    with pytest.raises(UserError, match=r"0\.537 GB are more than the 0\.268 GB .* numpy\.save"):
        dtomo.fit(Mean(), large, client=fitting_client)
    np.save(tmp_path / "few.npy", VALUES)
    mapped = np.load(tmp_path / "few.npy", mmap_mode="r")
    assert dtomo.fit(Mean(), mapped, epochs=1, client=fitting_client) == dtomo.fit(Mean(), VALUES, epochs=1)
