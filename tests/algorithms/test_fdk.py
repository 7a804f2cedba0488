"""Filtered back projection of any geometry, of balls whose line integrals are known."""

import numpy as np
import pytest

from dtomo.algorithms import fbp, fdk
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam, VectorGeometry, cone_beam, fan_beam, laminography, tilt_series
from dtomo.geometry.orbits import orbit_of
from dtomo.operators import rows_seen
from dtomo.operators.directed import needs_all_rows
from dtomo.simulate import Phantom, ray_integrals
from tests import laws

RADIUS, MIDDLE = 8.0, (3.0, -2.0, 1.0)
BALL = Phantom(np.array([[0.5, RADIUS, RADIUS, RADIUS, *MIDDLE, 0.0]]))
SIZE = 36
ROUND = {"source_axis": 100, "source_detector": 150, "pixel": 1.5, "shape": (32, SIZE, SIZE), "voxel": 1.0}
TURN = np.arange(0, 360, 3.0)
LAYING = {"shape": (32, SIZE, SIZE)}
CASES = {
    "cone": cone_beam(TURN, 40, SIZE + 6, **ROUND),
    "axis beside the middle": cone_beam(TURN, 40, SIZE + 8, center=23.3, **ROUND),
    "uneven, repeated, backwards": cone_beam([*TURN[::-1], 0, 10, 10, *np.arange(100, 130.0)], 40, SIZE + 6, **ROUND),
    "half fan": cone_beam(TURN, 40, 30, center=6.2, **ROUND),
    "other half fan": cone_beam(TURN[::-1], 40, 30, center=22.0, **ROUND),
    "short scan": cone_beam(np.arange(0, 210, 2.0), 40, SIZE + 6, **ROUND),
    "longer scan": cone_beam(np.arange(320, 50, -2.0), 40, SIZE + 6, **ROUND),
    "detector rolled": cone_beam(TURN, 44, SIZE + 8, roll=3, **ROUND),
    "detector yawed": cone_beam(TURN, 44, SIZE + 8, yaw=9, **ROUND),
    "detector pitched": cone_beam(TURN, 44, SIZE + 8, pitch=9, **ROUND),
    "anisotropic": cone_beam(
        TURN, 60, SIZE + 6, **{**ROUND, "pixel": (1.0, 1.5), "voxel": (0.8, 1.1, 1.0), "shape": (33, 30, 35)}
    ),
    "upside down": cone_beam(TURN, 40, SIZE + 6, **ROUND).replace(row_step=[0, 0, -1.5], middle=(1, 2, -1)),
    "fan": fan_beam(TURN, SIZE + 6, slices=32, **{**ROUND, "pixel": 1.5}),
    "fan, short scan": fan_beam(np.arange(0, 210, 2.0), SIZE + 6, slices=32, **ROUND),
    "parallel, half a detector": laminography(TURN, 32, 26, tilt=0, center=5, **LAYING),
    "laminography": laminography(TURN, 56, SIZE, tilt=30, **LAYING),
    "tilts": tilt_series(np.arange(-90, 90, 2.0), SIZE, SIZE, **LAYING),
    "tilts, axis across": tilt_series(np.arange(-90, 90, 2.0), SIZE, SIZE, axis_angle=90, **LAYING),
    "missing wedge": tilt_series(np.arange(-60, 62, 2.0), SIZE, SIZE, **LAYING),
}
SHARE = {"laminography": np.cos(np.pi / 6), "missing wedge": 122 / 180}  # of all directions in Fourier space


def distances(geometry):
    """How far each voxel lies from the middle of the ball."""
    z, y, x = (
        middle + (np.arange(n) - (n - 1) / 2) * size
        for middle, n, size in zip(geometry.middle[::-1], geometry.shape, geometry.voxel)
    )
    return np.sqrt((x - MIDDLE[0]) ** 2 + (y[:, None] - MIDDLE[1]) ** 2 + (z[:, None, None] - MIDDLE[2]) ** 2), z


