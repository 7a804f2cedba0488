"""Voxel-driven back projection of flat detectors on CPUs: each voxel takes from every view what is seen where it is.

Memory layout: volume ``[y, x, z]`` and projections ``[view, column, row]``, float32, z and row innermost. A job is a
tile of voxels, which stays in the second-level cache for all views; what it sees of a view is first packed, with zeros
around. Where columns and depth do not depend on z (detectors whose rows run along z), a line of voxels along z is
interpolated from two columns of pixels, at places evenly apart (`voxel_lanes.add_line`).

Places are whole numbers of 2^-24 pixels or are found for every voxel anew, and views are added one after the other: a
voxel has the same bits in any slab and on any number of threads.
"""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dtomo.kernels.bounds import room
from dtomo.kernels.compiling import kernel
from dtomo.kernels.vectors import VECTOR
from dtomo.kernels.voxel_lanes import FRACTION, STEEPEST, WINDOW, add_line
from dtomo.threads import run_jobs

TILE = 16  # voxels along x and y of a job
DEEP = 512  # and along z
ONE = 1 << FRACTION
AROUND = 2 * WINDOW  # zeros around what is packed of a view, in rows


@njit(inline="always")
def _seen(m, x, y, z, plain):  # type: ignore[no-untyped-def]
    """(column, row, 1 / w) of a point; the row as it is if `plain`."""
    inverse = 1.0 / (m[2, 0] * x + m[2, 1] * y + m[2, 2] * z + m[2, 3])
    row = m[1, 0] * x + m[1, 1] * y + m[1, 2] * z + m[1, 3]
    return (m[0, 0] * x + m[0, 1] * y + m[0, 2] * z + m[0, 3]) * inverse, row if plain else row * inverse, inverse


@njit(inline="always")
def _bounds(m, plain, x0, x1, y0, y1, z0, z1, found):  # type: ignore[no-untyped-def]
    """Pixels that the box with corners at these voxels is seen in: first column, beyond the last, the same of rows."""
    found[0], found[1], found[2], found[3] = np.inf, -np.inf, np.inf, -np.inf
    for x in (x0, x1):
        for y in (y0, y1):
            for z in (z0, z1):
                column, row, _ = _seen(m, x, y, z, plain)
                found[0], found[1] = min(found[0], column), max(found[1], column)
                found[2], found[3] = min(found[2], row), max(found[3], row)


@njit(inline="always")
def _beside(found, columns, top, bottom):  # type: ignore[no-untyped-def]
    """Whether pixels found by `_bounds` all lie beyond the rows top … bottom - 1 and the columns there are."""
    return found[1] <= -1 or found[0] >= columns or found[3] <= top - 1 or found[2] >= bottom


@njit(inline="always")
def _pack(view, first_row, c0, columns, r0, rows, packed, at):  # type: ignore[no-untyped-def]
    """Columns c0 … and rows r0 … (of the whole detector) one column after the other, zeros where there is none."""
    wide, high = view.shape
    start = min(max(first_row, r0), r0 + rows)
    stop = max(start, min(first_row + high, r0 + rows))
    for c in range(columns):
        place = at + c * rows
        if c0 + c < 0 or c0 + c >= wide:
            packed[place : place + rows] = 0
            continue
        packed[place : place + start - r0] = 0
        packed[place + start - r0 : place + stop - r0] = view[c0 + c, start - first_row : stop - first_row]
        packed[place + stop - r0 : place + rows] = 0


@njit(inline="always")
def _tile(job, volume, tile, deep):  # type: ignore[no-untyped-def]
    """(y0, y1, x0, x1, z0, z1) of a job."""
    height, width, slices = volume.shape
    across, down = (width + tile - 1) // tile, (height + tile - 1) // tile
    x0, y0, z0 = job % across * tile, job // across % down * tile, job // (across * down) * deep
    return y0, min(height, y0 + tile), x0, min(width, x0 + tile), z0, min(slices, z0 + deep)


