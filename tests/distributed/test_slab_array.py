"""Slabs that stay on their workers: updates, sums, files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dtomo import io
from dtomo.distributed import graph
from dtomo.distributed.clusters import Resources, connect
from dtomo.distributed.queue import TaskFailed
from dtomo.distributed.slab_array import Halo, SlabArray, sum_parts
from dtomo.distributed.slabs import Slab, cut
from dtomo.distributed.sums import tree_sum
from dtomo.errors import UserError

SLABS = cut(23, 2)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with connect(Resources(5, 1, 1_000_000_000, dashboard=None)) as found:
        yield found


def _make(dtype: str, slab: Slab) -> NDArray[Any]:
    rows = [np.random.default_rng(z).standard_normal((2, 40, 40)) for z in range(slab.start, slab.stop)]
    return np.stack([row[0] + 1j * row[1] if dtype == "complex64" else row[0] for row in rows]).astype(dtype)


def _whole(dtype: str) -> NDArray[Any]:
    return np.concatenate([_make(dtype, slab) for slab in SLABS])


def _double(shared: float, slab: Slab, part: NDArray[Any]) -> NDArray[Any]:
    return part * np.float32(shared)


def _read(client: Any, array: SlabArray) -> NDArray[Any]:
    return np.concatenate(client.gather(list(array.parts)), axis=array.axis)


def test_consecutive_slabs_live_on_one_worker_and_nothing_moves(client: Any) -> None:
    array = SlabArray.create(client, _make, "complex64", SLABS).wait()
    workers = graph.workers_in_order(client)
    assert list(dict.fromkeys(array.homes)) == workers
    before = graph.bytes_sent(client)
    for _ in range(3):
        array = array.update(_double, 2).wait()
    assert graph.bytes_sent(client) == before
    held = client.who_has(list(array.parts))
    assert [held[part.key] for part in array.parts] == [(home,) for home in array.homes]
    assert np.array_equal(_read(client, array), 8 * _whole("complex64"))


def _with_table(shared: NDArray[Any], slab: Slab, part: NDArray[Any]) -> NDArray[Any]:
    return part + shared[slab.start]


def test_what_is_shared_travels_once_per_worker_and_not_in_the_graph(client: Any) -> None:
    table = np.arange(1_000_000, dtype=np.float64)
    array = SlabArray.create(client, _make, "float64", SLABS).wait()
    before = graph.bytes_sent(client)
    moved = array.update(_with_table, table).wait()
    assert graph.bytes_sent(client) - before <= 4 * 8_100_000
    assert np.array_equal(_read(client, moved)[::2], _whole("float64")[::2] + table[:23:2, None, None])


def _gradient(probe: complex, slab: Slab, part: NDArray[Any]) -> dict[str, Any]:
    return {"object": part.sum(0) * probe, "count": len(part)}


def test_sums_have_the_bits_of_one_process(client: Any) -> None:
    blocks = [_gradient(1j, slab, _make("complex64", slab)) for slab in SLABS]
    expected = tree_sum(blocks)
    workers = graph.workers_in_order(client)
    for count in (1, 2, 3, 5):
        array = SlabArray.create(client, _make, "complex64", SLABS, graph.spread(len(SLABS), workers[:count]))
        found = array.update(_gradient, 1j).sum().result()
        assert found["object"].tobytes() == expected["object"].tobytes()
        assert found["count"] == 23


def _pair(shared: None, slab: Slab, part: NDArray[Any]) -> tuple[NDArray[Any], int]:
    return part.sum(0), len(part)


def _minus(mean: NDArray[Any], slab: Slab, part: NDArray[Any]) -> NDArray[Any]:
    return part - mean


def test_a_sum_that_is_a_future_can_be_shared(client: Any) -> None:
    array = SlabArray.create(client, _make, "float32", SLABS)
    centred = array.update(_minus, array.update(_pair).mean())
    assert np.abs(_read(client, centred).mean(0)).max() < 1e-6


def test_a_sum_of_one_block_is_the_block(client: Any) -> None:
    array = SlabArray.create(client, _make, "float32", SLABS[:1])
    assert np.array_equal(array.sum().result(), _make("float32", SLABS[0]))


def _residual(shared: None, slab: Slab, part: Any, data: Any, padded: Any) -> dict[str, Any]:
    return {"solution": data - part, "padded": padded.shape[0]}


def test_other_arrays_and_halos_go_into_one_task(client: Any) -> None:
    volume = SlabArray.create(client, _make, "float32", SLABS)
    data = volume.update(_double, 3)
    both = volume.update(_residual, None, data, Halo(volume, 1, "zero")).wait()
    parts = client.gather(list(both.parts))
    assert np.array_equal(
        np.concatenate([part["solution"] for part in parts]), 3 * _whole("float32") - _whole("float32")
    )
    assert [part["padded"] for part in parts] == [len(slab) + 2 for slab in SLABS]


def test_arrays_cut_differently_do_not_meet(client: Any) -> None:
    volume = SlabArray.create(client, _make, "float32", SLABS).wait()
    other = SlabArray.create(client, _make, "float32", cut(23, 3)).wait()
    with pytest.raises(UserError, match="cut alike"):
        volume.update(_residual, None, other, other)


def test_no_slabs_are_refused(client: Any) -> None:
    with pytest.raises(UserError, match="at least one slab"):
        SlabArray.create(client, _make, "float32", [])
    with pytest.raises(UserError, match="at least one block"):
        sum_parts(client, [], [])


def _fail(shared: None, slab: Slab, part: Any) -> None:
    if slab.start >= 10:
        raise ValueError("negative density")


def test_a_slab_that_raises_is_named(client: Any) -> None:
    with pytest.raises(TaskFailed, match="rows 10:12: negative density") as caught:
        SlabArray.create(client, _make, "float32", SLABS).update(_fail).wait()
    assert not caught.value.killed


def test_volumes_go_to_zarr_and_back_slab_by_slab(client: Any, tmp_path: Path) -> None:
    slabs = cut(40, 16)
    array = SlabArray.create(client, _make, "complex64", slabs)
    both = array.update(_as_dict)
    writer = io.create_volume(tmp_path / "v.zarr", (40, 40, 40), np.complex64, slab=16)
    both.write(writer, "solution")
    writer.finish()
    volume = io.open_volume(tmp_path / "v.zarr")
    back = SlabArray.create(client, _stored, volume, slabs)
    whole = np.concatenate([_make("complex64", slab) for slab in slabs])
    assert np.array_equal(_read(client, back), whole)
    assert np.array_equal(volume.source.read(), whole)


def _stored(volume: Any, slab: Slab) -> Any:
    return volume.source.read(frames=slab.rows)


def _as_dict(shared: None, slab: Slab, part: Any) -> dict[str, Any]:
    return {"solution": part}


def test_slabs_off_the_shards_are_refused_by_name(client: Any, tmp_path: Path) -> None:
    writer = io.create_volume(tmp_path / "v.zarr", (23, 40, 40), np.float32, slab=16)
    with pytest.raises(TaskFailed, match="shard borders"):
        SlabArray.create(client, _make, "float32", SLABS).write(writer)
