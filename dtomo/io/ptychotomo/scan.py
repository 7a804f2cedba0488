"""A joint scan as a value: frames of all angles on disk, positions of the probe in images of one size, geometry."""

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError
from dtomo.io.sources import SelectedFrames, Source

SAME_ANGLE = 1e-3
"""Degrees between angles that are the same."""


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
        if self.angles.ndim != 1:
            raise UserError(f"{self.path}: angles have shape {self.angles.shape}; one number for each was expected")
        for name, values in (("positions", self.positions), ("angles", self.angles)):
            if not np.isfinite(values).all():
                raise UserError(f"{self.path}: not all {name} are finite numbers; correct them or leave those out")
        if len(self.angles) < 2:
            raise UserError(f"{self.path}: a volume takes frames at two angles at least; there is {len(self.angles)}")
        check_views(self.angles, str(self.path))
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

    def select(self, angles: ArrayLike) -> "PtychotomoScan":
        """Some of the angles, by their numbers, in this order; frames keep theirs.

        Raises
        ------
        UserError
            Numbers that do not exist or are there twice.
        """
        chosen = np.asarray(angles)
        if chosen.dtype == bool:
            chosen = np.flatnonzero(chosen)
        there = chosen.dtype.kind in "ui" and chosen.ndim == 1 and ((chosen >= 0) & (chosen < len(self.angles))).all()
        if not there or len(np.unique(chosen)) != len(chosen):
            raise UserError(f"{self.path} has angles 0 to {len(self.angles) - 1}; give some of them, each once")
        numbers = np.full(len(self.angles), -1)
        numbers[chosen] = np.arange(len(chosen))
        return self._of(np.flatnonzero(numbers[self.angle_of_frame] >= 0), numbers, self.angles[chosen])

    def crop(self, first: int, stop: int) -> "PtychotomoScan":
        """Only some rows of images and volume, and the frames that lie wholly within them.

        Parameters
        ----------
        first, stop
            The first row, and the one after the last.

        Raises
        ------
        UserError
            No such rows, or no frames within them at two angles at least.
        """
        rows, columns = self.image_shape
        if not 0 <= first < stop <= rows:
            raise UserError(f"the images of {self.path} have rows 0 to {rows - 1}; there are no rows {first} to {stop}")
        down = self.positions[:, 0]
        kept = np.flatnonzero((down >= first) & (down <= stop - self.shape[1]))
        there = np.unique(self.angle_of_frame[kept])
        if len(there) < 2:
            raise UserError(
                f"rows {first} to {stop} of {self.path} hold whole frames of {len(there)} angles, where two are the "
                f"least; frames have {self.shape[1]} rows"
            )
        numbers = np.full(len(self.angles), -1)
        numbers[there] = np.arange(len(there))
        found = self._of(kept, numbers, self.angles[there])
        positions = found.positions - (first, 0)
        return dataclasses.replace(found, positions=positions, image_shape=(stop - first, columns))

    def _of(self, kept: NDArray[np.int64], numbers: NDArray[np.int64], angles: NDArray[np.float64]) -> "PtychotomoScan":
        return dataclasses.replace(
            self,
            frames=SelectedFrames.of(self.frames, kept),
            positions=self.positions[kept],
            angle_of_frame=numbers[self.angle_of_frame[kept]],
            angles=angles,
        )


def check_views(angles: NDArray[np.float64], where: str) -> None:
    """Refuse angles that show an object from one side alone.

    Parameters
    ----------
    angles
        Degrees, at least one.
    where
        That they are of, for the sentence.

    Raises
    ------
    UserError
        They are all the same, or half a turn apart.
    """
    if np.ptp(np.mod(angles - angles[0] + 90, 180)) < SAME_ANGLE:
        raise UserError(
            f"{where}: all {len(angles)} angles are {angles[0]:g} degrees, or half a turn from it; a volume takes "
            "views from several sides: give the right angles (--angles FILE)"
        )
