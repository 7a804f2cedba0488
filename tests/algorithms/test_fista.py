"""FISTA and its data terms against general minimisers in double precision, closed forms and other algorithms."""

import numpy as np
import pytest
import scipy.optimize

from dtomo.algorithms import (
    Bounds,
    DataTerm,
    Denoiser,
    HeldOut,
    Huber,
    LeastSquares,
    NuclearNorm,
    Proximal,
    StudentT,
    TotalVariation,
    Wavelets,
    cgls,
    fista,
    largest_eigenvalues,
    photon_weights,
    tv,
)
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.io import Checkpoints, Schedule
from dtomo.operators import Differences, ParallelProjector, WaveletTransform
from dtomo.simulate import Phantom
from tests import laws

GEOMETRY = ParallelBeam(np.arange(12) * 15.0, 16, 7.3, width=12, height=12)
BODY = Phantom(np.array([[1.0, 0.6, 0.4, 9.0, 0.1, -0.15, 0.0, 30.0], [-0.5, 0.2, 0.15, 9.0, 0.1, -0.2, 0.0, 0.0]]))
SINGLE = ParallelProjector(GEOMETRY, 1)


@pytest.fixture(scope="module")
def matrix():
    return laws.dense(SINGLE).astype(float)


@pytest.fixture(scope="module")
def problem():
    """Data with outliers and weights."""
    operator = ParallelProjector(GEOMETRY, 3)
    data = operator.forward(np.repeat(BODY.volume(12, 1), 3, 0)) + 0.2 * laws.draw(operator.shape_out)
    data[::4, :, 5] += 4
    weights = np.random.default_rng(1).uniform(0.2, 2, operator.shape_out).astype(np.float32)
    return operator, data, weights


def least(function, start, bounds=None):
    """By L-BFGS-B, in double precision."""
    return scipy.optimize.minimize(
        function, start, jac=True, method="L-BFGS-B", bounds=bounds,
        options={"maxiter": 9000, "maxfun": 20000, "ftol": 1e-16, "gtol": 1e-9, "maxcor": 40},
    ).x  # fmt: skip


def smooth(term, matrix, b, w, damping=0.0):
    """Objective of a data term and its gradient."""

    def function(x):
        residual = matrix @ x - b
        slope = residual.copy()
        term.slope(slope)
        return (w * term.loss(residual)).sum() + damping * x @ x / 2, matrix.T @ (w * slope) + damping * x

    return function


class Ridge(Proximal):
    """½ damping |x|², so that the least is unique."""

    separable = True

    def __init__(self, damping):
        self.damping = damping

    def apply(self, x, step):
        return x / (1 + self.damping * step)


@pytest.mark.parametrize("term", [LeastSquares(), Huber(0.3), StudentT(0.3)], ids=lambda t: type(t).__name__)
@pytest.mark.parametrize("bounds", [(None, None), (0.0, 0.8)])
def test_data_terms_with_weights_and_bounds(problem, matrix, term, bounds):
    operator, data, weights = problem
    start = cgls(operator, data, iterations=4, weights=weights).solution if isinstance(term, StudentT) else None
    found = fista(
        operator, data, weights=weights, data_term=term, prior=None if bounds == (0.0, 0.8) else Ridge(0.5),
        lower=bounds[0], upper=bounds[1], iterations=1500, initial=start,
    )  # fmt: skip
    for z in range(3):
        b, w = laws.wide(data[:, z]), laws.wide(weights[:, z])
        function = smooth(term, matrix, b, w, 0.0 if bounds == (0.0, 0.8) else 0.5)
        x = laws.wide(found.solution[z])
        best = least(function, x * 0 if start is None else laws.wide(start[z]), [bounds] * len(x))
        assert laws.norm(x - best) < 1e-3 * laws.norm(best)
        assert function(x)[0] <= function(best)[0] * (1 + 1e-5)


