"""SIRT against its published iteration on a dense matrix, and what it promises about slices, weights and bounds."""

import numpy as np
import pytest

from dtomo.algorithms import sirt
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.operators import ParallelProjector
from dtomo.simulate import Phantom
from tests import laws

SIZE = 16
GEOMETRY = ParallelBeam(np.arange(12) * 15.0, 20, 9.2, width=SIZE, height=SIZE)
BODY = Phantom(np.array([[1.0, 0.6, 0.4, 9.0, 0.1, -0.15, 0.0, 30.0], [-0.5, 0.2, 0.15, 9.0, 0.1, -0.2, 0.0, 0.0]]))


def problem(slices=3, dtype=np.float32, noise=0.1):
    """Operator, volume and noisy data; every slice another one."""
    operator = ParallelProjector(GEOMETRY, slices, dtype)
    factor = np.arange(1, slices + 1, dtype=np.float32)[:, None, None]
    volume = (BODY.volume(SIZE, 1) * factor).astype(dtype)
    if operator.dtype.kind == "c":
        volume = volume * np.complex64(1 + 0.5j) + 1j * np.swapaxes(volume, 1, 2)
    data = operator.forward(volume) + noise * laws.draw(operator.shape_out, dtype)
    return operator, volume, data


def published(matrix, data, iterations, weights=None, relaxation=1.0, start=None, lower=None, upper=None):
    """x += C Aᴴ W R (b - A x) of Gregor and Benson in float64; R and C from the row and weighted column sums."""
    weights = np.ones(len(matrix)) if weights is None else weights
    rows, columns = matrix.sum(1).real, (matrix.T @ weights).real
    rows = np.divide(1, rows, out=np.zeros_like(rows), where=rows > 1e-6 * rows.max())
    columns = np.divide(1, columns, out=np.zeros_like(columns), where=columns > 1e-6 * columns.max())
    x = np.zeros(matrix.shape[1], data.dtype) if start is None else start.copy()
    norms = []
    for _ in range(iterations):
        residual = data - matrix @ x
        norms.append(np.sqrt((weights * np.abs(residual) ** 2).sum()))
        x = x + relaxation * columns * (matrix.T @ (weights * rows * residual))
        if lower is not None or upper is not None:
            x = np.clip(x, lower, upper)
    return x, np.array(norms)


@pytest.fixture(scope="module")
def matrix():
    return laws.dense(ParallelProjector(GEOMETRY, 1))


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("relaxation", [1.0, 0.4, 1.8])
def test_the_published_iteration(matrix, dtype, weighted, relaxation):
    operator, _, data = problem(2, dtype)
    weights = np.random.default_rng(2).uniform(0, 2, operator.shape_out).astype(np.float32) if weighted else None
    found = sirt(operator, data, iterations=7, weights=weights, relaxation=relaxation)
    assert found.solution.dtype == dtype
    assert found.solution.shape == operator.shape_in
    assert found.reason == "iterations"
    assert found.iterations == 7
    assert found.residuals.shape == (7, 2)
    assert found.residuals.dtype == np.float64
    for z in range(2):
        own = None if weights is None else laws.wide(weights[:, z])
        expected, norms = published(matrix, laws.wide(data[:, z]), 7, own, relaxation)
        assert laws.norm(laws.wide(found.solution[z]) - expected) <= 1e-5 * laws.norm(expected)
        np.testing.assert_allclose(found.residuals[:, z], norms, rtol=1e-5)


def test_starting_point_and_bounds(matrix):
    operator, volume, data = problem(2)
    start = (volume + laws.draw(operator.shape_in)).astype(np.float32)
    before = start.copy()
    found = sirt(operator, data, iterations=4, initial=start, lower=0.05, upper=0.9)
    assert np.array_equal(start, before)
    assert found.solution.min() >= np.float32(0.05)
    assert found.solution.max() <= np.float32(0.9)
    for z in range(2):
        expected, norms = published(
            matrix, laws.wide(data[:, z]), 4, start=laws.wide(start[z]).clip(0.05, 0.9), lower=0.05, upper=0.9
        )  # fmt: skip
        assert laws.norm(laws.wide(found.solution[z]) - expected) <= 1e-5 * laws.norm(expected)
        np.testing.assert_allclose(found.residuals[:, z], norms, rtol=1e-5)


