"""Rotations against scipy.ndimage, whole turns to the last bit, conventions, refusals."""

import numpy as np
import pytest
import scipy.ndimage
from scipy.spatial.transform import Rotation

from dtomo.errors import UserError
from dtomo.kernels.rotation import rotate, spline_coefficients
from tests import laws

TURN = Rotation.random(5, random_state=3).as_matrix()
SHAPES = [(9, 9, 9), (5, 8, 7), (1, 6, 5), (4, 1, 2), (1, 1, 1), (2, 2, 3)]


def scipy_rotated(volume, matrix, shift=(0, 0, 0), order=1, outside=0.0):
    """The same with `scipy.ndimage.affine_transform`, whose vectors are (z, y, x), in double precision."""
    back = matrix.T[::-1, ::-1]
    middle = (np.array(volume.shape) - 1) / 2
    offset = middle - back @ (middle + np.array(shift)[::-1])
    options = {"order": order, "mode": "constant", "offset": offset, "cval": outside}
    return scipy.ndimage.affine_transform(volume.astype(np.result_type(volume, np.float64)), back, **options)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("order", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_scipy(shape, order, dtype):
    volume = laws.draw(shape, dtype)
    shifts = np.random.default_rng(5).uniform(-1.5, 1.5, (5, 3))
    found = rotate(volume, TURN, shifts, order=order, outside=0.7)
    assert found.dtype == dtype
    assert found.shape == (5, *shape)
    for one, matrix, shift in zip(found, TURN, shifts):
        expected = scipy_rotated(volume, matrix, shift, order, 0.7)
        np.testing.assert_allclose(one, expected, atol=2e-5 if order == 3 else 2e-6)
        alone = rotate(volume, matrix, shift, order=order, outside=0.7)
        assert np.array_equal(alone, one)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_quarter_turns_and_whole_shifts_move_voxels(dtype):
    volume = laws.draw((7, 7, 7), dtype)
    about_z = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]  # x to y, y to -x
    assert np.array_equal(rotate(volume, about_z), np.swapaxes(volume, 1, 2)[:, :, ::-1])
    assert np.array_equal(rotate(volume, np.eye(3)), volume)
    moved = rotate(volume, np.eye(3), (2, -1, 0), outside=5)
    assert np.array_equal(moved[:, :-1, 2:], volume[:, 1:, :-2])
    assert (moved[:, -1] == 5).all()
    assert (moved[:, :, :2] == 5).all()


def test_an_active_rotation_takes_a_point_along():
    """A voxel at p from the middle goes to R p + t, vectors (x, y, z)."""
    volume = np.zeros((21, 21, 21), np.float32)
    volume[10 + 2, 10 - 4, 10 + 5] = 1
    shift = np.array([1.2, -0.4, 0.3])
    for matrix in TURN:
        found = rotate(volume, matrix, shift)
        z, y, x = np.array(scipy.ndimage.center_of_mass(found)) - 10
        np.testing.assert_allclose([x, y, z], matrix @ [5, -4, 2] + shift, atol=0.35)


def test_another_center():
    volume = laws.draw((8, 8, 8))
    about_z = [[-1, 0, 0], [0, -1, 0], [0, 0, 1]]
    found = rotate(volume, about_z, center=(4, 4, 4))
    assert np.array_equal(found[:, 1:, 1:], volume[:, :0:-1, :0:-1])


def test_splines_go_through_the_voxels_and_are_found_once():
    volume = laws.draw((6, 7, 8))
    np.testing.assert_allclose(rotate(volume, np.eye(3), order=3), volume, atol=1e-5)
    kept = spline_coefficients(volume)
    assert kept.dtype == np.float32
    assert np.array_equal(rotate(kept, TURN, order=3, coefficients=True), rotate(volume, TURN, order=3))


@pytest.mark.parametrize("order", [1, 3])
def test_bits_do_not_depend_on_threads_layout_or_batch(order):
    volume = laws.draw((6, 7, 8))
    expected = rotate(volume, TURN, order=order)
    for count in (1, 2, 3):
        with laws.thread_count(count):
            assert np.array_equal(rotate(volume, TURN, order=order), expected)
    for _, same in laws.layouts(volume):
        before = same.copy()
        assert np.array_equal(rotate(same, TURN[1:3], order=order), expected[1:3])
        assert np.array_equal(same, before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 2}, "order 1 or 3"), ({"rotations": np.ones((3, 3))}, "no rotation"),
        ({"rotations": np.diag([1, 1, -1])}, "mirrors"), ({"rotations": np.eye(2)}, "matrices"),
        ({"rotations": np.full((3, 3), np.nan)}, "finite"), ({"shifts": [[0, 0, 0]] * 2}, "vectors"),
        ({"shifts": [0, np.inf, 0]}, "finite"), ({"center": [1, 2]}, "vectors"), ({"outside": 1j}, "real"),
        ({"shifts": [1e12, 0, 0]}, "voxels"), ({"volume": np.ones((3, 3))}, "axes"),
    ],
)  # fmt: skip
def test_refused(options, message):
    with pytest.raises(UserError, match=message):
        rotate(**{"volume": laws.draw((3, 3, 3)), "rotations": np.eye(3), **options})
