"""Voxel-driven back projection of flat detectors on CUDA devices: one thread for each voxel.

Memory layout as on CPUs: volume ``[y, x, z]``, projections ``[view, column, row]``, float32. The 32 lanes of a warp are
neighbouring slices, which see neighbouring rows of one or two columns; the warps of a block are neighbouring voxels
along x, so that the caches serve most loads. Places are found in float32 from the middle of volume and detector: to
about 1e-4 of a pixel at 2000 pixels. A launch takes `VIEWS` views, whose tables stay in the cache.
"""

from typing import Any

import numpy as np
from numba import cuda

from dtomo.kernels.cuda.compiling import cuda_kernel

LANES, WARPS = 32, 8
VIEWS = 64
"""Views of a launch."""


def centered(matrices: Any, middles: tuple[float, float, float], pixels: tuple[float, float], plain: bool) -> Any:
    """Matrices that take points and give pixels counted from the middle of the volume (x, y, z) and of the detector."""
    moved = matrices.copy()
    moved[:, :, 3] += matrices[:, :, :3] @ np.array(middles)
    moved[:, 0] -= pixels[0] * moved[:, 2]
    if plain:
        moved[:, 1, 3] -= pixels[1]
    else:
        moved[:, 1] -= pixels[1] * moved[:, 2]
    return moved.astype(np.float32)


def backproject(
    projections: Any, volume: Any, matrices: Any, plain: bool, first: int, slices: int | None, first_row: int
) -> None:
    """`dtomo.kernels.voxels.backproject` of CuPy arrays, on the present stream."""
    import cupy

    height, width, deep = volume.shape
    views, columns, rows = projections.shape
    middles = ((width - 1) / 2, (height - 1) / 2, ((deep if slices is None else slices) - 1) / 2)
    pixels = ((columns - 1) / 2, (rows - 1) / 2 + first_row)
    table = cupy.asarray(centered(matrices, middles, pixels, plain))
    blocks = -(-deep // LANES), -(-width // WARPS), height
    for start in range(0, views, VIEWS):
        stop = min(views, start + VIEWS)
        add_views.launch(
            blocks, projections, volume, table, start, stop, int(plain),
            *(np.float32(m) for m in (middles[0], middles[1], middles[2] - first, pixels[0], pixels[1] - first_row)),
        )  # fmt: skip


@cuda_kernel(
    "void(float32[:,:,::1], float32[:,:,::1], float32[:,:,::1], int64, int64, int64, float32, float32, float32, "
    "float32, float32)",
    threads=(LANES, WARPS, 1),
)
def add_views(  # type: ignore[no-untyped-def]
    projections, volume, table, start, stop, plain, middle_x, middle_y, middle_z, middle_column, middle_row
):
    """Views start … stop - 1 to every voxel of the volume."""
    height, width, deep = volume.shape
    columns, rows = projections.shape[1], projections.shape[2]
    wide, high, one = np.float32(columns), np.float32(rows), np.float32(1)
    z0, x0, y0 = cuda.grid(3)
    on, across, down = cuda.gridsize(3)
    for y in range(y0, height, down):
        py = np.float32(y) - middle_y
        for x in range(x0, width, across):
            px = np.float32(x) - middle_x
            for z in range(z0, deep, on):
                pz = np.float32(z) - middle_z
                total = volume[y, x, z]
                for view in range(start, stop):
                    inverse = one / (
                        table[view, 2, 0] * px + table[view, 2, 1] * py + table[view, 2, 2] * pz + table[view, 2, 3]
                    )
                    column = table[view, 0, 0] * px + table[view, 0, 1] * py + table[view, 0, 2] * pz
                    column = (column + table[view, 0, 3]) * inverse + middle_column
                    row = table[view, 1, 0] * px + table[view, 1, 1] * py + table[view, 1, 2] * pz + table[view, 1, 3]
                    row = (row if plain else row * inverse) + middle_row
                    if column <= -one or row <= -one or column >= wide or row >= high:
                        continue
                    c, r = int(column + one) - 1, int(row + one) - 1
                    along, below = column - np.float32(c), row - np.float32(r)
                    value = np.float32(0)
                    for k in range(2):
                        weight = along if k else one - along
                        if c + k >= 0 and c + k < columns:
                            if r >= 0:
                                value += weight * (one - below) * projections[view, c + k, r]
                            if r + 1 < rows:
                                value += weight * below * projections[view, c + k, r + 1]
                    total += inverse * inverse * value
                volume[y, x, z] = total