def test_outliers_do_not_rule():
    geometry = ParallelBeam(np.arange(60) * 3.0, 40, 19.2, width=32, height=32)
    operator, volume = ParallelProjector(geometry, 1), BODY.volume(32, 1)
    data = operator.forward(volume) + 0.05 * laws.draw(operator.shape_out)
    random = np.random.default_rng(3)
    data[random.random(data.shape) < 0.05] += 8
    errors = []
    start = None
    for term in (LeastSquares(), Huber(0.1), StudentT(0.05)):
        found = fista(operator, data, data_term=term, lower=0.0, iterations=150, initial=start)
        start = found.solution
        errors.append(laws.norm(start - volume))
    assert errors[2] < errors[1] < 0.4 * errors[0]


def test_losses_of_scipy():
    r = np.linspace(-3, 3, 25)
    for term, name, scale in ((Huber(0.7), "huber", 0.7), (StudentT(0.35, 4.0), "cauchy", 0.7)):
        fitted = scipy.optimize.least_squares(lambda x: r + 0 * x, [0.0], loss=name, f_scale=scale, max_nfev=1)
        assert term.value(r) == pytest.approx(fitted.cost, rel=1e-6)
        assert term.value(r, np.full(25, 2.0)) == pytest.approx(2 * fitted.cost, rel=1e-6)


@pytest.mark.parametrize("term", [LeastSquares(), Huber(0.5), StudentT(0.4, 3.0)], ids=lambda t: type(t).__name__)
def test_slopes_are_those_of_the_losses(term):
    """Of complex residuals along both parts too; never steeper than those of least squares."""
    r = laws.draw((40,), np.complex64).astype(complex)
    slope = r.copy()
    term.slope(slope)
    for direction in (1, 1j):
        change = (term.loss(r + 1e-5 * direction) - term.loss(r - 1e-5 * direction)) / 2e-5
        np.testing.assert_allclose((np.conj(direction) * slope).real, change, atol=1e-4)
    real = np.sort(laws.draw((400,)).astype(float))
    slope = real.copy()
    term.slope(slope)
    assert (np.diff(slope) <= np.diff(real) * (1 + 1e-6)).all()


@pytest.mark.parametrize(("kind", "spacing"), [("isotropic", (1.5, 1.0, 0.5)), ("anisotropic", (1.0, 2.0))])
def test_total_variation_is_that_of_the_primal_dual_method(problem, kind, spacing):
    operator, data, weights = problem
    options = {"weights": weights, "lower": 0.0, "upper": 0.9}
    one = tv(operator, data, strength=0.4, spacing=spacing, kind=kind, iterations=2000, **options).solution
    two = fista(operator, data, prior=TotalVariation(0.4, spacing, kind), iterations=300, **options).solution
    assert laws.norm(one - two) < 1e-3 * laws.norm(one)


