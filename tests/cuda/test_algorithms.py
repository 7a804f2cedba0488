"""Iterative algorithms on device arrays: nothing crosses to the host but numbers per slice, results are the CPU's."""

import numpy as np
import pytest

from dtomo.algorithms import (
    Denoiser,
    Discrepancy,
    HeldOut,
    Huber,
    NuclearNorm,
    State,
    StudentT,
    TotalVariation,
    Wavelets,
    cgls,
    fista,
    iterate,
    lsqr,
    mlem,
    os_sart,
    osem,
    sirt,
    tv,
)
from dtomo.algorithms.iteration import inverse
from dtomo.device import to_host
from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.io import Checkpoints, Schedule
from dtomo.operators import LinearOperator, ParallelProjector
from tests import laws

SLICES, SIDE, RAYS = 3, 5, 31


class Matrix(LinearOperator):
    """One dense matrix for every slice, ``(z, y, x)`` to ``(angle, z, column)``, on the arrays of one module."""

    shape_in, shape_out = (SLICES, SIDE, SIDE), (RAYS, SLICES, 1)

    def __init__(self, dtype, xp=np):
        self.dtype, self.device = np.dtype(dtype), xp is not np
        self.matrix = xp.asarray(np.abs(laws.draw((RAYS, SIDE * SIDE), np.float32)))

    def _forward(self, x):
        return np.tensordot(self.matrix, x.reshape(SLICES, -1), axes=(1, 1))[:, :, None]

    def _adjoint(self, y):
        return np.dot(y[:, :, 0].T, self.matrix).reshape(self.shape_in)

    def of_views(self, numbers):
        some = Matrix(self.dtype, self.xp)
        some.matrix = self.matrix[self.xp.asarray(numbers)]
        some.shape_out = (len(numbers), SLICES, 1)
        return some

    def row_sums(self):
        return self.matrix.sum(1)[:, None, None]

    def column_sums(self, weights=None):
        ones = self.xp.ones(self.shape_out, np.float32) if weights is None else weights.astype(np.float32)
        return self.adjoint(ones.astype(self.dtype)).real

    def dot_in(self, x, y):
        return self._dot(x, y, (1, 2))

    def dot_out(self, x, y):
        return self._dot(x, y, (0, 2))

    def _dot(self, x, y, axes):
        return to_host((np.conj(x).astype(np.complex128) * y).sum(axes).real)


def problem(dtype=np.float32):
    """Operator, data, starting point and weights on the host."""
    operator = Matrix(dtype)
    data = operator.forward(laws.draw(operator.shape_in, dtype)) + laws.draw(operator.shape_out, dtype, 1)
    data = data * np.arange(1, SLICES + 1, dtype=np.float32)[:, None]
    weights = np.random.default_rng(3).uniform(0, 2, operator.shape_out).astype(np.float32)
    weights[3] = 0
    return operator, data, laws.draw(operator.shape_in, dtype, 2), weights


def moved(value, cupy):
    return cupy.asarray(value) if isinstance(value, np.ndarray) else value


def close(found, expected):
    assert laws.norm(found.get() - expected) <= 1e-5 * laws.norm(expected)


MASK = np.arange(SIDE) < SIDE - 1

