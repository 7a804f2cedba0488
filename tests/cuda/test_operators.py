"""The projector as an operator on devices: the laws of operators, and where arrays lie."""

import pickle

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.operators import LinearOperator, ParallelProjector, backproject
from tests import laws

GEOMETRIES = {
    "odd": ParallelBeam([0, 33, 90, 200], 5, center=1.4, width=6, height=4),
    "fine pitch": ParallelBeam([-20, 45, 135], 7, width=4, height=5, pitch=0.6),
}


pytestmark = pytest.mark.usefixtures("small_blocks")


class OnDevice(LinearOperator):
    """An operator on a device for those who know only the host: copies there and back."""

    def __init__(self, cupy, geometry, slices, dtype=np.float32):
        self.cupy = cupy
        self.inner = ParallelProjector(geometry, slices, dtype, like=cupy.zeros(1, dtype))
        self.shape_in, self.shape_out, self.dtype = self.inner.shape_in, self.inner.shape_out, self.inner.dtype

    def there(self, array):
        """On the device, z innermost: the transposition has tests of its own."""
        axis = 0 if array.shape == self.shape_in else 1
        inside = np.ascontiguousarray(np.moveaxis(array, axis, -1))
        return self.cupy.moveaxis(self.cupy.asarray(inside), -1, axis)

    def back(self, array):
        assert isinstance(array, self.cupy.ndarray)
        return array.host.copy(order="K")

    def _forward(self, x):
        return self.back(self.inner.forward(self.there(x)))

    def _adjoint(self, y):
        return self.back(self.inner.adjoint(self.there(y)))

    def row_sums(self):
        return self.back(self.inner.row_sums())

    def column_sums(self, weights=None):
        return self.back(self.inner.column_sums(None if weights is None else self.there(weights)))


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("slices", [1, 3])
def test_laws(cupy, name, slices, dtype):
    operator = OnDevice(cupy, GEOMETRIES[name], slices, dtype)
    laws.check_linear(operator)
    laws.check_adjoint(operator)
    laws.check_sums(operator)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_slices_by_themselves(cupy, dtype):
    laws.check_slices(lambda slices: OnDevice(cupy, GEOMETRIES["odd"], slices, dtype), 9, (1, 4))


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_against_the_host(cupy, record_error, dtype):
    for geometry in GEOMETRIES.values():
        there, here = OnDevice(cupy, geometry, 3, dtype), ParallelProjector(geometry, 3, dtype)
        for (_, apply, shape, _), (_, expected, _, _) in zip(laws.both_ways(there), laws.both_ways(here)):
            x = laws.draw(shape, dtype)
            found, wanted = apply(x), expected(x)
            assert laws.norm(found - wanted) <= 3e-7 * laws.norm(wanted)
            record_error(found, wanted)
        lines = laws.draw(here.shape_out, dtype, 3)
        found, wanted = backproject(there.there(lines), geometry).get(), backproject(lines, geometry)
        assert laws.norm(found - wanted) <= 3e-7 * laws.norm(wanted)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_inner_products_are_on_the_host_with_its_bits(cupy, dtype):
    geometry = GEOMETRIES["odd"]
    there, here = ParallelProjector(geometry, 3, dtype, cupy.zeros(1)), ParallelProjector(geometry, 3, dtype)
    for name, shape in (("dot_in", here.shape_in), ("dot_out", here.shape_out)):
        x, y = laws.draw(shape, dtype, 1), laws.draw(shape, dtype, 2)
        found = getattr(there, name)(cupy.asarray(x), cupy.asarray(y))
        assert type(found) is np.ndarray
        assert np.array_equal(found, getattr(here, name)(x, y))
        plain = getattr(LinearOperator, name)(there, cupy.asarray(x), cupy.asarray(y))
        assert plain[0] == pytest.approx(np.vdot(laws.wide(x), laws.wide(y)).real, rel=1e-12)


def test_arrays_of_its_own_lie_where_it_is_told(cupy):
    geometry = GEOMETRIES["odd"]
    there, here = ParallelProjector(geometry, 3, like=cupy.zeros(1)), ParallelProjector(geometry, 3)
    assert (there.device, there.xp) == (True, cupy)
    assert (here.device, here.xp) == (False, np)
    for operator, kind in ((there, cupy.ndarray), (here, np.ndarray)):
        assert isinstance(operator.zeros(), kind)
        assert isinstance(operator.factor_in(np.ones(3)), kind)
        assert isinstance(operator.factor_out(np.ones(3)), kind)
        assert operator.factor_out(np.arange(3.0)).shape == (1, 3, 1)
    for sums in ("row_sums", "column_sums"):
        found, expected = getattr(there, sums)(), getattr(here, sums)()
        assert found.shape == expected.shape
        np.testing.assert_allclose(found.get(), expected, rtol=1e-6, atol=1e-6)
    again = pickle.loads(pickle.dumps(there))
    assert isinstance(again.zeros(), cupy.ndarray)
    assert there.norm(6) == pytest.approx(here.norm(6), rel=1e-5)


def test_results_keep_the_layout_and_pass_without_a_copy(cupy):
    operator = ParallelProjector(GEOMETRIES["odd"], 2, like=cupy.zeros(1))
    image = operator.forward(operator.zeros())
    assert operator.zeros().strides == operator.adjoint(image).strides
    assert np.shares_memory(operator.arrange(image).host, image.host)
    data = cupy.asarray(laws.draw(operator.shape_out, np.float64))
    arranged = operator.arrange(data)
    assert arranged.dtype == np.float32
    assert arranged.strides == image.strides
    assert (arranged + image).strides == image.strides


def test_forward_and_adjoint_go_by_their_arguments(cupy):
    operator = ParallelProjector(GEOMETRIES["odd"], 1)
    x = laws.draw(operator.shape_in)
    assert isinstance(operator.forward(cupy.asarray(x)), cupy.ndarray)
    assert isinstance(operator.adjoint(operator.forward(x)), np.ndarray)
    with pytest.raises(UserError, match=r"forward takes an array of shape"):
        operator.forward(cupy.zeros((2, 2, 2), np.float32))
    with pytest.raises(UserError, match=r"forward is real .*complex"):
        operator.forward(cupy.zeros(operator.shape_in, np.complex64))
    with pytest.raises(TypeError, match="host"):
        operator.dot_in(cupy.asarray(x), x)
