"""Grids of rotations: how many, how far apart, and that nothing is left uncovered."""

import numpy as np
import pytest
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from dtomo.errors import UserError
from dtomo.subtomo.rotations import local_rotations, uniform_rotations
from dtomo.subtomo.symmetry import angle_between, symmetry_group

START = Rotation.from_euler("zxz", (40, 70, -20), degrees=True).as_matrix()
EVEN_COVERING = 5**0.5 / (2 * 3**0.5)
"""Covering radius of the lattice, in increments."""


def distances(samples, grid, group=None):
    """Degrees from each sample to the nearest of a grid: chords of unit quaternions, of either sign."""
    turned = grid[:, None] @ (np.eye(3)[None] if group is None else group)
    quaternions = Rotation.from_matrix(turned.reshape(-1, 3, 3)).as_quat()
    tree = cKDTree(np.concatenate([quaternions, -quaternions]))
    chord = tree.query(Rotation.from_matrix(samples).as_quat())[0]
    return np.degrees(4 * np.arcsin(np.minimum(chord / 2, 1)))


@pytest.mark.parametrize("increment", [7.3, 12, 20, 60, 90])
def test_no_rotation_is_farther_than_the_increment_from_a_uniform_grid(increment):
    grid = uniform_rotations(increment)
    found = distances(Rotation.random(20000, random_state=1).as_matrix(), grid)
    assert found.max() <= increment
    ideal = 8 * np.pi**2 / (np.deg2rad(increment) ** 3)  # cubes with that edge
    assert len(grid) < 2.2 * ideal or increment > 30
    if increment < 30:
        assert found.max() > 0.6 * increment  # nor is it finer than it says


def test_a_uniform_grid_is_uniform():
    """Any ball of rotations holds its share: 1500 random balls of 30 degrees."""
    grid = uniform_rotations(10)
    assert len(grid) == 12 * 6**2 * 36
    quaternions = Rotation.from_matrix(grid).as_quat()
    middles = Rotation.random(1500, random_state=2).as_quat()
    tree = cKDTree(np.concatenate([quaternions, -quaternions]))
    counts = tree.query_ball_point(middles, 2 * np.sin(np.deg2rad(30) / 4), return_length=True)
    share = (np.deg2rad(30) - np.sin(np.deg2rad(30))) / np.pi
    assert counts.mean() == pytest.approx(share * len(grid), rel=0.01)
    assert counts.std() < 0.1 * counts.mean()


@pytest.mark.parametrize(
    ("name", "most"), [("C4", 1), ("C7", 1), ("D2", 1), ("D5", 1), ("T", 1.7), ("O", 1.9), ("I", 2.9), ("I3", 2.9)]
)
def test_a_symmetry_leaves_its_share_and_nothing_uncovered(name, most):
    group = symmetry_group(name)
    grid = uniform_rotations(9.0, name)
    turns = 40 if name[0] not in "CD" else int(name[1:]) * int(np.ceil(40 / int(name[1:])))
    whole = 12 * 7**2 * turns
    assert len(grid) <= most * whole / len(group) + 1e-9
    found = distances(Rotation.random(5000, random_state=3).as_matrix(), grid, group)
    assert found.max() <= 9.0
    if most == 1:
        assert len(grid) == whole / len(group)
        few = grid[:: len(grid) // 50 + 1]
        apart = angle_between(few[:, None], grid[None], group)
        assert (apart < 1).sum() == len(few)  # no two that say the same


def test_even_local_rotations():
    grid = local_rotations(START, 3, 4.0)
    assert np.array_equal(grid[0], START @ np.eye(3))
    angles = angle_between(START, grid)
    assert (np.diff(angles) >= -1e-4).all()
    assert angles.max() <= 12 + 1e-6
    apart = angle_between(grid[:, None], grid[None]) + 100 * np.eye(len(grid))
    assert apart.min() == pytest.approx(4.0, rel=0.01)
    rng = np.random.default_rng(4)
    directions = rng.standard_normal((20000, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    lengths = (12 - 4 * EVEN_COVERING) * rng.random(20000) ** (1 / 3)
    samples = START @ Rotation.from_rotvec(np.deg2rad(lengths)[:, None] * directions).as_matrix()
    assert distances(samples, grid).max() <= EVEN_COVERING * 4.0 + 1e-6
    assert distances(samples, grid).max() > 0.9 * EVEN_COVERING * 4.0
    assert 120 < len(grid) < 200


@pytest.mark.parametrize("increment", [0.5, 1.0, 3.0, 10.0])
@pytest.mark.parametrize(("shells", "count"), [(0, 1), (2, 40), (3, 147), (4, 189)])
def test_glocal_is_pytoms_set(shells, count, increment):
    grid = local_rotations(START, shells, increment, kind="glocal")
    assert len(grid) == count
    np.testing.assert_allclose(grid[-1], START, atol=1e-12)
    about_z = Rotation.from_euler("z", increment, degrees=True).as_matrix() @ START  # one turn about the tomogram's z
    assert shells == 0 or abs(grid - about_z).max((1, 2)).min() < 1e-9
    tilts = np.degrees(np.arccos(np.clip((grid @ START.T)[:, 2, 2], -1, 1)))
    assert tilts.max() == pytest.approx(-(-shells // 2) * increment, abs=1e-4)


def test_what_makes_no_sense_is_refused():
    for wrong in (0.1, 91, np.nan):
        with pytest.raises(UserError, match="increment of a global search"):
            uniform_rotations(wrong)
    with pytest.raises(UserError, match="more than 20000000"):
        uniform_rotations(0.6)
    with pytest.raises(UserError, match="a symmetry is one of"):
        uniform_rotations(10, "Q")
    with pytest.raises(UserError, match="starts from a rotation matrix"):
        local_rotations(np.diag([1, 1, -1]), 3, 3)
    with pytest.raises(UserError, match="number of shells"):
        local_rotations(START, 1.5, 3)
    with pytest.raises(UserError, match="an angle above 0"):
        local_rotations(START, 3, 0)
    with pytest.raises(UserError, match="beyond half a turn"):
        local_rotations(START, 30, 10)
    with pytest.raises(UserError, match="even or glocal"):
        local_rotations(START, 3, 3, kind="odd")
