"""Expectation maximisation against its published iteration on a dense matrix, and what it promises about counts."""

import numpy as np
import pytest

from dtomo.algorithms import mlem, osem
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam, cone_beam
from dtomo.operators import ParallelProjector, RayProjector
from tests import laws

GEOMETRY = ParallelBeam(np.arange(10) * 18.0, 14, 6.2, width=10, height=10)


@pytest.fixture(scope="module")
def problem():
    operator = ParallelProjector(GEOMETRY, 2)
    volume = np.random.default_rng(0).uniform(0, 3, operator.shape_in).astype(np.float32)
    counts = np.random.default_rng(1).poisson(operator.forward(volume)).astype(np.float32)
    return operator, volume, counts


@pytest.mark.parametrize("background", [0.0, 0.7])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_published_iteration(problem, weighted, background):
    """Of Shepp and Vardi, in double precision; bad pixels may hold anything."""
    operator, volume, counts = problem
    weights = np.ones(operator.shape_out, np.float32)
    given = counts.copy()
    if weighted:
        weights = np.random.default_rng(2).uniform(0, 2, operator.shape_out).astype(np.float32)
        weights[4, :, 3:6] = 0
        given[4, :, 3:6] = np.nan
    options = {"weights": weights if weighted else None, "background": background, "initial": volume[::-1] + 1}
    found = mlem(operator, given, iterations=6, **options)
    matrix = laws.dense(ParallelProjector(GEOMETRY, 1)).astype(float)
    for slice_number in range(2):
        x = volume[::-1][slice_number].ravel().astype(float) + 1
        b, w = counts[:, slice_number].ravel().astype(float), weights[:, slice_number].ravel().astype(float)
        seen = matrix.T @ w
        for _ in range(6):
            expected = matrix @ x + background
            ratio = np.divide(b, expected, out=np.zeros_like(b), where=expected > 1e-20)
            x *= np.divide(matrix.T @ (w * ratio), seen, out=np.zeros_like(x), where=seen > 1e-9)
        np.testing.assert_allclose(found.solution[slice_number].ravel(), x, rtol=2e-4, atol=2e-4)


def test_counts_are_kept_and_the_likelihood_rises(problem):
    operator, _, counts = problem
    likelihoods = []
    for iterations in range(1, 9):
        found = mlem(operator, counts, iterations=iterations).solution
        assert found.min() >= 0
        assert found.dtype == np.float32
        expected = operator.forward(found).astype(float)
        covered = expected > 0
        assert expected.sum() == pytest.approx(counts[covered].sum(), rel=1e-4)
        likelihoods.append((counts[covered] * np.log(expected[covered]) - expected[covered]).sum())
    assert (np.diff(likelihoods) > 0).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data": -1.0}, "data that is finite and not negative"),
        ({"initial": -1.0}, "starting point that is finite"),
        ({"background": -0.5}, "background that is finite"),
        ({"background": np.ones(5, np.float32)}, "must broadcast"),
    ],
)
def test_what_are_no_counts(problem, change, said):
    operator, volume, counts = problem
    change = dict(change)
    data = counts + change.pop("data", 0.0)
    if "initial" in change:
        change["initial"] = volume + np.float32(change["initial"]) - 3
    with pytest.raises(UserError, match=said):
        mlem(operator, data.astype(np.float32), **change)
    with pytest.raises(UserError, match="counts, which are real"):
        mlem(ParallelProjector(GEOMETRY, 2, np.complex64), counts)


def test_a_subset_that_does_not_see_a_voxel_leaves_it() -> None:
    """On a helix each subset sees some of the slices."""
    geometry = cone_beam(
        np.arange(-450, 451, 30.0), 6, 12, source_axis=60, source_detector=90, pixel=1.6, rise=5, shape=(12, 8, 8),
        voxel=1.0,
    )  # fmt: skip
    operator = RayProjector(geometry)
    body = np.ones(geometry.shape, np.float32)
    found = osem(operator, operator.forward(body), subsets=5, iterations=5).solution
    assert np.abs(found - 1).mean() < 0.05
