"""The projector's kernels on bare arrays: nothing read or written outside of them, any number of threads."""

import numpy as np
import pytest

from dtomo.kernels import parallel_cpu
from dtomo.kernels.weights import interpolation, rays
from tests import laws

RADIANS = np.deg2rad([0.0, 17.0, 45.0, 80.0, 90.0, 100.0, 133.0, 180.0, 271.0, -44.0])
WIDTH, HEIGHT, COLUMNS = 23, 18, 40
GUARD = 64


def guarded(shape, fill, seed=0):
    """A C-contiguous array inside a larger one that holds `fill` on both sides."""
    size = int(np.prod(shape))
    around = np.full(size + 2 * GUARD, fill, np.float32)
    inner = around[GUARD : GUARD + size].reshape(shape)
    inner[...] = laws.draw(shape, seed=seed)
    return around, inner


def directions(table, slices):
    volume, sinogram = (HEIGHT, WIDTH, slices), (len(RADIANS), COLUMNS, slices)
    return [(parallel_cpu.forward, volume, sinogram), (parallel_cpu.adjoint, sinogram, volume)]


@pytest.mark.parametrize("center", [19.5, 3.0, -60.0, 200.0])
@pytest.mark.parametrize("pitch", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("slices", [1, 3, 4, 17, 80])
def test_nothing_outside_is_read_or_written(slices, pitch, center):
    table = rays(RADIANS, center, COLUMNS, WIDTH, HEIGHT, pitch)
    for kernel, shape, out in directions(table, slices):
        _, source = guarded(shape, np.nan)
        around, target = guarded(out, 7)
        kernel(source, target, table)
        assert np.isfinite(target).all(), kernel.__name__
        assert (around[:GUARD] == 7).all(), kernel.__name__
        assert (around[-GUARD:] == 7).all(), kernel.__name__


@pytest.mark.parametrize("slices", [1, 5, 20])
def test_results_overwrite(slices):
    table = rays(RADIANS, 19.0, COLUMNS, WIDTH, HEIGHT, 1.0)
    for kernel, shape, out in directions(table, slices):
        source = laws.draw(shape)
        first, second = np.full(out, np.nan, np.float32), np.zeros(out, np.float32)
        kernel(source, first, table)
        kernel(source, second, table)
        assert np.array_equal(first, second)


@pytest.mark.parametrize("slices", [2, 33])
def test_threads_of_one_call(slices):
    table = rays(RADIANS, 19.0, COLUMNS, WIDTH, HEIGHT, 1.0)
    for kernel, shape, out in directions(table, slices):
        source, results = laws.draw(shape), []
        for threads in (1, 2, 3, 7):
            results.append(np.empty(out, np.float32))
            kernel(source, results[-1], table, threads=threads)
        assert all(np.array_equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("slices", [1, 5])
def test_a_broken_slice_spoils_no_other(slices):
    table = rays(RADIANS, 19.0, COLUMNS, WIDTH, HEIGHT, 1.0)
    for kernel, shape, out in directions(table, slices + 1):
        source = laws.draw(shape)
        clean, spoilt = np.empty(out, np.float32), np.empty(out, np.float32)
        kernel(source, clean, table)
        source[..., -1] = np.nan
        kernel(source, spoilt, table)
        assert np.array_equal(clean[..., :-1], spoilt[..., :-1])


def test_order_of_angles_moves_lines_and_nothing_else():
    order = np.random.default_rng(3).permutation(len(RADIANS))
    volume = laws.draw((HEIGHT, WIDTH, 5))
    one, two = (np.empty((len(RADIANS), COLUMNS, 5), np.float32) for _ in range(2))
    parallel_cpu.forward(volume, one, rays(RADIANS, 19.0, COLUMNS, WIDTH, HEIGHT, 1.0))
    parallel_cpu.forward(volume, two, rays(RADIANS[order], 19.0, COLUMNS, WIDTH, HEIGHT, 1.0))
    assert np.array_equal(two, one[order])


def test_many_repeats_of_one_angle():
    """More frames at one angle than a block holds."""
    radians = np.full(75, 0.3)
    volume, lines = laws.draw((HEIGHT, WIDTH, 4)), np.empty((75, COLUMNS, 4), np.float32)
    table = rays(radians, 19.0, COLUMNS, WIDTH, HEIGHT, 1.0)
    parallel_cpu.forward(volume, lines, table)
    assert (lines == lines[0]).all()
    back, single = np.empty((HEIGHT, WIDTH, 4), np.float32), np.empty((HEIGHT, WIDTH, 4), np.float32)
    parallel_cpu.adjoint(lines, back, table)
    parallel_cpu.adjoint(lines[:1].copy(), single, rays(radians[:1], 19.0, COLUMNS, WIDTH, HEIGHT, 1.0))
    np.testing.assert_allclose(back, 75 * single, rtol=1e-4, atol=1e-3)


def test_interpolation_of_a_constant_counts_the_angles():
    """Well inside the detector, linear interpolation of ones is one at every angle."""
    table = interpolation(rays(RADIANS, 19.3, COLUMNS, WIDTH, HEIGHT, 1.0))
    back = np.empty((HEIGHT, WIDTH, 3), np.float32)
    parallel_cpu.adjoint(np.ones((len(RADIANS), COLUMNS, 3), np.float32), back, table)
    np.testing.assert_allclose(back, len(RADIANS), rtol=1e-6)


@pytest.mark.parametrize("slices", [1, 3, 4, 20])
@pytest.mark.parametrize(("width", "height"), [(23, 17), (33, 33), (32, 64), (64, 65)])
def test_what_memory_held_before_does_not_matter(width, height, slices):
    """Buffers are not cleared: what they held (here NaN) must not come through, not even with weight zero."""
    radians = np.deg2rad(np.arange(24) * 15.0)
    table = rays(radians, 30.0, 64, width, height, 1.0)
    shapes = (height, width, slices), (len(radians), 64, slices)
    for kernel, shape, out in ((parallel_cpu.forward, *shapes), (parallel_cpu.adjoint, *shapes[::-1])):
        source, first, again = laws.draw(shape), np.empty(out, np.float32), np.empty(out, np.float32)
        kernel(source, first, table, threads=1)
        assert np.isfinite(first).all(), kernel.__name__
        for _ in range(20):
            used = [np.full(size, np.nan, np.float32) for size in range(100, 20_000, 331)]
            del used
            kernel(source, again, table, threads=1)
            assert np.array_equal(again, first), kernel.__name__
