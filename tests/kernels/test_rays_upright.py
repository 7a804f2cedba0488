"""Rays in planes along z: the values of the general kernel, whatever the tiles; which views it takes."""

import numpy as np
import pytest

from dtomo.geometry import VectorGeometry, cone_beam, fan_beam, laminography, tilt_series
from dtomo.kernels import ray_lanes, rays, rays_cpu, rays_upright, voxel_lanes
from dtomo.operators.rays import RayProjector, ray_tables

ANGLES = np.cumsum(np.random.default_rng(0).uniform(5, 35, 13))
SHAPE = (45, 19, 37)
ROUND = {"source_axis": 70, "source_detector": 110, "shape": SHAPE}
CASES = {
    "cone": (cone_beam(ANGLES, 53, 61, pixel=1.5, voxel=1.0, **ROUND), 1),
    "helix": (cone_beam(4 * ANGLES, 21, 61, pixel=1.5, voxel=1.0, rise=11, **ROUND), 1),
    "anisotropic": (cone_beam(ANGLES, 50, 61, pixel=1.4, voxel=(0.7, 1.1, 1.3), center=23.3, **ROUND), 1),
    "fan": (fan_beam(ANGLES, 61, slices=45, pixel=1.5, voxel=1.0, **ROUND), 1),
    "laminography": (laminography(ANGLES, 61, 60, tilt=30, shape=SHAPE), 1),
    "fine rows": (cone_beam(ANGLES, 201, 61, pixel=(0.31, 1.5), voxel=1.0, **ROUND), 5),
    "fan beside its sources": (
        fan_beam(
            [3, 183], 40, slices=9, source_axis=70, source_detector=110, pixel=9, shape=(9, 61, 37), voxel=1.0
        ).replace(middle=(30.0, -70.0, 0.0)),
        1,
    ),
    "more slices than a job takes": (
        cone_beam([31, 100], 600, 7, source_axis=2000, source_detector=2200, pixel=1.1, shape=(523, 5, 6), voxel=1.0),
        1,
    ),
    "coarse rows": (cone_beam(ANGLES, 31, 61, pixel=(2.2, 1.5), voxel=1.0, **ROUND), 1),
}


def mirrored(geometry: VectorGeometry) -> VectorGeometry:
    """With the rows the other way round."""
    g = geometry
    return VectorGeometry(
        beam=g.beam, source=g.source, detector=g.detector, column_step=g.column_step, row_step=-g.row_step,
        rows=g.rows, columns=g.columns, shape=g.shape, voxel=g.voxel, middle=g.middle,
    )  # fmt: skip


CASES |= {f"{name}, last row first": (mirrored(CASES[name][0]), CASES[name][1]) for name in ("cone", "fine rows")}


def random(geometry: VectorGeometry) -> tuple[np.ndarray, np.ndarray]:
    """A volume ``[y, x, z]`` and projections ``[view, column, row]``."""
    rng = np.random.default_rng(1)
    slices, height, width = geometry.shape
    volume = rng.standard_normal((height, width, slices)).astype(np.float32)
    return volume, rng.standard_normal((geometry.views, geometry.columns, geometry.rows)).astype(np.float32)


def parted(geometry: VectorGeometry) -> np.ndarray:
    slices, height, width = geometry.shape
    return rays_upright.upright(ray_tables(geometry), (width, height, slices), geometry.columns, geometry.rows)


def both_ways(geometry: VectorGeometry, threads: int = 2) -> tuple[np.ndarray, np.ndarray]:
    volume, projections = random(geometry)
    numbers, tables = np.arange(geometry.views), ray_tables(geometry)
    forward, back = np.full_like(projections, np.nan), np.zeros_like(volume)
    rays_upright.forward(volume, forward, tables, numbers, threads)
    rays_upright.adjoint(projections, back, tables, numbers, parted(geometry), threads)
    return forward, back


@pytest.mark.parametrize("name", CASES)
def test_the_values_of_the_general_kernel(name: str) -> None:
    geometry, apart = CASES[name]
    assert parted(geometry).max() == apart
    assert parted(geometry).min() > 0
    forward, back = both_ways(geometry)
    volume, projections = random(geometry)
    numbers, tables = np.arange(geometry.views), ray_tables(geometry)
    expected, expected_back = np.empty_like(projections), np.zeros_like(volume)
    rays_cpu.forward(volume, expected, tables, numbers)
    rays_cpu.adjoint(projections, expected_back, tables, numbers)
    rounded = 3e-6 + geometry.rows * 2.0**-25  # of voxels, heights of the outermost rows
    assert np.abs(forward - expected).max() <= rounded * np.abs(expected).max()
    assert np.abs(back - expected_back).max() <= rounded * np.abs(expected_back).max()
    one, two = np.vdot(forward.astype(float), projections), np.vdot(volume.astype(float), back)
    assert abs(one - two) <= 1e-6 * np.linalg.norm(forward) * np.linalg.norm(projections)


@pytest.mark.parametrize("name", ["cone", "fine rows, last row first", "laminography"])
def test_tiles_and_threads_do_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = CASES[name][0]
    forward, back = both_ways(geometry)
    one, two = both_ways(geometry, threads=1)
    assert one.tobytes() == forward.tobytes()
    assert two.tobytes() == back.tobytes()
    monkeypatch.setattr(rays_upright, "SUMS", 1)
    assert both_ways(geometry)[0].tobytes() == forward.tobytes()


