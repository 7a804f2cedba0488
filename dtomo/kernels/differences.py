"""Forward differences of volumes, their exact adjoint, and isotropic total variation with its gradient.

Volumes ``(z, y, x)`` lie in memory with x or with z innermost; the bits are the same. `spacing` is the size of a voxel,
``(z, y, x)``, or ``(y, x)`` for differences within slices only. At the edges differences are zero (Neumann). A slab of
a larger volume is given the plane ``(y, x)`` before its first one and after its last one, so that the slabs of a volume
have the bits of the volume; without these planes it ends there.

A. Chambolle, J. Math. Imaging Vis. 20, 89-97 (2004), for the pair of differences and divergence.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dtomo.arrays import array_module, empty_aligned, on_device, writeable_view
from dtomo.kernels.compiling import kernel
from dtomo.threads import run_jobs

ROWS = 32
"""Rows of memory in one job, and in one partial sum of the variation."""

_CENTER, _NEXT_A, _NEXT_B, _LAST_A, _LAST_B, _LAST_A_NEXT_B, _NEXT_A_LAST_B = range(7)  # rows in scratch


class Layout(NamedTuple):
    """Where z, y and x lie in the C-ordered memory ``[a, b, c]`` of a volume, and what divides its differences.

    Attributes
    ----------
    innermost
        Whether z is: memory is ``[y, x, z]`` instead of ``[z, y, x]``.
    shape
        ``(z, y, x)``
    inverse
        ``1 / spacing`` along z, y, x; 0 along z where differences are taken within slices.
    """

    innermost: bool
    shape: tuple[int, int, int]
    inverse: NDArray[np.float32]

    def memory(self, array: NDArray[Any]) -> NDArray[Any]:
        """``[a, b, c]`` (or ``[component, a, b, c]``) of an array ``(…, z, y, x)``, copied if it lies otherwise."""
        inside = writeable_view(np.moveaxis(array, -3, -1) if self.innermost else array)
        return array_module(inside).ascontiguousarray(inside)

    def logical(self, memory: NDArray[Any]) -> NDArray[Any]:
        """The way back."""
        return np.moveaxis(memory, -1, -3) if self.innermost else memory


def layout(array: NDArray[Any], spacing: tuple[float, ...]) -> Layout:
    """That of an array ``(…, z, y, x)``."""
    last = array[(0,) * (array.ndim - 3)]
    innermost = not last.flags.c_contiguous and np.moveaxis(last, 0, -1).flags.c_contiguous
    inverse = np.array([0.0] * (3 - len(spacing)) + [1 / step for step in spacing], np.float32)
    return Layout(innermost, last.shape, inverse)


def differences(volume: NDArray[Any], spacing: tuple[float, ...], *, after: NDArray[Any] | None = None) -> NDArray[Any]:
    """``(u[i + 1] - u[i]) / spacing`` along each axis of `spacing`, 0 at the last voxel.

    Parameters
    ----------
    volume
        ``(z, y, x)``, float32 or complex64, in host memory or on a device.
    spacing
        ``(z, y, x)`` or ``(y, x)``.
    after
        The plane ``(y, x)`` after the last one, if the volume goes on there.

    Returns
    -------
    ndarray
        ``(component, z, y, x)``, components in the order of `spacing`, in the layout of the volume.
    """
    how = layout(volume, spacing)
    memory = how.memory(volume)
    planes = _planes(volume, None, after)
    out = empty_aligned((len(spacing), *memory.shape), memory.dtype, array_module(memory))
    if on_device(memory):
        from dtomo.kernels.cuda import differences as device

        device.differences(memory, planes[1], out, how)
    else:
        _in_rows(_differences, memory, *planes, out, how.innermost, how.inverse)
    return how.logical(out)


def negative_divergence(
    field: NDArray[Any], spacing: tuple[float, ...], *, before: NDArray[Any] | None = None, ends: bool = True
) -> NDArray[Any]:
    """The exact adjoint of `differences`: ``(p[i - 1] - p[i]) / spacing``, summed over components.

    Parameters
    ----------
    field
        ``(component, z, y, x)``, float32 or complex64.
    spacing
        As for `differences`.
    before
        The z component ``(y, x)`` of the plane before the first one, if the field goes on there.
    ends
        Whether the volume ends after the last plane, whose z component then counts as 0.

    Returns
    -------
    ndarray
        ``(z, y, x)`` in the layout of the field.
    """
    how = layout(field, spacing)
    memory = how.memory(field)
    xp = array_module(memory)
    plane = xp.zeros(how.shape[1:], memory.dtype) if before is None else xp.ascontiguousarray(before, memory.dtype)
    out = empty_aligned(memory.shape[1:], memory.dtype, xp)
    if on_device(memory):
        from dtomo.kernels.cuda import differences as device

        device.negative_divergence(memory, plane, out, ends, how)
    else:
        _in_rows(_negative_divergence, memory, writeable_view(plane), out, ends, how.innermost, how.inverse)
    return how.logical(out)


def total_variation(
    volume: NDArray[Any], spacing: tuple[float, ...], smoothing: float = 0.0, *, after: NDArray[Any] | None = None
) -> NDArray[np.float64]:
    """``sqrt(|D u|² + smoothing²)`` summed over each slice, with D u the `differences` at a voxel.

    Returns
    -------
    ndarray
        float64 ``(z,)``, where the volume lies.
    """
    how = layout(volume, spacing)
    memory = how.memory(volume)
    planes = _planes(volume, None, after)
    blocks = -(-memory.shape[1] // ROWS)
    sums = array_module(memory).zeros((memory.shape[0], blocks, memory.shape[2]), np.float64)
    square = np.float32(smoothing) ** 2
    if on_device(memory):
        from dtomo.kernels.cuda import differences as device

        device.total_variation(memory, planes[1], sums, square, how)
    else:
        _in_rows(_total_variation, memory, *planes, sums, how.innermost, how.inverse, square)
    return sums.sum(1).sum(0 if how.innermost else 1)


def total_variation_gradient(
    volume: NDArray[Any],
    spacing: tuple[float, ...],
    smoothing: float,
    *,
    before: NDArray[Any] | None = None,
    after: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Gradient of the sum of `total_variation`: ``Dᵀ (D u / sqrt(|D u|² + smoothing²))``.

    For complex volumes with respect to real and imaginary part: the change along ``h`` is ``Re <gradient, h>``.

    Parameters
    ----------
    volume, spacing
        As for `differences`.
    smoothing
        Positive, in units of the differences.
    before, after
        The planes ``(y, x)`` of the volume beside its first and last one, if it goes on there.

    Returns
    -------
    ndarray
        ``(z, y, x)`` in the layout of the volume.
    """
    how = layout(volume, spacing)
    memory = how.memory(volume)
    planes = _planes(volume, before, after)
    out = empty_aligned(memory.shape, memory.dtype, array_module(memory))
    square = np.float32(smoothing) ** 2
    if on_device(memory):
        from dtomo.kernels.cuda import differences as device

        device.total_variation_gradient(memory, planes[0], planes[1], out, square, how)
    else:
        _in_rows(_total_variation_gradient, memory, *planes, out, how.innermost, how.inverse, square)
    return how.logical(out)


