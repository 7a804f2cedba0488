"""Differences and total variation on CUDA devices: one thread for each voxel, or for each column of a partial sum.

Neighbouring threads are neighbours in memory, along x or z; what they share of their neighbourhoods comes from the
caches. Terms are added in the order of the CPU kernels. Arrays are flat, in the order of memory.
"""

from typing import Any

import numpy as np
from numba import cuda

from dtomo.kernels.cuda.compiling import CudaKernel, cuda_kernel, device_function
from dtomo.kernels.differences import ROWS, Layout, steepness

THREADS = (32, 8)  # of a block: along the fastest axis of memory, and along the middle one

_steepness = device_function(steepness.py_func)


def _signatures(text: str) -> list[str]:
    """For real and complex arrays: ``T`` stands for their type, ``how`` for what `_how` returns."""
    how = "int64, int64, int64, int64, float32, float32, float32"
    return [f"void({text.replace('how', how).replace('T', kind)})" for kind in ("float32", "complex64")]


def _how(how: Layout) -> tuple[Any, ...]:
    """Whether z is innermost, depth, height, width, and the inverse spacing along z, y, x."""
    return int(how.innermost), *how.shape, *how.inverse


def _launch(kernel: CudaKernel, memory: tuple[int, int, int], *arguments: Any) -> None:
    """With a thread for each element ``[a, b, c]``."""
    planes, rows, count = memory
    kernel.launch((-(-count // THREADS[0]), -(-rows // THREADS[1]), planes), *arguments)


def differences(volume: Any, after: Any, out: Any, how: Layout) -> None:
    """`dtomo.kernels.differences.differences` of a device array in memory order."""
    _launch(_differences, volume.shape, volume.ravel(), after, out.ravel(), *_how(how))


def negative_divergence(field: Any, before: Any, out: Any, ends: bool, how: Layout) -> None:
    """`dtomo.kernels.differences.negative_divergence` likewise."""
    _launch(_negative_divergence, out.shape, field.ravel(), before, out.ravel(), int(ends), *_how(how))


def total_variation(volume: Any, after: Any, sums: Any, smoothing: np.float32, how: Layout) -> None:
    """Sums ``[a, block, c]`` of `dtomo.kernels.differences.total_variation`."""
    _launch(_total_variation, sums.shape, volume.ravel(), after, sums, smoothing, *_how(how))


def total_variation_gradient(
    volume: Any, before: Any, after: Any, out: Any, smoothing: np.float32, how: Layout
) -> None:
    """`dtomo.kernels.differences.total_variation_gradient` likewise."""
    _launch(
        _total_variation_gradient, volume.shape, volume.ravel(), before, after, out.ravel(), smoothing, *_how(how)
    )  # fmt: skip


@device_function
def _place(inside, depth, height, width, z, y, x):  # type: ignore[no-untyped-def]
    """Where a voxel lies in memory."""
    return (y * width + x) * depth + z if inside else (z * height + y) * width + x


@device_function
def _value(volume, before, after, inside, depth, height, width, z, y, x):  # type: ignore[no-untyped-def]
    """Of a voxel, of those beside the slab too; beyond the edge of a slice what lies at the edge."""
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    if z < 0:
        return before[y, x]
    if z >= depth:
        return after[y, x]
    return volume[_place(inside, depth, height, width, z, y, x)]


@cuda_kernel(*_signatures("T[::1], T[:, ::1], T[::1], how"), threads=THREADS)
def _differences(volume, after, out, inside, depth, height, width, iz, iy, ix):  # type: ignore[no-untyped-def]
    size = volume.size
    planes, rows, count = (height, width, depth) if inside else (depth, height, width)
    c0, b0, a0 = cuda.grid(3)
    across, down, on = cuda.gridsize(3)
    for a in range(a0, planes, on):
        for b in range(b0, rows, down):
            for c in range(c0, count, across):
                z, y, x = (c, a, b) if inside else (a, b, c)
                here = _place(inside, depth, height, width, z, y, x)
                u = volume[here]
                target = here
                if out.size > 2 * size:
                    ahead = _value(volume, after, after, inside, depth, height, width, z + 1, y, x)
                    out[target] = (ahead - u) * iz
                    target += size
                out[target] = (_value(volume, after, after, inside, depth, height, width, z, y + 1, x) - u) * iy
                out[target + size] = (_value(volume, after, after, inside, depth, height, width, z, y, x + 1) - u) * ix


@cuda_kernel(*_signatures("T[::1], T[:, ::1], T[::1], int64, how"), threads=THREADS)
def _negative_divergence(  # type: ignore[no-untyped-def]
    field, before, out, ends, inside, depth, height, width, iz, iy, ix
):  # fmt: skip
    size = out.size
    planes, rows, count = (height, width, depth) if inside else (depth, height, width)
    step_z, step_y, step_x = (1, width * depth, depth) if inside else (height * width, width, 1)
    zero = out.dtype.type(0)
    c0, b0, a0 = cuda.grid(3)
    across, down, on = cuda.gridsize(3)
    for a in range(a0, planes, on):
        for b in range(b0, rows, down):
            for c in range(c0, count, across):
                z, y, x = (c, a, b) if inside else (a, b, c)
                place = _place(inside, depth, height, width, z, y, x)
                at = place + (field.size - 2 * size)
                last = field[at - step_y] if y > 0 else zero
                here = field[at] if y < height - 1 else zero
                total = (last - here) * iy
                at += size
                last = field[at - step_x] if x > 0 else zero
                here = field[at] if x < width - 1 else zero
                total += (last - here) * ix
                if field.size > 2 * size:
                    last = field[place - step_z] if z > 0 else before[y, x]
                    here = field[place] if z < depth - 1 or ends == 0 else zero
                    total += (last - here) * iz
                out[place] = total


@cuda_kernel(*_signatures("T[::1], T[:, ::1], float64[:, :, ::1], float32, how"), threads=THREADS)
def _total_variation(  # type: ignore[no-untyped-def]
    volume, after, sums, smoothing, inside, depth, height, width, iz, iy, ix
):  # fmt: skip
    """``sums[a, block, c]``, in float64, over blocks of `ROWS` values of b."""
    planes, blocks, count = sums.shape
    rows = width if inside else height
    c0, block0, a0 = cuda.grid(3)
    across, down, on = cuda.gridsize(3)
    for a in range(a0, planes, on):
        for block in range(block0, blocks, down):
            for c in range(c0, count, across):
                total = np.float64(0)
                for b in range(block * ROWS, min(rows, (block + 1) * ROWS)):
                    z, y, x = (c, a, b) if inside else (a, b, c)
                    u = _value(volume, after, after, inside, depth, height, width, z, y, x)
                    uy = _value(volume, after, after, inside, depth, height, width, z, y + 1, x)
                    ux = _value(volume, after, after, inside, depth, height, width, z, y, x + 1)
                    uz = _value(volume, after, after, inside, depth, height, width, z + 1, y, x)
                    total += np.float64(np.float32(_steepness(u, uy, ux, uz, iy, ix, iz, smoothing)))
                sums[a, block, c] = total


@cuda_kernel(*_signatures("T[::1], T[:, ::1], T[:, ::1], T[::1], float32, how"), threads=THREADS)
def _total_variation_gradient(  # type: ignore[no-untyped-def]
    volume, before, after, out, smoothing, inside, depth, height, width, iz, iy, ix
):  # fmt: skip
    planes, rows, count = (height, width, depth) if inside else (depth, height, width)
    one = np.float32(1)
    c0, b0, a0 = cuda.grid(3)
    across, down, on = cuda.gridsize(3)
    for a in range(a0, planes, on):
        for b in range(b0, rows, down):
            for c in range(c0, count, across):
                z, y, x = (c, a, b) if inside else (a, b, c)
                u = _value(volume, before, after, inside, depth, height, width, z, y, x)
                uy = _value(volume, before, after, inside, depth, height, width, z, y + 1, x)
                ux = _value(volume, before, after, inside, depth, height, width, z, y, x + 1)
                uz = _value(volume, before, after, inside, depth, height, width, z + 1, y, x)
                slope = (uy - u) * (iy * iy) + (ux - u) * (ix * ix) + (uz - u) * (iz * iz)
                total = -slope * (one / _steepness(u, uy, ux, uz, iy, ix, iz, smoothing))
                v = _value(volume, before, after, inside, depth, height, width, z - 1, y, x)
                vy = _value(volume, before, after, inside, depth, height, width, z - 1, y + 1, x)
                vx = _value(volume, before, after, inside, depth, height, width, z - 1, y, x + 1)
                total += (u - v) * (iz * iz) * (one / _steepness(v, vy, vx, u, iy, ix, iz, smoothing))
                v = _value(volume, before, after, inside, depth, height, width, z, y, x - 1)
                vy = _value(volume, before, after, inside, depth, height, width, z, y + 1, x - 1)
                vz = _value(volume, before, after, inside, depth, height, width, z + 1, y, x - 1)
                total += (u - v) * (ix * ix) * (one / _steepness(v, vy, u, vz, iy, ix, iz, smoothing))
                v = _value(volume, before, after, inside, depth, height, width, z, y - 1, x)
                vx = _value(volume, before, after, inside, depth, height, width, z, y - 1, x + 1)
                vz = _value(volume, before, after, inside, depth, height, width, z + 1, y - 1, x)
                total += (u - v) * (iy * iy) * (one / _steepness(v, u, vx, vz, iy, ix, iz, smoothing))
                out[_place(inside, depth, height, width, z, y, x)] = total
