"""Frames as models take them: frequency zero in the middle, the detector the right way round, nothing bad in them."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.sources import Frames, SelectedFrames, Source, frame_index

GAP = {"u": 2**32 - 256, "i": 2**31 - 2, "f": 2**32 - 256}
"""Counts from which on a pixel is no pixel: detectors put such values where their modules leave gaps."""


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """How stored frames become frames with frequency zero in the middle (row N // 2, column N // 2).

    What is stored is first shifted (if `corner`), then cut to `window`, then transposed, then turned over. Frames are
    turned over about frequency zero, a row k becoming row 2 (N // 2) − k, modulo N; images of the near field
    (`images`) about their middle.

    Attributes
    ----------
    window
        First row, end, first column, end.
    corner
        Frequency zero is stored at [0, 0].
    transpose, flip_rows, flip_columns
        What else is done, in this order.
    images
        There is no frequency zero.
    """

    window: tuple[int, int, int, int]
    corner: bool = False
    transpose: bool = False
    flip_rows: bool = False
    flip_columns: bool = False
    images: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of what comes out."""
        top, bottom, left, right = self.window
        size = (bottom - top, right - left)
        return size[::-1] if self.transpose else size

    def __call__(self, images: NDArray[Any]) -> NDArray[Any]:
        """Whole stored images ``(…, row, column)``, arranged."""
        if self.corner:
            images = np.fft.fftshift(images, (-2, -1))
        top, bottom, left, right = self.window
        return self.turned(images[..., top:bottom, left:right])

    def turned(self, images: NDArray[Any]) -> NDArray[Any]:
        """What is within the window, transposed and turned over."""
        if self.transpose:
            images = np.swapaxes(images, -2, -1)
        for axis, asked in ((-2, self.flip_rows), (-1, self.flip_columns)):
            if asked:
                images = np.flip(images, axis)
                if images.shape[axis] % 2 == 0 and not self.images:
                    images = np.roll(images, 1, axis)
        return images


@dataclasses.dataclass(frozen=True, eq=False)
class ArrangedFrames:
    """A `Source` of arranged frames, checked as they are read.

    What is under the mask is read as 0, and so are counts below 0.

    Attributes
    ----------
    base
        Where they lie.
    arrangement
        What is done to them.
    mask
        Good pixels of the arranged frames; None: all.
    """

    base: Source
    arrangement: Arrangement
    mask: NDArray[np.bool_] | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(frame, row, column)"""
        return (self.base.shape[0], *self.arrangement.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype as stored"""
        return self.base.dtype

    @property
    def location(self) -> str:
        """Where they lie."""
        return self.base.location

    def select(self, frames: Frames) -> "ArrangedFrames":
        """Some of the frames, in this order."""
        return dataclasses.replace(self, base=SelectedFrames.of(self.base, frames))

    def read(
        self, frames: Frames = slice(None), rows: slice = slice(None), columns: slice = slice(None)
    ) -> NDArray[Any]:
        """Frames with frequency zero in the middle, as stored otherwise.

        Raises
        ------
        UserError
            A good pixel holds no count (NaN, infinity, the mark of a gap); frames that cannot be read.
        """
        if self.arrangement.corner:
            images = self.arrangement(self.base.read(frames))
        else:
            top, bottom, left, right = self.arrangement.window
            images = self.arrangement.turned(self.base.read(frames, slice(top, bottom), slice(left, right)))
        images = np.ascontiguousarray(images[:, rows, columns])
        if self.mask is not None:
            images[:, ~self.mask[rows, columns]] = 0
        self._check(images, frames)
        return images if images.dtype.kind == "u" else np.maximum(images, 0, out=images)

    def _check(self, images: NDArray[Any], frames: Frames) -> None:
        limit = GAP[images.dtype.kind]
        if not images.size or (images.dtype.kind in "ui" and images.dtype.itemsize < 4):
            return
        most = images.max()
        if most < limit and (images.dtype.kind != "f" or images.min() > -np.inf):  # NaN compares as False
            return
        bad = (images >= limit) | ~np.isfinite(images)
        number = int(frame_index(frames, self.shape[0], self.location)[int(np.argmax(bad.any((1, 2))))])
        raise UserError(
            f"frame {number} of {self.location} holds no counts (NaN, infinity or the mark of a gap) in good pixels: "
            f"{int(bad.sum())} in the frames read with it; mask these pixels with mask=... (--mask), or leave the "
            "frame out"
        )
