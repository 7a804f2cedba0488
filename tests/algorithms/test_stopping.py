"""What ends an iteration: noise that is reached, and views held out; and masks, which all methods share."""

import numpy as np
import pytest

from dtomo.algorithms import Discrepancy, HeldOut, cgls, lsqr, mlem, os_sart, osem, sirt, tv
from dtomo.algorithms.stopping import Views
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.operators import ParallelProjector
from dtomo.simulate import Phantom
from tests import laws

GEOMETRY = ParallelBeam(np.arange(40) * 4.5, 40, 19.2, width=32, height=32)
BODY = Phantom(np.array([[1.0, 0.6, 0.4, 9.0, 0.1, -0.15, 0.0, 30.0], [-0.5, 0.2, 0.15, 9.0, 0.1, -0.2, 0.0, 0.0]]))
NOISE = np.array([0.2, 0.6, 2.4], np.float32)[:, None]
SOLVERS = [sirt, cgls, lsqr, os_sart, mlem, osem, tv]


@pytest.fixture(scope="module")
def problem():
    """Slices with more and more noise."""
    operator = ParallelProjector(GEOMETRY, 3)
    volume = np.repeat(BODY.volume(32, 1), 3, 0)
    return operator, volume, operator.forward(volume) + NOISE * laws.draw(operator.shape_out)


@pytest.mark.parametrize("solver", [sirt, cgls, lsqr, os_sart])
def test_iterations_end_where_the_noise_begins(problem, solver):
    operator, _, data = problem
    found = solver(operator, data, iterations=60, stop=Discrepancy(NOISE, 1.02))
    assert found.reason == "noise"
    expected = 1.02 * NOISE[:, 0] * np.sqrt(40 * 40)
    assert (found.residuals[-1] <= expected).all()
    counts = [int(np.argmax(found.residuals[:, z] <= expected[z])) for z in range(3)]
    assert counts[0] > counts[1] > counts[2] > 0  # the less noise, the longer
    assert (found.residuals[np.array(counts) - 1, range(3)] > expected).all()
    for z in range(3):
        cut = slice(z, z + 1)
        alone = solver(
            ParallelProjector(GEOMETRY, 1), data[:, cut], iterations=60, stop=Discrepancy(float(NOISE[z, 0]), 1.02)
        )
        assert alone.iterations == counts[z]
        assert np.array_equal(alone.solution[0], found.solution[z])


def test_the_expected_residual_follows_the_weights(problem):
    """Weights are 1 / variance where no noise is given; pixels without a weight are not counted."""
    operator, _, data = problem
    weights = np.broadcast_to(1 / NOISE**2, operator.shape_out).copy()
    weights[5:9] = 0
    found = sirt(operator, data, iterations=60, weights=weights, stop=Discrepancy())
    assert found.reason == "noise"
    assert (found.residuals[-1] <= np.sqrt(36 * 40)).all()
    assert (found.residuals[-1] > 0.8 * np.sqrt(36 * 40)).all()


def test_the_noise_stops_near_the_best_volume(problem):
    operator, volume, data = problem
    found = cgls(operator, data, iterations=60, stop=Discrepancy(NOISE))
    many = cgls(operator, data, iterations=60).solution
    for z in (1, 2):
        assert laws.norm(found.solution[z] - volume[z]) < 0.7 * laws.norm(many[z] - volume[z])


@pytest.mark.parametrize("solver", [sirt, cgls, lsqr, os_sart, mlem, osem])
def test_views_held_out(problem, solver):
    """The best volume for views that were not used, slice by slice; nearer to the truth than after many more."""
    operator, volume, data = problem
    data = np.maximum(data, 0) if solver in (mlem, osem) else data
    found = solver(operator, data, iterations=200, stop=HeldOut(0.1, 4))
    assert found.reason == "held out"
    assert found.held_out.shape == found.residuals.shape
    best = found.held_out.argmin(0)
    assert (best < len(found.held_out) - 4).all()
    out = np.array([5, 15, 25, 35])
    kept = np.setdiff1d(np.arange(40), out)
    for z in range(3):
        # the same as solving without those views, for as many iterations as were best
        alone = ParallelProjector(GEOMETRY.replace(angles=GEOMETRY.angles[kept]), 1)
        expected = solver(alone, data[kept, z : z + 1], iterations=int(best[z])).solution
        assert np.array_equal(found.solution[z], expected[0])
        missed = ParallelProjector(GEOMETRY.replace(angles=GEOMETRY.angles[out]), 1).forward(expected)[:, 0]
        np.testing.assert_allclose(found.held_out[best[z], z], laws.norm(missed - data[out, z]), rtol=1e-5)
    many = solver(operator, data, iterations=len(found.held_out) + 60).solution
    assert laws.norm(found.solution[2] - volume[2]) < laws.norm(many[2] - volume[2])


