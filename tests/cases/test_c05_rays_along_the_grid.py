"""C05: rays along the grid."""

import numpy as np
import pytest

from dtomo.geometry import ParallelBeam
from dtomo.operators import ParallelProjector


@pytest.mark.parametrize("size", [10, 11])
@pytest.mark.parametrize("columns", [10, 11])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_one_voxel_is_seen_from_every_side(size, columns, dtype):
    geometry = ParallelBeam([0, 90, 180, 270], columns, width=size, height=size)
    volume = np.zeros((1, size, size), dtype)
    volume[0, size // 2, size // 2] = 1
    lines = ParallelProjector(geometry, 1, dtype).forward(volume)
    assert np.isfinite(lines).all()
    assert (np.abs(lines).max((1, 2)) > 0).all()
    np.testing.assert_allclose(lines.sum((1, 2)), 1, atol=1e-5)


@pytest.mark.parametrize("angle", [0, 90, 180, 270, 360, -90, 45, 135, 225, -45])
@pytest.mark.parametrize("size", [1, 2, 10, 11])
def test_no_direction_of_the_grid_divides_by_zero(angle, size):
    """Also a hair beside it, from where the components are as good as zero."""
    for offset in (0, 1e-14, -1e-14, 1e-9, -1e-7, 1e-5):
        operator = ParallelProjector(ParallelBeam([angle + offset], 31, width=size, height=size), 1)
        lines = operator.forward(np.ones(operator.shape_in, np.float32))
        assert np.isfinite(lines).all()
        if angle % 90 == 0:
            assert lines.sum() == pytest.approx(size**2, rel=1e-4)
        elif size > 2:
            assert lines.sum() == pytest.approx(size**2, rel=0.1)
        assert np.isfinite(operator.adjoint(np.ones(operator.shape_out, np.float32))).all()
