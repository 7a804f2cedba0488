"""Kernels for alignment and regularisation on a device against the CPU, for `benchmarks.gpu`."""

import numpy as np

from benchmarks.gpu_checks import Checker, geometries
from dtomo.geometry import cone_beam, fan_beam, laminography, tilt_series
from dtomo.kernels import correlation, differences, patches, rotation, turning, voxels
from dtomo.operators.rays import RayProjector
from dtomo.operators.sections import SectionsProjector


def check_differences(check: Checker) -> None:
    """Differences, their adjoint, total variation and its gradient: both layouts, real and complex, slabs."""
    place, columns = check.place, min(check.extent.columns, 65)
    for dtype in (np.float32, np.complex64):
        for innermost in (False, True):
            shape = (check.extent.slices[-1], columns, columns - 1)
            host = check.random(shape, dtype)
            if innermost:
                host = np.moveaxis(np.ascontiguousarray(np.moveaxis(host, 0, -1)), -1, 0)
            here = place.put(host)
            for spacing in ((2.0, 1.0, 0.5), (1.0, 1.0)):
                where = f"{np.dtype(dtype).name}, {'z' if innermost else 'x'} innermost, spacing {spacing}"
                got, expected = (differences.differences(u, spacing) for u in (here, host))
                check.close(f"differences, {where}", got, expected, 1e-6)
                check.close(
                    f"negative divergence, {where}", differences.negative_divergence(got, spacing),
                    differences.negative_divergence(expected, spacing), 1e-6,
                )  # fmt: skip
                check.close(
                    f"total variation, {where}", differences.total_variation(here, spacing, 0.1),
                    differences.total_variation(host, spacing, 0.1), 1e-6,
                )  # fmt: skip
                gradient = differences.total_variation_gradient(here, spacing, 0.1)
                check.close(
                    f"gradient of total variation, {where}", gradient,
                    differences.total_variation_gradient(host, spacing, 0.1), 5e-6,
                )  # fmt: skip
            if shape[0] > 1:
                part = differences.total_variation_gradient(here[1:], (1.0, 1.0, 1.0), 0.1, before=here[0])
                whole = differences.total_variation_gradient(here, (1.0, 1.0, 1.0), 0.1)
                check.same(f"gradient of a slab, {np.dtype(dtype).name}, {innermost}", part, whole[1:])


def check_sections(check: Checker) -> None:
    """Projections in slices along the beam and their adjoint, against the CPU and against each other."""
    place, rows = check.place, check.extent.slices[-1]
    for name, geometry in geometries(check.extent).items():
        some = np.arange(len(geometry.angles))[::-1]
        x = check.random((rows, geometry.height, geometry.width), np.complex64)
        for slices in (1, 4):
            where, projector = f"{name}, {slices} slices", SectionsProjector(geometry, slices, geometry.width / 5)
            y = check.random((len(some), slices, rows, geometry.columns), np.complex64)
            forward, back = projector.forward(place.put(x), some), projector.adjoint(place.put(y), some)
            check.close(f"forward in slices: {where}", forward, projector.forward(x, some), 5e-6)
            check.close(f"back from slices: {where}", back, projector.adjoint(y, some), 5e-6)
            left = np.vdot(y.astype(np.complex128), place.get(forward).astype(np.complex128))
            right = np.vdot(place.get(back).astype(np.complex128), x.astype(np.complex128))
            check.value(f"adjoint of slices: {where}", left, right, 2e-6)


