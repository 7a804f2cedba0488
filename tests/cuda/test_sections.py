"""Projections in slices on a device against the CPU kernels, which `tests/operators` holds against the projector."""

import numpy as np
import pytest

from dtomo.geometry import ParallelBeam
from dtomo.kernels.cuda.compiling import CudaKernel
from dtomo.operators.sections import SectionsProjector
from tests import laws

SOME = np.array([4, 0, 3, 1])
BEAMS = [
    ParallelBeam([0.0, 17.0, 90.0, 133.0, 180.0], 7),
    ParallelBeam([3.0, 45.0, 271.0, 135.0, 200.0], 9, 3.3, 6, 5, 0.6),
    ParallelBeam([3.0, 45.0, 271.0, 135.0, 200.0], 4, 1.0, 5, 8, 2.0),
]


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


@pytest.mark.parametrize(("slices", "thickness"), [(1, 9.0), (3, 2.0), (5, 0.7)])
@pytest.mark.parametrize("beam", BEAMS, ids=["plain", "narrow pixels", "wide pixels"])
def test_the_same_as_on_the_cpu(cupy, grid, record_error, beam, slices, thickness):
    projector = SectionsProjector(beam, slices, thickness)
    volume = laws.draw((2, beam.height, beam.width), np.complex64)
    images = laws.draw((len(SOME), slices, 2, beam.columns), np.complex64, 1)
    for function, given in ((projector.forward, volume), (projector.adjoint, images)):
        expected, found = function(given, SOME), function(cupy.asarray(given), SOME)
        assert isinstance(found, cupy.ndarray)
        assert found.shape == expected.shape
        record_error(found, expected)
        np.testing.assert_allclose(found.get(), expected, atol=2e-6 * np.abs(expected).max())


def test_arrays_in_two_places_are_refused(cupy):
    from dtomo.kernels import sections
    from dtomo.operators.projection import joseph_rays

    beam = BEAMS[0]
    volume, images = laws.draw((7, 7, 2)), cupy.asarray(laws.draw((5, 3, 7, 2)))
    with pytest.raises(TypeError, match="host"):
        sections.forward(volume, images, joseph_rays(beam), beam.radians, 2.0)
    with pytest.raises(TypeError, match="host"):
        sections.adjoint(images, volume, joseph_rays(beam), beam.radians, 2.0)
