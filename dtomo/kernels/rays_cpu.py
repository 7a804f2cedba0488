"""Rays of any direction through a volume on CPUs, one after the other (see `dtomo.kernels.rays`).

A ray meets the planes of its main axis (the one along which it crosses most voxels) once each; there the four voxels
around it are interpolated (P. M. Joseph, IEEE Trans. Med. Imaging 1, 192-196, 1982, in three dimensions). Positions are
computed in float64 by one function for both directions, so that the weights agree to the last bit.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dtomo.kernels.compiling import kernel
from dtomo.threads import run_jobs

PLANES = 32  # of one job, back projection
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


@kernel
def _ray(t, i, c, r, shape, ray):  # type: ignore[no-untyped-def]
    """Main axis of a ray and its planes first : last; `ray`: where it is at plane 0, what each plane adds, its scale.

    `ray` holds, of the axes x, y, z: 0-2 position at plane 0, 3-5 slope, 6 length between planes.
    """
    axis, size, length = 0, 0.0, 0.0
    for a in range(3):
        d = t.direction[i, a] + c * t.direction_column[i, a] + r * t.direction_row[i, a]
        ray[3 + a] = d
        length += (d * t.voxel[a]) ** 2
        if abs(d) > size:
            axis, size = a, abs(d)
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
        if a == axis:
            continue
        if slope == 0:
            if not -1 < at < shape[a]:
                last = -1.0
            continue
        one, two = (-1 - at) / slope, (shape[a] - at) / slope
        first, last = max(first, min(one, two)), min(last, max(one, two))
    if not first <= last:
        return axis, 0, 0
    return axis, math.ceil(first), math.floor(last) + 1


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
                axis, first, last = _ray(t, i, c, r, shape, ray)
                b, s = (1, 2) if axis == 0 else ((0, 2) if axis == 1 else (0, 1))
                at_b, at_s, slope_b, slope_s = ray[b], ray[s], ray[3 + b], ray[3 + s]
                n_b, n_s, step, step_b, step_s = shape[b], shape[s], steps[axis], steps[b], steps[s]
                total = 0.0
                for k in range(first, last):
                    p, q = at_b + slope_b * k, at_s + slope_s * k
                    j, m = math.floor(p), math.floor(q)
                    f, g = p - j, q - m
                    place = k * step + j * step_b + m * step_s
                    if 0 <= j < n_b:
                        if 0 <= m < n_s:
                            total += (1 - f) * (1 - g) * volume[place]
                        if -1 <= m < n_s - 1:
                            total += (1 - f) * g * volume[place + step_s]
                    if -1 <= j < n_b - 1:
                        place += step_b
                        if 0 <= m < n_s:
                            total += f * (1 - g) * volume[place]
                        if -1 <= m < n_s - 1:
                            total += f * g * volume[place + step_s]
                out[i, c, r] = total * ray[6]


@kernel
def _adjoint(jobs, t, numbers, values, volume, shape, main):  # type: ignore[no-untyped-def]
    """Back-project the rays of main axis `main` into ``volume[y, x, z]``, flat; a job is some planes of that axis."""
    _, columns, rows = values.shape
    ray = np.empty(7)
    steps = (shape[2], shape[0] * shape[2], 1)
    b, s = (1, 2) if main == 0 else ((0, 2) if main == 1 else (0, 1))
    n_b, n_s, step, step_b, step_s = shape[b], shape[s], steps[main], steps[b], steps[s]
    for job in range(jobs[0], jobs[1]):
        for i in numbers:
            for c in range(columns):
                for r in range(rows):
                    axis, first, last = _ray(t, i, c, r, shape, ray)
                    if axis != main:
                        continue
                    at_b, at_s, slope_b, slope_s = ray[b], ray[s], ray[3 + b], ray[3 + s]
                    value = values[i, c, r] * ray[6]
                    for k in range(max(first, job * PLANES), min(last, (job + 1) * PLANES)):
                        p, q = at_b + slope_b * k, at_s + slope_s * k
                        j, m = math.floor(p), math.floor(q)
                        f, g = p - j, q - m
                        place = k * step + j * step_b + m * step_s
                        if 0 <= j < n_b:
                            if 0 <= m < n_s:
                                volume[place] += np.float32((1 - f) * (1 - g) * value)
                            if -1 <= m < n_s - 1:
                                volume[place + step_s] += np.float32((1 - f) * g * value)
                        if -1 <= j < n_b - 1:
                            place += step_b
                            if 0 <= m < n_s:
                                volume[place] += np.float32(f * (1 - g) * value)
                            if -1 <= m < n_s - 1:
                                volume[place + step_s] += np.float32(f * g * value)


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

        def work(span: tuple[int, int], main: int = main) -> None:
            _adjoint(span, tables, numbers, projections, flat, shape, main)

        run_jobs(work, math.ceil(shape[main] / PLANES), threads)
