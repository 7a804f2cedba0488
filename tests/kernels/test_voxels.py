"""Voxel-driven back projection against SciPy's interpolation at the same places."""

import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from dtomo.kernels import voxel_lanes, voxels_cpu
from dtomo.kernels.voxels import backproject
from dtomo.operators.voxels import lines_of
from tests.kernels.voxel_cases import CASES, SHAPE, case, expected_volume

every = pytest.mark.parametrize("name", CASES)


def run(projections, matrices, plain, shape=SHAPE, **options):
    volume = np.zeros(shape[1:] + shape[:1], np.float32)
    backproject(projections, volume, matrices, plain=plain, **options)
    return np.moveaxis(volume, -1, 0)


@every
def test_every_voxel_has_what_is_seen_where_it_is(name):
    projections, matrices, plain = case(name)
    assert voxels_cpu.upright(matrices, (SHAPE[1], SHAPE[2], SHAPE[0]), plain) == CASES[name][1]
    expected = expected_volume(projections, matrices, plain, map_coordinates)
    assert (expected != 0).mean() > 0.5
    np.testing.assert_allclose(run(projections, matrices, plain), expected, atol=3e-6 * np.abs(expected).max())


@every
def test_the_same_bits_in_any_slab_with_the_rows_it_sees_on_any_threads_and_blocks_of_views(name):
    projections, matrices, plain = case(name)
    whole = run(projections, matrices, plain, threads=1)
    assert np.array_equal(run(projections, matrices, plain, threads=3), whole)
    for first, last in ((0, 1), (3, 20), (20, SHAPE[0])):
        part = (last - first, *SHAPE[1:])
        found = run(projections, matrices, plain, part, first=first, slices=SHAPE[0])
        assert np.array_equal(found, whole[first:last])
    volume = np.zeros(SHAPE[1:] + SHAPE[:1], np.float32)
    for some in (slice(0, 2), slice(2, None)):
        backproject(projections[some], volume, matrices[some], plain=plain)
    assert np.array_equal(np.moveaxis(volume, -1, 0), whole)


@every
def test_rows_that_are_not_there_count_as_nothing(name):
    projections, matrices, plain = case(name)
    cut = projections.copy()
    cut[:, :, :4] = 0
    cut[:, :, 11:] = 0
    part = np.ascontiguousarray(projections[:, :, 4:11])
    assert np.array_equal(run(part, matrices, plain, first_row=4), run(cut, matrices, plain))


def test_small_tiles_give_the_same_bits(monkeypatch):
    projections, matrices, plain = case("cone")
    whole = run(projections, matrices, plain)
    monkeypatch.setattr(voxels_cpu, "TILE", 5)
    monkeypatch.setattr(voxels_cpu, "DEEP", 7)
    assert np.array_equal(run(projections, matrices, plain), whole)


def test_without_vector_permutations_the_same(monkeypatch):
    """Other processors take values out of a window one by one."""
    from numba import njit

    monkeypatch.setattr(voxel_lanes, "chosen", voxel_lanes._chosen_one_by_one)
    line = np.random.default_rng(0).standard_normal(200).astype(np.float32)
    found = []
    for number in range(2):
        if number:
            monkeypatch.undo()

        def add(target, source, number=number):
            voxel_lanes.add_line(target, 16, source, 3, 40, np.float32(0.3), np.float32(0.7), 5 << 20, -700_000, 3)
            voxel_lanes.add_line(target, 0, source, 30, 70, np.float32(0.3), np.float32(0.7), 5 << 20, 29_000_000, 2)

        target = np.ones(64, np.float32)
        njit(add)(target, line)
        found.append(target)
    assert np.array_equal(*found)
    assert (found[0][:64] != 1).all()


def test_columns_that_are_lacking_are_zero():
    seen = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    lines = lines_of(seen, (2, 5))
    assert np.array_equal(lines, np.pad(np.swapaxes(seen, 1, 2), [(0, 0), (2, 5), (0, 0)]))
