"""Patches of an object on CUDA devices: one thread for each pixel, neighbouring threads along columns."""

from typing import Any

from numba import cuda

from dtomo.kernels.cuda.compiling import cuda_kernel
from dtomo.kernels.patches import TILE, Cover

THREADS = (32, 8)  # of a block: along columns, and along rows

_TYPES = ("float32", "complex64")


def extract(image: Any, windows: Cover, out: Any) -> None:
    """`dtomo.kernels.patches.extract` of device arrays ``(mode, row, column)``."""
    frames, modes, rows, columns = out.shape
    _extract.launch(_blocks(columns, rows, frames * modes), image, windows.positions, out)


def add(patches: Any, windows: Cover, out: Any) -> None:
    """`dtomo.kernels.patches.add` of device arrays ``(frame, mode, row, column)``."""
    modes, height, width = out.shape
    tables = windows.positions, windows.starts, windows.frames
    _add.launch(_blocks(width, height, modes), patches, *tables, out)


def _blocks(columns: int, rows: int, layers: int) -> tuple[int, int, int]:
    return -(-columns // THREADS[0]), -(-rows // THREADS[1]), layers


@cuda_kernel(*(f"void({t}[:, :, ::1], int64[:, ::1], {t}[:, :, :, ::1])" for t in _TYPES), threads=THREADS)
def _extract(image, positions, out):  # type: ignore[no-untyped-def]
    frames, modes, rows, columns = out.shape
    c0, r0, layer0 = cuda.grid(3)
    across, down, on = cuda.gridsize(3)
    for layer in range(layer0, frames * modes, on):
        frame, mode = layer // modes, layer % modes
        top, left = positions[frame, 0], positions[frame, 1]
        for r in range(r0, rows, down):
            for c in range(c0, columns, across):
                out[frame, mode, r, c] = image[mode, top + r, left + c]


@cuda_kernel(
    *(f"void({t}[:, :, :, ::1], int64[:, ::1], int64[::1], int64[::1], {t}[:, :, ::1])" for t in _TYPES),
    threads=THREADS,
)
def _add(patches, positions, starts, frames, out):  # type: ignore[no-untyped-def]
    """A warp lies within one tile: its threads go through the same list of frames."""
    modes, height, width = out.shape
    _, _, rows, columns = patches.shape
    tiles = (width + TILE - 1) // TILE
    x0, y0, mode0 = cuda.grid(3)
    across, down, on = cuda.gridsize(3)
    for mode in range(mode0, modes, on):
        for y in range(y0, height, down):
            for x in range(x0, width, across):
                tile = y // TILE * tiles + x // TILE
                total = out.dtype.type(0)
                for k in range(starts[tile], starts[tile + 1]):
                    frame = frames[k]
                    r, c = y - positions[frame, 0], x - positions[frame, 1]
                    if r >= 0 and r < rows and c >= 0 and c < columns:
                        total += patches[frame, mode, r, c]
                out[mode, y, x] = total
