"""How the frames of a scan are cut: batches of frames that make a step, and blocks that are worked on together.

Both follow from the positions, the settings and the seed alone, never from workers or threads: sums over blocks are
taken in a fixed tree, and so have the same bits wherever the blocks are. Blocks are compact in space, and so are the
nodes of the tree over them: what they add to the object is a small window. The frames of a batch are spread evenly over
the scan: it is ordered along a k-d tree (J. L. Bentley, Communications of the ACM 18 (1975) 509), and of each run of as
many frames as there are batches every batch gets one, at random.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError

PIXELS = 2**19
"""Pixels of the frames of a block, where there are enough frames: 32 frames of 128 × 128."""

PARTS, LEAST = 4, 8
"""A batch is cut into so many blocks at least, if they have `LEAST` frames: then several workers have some."""


@dataclasses.dataclass(frozen=True, eq=False)
class Blocks:
    """The frames of a scan in blocks, and the blocks in batches.

    Attributes
    ----------
    frames
        Numbers of the frames of each block, ascending, int64.
    batches
        Numbers of the blocks of each batch.
    """

    frames: tuple[NDArray[np.int64], ...]
    batches: tuple[range, ...]

    @property
    def sequential(self) -> bool:
        """Whether no batch has more than one block: then nothing can be shared out."""
        return all(len(batch) <= 1 for batch in self.batches)


def cut_frames(
    positions: NDArray[np.float64],
    frame_shape: tuple[int, int],
    batch: int | None = None,
    *,
    seed: int = 0,
    block: int | None = None,
    groups: NDArray[np.integer[Any]] | None = None,
) -> Blocks:
    """Cut the frames of a scan into batches and blocks.

    Parameters
    ----------
    positions
        Row and column of each frame ``(frame, 2)``.
    frame_shape
        Rows and columns of a frame.
    batch
        Frames of a batch, or one less where the frames do not come out even; None: all of them.
    seed
        Of the batches.
    block
        Frames of a block at most; default: by the size of a frame, see `PIXELS`.
    groups
        A number for each frame: no block has frames of two numbers, and blocks of a batch are in their order.

    Raises
    ------
    UserError
        No positions or ones that are not finite, or numbers of frames that are not positive.
    """
    positions = np.asarray(positions, np.float64)
    if positions.ndim != 2 or positions.shape[1] != 2 or not len(positions) or not np.isfinite(positions).all():
        raise UserError(
            f"positions are a row and a column, finite numbers, for each of at least one frame; got shape "
            f"{positions.shape}"
        )
    for name, value in (("batch", batch), ("block", block)):
        if value is not None and value < 1:
            raise UserError(f"a {name} has at least one frame; got {value}")
    return _blocks(_batches(positions, batch, seed), positions, frame_shape, block, groups)


def regrouped(
    blocks: Blocks,
    positions: NDArray[np.float64],
    frame_shape: tuple[int, int],
    groups: NDArray[np.integer[Any]],
) -> Blocks:
    """The same batches in other blocks, that have frames of one group each; see `cut_frames`."""
    batches = [np.sort(np.concatenate([blocks.frames[number] for number in batch])) for batch in blocks.batches]
    return _blocks(batches, np.asarray(positions, np.float64), frame_shape, None, groups)


def _blocks(
    chosen_frames: list[NDArray[np.int64]],
    positions: NDArray[np.float64],
    frame_shape: tuple[int, int],
    block: int | None,
    groups: NDArray[np.integer[Any]] | None,
) -> Blocks:
    """Each batch of frames in blocks."""
    frames: list[NDArray[np.int64]] = []
    batches: list[range] = []
    for chosen in chosen_frames:
        first = len(frames)
        for group in [None] if groups is None else np.unique(groups[chosen]):
            inside = chosen if groups is None else chosen[groups[chosen] == group]
            frames += _compact(positions, inside, _block_count(len(inside), frame_shape, block))
        batches.append(range(first, len(frames)))
    return Blocks(tuple(frames), tuple(batches))


def _block_count(frames: int, frame_shape: tuple[int, int], block: int | None) -> int:
    """Blocks of a batch of so many frames."""
    if block is not None:
        return -(-frames // block)
    largest = max(4, PIXELS // max(1, frame_shape[0] * frame_shape[1]))
    return max(1, -(-frames // largest), min(PARTS, frames // LEAST))


def _batches(positions: NDArray[np.float64], batch: int | None, seed: int) -> list[NDArray[np.int64]]:
    """Frames of each batch, ascending; batches of one frame in the order of the scan."""
    count = len(positions)
    everything = np.arange(count, dtype=np.int64)
    if batch is None or batch >= count:
        return [everything]
    if batch == 1:
        return list(everything[:, None])
    number = -(-count // batch)
    ordered = np.concatenate(_compact(positions, everything, batch))
    owner = np.empty(count, np.int64)
    random = np.random.default_rng(seed)
    for first in range(0, count, number):
        run = ordered[first : first + number]
        owner[run] = random.permutation(number)[: len(run)]
    return [np.flatnonzero(owner == index) for index in range(number)]


def _compact(positions: NDArray[np.float64], frames: NDArray[np.int64], parts: int) -> list[NDArray[np.int64]]:
    """`frames` in so many parts of equal size (or one more), compact in space, as are the nodes of a tree over them.

    They are cut across their longer side, where the aligned tree over the parts is cut.
    """
    borders = [len(frames) * part // parts for part in range(parts + 1)]

    def cut(inside: NDArray[np.int64], first: int, last: int) -> Iterator[NDArray[np.int64]]:
        if last - first == 1:
            yield np.sort(inside)
            return
        middle = first + (1 << ((last - first - 1).bit_length() - 1))
        places = positions[inside]
        longer = int(np.argmax(np.ptp(places, axis=0)))
        ordered = inside[np.lexsort((inside, places[:, 1 - longer], places[:, longer]))]
        left, right = np.split(ordered, [borders[middle] - borders[first]])
        yield from itertools.chain(cut(left, first, middle), cut(right, middle, last))

    return list(cut(frames, 0, parts))
