"""Parallel-beam projector and back-projector for one slice at a time, vectorised across columns and voxels.

The same bits as `parallel_cpu`, which needs many slices to be fast. Used where there are one to three.
"""

import math

import numpy as np
from numpy.typing import NDArray

from dtomo.kernels.bounds import room, strip_bounds, tile_tables
from dtomo.kernels.compiling import kernel
from dtomo.kernels.gather import AVAILABLE, REACH, TARGETS, gather_angles, gather_rows
from dtomo.kernels.vectors import VECTOR
from dtomo.kernels.weights import BLOCK, FRACTION, ColumnTables, Rays
from dtomo.threads import run_jobs

DETECTORS = 3 * VECTOR  # detector columns of one job, forward
STRIP = 32  # rows of one packed strip, forward
TILE = TARGETS * VECTOR  # voxels along one side of a job, back projection


def suits(slices: int, rays: Rays) -> bool:
    """Whether this is the faster way, and neighbours lie close enough together."""
    widest = np.abs(rays.a[: rays.blocks[-1]]).max() / (1 << FRACTION)
    sparsest = np.abs(rays.t[: rays.blocks[-1]] / rays.a[: rays.blocks[-1]]).max()
    closest = (VECTOR - 1) * max(widest, sparsest) + 1 <= REACH - 2
    return AVAILABLE and slices <= 3 and rays.pairs == 1 and bool(closest)


@kernel
def _pack(source, base, step, samples, first, count, packed, at):  # type: ignore[no-untyped-def]
    """Copy samples first : first + count of one line to `packed`, zeros where there are none."""
    low = min(max(0, -first), count)
    high = max(min(count, samples - first), low)
    packed[at : at + low] = 0
    packed[at + high : at + count] = 0
    start = base + first * step
    if step == 1:
        packed[at + low : at + high] = source[start + low : start + high]
    else:
        packed[at + low : at + high] = source[start + low * step : start + high * step : step]


