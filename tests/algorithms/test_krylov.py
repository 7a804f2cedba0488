"""CGLS and LSQR against SciPy's LSQR and dense least squares, and what it promises about slices and weights."""

import numpy as np
import pytest
from scipy.sparse.linalg import lsqr as scipy_lsqr

from dtomo.algorithms import cgls, lsqr
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.operators import LinearOperator, ParallelProjector
from tests import laws

GEOMETRY = ParallelBeam(np.arange(14) * 180 / 14 + 1, 15, 6.8, width=10, height=9)


class Matrix(LinearOperator):
    """A dense matrix between arrays of any shapes, with what the base class gives it."""

    def __init__(self, shape_in, shape_out, dtype, seed=0):
        self.shape_in, self.shape_out, self.dtype = shape_in, shape_out, np.dtype(dtype)
        self.matrix = laws.draw((int(np.prod(shape_out)), int(np.prod(shape_in))), dtype, seed)

    def _forward(self, x):
        return (self.matrix @ x.reshape(-1)).reshape(self.shape_out)

    def _adjoint(self, y):
        return (self.matrix.conj().T @ y.reshape(-1)).reshape(self.shape_in)


@pytest.fixture(scope="module")
def matrix():
    return laws.dense(ParallelProjector(GEOMETRY, 1))


def problem(slices=2, dtype=np.float32):
    operator = ParallelProjector(GEOMETRY, slices, dtype)
    factor = np.arange(1, slices + 1, dtype=np.float32)[:, None]
    data = operator.forward(laws.draw(operator.shape_in, dtype)) + laws.draw(operator.shape_out, dtype, 1)
    return operator, data * factor


def close(found, expected, tolerance=2e-4):
    return laws.norm(laws.wide(found) - laws.wide(expected)) <= tolerance * laws.norm(expected)


@pytest.mark.parametrize("solver", [cgls, lsqr])
@pytest.mark.parametrize("iterations", [1, 2, 5, 7])
@pytest.mark.parametrize("damping", [0.0, 0.8])
@pytest.mark.parametrize("weighted", [False, True])
def test_iterates_are_those_of_lsqr(solver, matrix, iterations, damping, weighted):
    """As long as single precision keeps the directions conjugate."""
    operator, data = problem()
    weights = np.random.default_rng(2).uniform(0, 2, operator.shape_out).astype(np.float32)
    found = solver(operator, data, iterations=iterations, damping=damping, weights=weights if weighted else None)
    assert found.solution.dtype == np.float32
    assert (found.iterations, found.reason) == (iterations, "iterations")
    assert found.residuals.shape == (iterations, 2)
    assert found.residuals.dtype == np.float64
    for z in range(2):
        root = np.sqrt(laws.wide(weights[:, z])) if weighted else np.ones(len(matrix))
        expected = scipy_lsqr(
            root[:, None] * matrix, root * laws.wide(data[:, z]), damp=damping, atol=0, btol=0, conlim=0,
            iter_lim=iterations,
        )[0]  # fmt: skip
        assert close(found.solution[z], expected), z


@pytest.mark.parametrize("solver", [cgls, lsqr])
@pytest.mark.parametrize("damping", [0.0, 3.0])
def test_the_history_is_that_of_the_residual(solver, matrix, damping):
    """|W^1/2 (A x - b)| of each iterate, without what damping adds."""
    operator, data = problem()
    weights = np.random.default_rng(2).uniform(0, 2, operator.shape_out).astype(np.float32)
    history = solver(operator, data, iterations=6, damping=damping, weights=weights).residuals
    for made in (1, 2, 5):
        solution = solver(operator, data, iterations=made, damping=damping, weights=weights).solution
        residual = operator.forward(solution).astype(np.float64) - data
        expected = np.sqrt((weights * residual**2).sum((0, 2)))
        np.testing.assert_allclose(history[made], expected, rtol=1e-4)