@pytest.mark.slow
def test_few_steps_of_total_variation_at_first_reach_the_same_objective(problem):
    """One step on the dual field in each of the first 50 iterations, in place of five; and a checkpoint counts them."""
    operator, data, weights = problem

    def objective(prior, iterations):
        x = fista(operator, data, prior=prior, weights=weights, lower=0.0, iterations=iterations).solution
        residual = (operator.forward(x) - data).astype(float)
        return 0.5 * (weights * residual**2).sum() + prior.value(x)

    best = objective(TotalVariation(0.4, (1.0, 1.0), inner=10), 1000)
    for iterations, close in ((100, 2e-3), (200, 3e-4), (400, 1e-4)):
        found = [objective(TotalVariation(0.4, (1.0, 1.0), inner=inner), iterations) for inner in (None, 5)]
        assert abs(found[0] - found[1]) < close * best
        assert found[0] - best < 2 * close * best
    prior = TotalVariation(0.4)
    bound = prior.bind(operator, Bounds())
    assert [bound._steps() for _ in range(251)] == [1 + k // 50 for k in range(250)] + [5]
    assert prior._steps() == 5
    bound.field = bound._operator(operator.zeros()).field(operator.zeros())
    again = prior.bind(operator, Bounds())
    again.go_on_from(bound.kept())
    assert again.applied == 251


def test_hubers_term_in_both(problem):
    operator, data, weights = problem
    options = {"data_term": Huber(0.3), "weights": weights, "lower": 0.0}
    one = tv(operator, data, strength=0.2, spacing=(1.0, 1.0), iterations=2500, **options).solution
    two = fista(operator, data, prior=TotalVariation(0.2, (1.0, 1.0)), iterations=200, **options).solution
    assert laws.norm(one - two) < 1e-3 * laws.norm(one)
    with pytest.raises(UserError, match="LeastSquares and Huber"):
        tv(operator, data, strength=1.0, data_term=StudentT(1.0))


def test_wavelets_are_those_of_scipy(problem, matrix):
    """Sparse coefficients c of x = Wᵀ c: two non-negative parts make the objective smooth in a box."""
    operator, data, weights = problem
    found = fista(operator, data, prior=Wavelets(0.6, 1, 2), weights=weights, iterations=1500).solution
    transform = WaveletTransform((1, 12, 12), 1, 2)
    back = laws.dense(transform).T.astype(float)
    fine = np.ones((12, 12))
    fine[:3, :3] = 0
    for z in range(3):
        mixed, b, w = matrix @ back, laws.wide(data[:, z]), laws.wide(weights[:, z])

        def function(parts, mixed=mixed, b=b, w=w):
            c = parts[:144] - parts[144:]
            residual = mixed @ c - b
            slope = mixed.T @ (w * residual)
            cost = 0.6 * np.r_[fine.ravel(), fine.ravel()]
            return 0.5 * (w * residual**2).sum() + cost @ parts, np.r_[slope, -slope] + cost

        parts = least(function, np.full(288, 0.1), [(0, None)] * 288)
        c = transform.forward(found[z : z + 1]).astype(float).ravel()
        own = function(np.r_[np.maximum(c, 0), np.maximum(-c, 0)])[0]
        assert own <= function(parts)[0] * (1 + 1e-5)
        assert laws.norm(c - (parts[:144] - parts[144:])) < 1e-3 * laws.norm(c)


def test_the_nuclear_norm_is_that_of_factors(matrix):
    """Σ singular values of X is the least ½ (|U|² + |V|²) with U V = X: smooth, and without false minima."""
    slices = 4
    operator = ParallelProjector(GEOMETRY, slices)
    patterns = laws.draw((2, 12, 12))
    volume = np.tensordot(laws.draw((slices, 2), seed=1), patterns, 1).astype(np.float32)
    data = operator.forward(volume) + 0.3 * laws.draw(operator.shape_out)
    found = fista(operator, data, prior=NuclearNorm(8.0), iterations=600).solution.reshape(slices, -1).astype(float)
    b = np.moveaxis(data, 1, 0).reshape(slices, -1).astype(float)

    def function(parts):
        u, v = parts[:16].reshape(4, 4), parts[16:].reshape(4, 144)
        residual = (u @ v) @ matrix.T - b
        slope = residual @ matrix
        value = 0.5 * (residual**2).sum() + 4 * (parts**2).sum()
        return value, np.r_[(slope @ v.T).ravel(), (u.T @ slope).ravel()] + 8 * parts

    parts = least(function, np.random.default_rng(0).standard_normal(16 + 4 * 144))
    value = 0.5 * ((found @ matrix.T - b) ** 2).sum() + NuclearNorm(8.0).value(found.reshape(4, 12, 12))
    assert value == pytest.approx(function(parts)[0], rel=1e-4)


@pytest.mark.parametrize("prior", [None, Bounds(0.0)], ids=["lower", "prior"])
def test_nonnegative_least_squares(problem, matrix, prior):
    operator, data, _ = problem
    given = {"prior": prior} if prior else {"lower": 0.0}
    found = fista(operator, data, iterations=3000, **given).solution
    for z in range(3):
        expected, norm = scipy.optimize.nnls(matrix, laws.wide(data[:, z]))
        residual = matrix @ laws.wide(found[z]) - laws.wide(data[:, z])
        assert laws.norm(residual) == pytest.approx(norm, rel=1e-5)
        assert laws.norm(matrix @ (laws.wide(found[z]) - expected)) < 1e-3 * laws.norm(matrix @ expected)


def test_a_denoiser_that_is_a_proximal_map(problem):
    operator, data, _ = problem
    known = fista(operator, data, prior=Ridge(2.0), iterations=30).solution
    own = fista(
        operator, data, prior=Denoiser(lambda x, step: x / (1 + 2 * step), with_step=True, separable=True),
        iterations=30,
    ).solution  # fmt: skip
    np.testing.assert_array_equal(own, known)


def test_complex_data():
    operator = ParallelProjector(GEOMETRY, 2, np.complex64)
    volume = laws.draw(operator.shape_in, np.complex64)
    data = operator.forward(volume)
    found = fista(operator, data, prior=Ridge(0.3), iterations=400).solution
    expected = cgls(operator, data, damping=np.sqrt(0.3), iterations=60).solution
    assert laws.norm(found - expected) < 1e-3 * laws.norm(expected)
    for prior in (TotalVariation(0.2), Wavelets(0.2), NuclearNorm(0.2)):
        phase = np.complex64(np.exp(0.7j))
        one, two = (fista(operator, d, prior=prior, iterations=10).solution for d in (data, data * phase))
        assert one.dtype == np.complex64
        assert laws.norm(two - one * phase) < 1e-4 * laws.norm(one)


def test_momentum_is_faster_and_steps_without_it_never_go_up(problem):
    operator, data, weights = problem
    slow = fista(operator, data, weights=weights, momentum=False, iterations=60)
    fast = fista(operator, data, weights=weights, iterations=60)
    assert (np.diff(slow.residuals, axis=0) < 0).all()
    assert (fast.residuals[-1] < slow.residuals[-1]).all()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "angles", [np.arange(12) * 15.0, np.linspace(-40, 40, 20), np.array([33.0])], ids=["12", "20", "1"]
)
def test_the_step_is_short_enough(weighted, angles):
    """The eigenvalue that it is made of is no smaller than the true one, and hardly larger."""
    operator = ParallelProjector(GEOMETRY.replace(angles=angles), 3)
    matrix = laws.dense(ParallelProjector(operator.geometry, 1)).astype(float)
    weights = None
    if weighted:
        weights = operator.arrange(np.random.default_rng(1).exponential(1, operator.shape_out).astype(np.float32))
        weights[:, 2] *= 5
    found = largest_eigenvalues(operator, weights)
    for z in range(3):
        w = np.ones(len(matrix)) if weights is None else laws.wide(weights[:, z])
        true = np.linalg.eigvalsh(matrix.T @ (w[:, None] * matrix))[-1]
        assert true <= found[z] <= 1.03 * true


