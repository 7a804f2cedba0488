"""One level of a wavelet transform along one axis of memory, in place, on CPUs: a line of all its vectors at a time.

A line, as many neighbours wide as fit the second-level cache, is read once into a buffer and written once. The bits are
those of the same sums by array operations.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dtomo.kernels.compiling import kernel
from dtomo.threads import run_jobs

BUFFER, NARROW, WIDE = 1 << 17, 64, 256
"""Values in a buffer, and neighbours that are worked on together: at least, whatever the buffer, and at most."""


def split(memory: NDArray[np.float32], corner: tuple[int, ...], axis: int, low: NDArray[np.float32]) -> None:
    """Lines along an axis into what is coarse, ``ceil(n / 2)`` values, and behind it what is fine.

    Parameters
    ----------
    memory
        Three axes, C-contiguous; complex numbers are two values each.
    corner
        How much of it, from the first value on along each axis.
    axis
        0 or 1.
    low
        The low-pass filter, of an even number of coefficients, no more than `corner` has values along the axis. The
        high-pass filter is its mirror image with signs in turn. Borders are periodic; the last one of an odd number of
        values counts as coarse.
    """
    _run(_split, memory, corner, axis, low)


def join(memory: NDArray[np.float32], corner: tuple[int, ...], axis: int, low: NDArray[np.float32]) -> None:
    """The way back from `split`: its transpose."""
    _run(_join, memory, corner, axis, low)


def high_pass(low: NDArray[np.float32]) -> NDArray[np.float32]:
    """The filter of what is fine."""
    return (low[::-1] * np.where(np.arange(len(low)) % 2, -1, 1)).astype(np.float32)


def _run(work, memory, corner, axis, low) -> None:  # type: ignore[no-untyped-def]
    _, rows, length = memory.shape
    steps, lines, run = (rows * length, length), corner[1 - axis], corner[2]
    if axis == 0 and run == length:  # neighbours without a gap
        lines, run = 1, lines * run
    width = min(run, max(NARROW, min(WIDE, BUFFER // corner[axis])))
    sizes = corner[axis], steps[axis], steps[1 - axis], run, width
    jobs = lines * -(-run // width)
    run_jobs(lambda span: work(span, memory.reshape(-1), *sizes, low, high_pass(low)), jobs)


@njit(inline="always")
def _add_two(out, one, two, f, g):  # type: ignore[no-untyped-def]
    for k in range(out.size):
        out[k] += f * one[k] + g * two[k]


@kernel
def _split(jobs, flat, count, step, across, run, wide, low, high):  # type: ignore[no-untyped-def]
    chunks, half, taps = (run + wide - 1) // wide, count // 2, low.size // 2
    made = np.empty((count, wide), np.float32)
    for job in range(jobs[0], jobs[1]):
        first = job % chunks * wide
        width, base = min(wide, run - first), job // chunks * across + first
        for i in range(half):
            coarse, fine = made[i, :width], made[count - half + i, :width]
            coarse[:] = 0
            fine[:] = 0
            for t in range(taps):
                place = i + t if i + t < half else i + t - half
                at = base + 2 * place * step
                even, odd = flat[at : at + width], flat[at + step : at + step + width]
                _add_two(coarse, even, odd, low[2 * t], low[2 * t + 1])
                _add_two(fine, even, odd, high[2 * t], high[2 * t + 1])
        if count % 2:
            at = base + (count - 1) * step
            made[half, :width] = flat[at : at + width]
        for i in range(count):
            flat[base + i * step : base + i * step + width] = made[i, :width]


@kernel
def _join(jobs, flat, count, step, across, run, wide, low, high):  # type: ignore[no-untyped-def]
    chunks, half, taps = (run + wide - 1) // wide, count // 2, low.size // 2
    made = np.empty((count, wide), np.float32)
    for job in range(jobs[0], jobs[1]):
        first = job % chunks * wide
        width, base = min(wide, run - first), job // chunks * across + first
        for i in range(half):
            even, odd = made[2 * i, :width], made[2 * i + 1, :width]
            even[:] = 0
            odd[:] = 0
            for t in range(taps):
                place = i - t if i >= t else i - t + half
                at = base + place * step
                to = at + (count - half) * step
                coarse, fine = flat[at : at + width], flat[to : to + width]
                _add_two(even, coarse, fine, low[2 * t], high[2 * t])
                _add_two(odd, coarse, fine, low[2 * t + 1], high[2 * t + 1])
        if count % 2:
            at = base + half * step
            made[count - 1, :width] = flat[at : at + width]
        for i in range(count):
            flat[base + i * step : base + i * step + width] = made[i, :width]
