"""Data of fits: columns of samples, wherever they lie; held out once, shuffled by epoch, cut into fixed blocks.

A column is an array whose first axis is the sample, or a list of files, each a sample. Columns of a tuple belong
together. Nothing is read before a block needs it, and what is read is kept by the process that read it, as far as its
memory allows. Which samples make a block depends on the seed, the epoch and the sizes alone, never on the workers.
"""

import dataclasses
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError, shown
from dtomo.io import Scan, open_volume
from dtomo.io.damage import explained
from dtomo.io.sources import Source

Index: TypeAlias = NDArray[np.int64]

PARTS, WHOLE_PARTS = 8, 16
"""Blocks of a batch, and of one that holds all samples, where no size of a block is given."""

CHECKED = 5
"""Samples of each column that tell it from another of the same shape."""

_NUMBERS = "biufc"

_TRAINING, _SPLIT = 1, 2
"""What random numbers are for: keys beside the seed."""


class Column(Protocol):
    """Samples along the first axis; small to send, unless it lies in memory."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    location: str
    kept: bool
    """Whether it lies in memory already."""

    def read(self, index: Index) -> NDArray[Any]:
        """Some samples, by rising numbers: ``(len(index), …)``."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class _OfArray:
    """What has shape and dtype of an array, which is read in some way."""

    array: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """(sample, …)"""
        return tuple(int(size) for size in self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the array."""
        return np.dtype(self.array.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayColumn(_OfArray):
    """An array in memory, sent whole to each worker, once."""

    location: str = "array in memory"
    kept: bool = True

    def read(self, index: Index) -> NDArray[Any]:
        """Some of it."""
        return np.asarray(self.array[index])


@dataclasses.dataclass(frozen=True)
class NpyColumn:
    """The array of a NPY file, mapped into memory where it is read."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    kept: bool = False

    @property
    def location(self) -> str:
        """The file."""
        return str(self.path)

    def read(self, index: Index) -> NDArray[Any]:
        """Some of it."""
        with explained(self.location):
            return np.array(np.load(self.path, mmap_mode="r")[index])


@dataclasses.dataclass(frozen=True, eq=False)
class ZarrColumn(_OfArray):
    """A Zarr array."""

    kept: bool = False

    @property
    def location(self) -> str:
        """The store and the name in it."""
        return str(self.array.store_path)

    def read(self, index: Index) -> NDArray[Any]:
        """Some of it; a chunk that holds several samples is read once for all of them."""
        return np.asarray(self.array.get_orthogonal_selection((index,)))


@dataclasses.dataclass(frozen=True, eq=False)
class DaskColumn(_OfArray):
    """A Dask array, computed sample by sample in the process that needs them."""

    location: str = "Dask array"
    kept: bool = False

    def read(self, index: Index) -> NDArray[Any]:
        """Some of it."""
        return np.asarray(self.array[index].compute(scheduler="synchronous"))


@dataclasses.dataclass(frozen=True, eq=False)
class SourceColumn:
    """Frames of a source of `dtomo.io`: ``(frame, row, column)``."""

    source: Source
    kept: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """(frame, row, column)"""
        return tuple(self.source.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the frames."""
        return self.source.dtype

    @property
    def location(self) -> str:
        """Of the source."""
        return self.source.location

    def read(self, index: Index) -> NDArray[Any]:
        """Some frames."""
        return self.source.read(index)


@dataclasses.dataclass(frozen=True, eq=False)
class ScanColumn:
    """The projections of a scan, as they are stored; cropped and binned as the scan says."""

    scan: Scan
    kept: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """(angle, row, column)"""
        return self.scan.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of what is read."""
        return np.dtype(self.scan.dtype)

    @property
    def location(self) -> str:
        """The file."""
        return str(self.scan.path)

    def read(self, index: Index) -> NDArray[Any]:
        """Some projections."""
        bare = dataclasses.replace(self.scan, flat_source=None, dark_source=None)
        return np.asarray(bare.select(index).read().projections)


@dataclasses.dataclass(frozen=True)
class FilesColumn:
    """Files of one shape, each a sample: NPY as it is, volumes and pictures as ``(z, y, x)``."""

    paths: tuple[Path, ...]
    inside: tuple[int, ...]
    dtype: np.dtype[Any]
    kept: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """(file, …)"""
        return (len(self.paths), *self.inside)

    @property
    def location(self) -> str:
        """The first file."""
        return f"{self.paths[0]} …"

    def read(self, index: Index) -> NDArray[Any]:
        """Some of the files."""
        out = np.empty((len(index), *self.inside), self.dtype)
        for place, number in enumerate(index):
            out[place] = _read_file(self.paths[number])
        return out


def _read_file(path: Path) -> NDArray[Any]:
    if path.suffix.lower() == ".npy":
        with explained(str(path)):
            return np.asarray(np.load(path))
    return open_volume(path).source.read()


def _files(paths: Sequence[str | os.PathLike[str]]) -> FilesColumn:
    listed = tuple(Path(os.path.abspath(path)) for path in paths)
    shape, dtype = _described(listed[0])
    for path in listed[1:]:
        other, kind = _described(path)
        if other != shape or kind != dtype:
            raise UserError(
                f"{path} holds {kind} of shape {other} but {listed[0]} holds {dtype} of shape {shape}; the files of a "
                "list are samples of one shape"
            )
    return FilesColumn(listed, shape, dtype)


def _described(path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if not path.exists():
        raise UserError(f"there is no file {path}")
    if path.suffix.lower() == ".npy":
        with explained(str(path)), path.open("rb") as file:
            if file.read(6) != np.lib.format.MAGIC_PREFIX:
                raise UserError(f"{path} is no NPY file, or damaged; numpy.save writes one")
            array = np.load(path, mmap_mode="r")
            return tuple(array.shape), array.dtype
    volume = open_volume(path)
    return tuple(volume.shape), volume.dtype


def npy_column(path: str | os.PathLike[str]) -> NpyColumn:
    """A NPY file as a column.

    Raises
    ------
    UserError
        Missing or damaged.
    """
    shape, dtype = _described(Path(os.path.abspath(path)))
    return NpyColumn(Path(os.path.abspath(path)), shape, dtype)


@dataclasses.dataclass(frozen=True)
class Columns:
    """What a fit reads: `parts` that belong together, sample by sample; `alone`: a batch is an array, not a tuple."""

    parts: tuple[Any, ...]
    alone: bool

    def __len__(self) -> int:
        return int(self.parts[0].shape[0])

    @classmethod
    def of(cls, data: Any) -> "Columns":
        """From an array, a list of files, a scan (projections and angles in degrees), or a tuple of these.

        Raises
        ------
        UserError
            Nothing of the kind, no samples, or columns that differ in their number of samples.
        """
        if isinstance(data, cls):
            return data
        if isinstance(data, Scan):
            return cls((ScanColumn(data), ArrayColumn(data.angles, f"angles of {data.path}")), False)
        if isinstance(data, tuple):
            if not data:
                raise UserError("a fit needs data; got an empty tuple")
            found = cls(tuple(_column(part) for part in data), False)
        else:
            found = cls((_column(data),), True)
        for part in found.parts:
            if np.dtype(part.dtype).kind not in _NUMBERS:
                raise UserError(f"data of a fit are numbers; {part.location} holds {shown(part.dtype)}")
        counts = [part.shape[0] if part.shape else 0 for part in found.parts]
        if min(counts) != max(counts) or not counts[0]:
            raise UserError(
                "the arrays of a fit have the sample as their first axis, all of them as many; got shapes "
                f"{', '.join(str(part.shape) for part in found.parts)}"
            )
        return found

    def described(self) -> list[list[Any]]:
        """Shapes, dtypes and a checksum of a few samples, as JSON takes them: what a resumed fit compares."""
        few = np.unique(np.linspace(0, len(self) - 1, CHECKED).round().astype(np.int64))
        return [
            [list(part.shape), np.dtype(part.dtype).str, zlib.crc32(np.ascontiguousarray(part.read(few)).tobytes())]
            for part in self.parts
        ]


def _column(given: Any) -> Any:
    if isinstance(given, Scan):
        return ScanColumn(given)
    if isinstance(given, list | tuple) and given and all(isinstance(item, str | os.PathLike) for item in given):
        return _files(given)
    kind = type(given).__module__.split(".")[0]
    if kind == "dask":
        if any(type(value).__name__ == "Future" for value in given.__dask_graph__().values()):
            raise UserError(
                "a Dask array that is persisted on a cluster cannot be read by tasks: give it as it was before "
                "persist(), or write it to Zarr"
            )
        return DaskColumn(given)
    if kind == "zarr" and hasattr(given, "get_orthogonal_selection"):
        return ZarrColumn(given)
    if isinstance(given, np.memmap) and given.filename is not None and given.base is not None:
        return _mapped(given)
    if isinstance(given, Source) and not isinstance(given, np.ndarray):
        return SourceColumn(given)
    if hasattr(given, "read") and hasattr(given, "kept"):
        return given
    array = np.asarray(given) if isinstance(given, np.ndarray | list | tuple) else None
    if array is None or array.dtype.kind not in _NUMBERS or not array.ndim:
        raise UserError(
            "data of a fit is a NumPy, Dask or Zarr array, a list of files, a scan, a source of frames, or a tuple of "
            f"these; got {shown(repr(given))}"
        )
    return ArrayColumn(array)


def _mapped(given: Any) -> Any:
    """A NPY file that is mapped whole is read where it is needed; any other map is taken as an array."""
    path = Path(given.filename)
    if path.suffix.lower() == ".npy":
        column = npy_column(path)
        if column.shape == given.shape and column.dtype == given.dtype:
            return column
    return ArrayColumn(np.asarray(given))


class Reader:
    """Batches from columns, in one process, which keeps what it has read up to `limit` bytes."""

    def __init__(self, columns: Columns, limit: int) -> None:
        self._columns, self._left = columns, limit
        self._kept: list[dict[int, NDArray[Any]]] = [{} for _ in columns.parts]

    def batch(self, index: Index) -> Any:
        """Samples in this order: an array, or a tuple of them.

        Raises
        ------
        UserError
            They cannot be read.
        """
        found = tuple(self._read(column, kept, index) for column, kept in zip(self._columns.parts, self._kept))
        return found[0] if self._columns.alone else found

    def _read(self, column: Any, kept: dict[int, NDArray[Any]], index: Index) -> NDArray[Any]:
        if column.kept:
            return np.asarray(column.read(index))
        missing = np.array(sorted({int(number) for number in index}.difference(kept)), np.int64)
        fresh: dict[int, NDArray[Any]] = {}
        if len(missing):
            values = column.read(missing)
            fresh = {int(number): values[place] for place, number in enumerate(missing)}
            if values.nbytes <= self._left:
                self._left -= values.nbytes
                kept.update(fresh)
        return np.stack([fresh[int(n)] if int(n) in fresh else kept[int(n)] for n in index])


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """Which samples are trained on and which are held out: rising numbers."""

    training: Index
    held_out: Index

    @classmethod
    def of(cls, count: int, validation: Any, seed: int) -> "Split":
        """Chosen at random, or as given.

        Parameters
        ----------
        count
            Samples in all.
        validation
            The part that is held out, from 0 to below 1: of two samples or more at least one, unless it is 0. Or the
            numbers of the samples themselves.
        seed
            Of the choice.

        Raises
        ------
        UserError
            Neither, samples that do not exist, or none left to train on.
        """
        if isinstance(validation, int | float | np.number) and not isinstance(validation, bool):
            if not 0 <= validation < 1:
                raise UserError(
                    f"validation is the part of the samples that is held out, from 0 to below 1, or their numbers; got "
                    f"{validation}"
                )
            held = min(max(round(float(validation) * count), 1 if validation else 0), count - 1)
            order = np.random.default_rng([seed, _SPLIT]).permutation(count)
            chosen = np.sort(order[:held]).astype(np.int64)
        else:
            chosen = _chosen(validation, count)
        training = np.setdiff1d(np.arange(count, dtype=np.int64), chosen)
        if not len(training):
            raise UserError(f"all {count} samples are held out; some must be left to train on")
        return cls(training, chosen)

    def batches(self, epoch: int, size: int | None, seed: int) -> Iterator[Index]:
        """The batches of an epoch: all samples, each once, in an order of its own; the last one may be smaller."""
        order = self.training[np.random.default_rng([seed, _TRAINING, epoch]).permutation(len(self.training))]
        step = size or len(order)
        yield from (order[first : first + step] for first in range(0, len(order), step))


def _chosen(validation: Any, count: int) -> Index:
    try:
        found = np.unique(np.asarray(validation))
    except (TypeError, ValueError) as error:
        raise UserError(f"validation is a part or a list of numbers of samples; got {shown(validation)}") from error
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise UserError(f"validation is a part or a list of numbers of samples; got {shown(validation)}")
    if found.size and not (found[0] >= 0 and found[-1] < count):
        raise UserError(f"validation names sample {found[0] if found[0] < 0 else found[-1]}; there are {count}, from 0")
    return found.astype(np.int64)


def blocks_of(samples: Index, size: int) -> tuple[Index, ...]:
    """Samples cut into as few blocks of at most `size` as can be, which differ by one sample at most."""
    return tuple(np.array_split(samples, -(-len(samples) // size))) if len(samples) else ()


def block_size(batch: int | None, samples: int) -> int:
    """Samples of a block where none is given: what makes `PARTS` blocks of a batch."""
    return -(-samples // WHOLE_PARTS) if batch is None or batch >= samples else -(-batch // PARTS)
