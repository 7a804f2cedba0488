"""Starts on larger voxels: where coarse voxels and pixels lie, and what they save."""

import numpy as np
import pytest

from dtomo.algorithms import Discrepancy, TotalVariation, cgls, coarse_to_fine, fista, mlem, sirt, tv
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam, cone_beam
from dtomo.operators import Differences, Masked, ParallelProjector, RayProjector
from dtomo.simulate import Phantom
from tests import laws

BODY = Phantom(np.array([[1.0, 0.6, 0.4, 9.0, 0.1, -0.15, 0.0, 30.0], [-0.5, 0.2, 0.15, 9.0, 0.1, -0.2, 0.0, 0.0]]))
GEOMETRY = ParallelBeam(np.arange(60) * 3.0, 67, 31.7, width=64, height=64)


@pytest.fixture(scope="module")
def problem():
    operator, volume = ParallelProjector(GEOMETRY, 2), np.repeat(BODY.volume(64, 1), 2, 0)
    return operator, volume, operator.forward(volume)


@pytest.mark.parametrize("factor", [2, 3, 4])
@pytest.mark.parametrize(("width", "height", "columns", "center"), [(64, 64, 64, 31.5), (33, 27, 45, 19.3)])
def test_coarse_projections_of_a_smooth_body_are_those_of_the_fine_ones(factor, width, height, columns, center):
    geometry = ParallelBeam(np.arange(11) * 16.0, columns, center, width=width, height=height)
    operator = ParallelProjector(geometry, 2)
    y, x = np.mgrid[:height, :width] - np.array([(height - 1) / 2, (width - 1) / 2])[:, None, None]
    blob = np.exp(-((x - 3) ** 2 + (y + 2) ** 2) / (2 * 6.0**2)).astype(np.float32)
    fine = np.stack([blob, 2 * blob])
    level = operator.coarser(factor)
    assert level.operator.shape_in == (2, -(-height // factor), -(-width // factor))
    coarse = level.volume(fine)
    projected, binned = level.operator.forward(coarse), level.data(operator.forward(fine))
    whole = slice(0, columns // factor - 1)  # the last pixel may be a part
    assert laws.norm((projected - binned)[..., whole]) < 0.03 * laws.norm(binned)
    assert laws.norm(level.refined(coarse) - fine) < 0.06 * laws.norm(fine)


def test_means_of_what_has_a_weight():
    operator = ParallelProjector(ParallelBeam(np.arange(3) * 60.0, 7, 3.0, width=6, height=6), 1)
    level = operator.coarser(2)
    data = np.arange(21, dtype=np.float32).reshape(3, 1, 7)
    weights = np.ones((3, 1, 7), np.float32)
    weights[0, 0, 1], weights[1, 0, 2:4], weights[2, 0, 6] = 0, 0, 3
    data[0, 0, 1] = np.nan
    found = level.data(data, weights)
    assert found.shape == level.operator.shape_out == (3, 1, 4)
    np.testing.assert_allclose(found[0, 0], [0, 1.25, 2.25, 3], rtol=1e-6)  # halves: lengths are in coarse voxels
    np.testing.assert_allclose(found[1, 0], [3.75, 0, 5.75, 6.5], rtol=1e-6)
    np.testing.assert_allclose(level.means(weights)[2, 0], [1, 1, 1, 3], rtol=1e-6)


def test_it_saves_iterations(problem):
    operator, volume, data = problem
    plain = sirt(operator, data, iterations=20)
    begun = coarse_to_fine(sirt, operator, data, factors=(4, 2), iterations=8, coarse_iterations=30)
    assert begun.iterations == 8
    assert laws.norm(begun.solution - volume) < laws.norm(plain.solution - volume)
    assert (begun.residuals[0] < 0.2 * plain.residuals[0]).all()


@pytest.mark.parametrize(
    ("solver", "options"),
    [
        (cgls, {"damping": 0.1}), (tv, {"strength": 0.5, "lower": 0.0}), (mlem, {"background": 0.3}),
        (fista, {"prior": TotalVariation(0.5, (1.0, 1.0))}), (sirt, {"stop": Discrepancy(0.4), "initial": True}),
    ],
    ids=["cgls", "tv", "mlem", "fista", "sirt"],
)  # fmt: skip
def test_all_options_travel(problem, solver, options):
    operator, volume, data = problem
    inside = abs(volume[0]) >= 0
    inside[:4] = False
    weights = np.random.default_rng(0).uniform(0.5, 1, operator.shape_out).astype(np.float32)
    options = options | {"weights": weights, "mask": inside, "iterations": 6}
    if "initial" in options:
        options["initial"] = 0.3 * volume
    if "background" in options:
        options["background"] = np.full((60, 1, 67), 0.3, np.float32)
    found = coarse_to_fine(solver, operator, data, factors=(2,), **options)
    plain = solver(operator, data, **options)
    assert not found.solution[:, :4].any()
    assert found.residuals[0].sum() <= plain.residuals[0].sum()
    assert laws.norm(found.solution - volume) <= 1.05 * laws.norm(plain.solution - volume)


def test_slices_stay_problems_of_their_own(problem):
    operator, _, data = problem
    data = data * np.array([1, 3], np.float32)[:, None]
    whole = coarse_to_fine(cgls, operator, data, iterations=3)
    alone = coarse_to_fine(cgls, ParallelProjector(GEOMETRY, 1), data[:, 1:], iterations=3)
    assert np.array_equal(alone.solution[0], whole.solution[1])


def test_masks_of_coarse_voxels_leave_nothing_out():
    mask = np.zeros((12, 12), bool)
    mask[5, 3:8] = True
    level = Masked(ParallelProjector(ParallelBeam([0.0], 12), 2), mask).coarser(2)
    assert level.operator.mask[0, 2, 1:4].all()


def test_the_same_geometry_at_factor_one():
    assert GEOMETRY.coarser(1) == GEOMETRY
    with pytest.raises(UserError, match="whole number from 1"):
        GEOMETRY.coarser(0)


@pytest.mark.parametrize("factors", [(2, 4), (1,), (2.5,), (2, 2)])
def test_factors_that_do_not_fall(problem, factors):
    operator, _, data = problem
    with pytest.raises(UserError, match="the largest first"):
        coarse_to_fine(sirt, operator, data, factors=factors)


def test_an_operator_without_coarser_voxels():
    operator = Differences((2, 4, 4))
    with pytest.raises(UserError, match="Differences cannot be made coarser"):
        coarse_to_fine(cgls, operator, np.zeros(operator.shape_out, np.float32), factors=(2,))


def test_cone_beams_have_coarser_rows_and_slices_too():
    geometry = cone_beam(
        np.arange(16) * 22.5, 22, 25, source_axis=120.0, source_detector=200.0, pixel=1.7, shape=(20, 21, 24)
    )
    operator = RayProjector(geometry)
    z, y, x = np.mgrid[:20, :21, :24] - np.array([9.5, 10.0, 11.5])[:, None, None, None]
    blob = np.exp(-((x - 2) ** 2 + (y + 2) ** 2 + (z - 1) ** 2) / (2 * 4.0**2)).astype(np.float32)
    level = operator.coarser(2)
    assert level.operator.shape_in == (10, 11, 12)
    projected, binned = level.operator.forward(level.volume(blob)), level.data(operator.forward(blob))
    inner = (slice(None), slice(0, 11), slice(0, 12))
    assert laws.norm((projected - binned)[inner]) < 0.04 * laws.norm(binned)
    data = operator.forward(blob)
    begun = coarse_to_fine(sirt, operator, data, factors=(2,), iterations=4, coarse_iterations=20)
    plain = sirt(operator, data, iterations=8)
    assert laws.norm(begun.solution - blob) < laws.norm(plain.solution - blob)
