"""What a reader of one format hands over before the user's word is put on top and all is checked."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.damage import refuse_too_large
from dtomo.io.hdf5_files import node, number
from dtomo.io.ptycho.arranged import LEAST_PIXELS
from dtomo.io.sources import Source
from dtomo.io.units import usable

PLANCK_LIGHT = 1.986445857148928e-25
"""Planck's constant times the speed of light, joule metres (exact in the SI)."""
KEV = 1.602176634e-16
"""Joules."""
MOST_POSITIONS = 10**8
"""More than any scan has."""
MOST_COUNTS = 1e30
"""More than any detector counts."""
MOST_PIXELS = 2**27
"""Of a frame: more than any detector has."""
PLAUSIBLE = {
    "wavelength": (1e-13, 1e-2, "--energy in keV"),
    "distance": (1e-9, 1e5, "--distance in mm"),
    "detector_pixel": (1e-10, 1.0, "--pixel-size in µm"),
}
"""Least and largest lengths in metres that there are, and the option that says otherwise."""


@dataclasses.dataclass
class PtychoReading:
    """A scan as its file has it; lengths in metres.

    Attributes
    ----------
    frames
        As stored.
    positions
        ``(frame, 2)``, row and column, of what `motion` says; None if the file has none.
    position_unit
        A length or pixels, as the file spells it; None: it does not say.
    motion
        What moves by `positions`: ``"probe"`` or ``"sample"``.
    center
        Where frequency zero is: ``"middle"`` or ``"corner"``.
    mask, background, probe
        Good pixels, counts without beam ``(row, column)``, first guess ``(mode, row, column)``, as stored.
    directions
        Unit vectors (x, y, z) of a step by a row and by a column of the detector, ``(3, 2)``.
    unfit
        What has the name of positions but not one for each frame, in words.
    """

    path: Path
    format: str
    frames: Source
    positions: NDArray[np.float64] | None = None
    position_unit: str | None = None
    motion: str = "probe"
    center: str = "middle"
    mask: NDArray[np.bool_] | None = None
    background: NDArray[np.float64] | None = None
    probe: NDArray[np.complex64] | None = None
    intensities: NDArray[np.float64] | None = None
    wavelength: float | None = None
    distance: float | None = None
    detector_pixel: tuple[float, float] | None = None
    directions: NDArray[np.float64] | None = None
    near_field: bool = False
    source_distance: float | None = None
    unfit: str | None = None
    found: dict[str, str] = dataclasses.field(default_factory=dict)
    warnings: list[str] = dataclasses.field(default_factory=list)
    inputs: list[Path] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        count, rows, columns = self.frames.shape
        where, shape = self.frames.location, f"{count} frames of {rows} × {columns}"
        if rows * columns > MOST_PIXELS or 2 * count > MOST_POSITIONS:
            raise UserError(f"{where} declares {shape} pixels, more than any scan has; name the frames (--dataset)")
        if min(rows, columns) < LEAST_PIXELS:
            raise UserError(
                f"{where} has {shape} pixels, which are no patterns: {LEAST_PIXELS} × {LEAST_PIXELS} are the least; "
                "name the frames (--dataset)"
            )

    def put(self, what: str, value: Any, where: str) -> None:
        """Note a value and where it was found."""
        setattr(self, what, value)
        self.found[what] = where


def check_lengths(reading: PtychoReading) -> None:
    """Refuse lengths that cannot be: mostly they are in another unit.

    Raises
    ------
    UserError
        Naming where such a length was found, and the option that says otherwise.
    """
    for name, (least, most, option) in PLAUSIBLE.items():
        value = getattr(reading, name)
        for length in value if isinstance(value, tuple) else () if value is None else (value,):
            if not least <= length <= most:
                energy = f" ({energy_of(length):.3g} keV)" if name == "wavelength" and length > 0 else ""
                raise UserError(
                    f"{reading.found[name]}: a {name.replace('_', ' ')} of {length:.3g} m{energy} cannot be: correct "
                    f"its unit, or give {option}"
                )


def wavelength_of(energy: float) -> float:
    """Metres, of photons of `energy` keV."""
    return PLANCK_LIGHT / (energy * KEV)


def energy_of(wavelength: float) -> float:
    """keV, of photons of `wavelength` metres."""
    return PLANCK_LIGHT / (wavelength * KEV)


def small_array(file: h5py.Group, name: str, where: str, *, kinds: str = "uif") -> NDArray[Any] | None:
    """An array that is no stack of frames, read whole; None if it is absent or empty.

    Raises
    ------
    UserError
        Other things than numbers (`kinds` of dtypes), or more than any scan has.
    """
    data = node(file, name)
    if not isinstance(data, h5py.Dataset) or data.shape is None or not data.size:
        return None
    if data.dtype.kind not in kinds:
        raise UserError(f"{where} holds {data.dtype}, where numbers were expected")
    if data.size > MOST_POSITIONS:
        raise UserError(f"{where} has shape {data.shape}, which is more than any scan has of it")
    refuse_too_large(where, data.shape, data.dtype.itemsize)
    return np.asarray(data[()])


def stated(file: h5py.Group, name: str, warnings: list[str] | None = None) -> float | None:
    """A positive number; None if absent or not usable, which is noted if there are `warnings`."""
    value = number(file, name)
    if value is not None and usable(value[0]) and math.isfinite(value[0]):
        return value[0]
    if warnings is not None and isinstance(node(file, name), h5py.Dataset):
        said = "one positive number was expected" if value is None else f"it is {value[0]:g}, not a positive number"
        warnings.append(f"{file.file.filename}:/{name.lstrip('/')} is not used: {said}")
    return None
