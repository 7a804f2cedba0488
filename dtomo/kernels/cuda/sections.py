"""Line integrals in slices along the beam on CUDA devices; see `dtomo.kernels.sections`.

Neighbouring threads are neighbours along z, so that all loads of a warp are one line and its threads agree on every
weight. A thread holds a ray, or a voxel, at one z. The share of a ray in two neighbouring slices is summed in registers
and written when the ray enters the next slice.
"""

from typing import Any

import numpy as np
from numba import cuda

from dtomo.kernels import sections
from dtomo.kernels.cuda.compiling import cuda_kernel, device_function
from dtomo.kernels.sections import Tables
from dtomo.kernels.weights import FRACTION, ONE

THREADS = (32, 8)  # of a block: along z, and along columns or x

_share = device_function(sections.share.py_func)
_hat = device_function(sections.hat.py_func)


def forward(volume: Any, images: Any, tables: Tables) -> None:
    """`dtomo.kernels.sections.forward` of device arrays."""
    angles, _, columns, lanes = images.shape
    _forward.launch(_blocks(lanes, columns, angles), volume, *_uploaded(tables), images)


def adjoint(images: Any, volume: Any, tables: Tables, pairs: int) -> None:
    """`dtomo.kernels.sections.adjoint` likewise; `pairs` of columns can touch a voxel."""
    height, width, lanes = volume.shape
    _adjoint.launch(_blocks(lanes, width, height), images, *_uploaded(tables), pairs, volume)


def _uploaded(tables: Tables) -> tuple[Any, Any]:
    import cupy

    return cupy.asarray(tables.whole), cupy.asarray(tables.scale)


def _blocks(lanes: int, middle: int, outer: int) -> tuple[int, int, int]:
    return -(-lanes // THREADS[0]), -(-middle // THREADS[1]), outer


@cuda_kernel(
    "void(float32[:, :, ::1], int64[:, ::1], float32[::1], float32[:, :, :, ::1])",
    threads=THREADS,
)
def _forward(volume, whole, scales, images):  # type: ignore[no-untyped-def]
    height, width, lanes = volume.shape
    angles, slices, columns, _ = images.shape
    z0, column0, angle0 = cuda.grid(3)
    up, across, on = cuda.gridsize(3)
    for angle in range(angle0, angles, on):
        axis, a, b, c = whole[angle, 0], whole[angle, 1], whole[angle, 2], whole[angle, 3]
        d, d_column, d_row = whole[angle, 4], whole[angle, 5], whole[angle, 6]
        rows, samples = (height, width) if axis == 0 else (width, height)
        for column in range(column0, columns, across):
            off = column - columns // 2
            for z in range(z0, lanes, up):
                for k in range(slices):
                    images[angle, k, column, z] = np.float32(0)
                held, near, far = np.int64(0), np.float32(0), np.float32(0)
                for m in range(rows):
                    p = a * off + b * (m - rows // 2) + c + samples // 2 * ONE
                    one, gap = p >> FRACTION, p & (ONE - 1)
                    if one < -1 or one >= samples:
                        continue
                    value = np.float32(0)
                    if one >= 0:
                        here = volume[m, one, z] if axis == 0 else volume[one, m, z]
                        value += _hat(gap, scales[angle]) * here
                    if one + 1 < samples:
                        there = volume[m, one + 1, z] if axis == 0 else volume[one + 1, m, z]
                        value += _hat(gap - ONE, scales[angle]) * there
                    k, part = _share(d + d_column * off + d_row * (m - rows // 2), slices)
                    if k != held:
                        images[angle, held, column, z] += near
                        if held + 1 < slices:
                            images[angle, held + 1, column, z] += far
                        held, near, far = k, np.float32(0), np.float32(0)
                    near += (np.float32(1) - part) * value
                    far += part * value
                images[angle, held, column, z] += near
                if held + 1 < slices:
                    images[angle, held + 1, column, z] += far


@cuda_kernel(
    "void(float32[:, :, :, ::1], int64[:, ::1], float32[::1], int64, float32[:, :, ::1])",
    threads=THREADS,
)
def _adjoint(images, whole, scales, pairs, volume):  # type: ignore[no-untyped-def]
    height, width, lanes = volume.shape
    angles, slices, columns, _ = images.shape
    z0, x0, y0 = cuda.grid(3)
    up, across, on = cuda.gridsize(3)
    for y in range(y0, height, on):
        for x in range(x0, width, across):
            for z in range(z0, lanes, up):
                total = np.float32(0)
                for angle in range(angles):
                    axis, a, b, c = whole[angle, 0], whole[angle, 1], whole[angle, 2], whole[angle, 3]
                    d, d_column, d_row = whole[angle, 4], whole[angle, 5], whole[angle, 6]
                    m, sample = (y - height // 2, x - width // 2) if axis == 0 else (x - width // 2, y - height // 2)
                    rest = b * m + c - sample * ONE
                    nearest = -rest // a
                    for off in range(nearest - pairs + 1, nearest + pairs + 1):
                        column, weight = off + columns // 2, _hat(a * off + rest, scales[angle])
                        if column < 0 or column >= columns or weight == 0:
                            continue
                        k, part = _share(d + d_column * off + d_row * m, slices)
                        total += weight * (np.float32(1) - part) * images[angle, k, column, z]
                        if part > 0:
                            total += weight * part * images[angle, k + 1, column, z]
                volume[y, x, z] = total
