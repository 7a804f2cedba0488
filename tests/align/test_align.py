"""Shifts, the direction and the position of the axis come back."""

import numpy as np
import pytest
import scipy.ndimage
from skimage.registration import phase_cross_correlation

import dtomo
from dtomo.align import Options, align, aligned, refine_center
from dtomo.align.driver import Stage, _is_settled, _is_signed, align_views
from dtomo.align.mixing import mixed
from dtomo.align.reprojection import moved, without_gauge
from dtomo.align.starts import _band_passed, by_correlation, by_mass, find_axis
from dtomo.align.views import Coarse, Work
from dtomo.errors import UserError
from dtomo.geometry import Alignment, ParallelBeam
from dtomo.io.sources import ArraySource
from dtomo.simulate.phantoms import sample
from tests.align.scenes import HALF_TURN, TILTS, moved_views, rms


@pytest.mark.parametrize(("angles", "start"), [(HALF_TURN, "auto"), (TILTS, "auto"), (TILTS, "none")])
def test_shifts_come_back(angles, start):
    views, truth = moved_views(angles)
    found = align(views, angles, start=start)
    assert rms(np.zeros_like(truth), truth, angles).min() > 2
    assert rms(found.shifts, truth, angles).max() < 0.1
    np.testing.assert_allclose(found.shifts, without_gauge(found.shifts, angles), atol=1e-9)


def test_the_direction_of_the_axis_comes_back():
    tilts = TILTS[::2]
    views, truth = moved_views(tilts, size=40, most=3.0, axis_angle=86.3)
    found = align(views, tilts, axis="search")
    assert found.axis_angles[0] == pytest.approx(86.3, abs=0.5)
    assert np.ptp(found.axis_angles) == 0
    again = align(views, tilts, begin=Alignment(tilts, views.shape[1:], axis_angles=86.3), axis="keep")
    assert (again.axis_angles == 86.3).all()
    assert rms(again.shifts, truth, tilts).max() < 0.1


def test_an_axis_that_is_nearly_known_is_refined():
    tilts = TILTS[::2]
    views, _ = moved_views(tilts, size=40, most=3.0, axis_angle=-8.5)
    found = align(views, tilts, begin=Alignment(tilts, views.shape[1:], axis_angles=-6.0), axis="refine")
    assert found.axis_angles[0] == pytest.approx(-8.5, abs=0.5)


def _in_its_place(found, truth, tilts):
    """An alignment with the shift of the sample that the views cannot tell."""
    turn = np.deg2rad(tilts)
    table = np.stack([np.cos(turn), np.sin(turn)], 1)
    apart = truth - found.shifts
    across = table @ np.linalg.lstsq(table, apart[:, 1], rcond=None)[0]
    return found.replace(shifts=found.shifts + np.stack([np.full(len(turn), apart[:, 0].mean()), across], 1))


def _volume(views, alignment, tilts):
    return dtomo.recon.cgls(aligned(views, alignment), ParallelBeam(tilts, views.shape[2]), iterations=10)


INNER = (slice(8, -8),) * 3


def test_aligned_views_make_the_sample():
    views, truth = moved_views(HALF_TURN, noise=0.0)
    known = Alignment(HALF_TURN, views.shape[1:], truth)
    wanted = _volume(views, known, HALF_TURN)
    found = _in_its_place(align(views, HALF_TURN), truth, HALF_TURN)
    error, worse = (
        np.linalg.norm((_volume(views, one, HALF_TURN) - wanted)[INNER]) for one in (found, known.replace(shifts=None))
    )
    assert error < 0.2 * worse


