"""Staging: frames that are stored whole, brought once into the order in which slabs are read.

Blocks of frames are read, each chunk of the file decompressed once, and written cut into bands of rows to a scratch
store: one Zarr array for each source, whose chunks hold a block of frames and a band of rows. A slab then reads its
bands and nothing else. What is read is the same, value for value.
"""

import contextlib
import dataclasses
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.lock import refuse_if_locked, release_lock
from dtomo.io.output import progress_folder, writing
from dtomo.io.progress import Progress
from dtomo.io.sources import FrameStack, Source

STAGED = "staged"
"""Name of the scratch store in the progress folder of an output, and its suffix in another folder."""

_EVERY_CHUNK = {"array.write_empty_chunks": True}  # a chunk of zeros is data, not absence


@dataclasses.dataclass(frozen=True, order=True)
class FrameBlock:
    """Frames ``start:stop`` of all staged frames, number `index`: what one task stages."""

    index: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"frames {self.start}:{self.stop}"


@dataclasses.dataclass(frozen=True)
class StagedSource(FrameStack):
    """A source whose rows and columns in use lie in a scratch store; picklable, opened inside ``read``.

    Attributes
    ----------
    folder, name
        The scratch store and the array in it.
    shape, dtype
        Of the source it stands for, of the whole detector.
    rows, columns
        (first, end) of what is staged.
    origin
        Location of the source it stands for.
    """

    folder: Path
    name: str
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]
    rows: tuple[int, int]
    columns: tuple[int, int]
    origin: str

    @property
    def location(self) -> str:
        """The source it stands for, and where its frames were staged."""
        return f"{self.origin} (staged in {self.folder})"

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        """The staged array, indexed as the whole detector."""
        yield _Window(self, zarr.open_array(self.folder / self.name, mode="r"))


