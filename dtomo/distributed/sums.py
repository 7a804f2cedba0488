"""Sums in a fixed order: an aligned binary tree over the index of blocks, wherever the blocks are.

Blocks 2i and 2i + 1 are added first, then the sums of blocks 4i … 4i + 1 and 4i + 2 … 4i + 3, and so on; a node
without a partner goes up as it is. The tree depends on the number of blocks alone, and the blocks must not depend on
the workers: then the sum has the same bits on any number of workers. It is carried in the dtype of the blocks (float32
in float32): the rounding of a tree over n blocks grows with log2(n), not with n.

Where a node of the tree is added is chosen so that the fewest partial sums move: the assignment of inner nodes of a
tree with the fewest edges between differently labelled nodes (W. M. Fitch, "Toward defining the course of evolution",
Systematic Zoology 20 (1971) 406). Where the blocks of a worker are consecutive, one to four partial sums move for each
border between two workers: the fewer, the rounder the number of the block there.
"""

import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dtomo.arrays import array_module, is_array, on_device
from dtomo.errors import UserError
from dtomo.windows import Rows, Window

LEVELS = 3
"""Levels of the tree that one task adds: up to 2**3 blocks are in memory at once, and there are n / 7 tasks."""

_NUMBERS = (int, float, complex, np.number)

Node = tuple[int, int]
"""(level, index): the blocks index · 2**level … (index + 1) · 2**level."""


def tree_sum(blocks: Iterable[Any]) -> Any:
    """Sum of blocks in this process, with the bits of the sum over workers.

    Parameters
    ----------
    blocks
        Arrays of one shape and dtype (all in host memory or all on a device), numbers, windows and rows
        (`dtomo.windows`), or dicts, tuples and lists of such that are all alike. Only about log2(n) partial sums are
        in memory at a time; the blocks are not changed.

    Returns
    -------
    Any
        Of the kind of a block; of a single block, the block itself.

    Raises
    ------
    UserError
        No blocks, or blocks that differ in kind, shape, dtype or where they lie.
    """
    waiting: list[tuple[int, _Partial]] = []
    for block in blocks:
        level, total = 0, _Partial(block, False)
        while waiting and waiting[-1][0] == level:
            total = _plus(waiting.pop()[1], total)
            level += 1
        waiting.append((level, total))
    if not waiting:
        raise UserError("a sum needs at least one block")
    total = waiting.pop()[1]
    while waiting:
        total = _plus(waiting.pop()[1], total)
    return total.value


def divide(total: tuple[Any, Any]) -> Any:
    """The mean from a sum of ``(values, weights)``, divided once, in the precision of the values.

    The weights are a number, or an array that fits the shape of the values; where they are zero the mean is zero.

    Raises
    ------
    UserError
        The weight is a number and zero: there is nothing to take the mean of.
    """
    values, weights = total
    if np.ndim(weights) == 0 and weights == 0:
        raise UserError("a mean needs blocks that count: the sum of the weights is 0")
    return _divide(values, weights)


def _divide(values: Any, weights: Any) -> Any:
    if isinstance(values, dict):
        return {name: _divide(value, weights) for name, value in values.items()}
    if isinstance(values, tuple | list):
        return type(values)(_divide(value, weights) for value in values)
    if not is_array(values):
        return values / weights
    real = np.zeros(0, values.dtype).real.dtype
    divisor = array_module(values, weights).asarray(weights, real if real.kind == "f" else np.float64)
    return np.where(divisor == 0, 0, values / np.where(divisor == 0, 1, divisor)).astype(
        np.result_type(values.dtype, divisor.dtype), copy=False
    )


@dataclasses.dataclass(frozen=True)
class _Partial:
    """A value in the tree, and whether its memory is ours to be written to."""

    value: Any
    owned: bool


def _plus(left: _Partial, right: _Partial) -> _Partial:
    return _Partial(_add(left.value, right.value, left.owned, right.owned), True)


