"""Frames are cut into equal blocks that are compact, and batches that are spread over the scan."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtomo.distributed.sums import partner_of
from dtomo.errors import UserError
from dtomo.ptycho.blocks import Blocks, cut_frames, regrouped
from tests.ptycho.solvers import positions_of


@given(
    count=st.integers(1, 300),
    batch=st.none() | st.integers(1, 400),
    block=st.none() | st.integers(1, 50),
    seed=st.integers(0, 5),
)
def test_every_frame_is_in_one_block_and_every_block_in_one_batch(
    count: int, batch: int | None, block: int | None, seed: int
) -> None:
    positions = np.random.default_rng(count).uniform(0, 100, (count, 2))
    blocks = cut_frames(positions, (64, 64), batch, seed=seed, block=block)
    assert np.array_equal(np.sort(np.concatenate(blocks.frames)), np.arange(count))
    assert [number for part in blocks.batches for number in part] == list(range(len(blocks.frames)))
    sizes = [sum(len(blocks.frames[number]) for number in part) for part in blocks.batches]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= (batch or count)
    assert len(sizes) == -(-count // min(batch or count, count))
    for part in blocks.batches:
        lengths = [len(blocks.frames[number]) for number in part]
        assert max(lengths) - min(lengths) <= 1
        assert min(lengths) >= 1
        assert block is None or max(lengths) <= block
    assert all((np.diff(frames) > 0).all() and frames.dtype == np.int64 for frames in blocks.frames)


def _area(positions: Any, frames: Any) -> float:
    return float(np.prod(np.ptp(positions[frames], axis=0)))


def test_blocks_and_the_nodes_above_them_are_compact() -> None:
    positions = positions_of(32, 10.0)[np.random.default_rng(3).permutation(1024)]
    blocks = cut_frames(positions, (128, 128), block=32)
    assert len(blocks.frames) == 32
    nodes = {(0, index): frames for index, frames in enumerate(blocks.frames)}
    whole = _area(positions, slice(None))
    while len(nodes) > 1:
        assert sum(_area(positions, frames) for frames in nodes.values()) < 1.2 * whole  # next to no overlap
        shapes = [np.ptp(positions[frames], axis=0) for frames in nodes.values()]
        assert all(0.3 < rows / columns < 3 for rows, columns in shapes)
        above: dict[Any, Any] = {}
        for node, frames in nodes.items():
            parent, _ = partner_of(node, 32)  # type: ignore[misc]
            above[parent] = np.concatenate([above.get(parent, np.empty(0, np.int64)), frames])
        nodes = above


def test_batches_are_spread_evenly_over_the_scan() -> None:
    positions = positions_of(32, 10.0)
    blocks = cut_frames(positions, (128, 128), 64, seed=1)
    for part in blocks.batches:
        frames = np.concatenate([blocks.frames[number] for number in part])
        cells = (positions[frames] // 80).astype(int)
        counts = np.bincount(cells[:, 0] * 5 + cells[:, 1], minlength=25)[[0, 1, 5, 6]]
        assert (counts >= 2).all()
        assert (counts <= 6).all()  # chance alone gives 4 ± 2


def test_the_seed_decides_and_nothing_else() -> None:
    positions = positions_of(12)

    def cut(**options: Any) -> list[bytes]:
        return [frames.tobytes() for frames in cut_frames(positions, (64, 64), 24, **options).frames]

    assert cut(seed=4) == cut(seed=4)
    assert cut(seed=4) != cut(seed=5)


def test_no_block_has_frames_of_two_groups() -> None:
    positions = positions_of(12)
    groups = (positions[:, 0] // 20).astype(int)
    for batch in (None, 30):
        blocks = cut_frames(positions, (64, 64), batch, groups=groups)
        assert np.array_equal(np.sort(np.concatenate(blocks.frames)), np.arange(144))
        for part in blocks.batches:
            found = [set(groups[blocks.frames[number]]) for number in part]
            assert [len(one) for one in found] == [1] * len(found)
            assert found == sorted(found, key=min)
        other = regrouped(cut_frames(positions, (64, 64), batch), positions, (64, 64), groups)
        assert [frames.tolist() for frames in other.frames] == [frames.tolist() for frames in blocks.frames]
        assert other.batches == blocks.batches


def test_batches_of_one_frame_are_in_the_order_of_the_scan() -> None:
    blocks = cut_frames(positions_of(5), (64, 64), 1)
    assert [int(frames[0]) for frames in blocks.frames] == list(range(25))
    assert blocks.sequential


@pytest.mark.parametrize(
    ("frames", "size", "batch", "expected"),
    [
        (2000, 128, None, 63),  # 32 frames
        (400, 128, None, 13),
        (64, 128, None, 4),
        (2000, 1024, None, 500),
        (2000, 128, 64, 32 * 4),
        (12, 512, None, 3),
        (3, 64, None, 1),
    ],
)
def test_how_many_blocks_there_are(frames: int, size: int, batch: int | None, expected: int) -> None:
    positions = np.random.default_rng(0).uniform(0, 1000, (frames, 2))
    assert len(cut_frames(positions, (size, size), batch).frames) == expected


def test_positions_that_coincide_can_be_cut() -> None:
    assert len(cut_frames(np.zeros((40, 2)), (64, 64), block=7).frames) == 6


def test_wholes_are_sequential_only_if_they_are_one_block() -> None:
    assert Blocks((np.arange(3),), (range(0, 1),)).sequential
    assert not cut_frames(positions_of(8), (64, 64)).sequential


@pytest.mark.parametrize("positions", [np.zeros((0, 2)), np.zeros((3, 3)), np.array([[0, np.nan]])])
def test_positions_that_are_none_are_refused(positions: Any) -> None:
    with pytest.raises(UserError, match="positions are a row and a column"):
        cut_frames(positions, (64, 64))


@pytest.mark.parametrize("options", [{"batch": 0}, {"block": -1}])
def test_sizes_are_positive(options: dict[str, int]) -> None:
    with pytest.raises(UserError, match="at least one frame"):
        cut_frames(positions_of(3), (64, 64), **options)  # type: ignore[arg-type]
