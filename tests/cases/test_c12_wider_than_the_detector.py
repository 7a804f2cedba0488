"""C12: object wider than the detector."""

import numpy as np
import pytest

from dtomo.algorithms import fbp
from dtomo.geometry import ParallelBeam

MU, WIDTH = 0.02, 64
ANGLES = np.arange(180.0)
METHODS = pytest.mark.parametrize("method", ["backprojection", "nufft"])


def disc(radius, width=WIDTH, center=None):
    """Projections (angle, 1, column) of a disc about the axis."""
    u = np.arange(width) - ((width - 1) / 2 if center is None else center)
    line = 2 * MU * np.sqrt(np.maximum(radius**2 - u**2, 0))
    return np.tile(line.astype(np.float32), (len(ANGLES), 1, 1))


def flatness(image):
    """(rim over middle, standard deviation over mean) inside the field."""
    y, x = np.indices(image.shape)
    r = np.hypot(y - (image.shape[0] - 1) / 2, x - (image.shape[1] - 1) / 2)
    field = image[r < 28]
    return image[(r >= 29) & (r <= 31)].mean() / image[r < 5].mean(), field.std() / field.mean()


@METHODS
def test_padding_by_the_edge_leaves_no_rim(method):
    rim, spread = flatness(fbp(disc(48), ParallelBeam(ANGLES, WIDTH), method=method)[0])
    assert 0.8 < rim < 1.25
    assert spread < 0.05


def test_without_it_there_is_one():
    rim, spread = flatness(fbp(disc(48), ParallelBeam(ANGLES, WIDTH), padding="zero")[0])
    assert rim == pytest.approx(1.97, abs=0.1)
    assert spread == pytest.approx(0.11, abs=0.02)


@METHODS
@pytest.mark.parametrize(("width", "center"), [(WIDTH, None), (65, None), (90, 35.0)])
def test_an_object_inside_is_not_touched(width, center, method):
    lines = disc(25, width, center)
    geometry = ParallelBeam(ANGLES, width, center, width=WIDTH, height=WIDTH)
    edge, zero = (fbp(lines, geometry, padding=padding, method=method) for padding in ("edge", "zero"))
    assert np.abs(edge - zero).max() <= 1e-5 * MU


def test_the_ramp_has_room():
    """Zero padding is enough for an object inside: a detector twice as wide gives the same slice."""
    narrow = fbp(disc(25), ParallelBeam(ANGLES, WIDTH), padding="zero")
    wide = fbp(disc(25, 2 * WIDTH), ParallelBeam(ANGLES, 2 * WIDTH, width=WIDTH, height=WIDTH), padding="zero")
    inside = np.hypot(*(np.indices((WIDTH, WIDTH)) - (WIDTH - 1) / 2)) < 31
    assert np.abs(narrow - wide)[0][inside].max() <= 1e-4 * MU