def _add(left: Any, right: Any, left_owned: bool, right_owned: bool) -> Any:
    if is_array(left) and left.ndim:
        if not is_array(right) or _kind(left) != _kind(right):
            raise UserError(f"blocks of a sum must be alike; got {_kind(left)} and {_kind(right)}")
        return np.add(left, right, out=left if left_owned else right if right_owned else None)
    if _is_number(left) and _is_number(right):
        return left + right
    if type(left) is not type(right):
        raise UserError(f"blocks of a sum must be alike; got {_kind(left)} and {_kind(right)}")
    if isinstance(left, Window | Rows):
        return left.plus(right, left_owned)
    if isinstance(left, dict):
        if left.keys() != right.keys():
            raise UserError(f"blocks of a sum must be alike; got keys {sorted(left)} and {sorted(right)}")
        return {name: _add(value, right[name], left_owned, right_owned) for name, value in left.items()}
    if isinstance(left, tuple | list):
        if len(left) != len(right):
            raise UserError(f"blocks of a sum must be alike; got {len(left)} and {len(right)} parts")
        return type(left)(_add(a, b, left_owned, right_owned) for a, b in zip(left, right))
    raise UserError(f"blocks of a sum are arrays, numbers, or dicts, tuples and lists of them, not {_kind(left)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBERS) or (is_array(value) and value.ndim == 0)


def _kind(value: Any) -> str:
    if not is_array(value):
        return type(value).__name__
    return f"{value.dtype}{list(value.shape)}{' on a device' * on_device(value)}"


@dataclasses.dataclass(frozen=True)
class SumTask:
    """One task of a sum over workers: `node` of the tree from `leaves`, which are blocks (level 0) or other tasks."""

    node: Node
    home: Hashable
    leaves: tuple[Node, ...]


def plan_sum(homes: Sequence[Hashable], levels: int = LEVELS) -> list[SumTask]:
    """The tasks of a sum, the last one its root, and where they run, so that the fewest partial sums move.

    Parameters
    ----------
    homes
        Where each block is.
    levels
        Levels of the tree that a task adds at most, from the bottom.

    Raises
    ------
    UserError
        No blocks.
    """
    if not homes:
        raise UserError("a sum needs at least one block")
    root = _resolved((max(0, len(homes) - 1).bit_length(), 0), len(homes))
    labels = _labels(root, homes)
    tasks: list[SumTask] = []
    _collect(root, homes, labels, levels, tasks)
    return tasks


def _children(node: Node, count: int) -> tuple[Node, Node]:
    """Of a node of at least two blocks that `_resolved` returned."""
    level, index = node
    return _resolved((level - 1, 2 * index), count), _resolved((level - 1, 2 * index + 1), count)


def _resolved(node: Node, count: int) -> Node:
    """The node, or the one below it that it is the same as, for want of blocks on its right."""
    level, index = node
    while level and (2 * index + 1) << (level - 1) >= count:
        level, index = level - 1, 2 * index
    return level, index


def partner_of(node: Node, count: int) -> tuple[Node, Node] | None:
    """The node above, of which `node` is a child in a tree over `count` blocks, and its other child; None at the root.

    The nodes are those that `plan_sum` names: without the ones that are the same as the one below them.
    """
    level, index = node
    while (1 << level) < count:
        other = index ^ 1
        if other << level < count:
            return (level + 1, index >> 1), _resolved((level, other), count)
        level, index = level + 1, index >> 1
    return None


def _labels(root: Node, homes: Sequence[Hashable]) -> dict[Node, Hashable]:
    """The home of each node: Fitch's assignment, ties by the order of the blocks."""
    sets: dict[Node, dict[Hashable, None]] = {}

    def up(node: Node) -> dict[Hashable, None]:
        if node[0] == 0:
            sets[node] = {homes[node[1]]: None}
        else:
            left, right = (up(child) for child in _children(node, len(homes)))
            both = {home: None for home in left if home in right}
            sets[node] = both or {**left, **right}
        return sets[node]

    labels: dict[Node, Hashable] = {}

    def down(node: Node, above: Hashable) -> None:
        labels[node] = above if above in sets[node] else next(iter(sets[node]))
        if node[0]:
            for child in _children(node, len(homes)):
                down(child, labels[node])

    up(root)
    down(root, next(iter(sets[root])))
    return labels


def _collect(
    root: Node, homes: Sequence[Hashable], labels: dict[Node, Hashable], levels: int, tasks: list[SumTask]
) -> None:
    """Append the task of `root`, after those of the tasks that it needs."""
    leaves: list[Node] = []

    def visit(node: Node) -> None:
        below = (node[0] - 1) // levels < (root[0] - 1) // levels
        ends = node != root and (below or labels[node] != labels[root])
        if node[0] == 0:
            leaves.append(node)
        elif ends:
            _collect(node, homes, labels, levels, tasks)
            leaves.append(node)
        else:
            for child in _children(node, len(homes)):
                visit(child)

    visit(root)
    tasks.append(SumTask(root, labels[root], tuple(leaves)))


def add_up(node: Node, count: int, leaves: Sequence[Node], values: Sequence[Any]) -> Any:
    """The sum at `node` of a tree over `count` blocks, from the values at `leaves`."""
    present = dict(zip(leaves, values, strict=True))

    def total(at: Node) -> _Partial:
        if at in present:
            return _Partial(present[at], False)
        left, right = _children(at, count)
        return _plus(total(left), total(right))

    return total(node).value


def partial_sums(blocks: Iterable[tuple[int, Any]], count: int) -> dict[Node, Any]:
    """Sums of some of the blocks of a tree, over the largest of its nodes that are whole.

    Parameters
    ----------
    blocks
        Number and value, in the order of the numbers; as for `tree_sum`.
    count
        Blocks of the tree in all.
    """
    waiting: list[tuple[Node, _Partial]] = []
    for number, block in blocks:
        node, total = (0, number), _Partial(block, False)
        while waiting and (above := partner_of(node, count)) is not None and above[1] == waiting[-1][0]:
            node, total = above[0], _plus(waiting.pop()[1], total)
        waiting.append((node, total))
    return {node: total.value for node, total in waiting}


def sum_of_parts(parts: Iterable[Mapping[Node, Any]], count: int) -> Any:
    """The sum over all `count` blocks, with the bits of `tree_sum`, from what `partial_sums` made of groups of them."""
    present = {node: value for part in parts for node, value in part.items()}
    root = _resolved((max(0, count - 1).bit_length(), 0), count)
    return add_up(root, count, list(present), list(present.values()))


def moved(tasks: Sequence[SumTask], homes: Sequence[Hashable]) -> Iterator[tuple[Node, Hashable, Hashable]]:
    """Every partial sum that changes its worker: (node, from, to)."""
    labels: dict[Node, Hashable] = {(0, index): home for index, home in enumerate(homes)}
    labels |= {task.node: task.home for task in tasks}
    for task in tasks:
        for leaf in task.leaves:
            if labels[leaf] != task.home:
                yield leaf, labels[leaf], task.home
