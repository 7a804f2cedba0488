"""Cutting the rows of a scan into slabs: one task, one worker and whole shards of the output for each."""

import dataclasses
from collections.abc import Sequence
from typing import Self, overload

from dtomo.errors import UserError

SLAB = 64
"""Slices that the kernels take at once: slabs are multiples of it where they can be."""

QUANTUM = 16
"""Slabs of small scans are multiples of this, so that every worker has one."""


@dataclasses.dataclass(frozen=True, order=True)
class Slab:
    """Slices ``start:stop`` of the volume, number `index` of the run."""

    index: int
    start: int
    stop: int

    @property
    def rows(self) -> slice:
        """As an index."""
        return slice(self.start, self.stop)

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"rows {self.start}:{self.stop}"

    def blocks(self, height: int) -> list[Self]:
        """The slab in pieces of at most `height` slices, numbered from 0."""
        starts = range(self.start, self.stop, height)
        return [type(self)(i, first, min(first + height, self.stop)) for i, first in enumerate(starts)]


@dataclasses.dataclass(frozen=True)
class Slabs(Sequence[Slab]):
    """The slabs of `height` slices from 0 to `rows`, made when asked for: a million of them take no memory.

    Raises
    ------
    UserError
        A height or a number of rows that is not positive.
    """

    rows: int
    height: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.height < 1:
            raise UserError(
                f"a slab needs at least one of the scan's rows; got {self.rows} rows and slabs of {self.height}"
            )

    def __len__(self) -> int:
        return -(-self.rows // self.height)

    @overload
    def __getitem__(self, index: int) -> Slab: ...

    @overload
    def __getitem__(self, index: slice) -> list[Slab]: ...

    def __getitem__(self, index: int | slice) -> Slab | list[Slab]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        number = range(len(self))[index]
        return Slab(number, number * self.height, min((number + 1) * self.height, self.rows))


def slab_height(rows: int, workers: int) -> int:
    """Slices per slab: 64, or for a small scan the multiple of 16 with which the workers are done soonest."""
    if rows < 1 or workers < 1:
        raise UserError(f"slabs need rows and workers; got {rows} rows and {workers} workers")
    if rows >= SLAB * workers:
        return SLAB
    return min(range(SLAB, 0, -QUANTUM), key=lambda height: _busiest(rows, workers, height))


def _busiest(rows: int, workers: int, height: int) -> int:
    """Slices of the worker that has most to do."""
    rounds, left_over = divmod(rows // height, workers)
    last = min(height, rows) if rows < height else rows % height
    return (rounds + 1) * height if left_over else rounds * height + last


def cut(rows: int, height: int) -> list[Slab]:
    """Slabs of `height` slices from 0 to `rows`; the last may be smaller.

    Raises
    ------
    UserError
        A height or a number of rows that is not positive.
    """
    return list(Slabs(rows, height))
