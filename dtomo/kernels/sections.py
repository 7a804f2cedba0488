"""Line integrals that keep depths apart: the part of a ray in each slice of a thick sample, and the exact adjoint.

Rays and weights are those of the projector (`dtomo.kernels.weights`): the sum over slices is its projection. What a ray
takes at a depth t along the beam (voxels from the axis, t = y cos θ - x sin θ) is shared linearly by the two slices
whose middles are nearest; beyond the first or last middle it goes to that slice. The wave meets slice 0 first.

Shared linearly, and not given to the slice that it lies in: so slices change smoothly as the sample turns, and two
angles that hardly differ see hardly different slices. Depths are whole numbers like positions: exact, and the same for
projector and back-projector, on the host and on devices. Both directions only gather.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dtomo.arrays import array_module, on_device, writeable_view
from dtomo.kernels.compiling import kernel
from dtomo.kernels.weights import FRACTION, ONE, Rays
from dtomo.threads import run_jobs

LANES = 128
"""Numbers along z that a job of the adjoint takes."""

TILE = 16
"""Voxels along a side of such a job."""

POINT = 40
"""Bits behind the point of a depth in slices."""

_REST = POINT - FRACTION
_LARGEST = 2.0**62
_UNIT = np.float32(1 / ONE)


class Tables(NamedTuple):
    """A row for each angle, in the order of the caller.

    ``whole`` has int64 ``axis, a, b, c`` of `Rays` and the depth ``d + d_column (column - columns // 2) +
    d_row (m - rows // 2)`` of a ray in row m, slices from the middle of slice 0, in units of 2^-40.
    """

    whole: NDArray[np.int64]  # (angles, 7)
    scale: NDArray[np.float32]  # (angles,)


def tables(
    rays: Rays, radians: NDArray[Any], shape: tuple[int, int], columns: int, slices: int, thickness: float
) -> Tables:
    """What kernels know of rays.

    Parameters
    ----------
    rays
        Joseph's, of these angles.
    radians
        The angles.
    shape
        Height and width of a slice of the volume, voxels.
    columns
        Of the detector.
    slices, thickness
        How many along the beam, and of how many voxels each; all together lie about the axis.
    """
    count = int(rays.blocks[-1])
    order = np.argsort(rays.number[:count], kind="stable")
    axis, a, b, c = (getattr(rays, name)[:count][order] for name in ("axis", "a", "b", "c"))
    first, slope, begin = (values.astype(np.float64) / ONE for values in (a, b, c))
    (height, width), cosine, sine = shape, np.cos(radians), np.sin(radians)
    along = np.where(axis == 0, height, width)
    across = np.where(axis == 0, width, height)
    of_row, of_sample = np.where(axis == 0, cosine, -sine), np.where(axis == 0, -sine, cosine)
    middle = of_row * (along // 2 - (along - 1) / 2) + of_sample * (begin + across // 2 - (across - 1) / 2)
    depth = (
        middle / thickness + (slices - 1) / 2,
        of_sample * first / thickness,
        (of_row + of_sample * slope) / thickness,
    )
    # rays so far off that this does not fit meet nothing
    fixed = [np.rint(np.clip(part * 2.0**POINT, -_LARGEST, _LARGEST)).astype(np.int64) for part in depth]
    return Tables(np.ascontiguousarray(np.stack([axis, a, b, c, *fixed], 1)), rays.scale[:count][order])


def forward(volume: NDArray[Any], images: NDArray[Any], rays: Rays, radians: NDArray[Any], thickness: float) -> None:
    """Project ``volume[y, x, z]`` into ``images[angle, slice, column, z]`` (overwritten).

    Parameters
    ----------
    volume, images
        C-contiguous float32, both on the host or both on a device; complex data are two numbers each.
    rays
        Joseph's, of these angles.
    radians
        The angles.
    thickness
        Of a slice, voxels; all slices together lie about the axis.

    Raises
    ------
    TypeError
        One array lies on the host and the other on a device.
    """
    array_module(volume, images)
    _, slices, columns, _ = images.shape
    known = tables(rays, radians, volume.shape[:2], columns, slices, thickness)
    if on_device(volume):
        from dtomo.kernels.cuda import sections as device

        return device.forward(volume, images, known)
    count = images.shape[0] * columns
    run_jobs(lambda span: _forward(span, writeable_view(volume), known.whole, known.scale, images), count)


def adjoint(images: NDArray[Any], volume: NDArray[Any], rays: Rays, radians: NDArray[Any], thickness: float) -> None:
    """The transpose of `forward`: ``images[angle, slice, column, z]`` into ``volume[y, x, z]`` (overwritten).

    Parameters and errors as there.
    """
    array_module(volume, images)
    _, slices, columns, _ = images.shape
    known = tables(rays, radians, volume.shape[:2], columns, slices, thickness)
    if on_device(volume):
        from dtomo.kernels.cuda import sections as device

        return device.adjoint(images, volume, known, rays.pairs)
    height, width, lanes = volume.shape
    jobs = -(-height // TILE) * -(-width // TILE) * -(-lanes // LANES)
    run_jobs(lambda span: _adjoint(span, writeable_view(images), known.whole, known.scale, rays.pairs, volume), jobs)


@njit(inline="always")
def share(depth, slices):  # type: ignore[no-untyped-def]
    """First of the two slices of a depth, and the part of the second: 0 where there is none."""
    depth = min(max(depth, 0), (slices - 1) << POINT)
    return depth >> POINT, np.float32((depth >> _REST) & (ONE - 1)) * _UNIT


@njit(inline="always")
def hat(gap, scale):  # type: ignore[no-untyped-def]
    """Weight of a sample so far from a ray."""
    return np.float32(max(ONE - abs(gap), 0)) * scale


@njit(inline="always")
def add_two(target, one, two, near, far):  # type: ignore[no-untyped-def]
    """``target += near one + far two``"""
    for z in range(target.size):
        target[z] += near * one[z] + far * two[z]


@kernel
def _forward(jobs, volume, whole, scales, images):  # type: ignore[no-untyped-def]
    height, width, lanes = volume.shape
    _, slices, columns, _ = images.shape
    for job in range(jobs[0], jobs[1]):
        angle, column = job // columns, job % columns
        axis, a, b, c, d, d_column, d_row = whole[angle]
        scale, off = scales[angle], column - columns // 2
        rows, samples = (height, width) if axis == 0 else (width, height)
        for k in range(slices):
            for z in range(lanes):
                images[angle, k, column, z] = 0
        for m in range(rows):
            p = a * off + b * (m - rows // 2) + c + samples // 2 * ONE
            one = p >> FRACTION
            if one < -1 or one >= samples:
                continue
            gap = p & (ONE - 1)
            first = hat(gap, scale) if one >= 0 else np.float32(0)
            second = hat(gap - ONE, scale) if one + 1 < samples else np.float32(0)
            one, two = max(one, 0), min(one + 1, samples - 1)
            here, there = (volume[m, one], volume[m, two]) if axis == 0 else (volume[one, m], volume[two, m])
            k, part = share(d + d_column * off + d_row * (m - rows // 2), slices)
            rest = np.float32(1) - part
            add_two(images[angle, k, column], here, there, first * rest, second * rest)
            if part > 0:
                add_two(images[angle, k + 1, column], here, there, first * part, second * part)


@kernel
def _adjoint(jobs, images, whole, scales, pairs, volume):  # type: ignore[no-untyped-def]
    """A job is a square of voxels, and `LANES` of z: so what an angle has for them stays in the cache."""
    height, width, lanes = volume.shape
    angles, slices, columns, _ = images.shape
    down, across = (height + TILE - 1) // TILE, (width + TILE - 1) // TILE
    for job in range(jobs[0], jobs[1]):
        z0, tile = job // (down * across) * LANES, job % (down * across)
        z1, y0, x0 = min(lanes, z0 + LANES), tile // across * TILE, tile % across * TILE
        y1, x1 = min(height, y0 + TILE), min(width, x0 + TILE)
        volume[y0:y1, x0:x1, z0:z1] = 0
        for angle in range(angles):
            axis, a, b, c, d, d_column, d_row = whole[angle]
            for y in range(y0, y1):
                for x in range(x0, x1):
                    m, sample = (y - height // 2, x - width // 2) if axis == 0 else (x - width // 2, y - height // 2)
                    rest = b * m + c - sample * ONE
                    nearest = -rest // a  # columns from the middle: this one and the next are beside the voxel
                    for off in range(nearest - pairs + 1, nearest + pairs + 1):
                        column, weight = off + columns // 2, hat(a * off + rest, scales[angle])
                        if column < 0 or column >= columns or weight == 0:
                            continue
                        k, part = share(d + d_column * off + d_row * m, slices)
                        one, two = images[angle, k, column, z0:z1], images[angle, min(k + 1, slices - 1), column, z0:z1]
                        add_two(volume[y, x, z0:z1], one, two, weight * (np.float32(1) - part), weight * part)
