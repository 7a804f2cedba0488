"""Sums slice by slice."""

import numpy as np
import pytest

from dtomo.kernels.sums import dot_slices
from tests import laws


@pytest.mark.parametrize("count", [1, 4095, 4096, 4097, 10001])
def test_double_precision(count):
    x, y = laws.draw((count, 3)), laws.draw((count, 3), seed=1)
    found = dot_slices(x, y)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, (x.astype(float) * y).sum(0), rtol=1e-12, atol=1e-10)


def test_small_numbers_beside_large_ones():
    x = np.ones((20000, 1), np.float32)
    x[0] = 2.0**20
    assert dot_slices(x, x)[0] == 2.0**40 + 19999


def test_bits_do_not_depend_on_neighbours_or_threads():
    x, y = laws.draw((9000, 7)), laws.draw((9000, 7), seed=1)
    whole = dot_slices(x, y)
    for size in (1, 2, 5):
        part = dot_slices(x[:, 2 : 2 + size].copy(), y[:, 2 : 2 + size].copy())
        assert np.array_equal(part, whole[2 : 2 + size])
    for count in (1, 2, 3):
        with laws.thread_count(count):
            assert np.array_equal(dot_slices(x, y), whole)
