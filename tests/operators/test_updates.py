"""Back projections handed out in parts, and what is done with them: the same bits as with whole volumes."""

import numpy as np
import pytest

from dtomo.geometry import ParallelBeam, cone_beam
from dtomo.operators import Masked, ParallelProjector, RayProjector
from dtomo.operators.updates import add_scaled, multiply_scaled, step_ahead
from tests import laws

BEAM = ParallelBeam(np.arange(9) * 20.0, 90, center=43.0, width=80, height=71)


def operators():
    for slices, dtype in ((1, np.float32), (3, np.float32), (5, np.float32), (70, np.float32), (20, np.complex64)):
        yield ParallelProjector(BEAM, slices, dtype)
    yield Masked(ParallelProjector(BEAM, 18), laws.draw((18, 71, 80)) > 0)
    yield RayProjector(cone_beam([0, 50, 100], 8, 20, source_axis=60, source_detector=90))


@pytest.mark.parametrize("operator", list(operators()), ids=lambda o: f"{type(o).__name__} {o.shape_in[0]} {o.dtype}")
@pytest.mark.parametrize("count", [1, 3])
def test_parts_are_those_of_the_adjoint(operator, count):
    """Every voxel once, with the parts of volumes and of what broadcasts to them, in any layout."""
    y = laws.draw(operator.shape_out, operator.dtype)
    whole = operator.adjoint(y)
    slices, height, width = operator.shape_in
    columns, each = laws.draw((1, height, width), seed=1), laws.draw((slices, 1, 1), seed=2)
    start = laws.draw(operator.shape_in, operator.dtype, seed=3)
    expected = start + whole * columns * each + np.float32(2)

    def work(part, volume, columns, each, number):
        part *= columns
        part *= each
        volume += part
        volume += number

    kept = start.copy()
    for name, volume in laws.layouts(start):  # some of them are the array itself
        with laws.thread_count(count):
            operator.adjoint_into(y, work, volume, columns, each, np.float32(2))
        np.testing.assert_array_equal(volume, expected, name)
        start[...] = kept


@pytest.mark.parametrize("bounds", [(None, None), (-0.1, None), (-0.2, 0.4)])
def test_updates_in_one_pass_have_the_bits_of_several(bounds):
    """Where the kernel serves (pieces that lie along their last axis) and where it does not."""
    whole = laws.draw((20, 40, 30))
    update, factor = laws.draw((6, 7, 30), seed=1), np.broadcast_to(laws.draw((6, 7, 1), seed=2), (6, 7, 30))
    piece = whole[3:9, 5:12]
    sums = piece + update * factor
    sums = sums if bounds == (None, None) else np.clip(sums, *(b if b is None else np.float32(b) for b in bounds))
    products = piece * (update * factor)
    for how in (factor, factor.copy()):
        for expected, call in (
            (sums, lambda u, x, f: add_scaled(u, x, f, *bounds)),
            (products, multiply_scaled),
        ):
            volume, untouched = whole.copy(), whole.copy()
            call(update.copy(), volume[3:9, 5:12], how)
            assert np.array_equal(volume[3:9, 5:12], expected)
            untouched[3:9, 5:12] = expected
            assert np.array_equal(volume, untouched)
    some = np.broadcast_to(np.maximum(factor[..., :1], 0), factor.shape)
    for how in (some, some.copy()):
        volume = piece.copy()
        multiply_scaled(update.copy(), volume, how, kept=True)
        assert np.array_equal(volume, np.where(how > 0, products, piece))
    going = np.array([True, False] * 15)
    volume = piece.copy()
    multiply_scaled(update.copy(), volume, factor, going)
    assert np.array_equal(volume, np.where(going, products, piece))


@pytest.mark.parametrize("bounds", [(None, None), (-0.1, 0.3)])
def test_a_step_ahead_has_the_bits_of_several_passes(bounds):
    """Where all lie in memory alike, in any order, and where they do not."""
    one, two, three, step = (laws.draw((5, 6, 7), seed=seed) for seed in range(4))
    ahead = np.float32(0.7)
    expected = one * -step + two * (1 + ahead) - three * ahead
    expected = expected if bounds == (None, None) else np.clip(expected, *map(np.float32, bounds))
    for move in (np.array, lambda a: np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 0, -1)), -1, 0)):
        slope, rest = move(one), [move(a) for a in (two, three)]
        step_ahead(slope, *rest, ahead, move(step), *bounds)
        assert np.array_equal(slope, expected)
    slope = one.copy()
    step_ahead(slope, np.asfortranarray(two), three, ahead, step, *bounds)
    assert np.array_equal(slope, expected)


@pytest.mark.parametrize("going", [None, True])
def test_what_has_no_factor_is_kept(going):
    volume, update, factor = laws.draw((3, 4, 5)) + 2, laws.draw((3, 4, 5), seed=1), np.ones((3, 4, 5), np.float32)
    factor[1] = 0
    where = None if going is None else np.arange(5) < 3
    expected = np.where((factor > 0) & (True if where is None else where), volume * (update * factor), volume)
    multiply_scaled(update, volume, factor, where, kept=True)
    assert np.array_equal(volume, expected)
