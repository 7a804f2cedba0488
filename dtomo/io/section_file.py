"""Volumes in one file of uncompressed sections (MRC, EM, BigTIFF), filled in any order by any worker.

The file grows in a folder beside its final name and is moved there when whole. Data are written at their
place with ``pwrite``: a full disk is then an error, where a memory map would kill the process.
"""

import dataclasses
import math
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.io.bigtiff import create_bigtiff
from dtomo.io.em import create_em
from dtomo.io.lock import refuse_if_locked
from dtomo.io.mrc import create_mrc, set_statistics
from dtomo.io.ome_zarr import check_slab, check_whole
from dtomo.io.output import progress_folder, writing
from dtomo.io.progress import Progress

_PIECE = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class SectionFileWriter:
    """Writes one MRC, EM or BigTIFF file; small and picklable, each worker may hold its own.

    ``stored`` is the dtype in the file, ``offset`` where section 0 begins, in bytes.
    """

    path: Path
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]
    slab: int
    format: str
    stored: np.dtype[Any]
    offset: int

    @staticmethod
    def create(
        path: Path,
        shape: tuple[int, int, int],
        dtype: np.dtype[Any],
        *,
        format: str,
        slab: int,
        voxel_size_um: tuple[float, float, float] | None,
        origin_um: tuple[float, float, float] = (0.0, 0.0, 0.0),
    ) -> "SectionFileWriter":
        """Make the unfinished file at its full size; what was at `path` stays until the new one is whole."""
        progress = Progress(progress_folder(path))
        with writing(path):
            refuse_if_locked(progress.folder, path)
            if progress.folder.is_dir():
                shutil.rmtree(progress.folder)
            progress.start(path)
            part = progress.folder / "volume.part"
            if format == "mrc":
                angstrom = None if voxel_size_um is None else [size * 1e4 for size in voxel_size_um]
                offset, stored = create_mrc(part, shape, dtype, angstrom, origin=[value * 1e4 for value in origin_um])
            elif format == "em":
                offset, stored = create_em(part, shape, dtype)
            else:
                offset, stored = create_bigtiff(part, shape, dtype, voxel_size_um)
        return SectionFileWriter(path, shape, dtype, slab, format, stored, offset)

    @property
    def progress(self) -> Progress:
        """Which slabs are done."""
        return Progress(progress_folder(self.path))

    @property
    def part(self) -> Path:
        """The unfinished file."""
        return self.progress.folder / "volume.part"

    def write_slab(self, z0: int, array: NDArray[Any]) -> None:
        """Write slices from `z0` on, ``(z, y, x)``, and mark them done.

        Raises
        ------
        UserError
            A slab that does not fit.
        StoppedError
            The disk is full; the run can be resumed.
        """
        check_slab(self, z0, array)
        section = math.prod(self.shape[1:]) * self.stored.itemsize
        with writing(self.path, resumable=True):
            descriptor = os.open(self.part, os.O_WRONLY)
            try:
                step = max(1, _PIECE // section)
                for first in range(0, array.shape[0], step):
                    piece = np.ascontiguousarray(array[first : first + step], self.stored.newbyteorder("<"))
                    _pwrite(
                        descriptor,
                        piece.tobytes(),
                        self.offset + (z0 + first) * section,
                    )
            finally:
                os.close(descriptor)
            self.progress.mark(z0, z0 + array.shape[0], _statistics(array) if self.format == "mrc" else {})

    def check_slabs(self, slabs: Iterable[tuple[int, int]]) -> None:
        """Slabs of a file of sections share nothing, wherever they begin."""

    def done(self) -> list[tuple[int, int]]:
        """(first slice, end) of every slab written."""
        return self.progress.slabs()

    def finish(self, attributes: dict[str, Any] | None = None) -> Path:
        """Fill in the header and move the file to its name; `attributes` have no place in these formats.

        Raises
        ------
        UserError
            Slices that were never written.
        """
        check_whole(self, self.progress)
        with writing(self.path, resumable=True):
            if self.format == "mrc":
                _put_statistics(self.part, self.progress.notes())
            os.replace(self.part, self.path)
            self.progress.remove()
        return self.path


def _pwrite(descriptor: int, content: bytes, offset: int) -> None:
    data = memoryview(content)
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _statistics(array: NDArray[Any]) -> dict[str, float]:
    """Count, extremes and sums (float64), section by section so that memory stays small."""
    low, high, total, squares, count = math.inf, -math.inf, 0.0, 0.0, 0
    for section in array:
        values = np.abs(section) if section.dtype.kind == "c" else section
        values = values[np.isfinite(values)].astype(np.float64)
        if values.size:
            low, high = min(low, float(values.min())), max(high, float(values.max()))
            total, squares = total + float(values.sum()), squares + float(np.dot(values, values))
            count += values.size
    if not count:
        return {"count": 0}
    return {"count": count, "low": low, "high": high, "sum": total, "squares": squares}


def _put_statistics(path: Path, notes: list[dict[str, Any]]) -> None:
    notes = [note for note in notes if note.get("count")]
    if not notes:
        return
    count = sum(note["count"] for note in notes)
    mean = math.fsum(note["sum"] for note in notes) / count
    variance = max(0.0, math.fsum(note["squares"] for note in notes) / count - mean**2)
    low, high = min(note["low"] for note in notes), max(note["high"] for note in notes)
    set_statistics(path, low, high, mean, math.sqrt(variance))
