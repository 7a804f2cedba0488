"""Rays of any direction through a volume on CPUs, one after the other (see `dtomo.kernels.rays`).

A ray meets the planes of its main axis (the one along which it crosses most voxels) once each; there the four voxels
around it are interpolated (P. M. Joseph, IEEE Trans. Med. Imaging 1, 192-196, 1982, in three dimensions). Positions are
computed in float64 by one function for both directions, so that the weights agree to the last bit.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dtomo.kernels.compiling import kernel
from dtomo.threads import get_threads, run_jobs

JOBS = 2  # of each thread, back projection: runs of planes
COLUMNS = 16  # of one job, forward


class RayTables(NamedTuple):
    """Rays in voxels: from ``point + c column + r row`` along ``direction + c direction_column + r direction_row``.

    Of each view ``(views, 3)``, (x, y, z); positions are indices of voxels. Rays reach from `behind` times their
    direction to infinity.
    """

    point: NDArray[np.float64]
    column: NDArray[np.float64]
    row: NDArray[np.float64]
    direction: NDArray[np.float64]
    direction_column: NDArray[np.float64]
    direction_row: NDArray[np.float64]
    voxel: NDArray[np.float64]  # (x, y, z): a length along the ray is that of direction * voxel
    behind: float


@njit(inline="always")
def crossed(first, last, at, slope, size):  # type: ignore[no-untyped-def]
    """The part of planes first … last in which a place, `at` at plane 0, lies between -1 and `size`."""
    if slope == 0:
        return first, last if -1 < at < size else -1.0
    one, two = (-1 - at) / slope, (size - at) / slope
    return max(first, min(one, two)), min(last, max(one, two))


@kernel
def _ray(t, i, c, r, shape, wanted, ray):  # type: ignore[no-untyped-def]
    """Main axis of a ray and its planes first : last, none if another axis is `wanted` (-1: any).

    `ray` will hold, of the axes x, y, z: 0-2 position at plane 0, 3-5 slope, 6 length between planes.
    """
    axis, size = 0, 0.0
    for a in range(3):
        ray[3 + a] = t.direction[i, a] + c * t.direction_column[i, a] + r * t.direction_row[i, a]
        if abs(ray[3 + a]) > size:
            axis, size = a, abs(ray[3 + a])
    if wanted not in (axis, -1):
        return axis, 0, 0
    length = (ray[3] * t.voxel[0]) ** 2 + (ray[4] * t.voxel[1]) ** 2 + (ray[5] * t.voxel[2]) ** 2
    main = ray[3 + axis]
    start = t.point[i, axis] + c * t.column[i, axis] + r * t.row[i, axis]
    ray[6] = math.sqrt(length) / size
    first, last = 0.0, shape[axis] - 1.0
    source = start + t.behind * main
    if main > 0:
        first = max(first, source)
    else:
        last = min(last, source)
    for a in range(3):
        slope = ray[3 + a] / main
        at = t.point[i, a] + c * t.column[i, a] + r * t.row[i, a] - slope * start
        ray[a], ray[3 + a] = at, slope
        if a != axis:
            first, last = crossed(first, last, at, slope, shape[a])
    if not first <= last:
        return axis, 0, 0
    return axis, math.ceil(first), math.floor(last) + 1


@njit(inline="always")
def _cell(p, q):  # type: ignore[no-untyped-def]
    """(j, m, f, g): the voxel before a place and how far behind it the place is, of places from 0 on."""
    j, m = np.int64(p), np.int64(q)
    return j, m, np.float32(p - j), np.float32(q - m)


@njit(inline="always")
def _at_the_edge(p, q, n_b, n_s):  # type: ignore[no-untyped-def]
    """The same in float64 of any place, and which of the voxels around it there are: near and far on each axis."""
    j, m = math.floor(p), math.floor(q)
    return j, m, p - j, q - m, 0 <= j < n_b, -1 <= j < n_b - 1, 0 <= m < n_s, -1 <= m < n_s - 1


@kernel
def _forward(jobs, t, numbers, volume, shape, out):  # type: ignore[no-untyped-def]
    """Project ``volume[y, x, z]``, flat, into ``out[view, column, row]``; a job is some columns of a view."""
    _, columns, rows = out.shape
    parts = (columns + COLUMNS - 1) // COLUMNS
    ray = np.empty(7)
    steps = (shape[2], shape[0] * shape[2], 1)
    for job in range(jobs[0], jobs[1]):
        i, c0 = numbers[job // parts], job % parts * COLUMNS
        for c in range(c0, min(columns, c0 + COLUMNS)):
            for r in range(rows):
                axis, first, last = _ray(t, i, c, r, shape, -1, ray)
                b, s = (1, 2) if axis == 0 else ((0, 2) if axis == 1 else (0, 1))
                at_b, at_s, slope_b, slope_s = ray[b], ray[s], ray[3 + b], ray[3 + s]
                n_b, n_s, step, step_b, step_s = shape[b], shape[s], steps[axis], steps[b], steps[s]
                inner_b, inner_s = n_b - 1.0, n_s - 1.0
                total = 0.0
                for k in range(first, last):
                    p, q = at_b + slope_b * k, at_s + slope_s * k
                    if 0 <= p < inner_b and 0 <= q < inner_s:
                        j, m, f, g = _cell(p, q)
                        place = np.uint64(k * step + j * step_b + m * step_s)
                        one, two = volume[place], volume[place + np.uint64(step_s)]
                        place += np.uint64(step_b)
                        three, four = volume[place], volume[place + np.uint64(step_s)]
                        near, far = one + g * (two - one), three + g * (four - three)
                        total += near + f * (far - near)
                        continue
                    j, m, f, g, near_b, far_b, near_s, far_s = _at_the_edge(p, q, n_b, n_s)
                    place = k * step + j * step_b + m * step_s
                    if near_b and near_s:
                        total += (1 - f) * (1 - g) * volume[place]
                    if near_b and far_s:
                        total += (1 - f) * g * volume[place + step_s]
                    if far_b and near_s:
                        total += f * (1 - g) * volume[place + step_b]
                    if far_b and far_s:
                        total += f * g * volume[place + step_b + step_s]
                out[i, c, r] = total * ray[6]


@kernel
def _adjoint(jobs, t, numbers, planes, values, volume, shape, main):  # type: ignore[no-untyped-def]
    """Back-project the rays of main axis `main` into ``volume[y, x, z]``, flat; a job is some planes of that axis."""
    _, columns, rows = values.shape
    ray = np.empty(7)
    steps = (shape[2], shape[0] * shape[2], 1)
    b, s = (1, 2) if main == 0 else ((0, 2) if main == 1 else (0, 1))
    n_b, n_s, step, step_b, step_s = shape[b], shape[s], steps[main], steps[b], steps[s]
    inner_b, inner_s = n_b - 1.0, n_s - 1.0
    for job in range(jobs[0], jobs[1]):
        for i in numbers:
            for c in range(columns):
                for r in range(rows):
                    _, first, last = _ray(t, i, c, r, shape, main, ray)
                    if first >= last:
                        continue
                    at_b, at_s, slope_b, slope_s = ray[b], ray[s], ray[3 + b], ray[3 + s]
                    value = np.float32(values[i, c, r] * ray[6])
                    for k in range(max(first, job * planes), min(last, (job + 1) * planes)):
                        p, q = at_b + slope_b * k, at_s + slope_s * k
                        if 0 <= p < inner_b and 0 <= q < inner_s:
                            j, m, f, g = _cell(p, q)
                            far = f * value
                            near = value - far
                            place = np.uint64(k * step + j * step_b + m * step_s)
                            volume[place] += near - g * near
                            volume[place + np.uint64(step_s)] += g * near
                            place += np.uint64(step_b)
                            volume[place] += far - g * far
                            volume[place + np.uint64(step_s)] += g * far
                            continue
                        j, m, f, g, near_b, far_b, near_s, far_s = _at_the_edge(p, q, n_b, n_s)
                        place = k * step + j * step_b + m * step_s
                        if near_b and near_s:
                            volume[place] += np.float32((1 - f) * (1 - g) * value)
                        if near_b and far_s:
                            volume[place + step_s] += np.float32((1 - f) * g * value)
                        if far_b and near_s:
                            volume[place + step_b] += np.float32(f * (1 - g) * value)
                        if far_b and far_s:
                            volume[place + step_b + step_s] += np.float32(f * g * value)


def forward(
    volume: NDArray[np.float32], projections: NDArray[np.float32], tables: RayTables, numbers: NDArray[np.int64],
    threads: int | None = None,
) -> None:  # fmt: skip
    """Project ``volume[y, x, z]`` into views `numbers` of ``projections[view, column, row]`` (overwritten).

    Every ray is summed by itself: no result depends on the number of threads.
    """
    height, width, depth = volume.shape
    flat, shape = volume.reshape(-1), (width, height, depth)

    def work(span: tuple[int, int]) -> None:
        _forward(span, tables, numbers, flat, shape, projections)

    run_jobs(work, len(numbers) * math.ceil(projections.shape[1] / COLUMNS), threads)


def adjoint(
    projections: NDArray[np.float32], volume: NDArray[np.float32], tables: RayTables, numbers: NDArray[np.int64],
    threads: int | None = None,
) -> None:  # fmt: skip
    """Add views `numbers` of ``projections[view, column, row]`` to ``volume[y, x, z]``: the exact transpose.

    A voxel takes what comes from rays of main axis y, x, z, in the order of views, columns, rows, on any number of
    threads.
    """
    height, width, depth = volume.shape
    flat, shape = volume.reshape(-1), (width, height, depth)
    for main in (1, 0, 2):
        planes = math.ceil(shape[main] / (JOBS * (threads or get_threads())))

        def work(span: tuple[int, int], main: int = main, planes: int = planes) -> None:
            _adjoint(span, tables, numbers, planes, projections, flat, shape, main)

        run_jobs(work, math.ceil(shape[main] / planes), threads)
