"""Patches of an object at whole positions, and the exact adjoint: patches added into an object.

As ptychography needs them: the object ``([mode,] row, column)`` is seen frame by frame through a window of one size,
as ``(frame, [mode,] row, column)``. Adding only gathers: every pixel of the object sums the frames that cover it, in
the order of frames, so that no thread waits for another and the bits depend on nothing else.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.arrays import array_module, empty_aligned, on_device, writeable_view
from dtomo.errors import UserError
from dtomo.kernels.compiling import kernel
from dtomo.threads import run_jobs

TILE = 32
"""Side of the square of pixels that share a list of frames."""


class Cover(NamedTuple):
    """Which frames cover which pixels; made once for a set of positions.

    Attributes
    ----------
    patch
        ``(rows, columns)`` of a frame.
    shape
        ``(rows, columns)`` of the object.
    positions
        Row and column of the first pixel of each frame, int64 ``(frame, 2)``.
    starts, frames
        The frames that touch tile t (of `TILE` pixels, row by row) are ``frames[starts[t] : starts[t + 1]]``, in order.
    """

    patch: tuple[int, int]
    shape: tuple[int, int]
    positions: NDArray[np.int64]
    starts: NDArray[np.int64]
    frames: NDArray[np.int64]


def cover(positions: ArrayLike, patch: tuple[int, int], shape: tuple[int, int], xp: Any = np) -> Cover:
    """Prepare `extract` and `add`.

    Parameters
    ----------
    positions
        Row and column of the first pixel of each frame, whole numbers ``(frame, 2)``, on the host.
    patch, shape
        ``(rows, columns)`` of a frame and of the object.
    xp
        Where the object lies: NumPy or CuPy.

    Raises
    ------
    UserError
        Positions that are no whole numbers, or frames that reach beyond the object.
    """
    corners = np.asarray(positions)
    if corners.ndim != 2 or corners.shape[1] != 2 or corners.dtype.kind not in "iu":
        raise UserError(f"positions are whole numbers (frame, 2), not {corners.dtype} of shape {corners.shape}")
    corners = np.ascontiguousarray(corners, np.int64)
    outside = (corners < 0).any(1) | (corners + patch > shape).any(1)
    if outside.any():
        worst = int(np.argmax(outside))
        raise UserError(
            f"frame {worst} of {patch[0]} x {patch[1]} pixels at {tuple(map(int, corners[worst]))} reaches beyond the "
            f"object of {shape[0]} x {shape[1]}; {int(outside.sum())} of {len(corners)} frames do"
        )
    starts, frames = _lists(corners, patch, shape)
    size = (int(patch[0]), int(patch[1])), (int(shape[0]), int(shape[1]))
    return Cover(*size, *(xp.asarray(array) for array in (corners, starts, frames)))


def _lists(
    corners: NDArray[np.int64], patch: tuple[int, int], shape: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`Cover.starts` and `Cover.frames`."""
    first, last = corners // TILE, (corners + patch - 1) // TILE
    down, across = (last - first + 1).T
    frame = np.repeat(np.arange(len(corners)), down * across)
    number = np.arange(len(frame)) - np.repeat(np.cumsum(down * across) - down * across, down * across)
    row, column = first[frame, 0] + number // across[frame], first[frame, 1] + number % across[frame]
    tiles = -(-shape[0] // TILE), -(-shape[1] // TILE)
    tile = row * tiles[1] + column
    order = np.argsort(tile, kind="stable")
    starts = np.searchsorted(tile[order], np.arange(tiles[0] * tiles[1] + 1))
    return starts.astype(np.int64), frame[order].astype(np.int64)


def extract(image: NDArray[Any], windows: Cover) -> NDArray[Any]:
    """The patches of an object, ``(frame, [mode,] row, column)``.

    Parameters
    ----------
    image
        ``([mode,] row, column)``, float32 or complex64, where `windows` lies.
    windows
        From `cover`.
    """
    xp = array_module(image, windows.positions)
    modes = writeable_view(xp.ascontiguousarray(image)).reshape(-1, *windows.shape)
    out = empty_aligned((len(windows.positions), len(modes), *windows.patch), image.dtype, xp)
    if on_device(image):
        from dtomo.kernels.cuda import patches as device

        device.extract(modes, windows, out)
    else:
        run_jobs(lambda span: _extract(span, modes, windows.positions, out), len(out))
    return out.reshape(len(out), *image.shape[:-2], *windows.patch)


def add(patches: NDArray[Any], windows: Cover) -> NDArray[Any]:
    """The adjoint of `extract`: an object ``([mode,] row, column)``, the sum of its patches, 0 where there is none.

    Parameters
    ----------
    patches
        ``(frame, [mode,] row, column)``, float32 or complex64, where `windows` lies.
    windows
        From `cover`.
    """
    xp = array_module(patches, windows.positions)
    count = len(windows.positions)
    modes = int(np.prod(patches.shape[1:-2]))
    parts = writeable_view(xp.ascontiguousarray(patches)).reshape(count, modes, *windows.patch)
    out = empty_aligned((modes, *windows.shape), patches.dtype, xp)
    if on_device(patches):
        from dtomo.kernels.cuda import patches as device

        device.add(parts, windows, out)
    else:
        tables = windows.positions, windows.starts, windows.frames
        run_jobs(lambda span: _add(span, parts, *tables, out), modes * (len(windows.starts) - 1))
    return out.reshape(*patches.shape[1:-2], *windows.shape)


@kernel
def _extract(jobs, image, positions, out):  # type: ignore[no-untyped-def]
    _, modes, rows, columns = out.shape
    for frame in range(jobs[0], jobs[1]):
        top, left = positions[frame]
        for mode in range(modes):
            for r in range(rows):
                source, target = image[mode, top + r, left : left + columns], out[frame, mode, r]
                for c in range(columns):
                    target[c] = source[c]


@kernel
def _add(jobs, patches, positions, starts, frames, out):  # type: ignore[no-untyped-def]
    """A job is one tile of one mode."""
    _, height, width = out.shape
    _, _, rows, columns = patches.shape
    across = (width + TILE - 1) // TILE
    for job in range(jobs[0], jobs[1]):
        mode, tile = job // (starts.size - 1), job % (starts.size - 1)
        y0, x0 = tile // across * TILE, tile % across * TILE
        y1, x1 = min(height, y0 + TILE), min(width, x0 + TILE)
        for y in range(y0, y1):
            for x in range(x0, x1):
                out[mode, y, x] = 0
        for k in range(starts[tile], starts[tile + 1]):
            top, left = positions[frames[k]]
            first, last = max(x0, left), min(x1, left + columns)
            for y in range(max(y0, top), min(y1, top + rows)):
                target, source = out[mode, y, first:last], patches[frames[k], mode, y - top, first - left : last - left]
                for c in range(target.size):
                    target[c] += source[c]
