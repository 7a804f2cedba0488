"""OS-SART and OSEM against their published iterations on dense matrices, and what they promise."""

import math

import numpy as np
import pytest

from dtomo.algorithms import mlem, os_sart, osem, sirt, subset_order
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.operators import LinearOperator, ParallelProjector
from dtomo.simulate import Phantom
from tests import laws

GEOMETRY = ParallelBeam(np.arange(12) * 15.0, 20, 9.2, width=16, height=16)
BODY = Phantom(np.array([[1.0, 0.6, 0.4, 9.0, 0.1, -0.15, 0.0, 30.0], [-0.5, 0.2, 0.15, 9.0, 0.1, -0.2, 0.0, 0.0]]))
SINGLE = ParallelProjector(GEOMETRY, 1)


@pytest.fixture(scope="module")
def problem():
    operator = ParallelProjector(GEOMETRY, 3)
    volume = BODY.volume(16, 1) * np.arange(1, 4, dtype=np.float32)[:, None, None]
    return operator, volume, operator.forward(volume) + 0.1 * laws.draw(operator.shape_out)


def inverse(sums):
    return np.divide(1, sums, out=np.zeros_like(sums), where=sums > 1e-6 * sums.max())


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10, 12, 64, 97])
def test_each_subset_once_and_the_next_one_far_away(count):
    order = subset_order(count)
    assert sorted(order) == list(range(count))
    if count > 6:
        steps = np.diff(order) % count
        assert (np.minimum(steps, count - steps) >= 0.25 * count).all()
        assert math.isclose(np.median(np.maximum(steps, count - steps)), 0.618 * count, rel_tol=0.25)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_the_published_iteration_of_os_sart(problem, weighted, dtype):
    _, _, data = problem
    operator = ParallelProjector(GEOMETRY, 3, dtype)
    data = data.astype(dtype) * dtype(1 if dtype is np.float32 else 1 + 0.5j)
    weights = np.random.default_rng(2).uniform(0, 2, operator.shape_out).astype(np.float32)
    lower = 0.0 if dtype is np.float32 else None
    found = os_sart(
        operator, data, subsets=5, iterations=3, relaxation=0.8, weights=weights if weighted else None, lower=lower
    )
    assert found.solution.dtype == dtype
    assert found.residuals.shape == (3, 3)
    matrix = laws.dense(SINGLE).astype(float).reshape(12, 20, -1)
    for z in range(3):
        w = weights[:, z].astype(float) if weighted else np.ones((12, 20))
        parts = [[[0, 1], [2, 3], [4, 5, 6], [7, 8], [9, 10, 11]][number] for number in subset_order(5)]
        columns = inverse(np.max([np.einsum("acv,ac->v", matrix[part], w[part]) for part in parts], axis=0))
        x, norms = np.zeros(256, np.complex128), [np.sqrt((w * abs(data[:, z].astype(complex)) ** 2).sum())]
        for _ in range(3):
            met = 0.0
            for part in parts:
                residual = data[part, z] - matrix[part] @ x
                met += (w[part] * abs(residual) ** 2).sum()
                weighted_residual = w[part] * inverse(matrix[part].sum(2)) * residual
                x = x + 0.8 * columns * np.einsum("acv,ac->v", matrix[part], weighted_residual)
                x = np.maximum(x.real, 0) if lower == 0 else x
            norms.append(np.sqrt(met))
        assert laws.norm(laws.wide(found.solution[z]) - x) <= 1e-5 * laws.norm(x)
        np.testing.assert_allclose(found.residuals[:, z], norms[:3], rtol=1e-5)


def test_one_subset_is_all_views_at_once(problem):
    operator, _, data = problem
    np.testing.assert_allclose(
        os_sart(operator, data, subsets=1, iterations=4, lower=0.0).solution,
        sirt(operator, data, iterations=4, lower=0.0).solution, atol=1e-6,
    )  # fmt: skip
    counts = abs(data)
    np.testing.assert_allclose(
        osem(operator, counts, subsets=1, iterations=4).solution, mlem(operator, counts, iterations=4).solution,
        rtol=1e-5,
    )  # fmt: skip


def test_subsets_are_faster(problem):
    operator, volume, _ = problem
    exact = operator.forward(volume)
    for slow, fast in ((sirt, os_sart), (mlem, osem)):
        plain, taken = slow(operator, exact, iterations=30), fast(operator, exact, subsets=6, iterations=6)
        assert laws.norm(taken.solution - volume) < laws.norm(plain.solution - volume)
        assert (np.diff(taken.residuals, axis=0) < 0).all()


