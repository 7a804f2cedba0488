"""Parallel-beam projector and exactly matched back-projector for many slices at once, on CUDA devices.

Memory layout as on CPUs: volume ``[y, x, z]``, sinogram ``[angle, column, z]``, float32, z innermost. The 32 lanes of a
warp are 32 neighbouring slices, so that every load is one line of 128 bytes; a thread holds 1, 2 or 4 such lanes,
which share the weights of one ray (or of 4 voxels). What remains, up to `FEW` slices, is done plane by plane with the
lanes across columns or voxels.

No shared memory is tiled: each interpolation is two loads and two multiply-adds, the limit is the first-level cache,
and blocks are shaped so that it serves most loads. A block holds neighbouring rays of neighbouring angles (or a square
of voxels) whose warps walk in step. One launch takes `ROWS` rows of the volume (or `ANGLES` angles): what all blocks
read meanwhile stays in the second-level cache, for slices of any size.

Weights are those of `weights`, in whole numbers. Both directions only gather. The order of summation of a ray or voxel
is row after row, angle after angle, with a sum of its own for each launch: the same bits alone, in any slab and grid.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import cuda

from dtomo.kernels.cuda.compiling import CudaKernel, cuda_kernel, device_function
from dtomo.kernels.cuda.tables import POINT, device_tables
from dtomo.kernels.weights import FRACTION, ONE, Rays

LANES = 32  # of a warp
WARPS = 16  # of a block
COLUMNS = 4  # neighbouring columns of one block, forward; its other warps take neighbouring angles
VOXELS = 4  # neighbours along x of one thread, back projection; a block spans twice as many
ROWS = 64  # rows of the volume in one launch, forward
ANGLES = 64  # angles in one launch, back projection
STRIP = 8  # rows or angles after which the warps of a block wait for each other
FEW = 8  # remaining slices that are done plane by plane

MASK = ONE - 1
WHOLE = np.float32(ONE)


@device_function
def _rows_inside(groups, sums, volume, at, row_step, step, fraction, slope, scale):  # type: ignore[no-untyped-def]
    """Add `STRIP` rows to one ray, all samples inside; it crosses the first one `fraction` behind sample `at`."""
    position = fraction
    for _ in range(STRIP):
        part = np.float32(np.int32(position & MASK))
        near, far = (WHOLE - part) * scale, part * scale
        one = at + np.int64(position >> FRACTION) * step
        two = one + step
        for k in range(groups):
            sums[k] = volume[np.uint64(one + k * LANES)] * near + sums[k]
        for k in range(groups):
            sums[k] = volume[np.uint64(two + k * LANES)] * far + sums[k]
        position = np.int32(position + slope)
        at += row_step


@device_function
def _rows_checked(  # type: ignore[no-untyped-def]
    groups, sums, volume, at, row_step, step, fraction, slope, scale, first, across, count
):  # fmt: skip
    """Add `count` rows to one ray; sample `at` is number `first` of 0 … across - 1, and others are nothing."""
    position = fraction
    for _ in range(count):
        part = np.float32(np.int32(position & MASK))
        near, far = (WHOLE - part) * scale, part * scale
        place = np.int64(position >> FRACTION)
        one = at + place * step
        if first + place >= 0 and first + place < across:
            for k in range(groups):
                sums[k] = volume[np.uint64(one + k * LANES)] * near + sums[k]
        if first + place >= -1 and first + place < across - 1:
            for k in range(groups):
                sums[k] = volume[np.uint64(one + step + k * LANES)] * far + sums[k]
        position = np.int32(position + slope)
        at += row_step


@device_function
def _ray(  # type: ignore[no-untyped-def]
    groups, sums, volume, base, rows, across, row_step, step, top, position, slope, scale
):  # fmt: skip
    """Sum of one ray over the rows top : top + ROWS; it crosses row `top` at `position`, counted from sample 0."""
    for k in range(groups):
        sums[k] = np.float32(0)
    at = base + top * row_step
    for row in range(top, top + ROWS, STRIP):
        cuda.syncthreads()
        count = min(STRIP, rows - row)
        first, last = position >> FRACTION, (position + slope * (STRIP - 1)) >> FRACTION
        low, high = min(first, last), max(first, last)
        start, fraction = at + first * step, np.int32(position & MASK)
        if count == STRIP and low >= 0 and high < across - 1:
            _rows_inside(groups, sums, volume, start, row_step, step, fraction, np.int32(slope), scale)
        elif count > 0 and high >= -1 and low < across:
            _rows_checked(
                groups, sums, volume, start, row_step, step, fraction, np.int32(slope), scale, first, across, count
            )
        position += slope * STRIP
        at += row_step * STRIP


def _forward_kernel(groups: int) -> CudaKernel:
    """Project slices z + 32 `groups` k …, k < count, `valid` lanes of each."""

    def forward(  # type: ignore[no-untyped-def]
        volume, sinogram, width, height, columns, slices, z, valid, count, top, table, scales
    ):  # fmt: skip
        angles, middle = scales.size, columns // 2
        lane, ray = cuda.threadIdx.x, cuda.threadIdx.y
        deep = cuda.blockDim.y // COLUMNS
        wide = (columns + COLUMNS - 1) // COLUMNS
        tiles = wide * ((angles + deep - 1) // deep)
        sums = cuda.local.array(groups, numba.float32)
        for group in range(cuda.blockIdx.y, count, cuda.gridDim.y):
            begin = z + group * (groups * LANES)
            for tile in range(cuda.blockIdx.x, tiles, cuda.gridDim.x):
                d = np.int64(tile % wide * COLUMNS + ray % COLUMNS)
                i = np.int64(tile // wide * deep + ray // COLUMNS)
                present = d < columns and i < angles and lane < valid
                d, i = min(d, columns - 1), min(i, angles - 1)
                along_y = table[i, 1] == 0
                rows, across = (height, width) if along_y else (width, height)
                row_step, step = (width * slices, slices) if along_y else (slices, width * slices)
                slope = table[i, 3]
                position = table[i, 2] * (d - middle) + table[i, 4] + slope * (top - rows // 2)
                position += (across // 2) << FRACTION
                base = begin + min(np.int64(lane), valid - 1)
                _ray(groups, sums, volume, base, rows, across, row_step, step, top, position, slope, scales[i])
                if present:
                    target = (table[i, 0] * columns + d) * slices + begin + lane
                    for k in range(groups):
                        sinogram[np.uint64(target + k * LANES)] += sums[k]

    forward.__name__ = f"forward{groups}"
    return cuda_kernel(
        f"void(float32[::1], float32[::1], {'int64, ' * 8}int64[:, ::1], float32[::1])", threads=(LANES, WARPS)
    )(forward)


@cuda_kernel(f"void(float32[::1], float32[::1], {'int64, ' * 5}int64[:, ::1], float32[::1])", threads=(LANES, WARPS))
def forward_planes(planes, sinogram, width, height, columns, count, top, table, scales):  # type: ignore[no-untyped-def]
    """Project ``[axis, plane, row, sample]`` into ``[plane, angle, column]``; lanes across columns."""
    angles, middle = scales.size, columns // 2
    wide = (columns + cuda.blockDim.x - 1) // cuda.blockDim.x
    tiles = wide * ((angles + cuda.blockDim.y - 1) // cuda.blockDim.y)
    sums = cuda.local.array(1, numba.float32)
    for plane in range(cuda.blockIdx.y, count, cuda.gridDim.y):
        for tile in range(cuda.blockIdx.x, tiles, cuda.gridDim.x):
            d = np.int64(tile % wide * cuda.blockDim.x + cuda.threadIdx.x)
            i = np.int64(tile // wide * cuda.blockDim.y + cuda.threadIdx.y)
            present = d < columns and i < angles
            d, i = min(d, columns - 1), min(i, angles - 1)
            rows, across = (height, width) if table[i, 1] == 0 else (width, height)
            slope = table[i, 3]
            position = table[i, 2] * (d - middle) + table[i, 4] + slope * (top - rows // 2)
            position += (across // 2) << FRACTION
            base = (table[i, 1] * count + plane) * (width * height)
            _ray(1, sums, planes, base, rows, across, across, np.int64(1), top, position, slope, scales[i])
            if present:
                sinogram[np.uint64((plane * angles + table[i, 0]) * columns + d)] += sums[0]


@device_function
def _voxels_inside(groups, sums, sinogram, line, step, u, u_step, gap, gap_step, a, scale):  # type: ignore[no-untyped-def]
    """Add one angle to `VOXELS` neighbours, both columns of each inside (one pair of columns for each voxel)."""
    column = u >> POINT
    for v in range(VOXELS):
        near = np.float32(max(np.int32(ONE + gap), np.int32(0))) * scale
        far = np.float32(max(np.int32(ONE - a - gap), np.int32(0))) * scale
        one = line + np.int64(np.int32(column)) * step
        two = one + step
        for k in range(groups):
            sums[v * groups + k] = sinogram[np.uint64(one + k * LANES)] * near + sums[v * groups + k]
        for k in range(groups):
            sums[v * groups + k] = sinogram[np.uint64(two + k * LANES)] * far + sums[v * groups + k]
        u += u_step
        following = u >> POINT
        gap = np.int32(gap + gap_step + a * np.int32(following - column))
        column = following


@device_function
def _voxels_checked(  # type: ignore[no-untyped-def]
    groups, sums, sinogram, line, step, u, u_step, gap, gap_step, a, scale, columns, pairs
):  # fmt: skip
    """Add one angle to `VOXELS` neighbours, with any number of pairs of columns; those outside are nothing."""
    column = u >> POINT
    for v in range(VOXELS):
        for pair in range(pairs):
            before, after = column - pair, column + 1 + pair
            if before >= 0 and before < columns:
                weight = np.float32(max(np.int32(ONE + gap - a * np.int32(pair)), np.int32(0))) * scale
                for k in range(groups):
                    place = np.uint64(line + before * step + k * LANES)
                    sums[v * groups + k] = sinogram[place] * weight + sums[v * groups + k]
            if after >= 0 and after < columns:
                weight = np.float32(max(np.int32(ONE - gap - a * np.int32(pair + 1)), np.int32(0))) * scale
                for k in range(groups):
                    place = np.uint64(line + after * step + k * LANES)
                    sums[v * groups + k] = sinogram[place] * weight + sums[v * groups + k]
        u += u_step
        following = u >> POINT
        gap = np.int32(gap + gap_step + a * np.int32(following - column))
        column = following


@device_function
def _voxels(  # type: ignore[no-untyped-def]
    groups, sums, sinogram, base, line_step, step, columns, pairs, y, x, along, first, last, table, scales
):  # fmt: skip
    """Sums over the angles first : last of `VOXELS` neighbours along axis `along` (0: y, 1: x), from (y, x) on.

    y and x count from the middle.
    """
    for k in range(VOXELS * groups):
        sums[k] = np.float32(0)
    for start in range(first, last, STRIP):
        cuda.syncthreads()
        for i in range(start, min(start + STRIP, last)):
            u = table[i, 1] + table[i, 2] * y + table[i, 3] * x
            u_step, gap_step = (table[i, 3], table[i, 6]) if along == 1 else (table[i, 2], table[i, 5])
            one, other = u >> POINT, (u + u_step * (VOXELS - 1)) >> POINT
            low, high = min(one, other), max(one, other)
            if high + pairs < 0 or low - pairs >= columns:
                continue
            a = np.int32(table[i, 7])
            gap = np.int32(table[i, 4] + table[i, 5] * y + table[i, 6] * x + table[i, 7] * one)
            line = base + table[i, 0] * line_step
            if pairs == 1 and low >= 0 and high < columns - 1:
                _voxels_inside(
                    groups, sums, sinogram, line, step, u, u_step, gap, np.int32(gap_step), a, scales[i]
                )  # fmt: skip
            else:
                _voxels_checked(
                    groups, sums, sinogram, line, step, u, u_step, gap, np.int32(gap_step), a, scales[i], columns, pairs
                )


def _adjoint_kernel(groups: int) -> CudaKernel:
    """Back-project slices z + 32 `groups` k …, k < count, `valid` lanes of each."""
    held = VOXELS * groups

    def adjoint(  # type: ignore[no-untyped-def]
        sinogram, volume, width, height, columns, slices, z, valid, count, pairs, first, last, table, scales
    ):  # fmt: skip
        lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
        deep = cuda.blockDim.y // 2
        wide = (width + 2 * VOXELS - 1) // (2 * VOXELS)
        tiles = wide * ((height + deep - 1) // deep)
        sums = cuda.local.array(held, numba.float32)
        for group in range(cuda.blockIdx.y, count, cuda.gridDim.y):
            begin = z + group * (groups * LANES)
            base = begin + min(np.int64(lane), valid - 1)
            for tile in range(cuda.blockIdx.x, tiles, cuda.gridDim.x):
                y = np.int64(tile // wide * deep + warp // 2)
                x = np.int64(tile % wide * (2 * VOXELS) + warp % 2 * VOXELS)
                _voxels(
                    groups, sums, sinogram, base, columns * slices, slices, columns, pairs, y - height // 2,
                    x - width // 2, 1, first, last, table, scales
                )  # fmt: skip
                for v in range(VOXELS):
                    if y < height and x + v < width and lane < valid:
                        target = (y * width + x + v) * slices + begin + lane
                        for k in range(groups):
                            volume[np.uint64(target + k * LANES)] += sums[v * groups + k]

    adjoint.__name__ = f"adjoint{groups}"
    return cuda_kernel(
        f"void(float32[::1], float32[::1], {'int64, ' * 10}int64[:, ::1], float32[::1])", threads=(LANES, WARPS)
    )(adjoint)


@cuda_kernel(f"void(float32[::1], float32[::1], {'int64, ' * 7}int64[:, ::1], float32[::1])", threads=(LANES, WARPS))
def adjoint_planes(  # type: ignore[no-untyped-def]
    sinogram, planes, width, height, columns, count, pairs, first, last, table, scales
):  # fmt: skip
    """Back-project ``[plane, angle, column]`` into ``[plane, y, x]``; lanes across x, a thread's voxels along y."""
    deep = cuda.blockDim.y * VOXELS
    wide = (width + cuda.blockDim.x - 1) // cuda.blockDim.x
    tiles = wide * ((height + deep - 1) // deep)
    sums = cuda.local.array(VOXELS, numba.float32)
    for plane in range(cuda.blockIdx.y, count, cuda.gridDim.y):
        base = plane * scales.size * columns
        for tile in range(cuda.blockIdx.x, tiles, cuda.gridDim.x):
            y = np.int64(tile // wide * deep + cuda.threadIdx.y * VOXELS)
            x = np.int64(tile % wide * cuda.blockDim.x + cuda.threadIdx.x)
            _voxels(
                1, sums, sinogram, base, columns, np.int64(1), columns, pairs, y - height // 2, x - width // 2, 0,
                first, last, table, scales
            )  # fmt: skip
            for v in range(VOXELS):
                if y + v < height and x < width:
                    planes[np.uint64((plane * height + y + v) * width + x)] += sums[v]


FORWARD = {groups: _forward_kernel(groups) for groups in (4, 2, 1)}
ADJOINT = {groups: _adjoint_kernel(groups) for groups in (4, 2, 1)}


class Grid(NamedTuple):
    """How much runs at once. Results do not depend on it."""

    warps: int = WARPS  # of a block: a multiple of `COLUMNS`
    most: int = 2**31 - 1  # blocks along each axis of the grid

    def blocks(self, *counts: int) -> tuple[int, ...]:
        """Blocks along each axis, one for each tile if there may be so many."""
        return tuple(min(count, self.most) for count in counts)


GRID = Grid()


def _groups(slices: int) -> Iterator[tuple[int, int, int, int]]:
    """(lanes of a thread, first slice, lanes of a warp that are slices, groups) covering all slices but a few."""
    z = 0
    for groups in (4, 2, 1):
        count = (slices - z) // (groups * LANES)
        if count:
            yield groups, z, LANES, count
        z += count * groups * LANES
    if slices - z > FEW:
        yield 1, z, slices - z, 1


def few_slices(slices: int) -> int:
    """How many slices at the end are done plane by plane."""
    return slices % LANES if slices % LANES <= FEW else 0


def forward_blocks(angles: int, columns: int, count: int, grid: Grid) -> tuple[int, ...]:
    """Grid of the kernels ``forward``: blocks of neighbouring columns and angles, then groups of slices."""
    return grid.blocks(-(-columns // COLUMNS) * -(-angles // (grid.warps // COLUMNS)), count)


def adjoint_blocks(height: int, width: int, count: int, grid: Grid) -> tuple[int, ...]:
    """Grid of the kernels ``adjoint``: rectangles of voxels, then groups of slices."""
    return grid.blocks(-(-width // (2 * VOXELS)) * -(-height // (grid.warps // 2)), count)


def forward(volume: Any, sinogram: Any, rays: Rays, grid: Grid = GRID) -> None:
    """Project ``volume[y, x, z]`` into ``sinogram[angle, column, z]`` (overwritten), on the present stream.

    Both C-contiguous float32 CuPy arrays. Complex data are two slices each. `rays` are Joseph's.
    """
    (height, width, slices), (angles, columns) = volume.shape, sinogram.shape[:2]
    tables, threads = device_tables(rays, columns), (LANES, grid.warps)
    sinogram.fill(0)
    source, target = volume.reshape(-1), sinogram.reshape(-1)
    tops = range(0, max(height, width), ROWS)
    for groups, z, valid, count in _groups(slices):
        blocks, kernel = forward_blocks(angles, columns, count, grid), FORWARD[groups]
        for top in tops:
            kernel.launch(
                blocks, source, target, width, height, columns, slices, z, valid, count, top, tables.forward,
                tables.scale, threads=threads,
            )  # fmt: skip
    few = few_slices(slices)
    if few:
        planes, lines = _both_ways(volume[..., slices - few :]), _zeros((few, angles, columns))
        blocks = grid.blocks(-(-columns // LANES) * -(-angles // grid.warps), few)
        for top in tops:
            forward_planes.launch(
                blocks, planes, lines.reshape(-1), width, height, columns, few, top, tables.forward, tables.scale,
                threads=threads,
            )  # fmt: skip
        sinogram[..., slices - few :] = np.moveaxis(lines, 0, -1)


def adjoint(sinogram: Any, volume: Any, rays: Rays, grid: Grid = GRID) -> None:
    """Back-project ``sinogram[angle, column, z]`` into ``volume[y, x, z]``: the exact transpose of `forward`.

    With `weights.interpolation` rays it is the back projection of filtered back projection instead.
    """
    (height, width, slices), (angles, columns) = volume.shape, sinogram.shape[:2]
    tables, threads = device_tables(rays, columns), (LANES, grid.warps)
    volume.fill(0)
    source, target = sinogram.reshape(-1), volume.reshape(-1)
    parts = [(first, min(angles, first + ANGLES)) for first in range(0, angles, ANGLES)]
    for groups, z, valid, count in _groups(slices):
        blocks, kernel = adjoint_blocks(height, width, count, grid), ADJOINT[groups]
        for first, last in parts:
            kernel.launch(
                blocks, source, target, width, height, columns, slices, z, valid, count, rays.pairs, first, last,
                tables.adjoint, tables.scale, threads=threads,
            )  # fmt: skip
    few = few_slices(slices)
    if few:
        lines, planes = _planes(sinogram[..., slices - few :]), _zeros((few, height, width))
        blocks = grid.blocks(-(-width // LANES) * -(-height // (grid.warps * VOXELS)), few)
        for first, last in parts:
            adjoint_planes.launch(
                blocks, lines, planes.reshape(-1), width, height, columns, few, rays.pairs, first, last,
                tables.adjoint, tables.scale, threads=threads,
            )  # fmt: skip
        volume[..., slices - few :] = np.moveaxis(planes, 0, -1)


def _planes(array: Any) -> Any:
    """``[…, …, plane]`` as planes one after the other, flat."""
    import cupy

    return cupy.ascontiguousarray(np.moveaxis(array, -1, 0)).reshape(-1)


def _both_ways(volume: Any) -> Any:
    """Planes of ``volume[y, x, plane]``, and then the same planes transposed, flat: samples of a row side by side."""
    import cupy

    return cupy.concatenate([_planes(volume), _planes(volume.swapaxes(0, 1))])


def _zeros(shape: tuple[int, ...]) -> Any:
    import cupy

    return cupy.zeros(shape, np.float32)
