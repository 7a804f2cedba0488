"""Joseph's method where the rays of a column lie in a plane along z: lines of voxels meet lines of pixels.

There all rays of a column cross a plane of their main axis (x or y) between the same two lines of voxels, and their
heights are evenly apart: the two lines, interpolated, are read at these heights (`ray_lanes.read_lines`), or receive
what the pixels give (`ray_lanes.SPREAD`). Heights are whole numbers of 2^-24 voxels in both directions, so that the
weights agree; so are the steps from row to row, which puts the outermost of 2000 rows off by at most 3e-5 of a voxel.

Forward, a job is some columns of some views, which take what each tile of voxels gives them; a tile is packed once,
with zeros around its lines. Backward, a job is a tile, which takes what each view gives it; what reaches it of a view
is packed. Tile and pixels stay in the second-level cache. Every pixel and every voxel is summed by one job, in the
same order: the same bits on any number of threads.
"""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dtomo.kernels.bounds import room
from dtomo.kernels.compiling import kernel
from dtomo.kernels.ray_lanes import CLOSEST, FINER, SPREAD, read_lines
from dtomo.kernels.rays_cpu import RayTables, crossed
from dtomo.kernels.vectors import VECTOR
from dtomo.kernels.voxel_lanes import FRACTION, STEEPEST
from dtomo.threads import get_threads, run_jobs

COLUMNS = 128  # of one job, forward
JOBS = 4  # for each thread at least, forward
SUMS = 1 << 20  # sums of one job, forward
TILE = 16  # voxels along x and y of one job, back projection
DEEP = 512  # and along z
AROUND = 96  # zeros around a line: a tile's planes, a vector of rays and two of voxels beyond
ONE = 1 << FRACTION
EVEN = 1e-6
"""Voxels by which the rays of a column may leave their plane."""

_spread1, _spread2, _spread3, _spread4 = (SPREAD[n] for n in (1, 2, 3, 4))


@njit(inline="always")
def _trace(t, i, c, shape, ray):  # type: ignore[no-untyped-def]
    """Main axis of the rays of a column and its planes first : last.

    `ray`: 0 place across at plane 0, 1 what a plane adds; height at plane k of row r: 2 + 3 k + (4 + 5 k) r;
    direction along z over that along the main axis: 6 + 7 r; 8 square of the length between planes without z.
    """
    dx, dy = t.direction[i, 0] + c * t.direction_column[i, 0], t.direction[i, 1] + c * t.direction_column[i, 1]
    axis, across = (0, 1) if abs(dx) >= abs(dy) else (1, 0)
    main, aside = (dx, dy) if axis == 0 else (dy, dx)
    start = t.point[i, axis] + c * t.column[i, axis]
    slope = aside / main
    ray[0], ray[1] = t.point[i, across] + c * t.column[i, across] - slope * start, slope
    rise, rise_row = (t.direction[i, 2] + c * t.direction_column[i, 2]) / main, t.direction_row[i, 2] / main
    ray[2], ray[3] = t.point[i, 2] + c * t.column[i, 2] - rise * start, rise
    # of a parallel beam rows may begin at other planes, of others the direction may change, not both
    ray[4], ray[5] = t.row[i, 2] - rise * t.row[i, axis] - rise_row * start, rise_row
    ray[6], ray[7] = rise, rise_row
    ray[8] = t.voxel[axis] ** 2 + (slope * t.voxel[across]) ** 2
    first, last = 0.0, shape[axis] - 1.0
    source = start + t.behind * main
    if main > 0:
        first = max(first, source)
    else:
        last = min(last, source)
    first, last = crossed(first, last, ray[0], slope, shape[across])
    if not first <= last:
        return axis, 0, 0
    return axis, math.ceil(first), math.floor(last) + 1


@njit(inline="always")
def _heights(ray, k, rows):  # type: ignore[no-untyped-def]
    """(height of row 0, what a row adds) at plane k, whole numbers of 2^-24 voxels, exact in the middle row."""
    middle = rows // 2
    apart = ray[4] + ray[5] * k
    step = np.int64(np.rint(apart * ONE)) if rows > 1 else np.int64(ONE)
    return np.int64(np.rint((ray[2] + ray[3] * k + apart * middle) * ONE)) - middle * step, step


