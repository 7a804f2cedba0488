"""C30 (files): graphs carry paths, never data; HDF5 is opened inside the task, in threads and processes."""

import subprocess
import sys

import cloudpickle
import dask
import h5py
import numpy as np
import pytest

import dtomo
from dtomo.io import create_volume, open_volume, write_dxchange


def _graph_size(array):
    graph = array.__dask_optimize__(array.__dask_graph__(), array.__dask_keys__())
    return len(cloudpickle.dumps(dict(graph))), len(dict(graph))


@pytest.fixture
def scan(tmp_path):
    shape = (1000, 40, 64)
    frames = (np.full(shape[1:], number, np.uint16) for number in range(shape[0]))
    path = write_dxchange(
        tmp_path / "s.h5",
        frames=frames,
        shape=shape,
        dtype=np.uint16,
        flats=np.full((200, 40, 64), 2000, np.uint16),
        darks=np.zeros((1, 40, 64), np.uint16),
        angles=np.linspace(0, 180, 1000),
        compress=True,
    )
    return dtomo.open(path)


def test_graphs_of_a_thousand_chunks_stay_small(scan):
    lazy = (scan.projections.rechunk((1, 40, 64)).astype(np.float32) - scan.darks[0]) / scan.flats.mean(axis=0)
    size, tasks = _graph_size(lazy)
    assert tasks >= 1000
    assert size < 2**20 + 1024 * tasks
    size, _ = _graph_size(scan.projections)
    assert size < 4096
    assert len(cloudpickle.dumps(scan)) < 16384


def test_the_source_travels_once(scan):
    chosen = scan.select(np.random.default_rng(0).permutation(1000))  # an index that cannot be kept as few ranges
    alone = len(cloudpickle.dumps(chosen.projection_source))
    parts = [chosen.projections[:, row : row + 1] for row in range(40)]
    size, tasks = _graph_size(dask.array.concatenate(parts, axis=1))
    assert tasks >= 40
    assert size < 2 * alone + 1024 * tasks


@pytest.mark.parametrize("scheduler", ["sync", "threads", "processes"])
def test_reads_in_threads_and_processes(scan, scheduler):
    expected = float(np.arange(1000).mean())
    assert float(scan.projections.mean().compute(scheduler=scheduler, num_workers=2)) == expected


def test_reads_while_another_program_holds_the_file(scan):
    code = f"import h5py, sys; f = h5py.File({str(scan.path)!r}); print('open', flush=True); sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"open\n"
        assert scan.projections[7].compute(scheduler="processes", num_workers=2).max() == 7
        with h5py.File(scan.path, "r"):
            assert scan.read(slice(0, 1), angles=[9]).projections.max() == 9
    finally:
        other.communicate(b"")


def test_volumes_are_read_by_path_too(tmp_path):
    writer = create_volume(tmp_path / "v.zarr", (64, 32, 32), slab=8)
    for start in range(0, 64, 8):
        writer.write_slab(start, np.full((8, 32, 32), start, np.float32))
    writer.finish()
    lazy = open_volume(tmp_path / "v.zarr").array
    size, tasks = _graph_size(lazy.rechunk((1, 8, 8)) * 2)
    assert size < 2**20 + 1024 * tasks
    assert len(cloudpickle.dumps(writer)) < 1024
