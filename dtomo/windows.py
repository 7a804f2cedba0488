"""Parts of arrays that are added up: a window of an image, and rows of a table, each with its place in the whole."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module


@dataclasses.dataclass(frozen=True, eq=False)
class Window:
    """A rectangle of an image that is zero elsewhere; sums of neighbouring windows stay small.

    Attributes
    ----------
    values
        ``(…, row, column)``.
    origin
        Row and column of its first pixel in the image.
    """

    values: NDArray[Any]
    origin: tuple[int, int]

    def plus(self, other: "Window", owned: bool = False) -> "Window":
        """The sum, on the smallest rectangle that holds both; `owned`: this one's memory may be written to."""
        first = tuple(map(min, self.origin, other.origin))
        last = tuple(map(max, self._end(), other._end()))
        if owned and (first, last) == (self.origin, self._end()):
            target = self
        else:
            shape = (*self.values.shape[:-2], last[0] - first[0], last[1] - first[1])
            xp = array_module(self.values, other.values)
            target = Window(xp.zeros(shape, self.values.dtype), (first[0], first[1]))
            target._at(self)[...] = self.values
        target._at(other)[...] += other.values
        return target

    def put_into(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """The whole image ``(…, row, column)``."""
        whole = array_module(self.values).zeros(shape, self.values.dtype)
        Window(whole, (0, 0))._at(self)[...] = self.values
        return whole

    def _end(self) -> tuple[int, int]:
        return self.origin[0] + self.values.shape[-2], self.origin[1] + self.values.shape[-1]

    def _at(self, other: "Window") -> NDArray[Any]:
        """The part of this one that `other` covers."""
        row, column = other.origin[0] - self.origin[0], other.origin[1] - self.origin[1]
        return self.values[..., row : row + other.values.shape[-2], column : column + other.values.shape[-1]]


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table that each belong to one frame (positions, weights): a sum of different rows holds them all.

    Attributes
    ----------
    index
        Numbers of the rows, int64 ``(row,)``; no row is in two blocks of a sum.
    values
        ``(row, …)``.
    """

    index: NDArray[np.int64]
    values: NDArray[Any]

    def plus(self, other: "Rows", owned: bool = False) -> "Rows":
        """Both, these rows first."""
        xp = array_module(self.values, other.values)
        return Rows(np.concatenate([self.index, other.index]), xp.concatenate([self.values, other.values]))

    def put_into(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """The whole table ``(row, …)``, zero where there is no row."""
        xp = array_module(self.values)
        whole = xp.zeros(shape, self.values.dtype)
        whole[xp.asarray(self.index)] = self.values
        return whole
