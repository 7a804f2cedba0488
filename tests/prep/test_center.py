import time

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.prep import center_scores, center_slices, find_center, normalize, rows_for_center
from dtomo.prep.center import Method, _combined

HALF = np.arange(180.0)
FULL = np.arange(360.0)
UNEVEN = np.random.default_rng(3)


@pytest.mark.parametrize(
    ("columns", "center", "angles"),
    [
        (256, 127.5, HALF),
        (257, 100.3, HALF),
        (256, 40.25, HALF),
        (256, 220.7, -HALF),
        (256, 120.4, np.linspace(0, 180, 181)),
        (256, 120.4, UNEVEN.uniform(0, 180, 180)),
        (256, 130.1, np.arange(178.0)),
        (256, 120.2, np.concatenate([HALF, HALF[:50], HALF + 180])),
        (65, 30.6, np.arange(0, 180, 4.5)),
        (256, 20.0, FULL),
        (256, 200.3, FULL),
        (255, 5.2, FULL),
        (256, 120.4, np.linspace(0, 360, 361)),
        (256, 2.0, FULL),
        (256, 250.75, -FULL + 33),
        (256, 70.6, np.sort(UNEVEN.uniform(-0.4, 0.4, 360) + FULL)),
    ],
)
@pytest.mark.parametrize("photons_per_pixel", [None, 1e5, 1e3])
def test_simulated_scans(scan, photons, columns, center, angles, photons_per_pixel):
    full = np.ptp(angles) > 300
    data = scan(columns, center, angles, full=full)
    if photons_per_pixel:
        data = photons(data, photons_per_pixel)
    found = find_center(data, angles)
    assert abs(found.center - center) < (0.25 if photons_per_pixel != 1e3 else 0.5)
    assert found.uncertainty < 0.5
    assert found.confidence >= 0.9
    assert found.reliable
    assert not found.at_edge
    assert f"{found.center:.2f}" in found.message


@pytest.mark.parametrize("seed", range(6))
def test_rings_do_not_pull_the_axis(scan, photons, seed):
    rng = np.random.default_rng(seed)
    center = rng.uniform(60, 190)
    angles = HALF if seed % 2 else FULL
    data = photons(scan(256, center, angles, seed=seed, full=seed % 2 == 0), 1e4)
    data += rng.normal(0, 0.05, (1, 2, 256)).astype(np.float32)
    assert abs(find_center(data, angles).center - center) < 0.5


@pytest.mark.parametrize("center", [80.3, 99.5, 120.0])
def test_object_wider_than_the_detector(scan, center):
    for angles in (HALF, FULL):
        data = scan(400, center + 100, angles)[:, :, 100:300]
        assert abs(find_center(data, angles).center - center) < 0.4


def test_beam_brightness_and_offset_do_not_matter(scan):
    data = scan(200, 90.3, HALF) * 0.01 + 0.3
    assert abs(find_center(data, HALF).center - 90.3) < 0.25


def test_order_of_views_does_not_matter(scan):
    data = scan(128, 60.2, HALF)
    order = np.random.default_rng(0).permutation(180)
    assert find_center(data[order], HALF[order]).center == pytest.approx(find_center(data, HALF).center, abs=0.02)


def test_best_on_the_end_of_the_search_is_said(scan):
    for angles, full in ((HALF, False), (FULL, True)):
        data = scan(256, 127.5, angles, full=full)
        found = find_center(data, angles, search=(60, 110))
        assert found.at_edge
        assert np.isnan(found.center)
        assert not found.reliable
        assert "on the end of the columns searched, 60 to 110" in found.message
        assert "127.5" in found.message
        inside = find_center(data, angles, search=(100, 140))
        assert inside.center == pytest.approx(127.5, abs=0.25)


