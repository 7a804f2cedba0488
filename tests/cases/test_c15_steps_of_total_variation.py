"""C15: step sizes of total variation; and its kind: a step or a voxel size that is written into the code."""

import numpy as np
import pytest
import scipy.optimize

from dtomo.algorithms import TotalVariation, fista, tv
from dtomo.operators import Differences, LinearOperator
from tests import laws


class Same(LinearOperator):
    """What is measured is the volume itself."""

    def __init__(self, shape):
        self.shape_in = self.shape_out = shape
        self.dtype = np.dtype(np.float32)

    def _forward(self, x):
        return x.copy()

    def _adjoint(self, y):
        return y.copy()


def squared_norm(shape, spacing):
    """By the power method, in double precision."""
    slopes = Differences(shape, spacing)
    x = laws.draw(slopes.shape_in)
    for _ in range(300):
        x = slopes.adjoint(slopes.forward(x / np.linalg.norm(x)))
    return float(np.linalg.norm(x))


@pytest.mark.parametrize(
    ("spacing", "bound"), [((1.0, 1.0, 1.0), 12.0), ((0.25, 1.0, 1.0), 72.0), ((1.0, 1.0, 0.25), 72.0), ((1, 1), 8.0)]
)
def test_the_squared_norm_of_the_gradient(spacing, bound):
    operator = Differences((24, 24, 24), spacing)
    assert operator.step_bound == bound
    assert 0.95 * bound < squared_norm((24, 24, 24), spacing) <= bound


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (1.0, 1.0, 0.25), (0.1, 3.0, 1.0), (0.2, 0.2)])
def test_the_map_of_a_constant_is_that_constant(spacing):
    constant = np.full((5, 6, 7), -3.25, np.float32)
    for inner in (1, 10, 300):
        found = TotalVariation(50.0, spacing, inner=inner).apply(constant.copy(), 1.0)
        np.testing.assert_allclose(found, constant, rtol=1e-6)
    found = tv(Same(constant.shape), constant, strength=50.0, spacing=spacing, iterations=60, initial=constant)
    np.testing.assert_allclose(found.solution, constant, rtol=1e-5)


def solved(x, strength, spacing):
    """Σ ½ (u - x)² + strength Σ |D u|, anisotropic: a quadratic programme in a box, by SciPy, in double precision."""
    matrix = strength * laws.dense(Differences(x.shape, spacing)).T.astype(float)
    wide = x.ravel().astype(float)

    def function(p):
        rest = wide - matrix @ p
        return 0.5 * rest @ rest, -matrix.T @ rest

    best = scipy.optimize.minimize(
        function, np.zeros(matrix.shape[1]), jac=True, method="L-BFGS-B", bounds=[(-1, 1)] * matrix.shape[1],
        options={"maxiter": 9000, "maxfun": 20000, "ftol": 1e-16, "gtol": 1e-10, "maxcor": 30},
    )  # fmt: skip
    return wide - matrix @ best.x


@pytest.mark.parametrize("shape", [(1, 1, 40), (1, 9, 8), (4, 5, 6)], ids=["1-D", "2-D", "3-D"])
@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (1.0, 1.0, 0.25), (0.5, 2.0, 1.0)], ids=str)
@pytest.mark.parametrize("strength", [0.3])
def test_a_convex_solver_finds_the_same(shape, spacing, strength):
    """By the proximal map, by FISTA and by the primal-dual method, whose steps differ."""
    x = laws.draw(shape)
    expected = solved(x, strength, spacing)
    prior = TotalVariation(strength, spacing, "anisotropic", inner=1000)
    found = [
        prior.apply(x.copy(), 1.0),
        fista(Same(shape), x, prior=TotalVariation(strength, spacing, "anisotropic", inner=50), iterations=30).solution,
        tv(Same(shape), x, strength=strength, spacing=spacing, kind="anisotropic", iterations=4000).solution,
    ]
    for number, volume in enumerate(found):
        assert laws.norm(volume.ravel() - expected) < 1e-3 * laws.norm(expected), number


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_unit_of_length_does_not_matter(scale):
    """Voxels in µm or in mm: with the strength in the same unit, the same volume, by the same number of iterations."""
    x = laws.draw((3, 8, 8))
    spacing = (1.0, 0.5, 2.0)
    expected = TotalVariation(0.3, spacing, inner=20).apply(x.copy(), 1.0)
    scaled = tuple(scale * size for size in spacing)
    found = TotalVariation(0.3 * scale, scaled, inner=20).apply(x.copy(), 1.0)
    np.testing.assert_allclose(found, expected, atol=1e-5)
