"""Simulated joint scans: the truth explains the frames, whatever the code of the model says."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.spatial import cKDTree

from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.io.ptychotomo import open_ptychotomo
from dtomo.operators.projection import ParallelProjector
from dtomo.simulate.balls import Balls
from dtomo.simulate.ptycho_parts import focused_probe, light_diameter
from dtomo.simulate.ptychotomo import (
    expected_counts,
    expected_images,
    read_ptychotomo_truth,
    resampled_probe,
    simulate_ptychotomo,
)


def one_ball(radius: float, place: tuple[float, float, float]) -> Balls:
    return Balls(np.array([place]), np.array([radius]), np.array([-0.01 + 0.002j]))


@pytest.mark.parametrize("angle", [0.0, 90.0, 37.0, 200.0])
def test_balls_are_seen_where_the_projector_sees_them(angle: float) -> None:
    ball = one_ball(5.0, (3.0, -4.0, 7.0))
    ours = ball.projection(32, 40, angle)
    theirs = ParallelProjector(ParallelBeam([angle], 40), 32, np.complex64).forward(ball.volume(32, 40))[0]
    assert np.abs(ours - theirs).max() < 0.08 * np.abs(ours).max()
    mass = 4 / 3 * np.pi * 5.0**3 * (-0.01 + 0.002j)
    assert abs(ours.sum() - mass) < 1e-3 * abs(mass)  # the volume of a ball, in closed form
    column = (np.abs(ours).sum(0) * np.arange(40)).sum() / np.abs(ours).sum()
    turn = np.deg2rad(angle)
    assert abs(column - (7.0 * np.cos(turn) - 4.0 * np.sin(turn) + 19.5)) < 0.02


def test_slices_add_up_to_the_projection() -> None:
    ball = one_ball(6.0, (0.0, 2.0, -3.0))
    whole = ball.projection(24, 24, 20.0)
    parts = sum(ball.projection(24, 24, 20.0, span) for span in ((-np.inf, -2.0), (-2.0, 1.5), (1.5, np.inf)))
    np.testing.assert_allclose(parts, whole, atol=1e-12)


def test_frames_are_those_of_the_truth(tmp_path: Path) -> None:
    truth = simulate_ptychotomo(tmp_path / "a.h5", 24, angles=5, frame=10, step=4, photons=0, shifts=2, seed=3)
    scan = open_ptychotomo(tmp_path / "a.h5", look=False)
    again = read_ptychotomo_truth(tmp_path / "a.h5")
    for number in (0, len(truth.positions) - 1):
        angle = int(truth.angle_of_frame[number])
        image = expected_images(again, 24, angle, seed=3)
        counts = expected_counts(again, image[None], again.positions[number] + again.shifts[angle], 24)
        np.testing.assert_allclose(scan.frames.read(frames=[number])[0], counts, rtol=1e-4, atol=1e-2)
    np.testing.assert_array_equal(scan.positions, truth.positions)
    assert scan.image_shape == (24, 24)
    assert scan.frames_per_angle.sum() == len(truth.positions)
    assert np.abs(again.shifts).max() <= 2


def test_noise_is_that_of_photons(tmp_path: Path) -> None:
    simulate_ptychotomo(tmp_path / "clean.h5", 24, angles=3, frame=10, step=5, photons=0)
    simulate_ptychotomo(tmp_path / "noisy.h5", 24, angles=3, frame=10, step=5, photons=1e6)
    clean, noisy = (open_ptychotomo(tmp_path / name, look=False).frames.read() for name in ("clean.h5", "noisy.h5"))
    bright = clean > 100
    assert noisy.dtype == np.uint32
    assert abs(((noisy[bright] - clean[bright]) ** 2 / clean[bright]).mean() - 1) < 0.05


def test_a_probe_on_fewer_pixels_keeps_its_spectrum() -> None:
    random = np.random.default_rng(0).standard_normal((2, 32, 32))
    wide = random[0] + 1j * random[1]
    found = resampled_probe(wide, 16, band=0.5)
    spectrum = np.fft.fftshift(np.fft.fft2(found))
    assert np.abs(spectrum[:4]).max() < 1e-12
    inner = np.fft.fftshift(np.fft.fft2(wide))[12:20, 12:20]
    np.testing.assert_allclose(spectrum[4:12, 4:12] / spectrum[8, 8], inner / inner[4, 4], rtol=1e-9)
    assert abs((np.abs(found) ** 2).sum() - 1) < 1e-12


def test_sizes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for given in (
        {"frame": 40},
        {"frame": 2},
        {"step": 0},
        {"step": 3, "overlap": 0.5},
        {"overlap": 1.0},
        {"scan_path": "round"},
        {"angles": [0.0, np.nan]},
        {"photons": -1.0},
        {"angles": 1},
        {"probe": np.ones((3, 3))},
    ):
        with pytest.raises(UserError):
            simulate_ptychotomo(tmp_path / "no.h5", **{"size": 24, "frame": 10, **given})
    assert not (tmp_path / "no.h5").exists()


def test_a_file_for_each_angle_is_the_same_scan(tmp_path: Path) -> None:
    given = {"angles": [0.0, 40.0, 90.0, 131.5], "frame": 12, "step": 4, "shifts": 1.0, "seed": 5}
    truth = simulate_ptychotomo(tmp_path / "one.h5", 26, **given)
    parts = simulate_ptychotomo(tmp_path / "parts", 26, separate=True, **given)
    one, many = open_ptychotomo(tmp_path / "one.h5"), open_ptychotomo(tmp_path / "parts")
    np.testing.assert_allclose(many.angles, one.angles)
    np.testing.assert_array_equal(many.angle_of_frame, one.angle_of_frame)
    np.testing.assert_array_equal(many.frames.read(), one.frames.read())
    apart = many.positions - one.positions
    np.testing.assert_allclose(apart, np.broadcast_to(apart[0], apart.shape), atol=1e-9)
    middle = [(scan.image_shape[1] - 1) / 2 for scan in (one, many)]
    assert abs(apart[0, 1] - (middle[1] - middle[0])) < 1e-9  # as far from the axis
    for name in ("pixel_size", "wavelength", "distance"):
        assert getattr(many, name) == pytest.approx(getattr(one, name), rel=1e-9)
    again = read_ptychotomo_truth(tmp_path / "parts")
    for name in ("volume", "probe", "shifts", "positions", "angle_of_frame"):
        np.testing.assert_array_equal(getattr(again, name), getattr(truth, name))
    np.testing.assert_array_equal(np.loadtxt(tmp_path / "parts" / "angles.txt"), parts.angles)
    with pytest.raises(UserError, match="exists"):
        simulate_ptychotomo(tmp_path / "parts", 26, separate=True, **given)
    fewer = {**given, "angles": [10.0, 20.0]}
    simulate_ptychotomo(tmp_path / "parts", 26, separate=True, overwrite=True, **fewer)
    assert open_ptychotomo(tmp_path / "parts").angles.tolist() == [10.0, 20.0]


@pytest.mark.parametrize("scan_path", ["grid", "spiral"])
@pytest.mark.parametrize("overlap", [0.6, -0.3])
def test_neighbours_share_as_much_of_the_light_as_asked(tmp_path: Path, scan_path: str, overlap: float) -> None:
    truth = simulate_ptychotomo(
        tmp_path / "a.h5", 64, angles=3, frame=16, overlap=overlap, scan_path=scan_path, photons=0
    )
    step = (1 - overlap) * light_diameter(focused_probe(16)[None])
    for angle in range(3):
        places = truth.positions[truth.angle_of_frame == angle]
        nearest = cKDTree(places).query(places, k=2)[0][:, 1]
        assert 0.7 * step < np.median(nearest) < 1.3 * step
        assert abs(len(places) / ((64 - 16) / step + 1) ** 2 - 1) < 0.5  # one for each step² of the image
    first = [truth.positions[truth.angle_of_frame == angle][0] for angle in range(3)]
    assert not np.allclose(first[0], first[1], atol=0.1)


def test_a_sample_of_ones_own_is_its_truth(tmp_path: Path) -> None:
    ball = one_ball(5.0, (1.0, -2.0, 3.0))
    truth = simulate_ptychotomo(tmp_path / "a.h5", 24, angles=[0.0, 90.0], frame=8, step=4, photons=0, sample=ball)
    np.testing.assert_array_equal(truth.volume, ball.volume(24, 24))
    mass = 4 / 3 * np.pi * 5.0**3 * (-0.01 + 0.002j)
    assert abs(truth.volume.sum() - mass) < 2e-3 * abs(mass)
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["frames"].chunks == (1, 8, 8)


def test_rotation_about_the_axis_of_a_ball_on_it_changes_nothing() -> None:
    ball = one_ball(5.0, (2.0, 0.0, 0.0))
    for angle in (37.0, 90.0, 180.0):
        np.testing.assert_allclose(ball.projection(20, 21, angle), ball.projection(20, 21, 0.0), atol=1e-12)
    off = one_ball(4.0, (0.0, 3.0, -2.0))
    np.testing.assert_allclose(off.projection(20, 21, 225.0)[:, ::-1], off.projection(20, 21, 45.0), atol=1e-12)


def test_frames_leave_room_for_neighbours_unless_they_are_asked_for(tmp_path: Path) -> None:
    truth = simulate_ptychotomo(tmp_path / "a.h5", 24, angles=2, photons=0)
    assert truth.probe.shape == (1, 12, 12)
    assert len(np.unique(truth.positions[truth.angle_of_frame == 0], axis=0)) > 3
    given = simulate_ptychotomo(tmp_path / "b.h5", 24, angles=2, photons=0, probe=np.ones((9, 9)))
    assert given.probe.shape == (1, 9, 9)
    assert simulate_ptychotomo(tmp_path / "c.h5", 72, angles=2, step=40, photons=0).probe.shape == (1, 32, 32)
