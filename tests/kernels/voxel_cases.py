"""Geometries that back projection is tried with, as matrices, and the sum it shall give."""

import numpy as np

from dtomo.geometry import cone_beam, fan_beam, laminography, tilt_series
from tests import laws

SHAPE = (37, 17, 23)
ANGLES = [0.0, 33.0, 90.0, 200.0, 271.0]
ROUND = {"shape": SHAPE, "source_axis": 60, "source_detector": 90}
CASES = {  # constructor's result, whether columns do not depend on z
    "cone": (cone_beam(ANGLES, 41, 33, **ROUND, center=15.2, center_row=18), True),
    "cone-flipped": (cone_beam(ANGLES, 41, 33, **ROUND, voxel=(0.6, 1.1, 0.9)).replace(row_step=[0, 0, -1.2]), True),
    "cone-short-rows": (cone_beam(ANGLES, 13, 33, **ROUND, voxel=(0.9, 0.7, 0.7), pixel=(2.0, 1.0)), True),
    "cone-steep": (cone_beam(ANGLES, 90, 33, **ROUND, voxel=(1.5, 0.7, 0.7)), False),
    "cone-tilted": (cone_beam(ANGLES, 41, 33, **ROUND, roll=5, yaw=-3, pitch=4), False),
    "fan": (fan_beam(ANGLES, 33, slices=37, **ROUND), True),
    "tilts": (tilt_series(ANGLES, 19, 21, shape=SHAPE, axis_angle=4, beam_tilt=2), False),
    "laminography": (laminography(ANGLES, 31, 33, tilt=30, shape=SHAPE), True),
    "parallel": (laminography(ANGLES, 31, 33, tilt=0, shape=SHAPE, pixel=1.1, voxel=1.0), True),
}


def index_matrices(geometry):
    """Matrices that take numbers of voxels."""
    size = np.array(geometry.voxel)[::-1]
    first = np.array(geometry.middle) - (np.array(geometry.shape)[::-1] - 1) / 2 * size
    found = geometry.matrices()
    found[:, :, 3] += found[:, :, :3] @ first
    found[:, :, :3] *= size
    return found


def case(name):
    """(projections [view, column, row], matrices, plain)."""
    geometry = CASES[name][0]
    projections = laws.draw((geometry.views, geometry.columns, geometry.rows))
    return projections, index_matrices(geometry), geometry.beam == "fan"


def expected_volume(projections, matrices, plain, interpolate, shape=SHAPE):
    """Sum over views of what SciPy finds there."""
    z, y, x = np.indices(shape).astype(float)
    total = np.zeros(shape)
    for image, matrix in zip(projections, matrices):
        column, row, depth = np.tensordot(matrix, np.stack([x, y, z, np.ones_like(x)]), 1)
        places = [column / depth + 2, row + 2 if plain else row / depth + 2]
        total += interpolate(np.pad(image, 2), places, order=1, output=float) / depth**2
    return total
