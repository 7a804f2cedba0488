"""Views of a source as an alignment puts them: a source again, whose frames are resampled when they are read."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.geometry import Alignment
from dtomo.io.scan import bin_means
from dtomo.io.sources import Frames, Source, frame_index
from dtomo.kernels.resampling import box, covered, resample

TOGETHER = 64 * 2**20
"""Bytes of raw views that are read and resampled at a time."""


@dataclasses.dataclass(frozen=True, eq=False)
class AlignedSource:
    """Aligned views ``(view, row, column)``, float32, turned and moved in one interpolation as they are read.

    Places outside the raw views take their nearest pixel; `covered` says which those are. Rows have the same bits
    whichever are read with them.

    Parameters
    ----------
    raw
        Views as they were taken; what they hold must not belong to pixels of the detector (no raw counts).
    alignment
        One line for each of its frames. `Alignment.levels` is taken off.
    binning
        Means over so many raw pixels a side; views are so much smaller. What is left over at an end is cut.
    binned_before
        Whether `raw` holds these means already.
    """

    raw: Source
    alignment: Alignment
    binning: int = 1
    binned_before: bool = False

    def __post_init__(self) -> None:
        count, *shape = self.raw.shape
        expected = self.raw_shape if self.binned_before else self.alignment.shape
        if count != len(self.alignment) or tuple(shape) != expected:
            raise UserError(
                f"the alignment is of {len(self.alignment)} views of {self.alignment.shape} (rows, columns), but "
                f"{self.raw.location} has {count} of {tuple(shape)}"
            )
        if self.raw.dtype.kind == "c":
            raise UserError(f"{self.raw.location} holds complex numbers; only real views are aligned")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(view, row, column), binned"""
        rows, columns = (max(1, n // self.binning) for n in self.alignment.size)
        return len(self.alignment), rows, columns

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32"""
        return np.dtype(np.float32)

    @property
    def location(self) -> str:
        """That of the raw views, for messages."""
        return f"{self.raw.location} (aligned)"

    @property
    def axis(self) -> float:
        """Column of the axis, binned."""
        return (self.alignment.axis - (self.binning - 1) / 2) / self.binning

    @property
    def raw_shape(self) -> tuple[int, int]:
        """(rows, columns) of a raw view, binned"""
        rows, columns = (max(1, n // self.binning) for n in self.alignment.shape)
        return rows, columns

    def places(self, views: NDArray[np.int64] | slice = slice(None)) -> tuple[NDArray[Any], NDArray[Any]]:
        """Where pixels lie in the raw views, both binned: matrices ``(view, 2, 2)`` and offsets ``(view, 2)``."""
        matrices, offsets = self.alignment.places()
        half = (self.binning - 1) / 2
        return matrices[views], ((matrices.sum(2) * half + offsets - half) / self.binning)[views]

    def read(
        self, frames: Frames = slice(None), rows: slice = slice(None), columns: slice = slice(None)
    ) -> NDArray[np.float32]:
        """Aligned views; rows and columns are plain start:stop.

        Raises
        ------
        UserError
            As the raw source does.
        """
        index = frame_index(frames, self.shape[0], self.location)
        band, across = (slice(*part.indices(size)[:2]) for part, size in zip((rows, columns), self.shape[1:]))
        out = np.empty((len(index), band.stop - band.start, across.stop - across.start), np.float32)
        matrices, offsets = self.places()
        first = 0
        while first < len(index):
            some = index[first : first + self._together(matrices[index], offsets[index], band, across)]
            out[first : first + len(some)] = self._some(some, matrices[some], offsets[some], band, across)
            first += len(some)
        return out

    def covered(self, rows: slice, columns: slice | None = None) -> NDArray[np.bool_]:
        """Which pixels of some rows lie within the raw views: ``(view, row, column)``."""
        across = slice(0, self.shape[2]) if columns is None else columns
        return covered(*self.places(), rows, across, self.raw_shape)

    def box(self, rows: slice) -> tuple[slice, slice]:
        """Binned raw rows and columns that some rows of the aligned views are made of."""
        return box(*self.places(), rows, slice(0, self.shape[2]), self.raw_shape)

    def _together(self, matrices: NDArray[Any], offsets: NDArray[Any], rows: slice, columns: slice) -> int:
        parts = box(matrices, offsets, rows, columns, self.raw_shape)
        each = np.prod([part.stop - part.start for part in parts]) * self.binning**2 * 4
        return max(1, int(TOGETHER // each))

    def _some(
        self, some: NDArray[np.int64], matrices: NDArray[Any], offsets: NDArray[Any], rows: slice, columns: slice
    ) -> NDArray[np.float32]:
        parts = box(matrices, offsets, rows, columns, self.raw_shape)
        b = 1 if self.binned_before else self.binning
        raw = self.raw.read(some, *(slice(part.start * b, part.stop * b) for part in parts))
        raw = raw.astype(np.float32, copy=False) if b == 1 else bin_means(raw, b).astype(np.float32, copy=False)
        new = resample(raw, matrices, offsets, rows, columns, (parts[0].start, parts[1].start), self.raw_shape)
        levels = self.alignment.levels[some]
        if levels.any():
            new -= levels.astype(np.float32)[:, None, None]
        return new
