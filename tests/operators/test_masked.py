"""Laws of an operator behind a mask, and of projectors of some of their views."""

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.operators import Masked, ParallelProjector
from tests import laws

GEOMETRY = ParallelBeam(np.arange(9) * 20.0, 15, 6.8, width=10, height=9)
INSIDE = np.random.default_rng(0).random((9, 10)) > 0.4


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_laws(dtype):
    operator = Masked(ParallelProjector(GEOMETRY, 3, dtype), INSIDE)
    laws.check_linear(operator)
    laws.check_adjoint(operator)
    laws.check_refusals(operator)
    laws.check_pickles(operator)
    laws.check_keeps_input(operator)
    laws.check_sums(operator)
    laws.check_zeros_and_arrange(operator)
    laws.check_slices(lambda slices: Masked(ParallelProjector(GEOMETRY, slices, dtype), INSIDE), 4)
    laws.check_norm(Masked(ParallelProjector(GEOMETRY, 1, dtype), INSIDE))


def test_columns_outside_are_zero():
    plain, masked = (
        laws.dense(op) for op in (ParallelProjector(GEOMETRY, 1), Masked(ParallelProjector(GEOMETRY, 1), INSIDE))
    )
    np.testing.assert_array_equal(masked, plain * INSIDE.ravel())


@pytest.mark.parametrize("make", [lambda op: op, lambda op: Masked(op, INSIDE)], ids=["plain", "masked"])
@pytest.mark.parametrize("numbers", [[3], [8, 0, 4], np.arange(1, 9, 2)], ids=str)
def test_some_views_are_those_of_the_whole(make, numbers):
    operator = make(ParallelProjector(GEOMETRY, 3))
    some, volume = operator.of_views(numbers), laws.draw(operator.shape_in)
    assert some.shape_out == (len(numbers), *operator.shape_out[1:])
    assert np.array_equal(some.forward(volume), operator.forward(volume)[numbers])
    assert laws.adjoint_error(some) < 1e-6
    assert operator.shape_out[0] == 9


@pytest.mark.parametrize("numbers", [[], [9], [-1], [0.5], 3, [True, False]], ids=str)
def test_numbers_of_no_views(numbers):
    with pytest.raises(UserError, match="numbers from 0 to 8"):
        ParallelProjector(GEOMETRY, 3).of_views(numbers)


def test_the_norm_is_that_of_a_slice():
    largest = np.linalg.svd(laws.dense(ParallelProjector(GEOMETRY, 1)), compute_uv=False)[0]
    assert ParallelProjector(GEOMETRY, 5, np.complex64).norm() == pytest.approx(largest, rel=1e-3)
