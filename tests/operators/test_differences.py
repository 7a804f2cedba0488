"""Differences as an operator: the laws, NumPy's differences, refusals."""

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.operators import Differences
from tests import laws


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (2.0, 0.5, 3.0), (1.0, 2.0)])
@pytest.mark.parametrize("shape", [(5, 6, 7), (1, 4, 9), (33, 3, 2)])
def test_numpy_and_the_adjoint(shape, spacing, dtype):
    operator = Differences(shape, spacing, dtype)
    volume = laws.draw(shape, dtype)
    axes = range(3)[-len(spacing) :]
    for part, axis, step in zip(operator.forward(volume), axes, spacing):
        last = np.take(volume, [-1], axis)
        np.testing.assert_allclose(part, np.diff(volume, axis=axis, append=last) / step, atol=1e-6)
    assert operator.forward(volume).dtype == dtype
    assert laws.adjoint_error(operator) < 1e-6


@pytest.mark.parametrize("spacing", [(1.0,), (1.0, 0.0), (1.0, np.inf, 1.0), (1, 1, 1, 1)])
def test_spacings_that_are_none(spacing):
    with pytest.raises(UserError, match="spacing of voxels is positive"):
        Differences((4, 4, 4), spacing)


def test_other_dtypes():
    with pytest.raises(UserError, match="float32 or complex64"):
        Differences((4, 4, 4), dtype=np.float64)
