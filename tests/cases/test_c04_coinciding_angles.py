"""C04: repeated, uneven and end-point angles."""

import numpy as np
import pytest

from dtomo.algorithms import cgls, fbp, sirt
from dtomo.geometry import ParallelBeam
from dtomo.operators import ParallelProjector

MU, WIDTH = 0.02, 65
HALF_TURN = np.arange(36) * 5.0
METHODS = pytest.mark.parametrize("method", ["backprojection", "nufft"])


def ellipse(angles):
    """Projections (angle, 1, column) of an ellipse with half axes 20 (x) and 8 (y)."""
    theta = np.deg2rad(angles)[:, None]
    square = (20 * np.cos(theta)) ** 2 + (8 * np.sin(theta)) ** 2
    u = np.arange(WIDTH) - (WIDTH - 1) / 2
    return (2 * MU * 20 * 8 * np.sqrt(np.maximum(square - u**2, 0)) / square)[:, None].astype(np.float32)


def slice_of(angles, method="auto"):
    return fbp(ellipse(angles), ParallelBeam(angles, WIDTH), method=method)[0]


def middle(image):
    return image[30:35, 26:39].mean()


@METHODS
def test_both_ends_of_the_half_turn(method):
    both = slice_of(np.linspace(0, 180, 37), method)
    assert np.abs(both - slice_of(HALF_TURN, method)).max() <= 1e-4
    assert middle(both) == pytest.approx(MU, rel=0.01)


@METHODS
def test_a_full_turn_is_not_counted_twice(method):
    full = slice_of(np.arange(72) * 5.0, method)
    assert np.abs(full - slice_of(HALF_TURN, method)).max() <= 1e-4
    assert np.abs(slice_of(np.linspace(0, 360, 73), method) - full).max() <= 1e-4


@METHODS
def test_more_copies_of_one_angle(method):
    more = slice_of(np.r_[HALF_TURN, np.zeros(36)], method)
    assert middle(more) == pytest.approx(MU, rel=0.01)
    assert np.abs(more - slice_of(HALF_TURN, method)).max() <= 1e-4
    half_turns = np.r_[HALF_TURN, np.full(12, 180.0), np.full(12, 360.0), np.full(12, -180.0)]
    assert np.abs(slice_of(half_turns, method) - slice_of(HALF_TURN, method)).max() <= 1e-4


@METHODS
def test_frames_repeated_with_the_jitter_of_an_encoder(method):
    """Three frames at each direction, a hundredth of a degree apart, keep the scale."""
    jittered = (HALF_TURN[:, None] + np.array([0, 0.01, 0.02])).ravel()
    assert middle(slice_of(jittered, method)) == pytest.approx(MU, rel=0.01)


@METHODS
def test_uneven_angles_in_any_order(method):
    fine, coarse = np.arange(0, 90, 1.0), np.arange(90, 180, 4.5)
    order = np.random.default_rng(0).permutation(len(fine) + len(coarse))
    uneven = np.r_[fine, coarse][order]
    assert middle(slice_of(uneven, method)) == pytest.approx(MU, rel=0.01)
    assert np.abs(slice_of(uneven, method) - slice_of(np.sort(uneven), method)).max() <= 1e-5
    assert np.abs(slice_of(uneven - 720, method) - slice_of(uneven, method)).max() <= 1e-4


COINCIDING = {
    "both ends": np.linspace(0, 180, 37),
    "full turn": np.arange(72) * 5.0,
    "both ends of a full turn": np.linspace(0, 360, 73),
    "copies": np.r_[HALF_TURN, np.zeros(36)],
    "copies half a turn on": np.r_[HALF_TURN, np.full(10, 180.0), np.full(10, 365.0)],
}


@pytest.mark.parametrize("angles", COINCIDING.values(), ids=COINCIDING.keys())
@pytest.mark.parametrize(("solve", "iterations"), [(sirt, 200), (cgls, 20)], ids=["sirt", "cgls"])
def test_iterative_methods(solve, iterations, angles):
    operator = ParallelProjector(ParallelBeam(angles, WIDTH), 1)
    found = solve(operator, ellipse(angles), iterations=iterations)
    assert middle(found.solution[0]) == pytest.approx(MU, rel=0.01)
    assert found.residuals[-1] < 0.02 * found.residuals[0]
