"""C13: matched adjoint."""

import numpy as np
import pytest

from dtomo.geometry import ParallelBeam
from dtomo.operators import ParallelProjector

UNEVEN = np.sort(np.random.default_rng(13).uniform(-20, 380, 19))


def mismatch(operator, seed=0):
    rng = np.random.default_rng(seed)

    def normal(shape):
        values = rng.standard_normal(shape)
        if operator.dtype.kind == "c":
            values = values + 1j * rng.standard_normal(shape)
        return values.astype(operator.dtype)

    x, y = normal(operator.shape_in), normal(operator.shape_out)
    image, back = operator.forward(x), operator.adjoint(y)
    double = np.complex128
    one = np.vdot(y.astype(double), image.astype(double))
    two = np.vdot(back.astype(double), x.astype(double))
    return abs(one - two) / (np.linalg.norm(image.astype(double)) * np.linalg.norm(y.astype(double)))


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("slices", [31, 29])
def test_parallel_beam(dtype, slices):
    """Slices of 17 x 23 voxels, 37 columns, 19 uneven angles."""
    geometry = ParallelBeam(UNEVEN, 37, width=23, height=17)
    assert mismatch(ParallelProjector(geometry, slices, dtype)) <= 1e-6


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(
    "change",
    [
        {"pitch": 0.5},
        {"pitch": 2.3},
        {"center": 3.7},
        {"center": -11.0},
        {"angles": [33.0]},
        {"columns": 1, "center": 0.25},
    ],
    ids=str,
)
def test_other_detectors(dtype, change):
    geometry = ParallelBeam(UNEVEN, 37, width=23, height=17).replace(**change)
    for slices in (1, 2, 31):
        assert mismatch(ParallelProjector(geometry, slices, dtype), slices) <= 1e-6
