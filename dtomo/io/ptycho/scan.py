"""A ptychographic scan as a value: frames on disk, positions of the probe, geometry."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.ptycho.arranged import ArrangedFrames
from dtomo.io.ptycho.reading import energy_of
from dtomo.io.sources import Frames, frame_index

_REPLACEABLE = (
    *("positions", "position_unit", "wavelength", "distance", "detector_pixel", "background", "probe", "intensities"),
    *("saturation", "near_field", "magnification", "directions"),
)


@dataclasses.dataclass(frozen=True, eq=False)
class PtychoScan:
    """Diffraction frames with their positions and metadata; immutable, small, safe to send to other processes.

    Attributes
    ----------
    path, format
        Where it was opened and what it is: "cxi", "ptyd", "hdf5" or "npz".
    frames
        A `Source` ``(frame, row, column)`` in detector order (frequency zero at row N // 2, column N // 2), with the
        flips, the crop and the checks that were asked for; the dtype is the one stored.
    positions
        Of the probe on the object ``(frame, 2)``, row and column, float64, in `position_unit`.
    position_unit
        ``"m"`` or ``"pixels"`` (of the object).
    wavelength, distance
        Of the light; from sample to detector; metres, or None.
    detector_pixel
        Height and width of a pixel of the frames, metres, or None.
    mask
        Good pixels of the frames ``(row, column)``; None: all.
    background
        Counts without beam ``(row, column)``, detector order, or None.
    probe
        First guess ``(mode, row, column)``, complex64, or None.
    intensities
        Relative intensity of the beam at each frame, float64 ``(frame,)``, or None.
    saturation
        Counts at which the detector stops counting, or None.
    near_field
        Frames are (magnified) images of the exit wave, not its Fourier transform.
    magnification
        Of the near field by a diverging beam: (z₁ + z₂) / z₁ with z₁ from source to sample and z₂ to the detector.
    directions
        Unit vectors (x, y, z) in the laboratory of a step by a row and by a column of the object, ``(3, 2)``, or None.
    found
        What -> where it was found.
    warnings
        Sentences for the user.
    inputs
        Every file read, so that none is written over.

    Raises
    ------
    UserError
        Shapes that do not fit, positions that are not finite.
    """

    path: Path
    format: str
    frames: ArrangedFrames
    positions: NDArray[np.float64]
    position_unit: str
    wavelength: float | None = None
    distance: float | None = None
    detector_pixel: tuple[float, float] | None = None
    mask: NDArray[np.bool_] | None = None
    background: NDArray[np.float64] | None = None
    probe: NDArray[np.complex64] | None = None
    intensities: NDArray[np.float64] | None = None
    saturation: float | None = None
    near_field: bool = False
    magnification: float = 1.0
    directions: NDArray[np.float64] | None = None
    found: dict[str, str] = dataclasses.field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    inputs: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        count, rows, columns = self.shape
        positions = np.array(self.positions, np.float64)
        positions.flags.writeable = False
        object.__setattr__(self, "positions", positions)
        if positions.shape != (count, 2):
            raise UserError(
                f"{self.path} has {count} frames but positions of shape {positions.shape}; one row and column per "
                "frame was expected"
            )
        if not np.isfinite(positions).all():
            bad = int(np.argmin(np.isfinite(positions).all(1)))
            raise UserError(
                f"position number {bad} of {self.path} is not a finite number; correct it or leave that frame out"
            )
        if self.position_unit not in ("m", "pixels"):
            raise UserError(f"positions are in m or in pixels here, not in {self.position_unit!r}")
        for name, array, shape in (
            ("mask", self.mask, (rows, columns)),
            ("background", self.background, (rows, columns)),
            ("intensities", self.intensities, (count,)),
        ):
            if array is not None and array.shape != shape:
                raise UserError(f"the {name} of {self.path} has shape {array.shape}; {shape} was expected")
        if self.mask is not None and not self.mask.any():
            raise UserError(f"the mask of {self.path} leaves no good pixel; is it inverted? True means good")
        if self.probe is not None and (self.probe.ndim != 3 or self.probe.shape[1:] != (rows, columns)):
            raise UserError(
                f"the probe of {self.path} has shape {self.probe.shape}; (modes, {rows}, {columns}) was expected"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(frame, row, column)"""
        return self.frames.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the counts, as stored"""
        return self.frames.dtype

    @property
    def energy(self) -> float | None:
        """Of the photons, keV; None if the wavelength is not known."""
        return None if self.wavelength is None else energy_of(self.wavelength)

    @property
    def object_pixel_size(self) -> tuple[float, float] | None:
        """Height and width of an object pixel in metres; None where the file and the user do not say enough.

        In the far field wavelength · distance / (N · detector pixel), N being the rows (columns) of a frame; in the
        near field detector pixel / magnification.
        """
        if self.detector_pixel is None:
            return None
        if self.near_field:
            height, width = (size / self.magnification for size in self.detector_pixel)
            return height, width
        if self.wavelength is None or self.distance is None:
            return None
        light = self.wavelength * self.distance
        height, width = (light / (count * size) for count, size in zip(self.shape[1:], self.detector_pixel))
        return height, width

    @property
    def object_basis(self) -> NDArray[np.float64] | None:
        """Metres (x, y, z) in the laboratory per row and per column of the object ``(3, 2)``; None if not known."""
        if self.directions is None or self.object_pixel_size is None:
            return None
        return self.directions * np.array(self.object_pixel_size)

    def positions_in_pixels(self) -> NDArray[np.float64]:
        """Row and column in object pixels ``(frame, 2)``, float64.

        Raises
        ------
        UserError
            They are in metres, and the size of an object pixel is not known.
        """
        if self.position_unit == "pixels":
            return self.positions.copy()
        size = self.object_pixel_size
        if size is None:
            needed = ("wavelength", "distance", "detector_pixel")
            missing = [name for name in needed if getattr(self, name) is None]
            raise UserError(
                f"the positions of {self.path} are lengths; for its pixels {', '.join(missing)} must be given, too "
                "(--energy, --distance, --pixel-size), or positions in pixels"
            )
        return self.positions / np.array(size)

    def read(self, indices: Frames = slice(None)) -> NDArray[Any]:
        """Frames into memory, in detector order, in the dtype stored; 0 where the mask has no pixel.

        Raises
        ------
        UserError
            Frames that do not exist, cannot be read, or hold no counts in good pixels.
        """
        return self.frames.read(indices)

    def select(self, frames: Frames) -> "PtychoScan":
        """Some frames: indices, a slice or a mask."""
        index = frame_index(frames, self.shape[0], str(self.path))
        if not index.size:
            raise UserError(f"no frame of {self.path} is left; it has {self.shape[0]}")
        return dataclasses.replace(
            self,
            frames=self.frames.select(index),
            positions=self.positions[index],
            intensities=None if self.intensities is None else self.intensities[index],
        )

    def reoriented(
        self, *, swap_axes: bool = False, flip_rows: bool = False, flip_columns: bool = False
    ) -> "PtychoScan":
        """The same with its positions turned over: rows and columns swapped first, then each negated."""
        positions = self.positions[:, ::-1] if swap_axes else self.positions
        sign = np.array([-1.0 if flip_rows else 1.0, -1.0 if flip_columns else 1.0])
        directions = self.directions
        if directions is not None:
            directions = (directions[:, ::-1] if swap_axes else directions) * sign
        return dataclasses.replace(self, positions=positions * sign, directions=directions)

    def replace(self, **changes: Any) -> "PtychoScan":
        """The user's word over the file's; names and units are those of the attributes.

        Raises
        ------
        UserError
            A name that cannot be replaced, or values that do not fit.
        """
        unknown = set(changes) - set(_REPLACEABLE)
        if unknown:
            raise UserError(f"a scan has no {sorted(unknown)[0]!r} to replace; possible are {', '.join(_REPLACEABLE)}")
        found = self.found | dict.fromkeys(changes, "given")
        return dataclasses.replace(self, **changes, found=found)
