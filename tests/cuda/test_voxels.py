"""Voxel-driven back projection on a device against the CPU, which `tests/kernels` holds against SciPy."""

import numpy as np
import pytest

from dtomo.kernels.cuda import voxels
from dtomo.kernels.cuda.compiling import CudaKernel
from dtomo.kernels.voxels import backproject
from tests import laws
from tests.kernels.voxel_cases import CASES, index_matrices

SHAPE = (3, 2, 4)


@pytest.fixture(params=[((1, 1, 1), (3, 2, 1)), ((2, 1, 2), (2, 1, 1))], ids=str)
def grid(request, monkeypatch):
    """Small blocks of threads, and grids that do not cover the volume."""
    launch = CudaKernel.launch
    blocks, threads = request.param
    monkeypatch.setattr(CudaKernel, "launch", lambda kernel, _, *a: launch(kernel, blocks, *a, threads=threads))


@pytest.mark.parametrize("name", ["cone", "cone-flipped", "cone-tilted", "fan", "tilts"])
def test_the_same_as_on_the_cpu(cupy, grid, record_error, monkeypatch, name):
    monkeypatch.setattr(voxels, "VIEWS", 3)
    geometry = CASES[name][0].replace(shape=SHAPE, voxel=(9.0, 7.0, 5.0))
    projections = laws.draw((geometry.views, geometry.columns, geometry.rows - 2))
    matrices, plain = index_matrices(geometry), geometry.beam == "fan"
    expected = laws.draw((SHAPE[1], SHAPE[2], 2))
    found = cupy.asarray(expected)
    options = {"plain": plain, "first": 1, "slices": SHAPE[0], "first_row": 1}
    backproject(projections, expected, matrices, **options)
    backproject(cupy.asarray(projections), found, matrices, **options)
    record_error(found, expected)
    np.testing.assert_allclose(found.get(), expected, atol=2e-5)


def test_host_and_device_are_not_mixed(cupy):
    with pytest.raises(TypeError, match="move them first"):
        backproject(np.zeros((1, 4, 4), np.float32), cupy.zeros((2, 2, 2), np.float32), np.zeros((1, 3, 4)))
