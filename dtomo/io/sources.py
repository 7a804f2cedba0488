"""Where frames lie: small picklable descriptions that open their file inside ``read``.

A source stands for an array ``(frame, row, column)`` on disk. It carries a path and a name, never a handle
and never the frames, so that a task (or a whole Dask graph) that holds one stays small, and any process can
read it.
"""

import abc
import contextlib
import dataclasses
import re
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import h5py
import numpy as np
import zarr
from numpy.typing import NDArray

from dtomo.arrays import empty_aligned
from dtomo.errors import UserError
from dtomo.io.damage import explained, refuse_too_large
from dtomo.io.hdf5_files import open_hdf5, refuse_foreign_values

Frames = slice | Sequence[int] | NDArray[np.integer[Any]]
Run = tuple[int, int, int]


_PIECE = 16 * 2**20
"""Bytes read at once, on the way to where they belong."""


@runtime_checkable
class Source(Protocol):
    """What a scan needs of its frames."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(frame, row, column)"""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of what ``read`` returns: the raw counts, in native byte order"""
        ...

    @property
    def location(self) -> str:
        """Where it lies, for messages: ``"scan.h5:/exchange/data"``"""
        ...

    def read(
        self, frames: Frames = slice(None), rows: slice = slice(None), columns: slice = slice(None)
    ) -> NDArray[Any]:
        """Frames, rows and columns as a NumPy array ``(frame, row, column)`` of the raw dtype."""
        ...


def runs_of(index: NDArray[np.integer[Any]]) -> list[Run]:
    """An index array as few (start, stop, step) ranges, in order; each is read in one go."""
    runs: list[Run] = []
    index = np.asarray(index, np.int64)
    start = 0
    while start < len(index):
        stop = start + 1
        step = 1
        if stop < len(index) and index[stop] > index[start]:
            step = int(index[stop] - index[start])
            same = np.diff(index[start:]) == step
            stop = start + 1 + (len(same) if same.all() else int(np.argmin(same)))
        runs.append((int(index[start]), int(index[stop - 1]) + 1, step))
        start = stop
    return runs


def frame_index(frames: Frames, count: int, location: str) -> NDArray[np.int64]:
    """Frames asked for as indices 0 … count - 1; UserError naming the first that does not exist."""
    if isinstance(frames, slice):
        return np.arange(count, dtype=np.int64)[frames]
    index = np.asarray(frames)
    if index.dtype == bool:
        if index.shape != (count,):
            raise UserError(f"{location} has {count} frames but the mask has shape {index.shape}")
        return np.flatnonzero(index)
    if index.size == 0:
        return np.empty(0, np.int64)
    if index.ndim != 1 or index.dtype.kind not in "iu":
        raise UserError(f"frames of {location} are chosen by whole numbers, not {index.dtype} of shape {index.shape}")
    bad = index[(index < -count) | (index >= count)]
    if bad.size:
        raise UserError(f"{location} has {count} frames, there is no frame {int(bad[0])}")
    return np.where(index < 0, index + count, index).astype(np.int64)


class FrameStack(abc.ABC):
    """Common part of the sources: a subclass says how to open its file; reading is by runs of frames."""

    shape: tuple[int, int, int]
    dtype: np.dtype[Any]

    @property
    @abc.abstractmethod
    def location(self) -> str:
        """Where it lies, for messages."""

    @abc.abstractmethod
    def opened(self) -> contextlib.AbstractContextManager[Any]:
        """The open 3-D array, indexed by three slices."""

    def read(
        self, frames: Frames = slice(None), rows: slice = slice(None), columns: slice = slice(None)
    ) -> NDArray[Any]:
        """Frames, rows and columns as ``(frame, row, column)`` in native byte order.

        Only what is asked for is read where the file allows it: the rows of a band from an uncompressed file,
        whole chunks from a compressed one.

        Raises
        ------
        UserError
            A frame that does not exist, a file that is missing, truncated or damaged, or more than the memory
            holds.
        """
        runs = runs_of(frame_index(frames, self.shape[0], self.location))
        height = len(range(*rows.indices(self.shape[1])))
        width = len(range(*columns.indices(self.shape[2])))
        shape = (sum(len(range(*run)) for run in runs), height, width)
        if 0 in shape:
            return np.empty(shape, self.dtype)
        refuse_too_large(self.location, shape, self.dtype.itemsize)
        with explained(self.location), self.opened() as array:
            out = empty_aligned(shape, self.dtype)
            at, together = 0, _frames_together(array, out)
            for run in runs:
                part = range(*run)
                for first in range(0, len(part), together):
                    some = part[first : first + together]
                    out[at : at + len(some)] = array[some.start : some.stop : some.step, rows, columns]
                    at += len(some)
        return out


def _frames_together(array: Any, out: NDArray[Any]) -> int:
    """Frames to read at once, so that they are in memory twice only a few at a time; whole chunks of the file."""
    chunk = (getattr(array, "chunks", None) or (1,))[0]
    return max(chunk, _PIECE // max(out[0].nbytes, 1) // chunk * chunk)


@dataclasses.dataclass(frozen=True)
class HDF5Source(FrameStack):
    """A dataset of an HDF5 file; 2-D datasets count as one frame. Compressed files work (hdf5plugin)."""

    path: Path
    dataset: str
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]

    @property
    def location(self) -> str:
        """``path:/dataset``"""
        return f"{self.path}:{self.dataset}"

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        """The dataset, open for reading, whoever else has the file open."""
        with open_hdf5(self.path) as file:
            data = file[self.dataset]
            yield _OneFrame(data) if data.ndim == 2 else data


@dataclasses.dataclass(frozen=True)
class _OneFrame:
    """A 2-D array seen as one frame."""

    array: Any

    def __getitem__(self, key: tuple[slice, slice, slice]) -> NDArray[Any]:
        return np.asarray(self.array[key[1:]])[None][key[0]]


@dataclasses.dataclass(frozen=True)
class _Last3:
    """An array whose axes before the last three have length 1 (time, channel)."""

    array: Any

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """Of the last three axes."""
        chunks: tuple[int, ...] | None = getattr(self.array, "chunks", None)
        return chunks and chunks[-3:]

    def __getitem__(self, key: tuple[slice, slice, slice]) -> NDArray[Any]:
        return np.asarray(self.array[(0,) * (self.array.ndim - 3) + key])


@dataclasses.dataclass(frozen=True)
class ZarrSource(FrameStack):
    """An array of a local Zarr store (version 2 or 3); 2-D arrays count as one frame."""

    path: Path
    array: str
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]

    @property
    def location(self) -> str:
        """``path/array``"""
        return str(self.path / self.array)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        """The open Zarr array."""
        data = zarr.open_array(self.path / self.array, mode="r")
        yield _OneFrame(data) if data.ndim == 2 else _Last3(data) if data.ndim > 3 else data


@dataclasses.dataclass(frozen=True)
class MrcSource(FrameStack):
    """Sections of an MRC file from `offset` on.

    `stored` is the dtype in the file (with byte order); `signed_bytes` marks bytes stored with 128
    subtracted.
    """

    path: Path
    offset: int
    stored: str
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]
    signed_bytes: bool = False

    @property
    def location(self) -> str:
        """The file."""
        return str(self.path)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        """The memory-mapped sections."""
        data = np.memmap(self.path, np.dtype(self.stored), mode="r", offset=self.offset, shape=self.shape)
        yield _Shifted(data) if self.signed_bytes else data


@dataclasses.dataclass(frozen=True)
class _Shifted:
    """Bytes stored as value - 128, as IMOD's signed bytes are."""

    data: NDArray[np.int8]

    def __getitem__(self, key: Any) -> NDArray[np.uint8]:
        return np.asarray(self.data[key]).view(np.uint8) ^ np.uint8(0x80)


