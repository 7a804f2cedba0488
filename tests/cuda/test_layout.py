"""Transposition on devices: every value in its place, whatever the shape, the block of threads and the grid."""

import numpy as np
import pytest

from dtomo.kernels.cuda import layout
from dtomo.kernels.layout import projections_inside_out, transpose_pairs, volume_inside_out
from tests import laws

SHAPES = [(1, 1, 1), (2, 1, 7), (1, 33, 65), (3, 31, 2), (2, 2, 32), (2, 0, 3)]
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.float64, np.uint16])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """The simulator starts a thread for each thread of a block."""
    for kernel in (layout.turn_words, layout.turn_double_words):
        monkeypatch.setattr(kernel, "threads", (4, 2))


def values(shape, dtype):
    return (100 * laws.draw(shape, dtype if np.dtype(dtype).kind == "c" else np.float32)).astype(dtype)


@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_memory(cupy, record_error, shape, dtype):
    host = values(shape, dtype)
    device = cupy.asarray(host)
    for turn, moved in ((volume_inside_out, np.moveaxis(host, 0, -1)), (projections_inside_out, host.swapaxes(1, 2))):
        found = turn(device)
        assert isinstance(found, cupy.ndarray)
        assert found.flags.c_contiguous
        assert found.dtype == dtype
        assert np.array_equal(found.get(), moved)
        assert np.array_equal(device.get(), host)
        if host.size:
            record_error(found, moved)


def test_what_is_inside_out_is_not_copied(cupy):
    inside = cupy.asarray(laws.draw((5, 6, 7)))
    assert cupy.may_share_memory(projections_inside_out(inside.swapaxes(1, 2)), inside)
    assert cupy.may_share_memory(volume_inside_out(np.moveaxis(inside, -1, 0)), inside)


def test_strided_memory(cupy):
    host = laws.draw((3, 9, 14))
    for cut in ((slice(None), slice(2, 5)), (slice(None, None, 2),), (slice(None), slice(None), slice(None, None, -3))):
        part = cupy.asarray(host)[cut]
        assert np.array_equal(projections_inside_out(part).get(), host[cut].swapaxes(1, 2))
        assert np.array_equal(volume_inside_out(part).get(), np.moveaxis(host[cut], 0, -1))


@pytest.mark.parametrize("blocks", [1, 2, 50])
@pytest.mark.parametrize("threads", [(1, 1), (3, 2), (8, 1)])
def test_any_grid_is_right(cupy, blocks, threads):
    host = laws.draw((2, 35, 40))
    target = cupy.empty((2, 40, 35), np.float32)
    layout.turn_words.launch(blocks, cupy.asarray(host), target, threads=threads)
    assert np.array_equal(target.get(), host.swapaxes(1, 2))


def test_not_a_number_is_moved_like_any_other(cupy):
    host = np.full((1, 2, 3), np.nan, np.complex64)
    host[0, 1, 2] = -0.0
    found = transpose_pairs(cupy.asarray(host)).get()
    assert np.array_equal(found.view(np.uint64), host.swapaxes(1, 2).copy().view(np.uint64))