def test_one_bound():
    operator, _, data = problem(1)
    assert sirt(operator, data, iterations=5, lower=0.0).solution.min() == 0
    assert sirt(operator, data, iterations=5, upper=0.3).solution.max() == np.float32(0.3)
    assert sirt(operator, data, iterations=5).solution.min() < 0


def test_going_on_from_a_result_is_the_same_run():
    operator, _, data = problem(2)
    whole = sirt(operator, data, iterations=6)
    half = sirt(operator, data, iterations=3)
    rest = sirt(operator, data, iterations=3, initial=half.solution)
    assert np.array_equal(rest.solution, whole.solution)
    assert np.array_equal(np.concatenate([half.residuals, rest.residuals]), whole.residuals)


def test_residuals_go_down():
    operator, volume, data = problem(3, noise=0)
    found = sirt(operator, data, iterations=40)
    assert (np.diff(found.residuals, axis=0) < 0).all()
    assert (found.residuals[-1] < 0.03 * found.residuals[0]).all()
    np.testing.assert_allclose(found.residuals[0], np.sqrt(operator.dot_out(data, data)), rtol=1e-12)
    assert laws.norm(found.solution - volume) < 0.25 * laws.norm(volume)


def test_a_weight_of_zero_is_a_pixel_not_measured():
    operator, _, data = problem(2)
    weights = np.ones(operator.shape_out, np.float32)
    weights[3, :, 8], weights[5, 1, 4:7] = 0, 0
    spoilt = data.copy()
    spoilt[weights == 0] = 1e4
    found = sirt(operator, spoilt, iterations=5, weights=weights)
    assert np.array_equal(found.solution, sirt(operator, data, iterations=5, weights=weights).solution)
    # and as if the geometry had one angle less, where a whole frame is left out
    weights = np.ones((12, 1, 1), np.float32)
    weights[4] = 0
    kept = np.arange(12) != 4
    fewer = ParallelProjector(GEOMETRY.replace(angles=GEOMETRY.angles[kept]), 2)
    found = sirt(operator, data, iterations=5, weights=weights)
    expected = sirt(fewer, data[kept], iterations=5)
    np.testing.assert_allclose(found.solution, expected.solution, atol=1e-5)
    np.testing.assert_allclose(found.residuals, expected.residuals, rtol=1e-6)


def test_a_pixel_that_is_not_a_number_and_not_measured():
    operator, _, data = problem(2)
    weights = np.ones(operator.shape_out, np.float32)
    weights[3, :, 8] = 0
    spoilt = data.copy()
    spoilt[weights == 0] = np.nan
    found = sirt(operator, spoilt, iterations=3, weights=weights)
    assert np.isfinite(found.solution).all()
    assert np.isfinite(found.residuals).all()


def test_weights_broadcast():
    operator, _, data = problem(2)
    for shape in [(12, 1, 1), (1, 2, 1), (1, 1, 20), (20,), (2, 20), (12, 2, 20)]:
        weights = np.random.default_rng(1).uniform(0.5, 1, shape)
        found = sirt(operator, data, iterations=2, weights=weights)
        full = sirt(operator, data, iterations=2, weights=np.broadcast_to(weights, operator.shape_out).copy())
        assert np.array_equal(found.solution, full.solution), shape


def test_scale_of_the_weights_does_not_matter():
    operator, _, data = problem(2)
    weights = np.random.default_rng(1).uniform(0.5, 1, operator.shape_out)
    expected = sirt(operator, data, iterations=4, weights=weights).solution
    for scale in (2.0**-30, 2.0**30):
        assert np.array_equal(sirt(operator, data, iterations=4, weights=weights * scale).solution, expected)


