"""Views to be aligned, and those of them that are held binned in this process."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo.align.reprojection import run_bands
from dtomo.geometry import Alignment
from dtomo.io.scan import bin_means
from dtomo.io.sources import ArraySource, Source
from dtomo.io.tilts import AlignedSource

if TYPE_CHECKING:
    from distributed import Client

HELD = 256 * 2**20
"""Bytes of binned views that this process holds: where a binning needs more, its rounds go to the workers."""
BLOCK = 64 * 2**20
"""Bytes of raw views that a task reads at a time."""


@dataclasses.dataclass(frozen=True, eq=False)
class Work:
    """Views and where rounds are worked on.

    Attributes
    ----------
    raw
        Views, prepared: nothing in them belongs to pixels of the detector.
    client
        Of a cluster for what this process does not hold; None: all of it here.
    threads
        Of a worker.
    tell, keep
        Called with a line for the user, and with where the run stands, after each round.
    tick
        Called with a binning and the part of a reprojection at it that was just done.
    """

    raw: Source
    client: "Client | None" = None
    threads: int | None = None
    tell: Callable[[str], None] | None = None
    keep: Callable[[Any], None] | None = None
    tick: Callable[[int, float], None] | None = None

    def say(self, line: str) -> None:
        """To the user."""
        if self.tell is not None:
            self.tell(line)

    def kept(self, stage: Any) -> None:
        """Where the run stands is worth keeping."""
        if self.keep is not None:
            self.keep(stage)

    def ticked(self, binning: int, part: float) -> None:
        """A part of a reprojection is done."""
        if self.tick is not None:
            self.tick(binning, part)


def held_binning(shape: tuple[int, int, int], limit: int) -> int:
    """The least power of 2 at which views, as float32, take no more than `limit` bytes."""
    b = 1
    while shape[0] * (shape[1] // b) * (shape[2] // b) * 4 > limit and min(shape[1:]) // (2 * b) >= 1:
        b *= 2
    return b


class Coarse:
    """Binned raw views in memory, read once; coarser ones are made from them."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.binning = held_binning(work.raw.shape, HELD)
        self._views: NDArray[np.float32] | None = None

    def at(self, binning: int) -> NDArray[np.float32]:
        """Raw views at a binning that is a multiple of `binning` of this."""
        if self._views is None:
            self._views = read_binned(self._work.raw, self.binning, self._work.client)
        factor = binning // self.binning
        rows, columns = (n // factor * factor for n in self._views.shape[1:])
        return np.ascontiguousarray(bin_means(self._views[:, :rows, :columns], factor))

    def has(self, binning: int) -> bool:
        """Whether a binning can be made of what is held."""
        return binning % self.binning == 0

    def source(self, alignment: Alignment, binning: int) -> AlignedSource:
        """Aligned views at a binning, from memory."""
        return AlignedSource(ArraySource(self.at(binning), self._work.raw.location), alignment, binning, True)


def view_blocks(shape: tuple[int, int, int], block: int = BLOCK, multiple: int = 1) -> list[tuple[int, int]]:
    """First and last + 1 of the views of each block, of about `block` bytes as float32, a `multiple` of views each."""
    each = max(multiple, block // (shape[1] * shape[2] * 4) // multiple * multiple)
    return [(first, min(first + each, shape[0])) for first in range(0, shape[0], each)]


def read_binned(raw: Source, binning: int, client: "Client | None" = None) -> NDArray[np.float32]:
    """Means over `binning` × `binning` pixels of all views, ``(view, row, column)``; what is left over is cut.

    Blocks of views are read and binned in tasks; only their means come back.
    """
    count, rows, columns = raw.shape
    out = np.empty((count, rows // binning, columns // binning), np.float32)

    def take(block: tuple[int, int], means: NDArray[np.float32]) -> None:
        out[slice(*block)] = means

    run_bands(client, _means, (raw, binning), view_blocks(raw.shape), take)
    return out


def _means(job: tuple[Source, int], block: tuple[int, int]) -> NDArray[np.float32]:
    raw, b = job
    rows, columns = (n // b * b for n in raw.shape[1:])
    views = raw.read(slice(*block), slice(0, rows), slice(0, columns))
    return bin_means(views, b).astype(np.float32, copy=False)
