"""C03: default center of rotation, even and odd widths."""

import numpy as np
import pytest

from dtomo.algorithms import cgls, fbp, sirt
from dtomo.geometry import ParallelBeam
from dtomo.operators import ParallelProjector

MU, RADIUS = 0.02, 20
ANGLES = np.arange(180.0)


def disc(width):
    """Projections (angle, 1, column) of a disc about the middle of the detector."""
    u = np.arange(width) - (width - 1) / 2
    line = 2 * MU * np.sqrt(np.maximum(RADIUS**2 - u**2, 0))
    return np.tile(line.astype(np.float32), (len(ANGLES), 1, 1))


def reconstruct(method, lines, geometry):
    if method in ("backprojection", "nufft"):
        return fbp(lines, geometry, method=method)[0]
    solve = {"sirt": sirt, "cgls": cgls}[method]
    return solve(ParallelProjector(geometry, 1), lines, iterations=8).solution[0]


def center_of_mass(image):
    y, x = np.indices(image.shape)
    return np.array([(y * image).sum(), (x * image).sum()]) / image.sum()


@pytest.mark.parametrize("method", ["backprojection", "nufft", "sirt", "cgls"])
@pytest.mark.parametrize("width", [64, 65])
def test_slice_is_its_own_mirror_image(width, method):
    image = reconstruct(method, disc(width), ParallelBeam(ANGLES, width)).astype(float)
    # 180 angles 0 ... 179 are symmetric about the axes but for the ray at 0, whose mirror image would be 180
    assert np.abs(image - image[:, ::-1]).max() <= 1e-3 * MU
    assert np.abs(image - image[::-1]).max() <= 1e-3 * MU
    np.testing.assert_allclose(center_of_mass(image), (width - 1) / 2, atol=0.01)


@pytest.mark.parametrize("width", [64, 65])
def test_half_a_pixel_away_shows(width):
    """What the test above would see of another convention."""
    image = fbp(disc(width), ParallelBeam(ANGLES, width, width / 2))[0].astype(float)
    inside = np.hypot(*(np.indices(image.shape) - (width - 1) / 2)) < 24
    found = center_of_mass(np.where(inside, image, 0))
    assert np.abs(found - (width - 1) / 2).max() > 0.1


@pytest.mark.parametrize("width", [64, 65])
def test_forward_and_back_agree_on_the_center(width):
    geometry = ParallelBeam(ANGLES, width)
    y, x = np.indices((width, width)) - (width - 1) / 2
    volume = np.where(np.hypot(y, x) < RADIUS, np.float32(MU), np.float32(0))[None]
    lines = ParallelProjector(geometry, 1).forward(volume)
    np.testing.assert_allclose(lines, lines[..., ::-1], atol=1e-6)
    found = fbp(lines, geometry)[0].astype(float)
    np.testing.assert_allclose(center_of_mass(found), (width - 1) / 2, atol=0.01)