@pytest.mark.parametrize("order", [(1, 2, 0), (2, 0, 1), (0, 2, 1)])
def test_columns_of_rays_along_other_axes(order: tuple[int, int, int]) -> None:
    """Of a volume and rays with axes exchanged: the same projections, and what comes back exchanged too."""
    g = CASES["cone"][0]
    turned = VectorGeometry(
        beam="cone", source=g.source[:, order], detector=g.detector[:, order], column_step=g.column_step[:, order],
        row_step=g.row_step[:, order], rows=g.rows, columns=g.columns, voxel=1.0,
        shape=tuple(np.array(g.shape[::-1])[list(order)][::-1]),
    )  # fmt: skip
    volume, projections = random(g)
    flat = volume.transpose(2, 0, 1)  # (z, y, x)
    other = flat.transpose(2, 1, 0).transpose(order).transpose(2, 1, 0)
    one, two = RayProjector(g), RayProjector(turned)
    np.testing.assert_allclose(two.forward(other), one.forward(flat), atol=2e-5)
    stack = projections.swapaxes(1, 2)
    back = two.adjoint(stack).transpose(2, 1, 0)
    np.testing.assert_allclose(back, one.adjoint(stack).transpose(2, 1, 0).transpose(order), atol=2e-5)
    assert rays.plan(ray_tables(turned), turned.shape[::-1], g.columns, g.rows).others.size == 0


def test_processors_without_permutations(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take values out of a window one by one: the same bits."""
    from numba import njit

    monkeypatch.setattr(ray_lanes, "chosen", voxel_lanes._chosen_one_by_one)
    rng = np.random.default_rng(0)
    line, places = rng.standard_normal(400).astype(np.float32), np.array([[60, 5 << 20, 9 << 21], [90, 77, -(1 << 24)]])
    weights = np.array([[0.3, 0.7], [0.9, 0.1]], np.float32)
    found = []
    for number in range(2):
        if number:
            monkeypatch.undo()
        spread = ray_lanes._spreading(3)

        def add(target, source, number=number, spread=spread):  # type: ignore[no-untyped-def]
            ray_lanes.read_lines(target, 0, source, 150, places, weights, 2, 3)
            spread(
                target, 48, 96, source, 100, np.float32(0.3), np.float32(0.7), 5 << 20, 12 << 20,
                -(1 << 40), (1 << 44) // 12, 3,
            )  # fmt: skip

        target = np.ones(160, np.float32)
        njit(add)(target, line)
        found.append(target)
    assert np.array_equal(*found)
    assert (found[0][:144] != 1).all()
    assert (found[0][144:] == 1).all()


def test_views_that_need_the_general_kernel() -> None:
    wide = {"shape": SHAPE, "source_axis": 60, "source_detector": 100, "pixel": 1.5, "voxel": 1.0}
    assert (parted(cone_beam(ANGLES, 30, 61, roll=1, **wide)) == 0).all()
    assert (parted(cone_beam(ANGLES, 30, 61, pitch=1, **wide)) == 0).all()
    assert (parted(tilt_series([-20, 40], 40, 61, shape=SHAPE, axis_angle=5)) == 0).all()
    turned = rays.plan(ray_tables(tilt_series([-20, 40], 40, 61, shape=SHAPE)), SHAPE[::-1], 61, 40)
    assert turned.others.size == 0
    assert [part.axes for part in turned.uprights] == [(0, 2, 1)]
    assert (parted(laminography(ANGLES, 61, 60, tilt=70, shape=SHAPE)) == 0).all()
    assert (parted(cone_beam(ANGLES, 30, 61, **{**wide, "pixel": (4.0, 1.5)})) == 0).all()
    slow = cone_beam([3, 4], 30, 61, **wide)
    assert (parted(slow.of_slices(3, 9)) == parted(slow)).all()


def test_planes_along_unlike_axes_add_up() -> None:
    """Views around z and, of the same scan turned over, around x."""
    g = CASES["cone"][0].of_views([1, 2, 3])
    both = {name: np.concatenate([v, v[:, ::-1]]) for name in ("source", "detector", "column_step", "row_step")
            for v in [getattr(g, name)]}  # fmt: skip
    mixed = VectorGeometry(beam=g.beam, rows=g.rows, columns=g.columns, shape=(15, 14, 13), voxel=1.0, **both)
    plan = rays.plan(ray_tables(mixed), mixed.shape[::-1], mixed.columns, mixed.rows)
    assert [len(part.numbers) for part in plan.uprights] == [3, 3]
    y = np.random.default_rng(0).standard_normal((6, mixed.rows, mixed.columns)).astype(np.float32)
    parts = [RayProjector(mixed.of_views(some)).adjoint(y[some]) for some in (range(3), range(3, 6))]
    found = RayProjector(mixed).adjoint(y)
    assert min(np.abs(part).max() for part in parts) > 0
    np.testing.assert_allclose(found, parts[0] + parts[1], atol=1e-5 * np.abs(found).max())
