"""Frames as models take them: frequency zero in the middle, the detector the right way round, nothing bad in them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.sources import Frames, SelectedFrames, Source, frame_index

LEAST_PIXELS = 4
"""Along each axis of a frame."""
GAP = {"u": 2**32 - 256, "i": 2**31 - 2, "f": 2**32 - 256}
"""Counts from which on a pixel is no pixel: detectors put such values where their modules leave gaps."""
FLIPS = {
    "none": (False, False, False),
    "rows": (False, True, False),
    "columns": (False, False, True),
    "both": (False, True, True),
    "transpose": (True, False, False),
    "transpose-rows": (True, True, False),
    "transpose-columns": (True, False, True),
    "transpose-both": (True, True, True),
}
"""What is done to frames, by name: transposed, then turned over along rows, along columns."""


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


def arrangement_of(
    shape: tuple[int, int],
    center: str | Sequence[int],
    crop: int | Sequence[int] | None,
    flip: str | None,
    *,
    images: bool = False,
) -> Arrangement:
    """What is done to frames, from what a user says.

    Parameters
    ----------
    shape
        Rows and columns as stored.
    center
        Where frequency zero is: "middle", "corner", or a row and a column.
    crop
        Rows and columns around it; None: all, or as many as there are on both sides of a given row and column.
    flip
        One of `FLIPS`, or None.
    images
        Of the near field.

    Raises
    ------
    UserError
        None of these, or more than there is.
    """
    if flip is not None and flip not in FLIPS:
        raise UserError(f"flip_frames is one of {', '.join(FLIPS)}; got {flip!r}")
    middle: tuple[int, ...] = (shape[0] // 2, shape[1] // 2)
    size: tuple[int, ...] = shape
    if not isinstance(center, str):
        middle = tuple(int(one) for one in center)
        if len(middle) != 2 or not all(0 < one < count for one, count in zip(middle, shape)):
            raise UserError(f"center is a row and a column within the frames of {shape}; got {tuple(center)}")
        size = tuple(2 * min(one, count - one) for one, count in zip(middle, shape))
    elif center not in ("middle", "corner"):
        raise UserError(f"center is 'middle', 'corner', or a row and a column; got {center!r}")
    if crop is not None:
        if np.size(crop) not in (1, 2):
            raise UserError(f"crop is a number of pixels, or of rows and of columns; got {crop}")
        size = tuple(int(one) for one in np.broadcast_to(np.asarray(crop, np.int64).reshape(-1), 2))
    if min(size) < LEAST_PIXELS:
        raise UserError(
            f"{size[0]} × {size[1]} pixels around row {middle[0]}, column {middle[1]} are too few; {LEAST_PIXELS} × "
            f"{LEAST_PIXELS} are the least (--crop, --center)"
        )
    starts = [one - length // 2 for one, length in zip(middle, size)]
    if any(start < 0 or start + length > count for start, length, count in zip(starts, size, shape)):
        raise UserError(
            f"{size[0]} × {size[1]} pixels around row {middle[0]}, column {middle[1]} do not lie within frames of "
            f"{shape[0]} × {shape[1]}; choose a smaller crop (--crop)"
        )
    window = (starts[0], starts[0] + size[0], starts[1], starts[1] + size[1])
    return Arrangement(window, center == "corner", *FLIPS[flip or "none"], images)


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
