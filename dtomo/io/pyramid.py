"""Multiscale levels: sizes, and 2 × 2 × 2 means."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, int, int]

_PIECE = 8 * 2**20
"""Bytes halved at a time."""


def level_shapes(shape: Shape, levels: int | None = None, smallest: int = 256) -> list[Shape]:
    """Shapes of the levels: each half the one before (rounded up), until no side exceeds `smallest`."""
    shapes = [shape]
    while (levels is None and max(shapes[-1]) > smallest) or (levels is not None and len(shapes) < levels):
        shapes.append(tuple((size + 1) // 2 for size in shapes[-1]))  # type: ignore[arg-type]
        if shapes[-1] == shapes[-2]:
            return shapes[:-1]
    return shapes


def level_factors(shapes: list[Shape]) -> list[Shape]:
    """Voxels of level 0 per voxel of each level, by axis: 1, 2, 4 …; one voxel is not halved further."""
    factors = [(1, 1, 1)]
    for before in shapes[:-1]:
        factors.append(tuple(f * (2 if size > 1 else 1) for f, size in zip(factors[-1], before)))  # type: ignore[arg-type]
    return factors


def halved(block: NDArray[Any]) -> NDArray[Any]:
    """Means over 2 × 2 × 2 voxels in the dtype given; at an odd end over what is there.

    Floats narrower than 32 bits and integers are averaged in float32 and float64 and brought back (rounded). Beside
    the result, memory holds a few lines of it only.
    """
    depth, height, width = block.shape
    step = max(2, _PIECE // (depth * width * block.itemsize) // 2 * 2)
    out = np.empty_like(block, shape=tuple((size + 1) // 2 for size in block.shape))
    for y in range(0, height, step):
        out[:, y // 2 : (y + step) // 2] = _halved(block[:, y : y + step])
    return out


def _halved(block: NDArray[Any]) -> NDArray[Any]:
    dtype = block.dtype
    wide = block
    if dtype.kind in "iub":
        wide = block.astype(np.float32 if dtype.itemsize <= 2 else np.float64)
    elif dtype == np.float16:
        wide = block.astype(np.float32)
    for axis in range(3):
        wide = _pair_means(wide, axis)
    return np.rint(wide).astype(dtype) if dtype.kind in "iu" else wide.astype(dtype, copy=False)


def _pair_means(block: NDArray[Any], axis: int) -> NDArray[Any]:
    size = block.shape[axis]
    if size == 1:
        return block
    first, second = [slice(None)] * 3, [slice(None)] * 3
    first[axis], second[axis] = slice(0, size - size % 2, 2), slice(1, None, 2)
    means = block[tuple(first)] + block[tuple(second)]
    means *= 0.5
    if size % 2:
        last = [slice(None)] * 3
        last[axis] = slice(size - 1, None)
        means = np.concatenate([means, block[tuple(last)]], axis=axis)
    return means
