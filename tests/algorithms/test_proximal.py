"""Proximal maps against closed forms, SciPy and scikit-image."""

import numpy as np
import pytest
import scipy.optimize
import skimage.restoration

from dtomo.algorithms import Bounds, Denoiser, NuclearNorm, Proximal, Support, TotalVariation, Wavelets
from dtomo.errors import UserError
from dtomo.operators import Differences, WaveletTransform
from tests import laws

SHAPE = (4, 7, 6)


def least(prior, x, step):
    """Nothing near the result of a proximal map has a lower objective."""
    found = prior.apply(x.copy(), step)

    def objective(u):
        return 0.5 * float((abs(laws.wide(u) - laws.wide(x)) ** 2).sum()) + step * prior.value(u)

    value = objective(found)
    for seed in range(8):
        other = found + np.float32(0.03) * laws.draw(x.shape, x.dtype, seed)
        assert objective(other) > value
        assert objective(found + np.float32(0.2) * (x - found)) >= value * (1 - 1e-6)
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("prior", [Wavelets(0.4, 2, 1), Wavelets(0.4, 1, 2, 3), NuclearNorm(1.5), NuclearNorm(0.7, 3)])
def test_the_map_has_the_least_objective(prior, dtype):
    x = laws.draw((6, 8, 8), dtype)
    found = least(prior, x, 0.6)
    assert found.dtype == dtype
    assert laws.norm(prior.apply(x.copy(), 0.0) - x) < 1e-5 * laws.norm(x)


def test_bounds_and_support():
    x = laws.draw(SHAPE)
    np.testing.assert_array_equal(Bounds(0).apply(x.copy(), 1.0), np.maximum(x, 0))
    np.testing.assert_array_equal(Bounds(-0.1, 0.5).apply(x.copy(), 9.0), np.clip(x, -0.1, 0.5))
    assert Bounds(0).value(x) == np.inf
    assert Bounds(0).value(abs(x)) == 0
    mask = x[0] > 0
    np.testing.assert_array_equal(Support(mask).apply(x.copy(), 1.0), np.where(mask, x, 0))
    assert Support(mask).value(x) == np.inf
    assert Support(mask).value(x * mask) == 0


def dual_denoising(x, strength, slopes):
    """Anisotropic total variation by its dual, a least-squares problem in a box, with SciPy's L-BFGS-B."""
    matrix = strength * slopes.T

    def function(p):
        rest = x - matrix @ p
        return 0.5 * rest @ rest, -matrix.T @ rest

    bounds = [(-1, 1)] * matrix.shape[1]
    best = scipy.optimize.minimize(
        function, np.zeros(len(bounds)), jac=True, method="L-BFGS-B", bounds=bounds,
        options={"maxiter": 5000, "maxfun": 9000, "ftol": 1e-16, "gtol": 1e-9},
    )  # fmt: skip
    return x - matrix @ best.x


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (1.0, 2.0, 0.25), (2.0, 0.5)])
@pytest.mark.parametrize("strength", [0.05, 0.8])
def test_anisotropic_variation_is_that_of_scipy(spacing, strength):
    x = laws.draw(SHAPE)
    slopes = laws.dense(Differences(SHAPE, spacing)).astype(float)
    expected = dual_denoising(x.ravel().astype(float), strength, slopes)
    found = TotalVariation(strength / 2, spacing, "anisotropic", inner=1500).apply(x.copy(), 2.0)
    assert laws.norm(found.ravel() - expected) < 1e-3 * laws.norm(expected)