@njit(inline="always")
def _lengths(ray, rows, voxel, lengths):  # type: ignore[no-untyped-def]
    for r in range(rows):
        rise = (ray[6] + ray[7] * r) * voxel
        lengths[r] = math.sqrt(ray[8] + rise * rise)


@njit(inline="always")
def _met(places, planes, rows, high):  # type: ignore[no-untyped-def]
    """First of the vectors, and how many, that hold every row whose height is above -1 and below `high` on a plane.

    `places` has the height of row 0 and what a row adds of each plane: the first and the last row change with the
    planes in one direction, so that two planes tell.
    """
    low, most = rows, -1
    for k in (0, planes - 1):
        if planes == 0:
            continue
        place, apart = np.float64(places[k, 1]), 1.0 / np.float64(places[k, 2])
        one, two = (-ONE - place) * apart, (high - place) * apart
        low, most = min(low, int(max(0.0, min(one, two)))), max(most, int(min(rows - 1.0, max(one, two))))
    if low > most:
        return 0, 0
    return low // VECTOR, most // VECTOR + 1 - low // VECTOR


@njit(inline="always")
def _columns_seen(t, i, x0, x1, y0, y1, columns):  # type: ignore[no-untyped-def]
    """Columns first : last whose rays pass the rectangle with corners at these voxels; all, if that cannot be told."""
    least, most, sign = np.inf, -np.inf, 0.0
    dx, dy, ux, uy = t.direction[i, 0], t.direction[i, 1], t.column[i, 0], t.column[i, 1]
    for x in (x0, x1):
        for y in (y0, y1):
            px, py = x - t.point[i, 0], y - t.point[i, 1]
            depth = px * t.direction_column[i, 1] - py * t.direction_column[i, 0] + dx * uy - dy * ux
            if depth * sign < 0 or abs(depth) < 1e-9:
                return 0, columns
            sign = depth
            c = (py * dx - px * dy) / depth
            least, most = min(least, c), max(most, c)
    return max(0, math.floor(least) - 1), min(columns, math.floor(most) + 3)


@njit(inline="always")
def _tile(job, width, height, slices):  # type: ignore[no-untyped-def]
    """(x0, x1, y0, y1, z0, z1) of a tile."""
    across, down = (width + TILE - 1) // TILE, (height + TILE - 1) // TILE
    x0, y0, z0 = job % across * TILE, job // across % down * TILE, job // (across * down) * DEEP
    return x0, min(width, x0 + TILE), y0, min(height, y0 + TILE), z0, min(slices, z0 + DEEP)


@njit(inline="always")
def _pack_tile(volume, x0, x1, y0, y1, z0, z1, long, packed, at):  # type: ignore[no-untyped-def]
    """Lines of voxels along z, zeros where there is no voxel; what is around each line is left as it is."""
    height, width, _ = volume.shape
    for y in range(y0, y1):
        for x in range(x0, x1):
            place = at + ((y - y0) * (x1 - x0) + x - x0) * long + AROUND
            if 0 <= y < height and 0 <= x < width:
                packed[place : place + z1 - z0] = volume[y, x, z0:z1]
            else:
                packed[place : place + z1 - z0] = 0