def test_axis_outside_the_detector_is_never_made_up(scan):
    for angles, data in (
        (HALF, scan(400, 150, HALF)[:, :, 230:256]),
        (FULL, scan(400, 150, FULL, full=True)[:, :, 200:300]),
    ):
        found = find_center(data, angles)
        assert np.isnan(found.center)
        assert found.confidence == 0
        assert "outside the detector" in found.message or found.at_edge


def test_noise_has_no_center():
    rng = np.random.default_rng(0)
    for angles in (HALF, FULL):
        for _ in range(5):
            found = find_center(rng.normal(0, 1, (len(angles), 2, 64)), angles)
            assert not found.reliable
            assert "cannot tell" in found.message or found.at_edge


def test_own_reconstruction_is_used(scan):
    data = scan(64, 30.2, HALF, rows=1)
    calls = []

    def reconstruct(sinogram, angles, center):
        calls.append(center)
        ready = center_slices.filtered(sinogram)
        x = np.arange(64) - 31.5
        theta = np.deg2rad(angles)
        u = x[None, None, :] * np.cos(theta)[:, None, None] + x[None, :, None] * np.sin(theta)[:, None, None] + center
        return sum(np.interp(u[k], np.arange(64), ready[k]) for k in range(len(angles))).astype(np.float32)

    found = find_center(data, HALF, reconstruct=reconstruct)
    assert len(calls) == 21
    assert abs(found.methods["slices"].center - 30.2) < 0.5
    assert abs(found.center - 30.2) < 0.25


def test_tooth(data):
    h5py = pytest.importorskip("h5py")
    with h5py.File(data("tooth_dxchange/tooth.h5")) as file:
        group = file["exchange"]
        attenuation, _ = normalize(group["data"][:], group["data_white"][:], group["data_dark"][:], minus_log=True)
        angles = group["theta"][:]
    start = time.perf_counter()
    found = find_center(attenuation, angles)
    assert time.perf_counter() - start < 10
    assert abs(found.center - 295.6) < 0.5
    assert found.confidence >= 0.9


def test_i13_stack(data):
    mrcfile = pytest.importorskip("mrcfile")
    with mrcfile.mmap(data("i13_tiff_stack/projections_rows40-87.mrc")) as file:
        transmission = np.array(file.data[:, rows_for_center(file.data.shape)])
    attenuation, _ = normalize(transmission, minus_log=True)
    angles = np.loadtxt(data("i13_tiff_stack/angles.txt"))[10:101]
    found = find_center(attenuation, angles)
    assert abs(found.center - 85.8) < 0.5
    assert found.confidence >= 0.9


def test_k11_axis_outside_its_crop(data):
    h5py = pytest.importorskip("h5py")
    folder = data("k11_nxtomo_links")
    name = next(path for path in sorted(folder.iterdir()) if path.suffix in (".nxs", ".h5", ".hdf5"))
    with h5py.File(name) as file:
        frames = file["/entry/imaging/data"][:]
        key = file["/entry/instrument/imaging/image_key"][:]
        angles = file["/entry/imaging/gts_theta_value"][:][key == 0]
    attenuation, _ = normalize(frames[key == 0], frames[key == 1], frames[key == 2], minus_log=True)
    found = find_center(attenuation[:, rows_for_center(attenuation.shape)], angles)
    assert np.isnan(found.center)
    assert not found.reliable
    assert "outside the detector (columns 0 to 25)" in found.message


@pytest.mark.parametrize(
    ("shape", "count", "expected"),
    [((9, 1, 5), 5, [0]), ((9, 4, 5), 5, [0, 1, 2, 3]), ((9, 101, 5), 5, [10, 30, 50, 70, 90])],
)
def test_rows_for_center(shape, count, expected):
    assert rows_for_center(shape, count).tolist() == expected


def test_many_rows_are_thinned(scan):
    data = np.repeat(scan(64, 30.2, HALF, rows=1), 40, axis=1)
    assert abs(find_center(data, HALF).center - 30.2) < 0.25