@dataclasses.dataclass(frozen=True, eq=False)
class ArraySource(FrameStack):
    """Frames held in memory; a 2-D array counts as one frame. Travels whole with every pickle."""

    array: NDArray[Any]
    name: str = "array in memory"

    def __post_init__(self) -> None:
        array = np.asarray(self.array)
        array = array[None] if array.ndim == 2 else array
        if array.ndim != 3 or array.dtype.kind not in "uifc":
            raise UserError(
                f"{self.name}: frames must be numbers of shape (frame, row, column) or (row, column), "
                f"not {array.dtype} of shape {array.shape}"
            )
        object.__setattr__(self, "array", array)

    @property
    def shape(self) -> tuple[int, int, int]:  # type: ignore[override]
        """(frame, row, column)"""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override]
        """dtype of the array, in native byte order"""
        return self.array.dtype.newbyteorder("=")

    @property
    def location(self) -> str:
        """The name given."""
        return self.name

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        """The array itself."""
        yield self.array


@dataclasses.dataclass(frozen=True)
class SelectedFrames:
    """Some frames of another source, kept as ranges: NXtomo's projections among flats and darks."""

    base: Source
    runs: tuple[Run, ...]

    @staticmethod
    def of(base: Source, frames: Frames) -> "SelectedFrames":
        """`frames` of `base`, in that order, repeated ones allowed."""
        index = frame_index(frames, base.shape[0], base.location)
        if isinstance(base, SelectedFrames):
            return SelectedFrames(base.base, tuple(runs_of(base.index[index])))
        return SelectedFrames(base, tuple(runs_of(index)))

    @property
    def index(self) -> NDArray[np.int64]:
        """Frame numbers in the base."""
        return np.concatenate([np.empty(0, np.int64), *(np.arange(*run, dtype=np.int64) for run in self.runs)])

    @property
    def shape(self) -> tuple[int, int, int]:
        """(frame, row, column)"""
        return (sum(len(range(*run)) for run in self.runs), *self.base.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the base"""
        return self.base.dtype

    @property
    def location(self) -> str:
        """Location of the base."""
        return self.base.location

    def read(
        self, frames: Frames = slice(None), rows: slice = slice(None), columns: slice = slice(None)
    ) -> NDArray[Any]:
        """As `FrameStack.read`, counting the selected frames only."""
        return self.base.read(self.index[frame_index(frames, self.shape[0], self.location)], rows, columns)


@dataclasses.dataclass(frozen=True)
class NpySource(FrameStack):
    """The array of a NPY file; 2-D arrays count as one frame."""

    path: Path
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]

    @property
    def location(self) -> str:
        """The file."""
        return str(self.path)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        """The memory-mapped array."""
        data = _mapped_npy(self.path)
        yield _OneFrame(data) if data.ndim == 2 else data


def _mapped_npy(path: Path) -> NDArray[Any]:
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (SyntaxError, tokenize.TokenError) as error:  # NumPy parses the header as Python
        raise ValueError("its header is damaged") from error


def npy_source(path: Path) -> NpySource:
    """Check the array of a NPY file (2-D or 3-D, numbers, not empty) and describe it.

    Raises
    ------
    UserError
        Damaged, truncated, Python objects, or no frames.
    """
    with explained(str(path)):
        data = _mapped_npy(path)
    shape = (1, *data.shape) if data.ndim == 2 else data.shape
    check_frames(shape, data.dtype, str(path), complex_too=True)
    return NpySource(path, shape, data.dtype.newbyteorder("="))


def hdf5_source(file: h5py.File, path: Path, dataset: str, *, complex_too: bool = False) -> HDF5Source:
    """Check a dataset (2-D or 3-D, numbers, not empty) and describe it.

    Complex numbers (a compound of ``r`` and ``i``) pass with `complex_too`.

    Raises
    ------
    UserError
        Naming the dataset and what is wrong with it.
    """
    where = f"{path}:{dataset}"
    data = file[dataset]
    if not isinstance(data, h5py.Dataset) or data.shape is None:
        raise UserError(f"{where} holds no array of frames")
    shape = (1, *data.shape) if data.ndim == 2 else tuple(data.shape)
    check_frames(shape, data.dtype, where, complex_too=complex_too)
    refuse_foreign_values(data)
    if data.is_virtual:
        _check_virtual(data, path, where)
    return HDF5Source(path, dataset, shape, data.dtype.newbyteorder("="))


def _check_virtual(data: h5py.Dataset, path: Path, where: str) -> None:
    """HDF5 silently reads zeros where a file of a virtual dataset is missing: refuse instead."""
    for part in data.virtual_sources():
        if part.file_name != "." and not (path.parent / part.file_name).exists() and "%" not in part.file_name:
            raise UserError(
                f"{where} is a virtual dataset whose file {part.file_name} is missing; copy it beside {path}"
            )


def check_frames(shape: Sequence[int], dtype: np.dtype[Any], where: str, *, complex_too: bool = False) -> None:
    """UserError unless an array can be frames: three axes, numbers (real ones, or `complex_too`), nothing empty."""
    if len(shape) != 3:
        raise UserError(f"{where} has shape {tuple(shape)}; frames need three axes (frame, row, column)")
    if 0 in shape:
        raise UserError(f"{where} is empty: its shape (frame, row, column) is {tuple(shape)}")
    if dtype.kind not in ("uifc" if complex_too else "uif"):
        more = " or complex line integrals" if complex_too else ""
        raise UserError(f"{where} holds {dtype}, expected whole or floating-point counts{more}")


def numeric_order(name: str) -> list[tuple[int, int, str]]:
    """Sort key under which ``frame_9`` comes before ``frame_10``."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"\d+|\D+", name)]