@pytest.mark.parametrize("solver", [cgls, lsqr])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(("damping", "iterations"), [(0.5, 70), (3.0, 25)])
def test_damped_least_squares_towards_the_starting_point(solver, matrix, dtype, damping, iterations):
    """Minimum of |W^1/2 (A x - b)|² + damping² |x - x0|², by dense normal equations."""
    operator, data = problem(2, dtype)
    weights = np.random.default_rng(2).uniform(0, 2, operator.shape_out).astype(np.float32)
    start = laws.draw(operator.shape_in, dtype, 7)
    before = start.copy()
    found = solver(operator, data, iterations=iterations, damping=damping, weights=weights, initial=start)
    assert found.solution.dtype == dtype
    assert np.array_equal(start, before)
    for z in range(2):
        w = laws.wide(weights[:, z])
        normal = matrix.T @ (w[:, None] * matrix) + damping**2 * np.eye(matrix.shape[1])
        x0 = laws.wide(start[z])
        expected = x0 + np.linalg.solve(normal, matrix.T @ (w * (laws.wide(data[:, z]) - matrix @ x0)))
        assert close(found.solution[z], expected), z


@pytest.mark.parametrize("solver", [cgls, lsqr])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(("shape_in", "shape_out"), [((12,), (30,)), ((3, 4), (5, 6)), ((2, 3, 2), (5, 2, 3))])
def test_any_operator(solver, dtype, shape_in, shape_out):
    """One that is not separable and has complex entries: only with the conjugate in place does this converge."""
    operator = Matrix(shape_in, shape_out, dtype)
    data = laws.draw(shape_out, dtype, 3)
    found = solver(operator, data, iterations=40)
    expected = np.linalg.lstsq(operator.matrix.astype(np.complex128), laws.wide(data), rcond=None)[0]
    assert close(found.solution, expected)
    assert found.residuals.shape[1] == 1
    assert (np.diff(found.residuals[:, 0]) <= 1e-5 * found.residuals[0]).all()


@pytest.mark.parametrize("solver", [cgls, lsqr])
def test_residuals_are_true_and_go_down(solver, matrix):
    operator, data = problem()
    seen = []
    found = solver(operator, data, iterations=8, callback=lambda n, norms: seen.append(n))
    assert seen == list(range(8))
    assert (np.diff(found.residuals, axis=0) < 0).all()
    for n in (0, 3, 7):
        solution = solver(operator, data, iterations=n).solution
        true = data - operator.forward(solution)
        np.testing.assert_allclose(found.residuals[n], np.sqrt(operator.dot_out(true, true)), rtol=1e-5)


@pytest.mark.parametrize("solver", [cgls, lsqr])
def test_weighted_residuals_are_true(solver):
    operator, data = problem()
    weights = np.random.default_rng(2).uniform(0, 2, operator.shape_out).astype(np.float32)
    found = solver(operator, data, iterations=5, weights=weights)
    true = data - operator.forward(solver(operator, data, iterations=4, weights=weights).solution)
    np.testing.assert_allclose(found.residuals[4], np.sqrt((weights * true.astype(float) ** 2).sum((0, 2))), rtol=1e-5)


@pytest.mark.parametrize("solver", [cgls, lsqr])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("options", [{}, {"damping": 0.7}, {"weights": np.linspace(0, 1, 15)}])
def test_bits_do_not_depend_on_slab_threads_or_layout(solver, dtype, options):
    operator, data = problem(20, dtype)
    whole = solver(operator, data, iterations=4, **options)
    for size in (1, 2, 3, 5, 17):
        part = solver(ParallelProjector(GEOMETRY, size, dtype), data[:, 2 : 2 + size], iterations=4, **options)
        assert np.array_equal(part.solution, whole.solution[2 : 2 + size])
        assert np.array_equal(part.residuals, whole.residuals[:, 2 : 2 + size])
    for count in (1, 2, 3):
        with laws.thread_count(count):
            again = solver(operator, data, iterations=4, **options)
            assert np.array_equal(again.solution, whole.solution)
            assert np.array_equal(again.residuals, whole.residuals)
    for where, same in laws.layouts(data):
        before = same.copy()
        assert np.array_equal(solver(operator, same, iterations=4, **options).solution, whole.solution), where
        assert np.array_equal(same, before), where


