"""Joint scans seen another way round: from behind, or with the rotation axis along the columns."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.io.ptychotomo.scan import PtychotomoScan
from dtomo.io.sources import Frames, Source


@dataclasses.dataclass(frozen=True)
class TurnedFrames:
    """Frames transposed, turned about frequency zero, or both.

    Attributes
    ----------
    base
        In detector order (frequency zero at row N // 2, column N // 2).
    transpose
        Rows become columns.
    turn
        Every frequency is where its opposite was, as waves exp(-ikz) have them.
    """

    base: Source
    transpose: bool = False
    turn: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """(frame, row, column)"""
        count, rows, columns = self.base.shape
        return (count, columns, rows) if self.transpose else (count, rows, columns)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the base."""
        return self.base.dtype

    @property
    def location(self) -> str:
        """Of the base."""
        return self.base.location

    def read(
        self, frames: Frames = slice(None), rows: slice = slice(None), columns: slice = slice(None)
    ) -> NDArray[Any]:
        """As the base's, turned."""
        images = self.base.read(frames)
        if self.transpose:
            images = np.swapaxes(images, -2, -1)
        if self.turn:
            images = turned(images)
        return np.ascontiguousarray(images[:, rows, columns])


def turned(images: NDArray[Any]) -> NDArray[Any]:
    """Images ``(…, row, column)`` turned about row N // 2, column N // 2: frequency f is where -f was."""
    shifts = tuple(1 - size % 2 for size in images.shape[-2:])
    return np.roll(images[..., ::-1, ::-1], shifts, (-2, -1))


def of_other_sign(scan: PtychotomoScan) -> PtychotomoScan:
    """A scan of waves exp(-ikz), n = 1 - δ - iβ, as if it had been of waves exp(+ikz), n = 1 - δ + iβ.

    All waves are conjugated, so intensities lie at the opposite frequencies.
    """
    return dataclasses.replace(
        scan,
        frames=TurnedFrames(scan.frames, turn=True),
        mask=None if scan.mask is None else turned(scan.mask),
        background=None if scan.background is None else turned(scan.background),
        probe=None if scan.probe is None else scan.probe.conj(),
    )


def transposed(scan: PtychotomoScan) -> PtychotomoScan:
    """A scan whose rotation axis runs along the columns of its images, with the axis along the rows."""
    return dataclasses.replace(
        scan,
        frames=TurnedFrames(scan.frames, transpose=True),
        positions=np.ascontiguousarray(scan.positions[:, ::-1]),
        image_shape=scan.image_shape[::-1],
        mask=None if scan.mask is None else np.ascontiguousarray(scan.mask.T),
        background=None if scan.background is None else np.ascontiguousarray(scan.background.T),
        probe=None if scan.probe is None else np.ascontiguousarray(np.swapaxes(scan.probe, -2, -1)),
    )