@kernel
def _forward(jobs, t, numbers, views, volume, out):  # type: ignore[no-untyped-def]
    """Project ``volume[y, x, z]`` into ``out[view, column, row]``; a job is some columns of `views` views."""
    _, columns, rows = out.shape
    height, width, slices = volume.shape
    shape = (width, height, slices)
    tiles = (width + TILE - 1) // TILE * ((height + TILE - 1) // TILE) * ((slices + DEEP - 1) // DEEP)
    parts = (columns + COLUMNS - 1) // COLUMNS
    high = (rows + VECTOR - 1) // VECTOR * VECTOR
    long = (min(slices, DEEP) + 2 * AROUND + VECTOR - 1) // VECTOR * VECTOR
    packed, packed_at = room(np.empty(0, np.float32), (TILE + 2) ** 2 * long)
    sums, sums_at = room(np.empty(0, np.float32), views * COLUMNS * high)
    places, weights = np.empty((TILE + 1, 3), np.int64), np.empty((TILE + 1, 2), np.float32)
    rays, spans, lengths = np.empty((views, COLUMNS, 9)), np.empty((views, COLUMNS, 3), np.int64), np.empty(rows)
    deep = -1
    for job in range(jobs[0], jobs[1]):
        i0, c0 = job // parts * views, job % parts * COLUMNS
        count, wide = min(len(numbers) - i0, views), min(columns - c0, COLUMNS)
        sums[sums_at : sums_at + count * COLUMNS * high] = 0
        for v in range(count):
            for c in range(wide):
                spans[v, c] = _trace(t, numbers[i0 + v], c0 + c, shape, rays[v, c])
        for tile in range(tiles):
            x0, x1, y0, y1, z0, z1 = _tile(tile, width, height, slices)
            left, top = x0 - (x0 == 0), y0 - (y0 == 0)
            line, ready = x1 + 1 - left, False
            if z1 - z0 != deep:
                packed[:], deep = 0, z1 - z0
            for v in range(count):
                start, stop = _columns_seen(t, numbers[i0 + v], left, x1, top, y1, columns)
                for c in range(max(start, c0) - c0, min(stop, c0 + wide) - c0):
                    ray, axis = rays[v, c], spans[v, c, 0]
                    k0, k1, j0, j1 = (x0, x1, top, y1) if axis == 0 else (y0, y1, left, x1)
                    planes = 0
                    for k in range(max(spans[v, c, 1], k0), min(spans[v, c, 2], k1)):
                        p = ray[0] + ray[1] * k
                        j = math.floor(p)
                        weights[planes, 1] = p - j
                        weights[planes, 0] = 1 - weights[planes, 1]
                        near = (j - top) * line + k - left if axis == 0 else (k - top) * line + j - left
                        places[planes, 0] = packed_at + near * long + AROUND
                        places[planes, 1], places[planes, 2] = _heights(ray, k, rows)
                        places[planes, 1] -= np.int64(z0) << FRACTION
                        planes += j0 <= j < j1
                    first, vectors = _met(places, planes, rows, (z1 - z0) * ONE)
                    if vectors == 0:
                        continue
                    if not ready:
                        _pack_tile(volume, left, x1 + 1, top, y1 + 1, z0, z1, long, packed, packed_at)
                        ready = True
                    for k in range(planes):
                        places[k, 1] += first * VECTOR * places[k, 2]
                    read_lines(
                        sums, sums_at + (v * COLUMNS + c) * high + first * VECTOR, packed,
                        line * long if axis == 0 else long, places, weights, planes, vectors,
                    )  # fmt: skip
        for v in range(count):
            for c in range(wide):
                _lengths(rays[v, c], rows, t.voxel[2], lengths)
                place = sums_at + (v * COLUMNS + c) * high
                for r in range(rows):
                    out[numbers[i0 + v], c0 + c, r] = sums[place + r] * lengths[r]


