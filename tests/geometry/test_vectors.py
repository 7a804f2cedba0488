"""Geometries of vectors: where points are seen, and what is refused."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam, VectorGeometry, cone_beam, fan_beam, laminography, tilt_series

ANGLES = np.array([0.0, 30.0, 100.0, -200.0])
POINTS = np.random.default_rng(5).uniform(-9, 9, (40, 3))


def seen(geometry, points):
    """``(views, points, 2)``: (row, column) at which points are seen."""
    matrices = geometry.matrices()
    found = np.einsum("vij,pj->vpi", matrices, np.column_stack([points, np.ones(len(points))]))
    rows = found[..., 1] if geometry.beam == "fan" else found[..., 1] / found[..., 2]
    return np.stack([rows, found[..., 0] / found[..., 2]], -1)


def places(geometry, row, column):
    """Where a pixel lies in each view."""
    aside, below = column - (geometry.columns - 1) / 2, row - (geometry.rows - 1) / 2
    return geometry.detector + aside * geometry.column_step + below * geometry.row_step


def voxels(geometry):
    """(x, y, z) of the first and the last voxel."""
    size, half = np.array(geometry.voxel), (np.array(geometry.shape) - 1) / 2
    return [(np.array(geometry.middle)[::-1] + sign * half * size)[::-1] for sign in (-1, 1)]


ALL = {
    "cone": cone_beam(ANGLES, 8, 12, source_axis=60, source_detector=90, pixel=(2.0, 1.5), center=4.2, center_row=5.0),
    "helix": cone_beam(ANGLES, 7, 12, source_axis=60, source_detector=90, rise=5, roll=3, yaw=-4, pitch=2),
    "fan": fan_beam(ANGLES, 12, slices=5, source_axis=60, source_detector=90, center=4.0),
    "laminography": laminography(ANGLES, 9, 12, tilt=35, pixel=0.5, center=6.0, center_row=1.0),
    "tilts": tilt_series(ANGLES, 9, 12, shape=(4, 9, 12), axis_angle=80, shifts=np.outer(ANGLES, [0.01, 0.02])),
    "parallel": VectorGeometry.of_parallel(ParallelBeam(ANGLES, 12, 4.5, 10, 9, pitch=1.25), 6),
}
every = pytest.mark.parametrize("geometry", ALL.values(), ids=ALL)


@every
def test_points_on_the_ray_of_a_pixel_are_seen_there(geometry):
    for row, column in ((0, 0), (2.5, 7.25), (geometry.rows - 1, 3)):
        pixel = places(geometry, row, column)
        if geometry.beam == "parallel":
            direction = geometry.source
        else:
            lifted = geometry.row_step * (row - (geometry.rows - 1) / 2) if geometry.beam == "fan" else 0
            direction = geometry.source + lifted - pixel
        for along in (0, 0.3, -2.0):
            for view, point in enumerate(pixel + along * direction):
                np.testing.assert_allclose(seen(geometry, point[None])[view, 0], [row, column], atol=1e-9)


def test_cone_beam_by_closed_form():
    theta, (x, y, z) = np.deg2rad(ANGLES)[:, None], POINTS.T
    across, depth = x * np.cos(theta) + y * np.sin(theta), -x * np.sin(theta) + y * np.cos(theta)
    larger = 90 / (60 + depth)
    expected = np.stack([5.0 + z * larger / 2.0, 4.2 + across * larger / 1.5], -1)
    np.testing.assert_allclose(seen(ALL["cone"], POINTS), expected, atol=1e-9)
    assert ALL["cone"].voxel == (1.0, 1.0, 1.0)
    assert ALL["cone"].shape == (8, 12, 12)


def test_helix_by_closed_form():
    many = np.concatenate([ANGLES, ANGLES + 360])
    helix = cone_beam(many, 7, 12, source_axis=60, source_detector=90, rise=5)
    flat = cone_beam(many, 7, 12, source_axis=60, source_detector=90)
    for view, angle in enumerate(many):
        moved = POINTS - [0, 0, 5 * angle / 360]
        np.testing.assert_allclose(seen(helix, POINTS)[view], seen(flat, moved)[view], atol=1e-9)


@pytest.mark.parametrize("turn", ["roll", "yaw", "pitch"])
def test_turned_detectors_by_closed_form(turn):
    angle = np.deg2rad(7.0)
    c, s = np.cos(angle), np.sin(angle)
    turned = cone_beam(0, 9, 13, source_axis=60, source_detector=90, **{turn: 7.0})
    x, y, z = POINTS.T
    u, v = x * 90 / (60 + y), z * 90 / (60 + y)  # on the detector before it is turned
    if turn == "roll":
        column, row = c * u + s * v, c * v - s * u
    elif turn == "yaw":  # the columns' direction is (c, -s) along (columns, beam): where (u, 90) t meets it
        column, row = u / (c + s * u / 90), v * (1 - s * u / (c * 90 + s * u))
    else:  # rows' direction is (c, s) along (rows, beam)
        row, column = v / (c - s * v / 90), u * (1 + s * v / (c * 90 - s * v))
    np.testing.assert_allclose(seen(turned, POINTS)[0], np.stack([row + 4, column + 6], -1), atol=1e-9)


def test_turns_go_about_the_directions_that_earlier_turns_left():
    both = cone_beam(0, 9, 13, source_axis=60, source_detector=90, roll=90, yaw=10, pitch=20)
    # after the roll columns run along z and rows along -x; yaw: the beam (y) towards columns (z), about -x
    yaw, pitch = np.deg2rad(10), np.deg2rad(20)
    columns = np.array([0, -np.sin(yaw), np.cos(yaw)])
    beam = np.array([0, np.cos(yaw), np.sin(yaw)])
    rows = np.cos(pitch) * np.array([-1, 0, 0]) + np.sin(pitch) * beam
    np.testing.assert_allclose(both.column_step[0], columns, atol=1e-12)
    np.testing.assert_allclose(both.row_step[0], rows, atol=1e-12)


def test_fan_beam_by_closed_form():
    theta, (x, y, z) = np.deg2rad(ANGLES)[:, None], POINTS.T
    across, depth = x * np.cos(theta) + y * np.sin(theta), -x * np.sin(theta) + y * np.cos(theta)
    expected = np.stack([2 + z + 0 * theta, 4.0 + across * 90 / (60 + depth)], -1)
    np.testing.assert_allclose(seen(ALL["fan"], POINTS), expected, atol=1e-9)
    np.testing.assert_allclose(ALL["fan"].voxel, (1.0, 2 / 3, 2 / 3))


def test_laminography_by_closed_form():
    theta, tilt, (x, y, z) = np.deg2rad(ANGLES)[:, None], np.deg2rad(35), POINTS.T
    across, depth = x * np.cos(theta) + y * np.sin(theta), -x * np.sin(theta) + y * np.cos(theta)
    expected = np.stack([1.0 + 2 * (z * np.cos(tilt) - depth * np.sin(tilt)), 6.0 + 2 * across], -1)
    np.testing.assert_allclose(seen(ALL["laminography"], POINTS), expected, atol=1e-9)
    upright = laminography(ANGLES, 6, 12, tilt=0)
    np.testing.assert_allclose(
        upright.matrices(), VectorGeometry.of_parallel(ParallelBeam(ANGLES, 12), 6).matrices(), atol=1e-12
    )


def test_tilt_series_by_closed_form():
    tilt, (x, y, z) = np.deg2rad(ANGLES)[:, None], POINTS.T
    across, phi = x * np.cos(tilt) + z * np.sin(tilt), np.deg2rad(80)
    row = 4 + y * np.cos(phi) - across * np.sin(phi) + 0.01 * ANGLES[:, None]
    column = 5.5 + y * np.sin(phi) + across * np.cos(phi) + 0.02 * ANGLES[:, None]
    np.testing.assert_allclose(seen(ALL["tilts"], POINTS), np.stack([row, column], -1), atol=1e-9)
    leaning = tilt_series(0, 9, 12, shape=(4, 9, 12), beam_tilt=30)
    np.testing.assert_allclose(leaning.source[0], [0, 0.5, np.sqrt(0.75)], atol=1e-12)
    np.testing.assert_allclose(seen(leaning, [[0, 2, 0]])[0, 0], [4 + 2 * np.cos(np.pi / 6), 5.5])


def test_parallel_beam_is_the_same_as_the_plain_one():
    theta, (x, y, z) = np.deg2rad(ANGLES)[:, None], POINTS.T
    column = 4.5 + (x * np.cos(theta) + y * np.sin(theta)) / 1.25
    np.testing.assert_allclose(seen(ALL["parallel"], POINTS), np.stack([2.5 + z + 0 * theta, column], -1), atol=1e-9)
    assert ALL["parallel"].shape == (6, 9, 10)


@every
def test_voxels_are_seen_where_their_middles_are(geometry):
    number = np.array([2, 3, 1])
    point = voxels(geometry)[0] + number * np.array(geometry.voxel)[::-1]
    found = geometry.voxel_matrices() @ [*number, 1]
    np.testing.assert_allclose(found, geometry.matrices() @ [*point, 1], atol=1e-12)


@every
def test_some_of_the_views(geometry):
    for chosen in ([2, 0], slice(1, None, 2), np.array([False, True, True, False])):
        some = geometry.of_views(chosen)
        np.testing.assert_array_equal(seen(some, POINTS), seen(geometry, POINTS)[chosen])
    assert geometry.of_views(-1).views == 1
    for wrong in ([], 4, [0, 9], slice(3, 3), "all", 1.5):
        with pytest.raises(UserError, match="chosen by number, from 0 to 3"):
            geometry.of_views(wrong)


@every
def test_slabs_keep_their_place(geometry):
    first, last = voxels(geometry)
    upper, lower = geometry.of_slices(0, 3), geometry.of_slices(3, geometry.shape[0])
    np.testing.assert_allclose(voxels(upper)[0], first, atol=1e-12)
    np.testing.assert_allclose(voxels(lower)[1], last, atol=1e-12)
    np.testing.assert_allclose(voxels(lower)[0][2] - voxels(upper)[1][2], geometry.voxel[0])
    np.testing.assert_array_equal(lower.matrices(), geometry.matrices())


@every
def test_rows_of_the_detector_keep_their_place(geometry):
    some = geometry.of_rows(1, 4)
    assert some.rows == 3
    np.testing.assert_allclose(seen(some, POINTS), seen(geometry, POINTS) - [1, 0], atol=1e-9)


@every
@pytest.mark.parametrize("factor", [2, 3])
def test_coarser_pixels_and_voxels_hold_the_finer_ones(geometry, factor):
    coarse = geometry.coarser(factor)
    np.testing.assert_allclose(
        seen(coarse, POINTS), (seen(geometry, POINTS) - (factor - 1) / 2) / factor, atol=1e-9
    )  # the middle of pixel 0 is that of the first so many
    for size, finer, scale in zip(coarse.shape, geometry.shape, np.divide(coarse.voxel, geometry.voxel)):
        assert scale == factor
        assert 0 <= size * factor - finer < factor
    corner = voxels(geometry)[0] - np.array(geometry.voxel)[::-1] / 2
    np.testing.assert_allclose(voxels(coarse)[0] - np.array(coarse.voxel)[::-1] / 2, corner, atol=1e-12)


@pytest.mark.parametrize("factor", [0, -2, 2.5, np.nan, "two"])
def test_coarser_by_no_whole_number_is_refused(factor):
    with pytest.raises(UserError, match="side of a coarser one is a whole number from 1"):
        fan_beam(ANGLES, 12, source_axis=60, source_detector=90).coarser(factor)


def test_one_row_and_one_slice_stay_one():
    coarse = fan_beam(ANGLES, 12, source_axis=60, source_detector=90).coarser(2)
    assert (coarse.rows, coarse.columns, coarse.shape, coarse.voxel[0]) == (1, 6, (1, 6, 6), 1.0)


@every
def test_values(geometry):
    again = pickle.loads(pickle.dumps(geometry))
    assert again == geometry
    assert hash(again) == hash(geometry)
    for table in (geometry.source, again.source, again.replace(rows=3).row_step):
        with pytest.raises(ValueError, match="read-only"):
            table[0] = 0
    for change in (
        {"beam": "cone" if geometry.beam == "parallel" else "parallel"}, {"source": geometry.source + 1e-9},
        {"detector": geometry.detector + 1}, {"row_step": geometry.row_step * 2}, {"rows": geometry.rows + 1},
        {"column_step": geometry.column_step * 2}, {"columns": geometry.columns + 1}, {"shape": (1, 2, 3)},
        {"voxel": 0.25}, {"middle": (0, 0, 1)},
    ):  # fmt: skip
        if change.get("beam") == "cone":
            change["source"] = -100 * geometry.source
        assert geometry.replace(**change) != geometry, change
    assert geometry != "geometry"
    text = repr(geometry)
    assert len(text) < 200
    assert f"{geometry.views} views" in text


def test_zero_has_one_sign():
    one = VectorGeometry("parallel", [0, 1, 0], [0.0, 0, 0], [1, 0, 0], [0, 0, 1], 2, 2, (2, 2, 2))
    assert one == one.replace(detector=[-0.0, 0, 0], middle=(-0.0, 0, 0))


GOOD = {
    "beam": "cone",
    "source": [0, -50, 0],
    "detector": [0, 30, 0],
    "column_step": [1, 0, 0],
    "row_step": [0, 0, 1],
    "rows": 4,
    "columns": 6,
    "shape": (4, 6, 6),
    "voxel": 1.0,
    "middle": (0, 0, 0),
}
BAD = [
    ({"beam": "spiral"}, "parallel, fan or cone, not 'spiral'"),
    ({"source": [0, 1]}, "source of a geometry is a table"),
    ({"source": "left"}, "source of a geometry is a table"),
    ({"detector": np.zeros((0, 3))}, "detector of a geometry is a table"),
    ({"source": [[0, -50, 0]] * 2, "row_step": [[0, 0, 1]] * 3}, "as many vectors of each"),
    ({"source": [[0, -50, 0], [0, np.nan, 0]]}, "view 1: source is not finite"),
    ({"row_step": [0, np.inf, 0]}, "view 0: row_step is not finite"),
    ({"row_step": [2, 0, 0]}, "view 0: the steps to the next column and row"),
    ({"row_step": [0, 0, 0]}, "view 0: a step of the detector is no voxels"),
    ({"source": [0, 30, 0]}, "view 0: the source lies on the detector"),
    ({"source": [[0, -50, 0], [9, 30, 9]]}, "view 1: the beam goes along the detector"),
    ({"beam": "parallel", "source": [0, 0, 0]}, "view 0: the direction of the beam is zero"),
    ({"beam": "parallel", "source": [1, 0, 2]}, "view 0: the beam goes along the detector"),
    ({"source": [0, -1e10, 0]}, "more than 1e9 voxels away"),
    ({"row_step": [0, 0, 1e10]}, "view 0: a step of the detector is no voxels or more than 1e9"),
    ({"column_step": [1e-10, 0, 0]}, "view 0: a step of the detector is no voxels or more than 1e9"),
    ({"beam": "parallel", "source": [0, 1e200, 0]}, "view 0: the direction of the beam"),
    ({"detector": [0, 1e10, 0]}, "more than 1e9 voxels away"),
    ({"source": [0, -2.9, 0]}, "view 0: the source lies in the volume"),
    ({"rows": 0}, "number of rows of the detector is a whole number from 1, not 0"),
    ({"columns": 2.5}, "number of columns"),
    ({"columns": True}, "number of columns"),
    ({"columns": None}, "number of columns"),
    ({"rows": float("nan")}, "number of rows"),
    ({"shape": (4, 6)}, r"\(z, y, x\)"),
    ({"shape": (4, 6, -1)}, "voxels of the volume"),
    ({"voxel": 0}, "size of a voxel is positive"),
    ({"voxel": (1, 2)}, "size of a voxel is 3 finite numbers"),
    ({"voxel": (1, 2, np.nan)}, "size of a voxel"),
    ({"middle": (0, 0)}, "middle of the volume"),
    ({"middle": "here"}, "middle of the volume"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD)
def test_what_is_no_geometry_is_refused_by_a_sentence(change, sentence):
    VectorGeometry(**GOOD)
    with pytest.raises(UserError, match=sentence) as refused:
        VectorGeometry(**{**GOOD, **change})
    assert "\n" not in str(refused.value)


CONSTRUCTED = [
    (cone_beam, {"angles": []}, "a geometry needs angles"),
    (cone_beam, {"angles": [0, np.inf]}, "angle number 1"),
    (cone_beam, {"angles": "all"}, "list of real numbers in degrees"),
    (cone_beam, {"angles": [[1.0], [2.0]]}, "list of real numbers in degrees"),
    (cone_beam, {"source_axis": 0}, "a positive distance to the axis"),
    (cone_beam, {"source_axis": 91}, "at least as far to the detector; got 91 and 90"),
    (cone_beam, {"source_detector": "far"}, "distance to the detector"),
    (cone_beam, {"pixel": 0}, "size of a pixel is positive"),
    (cone_beam, {"pixel": (1, 2, 3)}, "size of a pixel is 2 finite numbers"),
    (cone_beam, {"pixel": "small"}, "size of a pixel"),
    (cone_beam, {"center": np.nan}, "center of a geometry"),
    (cone_beam, {"center_row": "top"}, "center row of a geometry"),
    (cone_beam, {"roll": np.inf}, "turn of the detector"),
    (cone_beam, {"rise": None}, "rise along the axis"),
    (cone_beam, {"yaw": 90}, "the beam goes along the detector"),
    (cone_beam, {"rows": 0}, "rows of the detector"),
    (cone_beam, {"columns": "all"}, "columns of the detector"),
    (fan_beam, {"source_detector": 0}, "a positive distance to the axis"),
    (fan_beam, {"voxel": "small"}, "size of a voxel"),
    (fan_beam, {"pixel": "small"}, "size of a pixel"),
    (fan_beam, {"slices": 0}, "rows of the detector"),
    (laminography, {"tilt": np.nan}, "tilt"),
    (laminography, {"pixel": -1}, "size of a pixel is positive"),
    (laminography, {"center": np.nan}, "center of a geometry"),
    (laminography, {"columns": 1.5}, "columns of the detector"),
    (tilt_series, {"axis_angle": [0, 1, 2]}, "angle of the axis"),
    (tilt_series, {"beam_tilt": "up"}, "tilt of the beam"),
    (tilt_series, {"shifts": np.zeros((3, 2))}, "shifts are"),
    (tilt_series, {"shifts": [[0, np.nan], [0, 0]]}, "shifts"),
    (tilt_series, {"shape": (3, 3)}, r"\(z, y, x\)"),
]


@pytest.mark.parametrize(("make", "change", "sentence"), CONSTRUCTED)
def test_constructors_refuse_by_a_sentence(make, change, sentence):
    distances = {"source_axis": 60, "source_detector": 90}
    good = {
        cone_beam: dict(angles=[0, 1], rows=4, columns=6, **distances),
        fan_beam: dict(angles=[0, 1], columns=6, **distances),
        laminography: {"angles": [0, 1], "rows": 4, "columns": 6, "tilt": 20},
        tilt_series: {"tilts": [0, 1], "rows": 4, "columns": 6, "shape": (3, 4, 6)},
    }[make]
    make(**good)
    with pytest.raises(UserError, match=sentence):
        make(**{**good, **change})


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_vectors_make_a_geometry_that_sees_its_pixels_or_a_sentence(data):
    number = st.floats(-100, 100) | st.sampled_from([0.0, 1e-200, 1e200, np.inf, np.nan])
    vector = st.lists(number, min_size=3, max_size=3)
    beam = data.draw(st.sampled_from(["parallel", "fan", "cone"]))
    try:
        geometry = VectorGeometry(beam, *(data.draw(vector) for _ in range(4)), 3, 4, (2, 2, 2))
    except UserError:
        return
    matrices = geometry.matrices()
    assert np.isfinite(matrices).all()
    scale = np.abs(geometry.detector).max() + np.abs(geometry.column_step).max() + np.abs(geometry.row_step).max()
    if min(np.linalg.norm(geometry.column_step), np.linalg.norm(geometry.row_step)) > 1e-3 * scale:
        np.testing.assert_allclose(seen(geometry, places(geometry, 2, 1))[0, 0], [2, 1], atol=1e-3)
