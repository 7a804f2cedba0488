"""Total variation against scikit-image, a general minimiser in double precision, and what a user wants of it."""

import numpy as np
import pytest
import skimage.restoration

from dtomo.algorithms import fbp, tv
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam, cone_beam
from dtomo.operators import Differences, LinearOperator, ParallelProjector, RayProjector
from dtomo.simulate import Phantom
from tests import laws

BODY = Phantom(np.array([[1.0, 0.6, 0.4, 9.0, 0.1, -0.15, 0.0, 30.0], [-0.5, 0.2, 0.15, 9.0, 0.1, -0.2, 0.0, 0.0]]))


class Same(LinearOperator):
    """What is measured is the volume itself."""

    def __init__(self, shape, dtype=np.float32):
        self.shape_in = self.shape_out = shape
        self.dtype = np.dtype(dtype)

    def _forward(self, x):
        return x.copy()

    def _adjoint(self, y):
        return y.copy()


def test_denoising_is_that_of_scikit_image():
    random = np.random.default_rng(0)
    noisy = np.kron(random.integers(0, 2, (3, 4, 3)), np.ones((4, 4, 5))) + 0.2 * random.standard_normal((12, 16, 15))
    noisy = noisy.astype(np.float32)
    expected = skimage.restoration.denoise_tv_chambolle(noisy.astype(float), weight=0.15, eps=1e-12, max_num_iter=4000)
    found = tv(Same(noisy.shape), noisy, strength=0.15, iterations=800)
    np.testing.assert_allclose(found.solution, expected, atol=1e-3)


@pytest.fixture(scope="module")
def problem():
    geometry = ParallelBeam(np.arange(9) * 20.0, 16, 7.3, width=12, height=12)
    operator = ParallelProjector(geometry, 1)
    data = operator.forward(BODY.volume(12, 1)) + 0.3 * laws.draw(operator.shape_out)
    return operator, data, laws.dense(operator).astype(float)


def differences(spacing):
    """As a matrix, ``(2, 144, 144)``, of slices of 12 × 12."""
    units = np.eye(144).reshape(144, 12, 12)
    steps = [np.diff(units, axis=axis, append=np.take(units, [-1], axis)) for axis in (1, 2)]
    return np.array([step.reshape(144, 144).T / size for step, size in zip(steps, spacing)])


def lengths(parts, kind):
    return abs(parts) if kind == "anisotropic" else np.sqrt((parts**2).sum(0, keepdims=True))


def least(matrix, b, w, strength, kind, spacing, bounds):
    """By alternating directions (ADMM) with dense matrices in double precision: exact steps, no smoothing."""
    slopes, pull = differences(spacing), matrix.T @ (w * b)
    inverse = np.linalg.inv((matrix.T * w) @ matrix + sum(d.T @ d for d in slopes) + np.eye(144))
    parts, field, volume, rest = np.zeros((2, 144)), np.zeros((2, 144)), np.zeros(144), np.zeros(144)
    for _ in range(6000):
        x = inverse @ (pull + np.einsum("kij,ki->j", slopes, parts - field) + volume - rest)
        ahead = slopes @ x + field
        size = lengths(ahead, kind)
        parts = ahead * np.maximum(1 - strength / np.maximum(size, 1e-300), 0)
        volume = np.clip(x + rest, *bounds)
        field, rest = ahead - parts, rest + x - volume
    return volume