def test_c24_the_missing_wedge_lies_where_no_view_was_taken():
    tilts = np.arange(-60.0, 1.0, 3.0)
    views, truth = moved_views(tilts, most=4.0)
    found = align(views, tilts)
    assert rms(found.shifts, truth, tilts).max() < 0.15
    wanted = sample(0, 120).volume(48, slices=48)
    right = _volume(views, _in_its_place(found, truth, tilts), tilts)
    wrong_way = found.replace(tilts=-tilts)
    wrong = _volume(views, _in_its_place(wrong_way, truth, -tilts), -tilts)

    def alike(volume):
        return np.corrcoef(volume[INNER].ravel(), wanted[INNER].ravel())[0, 1]

    assert alike(right) > alike(wrong) + 0.1
    assert alike(wrong[:, ::-1]) > alike(wrong) + 0.1

    def seen(volume):
        """Power in directions that views from -60 to 0 degrees see, over that on the other side."""
        power = (np.abs(np.fft.fft2(volume)) ** 2).sum(0)
        y, x = np.meshgrid(*(np.fft.fftfreq(n) for n in power.shape), indexing="ij")
        way = np.rad2deg(np.arctan2(y, x) % np.pi)
        far = np.hypot(y, x) > 0.05
        return power[far & (way > 125) & (way < 175)].sum() / power[far & (way > 5) & (way < 55)].sum()

    assert seen(right) > 3
    assert seen(wrong) < 1 / 3


def test_correlation_of_neighbours_agrees_with_scikit_image():
    angles = np.array([-0.5, 0.0, 0.5])
    views, _ = moved_views(angles, most=5.0, noise=0.0)
    found = by_correlation(views, Alignment(angles, views.shape[1:]), stretch=False).shifts
    same = _band_passed(views)
    for k in (0, 2):
        wanted, *_ = phase_cross_correlation(same[1], same[k], upsample_factor=20, normalization=None)
        np.testing.assert_allclose(found[k], wanted, atol=0.051)
    assert (found[1] == 0).all()


def test_mass_is_enough_for_a_whole_sample():
    views, truth = moved_views(TILTS, most=4.0, noise=0.0)
    inside = views * (np.abs(np.arange(48) - 23.5) < 30)[:, None]
    found = by_mass(inside, Alignment(TILTS, views.shape[1:]))
    assert rms(found.shifts, truth, TILTS)[1] < 0.5


def test_stretching_takes_a_flat_sample_to_its_neighbour():
    tilts = np.array([0.0, 40.0, 60.0])
    x = np.arange(96) - 47.5
    flat = np.random.default_rng(1).normal(size=(48, 400)).cumsum(1)
    flat -= flat.mean(1, keepdims=True)
    flat = flat[:, 100:-100] - flat[:, 100:-100].mean()
    views = np.stack([
        np.stack([np.interp(x / np.cos(np.deg2rad(t)), np.arange(200) - 99.5, line) for line in flat]) for t in tilts
    ]).astype(np.float32)  # fmt: skip
    known = Alignment(tilts, views.shape[1:])
    np.testing.assert_allclose(by_correlation(views, known, stretch=True).shifts, 0, atol=0.6)


def test_common_lines_find_the_axis_of_a_whole_sample():
    balls = np.random.default_rng(2).uniform(-1, 1, (9, 4)) * (14, 14, 18, 0) + (0, 0, 0, 4)
    rows, columns = np.mgrid[:64, :64] - 31.5
    turn = np.deg2rad(30.0)
    along, across = np.cos(turn) * rows + np.sin(turn) * columns, -np.sin(turn) * rows + np.cos(turn) * columns
    views = np.stack([
        sum(
            np.maximum(0, r**2 - (along - z) ** 2 - (across - x * np.cos(t) - y * np.sin(t)) ** 2)
            for x, y, z, r in balls
        )
        for t in np.deg2rad(TILTS)
    ]).astype(np.float32)  # fmt: skip
    found = find_axis(views)
    assert found.angle == pytest.approx(30.0, abs=0.5)
    assert found.scores.min() < 0.1 * np.median(found.scores)
    assert find_axis(views, around=27.0).angle == pytest.approx(30.0, abs=0.5)


@pytest.mark.parametrize("begin", [35.0, 65.5])
def test_the_center_of_rotation_comes_back(begin):
    angles = np.arange(0.0, 180.0, 3.0)
    views = sample(0, 120).projections(angles, size=48, columns=128, center=63.37, slices=4)
    views = views + np.random.default_rng(0).normal(0, 0.02 * views.max(), views.shape)
    found = refine_center(views[:, :, 30:98], ParallelBeam(angles, 68, begin - 30))
    assert found + 30 == pytest.approx(63.37, abs=0.05)