def test_a_cube_with_as_many_angles_as_slices():
    """Volume and projections then have one shape."""
    geometry = ParallelBeam(np.arange(8) * 22.5, 8)
    operator = ParallelProjector(geometry, 8)
    data = operator.forward(laws.draw(operator.shape_in))
    found = cgls(operator, data, iterations=6)
    assert (np.diff(found.residuals, axis=0) < 0).all()
    for z in range(8):
        alone = cgls(ParallelProjector(geometry, 1), data[:, z : z + 1], iterations=6)
        assert np.array_equal(alone.solution[0], found.solution[z])
        assert np.array_equal(alone.residuals[:, 0], found.residuals[:, z])


@pytest.mark.parametrize("solver", [cgls, lsqr])
def test_each_slice_stops_by_itself(solver):
    operator, data = problem(3)
    data[:, 0] = ParallelProjector(GEOMETRY, 1).forward(laws.draw((1, 9, 10)))[:, 0]
    data[:, 2] = 0
    found = solver(operator, data, iterations=12, tolerance=0.3)
    counts = set()
    for z in range(3):
        one = solver(ParallelProjector(GEOMETRY, 1), data[:, z : z + 1], iterations=12, tolerance=0.3)
        counts.add((one.iterations, one.reason))
        assert np.array_equal(one.solution[0], found.solution[z]), z
        count = len(one.residuals)
        assert np.array_equal(one.residuals[:, 0], found.residuals[:count, z]), z
        assert (found.residuals[count:, z] == one.residuals[-1]).all(), z
    assert (0, "tolerance") in counts
    assert len(counts) == 3


@pytest.mark.parametrize("solver", [cgls, lsqr])
def test_a_weight_of_zero_is_a_pixel_not_measured(solver):
    operator, data = problem()
    weights = np.ones(operator.shape_out, np.float32)
    weights[3, :, 8] = 0
    spoilt = data.copy()
    spoilt[weights == 0] = 1e4
    one, two = (solver(operator, d, iterations=5, weights=weights).solution for d in (data, spoilt))
    assert np.array_equal(one, two)
    weights = np.ones((14, 1, 1), np.float32)
    weights[4] = 0
    kept = np.arange(14) != 4
    fewer = ParallelProjector(GEOMETRY.replace(angles=GEOMETRY.angles[kept]), 2)
    found, expected = solver(operator, data, iterations=5, weights=weights), solver(fewer, data[kept], iterations=5)
    assert close(found.solution, expected.solution)
    np.testing.assert_allclose(found.residuals, expected.residuals, rtol=1e-5)


def test_a_pixel_that_is_not_a_number_and_not_measured():
    operator, data = problem()
    weights = np.ones(operator.shape_out, np.float32)
    weights[3, :, 8] = 0
    spoilt = data.copy()
    spoilt[weights == 0] = np.nan
    found = cgls(operator, spoilt, iterations=3, weights=weights)
    assert np.isfinite(found.solution).all()
    assert np.isfinite(found.residuals).all()


@pytest.mark.parametrize("solver", [cgls, lsqr])
def test_a_broken_slice_spoils_no_other(solver):
    operator, data = problem(3)
    spoilt = data.copy()
    spoilt[2, 1, 3] = np.nan
    found, clean = solver(operator, spoilt, iterations=4), solver(operator, data, iterations=4)
    assert np.array_equal(found.solution[[0, 2]], clean.solution[[0, 2]])


