"""Rotations on a device against the CPU, which `tests/kernels` holds against scipy.ndimage."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dtomo.kernels.cuda.compiling import CudaKernel
from dtomo.kernels.rotation import rotate, spline_coefficients
from tests import laws

TURN = Rotation.random(3, random_state=3).as_matrix()


@pytest.fixture(params=[((1, 1, 1), (3, 2)), ((2, 1, 2), (2, 1, 1))], ids=str)
def grid(request, monkeypatch):
    """Small blocks of threads, and grids that do not cover the volume."""
    launch = CudaKernel.launch
    blocks, threads = request.param
    monkeypatch.setattr(CudaKernel, "launch", lambda kernel, _, *a: launch(kernel, blocks, *a, threads=threads))


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("order", [1, 3])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 3, 4), (4, 3, 2)])
def test_the_same_as_on_the_cpu(cupy, grid, record_error, shape, order, dtype):
    volume = laws.draw(shape, dtype)
    shifts = np.random.default_rng(5).uniform(-1, 1, (3, 3))
    expected = rotate(volume, TURN, shifts, order=order, outside=0.7)
    found = rotate(cupy.asarray(volume), TURN, shifts, order=order, outside=0.7)
    assert isinstance(found, cupy.ndarray)
    assert found.dtype == dtype
    record_error(found, expected)
    np.testing.assert_allclose(found.get(), expected, atol=2e-6)


def test_coefficients_are_found_on_the_device(cupy):
    volume = laws.draw((4, 3, 5))
    found = spline_coefficients(cupy.asarray(volume))
    assert isinstance(found, cupy.ndarray)
    np.testing.assert_allclose(found.get(), spline_coefficients(volume), atol=1e-6)
