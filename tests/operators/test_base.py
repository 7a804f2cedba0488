"""What the contract of operators gives to an operator that has only `_forward` and `_adjoint`: a dense matrix."""

import numpy as np
import pytest

from dtomo.operators import LinearOperator
from tests import laws


class Matrix(LinearOperator):
    """A dense matrix between arrays of any shapes."""

    def __init__(self, shape_in, shape_out, dtype, seed=0):
        self.shape_in, self.shape_out, self.dtype = shape_in, shape_out, np.dtype(dtype)
        self.matrix = laws.draw((int(np.prod(shape_out)), int(np.prod(shape_in))), dtype, seed)

    def _forward(self, x):
        return (self.matrix @ x.reshape(-1)).reshape(self.shape_out)

    def _adjoint(self, y):
        return (self.matrix.conj().T @ y.reshape(-1)).reshape(self.shape_in)


SHAPES = [((7,), (9,)), ((3, 4), (2, 5)), ((2, 3, 4), (5, 2, 3))]


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(("shape_in", "shape_out"), SHAPES)
def test_laws(shape_in, shape_out, dtype):
    operator = Matrix(shape_in, shape_out, dtype)
    for law in (
        laws.check_linear, laws.check_adjoint, laws.check_dtype_and_shape, laws.check_refusals, laws.check_threads,
        laws.check_sums, laws.check_keeps_input,
    ):  # fmt: skip
        law(operator)
    assert not operator.zeros().any()
    assert operator.zeros().shape == shape_in
    data = laws.draw(shape_out, np.float64)
    assert operator.arrange(data).dtype == operator.dtype
    assert np.array_equal(operator.arrange(data), data.astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_norm(dtype):
    laws.check_norm(Matrix((6,), (8,), dtype), tolerance=1e-3)


def test_norm_does_not_depend_on_scale():
    operator = Matrix((6,), (8,), np.float32)
    value = operator.norm()
    for scale in (1e-12, 1e12):
        scaled = Matrix((6,), (8,), np.float32)
        scaled.matrix = scaled.matrix * np.float32(scale)
        assert scaled.norm() == pytest.approx(value * scale, rel=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_dot_is_one_real_number_in_double_precision(dtype):
    operator = Matrix((3, 4), (2, 5), dtype)
    for shape, dot in ((operator.shape_in, operator.dot_in), (operator.shape_out, operator.dot_out)):
        x, y = laws.draw(shape, dtype), laws.draw(shape, dtype, 1)
        found = dot(x, y)
        assert found.dtype == np.float64
        assert found.shape == (1,)
        assert found[0] == pytest.approx(np.vdot(laws.wide(x), laws.wide(y)).real, rel=1e-12)


@pytest.mark.parametrize(("shape_in", "shape_out"), SHAPES)
def test_factors_broadcast(shape_in, shape_out):
    operator = Matrix(shape_in, shape_out, np.float32)
    assert np.broadcast_shapes(operator.factor_in(np.array([2.0])).shape, shape_in) == shape_in
    assert np.broadcast_shapes(operator.factor_out(np.array([2.0])).shape, shape_out) == shape_out
