"""EM files, the volumes of TOM, AV3 and PyTom: a header of 512 bytes, then voxels with x fastest.

Format: the header of the EM program system as the TOM toolbox keeps it (S. Nickell et al., "TOM software toolbox",
J. Struct. Biol. 149 (2005) 227): machine (byte 0), type of the voxels (byte 3), three sizes, a comment of 80 bytes,
40 parameters and 256 bytes for the user.
"""

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError

HEADER_BYTES = 512
_TYPES = {1: "int8", 2: "int16", 4: "int32", 5: "float32", 8: "complex64", 9: "float64"}
_CODES = {name: code for code, name in _TYPES.items()}
_STORED = {name: name for name in _CODES} | {"uint8": "int16", "uint16": "int32", "float16": "float32"}
_ORDERS = {0: ">", 1: "<", 2: ">", 3: ">", 4: ">", 5: ">", 6: "<"}
"""Byte order by machine: OS-9, VAX, Convex, SGI, Sun, Mac, PC."""
_PC, _MAC = 6, 5


@dataclasses.dataclass(frozen=True)
class EmHeader:
    """What an EM header says beside sizes and types: kept when a file is written again.

    Attributes
    ----------
    flags
        Bytes 1 and 2.
    comment
        80 bytes, as they are.
    parameters
        40 whole numbers; the 19th is the tilt angle × 1000.
    user
        256 bytes, as they are.
    """

    flags: bytes = b"\0\0"
    comment: bytes = b"\0" * 80
    parameters: tuple[int, ...] = (0,) * 40
    user: bytes = b"\0" * 256


@dataclasses.dataclass(frozen=True)
class EmLayout:
    """What a header says: dtype in the file, shape (z, y, x), header, byte order ("<" or ">")."""

    stored: np.dtype[Any]
    shape: tuple[int, int, int]
    header: EmHeader
    order: str


def looks_like_em(path: Path) -> bool:
    """Whether a file has an EM header whose sizes are those of the file (``.em``: or at least a header)."""
    with open(path, "rb") as file:
        head = file.read(HEADER_BYTES)
    if len(head) < HEADER_BYTES or head[3] not in _TYPES:
        return False
    sizes = (_needed(head, order) == path.stat().st_size for order in "<>")
    return (path.suffix.lower() == ".em" and head[0] in _ORDERS) or any(sizes)


def read_em_header(path: Path) -> EmLayout:
    """Describe an EM file; the voxels stay on disk. See `em_layout`."""
    with open(path, "rb") as file:
        head = file.read(HEADER_BYTES)
    return em_layout(head, path.stat().st_size, str(path))


def em_layout(head: bytes, size: int, where: str) -> EmLayout:
    """What a header says; the byte order is the machine's, unless only the other one fits the size of the file.

    Parameters
    ----------
    head
        The file, or at least its first 512 bytes.
    size
        Of the whole file, in bytes.
    where
        Its name, for messages.

    Raises
    ------
    UserError
        Not EM, truncated, or of a type EM does not know.
    """
    if len(head) < HEADER_BYTES:
        raise UserError(f"{where} is truncated: {len(head)} bytes, but the header of an EM file has {HEADER_BYTES}")
    if head[3] not in _TYPES:
        known = ", ".join(f"{code} ({name})" for code, name in _TYPES.items())
        raise UserError(f"{where} is no EM file dtomo reads: its voxels have type {head[3]}, known are {known}")
    order = _ORDERS.get(head[0], "<")
    other = "<" if order == ">" else ">"
    if _needed(head, order) != size and _needed(head, other) == size:
        order = other
    shape, needed = _shape(head, order), _needed(head, order)
    if needed is None:
        raise UserError(f"{where} is no EM file: its header gives the sizes {shape} (z, y, x)")
    if size < needed:
        raise UserError(f"{where} is truncated: {size} bytes where its header asks for {needed}; copy it again")
    return EmLayout(np.dtype(_TYPES[head[3]]).newbyteorder(_byte_order(order)), shape, _header(head, order), order)


