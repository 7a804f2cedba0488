"""The projector of any geometry: adjoint, closed forms, ASTRA, slabs, and rays along the grid."""

import itertools
import pickle

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam, VectorGeometry, cone_beam, fan_beam, laminography, tilt_series
from dtomo.operators import ParallelProjector
from dtomo.operators.rays import RayProjector
from dtomo.threads import using_threads

ANGLES = np.cumsum(np.random.default_rng(0).uniform(5, 35, 19))
SHAPE = (31, 17, 23)
VOXEL = (0.8, 1.1, 1.0)
GEOMETRIES = {
    "cone": cone_beam(ANGLES, 29, 37, source_axis=60, source_detector=100, pixel=1.7, shape=SHAPE, voxel=1.0),
    "cone, tilted, aside, anisotropic": cone_beam(
        ANGLES, 28, 37, source_axis=60, source_detector=100, pixel=(1.5, 1.7), shape=SHAPE, voxel=VOXEL, center=14.3,
        center_row=17.0, roll=3, yaw=-4, pitch=5,
    ),
    "helix": cone_beam(
        4 * ANGLES, 12, 37, source_axis=60, source_detector=100, pixel=1.7, shape=SHAPE, voxel=1.0, rise=9
    ),
    "wide cone": cone_beam(ANGLES, 61, 37, source_axis=30, source_detector=35, pixel=2, shape=SHAPE, voxel=1.0),
    "fan": fan_beam(ANGLES, 36, source_axis=60, source_detector=100, slices=31, pixel=1.7, shape=SHAPE),
    "laminography": laminography(ANGLES, 29, 37, tilt=35, shape=SHAPE),
    "steep laminography": laminography(ANGLES, 30, 37, tilt=70, shape=SHAPE, center=20.2),
    "tilt series": tilt_series(
        np.linspace(-70, 66, 19), 29, 37, shape=SHAPE, axis_angle=12, beam_tilt=2,
        shifts=np.random.default_rng(1).normal(0, 3, (19, 2)),
    ),
}  # fmt: skip


def normal(shape: tuple[int, ...], dtype: type = np.float32, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape) if np.issubdtype(dtype, np.complexfloating) else values).astype(
        dtype
    )


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_c13_adjoint(name: str, dtype: type) -> None:
    operator = RayProjector(GEOMETRIES[name], dtype)
    x, y = normal(operator.shape_in, dtype), normal(operator.shape_out, dtype, 1)
    forward, back = operator.forward(x), operator.adjoint(y)
    assert forward.dtype == back.dtype == dtype
    one, two = np.vdot(forward.astype(complex), y), np.vdot(x.astype(complex), back)
    assert abs(one - two) <= 1e-5 * np.linalg.norm(forward) * np.linalg.norm(y)
    assert np.linalg.norm(forward) > 0


@pytest.mark.parametrize("name", GEOMETRIES)
def test_c14_slabs_add_up_and_threads_do_not_matter(name: str) -> None:
    geometry = GEOMETRIES[name]
    operator = RayProjector(geometry)
    x, y = normal(operator.shape_in), normal(operator.shape_out, seed=1)
    forward, back = operator.forward(x), operator.adjoint(y)
    with using_threads(1):
        assert operator.forward(x).tobytes() == forward.tobytes()
        assert operator.adjoint(y).tobytes() == back.tobytes()
    for borders in ((0, 13, 31), (0, 8, 16, 31)):
        slabs = [RayProjector(geometry.of_slices(a, b)) for a, b in itertools.pairwise(borders)]
        parts = [slab.forward(x[a:b]) for slab, a, b in zip(slabs, borders, borders[1:])]
        assert np.abs(sum(parts) - forward).max() <= 1e-5 * np.abs(forward).max()
        joined = np.concatenate([slab.adjoint(y) for slab in slabs])
        assert np.abs(joined - back).max() <= 1e-5 * np.abs(back).max()


def test_rows_and_views_are_those_of_the_whole() -> None:
    for geometry in GEOMETRIES.values():
        x = normal(geometry.shape)
        whole = RayProjector(geometry).forward(x)
        part = RayProjector(geometry.of_rows(5, 11).of_views([3, 7])).forward(x)
        np.testing.assert_allclose(part, whole[[3, 7], 5:11], atol=1e-4)
        np.testing.assert_array_equal(RayProjector(geometry).of_views([3, 7]).forward(x), whole[[3, 7]])


def test_a_parallel_beam_is_that_of_the_parallel_projector() -> None:
    parallel = ParallelBeam(ANGLES, 37, center=15.3, width=23, height=17, pitch=1.2)
    x = normal((6, 17, 23))
    found = RayProjector(VectorGeometry.of_parallel(parallel, 6)).forward(x)
    np.testing.assert_allclose(found, ParallelProjector(parallel, 6).forward(x), atol=2e-4)