def test_weights_of_one_slice_do_not_touch_another():
    """Photon counts of a slice may be a millionth of those of its neighbour."""
    operator, _, data = problem(2)
    weights = np.ones(operator.shape_out, np.float32)
    weights[:, 1] = 2.0**-24
    found = sirt(operator, data, iterations=4, weights=weights)
    alone = sirt(ParallelProjector(GEOMETRY, 1), data[:, 1:], iterations=4, weights=weights[:, 1:])
    assert alone.solution.any()
    assert np.array_equal(found.solution[1:], alone.solution)


def test_each_slice_stops_by_itself():
    operator, _, data = problem(3, noise=0)
    data = data + np.array([0, 2, 0.9], np.float32)[:, None] * laws.draw(operator.shape_out)
    found = sirt(operator, data, iterations=30, tolerance=0.12)
    alone = [sirt(ParallelProjector(GEOMETRY, 1), data[:, z : z + 1], iterations=30, tolerance=0.12) for z in range(3)]
    assert len({result.iterations for result in alone}) > 1
    assert {result.reason for result in alone} == {"tolerance", "iterations"}
    for z, one in enumerate(alone):
        assert np.array_equal(one.solution[0], found.solution[z]), z
        count = len(one.residuals)
        assert np.array_equal(one.residuals[:, 0], found.residuals[:count, z])
        assert (found.residuals[count:, z] == one.residuals[-1]).all()
        if one.reason == "tolerance":
            assert one.residuals[-1] <= 0.12 * one.residuals[0] < one.residuals[-2]
            assert len(one.residuals) == one.iterations + 1
    assert found.iterations == max(one.iterations for one in alone)


@pytest.mark.parametrize("options", [{"lower": 0.25}, {"upper": -0.25}, {"lower": 0.25, "tolerance": 0.5}])
def test_an_empty_slice_has_the_same_bits_alone_and_in_a_slab(options):
    operator, _, data = problem(2)
    data[:, 1] = 0
    found = sirt(operator, data, iterations=3, **options)
    alone = sirt(ParallelProjector(GEOMETRY, 1), data[:, 1:], iterations=3, **options)
    assert np.array_equal(found.solution[1:], alone.solution)


def test_bounds_hold_without_an_iteration():
    operator, volume, data = problem(1)
    found = sirt(operator, data, iterations=0, initial=volume - 5, lower=0.0)
    assert found.solution.min() >= 0


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_bits_do_not_depend_on_slab_threads_or_layout(dtype):
    operator, _, data = problem(20, dtype)
    options = {"iterations": 3} if operator.dtype.kind == "c" else {"iterations": 3, "lower": 0.0}
    whole = sirt(operator, data, **options)
    for size in (1, 2, 3, 5, 17):
        part = sirt(ParallelProjector(GEOMETRY, size, dtype), data[:, 2 : 2 + size], **options)
        assert np.array_equal(part.solution, whole.solution[2 : 2 + size])
        assert np.array_equal(part.residuals, whole.residuals[:, 2 : 2 + size])
    for count in (1, 2, 3):
        with laws.thread_count(count):
            again = sirt(operator, data, **options)
            assert np.array_equal(again.solution, whole.solution)
            assert np.array_equal(again.residuals, whole.residuals)
    for where, same in laws.layouts(data):
        before = same.copy()
        assert np.array_equal(sirt(operator, same, **options).solution, whole.solution), where
        assert np.array_equal(same, before), where


