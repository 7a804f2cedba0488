"""Kernels of the parallel-beam projector for CUDA devices.

See `parallel` for what they do and why; weights and order of summation are fixed there.
"""

import numba
import numpy as np
from numba import cuda

from dtomo.kernels.cuda.compiling import CudaKernel, cuda_kernel, device_function
from dtomo.kernels.weights import FRACTION, ONE

LANES = 32  # of a warp
WARPS = {4: 16, 2: 12, 1: 12}  # of a block, by lanes of a thread: two blocks fit a multiprocessor
REGISTERS = {4: 64, 2: 72, 1: 72}  # of a thread, likewise
COLUMNS = 4  # neighbouring columns of one block; its other warps take neighbouring angles
ROWS = 64  # rows of the volume in one launch
STRIP = 8  # rows after which the warps of a block wait for each other

MASK = ONE - 1
WHOLE = np.float32(ONE)


@device_function
def _rows_inside(groups, sums, volume, at, row_step, step, fraction, slope, scale, count):  # type: ignore[no-untyped-def]
    """Add `STRIP` rows to one ray, all samples inside; it crosses the first one `fraction` behind sample `at`."""
    position = fraction
    for _ in range(count):
        part = np.float32(np.int32(position & MASK))
        near, far = (WHOLE - part) * scale, part * scale
        one = at + np.int32(np.int32(position >> FRACTION) * step)
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
        place = np.int32(position >> FRACTION)
        one, sample = at + np.int32(place * step), np.int32(first + place)
        if sample >= 0 and sample < across:
            for k in range(groups):
                sums[k] = volume[np.uint64(one + k * LANES)] * near + sums[k]
        if sample >= -1 and sample < across - 1:
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
        first, last = position >> FRACTION, (position + np.int64(slope) * (STRIP - 1)) >> FRACTION
        low, high = min(first, last), max(first, last)
        start, fraction = at + first * step, np.int32(position & MASK)
        if low >= 0 and high < across - 1:
            _rows_inside(groups, sums, volume, start, row_step, step, fraction, slope, scale, count)
        elif count > 0 and high >= -1 and low < across:
            _rows_checked(
                groups, sums, volume, start, row_step, step, fraction, slope, scale, np.int32(first), np.int32(across),
                count
            )  # fmt: skip
        position += np.int64(slope) * STRIP
        at += row_step * STRIP


def _forward_kernel(groups: int) -> CudaKernel:
    """Project slices z + 32 `groups` k …, k < count, `valid` lanes of each."""

    def forward(  # type: ignore[no-untyped-def]
        volume, sinogram, width, height, columns, slices, z, valid, count, top, table, scales
    ):  # fmt: skip
        lane, ray, deep = np.int64(cuda.threadIdx.x), cuda.threadIdx.y, cuda.blockDim.y // COLUMNS
        wide, angles = (columns + COLUMNS - 1) // COLUMNS, scales.size
        tiles = wide * ((angles + deep - 1) // deep)
        sums = cuda.local.array(groups, numba.float32)
        job = np.int64(cuda.blockIdx.x)
        while job < tiles * count:
            begin, tile = z + job // tiles * (groups * LANES), job % tiles
            d, i = tile % wide * COLUMNS + ray % COLUMNS, tile // wide * deep + ray // COLUMNS
            present = d < columns and i < angles and lane < valid
            d, i = min(d, columns - 1), min(i, angles - 1)
            rows, across, row_step, step = height, width, width * slices, slices
            if table[i, 1] == 1:
                rows, across, row_step, step = width, height, slices, width * slices
            slope = table[i, 3]
            position = table[i, 2] * (d - columns // 2) + table[i, 4] + slope * (top - rows // 2)
            position += (across // 2) << FRACTION
            target = (table[i, 0] * columns + d) * slices + begin + lane
            base = begin + min(lane, valid - 1)
            _ray(
                groups, sums, volume, base, rows, across, row_step, np.int32(step), top, position, np.int32(slope),
                scales[i]
            )  # fmt: skip
            if present:
                for k in range(groups):
                    sinogram[np.uint64(target + k * LANES)] += sums[k]
            job += cuda.gridDim.x

    forward.__name__ = f"forward{groups}"
    return cuda_kernel(
        f"void(float32[::1], float32[::1], {'int64, ' * 8}int64[:, ::1], float32[::1])",
        threads=(LANES, WARPS[groups]),
        registers=REGISTERS[groups],
    )(forward)


@cuda_kernel(
    f"void(float32[::1], float32[::1], {'int64, ' * 5}int64[:, ::1], float32[::1])", threads=(LANES, 12), registers=72
)
def forward_planes(planes, sinogram, width, height, columns, count, top, table, scales):  # type: ignore[no-untyped-def]
    """Project ``[axis, plane, row, sample]`` into ``[plane, angle, column]``; lanes across columns."""
    wide, angles = (columns + cuda.blockDim.x - 1) // cuda.blockDim.x, scales.size
    tiles = wide * ((angles + cuda.blockDim.y - 1) // cuda.blockDim.y)
    sums = cuda.local.array(1, numba.float32)
    job = np.int64(cuda.blockIdx.x)
    while job < tiles * count:
        plane, tile = job // tiles, job % tiles
        d, i = tile % wide * cuda.blockDim.x + cuda.threadIdx.x, tile // wide * cuda.blockDim.y + cuda.threadIdx.y
        present = d < columns and i < angles
        d, i = min(d, columns - 1), min(i, angles - 1)
        rows, across = (height, width) if table[i, 1] == 0 else (width, height)
        slope = table[i, 3]
        position = table[i, 2] * (d - columns // 2) + table[i, 4] + slope * (top - rows // 2)
        position += (across // 2) << FRACTION
        target = (plane * angles + table[i, 0]) * columns + d
        base = (table[i, 1] * count + plane) * (width * height)
        _ray(1, sums, planes, base, rows, across, across, np.int32(1), top, position, np.int32(slope), scales[i])
        if present:
            sinogram[np.uint64(target)] += sums[0]
        job += cuda.gridDim.x


FORWARD = {groups: _forward_kernel(groups) for groups in (4, 2, 1)}
