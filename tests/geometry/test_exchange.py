"""Geometries from and to other packages: against ASTRA itself, and against what the others' sources say."""

from types import SimpleNamespace

import astra
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dtomo.errors import UserError
from dtomo.geometry import cone_beam, fan_beam, laminography, tilt_series
from dtomo.geometry.exchange import from_astra, from_cil, from_tigre, to_astra, to_tigre
from dtomo.simulate import Phantom, ray_integrals, voxel_values

ANGLES = np.array([0.0, 0.4, 2.0, -1.3])
VOLUME = astra.create_vol_geom(7, 9, 5, -3.5, 5.5, -4, 6.5, -1, 4)
SLICE = astra.create_vol_geom(34, 40, -18.0, 22.0, -20.0, 14.0)
NAMES = ("source", "detector", "column_step", "row_step")


def same(one, other, atol=1e-9):
    assert (one.beam, one.rows, one.columns, one.shape) == (other.beam, other.rows, other.columns, other.shape)
    np.testing.assert_allclose(one.voxel, other.voxel, atol=atol)
    np.testing.assert_allclose(one.middle, other.middle, atol=atol)
    for name in NAMES:
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=atol, err_msg=name)


PLAIN = {
    "cone": astra.create_proj_geom("cone", 1.2, 1.4, 6, 8, ANGLES, 40.0, 20.0),
    "parallel3d": astra.create_proj_geom("parallel3d", 1.2, 1.4, 6, 8, ANGLES),
    "parallel": astra.create_proj_geom("parallel", 1.1, 50, ANGLES),
    "fanflat": astra.create_proj_geom("fanflat", 1.3, 60, ANGLES, 70.0, 30.0),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_geometries_by_angles_are_those_that_astra_makes_vectors_of(kind):
    volume = VOLUME if "Row" in str(PLAIN[kind]) else SLICE
    found = from_astra(PLAIN[kind], volume)
    vectors = astra.geom_2vec(PLAIN[kind])
    read = from_astra(vectors, volume)
    direction = -1 if kind.startswith("parallel") else 1  # the same line the other way
    np.testing.assert_allclose(found.source, direction * read.source, atol=1e-12)
    same(found.replace(source=read.source), read)
    written, window = to_astra(found)
    assert written["type"] == vectors["type"]
    expected = vectors["Vectors"].copy()
    expected[:, : 2 if expected.shape[1] == 6 else 3] *= direction
    np.testing.assert_allclose(written["Vectors"], expected, atol=1e-12)
    assert {key: value for key, value in written.items() if key != "Vectors"} == {
        key: value for key, value in vectors.items() if key != "Vectors"
    }
    assert window == volume
    same(from_astra(written, window), found)


def test_moved_and_turned_detectors_of_astra():
    moved = astra.geom_postalignment(PLAIN["cone"], (1.5, -0.5, 0.1))
    same(from_astra(*to_astra(from_astra(moved, VOLUME))), from_astra(moved, VOLUME))
    plain = from_astra(PLAIN["cone"], VOLUME)
    turned = cone_beam(
        np.rad2deg(ANGLES), 6, 8, source_axis=40, source_detector=60, pixel=(1.4, 1.2), shape=(5, 7, 9), voxel=1.0
    ).replace(voxel=plain.voxel, middle=plain.middle)  # fmt: skip
    same(plain, turned)  # three-dimensional angles are the same in both


PHANTOM = Phantom(np.array([[1.0, 8, 5, 50, 3, 4, 0, 25], [0.5, 3, 3, 50, -7, -6, 0, 0], [-0.4, 2, 3, 50, 4, 6, 0, 0]]))


@pytest.mark.parametrize("kind", ["parallel", "fanflat", "parallel_vec", "fanflat_vec"])
def test_astra_projects_a_slice_as_the_rays_say(kind):
    """ASTRA's projector on the CPU, of a phantom on voxels, against line integrals along the rays of the geometry."""
    projections = PLAIN[kind.removesuffix("_vec")]
    if kind.endswith("_vec"):
        projections = astra.geom_postalignment(projections, 3.25)
    geometry = from_astra(projections, SLICE)
    image = voxel_values(PHANTOM, geometry, unit=1.0, fine=4)[0]
    sinogram = astra_projections(projections, SLICE, image)
    expected = ray_integrals(PHANTOM, geometry, unit=1.0, fine=3)[:, 0]
    assert np.linalg.norm(sinogram - expected) < 0.06 * np.linalg.norm(expected)
    assert np.linalg.norm(sinogram[:, ::-1] - expected) > 0.2 * np.linalg.norm(expected)
    again = astra_projections(*to_astra(geometry), image)
    np.testing.assert_allclose(again, sinogram, atol=1e-4)


def test_a_fan_of_ours_in_astra():
    geometry = fan_beam(np.rad2deg(ANGLES), 60, slices=3, source_axis=70, source_detector=100, center=27.0,
                        shape=(3, 34, 40), voxel=(1.0, 1.0, 1.0))  # fmt: skip
    expected = ray_integrals(PHANTOM, geometry, unit=1.0, fine=3)
    image = voxel_values(PHANTOM, geometry, unit=1.0, fine=4)[1]
    sinogram = astra_projections(*to_astra(geometry), image)
    assert np.linalg.norm(sinogram - expected[:, 1]) < 0.06 * np.linalg.norm(expected[:, 1])


def astra_projections(projections, volume, image):
    flat = "fanflat" if "fanflat" in projections["type"] else ""
    projector = astra.create_projector("line_" + flat if flat else "line", projections, volume)
    number, sinogram = astra.create_sino(image, projector)
    astra.data2d.delete(number)
    astra.projector.delete(projector)
    return sinogram


def test_any_geometry_goes_through_astra():
    for geometry in (
        cone_beam([0, 70, 200], 6, 8, source_axis=40, source_detector=60, rise=9, roll=3, yaw=4, pitch=5, center=2.0),
        laminography([0, 70, 200], 6, 8, tilt=30), tilt_series([0, 20, 50], 6, 8, shape=(3, 6, 8), axis_angle=80),
    ):  # fmt: skip
        moved = geometry.replace(middle=(1, 2, 3), voxel=(0.5, 0.7, 0.9))
        same(from_astra(*to_astra(moved)), moved)


@pytest.mark.parametrize(
    ("projections", "sentence"),
    [
        ({"type": "cyl_cone_vec", "Vectors": np.zeros((2, 13))}, "'cyl_cone_vec' has no flat detector"),
        ({"type": "sparse_matrix"}, "no flat detector"),
        ({}, "no flat detector"),
        ({"type": "cone_vec", "Vectors": np.zeros((2, 6)), "DetectorRowCount": 2, "DetectorColCount": 2}, "12 numbers"),
        ({"type": "cone_vec", "Vectors": np.zeros((2, 12)), "DetectorRowCount": 2}, "has no 'DetectorColCount'"),
        ({"type": "parallel", "ProjectionAngles": [0.0], "DetectorWidth": 1.0}, "has no 'DetectorCount'"),
    ],
)
def test_what_astra_has_and_dtomo_has_not(projections, sentence):
    with pytest.raises(UserError, match=sentence):
        from_astra(projections, VOLUME)


def test_fans_that_astra_has_not():
    fan = fan_beam([0, 10], 8, slices=2, source_axis=40, source_detector=60)
    with pytest.raises(UserError, match="in the plane of the slices alone"):
        to_astra(fan.replace(row_step=[0.1, 0, 1]))


# TIGRE: its projectors need a GPU; what follows is what its sources say


def tigre(**changes):
    values = {
        "DSD": 60.0, "DSO": 40.0, "nDetector": np.array([6, 8]), "dDetector": np.array([1.4, 1.2]),
        "nVoxel": np.array([5, 7, 9]), "dVoxel": np.array([0.5, 0.7, 0.9]), "mode": "cone",
        "offOrigin": np.zeros(3), "offDetector": np.zeros(2), "rotDetector": np.zeros(3), "COR": 0,
    }  # fmt: skip
    return SimpleNamespace(**{**values, **changes})


def tigre_pixel(geo, angles, view, row, column):
    """Where TIGRE puts a pixel, step by step as computeDeltas_Siddon does, with the volume's middle at offOrigin."""
    place = np.array([0, geo.dDetector[1] * (column - geo.nDetector[1] / 2 + 0.5),
                      geo.dDetector[0] * (row - geo.nDetector[0] / 2 + 0.5)])  # fmt: skip
    place = Rotation.from_euler("xyz", geo.rotDetector).apply(place)
    place += [-(geo.DSD - geo.DSO), geo.offDetector[1], geo.offDetector[0]]
    alpha = np.atleast_2d(np.array(angles).T).T[view]
    turn = Rotation.from_euler("ZYZ", alpha) if alpha.size == 3 else Rotation.from_euler("z", alpha[0])
    aside = geo.COR * np.array([-np.sin(alpha[0]), np.cos(alpha[0]), 0])
    return turn.apply(place) + aside, turn.apply([geo.DSO, 0, 0]) + aside


@pytest.mark.parametrize(
    "changes",
    [{}, {"offDetector": np.array([1.5, -2.5])}, {"rotDetector": np.array([0.1, -0.2, 0.3])}, {"COR": 1.7},
     {"offOrigin": np.array([1.0, 2, -3])}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("angles", [ANGLES, np.outer([1, 2, 3], [0.3, -0.2, 0.5])], ids=["z", "zyz"])
def test_pixels_lie_where_tigre_puts_them(changes, angles):
    geo = tigre(**changes)
    geometry = from_tigre(geo, angles)
    assert (geometry.shape, geometry.voxel) == ((5, 7, 9), (0.5, 0.7, 0.9))
    np.testing.assert_allclose(geometry.middle, geo.offOrigin[::-1])
    for view in range(len(angles)):
        for row, column in ((0, 0), (2, 7), (5, 1)):
            place, source = tigre_pixel(geo, angles, view, row, column)
            found = geometry.detector[view] + (column - 3.5) * geometry.column_step[view]
            np.testing.assert_allclose(found + (row - 2.5) * geometry.row_step[view], place, atol=1e-12)
            np.testing.assert_allclose(geometry.source[view], source, atol=1e-12)


def test_an_angle_of_tigre_is_ninety_degrees_more_here():
    ours = cone_beam(
        np.rad2deg(ANGLES) + 90, 6, 8, source_axis=40, source_detector=60, pixel=(1.4, 1.2), shape=(5, 7, 9),
        voxel=(0.5, 0.7, 0.9),
    )  # fmt: skip
    same(from_tigre(tigre(), ANGLES), ours)
    parallel = laminography(np.rad2deg(ANGLES) + 90, 6, 8, tilt=0, shape=(5, 7, 9), pixel=1.2, voxel=(0.5, 0.7, 0.9))
    found = from_tigre(tigre(mode="parallel", dDetector=np.array([1.2, 1.2])), ANGLES)
    np.testing.assert_allclose(found.matrices(), parallel.matrices(), atol=1e-12)


def test_parameters_of_each_view():
    offsets = np.outer(np.arange(4), [0.5, 1.0])
    geo = tigre(DSD=np.array([60.0, 61, 62, 63]), offDetector=offsets, offOrigin=np.outer(np.arange(4), [1.0, 2, 3]))
    geometry = from_tigre(geo, ANGLES)
    for view in range(4):
        one = from_tigre(
            tigre(DSD=60.0 + view, offDetector=offsets[view], offOrigin=view * np.array([1.0, 2, 3])), ANGLES[view]
        )
        np.testing.assert_allclose(one.voxel_matrices()[0], geometry.voxel_matrices()[view], atol=1e-9)


GEOMETRIES = {
    "cone": cone_beam([0, 70, 200], 6, 8, source_axis=40, source_detector=60, center=2.0, center_row=4.0),
    "turned": cone_beam([0, 70, 200], 6, 8, source_axis=40, source_detector=60, roll=3, yaw=4, pitch=5),
    "helix": cone_beam([0, 70, 200], 6, 8, source_axis=40, source_detector=60, rise=9),
    "mirrored": cone_beam([0, 70], 6, 8, source_axis=40, source_detector=60).replace(row_step=[0, 0, -1]),
    "about x": cone_beam([0, 70, 200], 6, 8, source_axis=40, source_detector=60),
    "parallel": laminography([0, 70, 200], 6, 8, tilt=0, pixel=1.5, center=2.0, shape=(5, 8, 8)),
    "fan": fan_beam([0, 70, 200], 8, source_axis=40, source_detector=60),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_any_geometry_goes_through_tigre(name):
    geometry = GEOMETRIES[name]
    if name == "about x":
        turn = Rotation.from_euler("xy", [90, 20], degrees=True)
        geometry = geometry.replace(**{n: turn.apply(getattr(geometry, n).copy()) for n in NAMES})
    geometry = geometry.replace(middle=(1.0, -2.0, 0.5))
    parameters, angles = to_tigre(geometry)
    found = from_tigre(SimpleNamespace(**parameters), angles)
    assert np.ndim(angles) == (1 if name not in ("about x", "helix") else 2)
    assert found.middle == geometry.middle
    one, other = found.voxel_matrices(), geometry.voxel_matrices()
    if name == "fan":
        one, other = one[:, [0, 2]], other[:, [0, 2]]
    np.testing.assert_allclose(one, other, atol=1e-9)


@pytest.mark.parametrize(
    ("geometry", "sentence"),
    [
        (laminography([0, 70], 6, 8, tilt=20), "this one is tilted"),
        (fan_beam([0, 70], 8, slices=2, source_axis=40, source_detector=60), "no fans of several slices"),
        (GEOMETRIES["cone"].replace(row_step=[0.2, 0.2, 1]), "right-angled pixels"),
        (GEOMETRIES["mirrored"].replace(row_step=[[0, 0, -1], [0, 0, -1.1]]), "of one size in all views"),
    ],
)
def test_what_tigre_has_no_parameters_for(geometry, sentence):
    with pytest.raises(UserError, match=sentence):
        to_tigre(geometry)


@pytest.mark.parametrize(
    ("changes", "angles", "sentence"),
    [
        ({"mode": "helical"}, ANGLES, "mode of a geometry of TIGRE"),
        ({"DSO": None}, ANGLES, "has no DSO"),
        ({"nDetector": 6}, ANGLES, "nDetector of a geometry of TIGRE is"),
        ({"offDetector": np.zeros((3, 2))}, ANGLES, "offDetector of a geometry of TIGRE is one for all"),
        ({}, np.zeros((2, 2)), "angles of TIGRE are"),
        ({"mode": "parallel"}, np.ones((2, 3)), "about z alone"),
        ({"nVoxel": None}, ANGLES, "shape of a volume"),
    ],
)
def test_what_is_no_geometry_of_tigre(changes, angles, sentence):
    with pytest.raises(UserError, match=sentence):
        from_tigre(tigre(**changes), angles)


# CIL: the attributes of its geometries, as its converters read them


def cil(kind="cone", flat=False, origin="bottom-left", unit="degree", **changes):
    three = (lambda *v: np.array(v[:2])) if flat else (lambda *v: np.array(v))
    values = {
        "source": three(0.0, -40.0, 0.0), "ray": three(0.0, 1.0, 0.0), "detector": three(1.0, 20.0, 2.0),
        "direction_x": three(1.0, 0.0, 0.0), "direction_y": np.array([0.0, 0, 1]),
    }  # fmt: skip
    values.update(changes)
    called = []
    system = SimpleNamespace(
        source=SimpleNamespace(position=values["source"]), ray=SimpleNamespace(direction=values["ray"]),
        detector=SimpleNamespace(
            position=values["detector"], direction_x=values["direction_x"], direction_y=values["direction_y"]
        ),
        align_reference_frame=called.append,
    )  # fmt: skip
    angles = SimpleNamespace(angle_data=np.array([0.0, 30, 100]), initial_angle=10.0, angle_unit=unit)
    if unit == "radian":
        angles.angle_data, angles.initial_angle = np.deg2rad(angles.angle_data), np.deg2rad(10)
    panel = SimpleNamespace(num_pixels=(8, 1 if flat else 6), pixel_size=(1.2, 1.4), origin=origin)
    given = SimpleNamespace(
        geom_type=kind, dimension="2D" if flat else "3D",
        config=SimpleNamespace(system=system, panel=panel, angles=angles), called=called,
    )  # fmt: skip
    given.copy = lambda: given
    return given


def image(flat=False):
    number = 0 if flat else 5
    return SimpleNamespace(
        voxel_num_x=9, voxel_num_y=7, voxel_num_z=number, voxel_size_x=0.9, voxel_size_y=0.7, voxel_size_z=0.5,
        get_min_x=lambda: -3.0, get_max_x=lambda: 5.1, get_min_y=lambda: -2.45, get_max_y=lambda: 2.45,
        get_min_z=lambda: -1.0, get_max_z=lambda: 1.5,
    )  # fmt: skip


def test_geometries_of_cil():
    """Turned by minus the angle, as CIL's own converter to ASTRA's vectors does."""
    for unit in ("degree", "radian"):
        given = cil(unit=unit)
        found = from_cil(given, image())
        assert given.called == ["cil"]
        ours = cone_beam(
            [-10, -40, -110], 6, 8, source_axis=40, source_detector=60, pixel=(1.4, 1.2), center=3.5 - 1 / 1.2,
            center_row=2.5 - 2 / 1.4, shape=(5, 7, 9), voxel=(0.5, 0.7, 0.9),
        )  # fmt: skip
        same(found, ours.replace(middle=(1.05, 0, 0.25)))
    top = from_cil(cil(origin="top-right"), image())
    np.testing.assert_allclose(top.row_step, -found.row_step)
    np.testing.assert_allclose(top.column_step, -found.column_step)


def test_parallel_and_flat_geometries_of_cil():
    parallel = from_cil(cil("parallel"), image())
    assert parallel.beam == "parallel"
    theta = np.deg2rad([-10, -40, -110])
    np.testing.assert_allclose(parallel.source, np.stack([-np.sin(theta), np.cos(theta), 0 * theta], 1), atol=1e-12)
    fan = from_cil(cil(flat=True), image(flat=True))
    assert (fan.beam, fan.rows, fan.shape, fan.voxel) == ("fan", 1, (1, 7, 9), (0.9, 0.7, 0.9))
    np.testing.assert_allclose(fan.middle, (1.05, 0, 0))
    deep = from_cil(cil(), image())
    np.testing.assert_allclose(fan.matrices()[:, [0, 2]], deep.matrices()[:, [0, 2]], atol=1e-12)
    line = from_cil(cil("parallel", flat=True), image(flat=True))
    np.testing.assert_allclose(line.matrices()[:, 0], parallel.matrices()[:, 0], atol=1e-12)


def test_cil_and_tigre_agree_on_what_cil_tells_tigre():
    """CIL hands its angles to TIGRE as minus the angle, minus a quarter of a turn."""
    found = from_cil(cil(), image())
    geo = tigre(offDetector=np.array([2.0, 1.0]))
    told = from_tigre(geo, -np.deg2rad(np.array([10.0, 40, 110])) - np.pi / 2)
    np.testing.assert_allclose(told.matrices(), found.matrices(), atol=1e-12)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [(cil("cone_souv"), "not for cone_souv"), (SimpleNamespace(copy=lambda: SimpleNamespace()), "no geometry of CIL")],
)
def test_what_is_no_geometry_of_cil(given, sentence):
    with pytest.raises(UserError, match=sentence):
        from_cil(given, image())