@pytest.mark.parametrize(
    "options",
    [
        {"prior": TotalVariation(0.3, (1.0, 1.0))}, {"prior": TotalVariation(0.3)}, {"prior": Wavelets(0.2)},
        {"data_term": Huber(0.3), "lower": 0.0}, {"prior": NuclearNorm(0.3), "data_term": StudentT(0.3)},
        {"prior": TotalVariation(0.3), "stop": HeldOut(0.2, 2)}, {"tolerance": 0.05},
    ],
    ids=["variation of slices", "variation", "wavelets", "huber", "nuclear, student", "held out", "tolerance"],
)  # fmt: skip
def test_the_same_bits_after_any_stop(tmp_path, problem, options):
    operator, data, weights = problem
    options = {**options, "weights": weights, "iterations": 9}
    whole = fista(operator, data, **options)

    def dies(n, norms):
        if n == 4:
            raise RuntimeError

    keep = Checkpoints(tmp_path, schedule=Schedule(iterations=2))
    with pytest.raises(RuntimeError):
        fista(operator, data, callback=dies, checkpoints=keep, **options)
    again = fista(operator, data, checkpoints=keep, **options)
    assert np.array_equal(again.solution, whole.solution)
    assert np.array_equal(again.residuals, whole.residuals)


@pytest.mark.parametrize(
    "options",
    [{}, {"prior": TotalVariation(0.3, (1.0, 1.0))}, {"prior": Wavelets(0.2)}, {"data_term": Huber(0.3), "lower": 0.0}],
    ids=["nothing", "variation", "wavelets", "huber"],
)
def test_bits_do_not_depend_on_slab_threads_or_layout(problem, options):
    operator, data, weights = problem
    data = data * np.array([1, 2, 0.5], np.float32)[:, None]
    whole = fista(operator, data, weights=weights, iterations=6, **options)
    for z in range(3):
        cut = slice(z, z + 1)
        alone = fista(SINGLE, data[:, cut], weights=weights[:, cut], iterations=6, **options)
        assert np.array_equal(alone.solution[0], whole.solution[z])
        assert np.array_equal(alone.residuals[:, 0], whole.residuals[:, z])
    for where, same in laws.layouts(data):
        with laws.thread_count(3):
            again = fista(operator, same, weights=weights, iterations=6, **options)
        assert np.array_equal(again.solution, whole.solution), where


