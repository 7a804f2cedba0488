"""Line integrals that keep depths apart: the part of a ray in each slice of a thick sample, and the exact adjoint.

Rays and weights are those of the projector (`dtomo.kernels.weights`): the sum over slices is its projection. What a ray
takes at a depth t along the beam (voxels from the axis, t = y cos θ - x sin θ) is shared linearly by the two slices
whose middles are nearest; beyond the first or last middle it goes to that slice. The wave meets slice 0 first.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import on_device, writeable_view
from dtomo.errors import UserError
from dtomo.kernels.compiling import kernel
from dtomo.kernels.weights import FRACTION, ONE, Rays
from dtomo.threads import run_jobs

LANES = 16
"""Numbers along z that a job of the adjoint takes."""


def forward(volume: NDArray[Any], images: NDArray[Any], rays: Rays, radians: NDArray[Any], thickness: float) -> None:
    """Project ``volume[y, x, z]`` into ``images[angle, slice, column, z]`` (overwritten).

    Parameters
    ----------
    volume, images
        C-contiguous float32; complex data are two numbers each.
    rays
        Joseph's, of these angles.
    radians
        The angles.
    thickness
        Of a slice, voxels; all slices together lie about the axis.
    """
    if on_device(volume):
        raise UserError("projections in slices are computed on the CPU; leave out slices, or devices")
    arrays = _tables(rays), np.asarray(radians, np.float64), float(thickness), images
    count = images.shape[0] * images.shape[2]
    run_jobs(lambda span: _forward(span, writeable_view(volume), *arrays), count)


def adjoint(images: NDArray[Any], volume: NDArray[Any], rays: Rays, radians: NDArray[Any], thickness: float) -> None:
    """The transpose of `forward`: ``images[angle, slice, column, z]`` into ``volume[y, x, z]`` (overwritten)."""
    if on_device(volume):
        raise UserError("projections in slices are computed on the CPU; leave out slices, or devices")
    arrays = _tables(rays), np.asarray(radians, np.float64), float(thickness), volume
    jobs = -(-volume.shape[2] // LANES)
    run_jobs(lambda span: _adjoint(span, writeable_view(images), *arrays), jobs)


def _tables(rays: Rays) -> tuple[Any, ...]:
    """In the order of the caller's angles."""
    count = len(rays.number) - (len(rays.number) - int(rays.blocks[-1]))
    order = np.argsort(rays.number[:count], kind="stable")
    return tuple(np.ascontiguousarray(getattr(rays, name)[:count][order]) for name in ("axis", "a", "b", "c", "scale"))


@kernel
def _share(row, sample, axis, height, width, cosine, sine, thickness, slices):  # type: ignore[no-untyped-def]
    """First of two slices, and the part of the second, for a place on a ray."""
    if axis == 0:
        y, x = row - (height - 1) / 2, sample - (width - 1) / 2
    else:
        y, x = sample - (height - 1) / 2, row - (width - 1) / 2
    s = (y * cosine - x * sine) / thickness + (slices - 1) / 2
    if s <= 0:
        return 0, 0.0
    if s >= slices - 1:
        return slices - 2 if slices > 1 else 0, 1.0 if slices > 1 else 0.0
    first = int(np.floor(s))
    return first, s - first


@kernel
def _forward(jobs, volume, tables, radians, thickness, images):  # type: ignore[no-untyped-def]
    axes, a, b, c, scales = tables
    height, width, lanes = volume.shape
    _, slices, columns, _ = images.shape
    for job in range(jobs[0], jobs[1]):
        angle, column = job // columns, job % columns
        axis, cosine, sine = axes[angle], np.cos(radians[angle]), np.sin(radians[angle])
        rows, samples = (height, width) if axis == 0 else (width, height)
        for k in range(slices):
            for z in range(lanes):
                images[angle, k, column, z] = 0
        for m in range(rows):
            p = a[angle] * (column - columns // 2) + b[angle] * (m - rows // 2) + c[angle] + (samples // 2) * ONE
            first, fraction = p >> FRACTION, p & (ONE - 1)
            k, part = _share(m, p / ONE, axis, height, width, cosine, sine, thickness, slices)
            for side in range(2):
                sample = first + side
                weight = scales[angle] * np.float32(fraction if side else ONE - fraction)
                if sample < 0 or sample >= samples or weight == 0:
                    continue
                values = volume[m, sample] if axis == 0 else volume[sample, m]
                near, far = weight * np.float32(1 - part), weight * np.float32(part)
                target = images[angle, k, column]
                if near != 0:
                    for z in range(lanes):
                        target[z] += near * values[z]
                if far != 0:
                    target = images[angle, k + 1, column]
                    for z in range(lanes):
                        target[z] += far * values[z]


@kernel
def _adjoint(jobs, images, tables, radians, thickness, volume):  # type: ignore[no-untyped-def]
    axes, a, b, c, scales = tables
    height, width, lanes = volume.shape
    angles, slices, columns, _ = images.shape
    for job in range(jobs[0], jobs[1]):
        z0, z1 = job * 16, min(lanes, job * 16 + 16)
        for y in range(height):
            for x in range(width):
                for z in range(z0, z1):
                    volume[y, x, z] = 0
        for angle in range(angles):
            axis, cosine, sine = axes[angle], np.cos(radians[angle]), np.sin(radians[angle])
            rows, samples = (height, width) if axis == 0 else (width, height)
            for column in range(columns):
                for m in range(rows):
                    p = a[angle] * (column - columns // 2) + b[angle] * (m - rows // 2) + c[angle]
                    p += (samples // 2) * ONE
                    first, fraction = p >> FRACTION, p & (ONE - 1)
                    k, part = _share(m, p / ONE, axis, height, width, cosine, sine, thickness, slices)
                    for side in range(2):
                        sample = first + side
                        weight = scales[angle] * np.float32(fraction if side else ONE - fraction)
                        if sample < 0 or sample >= samples or weight == 0:
                            continue
                        target = volume[m, sample] if axis == 0 else volume[sample, m]
                        near, far = weight * np.float32(1 - part), weight * np.float32(part)
                        if near != 0:
                            values = images[angle, k, column]
                            for z in range(z0, z1):
                                target[z] += near * values[z]
                        if far != 0:
                            values = images[angle, k + 1, column]
                            for z in range(z0, z1):
                                target[z] += far * values[z]