@kernel
def _forward(  # type: ignore[no-untyped-def]
    jobs, volume, sinogram, number, axis, a, b, c, scale, blocks, detectors, strip
):  # fmt: skip
    """Project ``volume[y, x]`` for jobs[0] <= job < jobs[1]; a job is a block of angles and of columns."""
    height, width = volume.shape
    flat = volume.ravel()
    columns = sinogram.shape[1]
    parts = (columns + detectors - 1) // detectors
    middle = columns // 2
    starts = np.empty(strip, np.int64)
    places = np.empty(strip + VECTOR, np.int32)
    packed = np.empty(0, np.float32)
    sums = np.empty(BLOCK * detectors, np.float32)
    for job in range(jobs[0], jobs[1]):
        i0, i1 = blocks[job // parts], blocks[job // parts + 1]
        d0 = (job % parts) * detectors
        d1 = min(columns, d0 + detectors)
        whole = d0 + (d1 - d0 + VECTOR - 1) // VECTOR * VECTOR
        sums[:] = 0
        if axis[i0] == 0:
            rows, across, row_step, step = height, width, width, 1
        else:
            rows, across, row_step, step = width, height, 1, width
        for m0 in range(0, rows, strip):
            m1 = min(rows, m0 + strip)
            top = m0 - rows // 2
            reach = strip_bounds(i0, i1, d0 - middle, whole - middle, top, m1 - rows // 2, a, b, c, starts)
            packed, _ = room(packed, (m1 - m0) * reach + 2 * REACH)
            least = starts[: m1 - m0].min()
            for r in range(m1 - m0):
                places[r] = REACH + r * reach + least - starts[r]
                _pack(
                    flat, (m0 + r) * row_step, step, across, starts[r] + across // 2, reach, packed, REACH + r * reach
                )
            places[m1 - m0] = places[m1 - m0 - 1]
            for i in range(i0, i1):
                for d in range(d0, whole, VECTOR):
                    position = np.int32(a[i] * (d - middle) + c[i] + b[i] * top - (least << FRACTION))
                    at = (i - i0) * detectors + d - d0
                    gather_rows(sums, at, packed, position, a[i], b[i], scale[i], places, m1 - m0)
        for i in range(i0, i1):
            for d in range(d0, d1):
                sinogram[number[i], d] = sums[(i - i0) * detectors + d - d0]


@kernel
def _adjoint(  # type: ignore[no-untyped-def]
    jobs, sinogram, volume, number, axis, a, b, c, t, scale, blocks, pairs, tile, tables
):  # fmt: skip
    """Back-project ``sinogram[angle, column]`` for jobs[0] <= job < jobs[1]; a job is a square tile of voxels."""
    height, width = volume.shape
    flat = sinogram.ravel()
    columns = sinogram.shape[1]
    across = (width + tile - 1) // tile
    starts = np.empty(VECTOR, np.int64)
    packed = np.empty(0, np.float32)
    sums = np.empty((tile, tile), np.float32)
    for job in range(jobs[0], jobs[1]):
        y0, x0 = (job // across) * tile, (job % across) * tile
        sums[:] = 0
        rows, samples, m, s = min(tile, height - y0), min(tile, width - x0), y0 - height // 2, x0 - width // 2
        turned = False
        for block in range(blocks.size - 1):
            i0, i1 = blocks[block], blocks[block + 1]
            if axis[i0] == 1 and not turned:
                sums = sums.T.copy()
                rows, samples, m, s, turned = samples, rows, s, m, True
            reach = tile_tables(i0, i1, m, s, tile, a, b, c, t, scale, pairs, starts, tables)
            packed, _ = room(packed, (i1 - i0) * reach + 2 * REACH)
            for i in range(i0, i1):
                first = starts[i - i0] + columns // 2
                _pack(flat, number[i] * columns, 1, columns, first, reach, packed, REACH + (i - i0) * reach)
            out = sums.ravel()
            for row in range(rows):
                gather_angles(out, row * tile, packed, REACH, row, i1 - i0, tables)
        for y in range(min(tile, height - y0)):
            for x in range(min(tile, width - x0)):
                volume[y0 + y, x0 + x] = sums[x, y] if turned else sums[y, x]


def forward(volume: NDArray[np.float32], sinogram: NDArray[np.float32], rays: Rays, threads: int | None = None) -> None:
    """As `parallel_cpu.forward`, slice by slice."""
    columns = sinogram.shape[1]
    jobs = (len(rays.blocks) - 1) * math.ceil(columns / DETECTORS)
    for z in range(volume.shape[2]):
        image, lines = np.ascontiguousarray(volume[..., z]), np.empty(sinogram.shape[:2], np.float32)

        def work(span: tuple[int, int], image: NDArray[np.float32] = image, lines: NDArray[np.float32] = lines) -> None:
            r = rays
            _forward(span, image, lines, r.number, r.axis, r.a, r.b, r.c, r.scale, r.blocks, DETECTORS, STRIP)

        run_jobs(work, jobs, threads)
        sinogram[..., z] = lines


def adjoint(sinogram: NDArray[np.float32], volume: NDArray[np.float32], rays: Rays, threads: int | None = None) -> None:
    """As `parallel_cpu.adjoint`, slice by slice."""
    height, width, slices = volume.shape
    jobs = math.ceil(height / TILE) * math.ceil(width / TILE)
    for z in range(slices):
        lines, image = np.ascontiguousarray(sinogram[..., z]), np.empty((height, width), np.float32)

        def work(span: tuple[int, int], image: NDArray[np.float32] = image, lines: NDArray[np.float32] = lines) -> None:
            r = rays
            _adjoint(
                span, lines, image, r.number, r.axis, r.a, r.b, r.c, r.t, r.scale, r.vectors, r.pairs, TILE,
                ColumnTables.empty(),
            )  # fmt: skip

        run_jobs(work, jobs, threads)
        volume[..., z] = image
