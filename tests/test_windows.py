"""Windows and rows: their sums are those of the whole arrays, whatever the order."""

import numpy as np
import pytest

from dtomo.distributed.sums import tree_sum
from dtomo.windows import Rows, Window


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_sum_of_windows_is_the_sum_of_the_images(count):
    random = np.random.default_rng(count)
    windows = []
    for _ in range(count):
        row, column = random.integers(0, 20, 2)
        values = random.standard_normal((2, 7, 5)) + 1j * random.standard_normal((2, 7, 5))
        windows.append(Window(values.astype(np.complex64), (int(row), int(column))))
    kept = [window.values.copy() for window in windows]
    total = tree_sum(windows).put_into((2, 30, 30))
    expected = sum(window.put_into((2, 30, 30)) for window in windows)
    assert total.dtype == np.complex64
    np.testing.assert_allclose(total, expected, atol=1e-5)
    for window, before in zip(windows, kept):
        np.testing.assert_array_equal(window.values, before)


def test_rows_of_blocks_come_together():
    blocks = [Rows(np.array([3, 1]), np.ones((2, 2))), Rows(np.array([0]), np.full((1, 2), 5.0))]
    total = tree_sum(blocks)
    np.testing.assert_array_equal(total.put_into((5, 2))[:, 0], [5, 1, 0, 1, 0])