CASES = [
    (sirt, {}), (sirt, {"weights": True, "relaxation": 1.5}), (sirt, {"lower": 0.0, "upper": 0.5}),
    (sirt, {"lower": -0.5, "initial": True}), (sirt, {"initial": True, "tolerance": 0.5}),
    (cgls, {}), (cgls, {"weights": True, "damping": 0.7, "initial": True}), (cgls, {"tolerance": 0.3}),
    (tv, {"strength": 0.3, "weights": True}), (tv, {"strength": 0.3, "lower": 0.0, "kind": "anisotropic"}),
    (mlem, {"weights": True, "background": 0.5}),
    (lsqr, {"weights": True, "damping": 0.7, "initial": True}), (lsqr, {"tolerance": 0.3}),
    (os_sart, {"weights": True, "subsets": 4, "lower": 0.0}), (osem, {"subsets": 4, "background": 0.5}),
    (osem, {"subsets": 2, "weights": True}), (tv, {"strength": 0.3, "data_term": Huber(0.3), "mask": MASK}),
    (cgls, {"stop": HeldOut(0.2, 1), "mask": MASK}), (sirt, {"weights": True, "stop": Discrepancy(2.0)}),
    (tv, {"strength": 0.3, "spacing": (1.0, 1.0), "stop": HeldOut(0.2, 1)}),
    (fista, {"weights": True, "lower": 0.0}), (fista, {"data_term": StudentT(0.5), "mask": MASK}),
    (fista, {"prior": TotalVariation(0.3), "data_term": Huber(0.5)}), (fista, {"prior": Wavelets(0.3, 1, spins=2)}),
    (fista, {"prior": TotalVariation(0.3, (1.0, 2.0)), "initial": True, "lower": 0.0, "mask": MASK}),
    (fista, {"prior": NuclearNorm(0.3, 2)}), (fista, {"prior": Denoiser(lambda x: x * np.float32(0.9))}),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(("method", "options"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_the_same_as_on_the_cpu(cupy, method, options, dtype):
    if np.dtype(dtype).kind == "c" and "lower" in options:
        pytest.skip("bounds need a real solution")
    if np.dtype(dtype).kind == "c" and method in (mlem, osem):
        pytest.skip("counts are real")
    operator, data, initial, weights = problem(dtype)
    data = abs(data) if method in (mlem, osem) else data
    arrays = {"initial": initial, "weights": weights}
    options = {name: arrays.get(name, value) if value is True else value for name, value in options.items()}
    expected = method(operator, data, iterations=4, **options)
    device = {name: moved(value, cupy) for name, value in options.items()}
    found = method(Matrix(dtype, cupy), cupy.asarray(data), iterations=4, **device)
    close(found.solution, expected.solution)
    assert isinstance(found.residuals, np.ndarray)
    np.testing.assert_allclose(found.residuals, expected.residuals, rtol=1e-5)
    assert (found.iterations, found.reason) == (expected.iterations, expected.reason)


@pytest.mark.parametrize("method", [sirt, cgls])
def test_slices_that_stop_early_stay_where_they_are(cupy, method):
    """Slice 0 begins at its answer, the others do not."""
    operator, _, start, _ = problem()
    data = operator.forward(start)
    data[:, 1:] *= 2
    expected = method(operator, data, initial=start, iterations=4, tolerance=0.2)
    arguments = Matrix(np.float32, cupy), cupy.asarray(data)
    found = method(*arguments, initial=cupy.asarray(start), iterations=4, tolerance=0.2)
    close(found.solution, expected.solution)
    assert np.array_equal(found.solution.get()[0], start[0])


class Died(Exception):
    """Stands for a killed process."""


def dies_at(number):
    def callback(n, norms):
        assert isinstance(norms, np.ndarray)
        if n == number:
            raise Died

    return callback


def same(one, two):
    return np.array_equal(one.solution.get(), two.solution.get()) and np.array_equal(one.residuals, two.residuals)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("method", [sirt, cgls])
def test_checkpoints_on_disk_and_back(cupy, tmp_path, method, dtype):
    _, data, _, _ = problem(dtype)
    operator, data = Matrix(dtype, cupy), cupy.asarray(data)
    whole = method(operator, data, iterations=6)
    keep = {"checkpoints": Checkpoints(tmp_path, schedule=Schedule(iterations=2))}
    with pytest.raises(Died):
        method(operator, data, iterations=6, callback=dies_at(5), **keep)
    assert same(method(operator, data, iterations=6, **keep), whole)


class InMemory:
    """Keeps host copies, and hands them out as they are."""

    def __init__(self):
        self.last = None

    def restore(self):
        return self.last

    def offer(self, state):
        parts = {name: np.array(to_host(value), copy=True) for name, value in state.parts.items()}
        self.last = State(parts, state.residuals.copy())


@pytest.mark.parametrize("method", [sirt, cgls])
@pytest.mark.parametrize("begun_on_device", [True, False])
def test_a_run_goes_on_where_there_is_a_device_or_none(cupy, method, begun_on_device):
    operator, data, _, _ = problem()
    places = [(Matrix(np.float32, cupy), cupy.asarray(data)), (operator, data)]
    first, second = places if begun_on_device else places[::-1]
    expected, keeper = method(operator, data, iterations=6), InMemory()
    method(*first, iterations=4, checkpoints=keeper)
    assert keeper.last.iteration == 3
    found = method(*second, iterations=6, checkpoints=keeper)
    assert type(found.solution) is type(second[1])
    close(cupy.asarray(found.solution) if begun_on_device else found.solution, expected.solution)


def test_iterate_is_public(cupy):
    """The example in the documentation of `dtomo.algorithms.iteration`, unchanged."""
    from tests.algorithms.test_iteration import Landweber

    operator, data, _, _ = problem()
    step = np.float32(1e-3)
    found = iterate(Landweber(Matrix(np.float32, cupy), cupy.asarray(data), step), 5)
    close(found.solution, iterate(Landweber(operator, data, step), 5).solution)


@pytest.mark.parametrize("name", ["data", "initial", "weights"])
def test_arrays_on_the_other_side_are_refused(cupy, name):
    operator, *arrays = problem()
    arrays = dict(zip(("data", "initial", "weights"), arrays))
    with pytest.raises(UserError, match=f"works in host memory, but `{name}` lies on a device"):
        sirt(operator, **{**arrays, name: cupy.asarray(arrays[name])})
    device = {key: moved(value, cupy) for key, value in arrays.items()}
    with pytest.raises(UserError, match=f"works on a device, but `{name}` lies in host memory"):
        cgls(Matrix(np.float32, cupy), **{**device, name: arrays[name]})


def test_numbers_as_weights_lie_anywhere(cupy):
    operator, data, _, _ = problem()
    found = sirt(Matrix(np.float32, cupy), cupy.asarray(data), weights=2.0, iterations=3)
    close(found.solution, sirt(operator, data, weights=2.0, iterations=3).solution)


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_pieces_of_device_arrays(cupy, monkeypatch, piece):
    monkeypatch.setattr("dtomo.elementwise.DEVICE_PIECE", piece)
    target, source = laws.draw((3, 4, 5)), laws.draw((4, 1), seed=1)
    sizes = []

    def add(a, b, c):
        assert isinstance(b, cupy.ndarray)
        sizes.append(a.size)
        a += b * c

    for _, place in laws.layouts(target):
        device = cupy.ndarray(place.copy(order="K"))
        sizes.clear()
        in_pieces(add, device, cupy.asarray(source), np.float32(2))
        assert np.array_equal(device.get(), target + source * np.float32(2))
        assert sum(sizes) == target.size
        assert max(sizes) <= max(piece, target.size // min(target.shape))
    with pytest.raises(TypeError, match="host"):
        in_pieces(add, device, source, np.float32(2))


def test_inverse(cupy):
    values = np.array([0, -1, 1e-31, 2, 4], np.float32)
    found = inverse(cupy.asarray(values))
    assert found.dtype == np.float32
    assert np.array_equal(found.get(), np.array([0, 0, 0, 0.5, 0.25], np.float32))


@pytest.mark.parametrize(
    ("method", "dtype", "options"),
    [
        (sirt, np.float32, {"weights": True, "lower": 0.0}), (sirt, np.complex64, {"initial": True}),
        (cgls, np.float32, {"initial": True, "damping": 0.5}), (cgls, np.complex64, {"weights": True}),
    ],
)  # fmt: skip
def test_with_the_projector(cupy, small_blocks, tmp_path, method, dtype, options):
    """In any layout, and from a checkpoint."""
    geometry = ParallelBeam([0, 63], 4, center=1.4, width=4, height=3)
    operator = ParallelProjector(geometry, 2, dtype)
    device = ParallelProjector(geometry, 2, dtype, like=cupy.zeros(1, dtype))
    data = operator.forward(laws.draw(operator.shape_in, dtype)) + laws.draw(operator.shape_out, dtype, 1)
    arrays = {
        "initial": laws.draw(operator.shape_in, dtype, 2),
        "weights": np.abs(laws.draw(operator.shape_out, np.float32, 3)),
    }
    options = {name: arrays.get(name, value) if value is True else value for name, value in options.items()}
    expected = method(operator, data, iterations=2, **options)
    there = {name: moved(value, cupy) for name, value in options.items()}
    keep = {"checkpoints": Checkpoints(tmp_path, schedule=Schedule(iterations=1))}
    with pytest.raises(Died):
        method(device, cupy.asarray(data), iterations=2, callback=dies_at(1), **keep, **there)
    found = method(device, cupy.asarray(data), iterations=2, **keep, **there)
    close(found.solution, expected.solution)
    np.testing.assert_allclose(found.residuals, expected.residuals, rtol=1e-5)