def read_em(path: str | os.PathLike[str]) -> tuple[NDArray[Any], EmHeader]:
    """A whole EM file: voxels ``(z, y, x)`` in the byte order of this machine, and its header.

    Raises
    ------
    UserError
        See `read_em_header`; or there is no such file.
    """
    if not os.path.isfile(path):
        raise UserError(f"there is no file {path}")
    found = read_em_header(Path(path))
    values = np.fromfile(path, found.stored, math.prod(found.shape), offset=HEADER_BYTES)
    return values.reshape(found.shape).astype(found.stored.newbyteorder("="), copy=False), found.header


def write_em(
    path: str | os.PathLike[str], volume: NDArray[Any], header: EmHeader | None = None, *, order: str = "<"
) -> None:
    """Write a whole volume ``(z, y, x)``; what was there is replaced once the new file is whole.

    Parameters
    ----------
    header
        Of the file it comes from; None: an empty one.
    order
        "<" as PCs write (machine 6), ">" as Macs did (machine 5).

    Raises
    ------
    UserError
        Not three axes, or a dtype EM has no type for.
    """
    target = Path(path)
    content = em_bytes(target, volume, header, order=order)
    part = target.with_name(target.name + ".part")
    part.write_bytes(content)
    os.replace(part, target)


def em_bytes(path: Path, volume: NDArray[Any], header: EmHeader | None = None, *, order: str = "<") -> bytes:
    """A whole EM file as `write_em` writes it; `path` is for messages."""
    if volume.ndim != 3:
        raise UserError(f"{path}: an EM file holds a volume (z, y, x), not an array of shape {volume.shape}")
    stored = em_dtype(path, volume.dtype)
    head = _packed(volume.shape, stored, header or EmHeader(), order)
    return head + np.ascontiguousarray(volume, stored.newbyteorder(_byte_order(order))).tobytes()


def em_dtype(path: Path, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype EM stores voxels in (uint8 as int16, uint16 as int32, float16 as float32); UserError if none."""
    if dtype.name not in _STORED:
        raise UserError(f"{path}: EM has no type for {dtype}; write OME-Zarr, or convert to float32")
    return np.dtype(_STORED[dtype.name])


def create_em(path: Path, shape: Sequence[int], dtype: np.dtype[Any]) -> tuple[int, np.dtype[Any]]:
    """An EM file of the full size with its header; the data are holes, to be filled by ``pwrite``.

    Returns
    -------
    tuple
        Offset of the data in bytes, and the dtype they are stored in.

    Raises
    ------
    UserError
        A dtype EM has no type for.
    """
    stored = em_dtype(path, dtype)
    with open(path, "wb") as raw:
        raw.write(_packed(shape, stored, EmHeader(), "<"))
        raw.truncate(HEADER_BYTES + math.prod(shape) * stored.itemsize)
    return HEADER_BYTES, stored


def copy_em_header(source: Path, target: Path) -> None:
    """Give an EM file the flags, comment, parameters and user's bytes of another one."""
    own = read_em_header(target)
    header = read_em_header(source).header
    with open(target, "r+b") as file:
        file.write(_packed(own.shape, own.stored, header, own.order))


def _byte_order(order: str) -> Literal["<", ">"]:
    return ">" if order == ">" else "<"


def _shape(head: bytes, order: str) -> tuple[int, int, int]:
    x, y, z = np.frombuffer(head, order + "i4", 3, offset=4).tolist()
    return z, y, x


def _needed(head: bytes, order: str) -> int | None:
    """Bytes of a whole file; None if a size is not positive."""
    shape = _shape(head, order)
    return HEADER_BYTES + math.prod(shape) * np.dtype(_TYPES[head[3]]).itemsize if min(shape) > 0 else None


def _header(head: bytes, order: str) -> EmHeader:
    parameters = tuple(np.frombuffer(head, order + "i4", 40, offset=96).tolist())
    return EmHeader(head[1:3], head[16:96], parameters, head[256:512])


def _packed(shape: Sequence[int], stored: np.dtype[Any], header: EmHeader, order: str) -> bytes:
    machine = _PC if order == "<" else _MAC
    z, y, x = shape
    return b"".join(
        (
            bytes([machine]) + header.flags + bytes([_CODES[stored.name]]),
            np.array([x, y, z], order + "i4").tobytes(),
            header.comment,
            np.array(header.parameters, order + "i4").tobytes(),
            header.user,
        )
    )
