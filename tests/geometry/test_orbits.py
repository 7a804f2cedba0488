"""Circles that sources lie on, and what views and rays count."""

import dataclasses

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dtomo.errors import UserError
from dtomo.geometry import VectorGeometry, cone_beam, fan_beam, laminography, tilt_series
from dtomo.geometry.orbits import orbit_of, spacing
from dtomo.geometry.redundancy import aside, missing_side, redundancy_of

ROUND = {"source_axis": 60, "source_detector": 90}
ANGLES = np.array([0.0, 30.0, 100.0, 250.0, 10.0])


def turned(geometry, rotation, shift):
    """The whole set-up turned and moved."""
    direction = geometry.beam == "parallel"
    source, detector, across, down = (
        rotation.apply(table.copy())
        for table in (geometry.source, geometry.detector, geometry.column_step, geometry.row_step)
    )
    return geometry.replace(
        source=source + (0 if direction else shift), detector=detector + shift, column_step=across, row_step=down,
        middle=tuple(np.array(geometry.middle) + shift),
    )  # fmt: skip


@pytest.mark.parametrize("beam", ["cone", "fan", "lamino", "tilts"])
def test_any_circle_is_found(beam):
    plain = {
        "cone": cone_beam(ANGLES, 7, 9, **ROUND), "fan": fan_beam(ANGLES, 9, **ROUND),
        "lamino": laminography(ANGLES, 7, 9, tilt=25), "tilts": tilt_series(ANGLES, 7, 9, shape=(3, 7, 9)),
    }[beam]  # fmt: skip
    rotation, shift = Rotation.from_euler("xyz", [20, -50, 100], degrees=True), np.array([3.0, -2, 5])
    geometry = turned(plain, rotation, shift)
    orbit = orbit_of(geometry)
    axis = rotation.apply([0, 1, 0] if beam == "tilts" else [0, 0, 1])
    assert abs(orbit.axis @ axis) == pytest.approx(1, abs=1e-9)
    if beam in ("cone", "fan"):
        np.testing.assert_allclose(orbit.middle, shift, atol=1e-7)
        assert orbit.radius == pytest.approx(60)
        np.testing.assert_allclose(geometry.source + 60 * orbit.inward, np.broadcast_to(shift, (5, 3)), atol=1e-7)
    else:
        assert orbit.radius == pytest.approx(np.cos(np.deg2rad(25)) if beam == "lamino" else 1)
    turns = np.rad2deg(np.unwrap(orbit.angles - orbit.angles[0]))
    expected = ANGLES if orbit.axis @ axis > 0 else -ANGLES
    expected = -expected if beam == "tilts" else expected  # a tilt turns the beam from z towards -x
    np.testing.assert_allclose(np.mod(turns - expected + 180, 360) - 180, 0, atol=1e-6)
    step = 1e-6
    later = turned(geometry, Rotation.from_rotvec(step * orbit.axis), np.zeros(3))
    if beam in ("cone", "fan"):
        later = turned(turned(geometry, Rotation.identity(), -shift), Rotation.from_rotvec(step * orbit.axis), shift)
        np.testing.assert_allclose((later.source - geometry.source) / step, orbit.velocity, atol=1e-3)
    else:
        np.testing.assert_allclose((geometry.source - later.source) / step, orbit.velocity, atol=1e-3)


