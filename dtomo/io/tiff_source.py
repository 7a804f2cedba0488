"""TIFF frames as a source: one file of many pages, or a folder of one-frame files."""

import contextlib
import dataclasses
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from dtomo.io.damage import explained
from dtomo.io.sources import FrameStack


@dataclasses.dataclass(frozen=True)
class TiffSource(FrameStack):
    """TIFF frames: one file of many pages, or a folder of files of one frame each.

    The names are kept compressed: ten thousand of them take a few kilobytes in a task.
    """

    folder: Path
    packed_names: bytes
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]

    @staticmethod
    def of(folder: Path, names: Sequence[str], shape: tuple[int, int, int], dtype: np.dtype[Any]) -> "TiffSource":
        """A source of the files `names` in `folder`, in that order."""
        return TiffSource(folder, zlib.compress("\0".join(names).encode()), shape, dtype)

    @property
    def names(self) -> list[str]:
        """File names, in frame order."""
        return zlib.decompress(self.packed_names).decode().split("\0")

    @property
    def location(self) -> str:
        """The file, or the folder with the first and last name."""
        names = self.names
        if len(names) == 1:
            return str(self.folder / names[0])
        return f"{self.folder / names[0]} … {names[-1]}"

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        """An object that reads pages as it is sliced."""
        names = self.names
        if len(names) > 1 or self.shape[0] == 1:
            yield _TiffFolder([self.folder / name for name in names], self.dtype)
        else:
            with tifffile.TiffFile(self.folder / names[0]) as file:
                yield _TiffPages(file)


@dataclasses.dataclass(frozen=True)
class _TiffFolder:
    paths: list[Path]
    dtype: np.dtype[Any]

    def __getitem__(self, key: tuple[slice, slice, slice]) -> NDArray[Any]:
        frames = []
        for path in self.paths[key[0]]:
            with explained(str(path)), tifffile.TiffFile(path) as file:
                frames.append(read_page(file.pages.first, key[1], key[2]))
        return np.stack(frames)


@dataclasses.dataclass(frozen=True)
class _TiffPages:
    file: tifffile.TiffFile

    def __getitem__(self, key: tuple[slice, slice, slice]) -> NDArray[Any]:
        series = self.file.series[0]
        if series.dataoffset is not None:  # the frames lie one after the other, uncompressed
            shape = (-1, *series.shape[-2:])
            flat = np.memmap(
                self.file.filehandle.path,
                self.file.byteorder + series.dtype.char,
                mode="r",
                offset=series.dataoffset,
                shape=series.shape,
            )
            return np.asarray(flat.reshape(shape)[key])
        pages = [series.pages[number] for number in range(*key[0].indices(len(series.pages)))]
        return np.stack([read_page(page, key[1], key[2]) for page in pages])


def read_page(page: Any, rows: slice, columns: slice) -> NDArray[Any]:
    """Rows and columns of one TIFF page; just those bytes if the page is stored whole and uncompressed."""
    page = page.aspage() if hasattr(page, "aspage") else page
    if page.is_memmappable and page.is_contiguous:
        data = np.memmap(
            page.parent.filehandle.path,
            page.parent.byteorder + page.dtype.char,
            mode="r",
            offset=page.dataoffsets[0],
            shape=page.shape,
        )
        return np.asarray(data[rows, columns])
    return np.asarray(page.asarray()[rows, columns])
