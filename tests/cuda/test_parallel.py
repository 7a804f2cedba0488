"""Projector kernels for devices: against the CPU's and against each other, on shapes with edges."""

import numpy as np
import pytest

from dtomo.kernels import parallel_cpu
from dtomo.kernels.cuda import parallel
from dtomo.kernels.weights import rays
from tests import laws

SMALL = parallel.Grid(warps=4, most=1)
ANGLES = np.deg2rad([0.0, 17.0, 45.0, 90.0, 133.0, 271.0])


def both(cupy, table, volume_shape, sinogram_shape, grid=SMALL, seed=0):
    """[(on the device, on the CPU)] of forward and adjoint."""
    found = []
    for name, shape, out in (("forward", volume_shape, sinogram_shape), ("adjoint", sinogram_shape, volume_shape)):
        source = laws.draw(shape, seed=seed)
        expected, target = np.empty(out, np.float32), cupy.full(out, np.nan, np.float32)
        getattr(parallel_cpu, name)(source, expected, table)
        getattr(parallel, name)(cupy.asarray(source), target, table, grid)
        found.append((target.get(), expected))
    return found


@pytest.mark.parametrize("slices", [1, 2, 33])
@pytest.mark.parametrize(
    ("columns", "width", "height", "center", "pitch"), [(6, 5, 7, 2.5, 1.0), (5, 9, 6, 1.3, 1.7), (11, 5, 4, 7.0, 0.5)]
)
def test_against_the_cpu(cupy, slices, columns, width, height, center, pitch):
    table = rays(ANGLES, center, columns, width, height, pitch)
    for found, expected in both(cupy, table, (height, width, slices), (len(ANGLES), columns, slices)):
        assert laws.norm(found - expected) <= 2e-7 * laws.norm(expected)
