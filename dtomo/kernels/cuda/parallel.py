"""Parallel-beam projector and exactly matched back-projector for many slices at once, on CUDA devices.

Memory layout as on CPUs: volume ``[y, x, z]``, sinogram ``[angle, column, z]``, float32, z innermost. The 32 lanes of a
warp are 32 neighbouring slices, so that every load is one line of 128 bytes; a thread holds 1, 2 or 4 such lanes,
which share the weights of one ray (or of 4 voxels). What remains, up to `FEW` slices, is done plane by plane with the
lanes across columns or voxels.

No shared memory is tiled: each interpolation is two loads and two multiply-adds, the limit is the first-level cache,
and blocks are shaped so that it can serve most loads. A block holds neighbouring rays of neighbouring angles (or a
square of voxels) whose warps walk in step. One launch takes 64 rows of the volume (or 64 angles): what all blocks read
meanwhile is meant to stay in the second-level cache, for slices of any size.

Weights are those of `weights`, in whole numbers. Both directions only gather. The order of summation of a ray or voxel
is row after row, angle after angle, with a sum of its own for each launch: the same bits alone, in any slab and grid.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dtomo.errors import UserError
from dtomo.kernels.cuda import parallel_adjoint, parallel_forward
from dtomo.kernels.cuda.compiling import MOST_BLOCKS, CudaKernel
from dtomo.kernels.cuda.parallel_adjoint import ADJOINT, VOXELS, adjoint_planes
from dtomo.kernels.cuda.parallel_forward import COLUMNS, FORWARD, LANES, forward_planes
from dtomo.kernels.cuda.tables import device_tables
from dtomo.kernels.weights import Rays

FEW = 8
"""Remaining slices that are done plane by plane."""


class Grid(NamedTuple):
    """How much runs at once. Results do not depend on it."""

    warps: int | None = None  # of a block: a multiple of `COLUMNS`; None: the kernel's own
    most: int = MOST_BLOCKS

    def of(self, kernel: CudaKernel) -> tuple[int, int]:
        """Threads of a block of a kernel."""
        return LANES, self.warps or kernel.threads[1]

    def blocks(self, across: int, deep: int, count: int) -> int:
        """One for each tile of each group of slices, if there may be so many."""
        return min(across * deep * count, self.most)


GRID = Grid()


def _groups(slices: int) -> Iterator[tuple[int, int, int, int]]:
    """(lanes of a thread, first slice, lanes of a warp that are slices, groups) covering all slices but a few."""
    z = 0
    for groups in (4, 2, 1):
        count = (slices - z) // (groups * LANES)
        if count:
            yield groups, z, LANES, count
        z += count * groups * LANES
    if slices - z > FEW:
        yield 1, z, slices - z, 1


def few_slices(slices: int) -> int:
    """How many slices at the end are done plane by plane."""
    return slices % LANES if slices % LANES <= FEW else 0


def forward_tiles(angles: int, columns: int, warps: int) -> tuple[int, int]:
    """Blocks of the kernels ``forward`` for one group of slices: across neighbouring columns, and angles."""
    return -(-columns // COLUMNS), -(-angles // (warps // COLUMNS))


def adjoint_tiles(height: int, width: int, warps: int) -> tuple[int, int]:
    """Blocks of the kernels ``adjoint`` for one group of slices: rectangles of voxels, along x and y."""
    return -(-width // (2 * VOXELS)), -(-height // (warps // 2))


def forward(volume: Any, sinogram: Any, rays: Rays, grid: Grid = GRID) -> None:
    """Project ``volume[y, x, z]`` into ``sinogram[angle, column, z]`` (overwritten), on the present stream.

    Both C-contiguous float32 CuPy arrays. Complex data are two slices each. `rays` are Joseph's.

    Raises
    ------
    UserError
        A plane (x, z) of more than 2^31 / 9 voxels.
    """
    (height, width, slices), (angles, columns) = volume.shape, sinogram.shape[:2]
    check_steps((parallel_forward.STRIP + 1) * max(width, height) * slices)
    tables, few = device_tables(rays, columns), few_slices(slices)
    sinogram.fill(0)
    source, target, tops = volume.reshape(-1), sinogram.reshape(-1), range(0, max(height, width), parallel_forward.ROWS)
    for groups, z, valid, count in _groups(slices):
        kernel = FORWARD[groups]
        threads = grid.of(kernel)
        blocks = grid.blocks(*forward_tiles(angles, columns, threads[1]), count)
        for top in tops:
            kernel.launch(
                blocks, source, target, width, height, columns, slices, z, valid, count, top, tables.forward,
                tables.scale, threads=threads,
            )  # fmt: skip
    if few:
        planes, lines = _both_ways(volume[..., slices - few :]), _zeros((few, angles, columns))
        threads = grid.of(forward_planes)
        blocks = grid.blocks(-(-columns // LANES), -(-angles // threads[1]), few)
        for top in tops:
            forward_planes.launch(
                blocks, planes, lines.reshape(-1), width, height, columns, few, top, tables.forward, tables.scale,
                threads=threads,
            )  # fmt: skip
        sinogram[..., slices - few :] = np.moveaxis(lines, 0, -1)


def adjoint(sinogram: Any, volume: Any, rays: Rays, grid: Grid = GRID) -> None:
    """Back-project ``sinogram[angle, column, z]`` into ``volume[y, x, z]``: the exact transpose of `forward`.

    With `weights.interpolation` rays it is the back projection of filtered back projection instead.

    Raises
    ------
    UserError
        Lines (column, z) of more than 2^31 values.
    """
    (height, width, slices), (angles, columns) = volume.shape, sinogram.shape[:2]
    check_steps(columns * slices)
    tables, few = device_tables(rays, columns), few_slices(slices)
    volume.fill(0)
    source, target = sinogram.reshape(-1), volume.reshape(-1)
    step = parallel_adjoint.ANGLES
    parts = [(first, min(angles, first + step)) for first in range(0, angles, step)]
    for groups, z, valid, count in _groups(slices):
        kernel = ADJOINT[groups]
        threads = grid.of(kernel)
        blocks = grid.blocks(*adjoint_tiles(height, width, threads[1]), count)
        for first, last in parts:
            kernel.launch(
                blocks, source, target, width, height, columns, slices, z, valid, count, rays.pairs, first, last,
                tables.adjoint, tables.scale, threads=threads,
            )  # fmt: skip
    if few:
        lines, planes = _planes(sinogram[..., slices - few :]), _zeros((few, height, width))
        threads = grid.of(adjoint_planes)
        blocks = grid.blocks(-(-width // LANES), -(-height // (threads[1] * VOXELS)), few)
        for first, last in parts:
            adjoint_planes.launch(
                blocks, lines, planes.reshape(-1), width, height, columns, few, rays.pairs, first, last,
                tables.adjoint, tables.scale, threads=threads,
            )  # fmt: skip
        volume[..., slices - few :] = np.moveaxis(planes, 0, -1)


def check_steps(largest: int) -> None:
    """Steps from one row or column to its neighbours are computed in 32 bits; places in 64."""
    if largest >= 2**31:
        raise UserError(f"a slab with {largest} values in rows that lie side by side is too thick; use fewer slices")


def _planes(array: Any) -> Any:
    """``[…, …, plane]`` as planes one after the other, flat."""
    import cupy

    return cupy.ascontiguousarray(np.moveaxis(array, -1, 0)).reshape(-1)


def _both_ways(volume: Any) -> Any:
    """Planes of ``volume[y, x, plane]``, and then the same planes transposed, flat: samples of a row side by side."""
    import cupy

    return cupy.concatenate([_planes(volume), _planes(volume.swapaxes(0, 1))])


def _zeros(shape: tuple[int, ...]) -> Any:
    import cupy

    return cupy.zeros(shape, np.float32)
