"""Projector kernels for devices: against the CPU's and a plain sum of weights, on shapes with edges."""

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.kernels import parallel as by_place
from dtomo.kernels import parallel_cpu
from dtomo.kernels.cuda import parallel, parallel_adjoint, parallel_forward
from dtomo.kernels.cuda.parallel import Grid
from dtomo.kernels.cuda.tables import adjoint_table, device_tables, forward_table
from dtomo.kernels.weights import ONE, interpolation, rays
from tests import laws

ANGLES = np.deg2rad([0.0, 17.0, 45.0, 90.0, 133.0, 180.0, 271.0, -44.0])
GRID = Grid(warps=4, most=2)

# (columns, width, height, center, pitch): odd, wide, tall; axis beside the middle and off the detector
SHAPES = [(9, 11, 10, 4.3, 1.0), (7, 12, 5, 1.5, 1.7), (12, 5, 13, 14.0, 0.6), (1, 3, 2, 0.0, 1.0)]


@pytest.fixture
def small(monkeypatch):
    """Warps of 4 lanes and short launches: all branches on tiny shapes (the simulator looks constants up anew)."""
    for module in (parallel, parallel_forward, parallel_adjoint):
        for name, value in {"LANES": 4, "FEW": 1, "STRIP": 4, "ROWS": 8, "ANGLES": 5}.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)


def on_device(cupy, function, source, shape, table, grid=GRID):
    target = cupy.full(shape, np.nan, np.float32)
    function(cupy.asarray(source), target, table, grid)
    return target.get()


