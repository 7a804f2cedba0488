"""Between (z, y, x) and z innermost."""

import numpy as np
import pytest

from dtomo.kernels.layout import projections_inside_out, transpose_pairs, volume_inside_out
from tests import laws

SHAPES = [(1, 1, 1), (5, 1, 7), (1, 33, 65), (40, 31, 3), (64, 2, 32)]


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_memory(shape, dtype):
    array = laws.draw(shape, dtype)
    for turn, moved in ((volume_inside_out, np.moveaxis(array, 0, -1)), (projections_inside_out, array.swapaxes(1, 2))):
        for where, same in laws.layouts(array):
            if where == "other byte order":
                continue
            found = turn(same)
            assert np.array_equal(found, moved), where
            assert found.flags.c_contiguous, where
            assert np.array_equal(same, array), where
        inside = turn(array)
        assert np.shares_memory(turn(_back(turn, inside)), inside)


def _back(turn, inside):
    return np.moveaxis(inside, -1, 0) if turn is volume_inside_out else inside.swapaxes(1, 2)


def test_transposed_copies_are_aligned():
    for shape in SHAPES:
        found = transpose_pairs(laws.draw(shape))
        assert found.ctypes.data % 64 == 0
        assert found.shape == (shape[0], shape[2], shape[1])
