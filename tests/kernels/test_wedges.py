"""Wedges against closed forms, SciPy's rotations, and the projections of a tilt series."""

import numpy as np
import pytest
import scipy.ndimage
from scipy.spatial.transform import Rotation

from dtomo.errors import UserError
from dtomo.geometry.wedge import Wedge
from dtomo.kernels.wedges import frequencies

TURN = Rotation.from_euler("zxz", (30, 50, -70), degrees=True).as_matrix()


def grid(shape):
    """Frequencies (x, y, z) of each place, in voxels of the transform of the shortest side."""
    z, y, x = np.broadcast_arrays(*frequencies(shape))
    return np.stack([x, y, z], -1) * min(shape)


@pytest.mark.parametrize("shape", [(8, 8, 8), (9, 9, 9), (12, 10, 16)])
def test_the_range_of_tilts_is_what_is_kept(shape):
    found = Wedge((-60, 45)).weights(shape)
    assert found.dtype == np.float32
    assert found.shape == (*shape[:2], shape[2] // 2 + 1)
    k = grid(shape)
    x, z = k[..., 0], k[..., 2]
    tilt = np.degrees(np.arctan2(z * np.where(x < 0, -1, 1), abs(x)))
    radius = np.linalg.norm(k, axis=-1)
    kept = ((tilt >= -60 - 1e-6) & (tilt <= 45 + 1e-6)) | ((x == 0) & (z == 0))
    if shape[2] % 2 == 0:  # the frequency n / 2 along z has either sign; it lies beyond the radius but for one point
        assert not found[shape[0] // 2, 1:].any() or shape[0] > min(shape)
    assert np.array_equal(found, (kept & (radius <= min(shape) / 2 + 1e-6)).astype(np.float32))


def test_pytoms_condition():
    """Kept where |kx| / |kz| >= tan(30°) for tilts within ±60°; the line kx = kz = 0 too."""
    k = grid((16, 16, 16))
    x, z = abs(k[..., 0]), abs(k[..., 2])
    expected = (x >= np.tan(np.deg2rad(30)) * z - 1e-9) & (np.linalg.norm(k, axis=-1) <= 8 + 1e-6)
    assert np.array_equal(Wedge((-60, 60)).weights((16, 16, 16)) > 0, expected)


@pytest.mark.parametrize("tilt", [-60.0, -20.0, 0.0, 35.0, 90.0])
def test_a_single_tilt_covers_the_plane_of_its_projection(tilt):
    """The plane perpendicular to z of the sample turned by Ry(tilt): the turned sample's frequencies with kz = 0."""
    k = grid((12, 12, 12))
    turned = k @ Rotation.from_euler("y", tilt, degrees=True).as_matrix().T
    expected = (abs(turned[..., 2]) < 1e-6) & (np.linalg.norm(k, axis=-1) <= 6 + 1e-6)
    assert np.array_equal(Wedge((tilt, tilt)).weights((12, 12, 12)) > 0, expected)
    soft = Wedge((tilt, tilt), smooth=2.0).weights((12, 12, 12))
    fall = np.clip(1 - abs(turned[..., 2]) / 2, 0, 1) * (np.linalg.norm(k, axis=-1) <= 6 + 1e-6)
    np.testing.assert_allclose(soft, fall, atol=1e-6)


def test_cutoff_and_soft_edge():
    k = grid((20, 20, 20))
    radius = np.linalg.norm(k, axis=-1)
    assert np.array_equal(Wedge((-90, 90), cutoff=6).weights((20, 20, 20)) > 0, radius <= 6 + 1e-6)
    assert np.array_equal(Wedge((-90, 90), cutoff=60).weights((20, 20, 20)) > 0, radius <= 10 + 1e-6)
    soft, hard = (Wedge((-50, 60), smooth=s).weights((20, 20, 20)) for s in (3.0, 0.0))
    assert (soft[hard > 0] == 1).all()
    line = soft[:10, 0, 0]  # x = y = 0: the angle to the nearest border is 30°, at +60°
    np.testing.assert_allclose(line, np.clip(1 - np.arange(10) * np.sin(np.deg2rad(30)) / 3, 0, 1), atol=1e-6)


def test_a_turned_wedge_is_that_of_the_turned_volume():
    """At k stands what the unturned wedge has at Rᵀ k; the centered weights turned by SciPy are the same inside."""
    n = 33
    wedge = Wedge((-50, 60), smooth=6.0)
    found = wedge.weights((n, n, n), TURN)
    half = np.fft.fftshift(wedge.weights((n, n, n)), axes=(0, 1))
    whole = np.concatenate([half[::-1, ::-1, :0:-1], half], axis=2)  # W(-k) = W(k)
    middle = np.full(3, n // 2)
    back = TURN.T[::-1, ::-1]
    expected = scipy.ndimage.affine_transform(whole, back, middle - back @ middle, order=1)
    found = np.fft.fftshift(found, axes=(0, 1))
    inside = (
        np.linalg.norm(np.indices(found.shape).T.swapaxes(0, 2)[..., ::1] - [n // 2, n // 2, 0], axis=-1) < n / 2 - 2
    )
    assert abs(found - expected[:, :, n // 2 :])[inside].max() < 0.16  # linear interpolation of a kinked function
    assert abs(found - expected[:, :, n // 2 :])[inside].mean() < 0.005


def test_turning_a_measured_volume_turns_its_wedge():
    """A quarter turn about x, (y, z) to (-z, y): the transform of the turned volume is zero where the weights are."""
    n = 16
    quarter = np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])
    wedge = Wedge((-60, 30))
    noise = np.random.default_rng(2).standard_normal((n, n, n))
    measured = np.fft.irfftn(np.fft.rfftn(noise) * wedge.weights((n, n, n)), s=(n, n, n), axes=(0, 1, 2))
    turned = np.zeros_like(measured)  # turned[z, y] = measured[z', y'] with y = -z', z = y', periodic about index 0
    index = np.arange(n)
    turned[index[:, None], -index[None, :] % n] = measured.swapaxes(0, 1)[index[:, None], index[None, :]]
    transform = abs(np.fft.rfftn(turned))
    weights = wedge.weights((n, n, n), quarter)
    assert transform[weights == 0].max() < 1e-9 * transform.max()
    assert (transform[weights == 1] > 0).all()
    assert transform[wedge.weights((n, n, n), quarter.T) == 0].max() > 0.1 * transform.max()


def test_the_axis_of_tilting():
    """Tilting about x: what is kept is the wedge about y with x and y exchanged by a turn about z."""
    about_x = np.array([[0.0, 1, 0], [-1, 0, 0], [0, 0, 1]])  # takes y to x
    found = Wedge((-60, 60), tilt_axis=about_x).weights((12, 12, 12), TURN)
    assert np.array_equal(found, Wedge((-60, 60)).weights((12, 12, 12), TURN @ about_x))
    unturned = Wedge((-60, 60), tilt_axis=about_x).weights((12, 12, 12))
    k = grid((12, 12, 12))
    kept = abs(k[..., 1]) >= np.tan(np.deg2rad(30)) * abs(k[..., 2]) - 1e-9
    assert np.array_equal(unturned > 0, kept & (np.linalg.norm(k, axis=-1) <= 6 + 1e-6))


def test_matrices_that_are_no_rotations_are_refused():
    with pytest.raises(UserError, match="a rotation is a matrix"):
        Wedge().weights((8, 8, 8), np.diag([1, 1, -1]))
    with pytest.raises(UserError, match="a rotation is a matrix"):
        Wedge().weights((8, 8, 8), np.eye(2))