def test_one_prior_serves_many_problems():
    """What it keeps between applications is of one run."""
    prior = TotalVariation(0.3)
    data = SINGLE.forward(BODY.volume(12, 1))
    first = fista(SINGLE, data, prior=prior, iterations=5).solution
    wider = ParallelProjector(GEOMETRY, 2)
    fista(wider, np.repeat(data, 2, 1), prior=prior, iterations=5)
    assert np.array_equal(fista(SINGLE, data, prior=prior, iterations=5).solution, first)
    assert prior.field is None


def test_weights_of_photons():
    counts = np.array([100.0, 4.0, 0.0, -3.0, np.nan, np.inf])
    np.testing.assert_allclose(photon_weights(counts), [100, 4, 0, 0, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(photon_weights(counts, 3.0), [1e4 / 109, 16 / 13, 0, 0, 0, 0], rtol=1e-6)
    random = np.random.default_rng(0)
    drawn = -np.log((random.poisson(400, 20000) + random.normal(0, 8, 20000)) / 1e4)
    assert 1 / drawn.var() == pytest.approx(photon_weights(np.array([400.0]), 8.0)[0], rel=0.05)
    with pytest.raises(UserError, match="readout"):
        photon_weights(counts, -1.0)


def test_a_loss_of_ones_own(problem, matrix):
    class Fair(DataTerm):
        def loss(self, residual):
            return abs(residual) - np.log1p(abs(residual))

        def slope(self, residual):
            residual /= 1 + abs(residual)

    operator, data, weights = problem
    found = fista(operator, data, weights=weights, data_term=Fair(), prior=Ridge(0.5), iterations=800).solution
    function = smooth(Fair(), matrix, laws.wide(data[:, 0]), laws.wide(weights[:, 0]), 0.5)
    best = least(function, np.zeros(144))
    assert laws.norm(laws.wide(found[0]) - best) < 1e-3 * laws.norm(best)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prior": lambda x: x}, "wrap a function in dtomo.algorithms.Denoiser"),
        ({"prior": 3}, "Proximal, not int"),
        ({"data_term": "huber"}, "DataTerm such as"),
        ({"lower": 1.0, "upper": 0.0}, "leave nothing between them"),
        ({"prior": TotalVariation(1.0, (1.0,))}, "spacing of voxels"),
    ],
    ids=["function", "number", "word", "bounds", "spacing"],
)
def test_what_does_not_go(problem, options, said):
    operator, data, _ = problem
    with pytest.raises(UserError, match=said):
        fista(operator, data, **options)


@pytest.mark.parametrize("make", [lambda: Huber(0.0), lambda: StudentT(-1.0), lambda: StudentT(1.0, 0.0)])
def test_data_terms_that_make_no_sense(make):
    with pytest.raises(UserError, match="above 0"):
        make()


def test_the_bound_of_differences():
    slopes = laws.dense(Differences((6, 5, 4), (1.0, 2.0, 0.5))).astype(float)
    largest = np.linalg.svd(slopes, compute_uv=False)[0] ** 2
    assert 0.8 * Differences((6, 5, 4), (1.0, 2.0, 0.5)).step_bound < largest
    assert largest <= Differences((6, 5, 4), (1.0, 2.0, 0.5)).step_bound