@njit(inline="always")
def _load(sums, at, lanes, volume, y0, y1, x0, x1, z0, z1):  # type: ignore[no-untyped-def]
    for y in range(y0, y1):
        for x in range(x0, x1):
            place = at + ((y - y0) * (x1 - x0) + x - x0) * lanes
            sums[place : place + z1 - z0] = volume[y, x, z0:z1]
            sums[place + z1 - z0 : place + lanes] = 0


@njit(inline="always")
def _store(sums, at, lanes, volume, y0, y1, x0, x1, z0, z1):  # type: ignore[no-untyped-def]
    for y in range(y0, y1):
        for x in range(x0, x1):
            place = at + ((y - y0) * (x1 - x0) + x - x0) * lanes
            volume[y, x, z0:z1] = sums[place : place + z1 - z0]


@njit(inline="always")
def _line_tables(m, x0, x1, y, z, plain, c0, r0, rows, line, place, step, near, far):  # type: ignore[no-untyped-def]
    """What `add_line` takes for the voxels x0 … x1 - 1 of a row, from slice z of the whole volume on."""
    for x in range(x1 - x0):
        column, row, inverse = _seen(m, x0 + x, y, 0, plain)
        step[x] = np.int64(np.rint((m[1, 2] if plain else m[1, 2] * inverse) * ONE))
        place[x] = np.int64(np.rint(row * ONE)) + z * step[x] - (np.int64(r0) << FRACTION)
        c = np.floor(column)
        far[x] = (column - c) * inverse * inverse
        near[x] = inverse * inverse - (column - c) * inverse * inverse
        line[x] = (np.int64(c) - c0) * rows


@kernel
def _upright(jobs, projections, volume, matrices, plain, first, first_row, tile, deep):  # type: ignore[no-untyped-def]
    """Tiles jobs[0] <= job < jobs[1] where column and depth do not depend on z."""
    packed, sums, found = np.empty(0, np.float32), np.empty(0, np.float32), np.empty(4)
    line, place, step = np.empty(tile, np.int64), np.empty(tile, np.int64), np.empty(tile, np.int64)
    near, far = np.empty(tile, np.float32), np.empty(tile, np.float32)
    for job in range(jobs[0], jobs[1]):
        y0, y1, x0, x1, z0, z1 = _tile(job, volume, tile, deep)
        vectors = (z1 - z0 + VECTOR - 1) // VECTOR
        lanes, z = vectors * VECTOR, first + z0
        size = (y1 - y0) * (x1 - x0) * lanes
        sums, sums_at = room(sums, size)
        _load(sums, sums_at, lanes, volume, y0, y1, x0, x1, z0, z1)
        for view in range(matrices.shape[0]):
            m = matrices[view]
            _bounds(m, plain, x0, x1 - 1, y0, y1 - 1, z, z + lanes - 1, found)
            if _beside(found, projections.shape[1], first_row, first_row + projections.shape[2]):
                continue
            c0, r0 = math.floor(found[0]) - 1, math.floor(found[2]) - 1
            columns, rows = math.floor(found[1]) + 3 - c0, math.floor(found[3]) + AROUND - r0
            rows += -rows % VECTOR
            packed, at = room(packed, columns * rows)
            _pack(projections[view], first_row, c0, columns, r0, rows, packed, at)
            for y in range(y0, y1):
                _line_tables(m, x0, x1, y, z, plain, c0, r0, rows, line, place, step, near, far)
                to = sums_at + (y - y0) * (x1 - x0) * lanes
                for x in range(x1 - x0):
                    start = at + line[x]
                    add_line(
                        sums, to + x * lanes, packed, start, start + rows, near[x], far[x], place[x], step[x], vectors
                    )
        _store(sums, sums_at, lanes, volume, y0, y1, x0, x1, z0, z1)


