"""Filtered back projection of any geometry on a device against the CPU."""

import numpy as np
import pytest

from dtomo.algorithms import fdk
from dtomo.geometry import cone_beam, tilt_series
from tests import laws

ANGLES = np.arange(0, 360, 60.0)
ROUND = {"source_axis": 20, "source_detector": 30, "shape": (2, 3, 4)}


@pytest.mark.parametrize(
    "geometry",
    [
        cone_beam(ANGLES, 4, 5, **ROUND),
        cone_beam(ANGLES, 4, 6, **ROUND, center=1.2),
        tilt_series(ANGLES[:4], 4, 5, shape=(2, 3, 4), axis_angle=30),
    ],
    ids=["cone", "half fan", "filtered in two dimensions"],
)
def test_the_same_as_on_the_cpu(cupy, few_threads, geometry):
    projections = laws.draw((geometry.views, geometry.rows, geometry.columns))
    expected = fdk(projections, geometry, filter="hann")
    found = fdk(cupy.asarray(projections), geometry, filter="hann")
    assert isinstance(found, cupy.ndarray)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.get(), expected, atol=2e-5 * np.abs(expected).max())
