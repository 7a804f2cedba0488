"""Rays of any direction on a device: the projections of the CPU, the matched adjoint, and where arrays lie."""

import numpy as np
import pytest

from dtomo.geometry import cone_beam, fan_beam, laminography, tilt_series
from dtomo.kernels.cuda import rays
from dtomo.kernels.cuda.compiling import CudaKernel
from dtomo.operators.rays import RayProjector
from tests import laws

ANGLES = [3, 71, 200]
ROUND = {"source_axis": 20, "source_detector": 30, "shape": (3, 4, 5), "voxel": 1.1, "pixel": 1.3}
GEOMETRIES = {
    "cone": cone_beam(ANGLES, 4, 5, **ROUND),
    "turned detector": cone_beam(ANGLES, 3, 6, **ROUND, roll=7, pitch=4, center=2.2),
    "fan": fan_beam(ANGLES, 5, slices=3, **ROUND),
    "laminography": laminography(ANGLES, 4, 5, tilt=65, shape=(3, 4, 5)),
    "tilt series": tilt_series(ANGLES, 4, 5, shape=(3, 4, 5), axis_angle=30),
    "beside the source": cone_beam([3, -4], 4, 5, **ROUND | {"pixel": (1.3, 30.0)}).replace(middle=(5.5, -20.0, 0.0)),
}


@pytest.fixture(params=[((1, 1, 1), (3, 2, 1)), ((2, 1, 2), (2, 1, 1))], ids=str)
def grid(request, monkeypatch):
    """Small blocks of threads, and grids that do not cover what is computed."""
    launch = CudaKernel.launch
    blocks, threads = request.param
    monkeypatch.setattr(CudaKernel, "launch", lambda kernel, _, *a: launch(kernel, blocks, *a, threads=threads))


@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_same_as_on_the_cpu(cupy, grid, record_error, monkeypatch, name):
    monkeypatch.setattr(rays, "VIEWS", 2)
    here = RayProjector(GEOMETRIES[name])
    there = RayProjector(GEOMETRIES[name], like=cupy.zeros(1))
    x, y = laws.draw(here.shape_in), laws.draw(here.shape_out)
    forward, back = there.forward(cupy.asarray(x)), there.adjoint(cupy.asarray(y))
    assert isinstance(forward, cupy.ndarray)
    assert isinstance(there.zeros(), cupy.ndarray)
    record_error(forward, here.forward(x))
    np.testing.assert_allclose(forward.get(), here.forward(x), atol=2e-5)
    np.testing.assert_allclose(back.get(), here.adjoint(y), atol=2e-5)
    assert abs(np.vdot(forward.get(), y) - np.vdot(x, back.get())) <= 1e-5 * np.linalg.norm(x) * np.linalg.norm(y)


def test_complex_volumes_are_two_real_ones(cupy):
    operator = RayProjector(GEOMETRIES["cone"].of_views([1]), np.complex64)
    x = laws.draw(operator.shape_in, np.complex64)
    found = operator.forward(cupy.asarray(x))
    np.testing.assert_allclose(found.get(), operator.forward(x), atol=2e-5)
