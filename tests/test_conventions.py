"""What docs/conventions.md says of axes, centers and signs, also towards other packages."""

import numpy as np
import pytest

from dtomo.geometry import ParallelBeam
from dtomo.operators import ParallelProjector
from dtomo.simulate import Phantom

ANGLES = np.array([0.0, 17.0, 45.0, 90.0, 133.0, 200.0, 271.5])
# no symmetry at all, and smooth enough at 40 pixels for half a pixel to show
BLOB = Phantom(np.array([[1.0, 0.30, 0.22, 9.0, 0.25, -0.35, 0.0, 30.0], [0.7, 0.2, 0.3, 9.0, -0.4, 0.1, 0.0, 10.0]]))


def project(image, **geometry):
    """One slice (y, x) to its sinogram (angle, column)."""
    height, width = image.shape
    beam = ParallelBeam(geometry.pop("angles", ANGLES), width=width, height=height, **geometry)
    return ParallelProjector(beam, 1).forward(image[None])[:, 0]


@pytest.mark.parametrize("size", [40, 41])
@pytest.mark.parametrize(("columns", "center", "pitch"), [(52, None, 1.0), (61, 33.3, 1.0), (31, 14.6, 2.0)])
def test_a_point_meets_the_column_of_the_formula(size, columns, center, pitch):
    y, x = 13, 26
    rows, across = np.ogrid[:size, :size]
    image = np.exp(-((rows - y) ** 2 + (across - x) ** 2) / 8).astype(np.float32)  # wider than any ray is apart
    lines = project(image, columns=columns, center=center, pitch=pitch).astype(float)
    found = (lines * np.arange(columns)).sum(1) / lines.sum(1)
    middle = (size - 1) / 2
    across = (x - middle) * np.cos(np.deg2rad(ANGLES)) + (y - middle) * np.sin(np.deg2rad(ANGLES))
    expected = across / pitch + ((columns - 1) / 2 if center is None else center)
    np.testing.assert_allclose(found, expected, atol=0.02)


@pytest.mark.parametrize("size", [40, 41])
@pytest.mark.parametrize("center", [None, 31.75])
def test_projector_and_phantom_agree(size, center):
    exact = BLOB.projections(ANGLES, size, 60, center, slices=1)[:, 0]
    lines = project(BLOB.volume(size, 1)[0], columns=60, center=center)
    assert np.linalg.norm(lines - exact) < 0.03 * np.linalg.norm(exact)
    moved = BLOB.projections(ANGLES, size, 60, 30.0 if center is None else center + 0.5, slices=1)[:, 0]
    turned = BLOB.projections(-ANGLES, size, 60, center, slices=1)[:, 0]
    for wrong in (moved, turned):
        assert np.linalg.norm(lines - wrong) > 0.05 * np.linalg.norm(exact)


def test_a_disc_has_the_integral_of_a_disc():
    disc = Phantom(np.array([[0.02, 0.5, 0.5, 9.0, 0.0, 0.0, 0.0, 0.0]]))
    radius = 0.5 * 0.95 * 101 / 2
    lines = project(disc.volume(101, 1)[0], columns=101)
    np.testing.assert_allclose(lines[:, 50], 2 * radius * 0.02, rtol=0.01)


@pytest.mark.parametrize("size", [40, 41])
def test_astra(size):
    astra = pytest.importorskip("astra")
    image = BLOB.volume(size, 1)[0]
    columns = 60
    volume = astra.create_vol_geom(size, size)
    beam = astra.create_proj_geom("parallel", 1.0, columns, -np.deg2rad(ANGLES))
    projector = astra.create_projector("linear", beam, volume)
    identifier, sinogram = astra.create_sino(image, projector)
    astra.data2d.delete(identifier)
    astra.projector.delete(projector)
    lines = project(image, columns=columns)
    assert np.linalg.norm(lines - sinogram) < 1e-4 * np.linalg.norm(sinogram)


def test_astra_with_the_axis_elsewhere():
    astra = pytest.importorskip("astra")
    size, columns, center = 40, 60, 33.25
    image = BLOB.volume(size, 1)[0]
    volume = astra.create_vol_geom(size, size)
    beam = astra.create_proj_geom("parallel", 1.0, columns, -np.deg2rad(ANGLES))
    beam = astra.geom_postalignment(beam, (columns - 1) / 2 - center)
    projector = astra.create_projector("linear", beam, volume)
    identifier, sinogram = astra.create_sino(image, projector)
    astra.data2d.delete(identifier)
    astra.projector.delete(projector)
    lines = project(image, columns=columns, center=center)
    assert np.linalg.norm(lines - sinogram) < 1e-3 * np.linalg.norm(sinogram)


@pytest.mark.parametrize("size", [40, 41])
def test_scikit_image(size):
    transform = pytest.importorskip("skimage.transform")
    image = BLOB.volume(size, 1)[0]
    sinogram = transform.radon(image, theta=-ANGLES, circle=True).T
    # one more row and column put dtomo's middle where scikit-image turns the picture, for even sizes
    wide = size + 1 - size % 2
    lines = project(np.pad(image, (0, wide - size)), columns=size, center=size // 2)
    assert np.linalg.norm(lines - sinogram) < 0.02 * np.linalg.norm(sinogram)
    if size % 2 == 0:
        moved = project(image, columns=size)
        assert np.linalg.norm(moved - sinogram) > 0.02 * np.linalg.norm(sinogram)
