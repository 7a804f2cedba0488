"""Sums have the bits of the aligned tree, wherever the blocks are, and few partial sums move."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dtomo.distributed.sums import add_up, divide, moved, partial_sums, partner_of, plan_sum, sum_of_parts, tree_sum
from dtomo.errors import UserError


def _reference(blocks: list[Any]) -> Any:
    """The aligned tree, level by level."""
    while len(blocks) > 1:
        pairs = [blocks[i] + blocks[i + 1] for i in range(0, len(blocks) - 1, 2)]
        blocks = pairs + blocks[len(pairs) * 2 :]
    return blocks[0]


def _blocks(count: int, dtype: str = "float32") -> list[NDArray[Any]]:
    random = np.random.default_rng(count)
    values = random.standard_normal((count, 7)) * 10.0 ** random.integers(-6, 6, (count, 1))
    return [(row + 1j * row[::-1] if dtype.startswith("complex") else row).astype(dtype) for row in values]


def _by_tasks(blocks: list[Any], homes: list[Any], levels: int = 3) -> Any:
    present: dict[Any, Any] = {(0, i): block for i, block in enumerate(blocks)}
    for task in plan_sum(homes, levels):
        present[task.node] = add_up(task.node, len(blocks), task.leaves, [present[leaf] for leaf in task.leaves])
    return present[task.node]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("count", [*range(1, 20), 64, 125])
def test_tree_sum_is_that_of_the_aligned_tree(count: int, dtype: str) -> None:
    blocks = _blocks(count, dtype)
    kept = [block.copy() for block in blocks]
    assert tree_sum(iter(blocks)).tobytes() == _reference(blocks).tobytes()
    assert all(np.array_equal(a, b) for a, b in zip(blocks, kept))
    assert tree_sum(blocks).dtype == np.dtype(dtype)


def test_the_order_matters_for_the_bits_so_that_the_tests_here_can_fail() -> None:
    blocks = _blocks(64)
    assert tree_sum(blocks).tobytes() != sum(blocks[1:], blocks[0]).tobytes()


@given(homes=st.lists(st.integers(0, 4), min_size=1, max_size=70), levels=st.integers(1, 5))
def test_tasks_on_any_placement_give_the_same_bits(homes: list[int], levels: int) -> None:
    blocks = _blocks(len(homes))
    assert _by_tasks(blocks, homes, levels).tobytes() == tree_sum(blocks).tobytes()


@given(homes=st.lists(st.integers(0, 4), min_size=1, max_size=70))
def test_partial_sums_of_groups_make_the_same_bits(homes: list[int]) -> None:
    blocks = _blocks(len(homes))
    kept = [block.copy() for block in blocks]
    groups = [[(i, blocks[i]) for i, at in enumerate(homes) if at == home] for home in sorted(set(homes))]
    parts = [partial_sums(group, len(blocks)) for group in groups]
    assert sum_of_parts(parts, len(blocks)).tobytes() == tree_sum(blocks).tobytes()
    assert all(np.array_equal(a, b) for a, b in zip(blocks, kept))


def test_partial_sums_of_consecutive_blocks_are_few() -> None:
    parts = partial_sums(((i, 1) for i in range(5, 64)), 64)
    assert parts == {(0, 5): 1, (1, 3): 2, (3, 1): 8, (4, 1): 16, (5, 1): 32}
    assert partial_sums(((i, 1) for i in range(7)), 7) == {(3, 0): 7}


@given(count=st.integers(1, 300), workers=st.integers(1, 40))
def test_consecutive_blocks_move_a_few_partial_sums_per_worker(count: int, workers: int) -> None:
    homes = [i * workers // count for i in range(count)]
    tasks = plan_sum(homes)
    journeys = list(moved(tasks, homes))
    assert len(journeys) <= 4 * (len(set(homes)) - 1)
    assert all(len(task.leaves) <= 8 for task in tasks)


@given(count=st.integers(1, 200))
def test_partners_lead_every_block_to_the_same_root(count: int) -> None:
    roots = set()
    for block in range(count):
        node = (0, block)
        while (above := partner_of(node, count)) is not None:
            parent, other = above
            assert partner_of(other, count) == (parent, node)
            node = parent
        roots.add(node)
    assert roots == {plan_sum([0] * count)[-1].node}


def test_dicts_tuples_and_numbers_are_added_part_by_part() -> None:
    blocks = [({"object": np.full(3, i, np.float32), "probe": np.array(2j * i)}, [float(i)]) for i in range(5)]
    (parts, numbers) = tree_sum(blocks)
    assert parts["object"].tolist() == [10, 10, 10]
    assert parts["probe"] == 20j
    assert numbers == [10.0]


@pytest.mark.parametrize(
    "blocks",
    [
        [],
        [np.zeros(3), np.zeros(4)],
        [np.zeros(3, np.float32), np.zeros(3)],
        [np.zeros(3), 1.0],
        [{"a": 1}, {"b": 1}],
        [(1, 2), (1,)],
        [1.0, "1"],
    ],
)
def test_blocks_that_differ_are_refused(blocks: list[Any]) -> None:
    with pytest.raises(UserError, match="block"):
        tree_sum(blocks)


def test_means_are_divided_once_in_the_precision_of_the_values() -> None:
    values = [np.full(4, i, np.float32) for i in (1, 2, 4)]
    mean = divide(tree_sum([(value, 1) for value in values]))
    assert mean.dtype == np.float32
    assert np.array_equal(mean, np.full(4, np.float32(7) / np.float32(3)))
    weights = np.array([0, 1, 2, 0], np.float32)
    mean = divide(tree_sum([({"o": value.astype(np.complex64)}, weights) for value in values]))["o"]
    assert mean.dtype == np.complex64
    assert np.allclose(mean, [0, 7 / 3, 7 / 6, 0])


def test_a_mean_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="sum of the weights is 0"):
        divide((np.zeros(3), 0))
