"""One step of a field of vectors that stands for total variation: along differences, then to the ball it belongs to.

Primal-dual methods and the proximal map of total variation do nothing else beside applying differences and their
adjoint. Layouts, `spacing` and edges are those of `dtomo.kernels.differences`.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dtomo.arrays import array_module, empty_aligned, on_device
from dtomo.elementwise import in_pieces
from dtomo.kernels.compiling import kernel
from dtomo.kernels.differences import Layout, differences, layout, negative_divergence
from dtomo.threads import run_jobs

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
    memory, one = how.memory(volume), how.memory(field)
    two = one if ahead is field else how.memory(ahead)
    flat = [values.reshape(len(spacing), -1) for values in (one, two)]
    axes, inverse = _along(how, len(spacing))
    numbers = np.float32(limit), np.float32(momentum), isotropic
    steps = np.ascontiguousarray(step, np.float32)
    _in_rows(
        lambda jobs: _ascend(
            jobs, memory.reshape(-1), *flat, memory.shape, axes, inverse, steps, how.innermost, *numbers
        ),
        memory.shape,
    )  # fmt: skip
    return how.logical(one), how.logical(two)


def descend(field: NDArray[Any], spacing: tuple[float, ...]) -> NDArray[Any]:
    """The adjoint of differences, as `dtomo.kernels.differences.negative_divergence` without neighbours, and faster.

    ``(component, z, y, x)`` to ``(z, y, x)`` in the layout of the field.
    """
    if on_device(field):
        return negative_divergence(field, spacing)
    how = layout(field, spacing)
    memory = how.memory(field)
    out = empty_aligned(memory.shape[1:], memory.dtype)
    axes, inverse = _along(how, len(spacing))
    flat = memory.reshape(len(spacing), -1)
    _in_rows(lambda jobs: _descend(jobs, flat, out.reshape(-1), out.shape, axes, inverse), out.shape)
    return how.logical(out)


def relaxed(
    volume: NDArray[Any],
    field: NDArray[Any],
    spacing: tuple[float, ...],
    factor: Any,
    bounds: tuple[float | None, float | None] = (None, None),
) -> NDArray[Any]:
    """``volume - factor Dᴴ field`` between the bounds: a new array, in one pass over memory.

    Parameters
    ----------
    volume, field, spacing
        As in `ascend`.
    factor
        A number, or one of each slice, float32 ``(z, 1, 1)``, where the volume lies.
    bounds
        Lower and upper one, of real volumes; None: none.
    """
    if on_device(volume) or np.iscomplexobj(volume):
        out = descend(field, spacing)
        in_pieces(lambda o, x, f: back_to(o, x, f, bounds), out, volume, factor)
        return out
    how = layout(field, spacing)
    memory, x = how.memory(field), how.memory(volume)
    out = empty_aligned(memory.shape[1:], memory.dtype)
    axes, inverse = _along(how, len(spacing))
    factors = np.ascontiguousarray(np.broadcast_to(np.reshape(factor, -1), volume.shape[:1]), np.float32)
    low, high = (np.float32(sign * np.inf if bound is None else bound) for bound, sign in zip(bounds, (-1, 1)))
    flat = memory.reshape(len(spacing), -1)
    _in_rows(
        lambda jobs: _relax(
            jobs, flat, out.reshape(-1), x.reshape(-1), out.shape, axes, inverse, factors, how.innermost, low, high
        ),
        out.shape,
    )  # fmt: skip
    return how.logical(out)


def back_to(out: NDArray[Any], x: NDArray[Any], factor: Any, bounds: tuple[float | None, float | None]) -> None:
    """``x - factor out`` between the bounds, in the place of a piece of `out`."""
    out *= -factor
    out += x
    for bound, clip in zip(bounds, (np.maximum, np.minimum)):
        if bound is not None:
            clip(out, np.float32(bound), out=out)


def _along(how: Layout, components: int) -> tuple[tuple[int, ...], NDArray[np.float32]]:
    """The axis of memory along which each component lies, and what multiplies its differences."""
    axes = (2, 0, 1) if how.innermost else (0, 1, 2)
    return axes[3 - components :], how.inverse[3 - components :]


def _in_rows(work: Callable[[tuple[int, int]], object], shape: tuple[int, ...]) -> None:
    """Call a kernel for all blocks of rows of all planes of memory of that shape."""
    planes, rows, length = shape
    run_jobs(work, planes * -(-rows // rows_at_once.py_func(length)))


@njit(inline="always")
def rows_at_once(length):  # type: ignore[no-untyped-def]
    """Rows of memory of so many values that are worked on together: short enough for the first-level cache."""
    return max(1, 1024 // max(length, 1))


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


@njit(inline="always")
def _steps(out, volume, start, count, ahead, last_from, inverse):  # type: ignore[no-untyped-def]
    """``(volume[i + ahead] - volume[i]) inverse`` of `count` values from `start` on, 0 from number `last_from` on."""
    here, there = volume[start : start + last_from], volume[start + ahead : start + ahead + last_from]
    for i in range(last_from):
        out[i] = (there[i] - here[i]) * inverse
    for i in range(last_from, count):
        out[i] = 0


@njit(inline="always")
def _differences_of_rows(new, axes, volume, shape, a, b0, b1, inverse):  # type: ignore[no-untyped-def]
    """Differences of rows b0 : b1 of plane a of memory along each of the components' axes, edges 0."""
    planes, rows, length = shape
    start, count = (a * rows + b0) * length, (b1 - b0) * length
    for k in range(len(axes)):
        if axes[k] == 0:
            _steps(new[k], volume, start, count, rows * length, count if a < planes - 1 else 0, inverse[k])
        elif axes[k] == 1:
            _steps(new[k], volume, start, count, length, count if b1 < rows else count - length, inverse[k])
        else:
            _steps(new[k], volume, start, count, 1, count - 1, inverse[k])
            for row in range(b1 - b0):
                new[k, (row + 1) * length - 1] = 0