def test_a_run_goes_on_with_the_same_bits():
    views, _ = moved_views(HALF_TURN[::3], size=32)
    known = Alignment(HALF_TURN[::3], views.shape[1:])
    stages = []
    options = Options(axis="refine", rounds=3, iterations=5)
    last = align_views(Work(ArraySource(views), keep=stages.append), known, options)
    assert len(stages) == len(last.history) + 1
    for stage in (stages[3], stages[-3], stages[-1]):
        again = align_views(Work(ArraySource(views)), known, options, stage)
        assert again.history == last.history
        np.testing.assert_array_equal(again.alignment.shifts, last.alignment.shifts)


def test_rounds_end_at_the_best_of_them():
    notes = [{"misfit": misfit, "change": 0.3} for misfit in (0.05, 0.03, 0.031, 0.032)]
    assert not _is_settled(notes, 1, Options())
    assert _is_settled([*notes, {"misfit": 0.031, "change": 0.3}], 1, Options())
    assert _is_settled(notes, 1, Options(rounds=4))
    known = Alignment(TILTS, (10, 12))
    best = np.full((len(TILTS), 2), 0.5)
    np.testing.assert_array_equal(Stage(known, tuple(notes), (), (0.03, best)).settled().shifts, best)
    assert Stage(known, tuple(notes), (), (0.032, best)).settled() is known


def test_samples_with_both_signs_are_told_apart():
    views, truth = moved_views(TILTS, most=3.0)
    slopes = np.gradient(scipy.ndimage.gaussian_filter1d(views, 1.0, axis=1), axis=1)  # those of a sample with both
    assert _is_signed(slopes)
    assert not _is_signed(views)
    found = align(slopes, TILTS)
    assert rms(found.shifts, truth, TILTS).max() < 0.2  # slopes have the noise of the views and little else


def test_mixing_solves_what_is_linear():
    random = np.random.default_rng(0)
    matrix = np.diag(random.uniform(0.02, 0.9, 4))  # some errors go away slowly
    place, pairs = random.normal(size=4), []
    for _ in range(6):
        pairs.append((place, -matrix @ place))
        place = place + mixed(pairs)
    assert np.abs(place).max() < 1e-3


def test_steps_leave_gauge_and_position_alone():
    known = Alignment(TILTS, (10, 12), np.random.default_rng(0).normal(size=(len(TILTS), 2)))
    turn = np.deg2rad(TILTS)
    step = np.stack([np.full(len(turn), 0.7), 0.3 + np.cos(turn) - 2 * np.sin(turn)], 1)
    after = moved(known, step)
    np.testing.assert_allclose(after.shifts, without_gauge(known.shifts, TILTS), atol=1e-12)


def test_views_are_held_binned():
    views = np.random.default_rng(0).normal(size=(3, 37, 41)).astype(np.float32)
    coarse = Coarse(Work(ArraySource(views)))
    np.testing.assert_allclose(coarse.at(4)[1, 2, 3], views[1, 8:12, 12:16].mean(), rtol=1e-5)
    assert coarse.at(4).shape == (3, 9, 10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tilts": np.zeros(4)}, "4 tilts for 5 views"),
        ({"views": np.zeros((2, 8, 8)), "tilts": np.zeros(2)}, "has 2 views; an alignment needs 3"),
        ({"views": np.zeros((5, 32, 32))}, "hold nothing but 0"),
        ({"views": np.zeros((5, 32))}, "not float64 of shape"),
        ({"tilts": None}, "need tilts"),
        ({"speed": 3}, "no option 'speed'"),
        ({"begin": Alignment(np.zeros(5), (8, 9))}, "is of 5 views of"),
    ],
)
def test_what_cannot_be_aligned(change, message):
    given = {"views": np.ones((5, 32, 32)), "tilts": np.arange(5) * 10.0} | change
    with pytest.raises(UserError, match=message):
        align(given.pop("views"), given.pop("tilts"), **given)
