"""Element-wise work in pieces, in any layout."""

import numpy as np
import pytest

from dtomo.elementwise import in_pieces
from tests import laws


def add(target, source, factor):
    target += source * factor


@pytest.mark.parametrize("shape", [(1,), (300_001,), (1, 1, 1), (70, 50, 100), (2, 1, 200_000), (1, 300, 500)])
@pytest.mark.parametrize("count", [1, 3])
def test_pieces_cover_everything_once(shape, count):
    source = laws.draw(shape)
    for _where, target in laws.layouts(laws.draw(shape, seed=1)):
        expected = target + source * np.float32(2)
        with laws.thread_count(count):
            in_pieces(add, target, source, np.float32(2))
        assert np.array_equal(target, expected)


def test_smaller_arrays_are_broadcast():
    target, factor = laws.draw((5, 300, 200)), laws.draw((5, 1, 1), seed=1)
    source = laws.draw((300, 200), seed=2)
    expected = target + source * factor
    in_pieces(add, target, source, factor)
    assert np.array_equal(target, expected)


def test_several_arrays_are_written():
    one, two = laws.draw((100, 5000)), laws.draw((100, 5000), seed=1)
    first, second = one.copy(), two.copy()

    def swap(a, b):
        a[...], b[...] = b.copy(), a.copy()

    in_pieces(swap, one, two)
    assert np.array_equal(one, second)
    assert np.array_equal(two, first)


def test_what_is_alike_in_all_pieces_is_written_out_once():
    """A factor of each slice of a volume that has z innermost: pieces get it as long as they are themselves."""
    volume = np.moveaxis(laws.draw((300, 200, 7)), -1, 0)
    factor = laws.draw((7, 1, 1), seed=1)
    expected, seen = volume * factor, []

    def multiply(part, times):
        seen.append((part.shape == times.shape, part.strides == times.strides or part.shape[1] == 1))
        part *= times

    in_pieces(multiply, volume, factor)
    assert np.array_equal(volume, expected)
    assert set(seen) == {(True, True)}