@kernel
def _ascend(  # type: ignore[no-untyped-def]
    jobs, volume, field, ahead, shape, axes, inverse, step, innermost, limit, momentum, isotropic
):  # fmt: skip
    """Flat arrays in the order of memory, `jobs` of whole rows of `shape`; `axes` of memory along each component."""
    _, rows, length = shape
    height = rows_at_once(length)
    blocks = (rows + height - 1) // height
    components = len(axes)
    new = np.empty((components, height * length), volume.dtype)
    factor = np.empty((components, height * length), np.float32)
    steps = np.empty(height * length, np.float32)
    tiny = np.float32(1e-30)
    for i in range(height * length if innermost else 0):
        steps[i] = step[i % length]
    for job in range(jobs[0], jobs[1]):
        a, b0 = job // blocks, job % blocks * height
        b1 = min(rows, b0 + height)
        start, count = (a * rows + b0) * length, (b1 - b0) * length
        if not innermost:
            steps[:count] = step[a]
        _differences_of_rows(new, axes, volume, shape, a, b0, b1, inverse)
        for k in range(components):
            values, further = new[k], ahead[k, start : start + count]
            for i in range(count):
                values[i] = further[i] + values[i] * steps[i]
            sizes = factor[k]
            for i in range(count):
                sizes[i] = _size(values[i])
        if isotropic:
            for k in range(1, components):
                for i in range(count):
                    factor[0, i] += factor[k, i]
        for k in range(1 if isotropic else components):
            sizes = factor[k]
            for i in range(count):
                sizes[i] = limit / max(max(math.sqrt(sizes[i]), limit), tiny)
        for k in range(components):
            values, scale = new[k], factor[0 if isotropic else k]
            old, further = field[k, start : start + count], ahead[k, start : start + count]
            for i in range(count):
                values[i] = values[i] * scale[i]
            for i in range(count):
                further[i] = values[i] + (values[i] - old[i]) * momentum
            for i in range(count):
                old[i] = values[i]


