"""C21: Euler angles of RELION and PyTom are rotations in one sense, in one order."""

import numpy as np
import scipy.ndimage
from scipy.spatial.transform import Rotation

from dtomo.io.particles import Particles, read_particles, write_particles
from dtomo.io.particles.angles import to_angles, to_matrices
from dtomo.kernels.rotation import rotate

TABLE = [[0.043412, 0.909616, -0.413176], [-0.829598, 0.263258, 0.492404], [0.556670, 0.321394, 0.766044]]


def test_relion_30_40_50_is_the_matrix_of_the_table():
    found = to_matrices([30.0, 40.0, 50.0], "relion")
    np.testing.assert_allclose(found, TABLE, atol=1e-6)
    np.testing.assert_allclose(found, Rotation.from_euler("ZYZ", [30, 40, 50], degrees=True).as_matrix().T, atol=1e-14)


def test_pytom_turns_by_z1_then_x_then_z2_whatever_the_order_of_its_attributes():
    z1, z2, x = 303.99187, 272.86359, 75.70288
    found = to_matrices([z1, x, z2], "pytom")
    parts = [Rotation.from_euler(axis, angle, degrees=True) for axis, angle in (("z", z1), ("x", x), ("z", z2))]
    np.testing.assert_allclose(found, (parts[2] * parts[1] * parts[0]).as_matrix(), atol=1e-14)
    c, s = (lambda a: np.cos(np.deg2rad(a))), (lambda a: np.sin(np.deg2rad(a)))
    np.testing.assert_allclose(found[2], [s(x) * s(z1), s(x) * c(z1), c(x)], atol=1e-14)
    np.testing.assert_allclose(found[:, 2], [s(x) * s(z2), -s(x) * c(z2), c(x)], atol=1e-14)


def test_zxz_and_zyz_angles_of_one_matrix_differ_by_quarter_turns():
    random = np.random.default_rng(0)
    for z1, x, z2 in random.uniform((-180, 1, -180), (180, 179, 180), (20, 3)):
        np.testing.assert_allclose(
            to_matrices([z1, x, z2], "pytom"), to_matrices([90 - z1, x, -90 - z2], "relion"), atol=1e-12
        )


def test_there_and_back_between_the_programs(tmp_path):
    rotations = Rotation.random(1000, random_state=1).as_matrix()
    flat = to_matrices([[20, 0, 30], [20, 180, 30], [0, 0, 0], [-170, 180, 90]], "pytom")
    rotations = np.concatenate([rotations, flat])
    now = Particles(rotations, np.zeros((len(rotations), 3)))
    for suffix in (".xml", ".star", ".xml", ".tbl", ".em", ".xml", ".star"):
        write_particles(tmp_path / f"list{suffix}", now, overwrite=True)
        now = read_particles(tmp_path / f"list{suffix}")
    assert np.abs(now.rotations - rotations).max() < 1e-6


def test_an_asymmetric_object_turns_as_the_readme_of_the_data_says():
    """rotate() with the matrix of the angles is out(r) = ref(A^T (r - c) + c), A by SciPy's extrinsic zxz."""
    n = 24
    z, y, x = np.indices((n, n, n)) - n // 2
    volume = sum(
        np.exp(-((x - a) ** 2 + (y - b) ** 2 + (z - c) ** 2) / 6.0) * height
        for a, b, c, height in ((5, 0, 0, 1.0), (0, 4, 1, 0.7), (-1, -2, 5, 0.5))
    ).astype(np.float32)
    angles = (40.0, 65.0, -20.0)
    matrix = Rotation.from_euler("zxz", angles, degrees=True).as_matrix()
    points = np.stack([x, y, z], -1) @ matrix  # A^T (r - c)
    wanted = scipy.ndimage.map_coordinates(volume, np.moveaxis(points[..., ::-1] + n // 2, -1, 0), order=3)
    found = rotate(volume, to_matrices(angles, "pytom")[None], np.zeros((1, 3)), order=3, center=(n // 2,) * 3)[0]
    correlations = [np.corrcoef(found.ravel(), other.ravel())[0, 1] for other in (wanted, volume)]
    assert correlations[0] > 0.999
    assert correlations[1] < 0.8
    assert np.abs(to_angles(to_matrices(angles, "pytom"), "pytom") - angles).max() < 1e-9
