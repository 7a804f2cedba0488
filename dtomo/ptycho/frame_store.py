"""The frames of a process's blocks: read once and kept as far as memory goes, else read again, one block ahead.

A solver takes the same blocks in every epoch. Where not all of them fit, dropping the least recently used one would
drop each just before it is needed again; so the first ones that fit stay, and the others are read each time.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.device import to_device
from dtomo.io.sources import Source
from dtomo.ptycho.frames import FrameBlock, to_model_order

Arrange = Callable[[NDArray[Any]], NDArray[Any]]


class FrameStore:
    """Blocks of frames of one scan, for one process; one thread at a time asks for them.

    Parameters
    ----------
    source
        Of the frames ``(frame, row, column)``.
    blocks
        Numbers of the frames of each block of the scan.
    memory
        Bytes of frames that are kept; two blocks more are in memory where that is not enough.
    arrange
        What is done to frames as they are read; default: detector order becomes model order.
    device
        Whether blocks are kept on the device.

    Attributes
    ----------
    reads
        Blocks read so far.
    """

    def __init__(
        self,
        source: Source,
        blocks: Sequence[NDArray[np.int64]],
        memory: int,
        *,
        arrange: Arrange = to_model_order,
        device: bool = False,
    ) -> None:
        self._source, self._blocks, self._memory = source, blocks, memory
        self._arrange, self._device = arrange, device
        self._kept: dict[int, FrameBlock] = {}
        self._used, self.reads = 0, 0
        self._thread: ThreadPoolExecutor | None = None
        self._ahead: tuple[int, Future[NDArray[Any]]] | None = None

    def walk(self, numbers: Iterable[int], following: int | None = None) -> Iterator[FrameBlock]:
        """The blocks with these numbers, in this order; the next one is read while a block is worked on.

        Parameters
        ----------
        numbers
            Of the blocks.
        following
            The block that will be asked for after them, if known.
        """
        ordered = list(numbers)
        for number, after in zip(ordered, [*ordered[1:], following]):
            block = self._get(number)
            if after is not None and after != number:
                self._begin(after)
            yield block

    @property
    def held(self) -> frozenset[int]:
        """Numbers of the blocks that are kept."""
        return frozenset(self._kept)

    def retain(self, numbers: Collection[int]) -> None:
        """Let go of all other blocks: they are another process's now."""
        for number in [number for number in self._kept if number not in numbers]:
            self._used -= self._kept.pop(number).intensities.nbytes

    def _get(self, number: int) -> FrameBlock:
        kept = self._kept.get(number)
        if kept is not None:
            return kept
        intensities = self._read_ahead(number)
        if intensities is None:
            intensities = self._read(number)
        self.reads += 1
        block = FrameBlock(self._blocks[number], to_device(intensities) if self._device else intensities)
        if self._used + intensities.nbytes <= self._memory:
            self._kept[number] = block
            self._used += intensities.nbytes
        return block

    def _read(self, number: int) -> NDArray[Any]:
        return self._arrange(self._source.read(frames=self._blocks[number]))

    def _begin(self, number: int) -> None:
        """Start to read a block, if it is neither here nor coming."""
        if number in self._kept or (self._ahead is not None and self._ahead[0] == number):
            return
        if self._ahead is not None:
            self._read_ahead(number)  # what was read in vain is gone before more is
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="dtomo-frames")
        self._ahead = number, self._thread.submit(self._read, number)

    def _read_ahead(self, number: int) -> NDArray[Any] | None:
        """What was read ahead, if it is this block; whatever it was ends here. What failed is read again, to raise."""
        if self._ahead is None:
            return None
        read, future = self._ahead
        self._ahead = None
        failed = future.exception() is not None  # waits
        return None if failed or read != number else future.result()
