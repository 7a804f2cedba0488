"""C11: absolute scale."""

import numpy as np
import pytest

from dtomo.algorithms import cgls, fbp, sirt
from dtomo.geometry import ParallelBeam
from dtomo.operators import FILTERS, ParallelProjector

MU, RADIUS, WIDTH = 0.02, 20, 64
SCANS = {
    "half turn": np.arange(180.0),
    "full turn": np.arange(0, 360, 2.0),
    "full turn of 180 more": np.arange(360.0),
    "another start": np.arange(180.0) + 37.3,
    "backwards": -np.arange(180.0) - 90,
}
SCAN = pytest.mark.parametrize("angles", SCANS.values(), ids=SCANS.keys())
METHODS = pytest.mark.parametrize("method", ["backprojection", "nufft"])


def disc(angles, width=WIDTH, center=None):
    """Projections (angle, 1, column) of a disc about the axis."""
    u = np.arange(width) - ((width - 1) / 2 if center is None else center)
    line = 2 * MU * np.sqrt(np.maximum(RADIUS**2 - u**2, 0))
    return np.tile(line.astype(np.float32), (len(angles), 1, 1))


def check(image, inside=15.0, ring=(24.0, 30.0), value=MU, outside=1e-4):
    y, x = np.indices(image.shape)
    r = np.hypot(y - (image.shape[0] - 1) / 2, x - (image.shape[1] - 1) / 2)
    assert image[r < inside].mean() == pytest.approx(value, rel=0.01)
    assert abs(image[(r > ring[0]) & (r < ring[1])].mean()) < outside


@METHODS
@SCAN
@pytest.mark.parametrize("name", [name for name in FILTERS if name != "none"])
def test_fbp(angles, name, method):
    check(fbp(disc(angles), ParallelBeam(angles, WIDTH), filter=name, method=method)[0])


@METHODS
@pytest.mark.parametrize("padding", ["edge", "zero"])
@pytest.mark.parametrize(("width", "center"), [(65, None), (80, 33.4), (64, 30.0)])
def test_fbp_wherever_the_axis_is(width, center, padding, method):
    angles = SCANS["half turn"]
    geometry = ParallelBeam(angles, width, center, width=WIDTH, height=WIDTH)
    check(fbp(disc(angles, width, center), geometry, padding=padding, method=method)[0])


@SCAN
@pytest.mark.parametrize(("solve", "iterations"), [(sirt, 100), (cgls, 15)], ids=["sirt", "cgls"])
def test_iterative(angles, solve, iterations):
    found = solve(ParallelProjector(ParallelBeam(angles, WIDTH), 1), disc(angles), iterations=iterations)
    check(found.solution[0])


@METHODS
@pytest.mark.parametrize("pitch", [2.0, 0.5])
def test_doubling_the_pixel_halves_the_value(pitch, method):
    """The same sinogram on pixels of another size: the disc is `pitch` times as large, and 1 / pitch times as dense."""
    angles, size = SCANS["half turn"], int(WIDTH * pitch)
    image = fbp(disc(angles), ParallelBeam(angles, WIDTH, width=size, height=size, pitch=pitch), method=method)[0]
    check(image, 15 * pitch, (24 * pitch, 30 * pitch), MU / pitch)


@pytest.mark.parametrize(("solve", "iterations"), [(sirt, 100), (cgls, 15)], ids=["sirt", "cgls"])
def test_doubling_the_pixel_halves_the_value_of_iterative_methods(solve, iterations):
    angles, size = SCANS["half turn"], WIDTH // 2
    operator = ParallelProjector(ParallelBeam(angles, WIDTH, width=size, height=size, pitch=0.5), 1)
    image = solve(operator, disc(angles), iterations=iterations).solution[0]
    check(image, 7, (12.5, 15), MU * 2, 4e-4)


def test_fewer_angles_keep_the_scale():
    for count in (12, 45, 91):
        angles = np.arange(count) * 180 / count
        image = fbp(disc(angles), ParallelBeam(angles, WIDTH))[0]
        y, x = np.indices(image.shape) - (WIDTH - 1) / 2
        assert image[np.hypot(y, x) < 15].mean() == pytest.approx(MU, rel=0.01)