@njit(inline="always")
def _pack(column, lengths, apart, turned, long, packed, at):  # type: ignore[no-untyped-def]
    """Pixels times lengths, every `apart`-th in a line of its own, zeros around; last row first if `turned`."""
    rows = column.size
    packed[at : at + apart * long] = 0
    for s in range(apart):
        place = at + s * long + AROUND
        if apart == 1 and not turned:
            for r in range(rows):
                packed[place + r] = column[r] * lengths[r]
        else:
            for q in range((rows - s + apart - 1) // apart):
                r = rows - 1 - q * apart - s if turned else q * apart + s
                packed[place + q] = column[r] * lengths[r]


@njit(inline="always")
def _spread(sums, near_at, far_at, packed, source, near, far, place, step, count, lanes):  # type: ignore[no-untyped-def]
    """The line of `count` pixels at `source` to two lines of `lanes` voxels."""
    reach = place + (count - 1) * step
    first = max(0, (place >> FRACTION) // VECTOR)
    vectors = min(lanes // VECTOR, ((reach >> FRACTION) + 1) // VECTOR + 1) - first
    if reach <= -ONE or vectors <= 0:
        return
    skipped = first * VECTOR
    place -= np.int64(skipped) << FRACTION
    apart = ONE / np.float64(step)
    back = np.int64(np.rint((-1.0 - place / ONE) * (apart * (1 << FINER))))
    back_step = np.int64(np.rint(apart * (1 << FINER)))
    near_at, far_at = near_at + skipped, far_at + skipped
    pixels = math.ceil(2 * apart - EVEN)
    if pixels == 2:
        _spread2(sums, near_at, far_at, packed, source, near, far, place, step, back, back_step, vectors)
    elif pixels == 3:
        _spread3(sums, near_at, far_at, packed, source, near, far, place, step, back, back_step, vectors)
    elif pixels == 1:
        _spread1(sums, near_at, far_at, packed, source, near, far, place, step, back, back_step, vectors)
    else:
        _spread4(sums, near_at, far_at, packed, source, near, far, place, step, back, back_step, vectors)


@kernel
def _adjoint(jobs, t, numbers, apart, values, volume):  # type: ignore[no-untyped-def]
    """Add ``values[view, column, row]`` to ``volume[y, x, z]``; a job is a tile of voxels."""
    _, columns, rows = values.shape
    height, width, slices = volume.shape
    shape = (width, height, slices)
    packed, sums = np.empty(0, np.float32), np.empty(0, np.float32)
    ray, lengths = np.empty(9), np.empty(rows)
    for job in range(jobs[0], jobs[1]):
        x0, x1, y0, y1, z0, z1 = _tile(job, width, height, slices)
        lanes = (z1 - z0 + VECTOR - 1) // VECTOR * VECTOR
        # a line of voxels more on every side: rays that pass beside the tile
        wide = x1 - x0 + 2
        sums, sums_at = room(sums, wide * (y1 - y0 + 2) * lanes)
        sums[sums_at : sums_at + wide * (y1 - y0 + 2) * lanes] = 0
        for number in range(numbers.size):
            i, many = numbers[number], apart[number]
            long = ((rows + many - 1) // many + 2 * AROUND + VECTOR - 1) // VECTOR * VECTOR
            packed, at = room(packed, many * long)
            left, right = _columns_seen(t, i, x0 - 1, x1, y0 - 1, y1, columns)
            for c in range(left, right):
                axis, first, last = _trace(t, i, c, shape, ray)
                k0, k1, j0, j1 = (x0, x1, y0, y1) if axis == 0 else (y0, y1, x0, x1)
                first, last = max(first, k0), min(last, k1)
                ready = False
                for k in range(first, last):
                    p = ray[0] + ray[1] * k
                    j = math.floor(p)
                    if j < j0 - 1 or j >= j1:
                        continue
                    place, step = _heights(ray, k, rows)
                    turned = step < 0
                    if turned:
                        place, step = place + (rows - 1) * step, -step
                    if not ready:
                        _lengths(ray, rows, t.voxel[2], lengths)
                        _pack(values[i, c], lengths, many, turned, long, packed, at)
                        ready = True
                    place -= np.int64(z0) << FRACTION
                    far = (p - j) / ONE
                    near = 1.0 / ONE - far
                    line = (j - y0 + 1) * wide + k - x0 + 1 if axis == 0 else (k - y0 + 1) * wide + j - x0 + 1
                    near_at = sums_at + line * lanes
                    far_at = near_at + (wide * lanes if axis == 0 else lanes)
                    for s in range(many):
                        _spread(
                            sums, near_at, far_at, packed, at + s * long + AROUND, np.float32(near), np.float32(far),
                            place + s * step, many * step, (rows - s + many - 1) // many, lanes,
                        )  # fmt: skip
        for y in range(y0, y1):
            for x in range(x0, x1):
                place = sums_at + ((y - y0 + 1) * wide + x - x0 + 1) * lanes
                volume[y, x, z0:z1] += sums[place : place + z1 - z0]


def upright(tables: RayTables, shape: tuple[int, int, int], columns: int, rows: int) -> NDArray[np.int64]:
    """Of each view: 0 where its rays are not as needed here, else into how many lines its rows are to be parted.

    `shape` is (x, y, z). Needed: rays of a column lie in a plane along z (to `EVEN` of a voxel), run more along x or y
    than along z, and are `CLOSEST` to `STEEPEST` voxels apart where they meet the volume, or so many times closer.
    """
    t = tables
    found = np.zeros(len(t.point), np.int64)
    c, ends = np.arange(columns)[:, None], np.array([0, rows - 1])
    for i in range(len(found)):
        along = t.direction[i] + c * t.direction_column[i]
        flat = np.abs(along[:, :2]).max(1, keepdims=True)
        rise = np.abs(along[:, 2:] + ends * t.direction_row[i, 2])
        if _leaves_plane(t, i) * (rows - 1) > EVEN or (rise > flat).any():
            continue
        if rows == 1:
            found[i] = 1
            continue
        apart = _rows_apart(t, i, shape)
        if apart.min() * apart.max() > 0:
            apart = np.abs(apart)
            parts = max(1, math.ceil(CLOSEST / apart.min()))
            found[i] = parts if apart.max() < STEEPEST and parts * apart.max() < 4 else 0
    return found


def _leaves_plane(t: RayTables, i: int) -> float:
    """Voxels by which the ray of the next row is beside the plane along z of the one before."""
    row, along = t.row[i, :2], t.direction[i, :2]
    if t.direction_column[i].any() or t.direction_row[i].any():
        return float(np.abs(row).max())
    return float(abs(row[0] * along[1] - row[1] * along[0]) / max(np.abs(along).max(), 1e-300))


def _rows_apart(t: RayTables, i: int, shape: tuple[int, int, int]) -> NDArray[np.float64]:
    """How far, along z, the rays of neighbouring rows are apart at the four edges of the volume along z, in voxels."""
    along = t.direction[i]
    if not t.direction_row[i].any():
        main = int(np.argmax(np.abs(along[:2])))
        return np.array([t.row[i, 2] - t.row[i, main] * along[2] / along[main]])
    normal = np.array([-t.column[i, 1], t.column[i, 0]])
    edges = np.array([(x, y) for x in (-1, shape[0]) for y in (-1, shape[1])])
    return t.row[i, 2] * (1 + (edges - t.point[i, :2]) @ normal / (along[:2] @ normal))


def forward(
    volume: NDArray[np.float32], projections: NDArray[np.float32], tables: RayTables, numbers: NDArray[np.int64],
    threads: int | None = None,
) -> None:  # fmt: skip
    """Project ``volume[y, x, z]`` into views `numbers` of ``projections[view, column, row]`` (overwritten)."""
    columns, rows = projections.shape[1:]
    parts = -(-columns // COLUMNS)
    views = max(1, min(SUMS // (COLUMNS * rows), len(numbers) * parts // (JOBS * (threads or get_threads()))))

    def work(span: tuple[int, int]) -> None:
        _forward(span, tables, numbers, views, volume, projections)

    run_jobs(work, -(-len(numbers) // views) * parts, threads)


def adjoint(
    projections: NDArray[np.float32], volume: NDArray[np.float32], tables: RayTables, numbers: NDArray[np.int64],
    apart: NDArray[np.int64], threads: int | None = None,
) -> None:  # fmt: skip
    """Add views `numbers` of ``projections[view, column, row]`` to ``volume[y, x, z]``; `apart` is of `upright`."""
    height, width, slices = volume.shape

    def work(span: tuple[int, int]) -> None:
        _adjoint(span, tables, numbers, apart, projections, volume)

    run_jobs(work, -(-height // TILE) * -(-width // TILE) * -(-slices // DEEP), threads)