def test_a_cube_with_as_many_angles_as_slices():
    """Volume and projections then have one shape."""
    geometry = ParallelBeam(np.arange(8) * 22.5, 8)
    operator = ParallelProjector(geometry, 8)
    data = operator.forward(np.abs(laws.draw(operator.shape_in)))
    found = sirt(operator, data, iterations=3, tolerance=0.3)
    for z in range(8):
        alone = sirt(ParallelProjector(geometry, 1), data[:, z : z + 1], iterations=3, tolerance=0.3)
        assert np.array_equal(alone.residuals[:, 0], found.residuals[: len(alone.residuals), z])
        assert np.array_equal(alone.solution[0], found.solution[z])


def test_callback_sees_every_iteration_and_stops():
    operator, _, data = problem(2)
    seen = []
    found = sirt(operator, data, iterations=5, callback=lambda n, norms: seen.append((n, norms.copy())))
    assert [n for n, _ in seen] == [0, 1, 2, 3, 4]
    assert np.array_equal(np.array([norms for _, norms in seen]), found.residuals)
    found = sirt(operator, data, iterations=50, callback=lambda n, norms: n == 3)
    assert (found.iterations, found.reason) == (3, "callback")
    assert np.array_equal(found.solution, sirt(operator, data, iterations=3).solution)
    first = sirt(operator, data, iterations=50, callback=lambda n, norms: True)
    assert (first.iterations, first.reason) == (0, "callback")
    assert not first.solution.any()


def test_zero_data_and_zero_iterations():
    operator, volume, data = problem(2)
    nothing = sirt(operator, np.zeros_like(data), iterations=5)
    assert not nothing.solution.any()
    assert not nothing.residuals.any()
    none = sirt(operator, data, iterations=0, initial=volume)
    assert np.array_equal(none.solution, volume)
    assert (none.iterations, none.residuals.size) == (0, 0)


def test_what_no_ray_meets_stays():
    geometry = ParallelBeam([0.0, 10.0], 6, width=30, height=30)
    operator = ParallelProjector(geometry, 1)
    start = np.full(operator.shape_in, 0.7, np.float32)
    found = sirt(operator, np.ones(operator.shape_out, np.float32), iterations=3, initial=start).solution
    unseen = np.broadcast_to(operator.column_sums(), operator.shape_in) == 0
    assert unseen.any()
    assert (found[unseen] == np.float32(0.7)).all()
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    "options",
    [
        {"iterations": -1}, {"relaxation": 0.0}, {"relaxation": 2.0}, {"relaxation": -1.0}, {"relaxation": np.nan},
        {"initial": np.zeros((2, 16, 15), np.float32)}, {"initial": np.zeros((1, 16, 16), np.float32)},
        {"weights": np.zeros((11, 1, 1))}, {"weights": -np.ones((12, 1, 1))}, {"weights": np.full((12, 1, 1), np.nan)},
        {"weights": np.full((12, 1, 1), np.inf)}, {"weights": np.ones((12, 1, 1), complex)},
        {"weights": np.ones((1, 12, 2, 20))}, {"weights": np.zeros((0, 1, 1))},
    ],
    ids=str,
)  # fmt: skip
def test_refused(options):
    operator, _, data = problem(2)
    with pytest.raises(UserError):
        sirt(operator, data, **options)


def test_refused_data():
    operator, _, data = problem(2)
    for wrong in (data[:, :1], data[:, 0], data[:-1], data.astype(np.complex64)):
        with pytest.raises(UserError):
            sirt(operator, wrong)
    with pytest.raises(UserError, match="bounds"):
        sirt(ParallelProjector(GEOMETRY, 2, np.complex64), data, lower=0.0)


@pytest.mark.parametrize("bounds", [{"lower": 1.0, "upper": 0.0}, {"lower": np.nan}])
def test_bounds_that_leave_nothing(bounds):
    operator, _, data = problem(1)
    with pytest.raises(UserError):
        sirt(operator, data, iterations=1, **bounds)


def test_a_complex_starting_point_of_a_real_problem():
    operator, volume, data = problem(1)
    with pytest.raises(UserError):
        sirt(operator, data, iterations=1, initial=volume * 1j)
