"""C25: writers in several processes never lose each other's voxels."""

import multiprocessing

import dask.array as da
import numpy as np
import pytest
import zarr

from dtomo.errors import UserError
from dtomo.io import create_volume, open_volume, open_writer
from dtomo.io.volumes import store_volume

SHAPE = (100, 100, 100)
TOTAL = 499999500000.0


def _block(start, stop):
    return np.arange(start * 10**4, stop * 10**4, dtype=np.float64).reshape(-1, 100, 100)


def _write(job):
    path, start, stop = job
    open_writer(path).write_slab(start, _block(start, stop))


@pytest.mark.parametrize("name", ["v.zarr", "v.tif"])
def test_processes_writing_at_once(name, tmp_path):
    path = tmp_path / name
    writer = create_volume(path, SHAPE, np.float64, slab=25)
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        pool.map(_write, [(path, start, start + 25) for start in range(0, 100, 25)], chunksize=1)
    writer.finish()
    assert open_volume(path).array.sum().compute() == TOTAL


def test_blocks_that_do_not_line_up_with_shards_are_refused_before_writing(tmp_path):
    writer = create_volume(tmp_path / "v.zarr", SHAPE, np.float64, slab=50)
    assert zarr.open_array(tmp_path / "v.zarr" / "0", mode="r").shards[0] == 50
    for start, stop in ((0, 25), (25, 50), (25, 75), (50, 75)):
        with pytest.raises(UserError, match="shard borders"):
            writer.write_slab(start, _block(start, stop))
    assert writer.done() == []
    assert not (zarr.open_array(tmp_path / "v.zarr" / "0", mode="r")[:]).any()


@pytest.mark.parametrize("slab", [1, 7, 8, 16, 25, 48, 50, 64, 96, 100])
def test_slabs_own_whole_shards_of_every_level_they_write(slab, tmp_path):
    writer = create_volume(tmp_path / "v.zarr", (100, 40, 300), np.float32, slab=slab, levels=3)
    slabs = [(start, min(start + slab, 100)) for start in range(0, 100, slab)]
    writer.check_slabs(slabs)
    height = zarr.open_array(writer.path / "0", mode="r").shards[0]
    owned = [{z // height for z in range(*part)} for part in slabs]
    assert sum(map(len, owned)) == len(set.union(*owned))
    volume = np.random.default_rng(slab).standard_normal((100, 40, 300)).astype(np.float32)
    for start, stop in reversed(slabs):
        writer.write_slab(start, volume[start:stop])
    writer.finish()
    assert (open_volume(writer.path).array.compute() == volume).all()


def test_slabs_that_share_a_shard_are_refused_before_the_first_write(tmp_path):
    writer = create_volume(tmp_path / "v.zarr", SHAPE, np.float64, slab=50)
    writer.check_slabs([(0, 50), (50, 100)])
    for slabs in ([(0, 25), (25, 50)], [(0, 50), (50, 75)], [(0, 50), (50, 90), (90, 100)]):
        with pytest.raises(UserError, match="shard borders"):
            writer.check_slabs(slabs)
    # shards on disk that are not what the settings say: the store was replaced
    zarr.open_group(writer.path).create_array(
        "0", shape=SHAPE, dtype="f8", shards=(40, 100, 100), chunks=(20, 50, 50), overwrite=True
    )
    with pytest.raises(UserError, match=r"slices 0 to 50 do not own whole shards of level 0 .* 40 slices high"):
        writer.check_slabs([(0, 50), (50, 100)])
    assert writer.done() == []


@pytest.mark.parametrize("chunks", [25, (7, 93), (50, 1, 49), "auto"])
def test_dask_blocks_of_any_shape_are_made_regular(chunks, tmp_path):
    lazy = da.arange(10**6, chunks=10**5, dtype=np.float64).reshape(SHAPE).rechunk((chunks, 60, 100))
    for turn in range(3):
        store_volume(lazy, tmp_path / f"{turn}.zarr", slab=50)
        assert open_volume(tmp_path / f"{turn}.zarr").array.sum().compute() == TOTAL
