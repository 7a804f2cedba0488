"""Simulated joint scans: the truth explains the frames, whatever the code of the model says."""

from pathlib import Path

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.io.ptychotomo import open_ptychotomo
from dtomo.operators.projection import ParallelProjector
from dtomo.simulate.ptychotomo import (
    Balls,
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
    for given in ({"frame": 40}, {"step": 0}, {"photons": -1.0}, {"angles": 1}, {"probe": np.ones((3, 3))}):
        with pytest.raises(UserError):
            simulate_ptychotomo(tmp_path / "no.h5", **{"size": 24, "frame": 10, **given})
    assert not (tmp_path / "no.h5").exists()