def check_patches(check: Checker) -> None:
    """Patches and their adjoint, of one object and of several modes, real and complex, frames that overlap."""
    place, columns = check.place, check.extent.columns
    shape, patch, frames = (columns, columns + 9), (columns // 3, columns // 4), 4 * check.extent.slices[-1]
    corners = check.rng.integers(0, np.subtract(shape, patch) + 1, (frames, 2))
    here, cpu = patches.cover(corners, patch, shape, place.xp), patches.cover(corners, patch, shape)
    for dtype in (np.float32, np.complex64):
        for modes in ((), (2,)):
            where = f"{np.dtype(dtype).name}, {modes[0] if modes else 'no'} modes"
            image, given = check.random((*modes, *shape), dtype), check.random((frames, *modes, *patch), dtype)
            there, added = patches.extract(place.put(image), here), patches.add(place.put(given), here)
            check.same(f"patches, {where}", there, patches.extract(image, cpu))
            check.close(f"patches added, {where}", added, patches.add(given, cpu), 1e-6)
            left = np.vdot(given.astype(np.complex128), place.get(there).astype(np.complex128))
            right = np.vdot(place.get(added).astype(np.complex128), image.astype(np.complex128))
            check.value(f"adjoint of patches, {where}", left, right, 1e-6)


def check_voxels(check: Checker) -> None:
    """Voxel-driven back projection of a cone beam and of a tilt series, whole and as a slab that sees some rows."""
    place, size = check.place, min(check.extent.columns, 70)
    angles, rows = np.arange(67) * 5.0, size + 2
    round_it = {"source_axis": 4 * size, "source_detector": 6 * size}
    shape = (size, size - 1, size - 2)
    for name, geometry in (
        ("cone beam", cone_beam(angles, rows, size, center=size / 2.3, shape=shape, **round_it)),
        ("turned detector", cone_beam(angles, rows, size, roll=3, pitch=2, shape=shape, **round_it)),
        ("fan beam", fan_beam(angles, size, slices=rows, shape=shape, **round_it)),
        ("tilt series", tilt_series(angles, rows, size, shape=shape, axis_angle=5)),
    ):
        matrices, plain = geometry.voxel_matrices(), geometry.beam == "fan"
        projections = check.random((len(angles), size, rows))
        for first, first_row in ((0, 0), (3, 1)):
            start = check.random((size - 1, size - 2, size - first))
            part = np.ascontiguousarray(projections[:, :, first_row:])
            options = {"plain": plain, "first": first, "slices": size, "first_row": first_row}
            found, expected = place.put(start), start.copy()
            voxels.backproject(place.put(part), found, matrices, **options)
            voxels.backproject(part, expected, matrices, **options)
            check.close(f"voxels of {name}, slices from {first}", found, expected, 1e-4)


def check_rays(check: Checker) -> None:
    """Rays of any direction and their adjoint, against the CPU and against each other."""
    place, size = check.place, min(check.extent.columns, 70)
    angles, rows, shape = np.arange(size // 2 + 1) * 9.7 + 1, size + 2, (size, size - 1, size - 2)
    round_it = {"source_axis": 4 * size, "source_detector": 6 * size, "shape": shape}
    for name, geometry in (
        ("cone beam", cone_beam(angles, rows, size, center=size / 2.3, **round_it)),
        ("turned detector", cone_beam(angles, rows, size, roll=3, pitch=2, **round_it)),
        ("fan beam", fan_beam(angles, size, slices=rows, **round_it)),
        ("laminography", laminography(angles, rows, size, tilt=64, shape=shape)),
        ("tilt series", tilt_series(angles, rows, size, shape=shape, axis_angle=5)),
    ):
        projector = RayProjector(geometry)
        x, y = check.random(projector.shape_in), check.random(projector.shape_out)
        forward, back = projector.forward(place.put(x)), projector.adjoint(place.put(y))
        check.close(f"rays of {name}", forward, projector.forward(x), 1e-4)
        check.close(f"rays of {name}, back", back, projector.adjoint(y), 1e-4)
        left = np.vdot(y.astype(float), place.get(forward).astype(float))
        right = np.vdot(place.get(back).astype(float), x.astype(float))
        check.value(f"adjoint of rays of {name}", left, right, 2e-6)


def check_rotation(check: Checker) -> None:
    """Volumes rotated and shifted, linear and with cubic B-splines, several rotations of one volume."""
    place, size = check.place, min(check.extent.columns, 43)
    angles = np.array([0.3, -1.1])
    cos, sin, one, zero = np.cos(angles), np.sin(angles), np.ones(2), np.zeros(2)
    about_z = np.moveaxis(np.array([[cos, -sin, zero], [sin, cos, zero], [zero, zero, one]]), -1, 0)
    about_x = np.moveaxis(np.array([[one, zero, zero], [zero, cos, -sin], [zero, sin, cos]]), -1, 0)
    rotations, shifts = about_z @ about_x, np.array([[0.0, 0.0, 0.0], [1.25, -0.5, 2.0]])
    _check_turning(check, rotations, 2 * (size // 2))
    for dtype in (np.float32, np.complex64):
        volume = check.random((size, size - 1, size - 2), dtype)
        for order in (1, 3):
            options = {"order": order, "outside": 0.25}
            check.close(
                f"rotation of order {order}, {np.dtype(dtype).name}",
                rotation.rotate(place.put(volume), rotations, shifts, **options),
                rotation.rotate(volume, rotations, shifts, **options), 2e-5,
            )  # fmt: skip


def _check_turning(check: Checker, rotations: np.ndarray, size: int) -> None:
    """Transforms of a rotated volume, in the ball of frequencies that all rotations share."""
    volume, half = check.random((size, size, size)), size // 2 + 1
    rates = tuple(rate(size).astype(np.float32) for rate in (np.fft.fftfreq, np.fft.fftfreq, np.fft.rfftfreq))
    inside = rates[0][:, None, None] ** 2 + rates[1][:, None] ** 2 + rates[2] ** 2 < 0.49**2
    filters = np.where(inside, check.random((size, size, half), np.complex64), np.complex64(0))
    ranges = np.stack([np.zeros((size, size)), inside.sum(2)], 2).astype(np.int32)
    out = [where(np.zeros((len(rotations), size, size, half), np.complex64)) for where in (check.place.put, np.array)]
    turning.TurningTransform(check.place.put(volume)).fill(rotations, check.place.put(filters), ranges, rates, out[0])
    turning.TurningTransform(volume).fill(rotations, filters, ranges, rates, out[1])
    check.close("transforms of a rotated volume", out[0], out[1], 2e-5)


def check_correlation(check: Checker) -> None:
    """Correlations of images and volumes, and the shifts that they find."""
    place, size = check.place, max(check.extent.columns, 16)
    for dtype in (np.float32, np.complex64):
        for dimensions in (2, 3):
            shape = (3, size, size + 1) if dimensions == 2 else (9, size, size + 1)
            reference = check.random(shape, dtype)
            moving = np.roll(reference, (-2, 3), (-2, -1)) + np.float32(0.1) * check.random(shape, dtype)
            where = f"{dimensions}D, {np.dtype(dtype).name}"
            pairs = [(reference, moving), (place.put(reference), place.put(moving))]
            for phase in (False, True):
                expected, got = (correlation.correlate(*pair, dimensions=dimensions, phase=phase) for pair in pairs)
                check.close(f"{'phase ' if phase else ''}correlation, {where}", got, expected, 2e-5)
            expected, got = (correlation.find_shift(*pair, dimensions=dimensions).shift for pair in pairs)
            apart = float(np.abs(np.asarray(place.get(got)) - expected).max())
            check.true(f"shifts found, {where}", apart < 0.02, got, expected)
