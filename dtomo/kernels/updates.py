"""Updates of volumes in one pass, piece by piece on CPUs: what NumPy does in one pass for each operation."""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from dtomo.kernels.compiling import kernel


def suits(volume: NDArray[Any], update: NDArray[Any], factor: NDArray[Any]) -> bool:
    """Whether pieces of real volumes lie along their last axis, along which the factor is the same."""
    return (
        type(volume) is np.ndarray and volume.dtype == update.dtype == factor.dtype == np.float32
        and volume.ndim == 3 and volume.strides[2] == 4 and update.flags.c_contiguous
        and factor.strides[2] == 0 and volume.shape == update.shape == factor.shape and min(volume.strides) > 0
    )  # fmt: skip


def add(
    volume: NDArray[np.float32], update: NDArray[np.float32], factor: NDArray[np.float32], low: float, high: float
) -> None:
    """``volume = clip(volume + update factor, low, high)``; pieces that `suits` lets pass."""
    _add(*_flat(volume), update, factor[..., 0], np.float32(low), np.float32(high))


def multiply(volume: NDArray[np.float32], update: NDArray[np.float32], factor: NDArray[np.float32], kept: bool) -> None:
    """``volume *= update factor``, likewise; with `kept` what has a factor of 0 stays."""
    _multiply(*_flat(volume), update, factor[..., 0], kept)


def lies_alike(*arrays: NDArray[Any]) -> bool:
    """Whether pieces of real volumes fill the same memory, one value after the other."""
    first = arrays[0]
    if type(first) is not np.ndarray:
        return False
    order = sorted(range(first.ndim), key=lambda k: -first.strides[k])
    return first.transpose(order).flags.c_contiguous and all(
        type(a) is np.ndarray and a.dtype == np.float32 and a.strides == first.strides and a.shape == first.shape
        for a in arrays
    )


def step_ahead(
    slope: NDArray[np.float32],
    volume: NDArray[np.float32],
    previous: NDArray[np.float32],
    step: NDArray[np.float32],
    ahead: float,
    low: float,
    high: float,
) -> None:
    """``slope = clip(volume (1 + ahead) - previous ahead - step slope, low, high)``; pieces that lie alike."""
    flat = [as_strided(a, (a.size,), (4,)) for a in (slope, volume, previous, step)]
    factor = np.float32(ahead)
    _step_ahead(*flat, factor, np.float32(1 + factor), np.float32(low), np.float32(high))


def _flat(volume: NDArray[np.float32]) -> tuple[NDArray[np.float32], int, int]:
    """The memory from the first value of a piece to its last, and the steps along its axes."""
    steps = [stride // 4 for stride in volume.strides]
    length = 1 + sum((count - 1) * step for count, step in zip(volume.shape, steps))
    return as_strided(volume, (length,), (4,)), steps[0], steps[1]


@kernel
def _add(flat, step, across, update, factor, low, high):  # type: ignore[no-untyped-def]
    rows, columns, length = update.shape
    for i in range(rows):
        for j in range(columns):
            at, f, change = i * step + j * across, factor[i, j], update[i, j]
            x = flat[at : at + length]
            for k in range(length):
                value = x[k] + change[k] * f
                value = low if value < low else value
                x[k] = high if value > high else value


@kernel
def _multiply(flat, step, across, update, factor, kept):  # type: ignore[no-untyped-def]
    rows, columns, length = update.shape
    for i in range(rows):
        for j in range(columns):
            at, f, change = i * step + j * across, factor[i, j], update[i, j]
            x = flat[at : at + length]
            for k in range(0 if kept and not f > 0 else length):
                x[k] = x[k] * (change[k] * f)


@kernel
def _step_ahead(slope, volume, previous, step, ahead, more, low, high):  # type: ignore[no-untyped-def]
    for i in range(slope.size):
        value = volume[i] * more - slope[i] * step[i] - previous[i] * ahead
        value = low if value < low else value
        slope[i] = high if value > high else value
