"""Inner products on devices: the bits of the CPU's, whatever the grid."""

import numpy as np
import pytest

from dtomo.kernels import sums as on_host
from dtomo.kernels.cuda import sums
from tests import laws


@pytest.mark.parametrize(("count", "slices"), [(1, 1), (7, 2), (8, 3), (25, 33), (0, 4)])
def test_the_bits_of_the_cpu(cupy, monkeypatch, record_error, count, slices):
    x, y = laws.draw((count, slices), seed=1), laws.draw((count, slices), seed=2)
    expected = np.zeros(slices)
    for start in range(0, count, 8):
        part = np.zeros(slices)
        for i in range(start, min(count, start + 8)):
            part += x[i].astype(np.float64) * y[i]
        expected += part
    found = sums.dot_slices(cupy.asarray(x), cupy.asarray(y), 8)
    record_error(found, expected)
    assert type(found) is np.ndarray
    assert np.array_equal(found, expected)
    monkeypatch.setattr(on_host, "_BLOCK", 8)
    assert np.array_equal(on_host.dot_slices(cupy.asarray(x), cupy.asarray(y)), expected)


def test_one_block_of_the_cpu(cupy):
    x, y = laws.draw((20, 3), seed=3), laws.draw((20, 3), seed=4)
    assert np.array_equal(on_host.dot_slices(cupy.asarray(x), cupy.asarray(y)), on_host.dot_slices(x, y))


def test_any_grid(cupy):
    x, y = (cupy.asarray(laws.draw((21, 5), seed=seed)) for seed in (5, 6))
    results = []
    for blocks, threads in (((1, 1), (1, 1)), ((2, 1), (2, 2)), ((1, 3), (2, 1)), ((9, 9), (1, 2))):
        found = cupy.full((6, 5), np.nan, np.float64)
        sums.dot_blocks.launch(blocks, x, y, 4, found, threads=threads)
        results.append(found.get())
    assert all(np.array_equal(result, results[0]) for result in results)


def test_host_and_device_do_not_meet(cupy):
    x = np.ones((3, 2), np.float32)
    with pytest.raises(TypeError, match="host"):
        on_host.dot_slices(cupy.asarray(x), x)
