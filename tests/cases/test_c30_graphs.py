"""C30: graphs stay small, and what is shared travels once."""

import dask.array as da
import numpy as np
import pytest
from distributed.protocol import dumps
from distributed.protocol.pickle import dumps as pickled

import dtomo
from dtomo.geometry import ParallelBeam

CHUNKS = 1000


def _graph_sizes(lazy: da.Array, name: str) -> tuple[int, int, int]:
    """Bytes of the whole graph and of the largest of the tasks called `name`, and the number of all tasks."""
    graph = dict(lazy.__dask_graph__())
    own = [len(pickled(task)) for key, task in graph.items() if str(key[0]).startswith(name)]
    assert len(own) == CHUNKS
    return len(pickled(graph)), max(own), len(graph)


@pytest.mark.parametrize("algorithm", ["fbp", "sirt", "cgls"])
def test_graph_of_1000_chunks_is_below_1_MB_and_1_kB_per_task(algorithm: str) -> None:
    angles = np.linspace(0, 180, 500, endpoint=False)
    projections = da.zeros((500, CHUNKS, 64), chunks=(500, 1, 64), dtype=np.float32)
    lazy = getattr(dtomo.recon, algorithm)(projections, ParallelBeam(angles, 64))
    assert lazy.numblocks == (CHUNKS, 1, 1)
    whole, largest, tasks = _graph_sizes(lazy, algorithm)
    assert largest < 1_000
    assert whole < 1_000_000 + 1_000 * tasks
    assert tasks <= 3 * CHUNKS + 10


def test_graph_does_not_grow_with_the_angles() -> None:
    sizes, largest = [], []
    for count in (10, 20_000):
        angles = np.linspace(0, 180, count, endpoint=False)
        projections = da.zeros((count, CHUNKS, 8), chunks=(count, 1, 8), dtype=np.float32)
        lazy = dtomo.recon.fbp(projections, ParallelBeam(angles, 8))
        whole, task, _ = _graph_sizes(lazy, "fbp")
        sizes.append(whole)
        largest.append(task)
    assert sizes[1] - sizes[0] < 1.1 * 8 * 20_000, "the table of angles is in the graph more than once"
    assert largest[1] < 1_000


def test_message_to_the_scheduler_carries_the_angles_once() -> None:
    angles = np.linspace(0, 180, 20_000, endpoint=False)
    projections = da.zeros((20_000, 200, 8), chunks=(20_000, 1, 8), dtype=np.float32)
    lazy = dtomo.recon.fbp(projections, ParallelBeam(angles, 8))
    sent = sum(len(frame) for frame in dumps(pickled(dict(lazy.__dask_graph__()))))
    assert sent < 1_000_000 + 1_000 * len(dict(lazy.__dask_graph__()))
