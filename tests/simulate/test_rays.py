"""Phantoms along the rays of any geometry: against chords found by hand, the plain phantom, and numerical sums."""

import numpy as np
import pytest

from dtomo.geometry import ParallelBeam, VectorGeometry, cone_beam, fan_beam, tilt_series
from dtomo.simulate import Phantom, head, ray_integrals, voxel_values
from dtomo.simulate.rays import unit_of

BALL = Phantom(np.array([[2.0, 0.3, 0.3, 0.3, 0.0, 0.0, 0.0, 0.0]]))
ROUND = {"source_axis": 60, "source_detector": 90}


def test_the_middle_of_a_ball():
    for geometry in (
        cone_beam([0, 50], 7, 9, **ROUND), fan_beam([0, 50], 9, slices=3, **ROUND),
        tilt_series([0, 50], 7, 9, shape=(9, 9, 9)),
    ):  # fmt: skip
        found = ray_integrals(BALL, geometry, unit=10.0)
        np.testing.assert_allclose(found[:, geometry.rows // 2, geometry.columns // 2], 2 * 2 * 3.0, rtol=1e-6)


def test_a_ball_aside_in_a_cone_by_hand():
    geometry = cone_beam([0], 41, 41, **ROUND, pixel=0.5)
    phantom = Phantom(np.array([[1.0, 0.3, 0.3, 0.3, 0.1, 0.2, -0.15, 0.0]]))
    found = ray_integrals(phantom, geometry, unit=10.0)[0]
    row, column = 12, 25
    ray = np.array([(column - 20) * 0.5, 90, (row - 20) * 0.5])
    aside = np.cross(np.array([1.0, 2 + 60, -1.5]), ray / np.linalg.norm(ray))
    assert 0 < (aside @ aside) < 9
    np.testing.assert_allclose(found[row, column], 2 * np.sqrt(9 - aside @ aside), rtol=1e-6)


def test_the_same_as_the_plain_phantom_in_a_parallel_beam():
    angles, size = np.array([0.0, 20, 75, 140]), 24
    beam = ParallelBeam(angles, 30, 13.2, size, size, pitch=1.2)
    plain = head().projections(angles, size, 30, 13.2, pitch=1.2)
    found = ray_integrals(head(), VectorGeometry.of_parallel(beam, size), unit=0.95 * size / 2)
    assert unit_of(VectorGeometry.of_parallel(beam, size)) == 0.95 * size / 2
    columns_only = np.mean([
        ray_integrals(head(), VectorGeometry.of_parallel(beam.replace(center=13.2 + shift), size))
        for shift in (np.arange(40) + 0.5) / 40 - 0.5
    ], 0)  # fmt: skip
    np.testing.assert_allclose(columns_only, plain, atol=0.01)
    assert np.abs(found - plain).mean() < 0.02 * plain.max()  # pixels' middles in place of their means


def test_pixels_are_means_of_finer_ones():
    geometry = cone_beam([10, 200], 6, 8, **ROUND, roll=4, yaw=5)
    fine = geometry.replace(
        rows=18, columns=24, row_step=geometry.row_step / 3, column_step=geometry.column_step / 3
    )  # fmt: skip
    mean = ray_integrals(head(), fine, unit=3.0).reshape(2, 6, 3, 8, 3).mean((2, 4))
    np.testing.assert_allclose(ray_integrals(head(), geometry, unit=3.0, fine=3), mean, atol=1e-6)
    some = ray_integrals(head(), geometry, unit=3.0, fine=3, views=slice(1, 2))
    np.testing.assert_allclose(some[0], mean[1], atol=1e-6)


def test_a_source_beside_the_object_sees_it_all():
    """Boxes that reach behind the source are not cut off."""
    geometry = cone_beam([0], 61, 61, source_axis=6, source_detector=9, shape=(2, 2, 2))
    assert ray_integrals(Phantom(np.array([[1.0, 3, 0.6, 3, 0, -2.5, 0, 0]])), geometry, unit=2.0).min() > 0


@pytest.mark.parametrize("middle", [(0.0, 0.0, 0.0), (3.0, -2.0, 1.0)])
def test_voxels_hold_what_rays_meet(middle):
    geometry = VectorGeometry(
        "parallel", [0, 1, 0], [0, 0, 0], [1, 0, 0], [0, 0, 1], 29, 31, (30, 20, 40), (1.0, 1.5, 0.75), middle
    )
    phantom = Phantom(np.array([[1.0, 0.5, 0.7, 0.6, 0.1, 0.1, 0.1, 30.0], [-0.5, 0.2, 0.3, 0.2, 0.2, 0, 0, -20]]))
    volume = voxel_values(phantom, geometry, unit=10.0, fine=4)
    mass = 4 / 3 * np.pi * 1000 * (0.5 * 0.7 * 0.6 - 0.5 * 0.2 * 0.3 * 0.2)
    np.testing.assert_allclose(volume.sum() * 1.5 * 0.75, mass, rtol=2e-3)
    x = (np.arange(40) - 19.5) * 0.75 + middle[0]
    np.testing.assert_allclose((volume * x).sum() / volume.sum(), 1.0 - 0.02 * (2 - 1), atol=0.05)
    lines = volume.sum(1) * 1.5  # (z, x): along y, which all rays take
    middles = geometry.replace(
        rows=30, columns=40, column_step=[0.75, 0, 0], detector=[middle[0], 0, middle[2]]
    )  # fmt: skip
    rays = ray_integrals(phantom, middles, unit=10.0, fine=4)[0]
    assert np.abs(lines - rays).max() < 0.6
    np.testing.assert_allclose(lines.sum(), rays.sum(), rtol=2e-3)


def test_an_object_beside_the_volume_leaves_it_empty():
    geometry = cone_beam([0], 9, 9, **ROUND)
    assert not voxel_values(Phantom(np.array([[1.0, 0.1, 0.1, 0.1, 5, 0, 0, 0]])), geometry).any()