@pytest.mark.parametrize(("kind", "spacing"), [("isotropic", (1.0, 2.0)), ("anisotropic", (1.0, 1.0))])
@pytest.mark.parametrize("bounds", [(0.0, 0.8)])
def test_the_least_objective(problem, kind, spacing, bounds):
    """That of another method, and the same volume."""
    operator, data, matrix = problem
    weights = np.random.default_rng(1).uniform(0, 2, operator.shape_out).astype(np.float32)
    weights[3, 0, 5:8] = 0
    strength, b, w = 0.6, data.ravel().astype(float), weights.ravel().astype(float)

    def objective(x):
        return 0.5 * (w * (matrix @ x - b) ** 2).sum() + strength * lengths(differences(spacing) @ x, kind).sum()

    broken = np.where(weights > 0, data, np.nan)
    found = tv(
        operator, broken, strength=strength, spacing=spacing, kind=kind, weights=weights, lower=bounds[0],
        upper=bounds[1], iterations=2000,
    )  # fmt: skip
    x = found.solution.ravel().astype(float)

    best = least(matrix, b, w, strength, kind, spacing, bounds)
    assert objective(x) == pytest.approx(objective(best), rel=1e-5)
    assert np.linalg.norm(x - best) < 1e-3 * np.linalg.norm(best)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_published_iteration(problem, weighted):
    """Chambolle and Pock's, with x̄ ahead of x, and the steps of Pock and Chambolle; in double precision."""
    operator, data, matrix = problem
    spacing, strength = (1.0, 2.0), 0.6
    slopes = laws.dense(Differences(operator.shape_in, spacing)).astype(float)
    weights = np.random.default_rng(1).uniform(0.1, 2, operator.shape_out).astype(np.float32)
    w, b = (weights.ravel() if weighted else np.ones(data.size)).astype(float), data.ravel().astype(float)
    step = 1 / (matrix.sum(0) + 2 * (1 / spacing[0] + 1 / spacing[1]))
    sums = matrix.sum(1)
    dual_step = np.divide(1, sums, out=np.zeros_like(sums), where=sums > 1e-9)
    x = ahead = np.zeros(matrix.shape[1])
    y, q = np.zeros(len(b)), np.zeros((2, x.size))
    for _ in range(9):
        y = (y + dual_step * (matrix @ ahead - b)) / (1 + dual_step / w)
        q = q + min(spacing) / 2 * (slopes @ ahead).reshape(2, -1)
        q = q / np.maximum(1, np.linalg.norm(q, axis=0) / strength)
        new = np.maximum(x - step * (matrix.T @ y + slopes.T @ q.ravel()), 0)
        ahead, x = 2 * new - x, new
    found = tv(
        operator, data, strength=strength, spacing=spacing, iterations=9, lower=0, weights=weights if weighted else None
    )
    np.testing.assert_allclose(found.solution.ravel(), x, atol=2e-5)


def test_sixty_noisy_projections():
    """At most half the error of filtered back projection, slices coupled; complex volumes too."""
    body = Phantom(np.array([[1.0, 0.7, 0.7, 0.7, 0, 0, 0, 0.0], [-0.5, 0.2, 0.3, 0.25, 0.1, -0.2, 0, 20.0]]))
    truth = body.volume(48, 48)[16:32]
    geometry = ParallelBeam(np.arange(60) * 3.0, 64, 31.5, width=48, height=48)
    operator = ParallelProjector(geometry, 16)
    exact = operator.forward(truth)
    data = exact + 0.05 * exact.max() * laws.draw(operator.shape_out)
    plain = laws.norm(fbp(data, geometry) - truth)
    found = tv(operator, data, strength=3.0, iterations=150, lower=0)
    assert laws.norm(found.solution - truth) < 0.5 * plain
    turned = ParallelProjector(geometry, 16, np.complex64)
    phase = np.complex64(np.exp(0.7j))
    both = tv(turned, data * phase, strength=3.0, iterations=40).solution
    one = tv(operator, data, strength=3.0, iterations=40).solution
    assert both.dtype == np.complex64
    assert laws.norm(both - one * phase) < 1e-4 * laws.norm(one)  # the variation of a complex volume has no direction


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"strength": -1.0}, "strength of the total variation"),
        ({"strength": 1.0, "kind": "round"}, "isotropic or anisotropic"),
        ({"strength": 1.0, "spacing": (0, 1, 1)}, "spacing of voxels"),
        ({"strength": 1.0, "lower": 1.0, "upper": 0.0}, "leave nothing between them"),
    ],
)
def test_what_does_not_go(problem, options, said):
    operator, data, _ = problem
    with pytest.raises(UserError, match=said):
        tv(operator, data, **options)


@pytest.mark.parametrize("unit", [0.002, 30.0])
def test_the_unit_of_length_does_not_matter(unit: float) -> None:
    """Attenuation per millimetre of a cone in millimetres converges as that per voxel does."""

    def solved(unit: float) -> np.ndarray:
        geometry = cone_beam(
            np.arange(0, 360, 15), 14, 14, source_axis=60 * unit, source_detector=90 * unit, pixel=1.6 * unit,
            shape=(8, 10, 10), voxel=unit,
        )  # fmt: skip
        operator = RayProjector(geometry)
        body = np.zeros(geometry.shape, np.float32)
        body[2:6, 3:8, 2:7] = 1
        data = operator.forward(body / np.float32(unit))
        # strength times a length: the variation is taken over voxels of that size
        options = {"strength": 0.02 * unit * unit, "spacing": (unit,) * 3}
        return tv(operator, data, iterations=30, **options).solution * np.float32(unit)

    one = solved(1.0)
    assert np.abs(solved(unit) - one).max() <= 0.05 * np.abs(one).max()