def matrix(table, angles, columns, width, height):
    """The projector as a matrix (angle, column, y, x) in float64, from whole numbers, entry by entry."""
    found = np.zeros((angles, columns, height, width))
    for i in range(angles):
        along_y = table.axis[i] == 0
        rows, across = (height, width) if along_y else (width, height)
        for d in range(columns):
            for m in range(rows):
                position = int(table.a[i] * (d - columns // 2) + table.b[i] * (m - rows // 2) + table.c[i])
                for s in range(across):
                    weight = max(0, ONE - abs(position - (s - across // 2) * ONE)) * np.float64(table.scale[i])
                    found[table.number[i], d, *((m, s) if along_y else (s, m))] += weight
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_against_a_plain_sum_of_weights(cupy, small, shape):
    columns, width, height, center, pitch = shape
    table = rays(ANGLES, center, columns, width, height, pitch)
    weights = matrix(table, len(ANGLES), columns, width, height)
    volume, lines = laws.draw((height, width, 3)), laws.draw((len(ANGLES), columns, 3), seed=1)
    image = on_device(cupy, parallel.forward, volume, lines.shape, table)
    back = on_device(cupy, parallel.adjoint, lines, volume.shape, table)
    for found, expected in (
        (image, np.einsum("idyx,yxz->idz", weights, volume.astype(np.float64))),
        (back, np.einsum("idyx,idz->yxz", weights, lines.astype(np.float64))),
    ):
        assert laws.norm(found - expected) <= 2e-7 * laws.norm(expected)


@pytest.mark.parametrize("slices", [1, 2, 5, 27])
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_against_the_cpu(cupy, small, record_error, shape, slices):
    """27 slices are groups of 16 and 8 and three lanes of a warp; 1 and 5 leave one slice that goes by its plane."""
    columns, width, height, center, pitch = shape
    table = rays(ANGLES, center, columns, width, height, pitch)
    volume, lines = (height, width, slices), (len(ANGLES), columns, slices)
    for name, shape_in, out in (("forward", volume, lines), ("adjoint", lines, volume)):
        source, expected = laws.draw(shape_in), np.empty(out, np.float32)
        getattr(parallel_cpu, name)(source, expected, table)
        found = on_device(cupy, getattr(parallel, name), source, out, table)
        record_error(found, expected)
        assert laws.norm(found - expected) <= 3e-7 * laws.norm(expected)


@pytest.mark.parametrize("slices", [3, 27])
def test_several_slices_by_their_planes(cupy, small, record_error, monkeypatch, slices):
    """Three slices are left over, which are not exchanged and go where they belong."""
    monkeypatch.setattr(parallel, "FEW", 3)
    columns, width, height, center, pitch = SHAPES[1]
    table = rays(ANGLES, center, columns, width, height, pitch)
    volume, lines = (height, width, slices), (len(ANGLES), columns, slices)
    assert parallel.few_slices(slices) == 3
    for name, shape_in, out in (("forward", volume, lines), ("adjoint", lines, volume)):
        source, expected = laws.draw(shape_in), np.empty(out, np.float32)
        getattr(parallel_cpu, name)(source, expected, table)
        found = on_device(cupy, getattr(parallel, name), source, out, table)
        record_error(found, expected)
        assert laws.norm(found - expected) <= 3e-7 * laws.norm(expected)


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_back_projection_that_interpolates(cupy, small, shape):
    columns, width, height, center, pitch = shape
    table = interpolation(rays(ANGLES, center, columns, width, height, pitch))
    for slices in (1, 6):
        lines, expected = laws.draw((len(ANGLES), columns, slices)), np.empty((height, width, slices), np.float32)
        parallel_cpu.adjoint(lines, expected, table)
        found = on_device(cupy, parallel.adjoint, lines, expected.shape, table)
        assert laws.norm(found - expected) <= 3e-7 * laws.norm(expected)


def test_with_whole_warps(cupy, monkeypatch):
    """As launched on devices, but for the number of warps: 33 slices, one of them by its plane."""
    monkeypatch.setattr(parallel_forward, "ROWS", 8)
    columns, width, height = 4, 6, 8
    table = rays(ANGLES[:2], 1.2, columns, width, height, 1.0)
    volume, lines = (height, width, 33), (2, columns, 33)
    for name, shape_in, out in (("forward", volume, lines), ("adjoint", lines, volume)):
        source, expected = laws.draw(shape_in), np.empty(out, np.float32)
        getattr(parallel_cpu, name)(source, expected, table)
        found = on_device(cupy, getattr(parallel, name), source, out, table, Grid(4, 1))
        assert laws.norm(found - expected) <= 3e-7 * laws.norm(expected)


@pytest.mark.parametrize("name", ["forward", "adjoint"])
def test_the_same_bits_in_any_slab_and_grid(cupy, small, name):
    columns, width, height, center, pitch = SHAPES[0]
    table = rays(ANGLES[::2], center, columns, width, height, pitch)
    volume, lines = (height, width, 27), (4, columns, 27)
    shape, out = (volume, lines) if name == "forward" else (lines, volume)
    source, function = laws.draw(shape, seed=4), getattr(parallel, name)
    expected = on_device(cupy, function, source, out, table)
    for grid in (Grid(4, 1), Grid(8, 100)):
        assert np.array_equal(on_device(cupy, function, source, out, table, grid), expected)
    for start, stop in ((3, 4), (20, 21), (25, 27), (1, 6), (2, 10)):
        part = on_device(cupy, function, source[..., start:stop].copy(), (*out[:2], stop - start), table)
        assert np.array_equal(part, expected[..., start:stop]), (start, stop)


@pytest.mark.parametrize("name", ["forward", "adjoint"])
@pytest.mark.parametrize("slices", [1, 7])
def test_nothing_outside_is_read(cupy, small, name, slices):
    """Not a number in one slice and around the arrays stays where it is."""
    columns, width, height, center, pitch = SHAPES[1]
    table = rays(ANGLES, center, columns, width, height, pitch)
    volume, lines = (height, width, slices), (len(ANGLES), columns, slices)
    shape, out = (volume, lines) if name == "forward" else (lines, volume)
    around = np.full(int(np.prod(shape)) + 128, np.nan, np.float32)
    inner = around[64:-64].reshape(shape)
    inner[...] = laws.draw(shape)
    if slices > 1:
        inner[..., 2] = np.nan
    target = cupy.full(out, np.nan, np.float32)
    source = cupy.asarray(around)[64:-64].reshape(shape)
    getattr(parallel, name)(source, target, table, GRID)
    sound = np.arange(slices) != 2 if slices > 1 else np.ones(1, bool)
    assert np.isfinite(target.get()[..., sound]).all()


def test_the_place_decides(cupy, small):
    columns, width, height, center, pitch = SHAPES[0]
    table = rays(ANGLES[:2], center, columns, width, height, pitch)
    volume, lines = laws.draw((height, width, 1)), np.empty((2, columns, 1), np.float32)
    by_place.forward(volume, lines, table)
    device = cupy.empty(lines.shape, np.float32)
    by_place.forward(cupy.asarray(volume), device, table)
    np.testing.assert_allclose(device.get(), lines, atol=1e-5)
    back = np.empty_like(volume)
    by_place.adjoint(lines, back, table)
    device = cupy.empty(volume.shape, np.float32)
    by_place.adjoint(cupy.asarray(lines), device, table)
    np.testing.assert_allclose(device.get(), back, atol=1e-5)
    for wrong in ((cupy.asarray(volume), lines), (volume, cupy.asarray(lines))):
        with pytest.raises(TypeError, match="host"):
            by_place.forward(*wrong, table)
        with pytest.raises(TypeError, match="host"):
            by_place.adjoint(*wrong[::-1], table)


def test_groups_cover_all_slices_once():
    for slices in (*range(1, 300), 4096, 4097):
        found = np.zeros(slices, int)
        for groups, z, valid, count in parallel._groups(slices):
            assert valid == parallel.LANES or (groups, count) == (1, 1)
            lanes = count * groups * parallel.LANES - parallel.LANES + valid
            found[z : z + lanes] += 1
            assert z + lanes <= slices
        found[slices - parallel.few_slices(slices) :] += 1
        assert (found == 1).all(), slices


def test_grids_of_large_problems():
    """4097 columns, 16385 angles, 4097 slices: far below what a grid may have, one block for every tile."""
    assert parallel.forward_tiles(16385, 4097, 16) == (1025, 4097)
    assert parallel.adjoint_tiles(4097, 4097, 16) == (513, 513)
    assert parallel.GRID.blocks(1025, 4097, 33) == 1025 * 4097 * 33 < 2**31
    assert parallel.GRID.blocks(1025, 4097, 1000) == 2**31 - 1
    assert Grid(16, 7).blocks(100, 3, 1) == 7
    for groups in (4, 2, 1):
        for kernel in (parallel.FORWARD[groups], parallel.ADJOINT[groups]):
            lanes, warps = parallel.GRID.of(kernel)
            assert (lanes, warps) == kernel.threads
            assert lanes == 32
            assert warps % parallel.COLUMNS == 0


def test_slabs_too_thick_for_steps_in_32_bits(cupy):
    """4097 columns go with 58240 slices, more than a device holds; beyond that, one sentence."""
    parallel.check_steps(9 * 4097 * 58240 - 1)
    table = rays(ANGLES, 0.0, 1, 1, 1, 1.0)
    thick = cupy.asarray(np.broadcast_to(np.float32(0), (1, 1, 2)))
    shaped = np.lib.stride_tricks.as_strided(thick.host, (1, 1, 2**31), (0, 0, 0))
    for apply in (parallel.forward, parallel.adjoint):
        with pytest.raises(UserError, match="fewer slices"):
            apply(type(thick)(shaped), type(thick)(shaped), table)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("pitch", [0.5, 1.0, 1.3])
def test_positions_are_exact_for_large_slices(pitch, turned):
    """At 16385² voxels the columns tried are exactly those with a weight: in Python integers of any size."""
    columns, size = 16385, 16385
    angles = np.deg2rad([0.0, 0.003, 30.0, 44.999, 45.0, 60.0, 89.99, 90.0, 123.4, 179.99])
    table = rays(angles, 8190.7, columns, size, size, pitch)
    table = interpolation(table) if turned else table
    back, there = adjoint_table(table, columns), forward_table(table)
    assert np.array_equal(back[:, 0], there[:, 0])
    rng = np.random.default_rng(0)
    half = size // 2
    for row, (_, axis, a, b, c) in zip(back.tolist(), there.tolist()):
        _, u, u_y, u_x, gap, gap_y, gap_x, positive = row
        assert positive == abs(a)
        t = int(table.t[0]) if not turned else int(table.t[back.tolist().index(row)])
        for y, x in [(-half, -half), (half, half), (-half, half), *rng.integers(-half, half + 1, (40, 2)).tolist()]:
            m, s = (y, x) if axis == 0 else (x, y)
            column = (u + u_y * y + u_x * x) >> 40
            here = gap + gap_y * y + gap_x * x + positive * column
            assert -positive <= here <= 0, "the column before the voxel"
            assert abs(here) == abs(a * (column - columns // 2) + b * m + c + t * s)
            missed = (here - table.pairs * positive, here + (table.pairs + 1) * positive)
            assert min(abs(value) for value in missed) >= ONE - 2, "no ray with a weight is left out"


def test_flat_places_pass_two_to_the_31():
    """What kernels compute with is int64: arguments, tables, and the numbers of blocks and threads in products."""
    for kernel in (*parallel.FORWARD.values(), *parallel.ADJOINT.values()):
        types = (
            kernel.signatures[0].removeprefix("void(").removesuffix(")").replace("float32[::1]", "float").split(", ")
        )
        assert set(types) == {"float", "int64", "int64[:", "::1]"}
    table = rays(ANGLES, 4.0, 9, 9, 9, 1.0)
    assert forward_table(table).dtype == np.int64
    assert adjoint_table(table, 9).dtype == np.int64


def test_places_past_two_to_the_31(cupy, small, tmp_path):
    """The last four slices of a slab of 2.3e9 voxels and as many values in sparse files: those of the slices alone."""
    size, slices = 10, 23_000_000
    table = rays(np.deg2rad(np.arange(0, 180, 18.0)), 4.3, size, size, size, 1.0)
    shape, z, threads = (size, size, slices), slices - parallel.LANES, (parallel.LANES, 4)
    parallel.check_steps((parallel_forward.STRIP + 1) * size * slices)
    tables = device_tables(table, size)
    given = laws.draw((size, size, parallel.LANES))
    for name in ("forward", "adjoint"):
        source, target = (np.memmap(tmp_path / f"{name} {k}", np.float32, "w+", shape=shape) for k in range(2))
        assert source.size > 2**31
        source[..., z:] = given
        flat = [type(tables.scale)(array.reshape(-1)) for array in (source, target)]
        sizes = size, size, size, slices, z, parallel.LANES, 1
        if name == "forward":
            for top in range(0, size, parallel_forward.ROWS):
                parallel.FORWARD[1].launch(2, *flat, *sizes, top, tables.forward, tables.scale, threads=threads)
        else:
            for first in range(0, size, 5):
                parallel.ADJOINT[1].launch(
                    2, *flat, *sizes, table.pairs, first, first + 5, tables.adjoint, tables.scale, threads=threads
                )  # fmt: skip
        alone = on_device(cupy, getattr(parallel, name), given, given.shape, table)
        assert np.abs(alone).max() > 0
        assert np.array_equal(target[..., z:], alone)
