"""C09: flat fields of awkward shape or content."""

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.prep import check_frames, normalize

FRAME = np.array([[1000, 2000], [3000, 4000]], np.uint16)


def test_one_frame_works_as_a_stack_of_one():
    for flat in (FRAME, FRAME[np.newaxis]):
        result, _ = normalize(FRAME[np.newaxis], flat, np.zeros((2, 2), np.uint16))
        assert np.array_equal(result, np.ones((1, 2, 2)))


def test_flat_equal_to_dark_is_finite_and_dead():
    dark = np.zeros((2, 2), np.uint16)
    dark[0, 1] = 2000
    for minus_log in (False, True):
        result, report = normalize(FRAME[np.newaxis], FRAME, dark, minus_log=minus_log)
        assert np.isfinite(result).all()
        assert report.dead_pixels == 1
        assert "1 of 4 pixels are dead" in str(report)


def test_only_one_of_the_two():
    both, _ = normalize(FRAME[np.newaxis], FRAME, np.zeros((2, 2)))
    no_dark, _ = normalize(FRAME[np.newaxis], FRAME, None)
    assert np.array_equal(both, no_dark)
    no_flat, _ = normalize(FRAME[np.newaxis], None, np.full((2, 2), -1.0))
    np.testing.assert_allclose(no_flat[0], (FRAME + 1.0) / 2)
    empty, _ = normalize(FRAME[np.newaxis], FRAME, np.empty((0, 2, 2)))
    assert np.array_equal(empty, no_dark)


def test_a_bright_dark_is_named_and_can_be_left_out():
    dark = np.full((5, 2, 2), 100, np.uint16)
    flat = np.full((3, 2, 2), 1000, np.uint16)
    dark[3] = 990
    raw = np.full((1, 2, 2), 550, np.uint16)
    _, report = normalize(raw, flat, dark)
    assert len(report.warnings) == 1
    assert "dark frame 3 (of 5)" in report.warnings[0]
    result, report = normalize(raw, flat, dark, exclude_darks=[3])
    np.testing.assert_allclose(result, 0.5)
    assert report.warnings == ()
    assert check_frames(flat, flat) != ()
    assert check_frames(flat, dark[:3]) == ()


def test_frames_of_another_detector_are_refused():
    with pytest.raises(UserError, match=r"\(1, 2, 3\).*2, 2"):
        normalize(FRAME[np.newaxis], np.ones((1, 2, 3)))
