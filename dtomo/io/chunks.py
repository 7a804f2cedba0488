"""How frames are cut into chunks in their file: what must be read whole to get at a few rows.

A slab needs a few rows of every frame. Where a chunk holds whole frames and is compressed, reading these rows takes
the decompression of everything.
"""

import dataclasses
from typing import Any

import h5py
import tifffile
import zarr

from dtomo.io.damage import explained
from dtomo.io.hdf5_files import open_hdf5
from dtomo.io.sources import HDF5Source, SelectedFrames, Source, ZarrSource
from dtomo.io.tiff_source import TiffSource

_FILTERS = {
    **{1: "deflate", 2: "shuffle", 3: "fletcher32", 4: "szip", 307: "bzip2", 32000: "lzf", 32001: "blosc"},
    **{32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd", 32017: "sz", 32024: "sz3", 32026: "blosc2"},
}
"""HDF5's registered filters: https://github.com/HDFGroup/hdf5_plugins/blob/master/docs/RegisteredFilterPlugins.md"""
_CHEAP = ("shuffle", "fletcher32")

SPEEDS = {
    "none": 2.0e9,
    "lz4": 2.0e9,
    "bitshuffle": 1.5e9,
    "blosc": 1.5e9,
    "blosc2": 0.8e9,
    "zstd": 0.8e9,
    "bitshuffle zstd": 0.4e9,
    "lzf": 0.3e9,
    "szip": 0.3e9,
    "bzip2": 0.02e9,
}
"""Bytes that one core reads and decompresses in a second: 16-bit counts with noise, frames of 512 × 512 (measured)."""
SLOW = 0.2e9
"""The same of deflate, and of what is not in `SPEEDS`."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """The smallest part of a stack that is read: `frames` × `rows` × `columns`, all 1 where any pixel can be.

    Attributes
    ----------
    frames, rows, columns
        Shape of a chunk.
    codec
        Its compression, ``"none"`` without.
    """

    frames: int = 1
    rows: int = 1
    columns: int = 1
    codec: str = "none"

    @property
    def coarse(self) -> bool:
        """Whether rows cannot be read by themselves, so that bands of rows may be decompressed again and again."""
        return self.rows > 1

    @property
    def speed(self) -> float:
        """Bytes decompressed per second on one core."""
        return SPEEDS.get(self.codec, SLOW)

    def decoded(self, shape: tuple[int, int, int], rows: slice, columns: slice) -> int:
        """Pixels of each frame that are decompressed to read `rows` and `columns` of a stack (frame, row, column)."""
        return _covered(rows, self.rows, shape[1]) * _covered(columns, self.columns, shape[2])


def _covered(part: slice, chunk: int, size: int) -> int:
    """Pixels along an axis in the chunks that hold ``part.start:part.stop``."""
    first = part.start // chunk * chunk
    return min(size, -(-part.stop // chunk) * chunk) - first


def layout_of(source: Source) -> Layout:
    """How the frames of a source are cut; any pixel can be read by itself where nothing else is known.

    Raises
    ------
    UserError
        The file cannot be read any more.
    """
    if isinstance(source, SelectedFrames):
        return layout_of(source.base)
    if isinstance(source, HDF5Source):
        with open_hdf5(source.path) as file:
            return _hdf5(file[source.dataset], source)
    with explained(source.location):
        if isinstance(source, ZarrSource):
            return _zarr(zarr.open_array(source.path / source.array, mode="r"))
        if isinstance(source, TiffSource):
            return _tiff(source)
    return Layout()


def _hdf5(data: h5py.Dataset, source: HDF5Source) -> Layout:
    """Uncompressed chunks are read in parts, as there is no chunk cache; of a virtual dataset the first file counts."""
    if data.is_virtual:
        return _virtual(data, source)
    if data.chunks is None:
        return Layout()
    plist = data.id.get_create_plist()
    filters = [plist.get_filter(number) for number in range(plist.get_nfilters())]
    if not filters:
        return Layout()
    names = [_filter_name(code, values) for code, _, values, _ in filters]
    frames, rows, columns = (1,) * (3 - data.ndim) + data.chunks
    return Layout(frames, rows, columns, next((name for name in names if name not in _CHEAP), "none"))


def _filter_name(code: int, values: tuple[int, ...]) -> str:
    zstd_in_bitshuffle = code == 32008 and values[4:5] == (3,)
    return "bitshuffle zstd" if zstd_in_bitshuffle else _FILTERS.get(code, str(code))


def _virtual(data: h5py.Dataset, source: HDF5Source) -> Layout:
    part = next(iter(data.virtual_sources()), None)
    if part is None or "%" in part.file_name:
        return Layout()
    path = source.path if part.file_name == "." else source.path.parent / part.file_name
    with open_hdf5(path) as file:
        base = file.get(part.dset_name)
        if not isinstance(base, h5py.Dataset) or base.is_virtual or base.ndim not in (2, 3):
            return Layout()
        return _hdf5(base, source)


def _zarr(array: Any) -> Layout:
    """Zarr reads whole chunks, compressed or not."""
    frames, rows, columns = (1, 1, *array.chunks)[-3:]
    names = [type(codec).__name__.removesuffix("Codec").lower() for codec in array.compressors]
    codec = {"gzip": "deflate", "zlib": "deflate"}.get(names[0], names[0]) if names else "none"
    return Layout(frames, rows, columns, codec)


def _tiff(source: TiffSource) -> Layout:
    """Compressed pages are read whole."""
    with tifffile.TiffFile(source.folder / source.names[0]) as file:
        page = file.pages.first
        if page.is_memmappable and page.is_contiguous:
            return Layout()
        codec = {1: "none", 5: "lzw", 8: "deflate", 32773: "packbits", 32946: "deflate", 50000: "zstd"}
        return Layout(1, *source.shape[1:], codec.get(int(page.compression), "unknown"))
