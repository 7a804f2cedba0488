"""Parallel-beam projector and exactly matched back-projector for many slices at once, on CPUs.

Memory layout: volume ``[y, x, z]`` and sinogram ``[angle, column, z]``, flat float32, z innermost. The weights of a
ray do not depend on z: they are computed once into scratch that stays in the first-level cache and applied to all
slices of a group (64, 32 or 16) in vector registers. What a job reads is first packed into a buffer that fits the
second-level cache: no bad strides, zeros around the object, any slice count.

Both directions only gather: no atomics, no races. The order of summation of a slice depends on the geometry alone, so
it has the same bits in a group of any size and on any number of threads.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dtomo.arrays import empty_aligned
from dtomo.kernels import parallel_few
from dtomo.kernels.bounds import inside, room, strip_bounds, tile_tables
from dtomo.kernels.compiling import kernel
from dtomo.kernels.lanes import accumulate_pairs, copy_group
from dtomo.kernels.vectors import VECTOR
from dtomo.kernels.weights import BLOCK, FRACTION, ONE, ColumnTables, Rays, column_pairs, ray_pairs
from dtomo.threads import run_jobs

Finish = Callable[[NDArray[np.float32], tuple[slice, slice, slice]], Any]

DETECTORS = 64  # voxels that the detector columns of one job span, forward
STRIP = 32  # rows of one packed strip, forward; with DETECTORS and SPREAD below the 256 samples of a position
TILE = 64  # voxels along one side of a job, back projection
SUBTILE = 8  # voxels along one side of what shares sinogram samples in the first-level cache


@njit(inline="always")
def _pack(group, source, base, step, samples, first, count, valid, packed, at):  # type: ignore[no-untyped-def]
    """Copy samples first : first + count of one line to `packed`, zeros where there are none."""
    lanes = len(group) * VECTOR
    for k in range(count):
        place = at + k * lanes
        origin = base + (first + k) * step
        if first + k < 0 or first + k >= samples:
            packed[place : place + lanes] = 0
        elif valid == lanes:
            copy_group(group, packed, place, source, origin)
        else:
            for lane in range(lanes):
                packed[place + lane] = source[origin + lane] if lane < valid else np.float32(0)


@njit(inline="always")
def _unpack(group, packed, at, target, start, valid):  # type: ignore[no-untyped-def]
    """Copy the valid lanes of a group."""
    if valid == len(group) * VECTOR:
        copy_group(group, target, start, packed, at)
    else:
        for lane in range(valid):
            target[start + lane] = packed[at + lane]


@kernel
def _forward(  # type: ignore[no-untyped-def]
    group, jobs, volume, sinogram, width, height, columns, slices, z, valid, number, axis, a, b, c, scale, blocks,
    detectors, strip
):  # fmt: skip
    """Project slices z : z + (group) for jobs[0] <= job < jobs[1]; a job is a block of angles and of columns."""
    lanes = len(group) * VECTOR
    parts = (columns + detectors - 1) // detectors
    middle = columns // 2
    starts = np.empty(strip, np.int64)
    places = np.empty(strip + VECTOR, np.int32)
    stretch = strip + VECTOR
    offsets = np.empty(VECTOR * stretch, np.int32)
    near = np.empty(VECTOR * stretch, np.float32)
    far = np.empty(VECTOR * stretch, np.float32)
    counts, inverse = np.empty(VECTOR, np.int64), np.empty(BLOCK)
    packed, sums = np.empty(0, np.float32), np.empty(0, np.float32)
    for job in range(jobs[0], jobs[1]):
        i0, i1 = blocks[job // parts], blocks[job // parts + 1]
        d0 = (job % parts) * detectors
        d1 = min(columns, d0 + detectors)
        angles = i1 - i0
        for i in range(i0, i1):
            inverse[i - i0] = ONE / b[i] if abs(b[i]) > 16 else 0.0
        sums, sums_at = room(sums, angles * (d1 - d0) * lanes)
        sums[sums_at : sums_at + angles * (d1 - d0) * lanes] = 0
        if axis[i0] == 0:
            rows, across, row_step, step = height, width, width * slices, slices
        else:
            rows, across, row_step, step = width, height, slices, width * slices
        for m0 in range(0, rows, strip):
            m1 = min(rows, m0 + strip)
            top = m0 - rows // 2
            reach = strip_bounds(i0, i1, d0 - middle, d1 - middle, top, m1 - rows // 2, a, b, c, starts)
            packed, begin = room(packed, ((m1 - m0) * reach + 1) * lanes)
            least = starts[: m1 - m0].min()
            for r in range(m1 - m0):
                places[r] = r * reach + least - starts[r]
                at, first = begin + r * reach * lanes, starts[r] + across // 2
                _pack(group, volume, (m0 + r) * row_step + z, step, across, first, reach, valid, packed, at)
            for d in range(d0, d1):
                for some in range(i0, i1, VECTOR):
                    many = min(VECTOR, i1 - some)
                    for k in range(many):
                        i, at = some + k, k * stretch
                        origin = a[i] * (d - middle) + c[i] + b[i] * top
                        low, high = inside(origin / ONE + across // 2, inverse[i - i0], across, 0, m1 - m0)
                        count = max(high - low, 0)
                        if count > 0:
                            position = np.int32(origin + b[i] * low - (least << FRACTION))
                            ray_pairs(position, b[i], scale[i], places, low, count, at, offsets, near, far)
                        if count % 2:
                            offsets[at + count], near[at + count], far[at + count] = offsets[at + count - 1], 0, 0
                        counts[k] = count + count % 2
                    for k in range(many):
                        if counts[k] > 0:
                            to = sums_at + ((d - d0) * angles + some - i0 + k) * lanes
                            accumulate_pairs(group, sums, to, packed, begin, offsets, near, far, k * stretch, counts[k])
        for i in range(i0, i1):
            for d in range(d0, d1):
                start, at = (
                    (number[i] * columns + d) * slices + z,
                    sums_at + ((d - d0) * angles + i - i0) * lanes,
                )
                _unpack(group, sums, at, sinogram, start, valid)


@kernel
def _adjoint(  # type: ignore[no-untyped-def]
    group, jobs, sinogram, volume, width, height, columns, slices, z, valid, number, axis, a, b, c, t, scale, blocks,
    pairs, tile, subtile, tables, apart
):  # fmt: skip
    """Back-project slices z : z + (group) for jobs[0] <= job < jobs[1]; a job is a square tile of voxels.

    With `apart`, `volume` is that tile of those slices alone.
    """
    lanes = len(group) * VECTOR
    across = (width + tile - 1) // tile
    starts = np.empty(VECTOR, np.int64)
    stretch = VECTOR * (pairs + 1)
    offsets = np.empty(subtile * stretch, np.int32)
    near = np.empty(subtile * stretch, np.float32)
    far = np.empty(subtile * stretch, np.float32)
    packed, sums = np.empty(0, np.float32), np.empty(0, np.float32)
    for job in range(jobs[0], jobs[1]):
        y0, x0 = (job // across) * tile, (job % across) * tile
        y1, x1 = min(height, y0 + tile), min(width, x0 + tile)
        cy, cx = height // 2, width // 2
        size, wide = (y1 - y0) * (x1 - x0) * lanes, x1 - x0
        sums, sums_at = room(sums, size)
        sums[sums_at : sums_at + size] = 0
        for block in range(blocks.size - 1):
            i0, i1 = blocks[block], blocks[block + 1]
            angles, along_y = i1 - i0, axis[i0] == 0
            count = angles * pairs
            even = count + count % 2
            m, t0 = (y0 - cy, x0 - cx) if along_y else (x0 - cx, y0 - cy)
            reach = tile_tables(i0, i1, m, t0, tile, a, b, c, t, scale, pairs, starts, tables)
            packed, begin = room(packed, (i1 - i0) * reach * lanes)
            for i in range(i0, i1):
                at = begin + (i - i0) * reach * lanes
                base = number[i] * columns * slices + z
                _pack(
                    group,
                    sinogram,
                    base,
                    slices,
                    columns,
                    starts[i - i0] + columns // 2,
                    reach,
                    valid,
                    packed,
                    at,
                )
            for ys in range(0, y1 - y0, subtile):
                for xs in range(0, x1 - x0, subtile):
                    many = min(subtile, x1 - x0 - xs)
                    for y in range(ys, min(ys + subtile, y1 - y0)):
                        for x in range(many):
                            row, sample, at = (y, xs + x, x * stretch) if along_y else (xs + x, y, x * stretch)
                            for k in range(pairs):
                                column_pairs(
                                    row, sample, 2 * k - pairs + 1, tables, at + k * angles, offsets, near, far
                                )
                            at += count
                            if count % 2:
                                offsets[at], near[at], far[at] = offsets[at - 1], 0, 0
                        for x in range(many):
                            to = sums_at + (y * wide + xs + x) * lanes
                            accumulate_pairs(group, sums, to, packed, begin, offsets, near, far, x * stretch, even)
        for y in range(y0, y1):
            for x in range(x0, x1):
                here = (y - y0) * wide + x - x0
                start = here * valid if apart else (y * width + x) * slices + z
                _unpack(group, sums, sums_at + here * lanes, volume, start, valid)


def _groups(slices: int) -> list[tuple[tuple[int, ...], int, int]]:
    """(tag with one entry per vector, first slice, slices in the group) covering all slices."""
    found, z = [], 0
    for vectors in (4, 2, 1):
        while slices - z >= vectors * VECTOR:
            found.append(((0,) * vectors, z, vectors * VECTOR))
            z += vectors * VECTOR
    if z < slices:
        found.append(((0,), z, slices - z))
    return found


def forward(volume: NDArray[np.float32], sinogram: NDArray[np.float32], rays: Rays, threads: int | None = None) -> None:
    """Project ``volume[y, x, z]`` into ``sinogram[angle, column, z]`` (overwritten).

    Both C-contiguous float32. Complex data are two slices each. `rays` are Joseph's.
    """
    height, width, slices = volume.shape
    if parallel_few.suits(slices, rays):
        return parallel_few.forward(volume, sinogram, rays, threads)
    columns = sinogram.shape[1]
    detectors = max(1, int(DETECTORS / max(1.0, rays.pitch)))
    jobs = (len(rays.blocks) - 1) * math.ceil(columns / detectors)

    def work(span: tuple[int, int], group: tuple[int, ...], z: int, valid: int) -> None:
        _forward(
            group, span, volume.reshape(-1), sinogram.reshape(-1), width, height, columns, slices, z, valid,
            rays.number, rays.axis, rays.a, rays.b, rays.c, rays.scale, rays.blocks, detectors, STRIP
        )  # fmt: skip

    for group, z, valid in _groups(slices):
        run_jobs(partial(work, group=group, z=z, valid=valid), jobs, threads)


def adjoint(sinogram: NDArray[np.float32], volume: NDArray[np.float32], rays: Rays, threads: int | None = None) -> None:
    """Back-project ``sinogram[angle, column, z]`` into ``volume[y, x, z]``: the exact transpose of `forward`.

    With `weights.interpolation` rays it is the back projection of filtered back projection instead.
    """
    height, width, slices = volume.shape
    if parallel_few.suits(slices, rays):
        return parallel_few.adjoint(sinogram, volume, rays, threads)
    jobs, run = _backwards(sinogram, (height, width, slices), rays)

    def work(span: tuple[int, int], group: tuple[int, ...], z: int, valid: int) -> None:
        run(group, span, volume.reshape(-1), z, valid, False)

    for group, z, valid in _groups(slices):
        run_jobs(partial(work, group=group, z=z, valid=valid), jobs, threads)


def adjoint_tiles(
    sinogram: NDArray[np.float32], shape: tuple[int, int, int], rays: Rays, finish: Finish, threads: int | None = None
) -> bool:
    """The same tile by tile, never whole in memory: `finish` is called with each one while it is in the cache.

    Parameters
    ----------
    shape
        ``(y, x, z)`` of the volume.
    finish
        Takes a tile ``[y, x, z]``, which is written over afterwards, and where it belongs: a slice along each axis.

    Returns
    -------
    bool
        False: nothing was done, for few slices there are no such tiles.
    """
    height, width, slices = shape
    if parallel_few.suits(slices, rays):
        return False
    jobs, run = _backwards(sinogram, shape, rays)
    across = math.ceil(width / TILE)

    def work(span: tuple[int, int], group: tuple[int, ...], z: int, valid: int) -> None:
        memory = empty_aligned((TILE * TILE * valid,), np.float32)
        for job in range(*span):
            y, x = job // across * TILE, job % across * TILE
            rows, columns = min(TILE, height - y), min(TILE, width - x)
            run(group, (job, job + 1), memory, z, valid, True)
            tile = memory[: rows * columns * valid].reshape(rows, columns, valid)
            finish(tile, (slice(y, y + rows), slice(x, x + columns), slice(z, z + valid)))

    for group, z, valid in _groups(slices):
        run_jobs(partial(work, group=group, z=z, valid=valid), jobs, threads)
    return True


def _backwards(
    sinogram: NDArray[np.float32], shape: tuple[int, int, int], rays: Rays
) -> tuple[int, Callable[..., None]]:
    """How many tiles there are, and what back-projects some of them."""
    height, width, slices = shape
    flat, columns = sinogram.reshape(-1), sinogram.shape[1]

    def run(
        group: tuple[int, ...], span: tuple[int, int], out: NDArray[np.float32], z: int, valid: int, apart: bool
    ) -> None:
        _adjoint(
            group, span, flat, out, width, height, columns, slices, z, valid, rays.number, rays.axis, rays.a, rays.b,
            rays.c, rays.t, rays.scale, rays.vectors, rays.pairs, TILE, SUBTILE, ColumnTables.empty(), apart,
        )  # fmt: skip

    return math.ceil(height / TILE) * math.ceil(width / TILE), run
