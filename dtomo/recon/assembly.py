"""The slices of a slab in host memory, put together from blocks; from a device while the next block is worked on."""

from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import empty_aligned, on_device
from dtomo.device import begin_download
from dtomo.distributed.slabs import Slab
from dtomo.recon.checkpoints import Finished, SlabCheckpoints


class Assembly:
    """Takes the blocks of a slab in order; each goes to the slab's checkpoints when it is in host memory.

    Parameters
    ----------
    slab
        What is put together.
    kept
        Where blocks that are done are kept; a slab in one block is not.
    behind
        Copy a block while the next one is worked on; else wait for it, so that it can be kept before the next begins.
    """

    def __init__(self, slab: Slab, kept: SlabCheckpoints, *, behind: bool) -> None:
        self._slab, self._kept, self._behind = slab, kept, behind
        self._slices: NDArray[Any] | None = None
        self._coming: tuple[Slab, Finished, Future[NDArray[Any]]] | None = None

    def put(self, block: Slab, done: Finished) -> None:
        """Take a block, which must not be changed any more; of one on a device the copy begins here."""
        there = on_device(done.slices)
        if len(block) == len(self._slab) and not there:
            self._slices = done.slices
            return
        if self._slices is None:
            self._slices = _empty_like_part(done.slices, len(self._slab))
        place = self._slices[block.start - self._slab.start : block.stop - self._slab.start]
        self._wait()
        if there:
            self._coming = block, done._replace(slices=place), begin_download(done.slices, place)
            if not self._behind:
                self._wait()
        else:
            place[...] = done.slices
            self._finish(block, done._replace(slices=place))

    def whole(self) -> NDArray[Any]:
        """All slices of the slab, when all blocks were put in."""
        self._wait()
        assert self._slices is not None
        return self._slices

    def _wait(self) -> None:
        """Wait for the block that is being copied."""
        if self._coming is not None:
            (block, done, copy), self._coming = self._coming, None
            copy.result()
            self._finish(block, done)

    def _finish(self, block: Slab, done: Finished) -> None:
        if len(block) < len(self._slab):
            self._kept.finish(block, done)


def _empty_like_part(part: Any, slices: int) -> NDArray[Any]:
    """An uninitialised slab (z, y, x) in the memory layout of one of its parts."""
    if part.strides[0] == part.itemsize:
        return np.moveaxis(empty_aligned((*part.shape[1:], slices), part.dtype), 2, 0)
    return empty_aligned((slices, *part.shape[1:]), part.dtype)
