"""NumPy archives of a scan: ``data``, ``scan`` and ``probe``, as Tike has them (frequency zero at [0, 0])."""

import contextlib
import dataclasses
import tokenize
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.damage import explained, refuse_too_large
from dtomo.io.ptycho.reading import PtychoReading
from dtomo.io.sources import ArraySource, FrameStack, Source, check_frames

FRAMES, POSITIONS, PROBE = "data", "scan", "probe"


@dataclasses.dataclass(frozen=True)
class MemberSource(FrameStack):
    """An array that is stored uncompressed in a NumPy archive, `offset` bytes from the archive's beginning."""

    path: Path
    member: str
    offset: int
    stored: str
    whole: tuple[int, ...]
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]

    @property
    def location(self) -> str:
        """``path:/member``"""
        return f"{self.path}:/{self.member}"

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        """The memory-mapped array."""
        array = np.memmap(self.path, np.dtype(self.stored), mode="r", offset=self.offset, shape=self.whole)
        yield array.reshape(self.shape)


def read_npz(path: Path, dataset: str | None = None) -> PtychoReading:
    """A NumPy archive: frames (also with axes of length 1 before them), positions in object pixels, a first probe.

    Parameters
    ----------
    path
        The archive.
    dataset
        Name of the frames; default: `FRAMES`.

    Raises
    ------
    UserError
        No archive, or arrays that are missing or no such thing.
    """
    with _opened(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        frames = (dataset or FRAMES).strip("/")
        if frames not in names:
            raise UserError(f"{path} has no array {frames} of frames; it has {', '.join(names[:8]) or 'none'}")
        source = _source(archive, path, frames)
        reading = PtychoReading(path, "npz", source, center="corner", inputs=[path])
        reading.found["frames"] = f"{path}:/{frames}"
        if POSITIONS in names:
            positions = _array(archive, path, POSITIONS)
            shape = (source.shape[0], 2)
            if positions.size != 2 * shape[0] or positions.shape[-1] != 2 or positions.dtype.kind not in "iuf":
                raise UserError(f"{path}:/{POSITIONS} has shape {positions.shape}; {shape} was expected for the frames")
            reading.put("positions", positions.reshape(shape).astype(np.float64), f"{path}:/{POSITIONS}")
            reading.position_unit = "pixels"
        if PROBE in names:
            probe = _array(archive, path, PROBE)
            if probe.ndim >= 2 and probe.dtype.kind == "c":
                found = probe.reshape(-1, *probe.shape[-2:]).astype(np.complex64)
                reading.put("probe", found, f"{path}:/{PROBE}")
    return reading


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with explained(str(path)), zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, EOFError) as error:
        reason = str(error) or "it ends too early"
        raise UserError(f"{path} cannot be read as a NumPy archive ({reason}); it is truncated or damaged") from error


def _header(archive: zipfile.ZipFile, path: Path, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, order, dtype and length of the header of a member."""
    with archive.open(f"{name}.npy") as member:
        try:
            version = np.lib.format.read_magic(member)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(member)
        except (SyntaxError, tokenize.TokenError) as error:  # NumPy parses the header as Python
            raise UserError(f"{path}:/{name} cannot be read (its header is damaged)") from error
        if dtype.hasobject:
            raise UserError(f"{path}:/{name} holds Python objects, which are not read; save it as numbers")
        return shape, fortran, dtype, member.tell()


def _array(archive: zipfile.ZipFile, path: Path, name: str) -> NDArray[Any]:
    shape, _, dtype, _ = _header(archive, path, name)
    refuse_too_large(f"{path}:/{name}", shape, dtype.itemsize)
    with archive.open(f"{name}.npy") as member:
        return np.asarray(np.lib.format.read_array(member, allow_pickle=False))


def _source(archive: zipfile.ZipFile, path: Path, name: str) -> Source:
    shape, fortran, dtype, header = _header(archive, path, name)
    leading = int(np.prod(shape[:-3])) if len(shape) > 3 else 1
    three = tuple(shape[-3:]) if leading == 1 else tuple(shape)
    check_frames(three, dtype, f"{path}:/{name}")
    rows = (three[0], three[1], three[2])
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type == zipfile.ZIP_STORED and not fortran:
        return MemberSource(
            path, name, _data_start(path, info) + header, dtype.str, shape, rows, dtype.newbyteorder("=")
        )
    return ArraySource(_array(archive, path, name).reshape(rows), f"{path}:/{name}")


def _data_start(path: Path, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin: behind its local header, whose last two lengths are of a name and of extras."""
    with path.open("rb") as file:
        file.seek(info.header_offset + 26)
        lengths = file.read(4)
    return info.header_offset + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