@pytest.mark.parametrize(
    ("array", "angles", "options"),
    [
        (np.ones((180, 64)), HALF, {}),
        (np.ones((180, 0, 64)), HALF, {}),
        (np.ones((180, 1, 64), complex), HALF, {}),
        (np.random.default_rng(0).random((180, 1, 64)), HALF[:-1], {}),
        (np.random.default_rng(0).random((180, 1, 64)), np.r_[HALF[:-1], np.nan], {}),
        (np.r_[np.ones((179, 1, 64)), np.full((1, 1, 64), np.nan)], HALF, {}),
        (np.ones((180, 1, 64)), HALF, {}),
        (np.random.default_rng(0).random((1, 1, 64)), [0.0], {}),
        (np.random.default_rng(0).random((180, 1, 2)), HALF, {}),
        (np.random.default_rng(0).random((180, 1, 64)), HALF, {"search": (20, 10)}),
        (np.random.default_rng(0).random((180, 1, 64)), HALF, {"search": (-5, 10)}),
        (np.random.default_rng(0).random((180, 1, 64)), HALF, {"search": (30, 64)}),
        (np.random.default_rng(0).random((180, 1, 64)), HALF, {"search": (np.nan, 20)}),
    ],
)
def test_wrong_input(array, angles, options):
    with pytest.raises(UserError):
        find_center(array, angles, **options)


@pytest.mark.parametrize("angles", [[0.0, 180.0], [0.0, 90.0], [5.0, 5.0, 5.0], np.zeros(40)])
def test_hardly_any_views(scan, angles):
    found = find_center(scan(64, 30.2, angles), angles)
    assert np.isnan(found.center) or abs(found.center - 30.2) < 0.5


def test_parabola():
    assert center_scores.parabola_peak(-((np.array([-1, 0, 1]) - 0.2) ** 2)) == pytest.approx(0.2)
    assert center_scores.parabola_peak(np.zeros(3)) == 0


def test_angle_weights_of_repeated_angles():
    weights = center_slices.angle_weights(np.array([0.0, 90, 90, 180]))
    np.testing.assert_allclose(np.rad2deg(weights).sum(), 180)
    np.testing.assert_allclose(np.rad2deg(weights), 45)


@pytest.mark.parametrize("angles", [HALF, FULL])
@pytest.mark.parametrize("change", [0.0, 1e-7, 0.02])
def test_a_pattern_that_stands_still_has_no_center(angles, change):
    rng = np.random.default_rng(5)
    still = 0.007 * rng.standard_normal((5, 100)) + 0.01 * np.cos(np.linspace(-2, 2, 100))
    found = find_center(still + change * rng.standard_normal((len(angles), 5, 100)), angles)
    assert not found.reliable
    assert "no object" in found.message


def test_a_round_object_on_the_axis_has_a_center(lines, photons):
    data = lines(120, 57.3, HALF, [(0, 0, 40, 40, 0, 0.02)])[:, None]
    for measured in (data, photons(data, 1e4)):
        found = find_center(measured, HALF)
        assert found.reliable
        assert found.center == pytest.approx(57.3, abs=0.3)


def test_a_method_that_all_others_contradict_is_not_believed():
    one = Method(60.0, 0.12, 0.4)
    for others, reliable in (
        ({}, True),
        ({"mirror": Method(20.0, 3.0, 0.1, "no clear match")}, False),
        ({"mirror": Method(60.4, 3.0, 0.1, "no clear match")}, True),
        ({"mirror": Method(20.0, 3.0, 0.1, "no clear match"), "moment": Method(60.1, 3, 0.1, "outside")}, True),
        ({"moment": Method(20.0, 3.0, 0.1, "the object leaves the field")}, True),
        ({"slices": Method(60.0, np.inf, 0.0, "no minimum about the candidates")}, False),
    ):
        assert _combined({"closure": one, **others}, [], False, (0, 99), 100).reliable == reliable, others