@dataclasses.dataclass(frozen=True)
class _Window:
    """Reads chunk by chunk: Zarr by itself would hold many at once, and give zeros for one that is missing."""

    source: StagedSource
    array: zarr.Array

    def __getitem__(self, key: tuple[slice, slice, slice]) -> NDArray[Any]:
        first, end, step = key[0].indices(self.source.shape[0])
        rows = self._inside(key[1], self.source.rows, self.source.shape[1], "rows")
        columns = self._inside(key[2], self.source.columns, self.source.shape[2], "columns")
        shape = (len(range(first, end, step)), rows.stop - rows.start, columns.stop - columns.start)
        out = np.empty(shape, self.source.dtype)
        deep = self.array.chunks[0]
        at = 0
        while first < end:
            stop = min(end, (first // deep + 1) * deep)
            count = len(range(first, stop, step))
            self._refuse_missing(first // deep, rows)
            out[at : at + count] = self.array[first:stop:step, rows, columns]
            at, first = at + count, first + count * step
        return out

    def _inside(self, part: slice, held: tuple[int, int], size: int, what: str) -> slice:
        start, stop, step = part.indices(size)
        if step != 1 or start < held[0] or stop > held[1]:
            raise UserError(
                f"{self.source.location} holds {what} {held[0]} to {held[1] - 1}; {what} {start}:{stop} are not there"
            )
        return slice(start - held[0], stop - held[0])

    def _refuse_missing(self, deep: int, rows: slice) -> None:
        band = self.array.chunks[1]
        for number in range(rows.start // band, -(-rows.stop // band)):
            chunk = _chunk(self.source.folder / self.source.name, self.array, (deep, number))
            if not chunk.is_file():
                raise UserError(
                    f"the staged frames lack {chunk}; it was removed, or lies on a disk that this worker does not see: "
                    "give a --scratch folder that all workers share, or --stage no"
                )


def _chunk(folder: Path, array: zarr.Array, place: tuple[int, int]) -> Path:
    """The file of a chunk (block of frames, band of rows) of an array in `folder`."""
    return folder / array.metadata.encode_chunk_key((*place, 0))


@dataclasses.dataclass(frozen=True)
class Staging:
    """A scratch store: what is to be staged and how it is cut; small and picklable, as each task gets it.

    Attributes
    ----------
    folder
        The store.
    sources
        By name, in the order in which their frames are counted.
    rows, columns
        (first, end) of the detector that the run needs.
    band
        Rows of a chunk.
    block
        Frames of a chunk, and of a task.
    """

    folder: Path
    sources: Mapping[str, Source]
    rows: tuple[int, int]
    columns: tuple[int, int]
    band: int
    block: int

    @property
    def progress(self) -> Progress:
        """Which frames are staged."""
        return Progress(self.folder)

    def shape(self, name: str) -> tuple[int, int, int]:
        """(frame, row, column) of what is staged of a source."""
        return (
            self.sources[name].shape[0],
            self.rows[1] - self.rows[0],
            self.columns[1] - self.columns[0],
        )

    @property
    def size(self) -> int:
        """Bytes on disk of all that is staged: chunks at the edges are as large as the others."""
        total = 0
        for name, source in self.sources.items():
            padded = (-(-size // chunk) * chunk for size, chunk in zip(self.shape(name), self._chunk(name)))
            total += math.prod(padded) * source.dtype.itemsize
        return total

    def _chunk(self, name: str) -> tuple[int, int, int]:
        frames, rows, columns = self.shape(name)
        return min(self.block, frames), min(self.band, rows), columns

    def blocks(self) -> list[FrameBlock]:
        """One task each; a block holds frames of one source, counted on from the source before."""
        found: list[FrameBlock] = []
        offset = 0
        for source in self.sources.values():
            count = source.shape[0]
            for first in range(0, count, self.block):
                found.append(FrameBlock(len(found), offset + first, offset + min(first + self.block, count)))
            offset += count
        return found

    def waiting(self) -> list[FrameBlock]:
        """The blocks that are not staged yet, or whose chunks are gone."""
        done = set(self.progress.slabs())
        return [block for block in self.blocks() if (block.start, block.stop) not in done or not self._whole(block)]

    def _whole(self, block: FrameBlock) -> bool:
        """Whether all chunks of a block are there."""
        name, first = self._place(block)
        array = zarr.open_array(self.folder / name, mode="r")
        bands = range(-(-array.shape[1] // array.chunks[1]))
        return all(_chunk(self.folder / name, array, (first // array.chunks[0], band)).is_file() for band in bands)

    def staged(self, name: str) -> StagedSource:
        """The source that reads from the store, with the same values as ``sources[name]``."""
        source = self.sources[name]
        return StagedSource(self.folder, name, source.shape, source.dtype, self.rows, self.columns, source.location)

    def write(self, block: FrameBlock) -> None:
        """Read a block of frames and write it band by band; memory holds it about twice.

        Raises
        ------
        UserError
            Frames that cannot be read, or a store that is not there.
        StoppedError
            The disk is full.
        """
        name, first = self._place(block)
        count = block.stop - block.start
        with writing(self.folder, resumable=True), zarr.config.set(_EVERY_CHUNK):
            try:
                array = zarr.open_array(self.folder / name, mode="r+")
            except (FileNotFoundError, zarr.errors.BaseZarrError) as error:
                raise UserError(
                    f"a worker does not find the scratch store {self.folder}: give a --scratch folder that all "
                    "workers share, or --stage no"
                ) from error
            frames = self.sources[name].read(slice(first, first + count), slice(*self.rows), slice(*self.columns))
            for row in range(0, frames.shape[1], self.band):
                array[first : first + count, row : row + self.band] = frames[:, row : row + self.band]
            self.progress.mark(block.start, block.stop, {})

    def _place(self, block: FrameBlock) -> tuple[str, int]:
        """The source that a block is of, and its first frame there."""
        offset = 0
        for name, source in self.sources.items():
            if block.start < offset + source.shape[0]:
                return name, block.start - offset
            offset += source.shape[0]
        raise ValueError(f"{block} are beyond the {offset} frames to be staged")

    def open(self, about: dict[str, Any], output: Path) -> "Staging":
        """Make the store, or go on with the one there if it is about the same and cut alike or in smaller blocks.

        Parameters
        ----------
        about
            What decides what is staged: inputs and settings (JSON values).
        output
            What the run writes, for messages.

        Returns
        -------
        Staging
            What to work with: cut as the store is.

        Raises
        ------
        UserError
            Another run uses the store, or a folder of that name is not ours.
        StoppedError
            The disk is full.
        """
        there = self._resumed(about)
        with writing(self.folder, resumable=True):
            if there is None:
                remove_staged(self.folder, output)
                self.progress.start(output)
                for name, source in self.sources.items():
                    self._create(name, source)
                cut = {"band": self.band, "block": self.block}
                self.progress.save_settings({**self._about(about), **cut})
                return self
            self.progress.start(output)
        return there

    def _create(self, name: str, source: Source) -> None:
        zarr.create_array(
            self.folder / name,
            shape=self.shape(name),
            dtype=source.dtype,
            chunks=self._chunk(name),
            compressors=None,  # written and read once, counts with noise are quicker as they are: see docs/storage.md
            overwrite=True,
        )

    def _about(self, about: dict[str, Any]) -> dict[str, Any]:
        parts = {name: [*self.shape(name), source.dtype.name] for name, source in self.sources.items()}
        found = {"about": about, "sources": parts, "rows": self.rows, "columns": self.columns}
        plain: dict[str, Any] = json.loads(json.dumps(found))
        return plain

    def _resumed(self, about: dict[str, Any]) -> "Staging | None":
        """As this, but cut as what is in the folder; None if that is something else, or takes more memory."""
        if not is_staged(self.folder):
            return None
        found = self.progress.settings()
        if found is None:
            return None
        band, block = found.pop("band", None), found.pop("block", None)
        if found != self._about(about) or not isinstance(band, int) or not isinstance(block, int):
            return None
        return dataclasses.replace(self, band=band, block=block) if 0 < block <= self.block and band > 0 else None


def staging_folder(output: Path, scratch: Path | None) -> Path:
    """Where frames are staged for an output: in its progress folder, or under a name of its own in `scratch`."""
    if scratch is None:
        return progress_folder(output) / STAGED
    import hashlib

    digest = hashlib.sha256(os.fsencode(os.path.realpath(output))).hexdigest()[:12]
    return Path(os.path.realpath(scratch)) / f"{output.name}-{digest}.{STAGED}"


def check_scratch(scratch: Path) -> None:
    """Refuse a scratch folder that is none or refuses new files.

    Raises
    ------
    UserError
        In one sentence.
    """
    if not scratch.is_dir():
        raise UserError(f"--scratch {scratch} is not a folder; create it first, or name another one")
    try:
        with tempfile.TemporaryFile(dir=scratch):
            return
    except OSError as error:
        raise UserError(f"--scratch {scratch} refuses new files ({error.strerror}); name another folder") from error


def is_staged(folder: Path) -> bool:
    """Whether a folder is a scratch store made here, whole or not."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    names = {item.name for item in folder.iterdir()}
    return not names or any(name.lstrip(".").startswith(("settings.json", "lock.json")) for name in names)


def remove_staged(folder: Path, output: Path) -> None:
    """Remove a scratch store, if there is one.

    Raises
    ------
    UserError
        Another run uses it, or something else has its name.
    """
    if not os.path.lexists(folder):
        return
    if not is_staged(folder):
        raise UserError(f"{folder} has the name of a scratch store but is something else; move it away")
    refuse_if_locked(folder, output)
    shutil.rmtree(folder)


def release(folder: Path) -> None:
    """Let other processes go on with a scratch store, or remove it."""
    release_lock(folder)