@njit(inline="always")
def _add_back(out, part, start, count, behind, first, last_from, inverse):  # type: ignore[no-untyped-def]
    """``out += (part[i - behind] - part[i]) inverse``: the first term from number `first` on, the second up to a last.

    In between both; what lies before `first` and from `last_from` on has one of them.
    """
    begin, end = min(first, count), max(last_from, 0)
    here = part[start : start + count]
    for i in range(0, min(begin, end)):
        out[i] -= here[i] * inverse
    if begin < end:
        before, middle, target = part[start + begin - behind : start + end - behind], here[begin:end], out[begin:end]
        for i in range(end - begin):
            target[i] += (before[i] - middle[i]) * inverse
    for i in range(max(begin, end), count):
        out[i] += part[start + i - behind] * inverse


@njit(inline="always")
def _add_back_within_rows(out, part, start, length, edges, inverse):  # type: ignore[no-untyped-def]
    """The same along rows of `length` values: all at once, then what was added over their ends is put right."""
    rows = out.size // length
    for row in range(rows):
        first, last = row * length, (row + 1) * length - 1
        edges[0, row] = out[first] - part[start + first] * inverse
        edges[1, row] = out[last] + part[start + last - 1] * inverse
    here, before, target = part[start + 1 : start + out.size], part[start : start + out.size - 1], out[1:]
    for i in range(target.size):
        target[i] += (before[i] - here[i]) * inverse
    for row in range(rows):
        out[row * length], out[(row + 1) * length - 1] = edges[0, row], edges[1, row]


@njit(inline="always")
def _divergence_of_rows(target, edges, field, shape, axes, a, b0, b1, inverse):  # type: ignore[no-untyped-def]
    """The negative divergence in rows b0 : b1 of plane a of memory."""
    planes, rows, length = shape
    start, count = (a * rows + b0) * length, (b1 - b0) * length
    target[:] = 0
    for number in range(len(axes)):
        k = (number + len(axes) - 2) % len(axes)  # y, x, then z
        part = field[k]
        if axes[k] == 0:
            first, last = 0 if a > 0 else count, count if a < planes - 1 else 0
            _add_back(target, part, start, count, rows * length, first, last, inverse[k])
        elif axes[k] == 1:
            first, last = 0 if b0 > 0 else length, count if b1 < rows else count - length
            _add_back(target, part, start, count, length, first, last, inverse[k])
        elif length > 1:
            _add_back_within_rows(target, part, start, length, edges, inverse[k])


@kernel
def _descend(jobs, field, out, shape, axes, inverse):  # type: ignore[no-untyped-def]
    """The negative divergence of flat components, as `_ascend` takes them."""
    _, rows, length = shape
    height = rows_at_once(length)
    blocks = (rows + height - 1) // height
    edges = np.empty((2, height), out.dtype)
    for job in range(jobs[0], jobs[1]):
        a, b0 = job // blocks, job % blocks * height
        b1 = min(rows, b0 + height)
        target = out[(a * rows + b0) * length : (a * rows + b1) * length]
        _divergence_of_rows(target, edges, field, shape, axes, a, b0, b1, inverse)


@kernel
def _relax(jobs, field, out, x, shape, axes, inverse, factor, innermost, low, high):  # type: ignore[no-untyped-def]
    """`relaxed` of flat arrays, in the cache row by row."""
    _, rows, length = shape
    height = rows_at_once(length)
    blocks = (rows + height - 1) // height
    edges, sums = np.empty((2, height), out.dtype), np.empty(height * length, out.dtype)
    factors = np.empty(height * length, np.float32)
    for i in range(height * length if innermost else 0):
        factors[i] = factor[i % length]
    for job in range(jobs[0], jobs[1]):
        a, b0 = job // blocks, job % blocks * height
        b1 = min(rows, b0 + height)
        start, count = (a * rows + b0) * length, (b1 - b0) * length
        if not innermost:
            factors[:count] = factor[a]
        part = sums[:count]
        _divergence_of_rows(part, edges, field, shape, axes, a, b0, b1, inverse)
        here, target = x[start : start + count], out[start : start + count]
        for i in range(count):
            value = here[i] - part[i] * factors[i]
            value = low if value < low else value
            target[i] = high if value > high else value
