"""Differences and total variation on a device against the CPU kernels, which `tests/kernels` holds against formulas."""

import numpy as np
import pytest

from dtomo.kernels.cuda.compiling import CudaKernel
from dtomo.kernels.differences import differences, negative_divergence, total_variation, total_variation_gradient
from tests import laws

SPACINGS = [(2.0, 0.5, 1.25), (0.5, 1.25)]
SHAPES = [(1, 1, 1), (1, 3, 4), (3, 4, 1), (2, 3, 5)]


@pytest.fixture(params=[((1, 1, 1), (3, 2)), ((2, 1, 2), (2, 1, 1))], ids=str)
def grid(request, monkeypatch):
    """Small blocks of threads, and grids that do not cover the volume."""
    launch = CudaKernel.launch
    blocks, threads = request.param
    monkeypatch.setattr(CudaKernel, "launch", lambda kernel, _, *a: launch(kernel, blocks, *a, threads=threads))


@pytest.fixture(autouse=True)
def spoiled(cupy, monkeypatch):
    """New memory holds NaN."""
    monkeypatch.setattr(cupy, "empty", lambda shape, dtype: cupy.full(shape, np.nan, dtype))


def calls(shape, spacing, dtype):
    """Function, its array, and its other arguments: without and with neighbours."""
    volume, field = laws.draw(shape, dtype), laws.draw((len(spacing), *shape), dtype, 1)
    below, above = laws.draw(shape[1:], dtype, 2), laws.draw(shape[1:], dtype, 3)
    yield differences, volume, {}
    yield differences, volume, {"after": above}
    yield negative_divergence, field, {}
    yield negative_divergence, field, {"before": below, "ends": False}
    yield total_variation, volume, {"smoothing": 0.3}
    yield total_variation, volume, {"after": above}
    yield total_variation_gradient, volume, {"smoothing": 0.3}
    yield total_variation_gradient, volume, {"smoothing": 0.3, "before": below, "after": above}


@pytest.mark.parametrize("innermost", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_as_on_the_cpu(cupy, grid, record_error, shape, spacing, dtype, innermost):
    for function, array, options in calls(shape, spacing, dtype):
        expected = function(array, spacing, **options)
        device = cupy.asarray(array)
        if innermost:
            device = np.moveaxis(cupy.ascontiguousarray(np.moveaxis(device, -3, -1)), -1, -3)
        planes = {k: cupy.asarray(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
        found = function(device, spacing, **planes)
        assert isinstance(found, cupy.ndarray)
        assert found.dtype == expected.dtype
        if found.ndim >= 3 and min(shape) > 1:
            assert found[(0,) * (found.ndim - 3)].strides == device[(0,) * (device.ndim - 3)].strides
        record_error(found, expected)
        np.testing.assert_allclose(found.get(), expected, rtol=2e-6, atol=2e-6 * np.abs(expected).max())


def test_planes_on_the_host_are_refused(cupy):
    volume = cupy.asarray(laws.draw((2, 3, 4)))
    with pytest.raises(TypeError, match="host"):
        differences(volume, (1, 1, 1), after=laws.draw((3, 4)))
