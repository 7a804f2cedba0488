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


@pytest.mark.parametrize("chunks", [25, (7, 93), (50, 1, 49), "auto"])
def test_dask_blocks_of_any_shape_are_made_regular(chunks, tmp_path):
    lazy = da.arange(10**6, chunks=10**5, dtype=np.float64).reshape(SHAPE).rechunk((chunks, 60, 100))
    for turn in range(3):
        store_volume(lazy, tmp_path / f"{turn}.zarr", slab=50)
        assert open_volume(tmp_path / f"{turn}.zarr").array.sum().compute() == TOTAL