def test_held_out_views_met_as_well_as_before_are_met_no_better(problem):
    operator, _, data = problem
    _, watch = HeldOut(0.2, 2).watching(Views(operator, operator.arrange(data), None, None))
    asked = [watch.look(operator.zeros(), np.zeros(3)) for _ in range(3)]
    assert [over.all() for over in asked] == [False, False, True]


def test_the_best_is_returned_also_if_iterations_run_out(problem):
    operator, _, data = problem
    found = cgls(operator, data, iterations=12, stop=HeldOut(0.1, 1000))
    assert (found.reason, found.iterations, len(found.held_out)) == ("iterations", 12, 13)
    best = int(found.held_out[:, 2].argmin())
    assert 0 < best < 12
    other = cgls(operator, data, iterations=best, stop=HeldOut(0.1, 1000))
    assert np.array_equal(other.solution[2], found.solution[2])


def test_held_out_views_go_by_weights_and_background(problem):
    """A view of weight 0 is not looked at; expected counts are those with their background."""
    operator, volume, _ = problem
    counts = np.random.default_rng(0).poisson(operator.forward(volume) + 2).astype(np.float32)
    weights = np.ones((40, 1, 1), np.float32)
    weights[10] = 0
    spoilt = counts.copy()
    spoilt[10] = 1e6
    options = {"iterations": 9, "weights": weights, "background": 2.0, "stop": HeldOut(0.05)}
    one, two = (mlem(operator, data, **options) for data in (counts, spoilt))
    assert np.array_equal(one.solution, two.solution)
    start = ParallelProjector(GEOMETRY.replace(angles=GEOMETRY.angles[[30]]), 3)
    first = start.forward(np.ones(start.shape_in, np.float32)) + 2 - counts[[30]]
    np.testing.assert_allclose(one.held_out[0], np.sqrt((first.astype(float) ** 2).sum((0, 2))), rtol=1e-5)


@pytest.mark.parametrize("solver", SOLVERS)
def test_nothing_outside_of_a_mask(problem, solver):
    operator, volume, data = problem
    options = {"strength": 0.5, "spacing": (1.0, 1.0)} if solver is tv else {}
    data = abs(data)
    y, x = np.ogrid[:32, :32]
    inside = (y - 15.5) ** 2 + (x - 15.5) ** 2 < 13**2
    assert not volume[:, ~inside].any()
    start = abs(laws.draw(operator.shape_in))
    for initial in (None, start):
        found = solver(operator, data, iterations=10, mask=inside, initial=initial, **options)
        assert not found.solution[:, ~inside].any()
        assert found.solution[:, inside].any()
    assert not solver(operator, data, iterations=0, mask=inside, initial=start, **options).solution[:, ~inside].any()
    everywhere = solver(operator, data, iterations=10, **options)
    masked = solver(operator, data, iterations=10, mask=inside, **options)
    if solver not in (os_sart, mlem, osem):  # which fit the noise by then
        assert laws.norm(masked.solution - volume) < laws.norm(everywhere.solution - volume)
    same = solver(operator, data, iterations=10, mask=np.ones((32, 32), bool), **options)
    np.testing.assert_allclose(same.solution, everywhere.solution, rtol=2e-4, atol=2e-4)


def test_least_squares_inside_of_a_mask(problem):
    operator, _, data = problem
    inside = BODY.volume(32, 1)[0] != 0
    matrix = laws.dense(ParallelProjector(GEOMETRY, 1))[:, inside.ravel()]
    normal = matrix.T @ matrix + 0.25 * np.eye(matrix.shape[1])
    expected = np.linalg.solve(normal, matrix.T @ laws.wide(data[:, 0]))
    for solver in (cgls, lsqr):
        found = solver(operator, data, iterations=80, damping=0.5, mask=inside).solution[0][inside]
        assert laws.norm(found - expected) < 1e-3 * laws.norm(expected)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stop": 0.5}, "Discrepancy or HeldOut"),
        ({"stop": Discrepancy(np.ones(7))}, "noise must broadcast"),
        ({"stop": Discrepancy()}, "needs the noise of the data"),
        ({"mask": np.zeros((32, 32))}, "leaves nothing"),
        ({"mask": np.ones((32, 31))}, "broadcasts to"),
    ],
    ids=["no rule", "noise", "neither noise nor weights", "empty", "shape"],
)
def test_what_does_not_go(problem, options, said):
    operator, _, data = problem
    with pytest.raises(UserError, match=said):
        sirt(operator, data, **options)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Discrepancy(0.0), "standard deviation"),
        (lambda: Discrepancy(1.0, np.nan), "factor"),
        (lambda: HeldOut(0.0), "share"),
        (lambda: HeldOut(0.9), "share"),
        (lambda: HeldOut(patience=0), "patience"),
    ],
)
def test_rules_that_make_no_sense(make, said):
    with pytest.raises(UserError, match=said):
        make()