@pytest.mark.parametrize("voxels", [10, 11])
@pytest.mark.parametrize("pixels", [10, 11])
def test_c05_rays_along_the_grid(voxels: int, pixels: int) -> None:
    point = np.zeros((1, voxels, voxels), np.float32)
    point[0, voxels // 2, voxels // 2] = 1
    angles = [0, 90, 180, 270]
    flat = VectorGeometry.of_parallel(ParallelBeam(angles, pixels, width=voxels, height=voxels), 1)
    np.testing.assert_allclose(RayProjector(flat).forward(point).sum((1, 2)), 1, atol=1e-5)
    cone = cone_beam(
        angles, 1, pixels, source_axis=50, source_detector=100, pixel=2, shape=point.shape, voxel=1.0
    )  # fmt: skip
    fan = fan_beam(angles, pixels, source_axis=50, source_detector=100, pixel=2, shape=point.shape, voxel=1.0)
    for geometry in (cone, fan):
        assert (RayProjector(geometry).forward(point).max((1, 2)) > 0.3).all()


def distances(geometry: VectorGeometry, middle: np.ndarray) -> np.ndarray:
    """How far rays pass a point, ``(view, row, column)``."""
    g = geometry
    rows, columns = (np.arange(n) - (n - 1) / 2 for n in (g.rows, g.columns))
    down = rows[None, :, None, None] * g.row_step[:, None, None]
    pixel = g.detector[:, None, None] + columns[None, None, :, None] * g.column_step[:, None, None] + down
    source = g.source[:, None, None] + (down if g.beam == "fan" else 0)
    along = source if g.beam == "parallel" else pixel - source
    along = along / np.linalg.norm(along, axis=-1, keepdims=True)
    return np.linalg.norm(np.cross(pixel - middle, along), axis=-1)


CIRCULAR = {"source_axis": 240, "source_detector": 400, "pixel": 3.4}


@pytest.mark.parametrize(
    "geometry",
    [
        cone_beam([0, 33, 47, 90, 200], 60, 60, shape=(110, 110, 110), voxel=1.0, rise=5, **CIRCULAR),
        cone_beam([10, 77], 60, 60, shape=(150, 110, 90), voxel=(0.7, 1, 1.2), roll=9, yaw=3, pitch=2, **CIRCULAR),
        fan_beam([5, 50, 95], 60, slices=110, shape=(110, 110, 110), voxel=(1, 1, 1), **CIRCULAR),
        laminography([0, 25, 100], 110, 110, tilt=30),
        laminography([0, 25, 100], 110, 110, tilt=62),
        tilt_series([-65, 0, 40], 110, 110, shape=(110, 110, 110), axis_angle=17, shifts=[(2, -1.5)] * 3),
    ],
    ids=["helix", "turned detector", "fan", "laminography", "steep laminography", "tilt series"],
)
def test_a_gaussian_is_projected_as_its_closed_form(geometry: VectorGeometry) -> None:
    middle, width = np.array([3.0, -2.0, 1.5]), 14.0
    z, y, x = ((np.arange(n) - (n - 1) / 2) * v - m for n, v, m in zip(geometry.shape, geometry.voxel, middle[::-1]))
    squares = z[:, None, None] ** 2 + y[:, None] ** 2 + x**2
    found = RayProjector(geometry).forward(np.exp(-squares / (2 * width**2)).astype(np.float32))
    wanted = width * np.sqrt(2 * np.pi) * np.exp(-(distances(geometry, middle) ** 2) / (2 * width**2))
    assert wanted.max() > 30
    assert np.linalg.norm(found - wanted) <= 1e-3 * np.linalg.norm(wanted)


def test_a_fan_is_astras_on_a_smooth_object() -> None:
    astra = pytest.importorskip("astra")
    size, angles = 192, np.array([0.0, 20, 45, 100, 190, 301])
    y, x = np.mgrid[:size, :size] - (size - 1) / 2
    image = np.exp(-((x - 18) ** 2 + (y + 27) ** 2) / 1800) - 0.5 * np.exp(-(x**2 + y**2) / 810)
    image = image.astype(np.float32)
    geometry = fan_beam(angles, 270, source_axis=390, source_detector=600, pixel=1.4, shape=(1, size, size), voxel=1.0)
    g = geometry
    vectors = np.concatenate([g.source[:, :2], g.detector[:, :2], g.column_step[:, :2]], 1) * np.array([1, -1] * 3)
    space = astra.create_vol_geom(size, size)
    plan = astra.create_proj_geom("fanflat_vec", 270, vectors)
    projector = astra.create_projector("line_fanflat", plan, space)
    try:
        number, sinogram = astra.create_sino(image, projector)
        astra.data2d.delete(number)
    finally:
        astra.projector.delete(projector)
    found = RayProjector(geometry).forward(image[None])[:, 0]
    assert np.linalg.norm(found - sinogram) <= 1e-3 * np.linalg.norm(sinogram)


def test_what_lies_behind_the_source_is_not_seen() -> None:
    geometry = cone_beam([0], 5, 5, source_axis=40, source_detector=80, shape=(9, 9, 9), voxel=1.0)
    behind = geometry.replace(middle=(0.0, -80.0, 0.0))
    ones = np.ones(geometry.shape, np.float32)
    assert RayProjector(geometry).forward(ones).max() > 8
    assert RayProjector(behind).forward(ones).max() == 0


def test_wrong_use_is_refused() -> None:
    operator = RayProjector(GEOMETRIES["cone"])
    assert pickle.loads(pickle.dumps(operator)).shape_out == operator.shape_out
    with pytest.raises(UserError, match="takes an array of shape"):
        operator.forward(np.zeros((3, 3, 3), np.float32))
    with pytest.raises(UserError, match="float32 or complex64"):
        RayProjector(GEOMETRIES["cone"], np.float64)


def test_products_are_of_the_whole_volume() -> None:
    operator = RayProjector(GEOMETRIES["cone"].of_views([0]))
    x, y = normal(operator.shape_in), normal(operator.shape_in, seed=1)
    np.testing.assert_allclose(operator.dot_in(x, y), [np.vdot(x.astype(float), y)], rtol=1e-9)