@pytest.mark.parametrize("solver", [cgls, lsqr])
def test_angles_that_coincide(solver):
    """Repeated frames count as often as they were measured, and nothing breaks (C04)."""
    angles = np.r_[
        GEOMETRY.angles, np.full(10, GEOMETRY.angles[3]), GEOMETRY.angles[:3] + 180, GEOMETRY.angles[:3] - 360
    ]
    operator = ParallelProjector(GEOMETRY.replace(angles=angles), 1)
    x = laws.draw(operator.shape_in)
    found = solver(operator, operator.forward(x), iterations=60)
    assert found.residuals[-1] < 5e-3 * found.residuals[0]
    assert close(found.solution, x, 0.3)


@pytest.mark.parametrize("solver", [cgls, lsqr])
def test_zero_data_zero_iterations_and_starting_at_the_answer(solver):
    operator, data = problem()
    nothing = solver(operator, np.zeros_like(data), iterations=5)
    assert not nothing.solution.any()
    assert not nothing.residuals.any()
    start = laws.draw(operator.shape_in)
    none = solver(operator, data, iterations=0, initial=start)
    assert np.array_equal(none.solution, start)
    assert (none.iterations, none.residuals.size, none.reason) == (0, 0, "iterations")
    there = solver(operator, operator.forward(start), iterations=5, initial=start)
    assert np.array_equal(there.solution, start)
    assert (there.iterations, there.reason) == (0, "tolerance")


@pytest.mark.parametrize("solver", [cgls, lsqr])
@pytest.mark.parametrize(
    "damping",
    [0.0, 3.0, 30.0],
)
def test_many_iterations_do_not_run_away(solver, damping):
    """Once the gradient is rounding noise, further iterations must not spoil the answer."""
    geometry = ParallelBeam(np.arange(90) * 2.0, 64)
    operator = ParallelProjector(geometry, 1)
    volume = np.zeros(operator.shape_in, np.float32)
    volume[0, 20:40, 25:50] = 1
    data = operator.forward(volume) + 0.3 * laws.draw(operator.shape_out)
    found = solver(operator, data, iterations=200, damping=damping)
    settled = solver(operator, data, iterations=40, damping=damping)
    assert np.isfinite(found.solution).all()
    assert (np.diff(found.residuals[:, 0]) <= 1e-3 * found.residuals[0]).all()
    if damping:
        assert close(found.solution, settled.solution, 0.01)


def test_callback_stops():
    operator, data = problem()
    found = cgls(operator, data, iterations=50, callback=lambda n, norms: n == 3)
    assert (found.iterations, found.reason) == (3, "callback")
    assert np.array_equal(found.solution, cgls(operator, data, iterations=3).solution)


@pytest.mark.parametrize("solver", [cgls, lsqr])
@pytest.mark.parametrize(
    "options",
    [
        {"iterations": -1}, {"initial": np.zeros((2, 9, 9), np.float32)}, {"weights": np.zeros((13, 1, 1))},
        {"weights": -np.ones((14, 1, 1))}, {"weights": np.full((14, 1, 1), np.nan)},
    ],
    ids=str,
)  # fmt: skip
def test_refused(solver, options):
    operator, data = problem()
    with pytest.raises(UserError):
        solver(operator, data, **options)


def test_refused_data():
    operator, data = problem()
    for wrong in (data[:, :1], data[:, 0], data[:-1], data.astype(np.complex64)):
        with pytest.raises(UserError):
            cgls(operator, wrong)


@pytest.mark.parametrize("solver", [cgls, lsqr])
@pytest.mark.parametrize("damping", [np.nan, np.inf])
def test_damping_that_is_no_number(solver, damping):
    operator, data = problem()
    with pytest.raises(UserError):
        solver(operator, data, damping=damping)


def test_a_complex_starting_point_of_a_real_problem():
    operator, data = problem()
    with pytest.raises(UserError):
        cgls(operator, data, iterations=1, initial=np.full(operator.shape_in, 1j, np.complex64))
