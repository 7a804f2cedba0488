"""Light and step lengths of solvers on device arrays against the CPU's."""

import numpy as np
import pytest

from dtomo.kernels import steps

pytestmark = [pytest.mark.without_simulator, pytest.mark.usefixtures("cupy")]

ROWS, COLUMNS = 5, 4
CORNERS = np.array([[0, 0], [3, 5], [7, 2], [3, 4]])
WEIGHTS = np.linspace(0.5, 2, len(CORNERS))


def waves(seed, *shape):
    random = np.random.default_rng(seed)
    return (random.normal(size=shape) + 1j * random.normal(size=shape)).astype(np.complex64)


def test_light_of_frames(cupy):
    power = np.abs(waves(0, ROWS, COLUMNS))
    found = steps.light(cupy.asarray(power), WEIGHTS, CORNERS, (12, 11))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.get(), steps.light(power, WEIGHTS, CORNERS, (12, 11)), rtol=1e-6)


def test_light_through_the_object_is_added(cupy):
    image = waves(1, 2, 12, 11)
    there, here = cupy.asarray(np.ones((ROWS, COLUMNS), np.float32)), np.ones((ROWS, COLUMNS), np.float32)
    steps.transmitted(cupy.asarray(image), WEIGHTS, CORNERS, there)
    steps.transmitted(image, WEIGHTS, CORNERS, here)
    np.testing.assert_allclose(there.get(), here, rtol=1e-5)


@pytest.mark.parametrize("frames", [1, len(CORNERS)], ids=["one probe", "a probe for each frame"])
def test_products(cupy, frames):
    probes, changes = (waves(seed, frames, 3, ROWS, COLUMNS) for seed in (2, 3))
    image, image_change = (waves(seed, 2, 12, 11) for seed in (4, 5))
    left = waves(6, len(CORNERS), 2, 3, ROWS, COLUMNS)
    arrays = (probes, image, CORNERS, image_change, changes, left)
    found = steps.products(*(cupy.asarray(array) for array in arrays))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found.get(), steps.products(*arrays), rtol=1e-5, atol=1e-4)
