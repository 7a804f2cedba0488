"""Correlation on device arrays against the CPU, which `tests/kernels` holds against scikit-image."""

import numpy as np
import pytest

from dtomo.kernels.correlation import correlate, find_shift
from tests import laws


@pytest.mark.parametrize("phase", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(("shape", "dimensions"), [((9, 8), 2), ((3, 7, 8), 2), ((5, 6, 4), 3), ((2, 1, 4, 3), 3)])
def test_the_same_as_on_the_cpu(cupy, shape, dimensions, dtype, phase):
    reference = laws.draw(shape, dtype)
    moving = np.roll(reference, (1, -2), (-2, -1)) + laws.draw(shape, dtype, 1) * np.float32(0.2)
    options = {"dimensions": dimensions, "phase": phase}
    images = cupy.asarray(reference), cupy.asarray(moving)
    found = correlate(*images, **options)
    assert isinstance(found, cupy.ndarray)
    np.testing.assert_allclose(found.get(), correlate(reference, moving, **options), atol=1e-5)
    for refinement in ("dft", "parabola", "none"):
        here = find_shift(reference, moving, refinement=refinement, upsampling=10, **options)
        there = find_shift(*images, refinement=refinement, upsampling=10, **options)
        assert isinstance(there.shift, np.ndarray)
        np.testing.assert_allclose(there.shift, here.shift, atol=1e-5)
        np.testing.assert_allclose(there.value, here.value, rtol=1e-5)


def test_images_on_both_sides_are_refused(cupy):
    image = laws.draw((4, 5))
    with pytest.raises(TypeError, match="host"):
        find_shift(cupy.asarray(image), image)
