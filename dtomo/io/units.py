"""Units as files spell them, brought to dtomo's: micrometres, millimetres, keV, degrees."""

import math

from dtomo.errors import UserError

_LENGTHS = {  # in metres
    "m": 1.0, "meter": 1.0, "metre": 1.0, "meters": 1.0, "metres": 1.0,
    "cm": 1e-2, "centimeter": 1e-2, "centimetre": 1e-2, "centimeters": 1e-2, "centimetres": 1e-2,
    "mm": 1e-3, "millimeter": 1e-3, "millimetre": 1e-3, "millimeters": 1e-3, "millimetres": 1e-3,
    "um": 1e-6, "µm": 1e-6, "μm": 1e-6, "micron": 1e-6, "microns": 1e-6,
    "micrometer": 1e-6, "micrometre": 1e-6, "micrometers": 1e-6, "micrometres": 1e-6,
    "nm": 1e-9, "nanometer": 1e-9, "nanometre": 1e-9, "nanometers": 1e-9, "nanometres": 1e-9,
    "a": 1e-10, "å": 1e-10, "angstrom": 1e-10, "angstroms": 1e-10, "ångström": 1e-10,
    "pm": 1e-12, "picometer": 1e-12,
}  # fmt: skip
_ENERGIES = {"ev": 1e-3, "kev": 1.0, "mev": 1e3, "gev": 1e6}  # in keV
_DEGREES = {"deg", "degree", "degrees", "°", "degs"}
_RADIANS = {"rad", "rads", "radian", "radians"}


def length_factor(unit: str, to: str) -> float | None:
    """Factor from length `unit` to length `to`; None if `unit` is not a length we know."""
    known = _LENGTHS.get(unit.strip().lower())
    if known is None:
        return None
    return float(f"{known / _LENGTHS[to]:.12g}")


def convert_length(value: float, unit: str, to: str, where: str) -> float:
    """A length in unit `to` (rounded to 12 digits); UserError if the unit is unknown, naming `where`."""
    factor = length_factor(unit, to)
    if factor is None:
        raise UserError(f"{where} has the unit {unit!r}, which is not a length dtomo knows; give the value yourself")
    return float(f"{value * factor:.12g}")


def convert_energy(value: float, unit: str, where: str) -> float:
    """An energy in keV; UserError if the unit is unknown, naming `where`."""
    factor = _ENERGIES.get(unit.strip().lower())
    if factor is None:
        raise UserError(f"{where} has the unit {unit!r}, which is not an energy dtomo knows; give the value yourself")
    return float(f"{value * factor:.12g}")


def angle_unit(unit: str | None, where: str) -> str | None:
    """``"degrees"``, ``"radians"`` or None (no unit given); UserError for anything else."""
    word = (unit or "").strip().lower()
    if word in ("", "unknown", "none"):
        return None
    if word in _DEGREES:
        return "degrees"
    if word in _RADIANS:
        return "radians"
    raise UserError(
        f"{where} has the unit {unit!r}, expected degrees or radians; state it with angle_unit (--angle-unit)"
    )


def usable(value: float | None) -> bool:
    """Whether a length or energy found in a file can be meant: positive and finite."""
    return value is not None and math.isfinite(value) and value > 0