@pytest.mark.parametrize("name", CASES)
def test_a_ball_has_its_density_and_is_where_it_is(name):
    geometry = CASES[name]
    found = fdk(ray_integrals(BALL, geometry, unit=1.0, fine=2), geometry)
    assert found.shape == geometry.shape
    assert found.dtype == np.float32
    away, z = distances(geometry)
    inside, beside = away < RADIUS - 2.5, (away > RADIUS + 2.5) & (away < RADIUS + 7)
    expected = 0.5 * SHARE.get(name, 1.0)
    assert found[inside].mean() == pytest.approx(expected, rel=5e-3)
    assert abs(found[beside].mean()) < 2e-3
    flat = np.abs(z) < 1.5  # about the plane of the circle
    assert found[flat][inside[flat]].mean() == pytest.approx(expected, rel=1e-2)
    assert found[flat][inside[flat]].std() < 1e-2 * expected
    if name not in SHARE:
        assert found[beside].std() < 0.04 * expected
        heavy = (found > expected / 2).astype(float)
        for axis, place in enumerate(MIDDLE[::-1]):
            steps = geometry.middle[2 - axis] + (
                np.arange(geometry.shape[axis]) - (geometry.shape[axis] - 1) / 2
            ) * geometry.voxel[axis]  # fmt: skip
            profile = heavy.sum(tuple({0, 1, 2} - {axis}))
            assert (profile * steps).sum() / profile.sum() == pytest.approx(place, abs=0.05)


def test_turned_views_are_filtered_along_the_way_of_the_source():
    """A tilt axis that lies askew on the detector: filtered in two dimensions; sharp edges are a little rougher."""
    geometry = tilt_series(np.arange(-90, 90, 2.0), SIZE + 4, SIZE + 4, axis_angle=30, **LAYING)
    assert needs_all_rows(geometry)
    found = fdk(ray_integrals(BALL, geometry, unit=1.0, fine=2), geometry, filter="hann")
    upright = tilt_series(np.arange(-90, 90, 2.0), SIZE + 4, SIZE + 4, **LAYING)
    assert not needs_all_rows(upright)
    expected = fdk(ray_integrals(BALL, upright, unit=1.0, fine=2), upright, filter="hann")
    away, _ = distances(geometry)
    assert np.abs(found - expected)[away < RADIUS - 2].max() < 0.01
    assert np.abs(found - expected)[(away > RADIUS + 2) & (away < RADIUS + 6)].std() < 0.01


def test_views_filtered_in_two_dimensions_do_not_depend_on_the_unit_of_length():
    projections = laws.draw((45, 20, 24))
    made = []
    for unit in (1.0, 2.5):
        geometry = tilt_series(
            np.arange(-90, 90, 4.0), 20, 24, axis_angle=30, pixel=1.2 * unit, voxel=unit, shape=(12, 12, 12)
        )
        assert needs_all_rows(geometry)
        made.append(fdk(projections, geometry) * unit)
    np.testing.assert_allclose(made[1], made[0], atol=1e-4 * np.abs(made[0]).max())


def test_in_a_parallel_beam_the_same_as_plain_filtered_back_projection():
    angles = np.array([*np.arange(0, 180, 4.0), 11, 11, 13])
    beam = ParallelBeam(angles, 30, 13.7, 24, 26, pitch=1.2)
    projections = laws.draw((len(angles), 5, 30))
    expected = fbp(projections, beam, method="backprojection")
    found = fdk(projections, VectorGeometry.of_parallel(beam, 5))
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["cone", "half fan", "fan", "detector pitched", "parallel, half a detector"])
def test_slabs_that_have_only_the_rows_they_are_seen_in_have_the_same_bits(name):
    geometry = CASES[name]
    projections = laws.draw((geometry.views, geometry.rows, geometry.columns))
    whole = fdk(projections, geometry)
    with laws.thread_count(1):
        for slices in ((0, 5), (5, 14), (14, 32)):
            first, last = rows_seen(geometry, slices)
            assert name == "detector pitched" or last - first < geometry.rows
            part = fdk(projections[:, first:last], geometry, slices=slices, first_row=first)
            assert np.array_equal(part, whole[slices[0] : slices[1]])


