"""Shifts against scikit-image and against shifts that are known; sums by their definition; refusals."""

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.kernels.correlation import correlate, find_shift
from tests import laws

BOTH = pytest.mark.parametrize("phase", [False, True])


def smooth(shape, dtype=np.float32, seed=0, dimensions=2):
    """Random images without their highest frequencies, which a shift by a fraction of a pixel would not keep."""
    axes = tuple(range(-dimensions, 0))
    spectrum = np.fft.fftn(laws.draw(shape, dtype, seed), axes=axes)
    for axis in axes:
        keep = np.abs(np.fft.fftfreq(shape[axis])) < 0.4
        spectrum *= keep.reshape([-1 if k == axis else 1 for k in range(-len(shape), 0)])
    image = np.fft.ifftn(spectrum, axes=axes)
    return (image if np.dtype(dtype).kind == "c" else image.real).astype(dtype)


def moved(images, shifts):
    """Images moved by ``(…, axis)``, as periodic band-limited functions."""
    dimensions = shifts.shape[-1]
    axes = tuple(range(-dimensions, 0))
    spectrum = np.fft.fftn(images, axes=axes)
    for axis in axes:
        phase = np.exp(-2j * np.pi * np.fft.fftfreq(images.shape[axis]) * shifts[..., axis, None])
        spectrum = spectrum * phase.reshape(*phase.shape[:-1], *[1] * (dimensions + axis), -1, *[1] * (-axis - 1))
    result = np.fft.ifftn(spectrum, axes=axes)
    return (result if np.iscomplexobj(images) else result.real).astype(images.dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(("shape", "dimensions"), [((6, 5), 2), ((3, 4, 7), 2), ((3, 4, 5), 3), ((2, 1, 4, 3), 3)])
def test_correlation_is_the_sum(shape, dimensions, dtype):
    reference, moving = laws.draw(shape, dtype), laws.draw(shape, dtype, 1)
    found = correlate(reference, moving, dimensions=dimensions)
    assert found.dtype == np.complex64
    axes = tuple(range(-dimensions, 0))
    for place in np.ndindex(*shape[-dimensions:]):
        expected = (np.roll(reference, [-k for k in place], axes) * np.conj(moving)).sum(axes)
        np.testing.assert_allclose(found[(..., *place)], expected, atol=1e-4)


@BOTH
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(("shape", "shift"), [((32, 45), (3.27, -7.61)), ((20, 18, 16), (-2.4, 3.13, 7.75))])
def test_scikit_image(shape, shift, dtype, phase):
    registration = pytest.importorskip("skimage.registration")
    reference = smooth(shape, dtype, dimensions=len(shape))
    moving = moved(reference, -np.array(shift)) + np.float32(0.05) * laws.draw(shape, dtype, 1)
    normalization = "phase" if phase else None
    theirs, *_ = registration.phase_cross_correlation(
        reference, moving, upsample_factor=20, normalization=normalization
    )
    ours = find_shift(reference, moving, dimensions=len(shape), phase=phase, upsampling=20)
    # one step of the grid: at frequencies that are nothing but rounding they take another phase than we do
    np.testing.assert_allclose(ours.shift, theirs, atol=0.051 if phase else 1e-6)
    np.testing.assert_allclose(ours.shift, shift, atol=0.06)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(("shape", "dimensions"), [((5, 24, 31), 2), ((3, 12, 10, 9), 3)])
def test_many_at_once_have_the_shifts_they_were_given(shape, dimensions, dtype):
    reference = smooth(shape, dtype, dimensions=dimensions)
    shifts = np.random.default_rng(4).uniform(-4, 4, (shape[0], dimensions))
    moving = moved(reference, -shifts)
    for refinement, tolerance in (("dft", 0.0051), ("parabola", 0.25), ("none", 0.5001)):
        found = find_shift(reference, moving, dimensions=dimensions, refinement=refinement)
        assert found.shift.dtype == found.value.dtype == np.float64
        assert found.value.shape == shape[:1]
        np.testing.assert_allclose(found.shift, shifts, atol=tolerance)
    one = find_shift(reference[0], moving, dimensions=dimensions).shift
    np.testing.assert_allclose(one[0], shifts[0], atol=0.0051)


def test_the_value_is_one_for_the_same_image():
    reference = smooth((16, 18), np.complex64)
    moving = np.complex64(2 - 3j) * moved(reference, np.array([1.5, -2.25]))
    assert find_shift(reference, moving).value == pytest.approx(1, abs=1e-5)
    assert find_shift(reference, laws.draw((16, 18), seed=9)).value < 0.5


def test_a_parabola_meets_a_smooth_peak():
    y, x = np.mgrid[:32, :32]
    spot = np.exp(-((y - 12) ** 2 + (x - 14) ** 2) / 20).astype(np.float32)
    other = np.exp(-((y - 12.3) ** 2 + (x - 13.6) ** 2) / 20).astype(np.float32)
    np.testing.assert_allclose(find_shift(spot, other, refinement="parabola").shift, [-0.3, 0.4], atol=0.01)


def test_axes_of_one_pixel_and_empty_images():
    line = laws.draw((1, 16))
    np.testing.assert_allclose(find_shift(line, np.roll(line, -3, 1)).shift, [0, 3], atol=0.011)
    empty = find_shift(np.zeros((4, 5), np.float32), laws.draw((4, 5)), phase=True)
    assert np.isfinite(empty.shift).all()
    assert empty.value == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dimensions": 1}, "2 dimensions"), ({"moving": np.ones((4, 6))}, "not of one size"),
        ({"reference": np.ones((2, 4, 5)), "moving": np.ones((3, 4, 5))}, "do not match"),
        ({"dimensions": 3}, "not of one size"), ({"refinement": "cubic"}, "refined"), ({"upsampling": 0}, "upsampling"),
        ({"moving": np.full((4, 5), np.nan)}, "finite"),
    ],
)  # fmt: skip
def test_refused(options, message):
    with pytest.raises(UserError, match=message):
        find_shift(**{"reference": np.ones((4, 5)), "moving": np.ones((4, 5)), **options})
