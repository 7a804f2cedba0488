"""Tilt angles and pixel size in the extended headers of MRC files: FEI's (old and new) and SerialEM's.

FEI: 1024 records of 32 float32, word 0 the tilt in degrees, word 11 the pixel size in metres (as etspy and IMOD's
``extracttilts`` read them). FEI1: 768 bytes and more a record, by the dtype that mrcfile has. SerialEM: short integers
as the bits of ``nreal`` say, tilt in 1/100 degree (https://bio3d.colorado.edu/imod/doc/mrc_format.txt).
"""

import dataclasses
from pathlib import Path

import numpy as np
from mrcfile.dtypes import get_ext_header_dtype
from numpy.typing import NDArray

FEI_WORDS = 32
FEI_RECORDS = 1024
MOST_TILT = 180.0


@dataclasses.dataclass(frozen=True, eq=False)
class Extended:
    """What an extended header says: ``tilts`` in degrees or None, ``pixel_size`` in Å or None, and of which kind."""

    tilts: NDArray[np.float64] | None
    pixel_size: float | None
    kind: str


NOTHING = Extended(None, None, "")


def read_extended(path: Path) -> Extended:
    """What the extended header of an MRC file says about its views; `NOTHING` where it is of no kind known here."""
    with path.open("rb") as file:
        head = file.read(1024)
        order = "<" if head[212:213] != b"\x11" else ">"
        sections, size = (int(np.frombuffer(head, order + "i4", 1, offset=at)[0]) for at in (8, 92))
        if sections < 1 or size < 1 or size > path.stat().st_size:
            return NOTHING
        content = file.read(min(size, 2**26))
    kind = head[104:108]
    if kind in (b"FEI1", b"FEI2"):
        return _new_fei(content, sections, kind, order)
    labelled = b"Fei Company" in head[224:1024]
    if labelled and len(content) >= 4 * FEI_WORDS * min(sections, FEI_RECORDS) and sections <= FEI_RECORDS:
        table = np.frombuffer(content, order + "f4", sections * FEI_WORDS).reshape(sections, FEI_WORDS)
        return _checked(table[:, 0], table[0, 11], "FEI extended header")
    if kind in (b"SERI", b"\0\0\0\0", b"    "):
        return _serial_em(head, content, sections, order)
    return NOTHING


def _new_fei(content: bytes, sections: int, kind: bytes, order: str) -> Extended:
    record = get_ext_header_dtype(kind, order)
    if len(content) < sections * record.itemsize:
        return NOTHING
    table = np.frombuffer(content, record, sections)
    return _checked(table["Alpha tilt"], table["Pixel size X"][0], f"{kind.decode()} extended header")


def _serial_em(head: bytes, content: bytes, sections: int, order: str) -> Extended:
    """Bit 1 of ``nreal``: a short integer with the tilt comes first."""
    each, flags = (int(value) for value in np.frombuffer(head, order + "i2", 2, offset=128))
    if not (flags & 1 and 2 <= each <= 1024 and each % 2 == 0 and 0 < flags < 64 and len(content) >= each * sections):
        return NOTHING
    table = np.frombuffer(content, order + "i2", each // 2 * sections).reshape(sections, each // 2)
    return _checked(table[:, 0] / 100, 0.0, "SerialEM extended header")


def _checked(tilts: NDArray, metres: float, kind: str) -> Extended:
    """Angles that are none, or all 0 (never filled in), are none."""
    angles = np.asarray(tilts, np.float64)
    good = np.isfinite(angles).all() and angles.any() and np.abs(angles).max() <= MOST_TILT
    usable = np.isfinite(metres) and 1e-12 < metres < 1e-3
    return Extended(angles if good else None, float(f"{float(metres) * 1e10:.6g}") if usable else None, kind)