def test_complex_projections_and_other_layouts():
    geometry = cone_beam(TURN[::8], 12, 14, source_axis=40, source_detector=60, shape=(6, 9, 9))
    projections = laws.draw((geometry.views, 12, 14), np.complex64)
    before = projections.copy()
    found = fdk(projections, geometry)
    assert found.dtype == np.complex64
    np.testing.assert_array_equal(projections, before)
    np.testing.assert_array_equal(found.real, fdk(projections.real, geometry))
    np.testing.assert_array_equal(found.imag, fdk(projections.imag.astype(np.float64), geometry))
    real = np.ascontiguousarray(projections.real)
    for name, same in laws.layouts(real):
        np.testing.assert_array_equal(fdk(same, geometry), found.real, err_msg=name)
    np.testing.assert_array_equal(real, before.real)


@pytest.mark.parametrize("filter", ["shepp-logan", "hann"])
def test_windows_smooth(filter):
    geometry = CASES["cone"]
    projections = laws.draw((geometry.views, geometry.rows, geometry.columns))
    assert fdk(projections, geometry, filter=filter).std() < 0.9 * fdk(projections, geometry).std()


def test_nothing_in_its_units_is_lost():
    """Lengths in millimetres or in micrometres: attenuation per millimetre or micrometre."""
    projections = laws.draw((len(TURN), 12, 14))
    one = cone_beam(TURN, 12, 14, source_axis=40, source_detector=60, shape=(6, 9, 9))
    other = cone_beam(TURN, 12, 14, source_axis=40e3, source_detector=60e3, pixel=1e3, shape=(6, 9, 9))
    np.testing.assert_allclose(1e3 * fdk(projections, other), fdk(projections, one), rtol=2e-3, atol=1e-5)


HELIX = cone_beam(TURN, 40, 42, rise=12, **ROUND)
GIVEN = np.zeros((len(TURN), 40, 42), np.float32)
BAD = [
    (GIVEN[1:], CASES["cone"], {}, "do not fit a geometry of 120 views, 40 rows and 42 columns"),
    (GIVEN[:, 1:], CASES["cone"], {}, "do not fit"),
    (GIVEN[0], CASES["cone"], {}, "do not fit"),
    (GIVEN, CASES["cone"], {"filter": "box"}, "no filter 'box'"),
    (GIVEN, CASES["cone"], {"filter": "none"}, "no filter 'none'"),
    (GIVEN, CASES["cone"], {"cutoff": 0}, "cut-off"),
    (GIVEN, CASES["cone"], {"padding": "wide"}, "padding is"),
    (GIVEN, CASES["cone"], {"slices": (3, 3)}, "slices are"),
    (GIVEN, CASES["cone"], {"slices": (0, 33)}, "slices are"),
    (GIVEN, CASES["cone"], {"slices": (0, 3), "first_row": 1}, "do not fit"),
    (GIVEN, ParallelBeam(TURN, 42), {}, "there is fbp"),
    (GIVEN, HELIX, {}, "a helix"),
    (
        np.zeros((3, 8, 8), np.float32),
        cone_beam([30, 33, 36], 8, 8, source_axis=34, source_detector=60, shape=(8, 50, 50), voxel=1.0),
        {},
        "view .*: the volume reaches behind the source",
    ),
]


@pytest.mark.parametrize(("projections", "geometry", "options", "sentence"), BAD)
def test_what_cannot_be_done_is_refused_by_a_sentence(projections, geometry, options, sentence):
    with pytest.raises(UserError, match=sentence):
        fdk(projections, geometry, **options)


def test_small_errors_of_a_real_circle_are_borne():
    geometry = CASES["cone"]
    wobbling = geometry.replace(source=geometry.source + laws.draw(geometry.source.shape) * 0.03)
    assert orbit_of(wobbling).radius == pytest.approx(100, rel=1e-3)
    found = fdk(ray_integrals(BALL, wobbling, unit=1.0, fine=2), wobbling)
    away, _ = distances(geometry)
    assert found[away < RADIUS - 2.5].mean() == pytest.approx(0.5, rel=5e-3)