def test_isotropic_variation_is_that_of_scikit_image():
    random = np.random.default_rng(0)
    x = np.kron(random.integers(0, 2, (3, 4, 3)), np.ones((4, 4, 5))) + 0.2 * random.standard_normal((12, 16, 15))
    expected = skimage.restoration.denoise_tv_chambolle(x, weight=0.15, eps=1e-12, max_num_iter=4000)
    found = TotalVariation(0.15, inner=400).apply(x.astype(np.float32), 1.0)
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_it_goes_on_from_where_it_ended():
    """Ten applications of ten iterations come as close as one of a hundred."""
    x = laws.draw(SHAPE)
    long, short = TotalVariation(0.5, inner=2000), TotalVariation(0.5, inner=10)
    exact = long.apply(x.copy(), 1.0)
    errors = [laws.norm(short.apply(x.copy(), 1.0) - exact) for _ in range(10)]
    assert errors[-1] < 0.1 * errors[0]


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 0.25), (1.0, 1.0)])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_a_constant_stays_and_slices_have_steps_of_their_own(spacing, dtype):
    constant = np.full(SHAPE, 2.5, dtype)
    np.testing.assert_allclose(TotalVariation(3.0, spacing).apply(constant.copy(), 1.0), constant, rtol=1e-6)
    if len(spacing) == 2:
        x, steps = laws.draw(SHAPE, dtype), np.array([0.1, 0.0, 1.0, 0.5], np.float32).reshape(4, 1, 1)
        for prior in (TotalVariation(1.0, spacing), Wavelets(1.0)):
            found = prior.apply(x.copy(), steps)
            for z in range(4):
                alone = type(prior)(1.0, **({"spacing": spacing} if isinstance(prior, TotalVariation) else {}))
                expected = alone.apply(x[z : z + 1].copy(), float(steps[z, 0, 0]))
                np.testing.assert_allclose(found[z], expected[0], atol=1e-6)


def test_denoisers():
    x = laws.draw(SHAPE)
    np.testing.assert_array_equal(Denoiser(lambda v: 0.5 * v.astype(float)).apply(x, 1.0), (0.5 * x).astype(np.float32))
    np.testing.assert_allclose(Denoiser(lambda v, s: v * s, with_step=True).apply(x, 3.0), 3 * x)
    for function, said in ((lambda v: v[1:], "shape"), (lambda v: v * 1j, "complex")):
        with pytest.raises(UserError, match=said):
            Denoiser(function).apply(x, 1.0)


def test_cycle_spinning_leaves_fewer_blocks():
    truth = np.zeros((1, 32, 32), np.float32)
    truth[0, 7:20, 9:27] = 1
    noisy = truth + 0.3 * laws.draw(truth.shape)
    plain, spun = (Wavelets(0.6, 1, 3, spins=n).apply(noisy.copy(), 1.0) for n in (1, 8))
    assert laws.norm(spun - truth) < 0.8 * laws.norm(plain - truth) < 0.8 * laws.norm(noisy - truth)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: TotalVariation(-1.0), "strength of the total variation"),
        (lambda: TotalVariation(1.0, kind="round"), "isotropic or anisotropic"),
        (lambda: TotalVariation(1.0, inner=0), "inner iterations"),
        (lambda: Wavelets(np.nan), "strength of the wavelets"),
        (lambda: Wavelets(1.0, moments=9), "1 to 8 vanishing moments"),
        (lambda: Wavelets(1.0, spins=0), "number of shifts"),
        (lambda: NuclearNorm(-1.0), "strength of the nuclear norm"),
        (lambda: NuclearNorm(1.0, patch=0), "patches of the nuclear norm"),
        (lambda: Denoiser(3), "function of a volume"),
    ],
)
def test_priors_that_make_no_sense(make, said):
    with pytest.raises(UserError, match=said):
        make()


def test_what_a_prior_of_ones_own_need_not_say():
    class Shrink(Proximal):
        def apply(self, x, step):
            return x / (1 + step)

    prior = Shrink()
    assert (prior.value(laws.draw(SHAPE)), prior.kept(), prior.separable) == (None, {}, False)
    with pytest.raises(UserError, match="another prior"):
        prior.go_on_from({"field": 1})


def test_wavelets_are_those_of_the_transform():
    x = laws.draw((2, 9, 11))
    transform = WaveletTransform(x.shape, 2, 1)
    assert Wavelets(2.0, 2, 1).value(x) == pytest.approx(
        2 * float(abs(transform.forward(x)).sum() - abs(transform.forward(x)[:, :5, :6]).sum()), rel=1e-5
    )
