"""A joint scan as a value: frames of all angles on disk, positions of the probe in images of one size, geometry."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.sources import Frames, Source


@dataclasses.dataclass(frozen=True, eq=False)
class PtychotomoScan:
    """Diffraction frames at many angles; immutable, small, safe to send to other processes.

    Attributes
    ----------
    path
        Where it was opened.
    frames
        A `Source` ``(frame, row, column)`` of all angles, in detector order (frequency zero at row N // 2, column
        N // 2).
    angles
        Degrees ``(angle,)``.
    angle_of_frame
        Number of each frame's angle, int64 ``(frame,)``.
    positions
        Row and column of pixel [0, 0] of the probe in the images, in pixels, float64 ``(frame, 2)``.
    image_shape
        Rows (along the rotation axis) and columns of the images of all angles.
    center
        Column of the rotation axis; None: the middle.
    mask
        Good pixels of the frames; None: all.
    background
        Counts without beam ``(row, column)``, detector order, or None.
    probe
        First guess ``(mode, row, column)``, complex64, or None.
    saturation
        Counts at which the detector stops counting, or None.
    pixel_size
        Of the images and the voxels, metres, or None.
    wavelength, distance
        Of the light; from sample to detector; metres, or None.
    warnings
        Sentences for the user.
    inputs
        Every file read.

    Raises
    ------
    UserError
        Shapes that do not fit, numbers that are not finite.
    """

    path: Path
    frames: Source
    angles: NDArray[np.float64]
    angle_of_frame: NDArray[np.int64]
    positions: NDArray[np.float64]
    image_shape: tuple[int, int]
    center: float | None = None
    mask: NDArray[np.bool_] | None = None
    background: NDArray[np.float64] | None = None
    probe: NDArray[np.complex64] | None = None
    saturation: float | None = None
    pixel_size: float | None = None
    wavelength: float | None = None
    distance: float | None = None
    warnings: tuple[str, ...] = ()
    inputs: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        count, rows, columns = self.frames.shape
        for name, array, shape in (
            ("positions", self.positions, (count, 2)),
            ("angle_of_frame", self.angle_of_frame, (count,)),
        ):
            if array.shape != shape:
                raise UserError(
                    f"{self.path} has {count} frames but {name} of shape {array.shape}; {shape} was expected"
                )
        for name, values in (("positions", self.positions), ("angles", self.angles)):
            if not np.isfinite(values).all():
                raise UserError(f"{self.path}: not all {name} are finite numbers; correct them or leave those out")
        if len(self.angles) < 2:
            raise UserError(f"{self.path}: a volume takes frames at two angles at least; there is {len(self.angles)}")
        if count and not (self.angle_of_frame.min() >= 0 and self.angle_of_frame.max() < len(self.angles)):
            raise UserError(f"{self.path}: angles of frames are numbers from 0 to {len(self.angles) - 1}")
        if self.mask is not None and (self.mask.shape != (rows, columns) or not self.mask.any()):
            raise UserError(
                f"the mask of {self.path} is of shape {self.mask.shape} with {int(self.mask.sum())} good pixels "
                f"(True); {(rows, columns)} with some good ones was expected"
            )
        if self.probe is not None and (self.probe.ndim != 3 or self.probe.shape[1:] != (rows, columns)):
            raise UserError(
                f"the probe of {self.path} has shape {self.probe.shape}; (modes, {rows}, {columns}) was expected"
            )
        room = np.array(self.image_shape) - (rows, columns)
        if count and ((room < 0).any() or (self.positions < -0.5).any() or (self.positions > room + 0.5).any()):
            raise UserError(f"{self.path}: some frames lie outside of the images of {tuple(self.image_shape)} pixels")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the frames."""
        return self.frames.shape

    @property
    def frames_per_angle(self) -> NDArray[np.int64]:
        """How many each angle has."""
        return np.bincount(self.angle_of_frame, minlength=len(self.angles))


@dataclasses.dataclass(frozen=True)
class TurnedFrames:
    """Frames seen from behind: frequencies of the opposite sign, as waves exp(-ikz) have them.

    Attributes
    ----------
    base
        In detector order.
    """

    base: Source

    @property
    def shape(self) -> tuple[int, int, int]:
        """(frame, row, column)"""
        return self.base.shape

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
        """As the base's, turned about the pixel of frequency zero."""
        return turned(self.base.read(frames))[:, rows, columns]


def turned(images: NDArray[Any]) -> NDArray[Any]:
    """Images ``(…, row, column)`` turned about row N // 2, column N // 2: frequency f is where -f was."""
    shifts = tuple(1 - size % 2 for size in images.shape[-2:])
    return np.roll(images[..., ::-1, ::-1], shifts, (-2, -1))