@pytest.mark.parametrize("background", [0.0, 0.7])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_published_iteration_of_osem(problem, weighted, background):
    operator, volume, _ = problem
    counts = np.random.default_rng(1).poisson(9 * operator.forward(volume)).astype(np.float32)
    weights = np.random.default_rng(2).uniform(0, 2, operator.shape_out).astype(np.float32)
    weights[4, :, 3:6] = 0
    given = np.where(weights > 0, counts, np.nan) if weighted else counts
    found = osem(operator, given, subsets=4, iterations=2, weights=weights if weighted else None, background=background)
    matrix = laws.dense(SINGLE).astype(float).reshape(12, 20, -1)
    for z in range(3):
        w = weights[:, z].astype(float) if weighted else np.ones((12, 20))
        x = np.ones(256)
        for _ in range(2):
            for first in subset_order(4):
                part = np.arange(3 * first, 3 * first + 3)
                expected = matrix[part] @ x + background
                ratio = w[part] * np.divide(counts[part, z], expected, out=0 * expected, where=expected > 1e-20)
                seen = np.einsum("acv,ac->v", matrix[part], w[part])
                x = x * np.einsum("acv,ac->v", matrix[part], ratio) * np.divide(1, seen, out=0 * x, where=seen > 1e-9)
        np.testing.assert_allclose(found.solution[z].ravel(), x, rtol=3e-4, atol=3e-4)


@pytest.mark.parametrize("solve", [os_sart, osem])
def test_bits_do_not_depend_on_slab_threads_or_layout(problem, solve):
    operator, _, data = problem
    data = abs(data)
    weights = np.random.default_rng(2).uniform(0, 2, operator.shape_out).astype(np.float32)
    whole = solve(operator, data, subsets=5, iterations=2, weights=weights)
    for z in range(3):
        cut = slice(z, z + 1)
        alone = solve(SINGLE, data[:, cut], subsets=5, iterations=2, weights=weights[:, cut])
        assert np.array_equal(alone.solution[0], whole.solution[z])
        assert np.array_equal(alone.residuals[:, 0], whole.residuals[:, z])
    for where, same in laws.layouts(data):
        with laws.thread_count(3):
            again = solve(operator, same, subsets=5, iterations=2, weights=weights)
        assert np.array_equal(again.solution, whole.solution), where


def test_stopped_slices_stay(problem):
    operator, volume, _ = problem
    data = operator.forward(volume)
    data[:, 1] = laws.draw((12, 20))  # what no volume has as its projections
    found = os_sart(operator, data, subsets=4, iterations=9, tolerance=0.2)
    alone = os_sart(SINGLE, data[:, :1], subsets=4, iterations=9, tolerance=0.2)
    assert alone.reason == "tolerance"
    assert found.reason == "iterations"
    assert np.array_equal(found.solution[0], alone.solution[0])


@pytest.mark.parametrize("solve", [os_sart, osem])
@pytest.mark.parametrize("count", [0, 13, 2.5])
def test_numbers_of_subsets_that_do_not_go(problem, solve, count):
    operator, _, data = problem
    with pytest.raises(UserError, match=r"number of subsets .*12"):
        solve(operator, abs(data), subsets=count)


def test_an_operator_without_views(problem):
    class Plain(LinearOperator):
        shape_in, shape_out, dtype = (4, 4), (6, 2), np.dtype(np.float32)

        def _forward(self, x):
            return np.ones(self.shape_out, np.float32) * x.sum()

        def _adjoint(self, y):
            return np.ones(self.shape_in, np.float32) * y.sum()

    with pytest.raises(UserError, match="Plain cannot be taken apart"):
        os_sart(Plain(), np.ones((6, 2), np.float32), subsets=2)


@pytest.mark.parametrize("solver", [os_sart, osem])
def test_the_first_residual_is_that_of_the_starting_point(problem, solver):
    operator, volume, data = problem
    start = np.abs(volume) + np.float32(0.1)
    found = solver(operator, np.abs(data), subsets=4, iterations=1, initial=start)
    expected = np.linalg.norm((operator.forward(start) - np.abs(data)).astype(float), axis=(0, 2))
    np.testing.assert_allclose(found.residuals[0], expected, rtol=1e-4)
