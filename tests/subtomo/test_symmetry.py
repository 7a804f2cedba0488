"""Point groups: that they are groups, where their axes lie, angles and equivalent orientations."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dtomo.errors import UserError
from dtomo.subtomo.symmetry import angle_between, nearest_equivalent, symmetry_group

ORDERS = {
    "C1": 1,
    "C2": 2,
    "c7": 7,
    "D1": 2,
    "D2": 4,
    "D5": 10,
    "T": 12,
    "O": 24,
    "I": 60,
    "I1": 60,
    "I3": 60,
    "I4": 60,
}
TURNS = Rotation.random(20, random_state=1).as_matrix()


def holds(group: np.ndarray, matrix: np.ndarray) -> bool:
    return bool(np.abs(group - matrix).max((1, 2)).min() < 1e-9)


@pytest.mark.parametrize("name", ORDERS)
def test_a_group_is_closed_and_starts_with_the_identity(name):
    group = symmetry_group(name)
    assert group.shape == (ORDERS[name], 3, 3)
    assert np.array_equal(group[0], np.eye(3))
    np.testing.assert_allclose(np.linalg.det(group), 1, atol=1e-12)
    np.testing.assert_allclose(group @ group.transpose(0, 2, 1), np.broadcast_to(np.eye(3), group.shape), atol=1e-12)
    assert all(holds(group, one @ other) for one in group[-8:] for other in group[:7])
    distances = np.abs(group[:, None] - group).max((2, 3)) + 9 * np.eye(len(group))
    assert distances.min() > 1e-3


@pytest.mark.parametrize(
    ("name", "fold", "axis"),
    [
        ("C4", 4, (0, 0, 1)),
        ("D3", 3, (0, 0, 1)),
        ("D3", 2, (1, 0, 0)),
        ("T", 3, (0, 0, 1)),
        ("T", 2, (0, 0.816496580927726, 0.5773502691896258)),
        ("O", 4, (1, 0, 0)),
        ("O", 3, (1, 1, 1)),
        ("I", 5, (0.5257311121191336, 0, 0.8506508083520399)),
        ("I", 3, (0, 0.35682208977309, 0.9341723589627157)),
        ("I2", 2, (0, 1, 0)),
        ("I1", 5, (0.8506508083520399, 0, -0.5257311121191336)),
        ("I1", 3, (0.9341723589627157, 0.35682208977309, 0)),
        ("I3", 5, (0, 0, 1)),
        ("I3", 2, (-0.5257311121191336, 0, 0.8506508083520399)),
        ("I3", 3, (-0.4911234731884231, 0.35682208977309, 0.7946544722917661)),
        ("I4", 5, (0.8944271909999159, 0, 0.4472135954999579)),
        ("I4", 3, (0.4911234731884231, 0.35682208977309, 0.7946544722917661)),
    ],
)
def test_axes_lie_as_in_relion(name, fold, axis):
    direction = np.array(axis) / np.linalg.norm(axis)
    assert holds(symmetry_group(name), Rotation.from_rotvec(2 * np.pi / fold * direction).as_matrix())


@pytest.mark.parametrize("name", ["I1", "O"])
def test_the_same_rotations_as_scipy(name):
    expected = Rotation.create_group(name[0]).as_matrix()
    assert all(holds(symmetry_group(name), matrix) for matrix in expected)


def test_angles():
    turn = Rotation.from_rotvec([[1e-7, 0, 0], [0, 0.3, 0.4], [0, 0, np.pi]])
    found = angle_between(TURNS[:3], TURNS[:3] @ turn.as_matrix())
    np.testing.assert_allclose(found, np.degrees(turn.magnitude()), rtol=1e-7)
    expected = (Rotation.from_matrix(TURNS[:10]).inv() * Rotation.from_matrix(TURNS[10:])).magnitude()
    np.testing.assert_allclose(angle_between(TURNS[:10], TURNS[10:]), np.degrees(expected), atol=1e-9)


def test_angles_under_a_group_are_those_to_the_nearest_equivalent():
    group = symmetry_group("D3")
    small = Rotation.from_rotvec([0.02, -0.05, 0.03])
    for g in group:
        assert angle_between(TURNS[0], TURNS[0] @ small.as_matrix() @ g, group) == pytest.approx(
            np.degrees(small.magnitude()), abs=1e-9
        )
    nearest = nearest_equivalent(TURNS[:10], TURNS[10:], group)
    np.testing.assert_allclose(
        angle_between(nearest, TURNS[10:]), angle_between(TURNS[:10], TURNS[10:], group), atol=1e-9
    )
    assert all(holds(one @ group, other) for one, other in zip(TURNS[:10], nearest))


def test_the_groups_cell_has_one_place_for_equivalent_orientations():
    group = symmetry_group("O")
    expected = nearest_equivalent(TURNS, np.eye(3), group)
    for g in group[[3, 11, 20]]:
        np.testing.assert_allclose(nearest_equivalent(TURNS @ g, np.eye(3), group), expected, atol=1e-9)


@pytest.mark.parametrize("name", ["", "C", "C0", "D1000", "X2", "I5", "C4v", "4"])
def test_other_names_are_refused(name):
    with pytest.raises(UserError, match="a symmetry is one of Cn, Dn"):
        symmetry_group(name)