def _planes(volume: NDArray[Any], before: NDArray[Any] | None, after: NDArray[Any] | None) -> list[NDArray[Any]]:
    """Planes beside the volume; its own outer ones where it ends, so that differences vanish there."""
    xp = array_module(volume, before, after)
    found = (volume[0] if before is None else before, volume[-1] if after is None else after)
    return [writeable_view(xp.ascontiguousarray(plane, volume.dtype)) for plane in found]


def _in_rows(work: Callable[..., object], memory: NDArray[Any], *arguments: Any) -> None:
    """Call a kernel for all blocks of rows of all planes of memory."""
    across, rows = memory.shape[-3], memory.shape[-2]
    run_jobs(lambda span: work(span, memory, *arguments), across * -(-rows // ROWS))


@njit(inline="always")
def steepness(center, y, x, z, inverse_y, inverse_x, inverse_z, smoothing):  # type: ignore[no-untyped-def]
    """``sqrt(|D u|² + smoothing)`` of a voxel where the next values along y, x, z are these."""
    dy, dx, dz = (y - center) * inverse_y, (x - center) * inverse_x, (z - center) * inverse_z
    square = dy.real * dy.real + dy.imag * dy.imag + (dx.real * dx.real + dx.imag * dx.imag)
    return math.sqrt(square + (dz.real * dz.real + dz.imag * dz.imag) + smoothing)


@kernel
def _load(row, volume, before, after, innermost, a, b):  # type: ignore[no-untyped-def]
    """Copy a row of memory with one value more at both ends; rows and values beyond an edge are those at the edge."""
    planes, rows, count = volume.shape
    b = min(max(b, 0), rows - 1)
    if innermost:
        a = min(max(a, 0), planes - 1)
    source = before[b] if a < 0 else after[b] if a >= planes else volume[a, b]
    for c in range(count):
        row[c + 1] = source[c]
    row[0] = before[a, b] if innermost else row[1]
    row[count + 1] = after[a, b] if innermost else row[count]


@njit(inline="always")
def _next(rows, innermost):  # type: ignore[no-untyped-def]
    """Rows of the next values along y, x, z, so that all begin at the voxel."""
    count = rows.shape[1] - 2
    center, a, b = rows[_CENTER], rows[_NEXT_A, 1 : count + 1], rows[_NEXT_B, 1 : count + 1]
    c = center[2 : count + 2]
    return (a, b, c) if innermost else (b, c, a)


@kernel
def _differences(jobs, volume, before, after, out, innermost, inverse):  # type: ignore[no-untyped-def]
    _, rows, count = volume.shape
    blocks = (rows + ROWS - 1) // ROWS
    scratch = np.empty((3, count + 2), volume.dtype)
    slices = out.shape[0] == 2
    for job in range(jobs[0], jobs[1]):
        a = job // blocks
        for b in range(job % blocks * ROWS, min(rows, (job % blocks + 1) * ROWS)):
            _load(scratch[_CENTER], volume, before, after, innermost, a, b)
            _load(scratch[_NEXT_A], volume, before, after, innermost, a + 1, b)
            _load(scratch[_NEXT_B], volume, before, after, innermost, a, b + 1)
            y, x, z = _next(scratch, innermost)
            center = scratch[_CENTER, 1 : count + 1]
            for c in range(count):
                out[-2, a, b, c] = (y[c] - center[c]) * inverse[1]
                out[-1, a, b, c] = (x[c] - center[c]) * inverse[2]
            if not slices:
                for c in range(count):
                    out[0, a, b, c] = (z[c] - center[c]) * inverse[0]


@njit(inline="always")
def _add_difference(target, last, here, factor):  # type: ignore[no-untyped-def]
    """``target += (last - here) factor``"""
    for c in range(target.size):
        target[c] += (last[c] - here[c]) * factor


@kernel
def _negative_divergence(jobs, field, before, out, ends, innermost, inverse):  # type: ignore[no-untyped-def]
    components, planes, rows, count = field.shape
    blocks = (rows + ROWS - 1) // ROWS
    nothing, shifted = np.zeros(count, field.dtype), np.empty(count + 1, field.dtype)
    axes = (2, 0, 1) if innermost else (0, 1, 2)
    for job in range(jobs[0], jobs[1]):
        a = job // blocks
        for b in range(job % blocks * ROWS, min(rows, (job % blocks + 1) * ROWS)):
            target = out[a, b]
            for c in range(count):
                target[c] = 0
            for k in (1, 2, 0):
                if components == 2 and k == 0:
                    continue
                axis, part, open_end = axes[k], field[components - 3 + k], k == 0 and not ends
                here = part[a, b]
                if axis == 0:
                    last = part[a - 1, b] if a > 0 else before[b] if k == 0 else nothing
                    _add_difference(target, last, here if a < planes - 1 or open_end else nothing, inverse[k])
                elif axis == 1:
                    last = part[a, b - 1] if b > 0 else nothing
                    _add_difference(target, last, here if b < rows - 1 else nothing, inverse[k])
                else:
                    shifted[0] = before[a, b] if k == 0 else 0
                    for c in range(count):
                        shifted[c + 1] = here[c]
                    if not open_end:
                        shifted[count] = 0
                    _add_difference(target, shifted[:count], shifted[1:], inverse[k])


@kernel
def _total_variation(jobs, volume, before, after, sums, innermost, inverse, smoothing):  # type: ignore[no-untyped-def]
    _, rows, count = volume.shape
    blocks = (rows + ROWS - 1) // ROWS
    scratch = np.empty((3, count + 2), volume.dtype)
    iz, iy, ix = inverse[0], inverse[1], inverse[2]
    for job in range(jobs[0], jobs[1]):
        a, total = job // blocks, sums[job // blocks, job % blocks]
        for b in range(job % blocks * ROWS, min(rows, (job % blocks + 1) * ROWS)):
            _load(scratch[_CENTER], volume, before, after, innermost, a, b)
            _load(scratch[_NEXT_A], volume, before, after, innermost, a + 1, b)
            _load(scratch[_NEXT_B], volume, before, after, innermost, a, b + 1)
            y, x, z = _next(scratch, innermost)
            for c in range(count):
                total[c] += steepness(scratch[_CENTER, c + 1], y[c], x[c], z[c], iy, ix, iz, smoothing)


@kernel
def _places(innermost, width):  # type: ignore[no-untyped-def]
    """Where neighbours lie in the flat scratch: ``[k, j]``, one voxel back along k, then on along j (both of y, x, z).

    Row 3 has those that are not back, column 3 those that are not on.
    """
    found = np.empty((4, 4), np.int64)
    axes = (0, 1, 2, 3) if innermost else (1, 2, 0, 3)
    memory = (
        ((_CENTER, 0), (_LAST_A_NEXT_B, 0), (_LAST_A, 1), (_LAST_A, 0)),
        ((_NEXT_A_LAST_B, 0), (_CENTER, 0), (_LAST_B, 1), (_LAST_B, 0)),
        ((_NEXT_A, -1), (_NEXT_B, -1), (_CENTER, 0), (_CENTER, -1)),
        ((_NEXT_A, 0), (_NEXT_B, 0), (_CENTER, 1), (_CENTER, 0)),
    )
    for k in range(4):
        for j in range(4):
            row, shift = memory[axes[k]][axes[j]]
            found[k, j] = row * width + 1 + shift
    return found


@njit(inline="always")
def _row(values, start, count):  # type: ignore[no-untyped-def]
    return values[start : start + count]


@kernel
def _total_variation_gradient(  # type: ignore[no-untyped-def]
    jobs, volume, before, after, out, innermost, inverse, smoothing
):  # fmt: skip
    _, rows, count = volume.shape
    blocks = (rows + ROWS - 1) // ROWS
    scratch = np.empty((7, count + 2), volume.dtype)
    values, one = scratch.reshape(-1), np.float32(1)
    places = _places(innermost, count + 2)
    iy, ix, iz = inverse[1], inverse[2], inverse[0]
    for job in range(jobs[0], jobs[1]):
        a = job // blocks
        for b in range(job % blocks * ROWS, min(rows, (job % blocks + 1) * ROWS)):
            for number, (da, db) in enumerate(((0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (-1, 1), (1, -1))):
                _load(scratch[number], volume, before, after, innermost, a + da, b + db)
            target = out[a, b]
            for k in range(3, -1, -1):  # the voxel's own steepness, then that one voxel back along z, x, y
                y, x = _row(values, places[k, 0], count), _row(values, places[k, 1], count)
                z, own = _row(values, places[k, 2], count), _row(values, places[k, 3], count)
                middle = _row(values, places[3, 3], count)
                if k == 3:
                    for c in range(count):
                        slope = (y[c] - own[c]) * (iy * iy) + (x[c] - own[c]) * (ix * ix) + (z[c] - own[c]) * (iz * iz)
                        target[c] = -slope * (one / steepness(own[c], y[c], x[c], z[c], iy, ix, iz, smoothing))
                else:
                    factor = inverse[(k + 1) % 3] * inverse[(k + 1) % 3]
                    for c in range(count):
                        slope = (middle[c] - own[c]) * factor
                        target[c] += slope * (one / steepness(own[c], y[c], x[c], z[c], iy, ix, iz, smoothing))
