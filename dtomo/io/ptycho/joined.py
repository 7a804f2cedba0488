"""Frames that lie in several places, one after another."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.sources import Frames, Source, frame_index


@dataclasses.dataclass(frozen=True)
class JoinedFrames:
    """A `Source` of the frames of several, in this order.

    Attributes
    ----------
    parts
        Sources with frames of one shape and dtype.
    """

    parts: tuple[Source, ...]

    @staticmethod
    def of(parts: tuple[Source, ...]) -> Source:
        """One source of all frames.

        Raises
        ------
        UserError
            Frames of different shapes or dtypes.
        """
        first = parts[0]
        for part in parts[1:]:
            if part.shape[1:] != first.shape[1:] or part.dtype != first.dtype:
                raise UserError(
                    f"{part.location} has frames of {part.shape[1:]} {part.dtype}, but {first.location} of "
                    f"{first.shape[1:]} {first.dtype}; they must be the same"
                )
        return first if len(parts) == 1 else JoinedFrames(parts)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(frame, row, column)"""
        return (sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of all parts"""
        return self.parts[0].dtype

    @property
    def location(self) -> str:
        """Of the first part, and how many more there are."""
        return f"{self.parts[0].location} and {len(self.parts) - 1} more"

    def read(
        self, frames: Frames = slice(None), rows: slice = slice(None), columns: slice = slice(None)
    ) -> NDArray[Any]:
        """As the parts read, counted through."""
        index = frame_index(frames, self.shape[0], self.location)
        starts = np.cumsum([0, *(part.shape[0] for part in self.parts)])
        which = np.searchsorted(starts, index, side="right") - 1
        out: NDArray[Any] | None = None
        for number in np.unique(which):
            places = np.flatnonzero(which == number)
            images = self.parts[number].read(index[places] - starts[number], rows, columns)
            if len(places) == len(index):
                return images
            if out is None:
                out = np.empty((len(index), *images.shape[1:]), self.dtype)
            out[places] = images
        return self.parts[0].read(index, rows, columns) if out is None else out
