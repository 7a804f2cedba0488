"""Euler angles of the programs and matrices."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dtomo.errors import UserError
from dtomo.io.particles.angles import to_angles, to_matrices

PROGRAMS = ("pytom", "relion", "dynamo")


def rz(degrees: float) -> np.ndarray:
    c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    return np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])


def rx(degrees: float) -> np.ndarray:
    c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    return np.array([[1, 0, 0], [0, c, -s], [0, s, c]])


def ry(degrees: float) -> np.ndarray:
    c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    return np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])


def test_matrices_are_the_products_of_the_table():
    a, b, c = 12.0, 75.0, -130.0
    np.testing.assert_allclose(to_matrices([a, b, c], "pytom"), rz(c) @ rx(b) @ rz(a), atol=1e-14)
    np.testing.assert_allclose(to_matrices([a, b, c], "relion"), rz(-c) @ ry(-b) @ rz(-a), atol=1e-14)
    np.testing.assert_allclose(to_matrices([a, b, c], "dynamo"), rz(-a) @ rx(-b) @ rz(-c), atol=1e-14)


def test_a_pair_known_from_dynamo_and_relion_is_one_matrix():
    # angles of one particle that give the same reconstruction in both programs (tests of the package eulerangles)
    dynamo, relion = (-47.2730, 1.1777, -132.3000), (137.7000, 1.1777, 42.7270)
    np.testing.assert_allclose(to_matrices(dynamo, "dynamo"), to_matrices(relion, "relion"), atol=1e-6)


@pytest.mark.parametrize("program", PROGRAMS)
def test_matrices_come_back_from_angles(program):
    matrices = Rotation.random(1000, random_state=3).as_matrix()
    again = to_matrices(to_angles(matrices, program), program)
    assert np.abs(again - matrices).max() < 1e-12


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("tilt", [0.0, 180.0, 1e-9])
def test_tilts_where_angles_are_not_unique(program, tilt):
    matrices = to_matrices([[20.0, tilt, 35.0], [-100.0, tilt, 170.0]], program)
    np.testing.assert_allclose(to_matrices(to_angles(matrices, program), program), matrices, atol=1e-7)


def test_what_is_no_rotation_is_refused():
    for wrong in (np.ones((3, 3)), -np.eye(3), np.full((3, 3), np.nan)):
        with pytest.raises(UserError, match="rotation matrices"):
            to_angles(wrong, "pytom")
    with pytest.raises(UserError, match="finite"):
        to_matrices([0.0, np.inf, 0.0], "relion")


def test_no_particles_have_no_angles():
    assert to_matrices(np.zeros((0, 3)), "pytom").shape == (0, 3, 3)
    assert to_angles(np.zeros((0, 3, 3)), "pytom").shape == (0, 3)
