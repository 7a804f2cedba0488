"""One step of a field of vectors that stands for total variation: along differences, then to the ball it belongs to.

Primal-dual methods and the proximal map of total variation do nothing else beside applying differences and their
adjoint. Layouts, `spacing` and edges are those of `dtomo.kernels.differences`.
"""

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dtomo.arrays import array_module, on_device
from dtomo.elementwise import in_pieces
from dtomo.kernels.compiling import kernel
from dtomo.kernels.differences import (
    _CENTER,
    _NEXT_A,
    _NEXT_B,
    ROWS,
    _in_rows,
    _load,
    _next,
    _planes,
    differences,
    layout,
)

_TINY = np.float32(1e-30)


def ascend(
    field: NDArray[Any],
    ahead: NDArray[Any],
    volume: NDArray[Any],
    spacing: tuple[float, ...],
    *,
    step: NDArray[np.float32],
    limit: float,
    momentum: float,
    isotropic: bool,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """``new = P(ahead + step D volume)``, then ``ahead = new + momentum (new - field)`` and ``field = new``.

    P brings each vector (or each component) that is longer than `limit` to that length.

    Parameters
    ----------
    field, ahead
        ``(component, z, y, x)``, written over where they lie in memory as the volume does. May be the same array where
        `momentum` is 0.
    volume
        ``(z, y, x)``, float32 or complex64.
    spacing
        ``(z, y, x)`` or ``(y, x)``.
    step
        float32 ``(z,)``, of each slice, on the host.
    limit
        Not negative.
    momentum
        From 0.
    isotropic
        Whether the length is that of the vector, or of each component by itself.

    Returns
    -------
    field, ahead
        The arrays that were written to.
    """
    how = layout(volume, spacing)
    if on_device(volume):
        return _on_device(field, ahead, volume, spacing, step, limit, momentum, isotropic)
    memory = how.memory(volume)
    one = how.memory(field)
    two = one if ahead is field else how.memory(ahead)
    edges = _planes(volume, None, None)
    numbers = (np.ascontiguousarray(step, np.float32), np.float32(limit), np.float32(momentum), isotropic)
    _in_rows(_ascend, memory, *edges, one, two, how.innermost, how.inverse, *numbers)
    return how.logical(one), how.logical(two)


def _on_device(
    field: NDArray[Any],
    ahead: NDArray[Any],
    volume: NDArray[Any],
    spacing: tuple[float, ...],
    step: NDArray[np.float32],
    limit: float,
    momentum: float,
    isotropic: bool,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The same from array operations, for any kind of array."""
    slope = differences(volume, spacing)
    xp = array_module(volume)
    steps = xp.asarray(step.reshape(-1, 1, 1))
    count = len(slope)

    def work(*parts: NDArray[Any]) -> None:
        new, old, further, steps = parts[:count], parts[count : 2 * count], parts[2 * count : 3 * count], parts[-1]
        for n, f in zip(new, further):
            n *= steps
            n += f
        _shorten(new, limit, isotropic)
        for n, o, f in zip(new, old, further):
            np.subtract(n, o, out=f)
            f *= np.float32(momentum)
            f += n
            o[...] = n

    in_pieces(work, *slope, *field, *ahead, steps)
    return field, ahead


def _shorten(components: Any, limit: float, isotropic: bool) -> None:
    squares = [part.real**2 + part.imag**2 if np.iscomplexobj(part) else part * part for part in components]
    if isotropic:
        squares = [sum(squares[1:], squares[0])] * len(squares)
    for part, square in zip(components, squares):
        part *= np.float32(limit) / np.maximum(np.maximum(np.sqrt(square), np.float32(limit)), _TINY)


@njit(inline="always")
def _size(value):  # type: ignore[no-untyped-def]
    return value.real * value.real + value.imag * value.imag


@kernel
def _ascend(  # type: ignore[no-untyped-def]
    jobs, volume, before, after, field, ahead, innermost, inverse, step, limit, momentum, isotropic
):  # fmt: skip
    _, rows, count = volume.shape
    blocks = (rows + ROWS - 1) // ROWS
    scratch = np.empty((3, count + 2), volume.dtype)
    new = np.empty((3, count), volume.dtype)
    factor = np.empty((3, count), np.float32)
    steps = np.empty(count, np.float32)
    components = field.shape[0]
    tiny = np.float32(1e-30)
    for job in range(jobs[0], jobs[1]):
        a = job // blocks
        for c in range(count):
            steps[c] = step[c] if innermost else step[a]
        for b in range(job % blocks * ROWS, min(rows, (job % blocks + 1) * ROWS)):
            _load(scratch[_CENTER], volume, before, after, innermost, a, b)
            _load(scratch[_NEXT_A], volume, before, after, innermost, a + 1, b)
            _load(scratch[_NEXT_B], volume, before, after, innermost, a, b + 1)
            y, x, z = _next(scratch, innermost)
            center = scratch[_CENTER, 1 : count + 1]
            for k in range(components):
                axis = k + 3 - components
                far = z if axis == 0 else y if axis == 1 else x
                source, target = ahead[k, a, b], new[k]
                for c in range(count):
                    target[c] = source[c] + (far[c] - center[c]) * (inverse[axis] * steps[c])
            for k in range(components):
                for c in range(count):
                    factor[k, c] = _size(new[k, c])
            if isotropic:
                for k in range(1, components):
                    for c in range(count):
                        factor[0, c] += factor[k, c]
            for k in range(1 if isotropic else components):
                for c in range(count):
                    factor[k, c] = limit / max(max(math.sqrt(factor[k, c]), limit), tiny)
            for k in range(components):
                scale, source = factor[0 if isotropic else k], new[k]
                old, further = field[k, a, b], ahead[k, a, b]
                for c in range(count):
                    value = source[c] * scale[c]
                    further[c] = value + (value - old[c]) * momentum
                    old[c] = value
