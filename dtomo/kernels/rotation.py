"""Volumes rotated and shifted, many times from one: the innermost loop of aligning subtomograms.

Matrices, shifts and centers are vectors ``(x, y, z)``; volumes are ``(z, y, x)``. A rotation R (active) and a shift t
take what lies at p to ``R (p - center) + center + t``, so that the result at q is the volume at
``Rᵀ (q - center - t) + center``. Such places are whole multiples of 2^-32 of a voxel, exact on CPUs and devices.

Order 1 interpolates linearly, order 3 with cubic B-splines, whose coefficients `spline_coefficients` finds once for any
number of rotations. Places outside the box of voxel centers get a constant, as ``mode="constant"`` of `scipy.ndimage`.

M. Unser, IEEE Signal Process. Mag. 16 (6), 22-38 (1999).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.ndimage
from numba import njit
from numpy.typing import ArrayLike, NDArray

from dtomo.arrays import array_module, empty_aligned, on_device, single_precision, writeable_view
from dtomo.errors import UserError
from dtomo.kernels.compiling import kernel
from dtomo.threads import run_jobs

FRACTION = 32
"""Bits behind the point of a place."""

MASK, SMALL = (1 << FRACTION) - 1, np.float32(2.0**-24)


def spline_coefficients(volume: NDArray[Any]) -> NDArray[Any]:
    """Coefficients of the cubic B-spline through a volume ``(z, y, x)``, mirrored at its edges, in single precision."""
    volume = single_precision(volume)
    if on_device(volume):
        from cupyx.scipy.ndimage import spline_filter

        return spline_filter(volume, 3, output=volume.dtype, mode="mirror")
    return scipy.ndimage.spline_filter(volume, 3, output=volume.dtype, mode="mirror")


def rotate(
    volume: NDArray[Any],
    rotations: ArrayLike,
    shifts: ArrayLike | None = None,
    *,
    order: int = 1,
    outside: complex = 0.0,
    center: ArrayLike | None = None,
    coefficients: bool = False,
) -> NDArray[Any]:
    """A volume rotated about its center, then shifted.

    Parameters
    ----------
    volume
        ``(z, y, x)``, real or complex, in host memory or on a device; computed in single precision.
    rotations
        Matrices ``(3, 3)`` or ``(count, 3, 3)``, on the host.
    shifts
        In voxels, ``(3,)`` or ``(count, 3)``, on the host; default 0.
    order
        1: linear; 3: cubic B-splines.
    outside
        Value of what lies outside the volume.
    center
        Default: the middle, ``(N - 1) / 2``.
    coefficients
        The volume holds `spline_coefficients` already (order 3).

    Returns
    -------
    ndarray
        ``(z, y, x)`` or ``(count, z, y, x)``, float32 or complex64, where the volume lies.

    Raises
    ------
    UserError
        Matrices that are no rotations, numbers that do not fit, another order, a complex value around a real volume.
    """
    if order not in (1, 3):
        raise UserError(f"a volume is rotated with interpolation of order 1 or 3, not {order}")
    if volume.ndim != 3 or 0 in volume.shape:
        raise UserError(f"a volume has the axes (z, y, x), not the shape {volume.shape}")
    matrices = np.asarray(rotations, np.float64)
    table = _table(matrices.reshape(-1, *matrices.shape[-2:]), shifts, center, volume.shape)
    xp = array_module(volume)
    source = spline_coefficients(volume) if order == 3 and not coefficients else single_precision(volume)
    if source.dtype.kind != "c" and np.iscomplexobj(outside):
        raise UserError(f"around a real volume lies a real value, not {outside}")
    source = writeable_view(xp.ascontiguousarray(source))
    out = empty_aligned((len(table), *volume.shape), source.dtype, xp)
    value = source.dtype.type(outside)
    if on_device(volume):
        from dtomo.kernels.cuda import rotation as device

        device.rotate(source, xp.asarray(table), out, value, order)
    else:
        work = _rotate_cubic if order == 3 else _rotate_linear
        flat = source.reshape(-1)
        run_jobs(lambda span: work(span, flat, table, out, value), len(table) * volume.shape[0])
    return out if matrices.ndim == 3 else out[0]


def _table(
    matrices: NDArray[np.float64], shifts: ArrayLike | None, center: ArrayLike | None, shape: tuple[int, ...]
) -> NDArray[np.int64]:
    """Where the voxels of the results come from, int64 ``(rotation, axis, 4)``, in multiples of 2^-32.

    The place along axis z, y or x of voxel (z, y, x) is the sum of the first three numbers times z, y, x, and the last.
    """
    count = len(matrices)
    if matrices.shape[1:] != (3, 3) or not np.isfinite(matrices).all():
        raise UserError(f"rotations are finite matrices (3, 3) or (count, 3, 3), not of shape {matrices.shape[1:]}")
    off = np.abs(matrices @ matrices.transpose(0, 2, 1) - np.eye(3)).max((1, 2)) > 1e-4
    off |= np.linalg.det(matrices) < 0
    if off.any():
        raise UserError(f"matrix {int(np.argmax(off))} is no rotation: its transpose is not its inverse, or it mirrors")
    middle = (np.array(shape[::-1]) - 1) / 2 if center is None else np.asarray(center, np.float64)
    moved = np.zeros((count, 3)) if shifts is None else np.asarray(shifts, np.float64)
    if moved.shape == (3,):
        moved = np.broadcast_to(moved, (count, 3))
    if (
        middle.shape != (3,)
        or moved.shape != (count, 3)
        or not (np.isfinite(moved).all() and np.isfinite(middle).all())
    ):
        raise UserError(f"center and shifts are finite vectors (x, y, z), one shift for each of {count} rotations")
    if max(np.abs(moved).max(initial=0), np.abs(middle).max(), *shape) > 2.0**28:
        raise UserError("center and shifts lie within 2^28 voxels")
    back = matrices.transpose(0, 2, 1)
    origin = middle - (back @ (middle + moved)[:, :, None])[:, :, 0]
    table = np.concatenate([back[:, ::-1, ::-1], origin[:, ::-1, None]], axis=2)
    return np.rint(table * 2.0**FRACTION).astype(np.int64, order="C")


def samplers(decorate: Callable[[Callable[..., Any]], Any]) -> tuple[Any, Any]:
    """The interpolations of order 1 and 3 at one place, compiled for CPUs or devices."""

    @decorate
    def misses(place, count):  # type: ignore[no-untyped-def]
        return place < 0 or place > (count - 1) << FRACTION

    @decorate
    def part(place):  # type: ignore[no-untyped-def]
        return np.float32((place & MASK) >> 8) * SMALL

    @decorate
    def between(one, two, fraction):  # type: ignore[no-untyped-def]
        return one + (two - one) * fraction

    @decorate
    def linear(volume, depth, height, width, pz, py, px, outside):  # type: ignore[no-untyped-def]
        if misses(pz, depth) or misses(py, height) or misses(px, width):
            return outside
        z, y, x = pz >> FRACTION, py >> FRACTION, px >> FRACTION
        tz, ty, tx = part(pz), part(py), part(px)
        dz = height * width if z < depth - 1 else 0
        dy = width if y < height - 1 else 0
        dx = 1 if x < width - 1 else 0
        at = (z * height + y) * width + x
        one = between(volume[np.uint64(at)], volume[np.uint64(at + dx)], tx)
        two = between(volume[np.uint64(at + dy)], volume[np.uint64(at + dy + dx)], tx)
        near = between(one, two, ty)
        at += dz
        one = between(volume[np.uint64(at)], volume[np.uint64(at + dx)], tx)
        two = between(volume[np.uint64(at + dy)], volume[np.uint64(at + dy + dx)], tx)
        return between(near, between(one, two, ty), tz)

    @decorate
    def mirrored(index, count):  # type: ignore[no-untyped-def]
        index = abs(index)
        return max(2 * (count - 1) - index, 0) if index > count - 1 else index

    @decorate
    def outer(fraction):  # type: ignore[no-untyped-def]
        return fraction * fraction * fraction * np.float32(1 / 6)

    @decorate
    def inner(fraction):  # type: ignore[no-untyped-def]
        return np.float32(2 / 3) - fraction * fraction * (np.float32(1) - fraction * np.float32(0.5))

    @decorate
    def weight(fraction, k):  # type: ignore[no-untyped-def]
        rest = np.float32(1) - fraction
        if k == 0:
            return outer(rest)
        if k == 1:
            return inner(fraction)
        return inner(rest) if k == 2 else outer(fraction)

    @decorate
    def cubic(volume, depth, height, width, pz, py, px, outside):  # type: ignore[no-untyped-def]
        if misses(pz, depth) or misses(py, height) or misses(px, width):
            return outside
        z, y, x = (pz >> FRACTION) - 1, (py >> FRACTION) - 1, (px >> FRACTION) - 1
        tz, ty, tx = part(pz), part(py), part(px)
        w0, w1, w2, w3 = weight(tx, 0), weight(tx, 1), weight(tx, 2), weight(tx, 3)
        x0, x1, x2, x3 = mirrored(x, width), mirrored(x + 1, width), mirrored(x + 2, width), mirrored(x + 3, width)
        total = outside - outside
        for i in range(4):
            plane = outside - outside
            for j in range(4):
                at = (mirrored(z + i, depth) * height + mirrored(y + j, height)) * width
                row = volume[np.uint64(at + x0)] * w0 + volume[np.uint64(at + x1)] * w1
                row += volume[np.uint64(at + x2)] * w2 + volume[np.uint64(at + x3)] * w3
                plane += row * weight(ty, j)
            total += plane * weight(tz, i)
        return total

    return linear, cubic


_linear, _cubic = samplers(njit(inline="always"))


@kernel
def _rotate_linear(jobs, volume, table, out, outside):  # type: ignore[no-untyped-def]
    """A job is one plane of one result."""
    _, depth, height, width = out.shape
    for job in range(jobs[0], jobs[1]):
        number, z = job // depth, job % depth
        m = table[number]
        for y in range(height):
            pz = m[0, 0] * z + m[0, 1] * y + m[0, 3]
            py = m[1, 0] * z + m[1, 1] * y + m[1, 3]
            px = m[2, 0] * z + m[2, 1] * y + m[2, 3]
            for x in range(width):
                out[number, z, y, x] = _linear(volume, depth, height, width, pz, py, px, outside)
                pz, py, px = pz + m[0, 2], py + m[1, 2], px + m[2, 2]


@kernel
def _rotate_cubic(jobs, volume, table, out, outside):  # type: ignore[no-untyped-def]
    """A job is one plane of one result."""
    _, depth, height, width = out.shape
    for job in range(jobs[0], jobs[1]):
        number, z = job // depth, job % depth
        m = table[number]
        for y in range(height):
            pz = m[0, 0] * z + m[0, 1] * y + m[0, 3]
            py = m[1, 0] * z + m[1, 1] * y + m[1, 3]
            px = m[2, 0] * z + m[2, 1] * y + m[2, 3]
            for x in range(width):
                out[number, z, y, x] = _cubic(volume, depth, height, width, pz, py, px, outside)
                pz, py, px = pz + m[0, 2], py + m[1, 2], px + m[2, 2]
