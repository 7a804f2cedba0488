"""Light and step lengths of solvers against NumPy, written out."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dtomo import threads
from dtomo.kernels import steps

ROWS, COLUMNS = 9, 7
CORNERS = np.array([[0, 0], [3, 5], [11, 13], [3, 4], [10, 0]])


def _waves(seed: int, *shape: int, dtype: Any = np.complex64) -> NDArray[Any]:
    random = np.random.default_rng(seed)
    return (random.normal(size=shape) + 1j * random.normal(size=shape)).astype(dtype)


def _under(image: NDArray[Any]) -> NDArray[Any]:
    return np.stack([image[..., row : row + ROWS, column : column + COLUMNS] for row, column in CORNERS])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_light_of_frames(dtype: Any) -> None:
    power = np.abs(_waves(0, ROWS, COLUMNS)).astype(dtype)
    weights = np.linspace(0.5, 2, len(CORNERS))
    expected = np.zeros((20, 20))
    for weight, (row, column) in zip(weights, CORNERS):
        expected[row : row + ROWS, column : column + COLUMNS] += weight * power
    found = steps.light(power, weights, CORNERS, (20, 20))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_light_through_the_object_is_added() -> None:
    image, weights = _waves(1, 2, 20, 20), np.linspace(0.5, 2, len(CORNERS))
    out = np.ones((ROWS, COLUMNS), np.float32)
    steps.transmitted(image, weights, CORNERS, out)
    expected = 1 + (weights[:, None, None, None] * np.abs(_under(image)) ** 2).sum((0, 1))
    np.testing.assert_allclose(out, expected, rtol=1e-5)


@pytest.mark.parametrize("frames", [1, len(CORNERS)], ids=["one probe", "a probe for each frame"])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_products(frames: int, dtype: Any) -> None:
    probes, changes = (_waves(seed, frames, 3, ROWS, COLUMNS, dtype=dtype) for seed in (2, 3))
    image, image_change = (_waves(seed, 2, 20, 20, dtype=dtype) for seed in (4, 5))
    waves = _waves(6, len(CORNERS), 2, 3, ROWS, COLUMNS, dtype=dtype)
    x = probes[:, None] * _under(image_change)[:, :, None]
    y = changes[:, None] * _under(image)[:, :, None]
    pairs = ((x, x), (y, y), (x, y), (x, waves), (y, waves))
    expected = np.stack([(np.conj(a) * b).real.sum((1, 2, 3, 4)) for a, b in pairs], 1)
    found = steps.products(probes, image, CORNERS, image_change, changes, waves)
    assert found.dtype == np.float64
    scale = np.sqrt(expected[:, :1] * expected[:, 1:2]) + np.abs(expected)
    assert (np.abs(found - expected) <= (1e-6 if dtype == np.complex64 else 1e-13) * scale).all()


def test_products_have_the_same_bits_with_any_number_of_threads() -> None:
    probes, changes = _waves(2, 1, 1, ROWS, COLUMNS), _waves(3, 1, 1, ROWS, COLUMNS)
    image, image_change = _waves(4, 1, 20, 20), _waves(5, 1, 20, 20)
    waves = _waves(6, len(CORNERS), 1, 1, ROWS, COLUMNS)
    before = threads.get_threads()
    try:
        found = []
        for count in (1, 2, 3):
            threads.set_threads(count)
            found.append(steps.products(probes, image, CORNERS, image_change, changes, waves).tobytes())
    finally:
        threads.set_threads(before)
    assert found[0] == found[1] == found[2]