@kernel
def _any(jobs, projections, volume, matrices, plain, first, first_row, tile, deep):  # type: ignore[no-untyped-def]
    """Tiles jobs[0] <= job < jobs[1], any detector."""
    packed, sums, found = np.empty(0, np.float32), np.empty(0, np.float32), np.empty(4)
    places = np.empty(deep, np.int64)
    along, down, weights = np.empty(deep, np.float32), np.empty(deep, np.float32), np.empty(deep, np.float32)
    for job in range(jobs[0], jobs[1]):
        y0, y1, x0, x1, z0, z1 = _tile(job, volume, tile, deep)
        lanes, z = z1 - z0, first + z0
        size = (y1 - y0) * (x1 - x0) * lanes
        sums, sums_at = room(sums, size)
        _load(sums, sums_at, lanes, volume, y0, y1, x0, x1, z0, z1)
        for view in range(matrices.shape[0]):
            m = matrices[view]
            _bounds(m, plain, x0, x1 - 1, y0, y1 - 1, z, z + lanes - 1, found)
            if _beside(found, projections.shape[1], first_row, first_row + projections.shape[2]):
                continue
            c0, r0 = math.floor(found[0]) - 1, math.floor(found[2]) - 1
            columns, rows = math.floor(found[1]) + 3 - c0, math.floor(found[3]) + 3 - r0
            packed, at = room(packed, columns * rows)
            _pack(projections[view], first_row, c0, columns, r0, rows, packed, at)
            for y in range(y0, y1):
                for x in range(x0, x1):
                    for k in range(lanes):
                        column, row, inverse = _seen(m, x, y, z + k, plain)
                        c, r = math.floor(column), math.floor(row)
                        along[k], down[k] = column - c, row - r
                        places[k] = at + (np.int64(c) - c0) * rows + np.int64(r) - r0
                        weights[k] = inverse * inverse
                    to = sums_at + ((y - y0) * (x1 - x0) + x - x0) * lanes
                    for k in range(lanes):
                        place, f = places[k], down[k]
                        near = packed[place] + f * (packed[place + 1] - packed[place])
                        place += rows
                        far = packed[place] + f * (packed[place + 1] - packed[place])
                        sums[to + k] += weights[k] * (near + along[k] * (far - near))
        _store(sums, sums_at, lanes, volume, y0, y1, x0, x1, z0, z1)


def upright(matrices: NDArray[np.float64], shape: tuple[int, int, int], plain: bool) -> bool:
    """Whether column and depth of all voxels of a volume ``[y, x, z]`` are those of their (x, y), as `_upright` needs.

    Up to 1e-6 of a pixel; and whether its places are close enough together.
    """
    height, width, slices = shape
    corners = np.array([(x, y, 0, 1) for x in (0, width - 1) for y in (0, height - 1)], np.float64)
    depth = (matrices[:, 2] @ corners.T).min(1)
    moved = np.abs(matrices[:, [0, 2], 2]) * slices / depth[:, None]
    steep = np.abs(matrices[:, 1, 2]) / (1.0 if plain else depth)
    reach = np.abs(matrices[:, 0]).max(initial=1.0)
    return bool((moved[:, 0] < 1e-6).all() and (moved[:, 1] * reach < 1e-6).all() and (steep < STEEPEST).all())


def backproject(
    projections: NDArray[np.float32], volume: NDArray[np.float32], matrices: NDArray[np.float64], *,
    plain: bool = False, first: int = 0, slices: int | None = None, first_row: int = 0, threads: int | None = None,
) -> None:  # fmt: skip
    """`dtomo.kernels.voxels.backproject` on CPUs."""
    height, width, deep = volume.shape
    whole = (height, width, deep if slices is None else slices)
    work = _upright if upright(matrices, whole, plain) else _any
    jobs = -(-height // TILE) * -(-width // TILE) * -(-deep // DEEP)
    run_jobs(lambda span: work(span, projections, volume, matrices, plain, first, first_row, TILE, DEEP), jobs, threads)