REFUSED = [
    (cone_beam(ANGLES, 7, 9, **ROUND, rise=20), "beside the circle of radius"),
    (cone_beam([0, 40], 7, 9, **ROUND), "places that lie in a line"),
    (cone_beam([0, 0, 0, 0], 7, 9, **ROUND), "places that lie in a line"),
    (laminography([0, 180, 360, 180], 7, 9, tilt=0), "places that lie in a line"),
    (tilt_series([0, 20, 40, 60], 7, 9, shape=(3, 7, 9), beam_tilt=[0, 0, 12, 0]), "view . leans differently"),
    (
        VectorGeometry("cone", [[0, -50, 0], [30, -40, 0], [50, 0, 0], [20, 20, 0]], [0, -90, 0], [1, 0, 0],
                       [0, 0, 1], 5, 5, (5, 5, 5)),
        "that of view . lies",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("geometry", "sentence"), REFUSED)
def test_what_is_no_circle_is_refused_by_a_sentence(geometry, sentence):
    with pytest.raises(UserError, match=sentence):
        orbit_of(geometry)


def test_what_views_stand_for():
    rng = np.random.default_rng(2)
    np.testing.assert_allclose(spacing(np.array([0.0, 20, 30, 280]), 180)[0], [50, 15, 40, 75])
    np.testing.assert_allclose(spacing(np.array([0.0, 20, 30, 280]), 360)[0], [50, 15, 130, 165])
    whole, missing = spacing(rng.uniform(0, 2 * np.pi, 77), 2 * np.pi)
    assert whole.sum() == pytest.approx(2 * np.pi)
    assert missing == 0
    arc, missing = spacing(np.deg2rad(np.arange(10, 220.0)), 2 * np.pi)
    np.testing.assert_allclose(arc, np.deg2rad(1), rtol=1e-6)
    assert missing == pytest.approx(np.deg2rad(150))


@pytest.mark.parametrize(
    "geometry",
    [
        fan_beam(np.arange(0, 240, 2.0), 41, **ROUND, center=21.3),
        fan_beam(np.arange(-20, 300, 2.0), 41, **ROUND),
        fan_beam(np.arange(0, 360, 3.0), 30, **ROUND, center=5.2),
        fan_beam(np.arange(360, 0, -3.0), 30, **ROUND, center=25),
        laminography(np.arange(0, 360, 3.0), 1, 30, tilt=0, center=5.2),
    ],
    ids=["short", "longer", "half fan", "other half fan", "half a parallel detector"],
)
def test_rays_that_are_one_count_once(geometry):
    """Each ray and the same from the other side, found by where the line meets the circle again, count 1 in all."""
    orbit = orbit_of(geometry)
    redundancy = redundancy_of(geometry, orbit)
    assert not redundancy.each_alike
    columns = (np.arange(geometry.columns) - (geometry.columns - 1) / 2)[:, None]
    shares = []
    for view in range(0, geometry.views, 7):
        pixels = geometry.detector[view] + columns * geometry.column_step[view]
        beside = aside(geometry, orbit, view, pixels)
        counts = redundancy.of_rays(view, beside)
        if geometry.beam == "parallel":
            other_angle, other_beside = orbit.angles[view] + np.pi + 0 * beside, -beside
        else:
            ray = pixels - geometry.source[view]
            ray /= np.linalg.norm(ray, axis=1, keepdims=True)
            again = geometry.source[view] - 2 * (ray @ geometry.source[view])[:, None] * ray
            start = orbit.middle + orbit.radius * -orbit.inward[0]
            side = np.cross(orbit.axis, start)
            other_angle = orbit.angles[0] + np.arctan2(again @ side, again @ start)
            turn = np.cross(-again, -ray) @ orbit.axis
            other_beside = np.arctan2(turn, np.sum(again * ray, 1))
        others = [
            dataclasses.replace(redundancy, orbit=dataclasses.replace(orbit, angles=np.array([angle])))
            for angle in other_angle
        ]
        twins = [float(other.of_rays(0, np.array(place))) for other, place in zip(others, other_beside)]
        np.testing.assert_allclose((counts + twins)[counts > 0], 1, atol=1e-9)
        shares += list(counts)
    assert min(shares) < 0.2
    assert max(shares) == pytest.approx(1)
    assert ((np.array(shares) > 0.2) & (np.array(shares) < 0.8)).any()


def test_views_are_even_where_nothing_is_missing():
    cone = cone_beam(np.arange(0, 360, 5.0), 7, 9, **ROUND)
    redundancy = redundancy_of(cone, orbit_of(cone))
    assert redundancy.each_alike
    np.testing.assert_allclose(redundancy.of_rays(3, np.array([0.1, -0.2])), 0.5)
    np.testing.assert_allclose(redundancy.radians, np.deg2rad(5))
    assert missing_side(cone, redundancy) == (0, 0)
    tilts = tilt_series(np.arange(-60, 61, 3.0), 7, 9, shape=(3, 7, 9))
    redundancy = redundancy_of(tilts, orbit_of(tilts))
    np.testing.assert_allclose(redundancy.of_rays(0, np.zeros(2)), 1)
    np.testing.assert_allclose(redundancy.radians, np.deg2rad(3))


def test_the_side_that_a_detector_lacks():
    for center, expected in ((4.5, (20, 0)), (24.5, (0, 20))):
        geometry = laminography(np.arange(0, 360, 3.0), 1, 30, tilt=0, center=center)
        redundancy = redundancy_of(geometry, orbit_of(geometry))
        assert redundancy.near == pytest.approx(5)
        assert missing_side(geometry, redundancy) == expected
        assert aside(geometry.with_columns(*expected), redundancy.orbit, 3, geometry.with_columns(*expected).detector)[
            3
        ] == pytest.approx(0, abs=1e-9)


def test_a_detector_that_does_not_see_the_axis_is_refused():
    geometry = fan_beam(np.arange(0, 360, 3.0), 30, **ROUND, center=-3)
    with pytest.raises(UserError, match="sees the axis of rotation in every view"):
        redundancy_of(geometry, orbit_of(geometry))
