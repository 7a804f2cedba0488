"""Where what lies: slabs of the volume, the frames of each, and the rows that neighbours see of one another."""

import dataclasses
import itertools
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.ptychotomo.engine import SlabPlace

REACH = 8
"""Pixels that a shift may go where shifts are refined."""


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """How the rows of a volume are cut, and which frames belong to which slab.

    A frame belongs to the slab that its first row lies in, where it is stated; shifts may take it `reach` rows further
    up or down.

    Attributes
    ----------
    borders
        First row of each slab, and the number of rows.
    frame_rows
        Rows of a probe.
    reach
        Pixels that shifts may go; 0 where none are refined or given.
    positions
        Of all frames ``(frame, 2)``, row and column in the image.
    angle_of_frame
        Number of the angle of each frame.
    angles
        How many there are.
    """

    borders: tuple[int, ...]
    frame_rows: int
    reach: int
    positions: NDArray[np.float64]
    angle_of_frame: NDArray[np.int64]
    angles: int

    @property
    def above(self) -> int:
        """Rows of the slab before that frames of a slab see."""
        return self.reach

    @property
    def below(self) -> int:
        """Rows of the slab after that frames of a slab see: positions between rows reach one further."""
        return self.frame_rows + self.reach

    @property
    def slabs(self) -> int:
        """How many there are."""
        return len(self.borders) - 1

    @cached_property
    def places(self) -> tuple[SlabPlace, ...]:
        """Of the slabs."""
        rows = self.borders[-1]
        return tuple(SlabPlace(i, self.borders[i], self.borders[i + 1], rows) for i in range(self.slabs))

    def of(self, slab: int) -> tuple[int, int]:
        """Rows above and below a slab that its frames see: none beyond the volume."""
        return (self.above if slab else 0), (self.below if slab < self.slabs - 1 else 0)

    @cached_property
    def blocks(self) -> tuple[NDArray[np.int64], ...]:
        """Numbers of the frames of slab s and angle a, ascending, at s · angles + a; empty where there are none."""
        owner = np.searchsorted(self.borders, np.floor(self.positions[:, 0]), "right") - 1
        owner = owner.clip(0, self.slabs - 1)
        keys = owner * self.angles + self.angle_of_frame
        order = np.argsort(keys, kind="stable")
        ends = np.searchsorted(keys[order], np.arange(self.slabs * self.angles + 1))
        return tuple(order[first:last].astype(np.int64) for first, last in itertools.pairwise(ends))

    def block(self, slab: int, angle: int) -> int:
        """Number of the block of frames of a slab and an angle."""
        return slab * self.angles + angle


def cut(
    rows: int,
    height: int | None,
    frame_rows: int,
    positions: NDArray[np.float64],
    angle_of_frame: NDArray[np.int64],
    angles: int,
    *,
    reach: int = 0,
) -> Layout:
    """Slabs of `height` rows (None: one slab), the last one with what is left over as well.

    Raises
    ------
    UserError
        Slabs lower than what their neighbours' frames see of them.
    """
    height = rows if height is None else height
    least = frame_rows + reach
    if height < min(least, rows):
        raise UserError(f"slabs are at least as high as frames and what shifts may go, {least} rows; got {height}")
    borders = (*(slab * height for slab in range(max(1, rows // height))), rows)
    return Layout(borders, frame_rows, reach, positions, np.asarray(angle_of_frame, np.int64), angles)


def subsets(angles: NDArray[np.float64], count: int, epoch: int, seed: int = 0) -> list[NDArray[np.int64]]:
    """Ordered subsets, each spread evenly over the half-turn, in an order drawn from the epoch's number.

    H. M. Hudson and R. S. Larkin, IEEE Trans. Med. Imaging 13 (1994) 601.

    Parameters
    ----------
    angles
        Degrees.
    count
        Subsets.
    epoch, seed
        That the order is drawn from.
    """
    order = np.argsort(np.mod(angles, 180.0), kind="stable").astype(np.int64)
    found = [np.sort(order[first::count]) for first in range(min(count, len(order)))]
    return [found[k] for k in np.random.default_rng([seed, epoch, count]).permutation(len(found))]
