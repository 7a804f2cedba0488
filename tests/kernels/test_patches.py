"""Patches against slicing, the adjoint by its definition; bits on any number of threads; what is refused."""

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.kernels.patches import TILE, add, cover, extract
from tests import laws

CASES = [  # patch, object, frames
    ((1, 1), (1, 1), 3), ((3, 5), (7, 9), 20), ((4, 4), (4, 4), 2), ((40, 33), (70, 101), 9), ((5, 70), (33, 71), 6),
    ((2, 3), (TILE, TILE), 40), ((2, 2), (TILE + 1, 2 * TILE + 1), 1),
]  # fmt: skip


def draw_positions(patch, shape, frames):
    """Corners of the object among them."""
    rng = np.random.default_rng(1)
    room = np.subtract(shape, patch)
    found = rng.integers(0, room + 1, (frames, 2))
    found[0], found[-1] = 0, room
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("modes", [(), (1,), (3,)])
@pytest.mark.parametrize(("patch", "shape", "frames"), CASES)
def test_slices_and_their_sum(patch, shape, frames, modes, dtype):
    positions = draw_positions(patch, shape, frames)
    windows = cover(positions, patch, shape)
    image, parts = laws.draw((*modes, *shape), dtype), laws.draw((frames, *modes, *patch), dtype, 1)
    expected, total = np.empty_like(parts), np.zeros_like(image)
    for k, (row, column) in enumerate(positions):
        cut = (..., slice(row, row + patch[0]), slice(column, column + patch[1]))
        expected[k] = image[cut]
        total[cut] += parts[k]
    assert np.array_equal(extract(image, windows), expected)
    found = add(parts, windows)
    assert found.dtype == dtype
    assert np.array_equal(found, total)  # to the last bit: in the order of frames
    both = np.vdot(laws.wide(parts), laws.wide(expected)), np.vdot(laws.wide(found), laws.wide(image))
    assert abs(both[0] - both[1]) <= 1e-6 * laws.norm(parts) * max(laws.norm(expected), laws.norm(image))


def test_no_frames():
    windows = cover(np.empty((0, 2), int), (2, 3), (4, 5))
    assert extract(laws.draw((4, 5)), windows).shape == (0, 2, 3)
    assert not add(np.empty((0, 2, 3), np.float32), windows).any()


def test_bits_do_not_depend_on_threads_or_layout():
    patch, shape = (20, 17), (70, 65)
    windows = cover(draw_positions(patch, shape, 30), patch, shape)
    parts = laws.draw((30, 2, *patch), np.complex64)
    expected = add(parts, windows)
    for count in (1, 2, 3):
        with laws.thread_count(count):
            assert np.array_equal(add(parts, windows), expected)
    for _, same in laws.layouts(parts):
        assert np.array_equal(add(same.astype(np.complex64, copy=False), windows), expected)


@pytest.mark.parametrize("corner", [(-1, 0), (0, -1), (3, 0), (0, 5)])
def test_frames_beyond_the_object_are_refused(corner):
    with pytest.raises(UserError, match=r"frame 1 of 2 x 3 pixels at .* beyond the object of 4 x 7; 1 of 2 frames do"):
        cover([(0, 0), corner], (2, 3), (4, 7))


@pytest.mark.parametrize("positions", [[(0.5, 1.0)], [(0, 1, 2)], [0, 1]])
def test_positions_that_are_no_whole_pairs_are_refused(positions):
    with pytest.raises(UserError, match="whole numbers"):
        cover(positions, (1, 1), (4, 4))
