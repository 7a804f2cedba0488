"""Kernels of the parallel-beam back-projector for CUDA devices.

See `parallel` for what they do and why; weights and order of summation are fixed there.
"""

import numba
import numpy as np
from numba import cuda

from dtomo.kernels.cuda.compiling import CudaKernel, cuda_kernel, device_function
from dtomo.kernels.cuda.tables import POINT
from dtomo.kernels.weights import ONE

LANES = 32  # of a warp
WARPS = 12  # of a block: two blocks fit a multiprocessor
REGISTERS = {4: 80, 2: 72, 1: 72}  # of a thread, by its lanes
VOXELS = 4  # neighbours along x of one thread; a block spans twice as many
ANGLES = 64  # angles in one launch
STRIP = 8  # angles after which the warps of a block wait for each other


@device_function
def _voxels_inside(groups, sums, sinogram, line, step, u, u_step, gap, gap_step, a, scale):  # type: ignore[no-untyped-def]
    """Add one angle to `VOXELS` neighbours, both columns of each inside (one pair of columns for each voxel)."""
    column = u >> POINT
    for v in range(VOXELS):
        near = np.float32(max(np.int32(ONE + gap), np.int32(0))) * scale
        far = np.float32(max(np.int32(ONE - a - gap), np.int32(0))) * scale
        one = line + np.int32(np.int32(column) * step)
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
                    groups, sums, sinogram, line, np.int32(step), u, u_step, gap, np.int32(gap_step), a, scales[i]
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
        lane, warp, deep = np.int64(cuda.threadIdx.x), cuda.threadIdx.y, cuda.blockDim.y // 2
        wide = (width + 2 * VOXELS - 1) // (2 * VOXELS)
        tiles = wide * ((height + deep - 1) // deep)
        sums = cuda.local.array(held, numba.float32)
        job = np.int64(cuda.blockIdx.x)
        while job < tiles * count:
            begin, tile = z + job // tiles * (groups * LANES), job % tiles
            y, x = tile // wide * deep + warp // 2, tile % wide * (2 * VOXELS) + warp % 2 * VOXELS
            _voxels(
                groups, sums, sinogram, begin + min(lane, valid - 1), columns * slices, slices, columns, pairs,
                y - height // 2, x - width // 2, 1, first, last, table, scales
            )  # fmt: skip
            target = (y * width + x) * slices + begin + lane
            for v in range(VOXELS):
                if y < height and x + v < width and lane < valid:
                    for k in range(groups):
                        volume[np.uint64(target + v * slices + k * LANES)] += sums[v * groups + k]
            job += cuda.gridDim.x

    adjoint.__name__ = f"adjoint{groups}"
    return cuda_kernel(
        f"void(float32[::1], float32[::1], {'int64, ' * 10}int64[:, ::1], float32[::1])",
        threads=(LANES, WARPS),
        registers=REGISTERS[groups],
    )(adjoint)


@cuda_kernel(
    f"void(float32[::1], float32[::1], {'int64, ' * 7}int64[:, ::1], float32[::1])",
    threads=(LANES, WARPS),
    registers=80,
)
def adjoint_planes(  # type: ignore[no-untyped-def]
    sinogram, planes, width, height, columns, count, pairs, first, last, table, scales
):  # fmt: skip
    """Back-project ``[plane, angle, column]`` into ``[plane, y, x]``; lanes across x, a thread's voxels along y."""
    deep = cuda.blockDim.y * VOXELS
    wide = (width + cuda.blockDim.x - 1) // cuda.blockDim.x
    tiles = wide * ((height + deep - 1) // deep)
    sums = cuda.local.array(VOXELS, numba.float32)
    job = np.int64(cuda.blockIdx.x)
    while job < tiles * count:
        plane, tile = job // tiles, job % tiles
        y, x = tile // wide * deep + cuda.threadIdx.y * VOXELS, tile % wide * cuda.blockDim.x + cuda.threadIdx.x
        _voxels(
            1, sums, sinogram, plane * scales.size * columns, columns, np.int64(1), columns, pairs, y - height // 2,
            x - width // 2, 0, first, last, table, scales
        )  # fmt: skip
        for v in range(VOXELS):
            if y + v < height and x < width:
                planes[np.uint64((plane * height + y + v) * width + x)] += sums[v]
        job += cuda.gridDim.x


ADJOINT = {groups: _adjoint_kernel(groups) for groups in (4, 2, 1)}
