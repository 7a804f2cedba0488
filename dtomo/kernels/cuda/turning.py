"""Transforms of rotated volumes on CUDA devices: one thread for each frequency of each rotation."""

from typing import Any

import numpy as np
from numba import cuda

from dtomo.kernels.cuda.compiling import cuda_kernel, device_function
from dtomo.kernels.turning import POLYNOMIALS

THREADS = (32, 8)  # of a block: along x, and rows of all rotations

_A, _B, _C, _D = (tuple(np.float32(value) for value in POLYNOMIALS[:, k]) for k in range(4))


@device_function
def _polynomial(factors, t):  # type: ignore[no-untyped-def]
    value = factors[7] * t + factors[6]
    value = (value * t + factors[5]) * t + factors[4]
    value = (value * t + factors[3]) * t + factors[2]
    return (value * t + factors[1]) * t + factors[0]


@device_function
def _weights(t):  # type: ignore[no-untyped-def]
    return _polynomial(_A, t), _polynomial(_B, t), _polynomial(_C, t), _polynomial(_D, t)


@cuda_kernel(
    "void(complex64[:, :, ::1], float32[:, :, ::1], float32[::1], complex64[:, :, ::1],"
    " float32[::1], float32[::1], float32[::1], complex64[:, :, :, ::1])",
    threads=THREADS,
)
def _fill(grid, tables, offsets, filters, zs, ys, xs, out):  # type: ignore[no-untyped-def]
    count, depth, height, width = out.shape
    x0, row0 = cuda.grid(2)
    across, down = cuda.gridsize(2)
    one = np.float32(1)
    for row in range(row0, count * depth * height, down):
        number, rest = row // (depth * height), row % (depth * height)
        z, y = rest // height, rest % height
        for x in range(x0, width, across):
            factor = filters[z, y, x]
            if factor.real == 0 and factor.imag == 0:
                out[number, z, y, x] = factor
                continue
            fz, fy, fx = zs[z], ys[y], xs[x]
            px = tables[number, 2, 0] * fz + tables[number, 2, 1] * fy + tables[number, 2, 2] * fx
            sign = -one if px < 0 else one
            pz = tables[number, 0, 0] * fz + tables[number, 0, 1] * fy + tables[number, 0, 2] * fx
            py = tables[number, 1, 0] * fz + tables[number, 1, 1] * fy + tables[number, 1, 2] * fx
            pz, py, px = pz * sign + offsets[0], py * sign + offsets[1], px * sign + offsets[2]
            iz, iy, ix = np.int32(pz), np.int32(py), np.int32(px)
            wz, wy = _weights(pz - np.float32(iz)), _weights(py - np.float32(iy))
            wx = _weights(px - np.float32(ix))
            total = factor - factor
            for i in range(4):
                plane = factor - factor
                for j in range(4):
                    line = factor - factor
                    for k in range(4):
                        line += grid[iz - 1 + i, iy - 1 + j, ix - 1 + k] * wx[k]
                    plane += line * wy[j]
                total += plane * wz[i]
            if sign < 0:
                total = total.conjugate()
            out[number, z, y, x] = total * factor


def fill(grid: Any, tables: Any, offsets: Any, filters: Any, frequencies: Any, out: Any) -> None:
    """`TurningTransform.fill` on the device; tables, offsets and frequencies come from the host."""
    import cupy

    count, depth, height, width = out.shape
    blocks = -(-width // THREADS[0]), -(-count * depth * height // THREADS[1])
    tables, offsets, *axes = (cupy.asarray(array) for array in (tables, offsets, *frequencies))
    _fill.launch(blocks, grid, tables, offsets, filters, *axes, out)
