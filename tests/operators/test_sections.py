"""Projections in slices: adjoint, their sum, and where depths lie."""

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.operators.projection import ParallelProjector
from dtomo.operators.sections import SectionsProjector
from dtomo.threads import using_threads

ANGLES = np.array([0.0, 17.0, 45.0, 90.0, 133.0, 180.0, 271.0])


def complex_noise(*shape: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((2, *shape))
    return (values[0] + 1j * values[1]).astype(np.complex64)


@pytest.mark.parametrize(("slices", "thickness"), [(1, 9.0), (2, 8.5), (5, 4.0), (7, 1.5)])
@pytest.mark.parametrize(
    ("width", "height", "center", "pitch"), [(17, 17, None, 1.0), (16, 21, 7.3, 0.45), (16, 21, 30.0, 1.7)]
)
def test_adjoint_and_sum(
    slices: int, thickness: float, width: int, height: int, center: float | None, pitch: float
) -> None:
    geometry = ParallelBeam(ANGLES, 19, center, width, height, pitch)
    projector = SectionsProjector(geometry, slices, thickness)
    some = np.array([5, 0, 2, 6, 3])
    volume, images = complex_noise(6, height, width), complex_noise(len(some), slices, 6, 19, seed=1)
    found, back = projector.forward(volume, some), projector.adjoint(images, some)
    one, two = np.vdot(images, found), np.vdot(back, volume)
    assert abs(one - two) <= 1e-5 * np.linalg.norm(images) * np.linalg.norm(found)
    whole = ParallelProjector(geometry.replace(angles=ANGLES[some]), 6, np.complex64).forward(volume)
    np.testing.assert_allclose(found.sum(1), whole, atol=2e-5 * np.abs(whole).max())


def test_weights_are_those_of_a_plain_sum() -> None:
    """Joseph's rays in float64, row by row: what a ray takes, shared by the two nearest slices."""
    width, height, columns, slices, thickness = 11, 8, 13, 4, 2.3
    geometry = ParallelBeam(ANGLES, columns, 6.4, width, height)
    volume = complex_noise(1, height, width)
    expected = np.zeros((len(ANGLES), slices, columns), np.complex128)
    for angle, (cosine, sine) in enumerate(zip(np.cos(geometry.radians), np.sin(geometry.radians))):
        plane = volume[0] if abs(cosine) >= abs(sine) else volume[0].T
        main, other = (cosine, sine) if abs(cosine) >= abs(sine) else (sine, cosine)
        for column in range(columns):
            for m in range(len(plane)):
                row = m - (plane.shape[0] - 1) / 2
                across = ((column - geometry.center) - row * other) / main
                place = across + (plane.shape[1] - 1) / 2
                y, x = (row, across) if abs(cosine) >= abs(sine) else (across, row)
                depth = np.clip((y * cosine - x * sine) / thickness + (slices - 1) / 2, 0, slices - 1)
                taken = np.interp(place, np.arange(-1, plane.shape[1] + 1), [0, *plane[m], 0], 0, 0) / abs(main)
                for k in range(slices):
                    expected[angle, k, column] += taken * max(0.0, 1 - abs(depth - k))
    found = SectionsProjector(geometry, slices, thickness).forward(volume, np.arange(len(ANGLES)))[:, :, 0]
    np.testing.assert_allclose(found, expected, atol=3e-6 * np.abs(expected).max())


def test_light_meets_slice_0_first() -> None:
    geometry = ParallelBeam(np.array([0.0, 90.0, 180.0]), 21)
    projector = SectionsProjector(geometry, 3, 7.0)
    volume = np.zeros((1, 21, 21), np.complex64)
    volume[0, 3, 10], volume[0, 17, 10] = 1, 2j  # y below and above the axis: depths -7 and 7 at 0 degrees
    found = projector.forward(volume, np.arange(3))[:, :, 0]
    np.testing.assert_allclose(found[0, :, 10], [1, 0, 2j], atol=1e-5)
    np.testing.assert_allclose(found[2, :, 10], [2j, 0, 1], atol=1e-5)  # from the other side
    assert abs(found[1, 1].sum() - (1 + 2j)) < 1e-5  # side by side in the middle


@pytest.mark.parametrize("degrees", [0.0, 31.0, 77.0])
def test_half_a_turn_on_depths_and_columns_are_reversed(degrees: float) -> None:
    projector = SectionsProjector(ParallelBeam(np.array([degrees, degrees + 180]), 18), 5, 3.2)
    found = projector.forward(complex_noise(2, 18, 18), np.arange(2))
    scale = np.abs(found).max()
    np.testing.assert_allclose(found[1], found[0, ::-1, :, ::-1], atol=1e-5 * scale)


def test_a_row_has_its_bits_in_any_slab() -> None:
    projector, some = SectionsProjector(ParallelBeam(ANGLES, 24), 4, 6.0), np.arange(len(ANGLES))
    volume = complex_noise(70, 24, 24)
    images = projector.forward(volume, some)
    back = projector.adjoint(images, some)
    for rows in (slice(3, 4), slice(17, 69)):
        np.testing.assert_array_equal(projector.forward(volume[rows], some), images[:, :, rows])
        np.testing.assert_array_equal(projector.adjoint(images[:, :, rows], some), back[rows])


def test_depth_is_shared_by_the_nearest_slices() -> None:
    geometry = ParallelBeam(np.array([0.0]), 9)
    volume = np.zeros((1, 9, 9), np.complex64)
    volume[0, 5, 4] = 1  # one voxel behind the axis
    found = SectionsProjector(geometry, 3, 4.0).forward(volume, np.array([0]))[0, :, 0, 4]
    np.testing.assert_allclose(found, [0, 0.75, 0.25], atol=1e-6)


def test_bits_do_not_depend_on_threads() -> None:
    projector = SectionsProjector(ParallelBeam(ANGLES, 24), 4, 6.0)
    volume = complex_noise(20, 24, 24)
    results = []
    for threads in (1, 3):
        with using_threads(threads):
            images = projector.forward(volume, np.arange(len(ANGLES)))
            results.append((images.tobytes(), projector.adjoint(images, np.arange(len(ANGLES))).tobytes()))
    assert results[0] == results[1]


def test_what_cannot_be_is_refused() -> None:
    geometry = ParallelBeam(ANGLES, 8)
    for slices, thickness in ((0, 1.0), (2, 0.0), (2, float("nan"))):
        with pytest.raises(UserError, match="slices"):
            SectionsProjector(geometry, slices, thickness)
    with pytest.raises(UserError, match="images have shape"):
        SectionsProjector(geometry, 2, 4.0).adjoint(complex_noise(7, 3, 2, 8), np.arange(7))
