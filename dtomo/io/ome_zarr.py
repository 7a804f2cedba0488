"""OME-Zarr volumes: written slab by slab from any process, read back whichever version (0.4, 0.5) they are.

Specification: https://ngff.openmicroscopy.org/0.5/ (Zarr 3; axes, multiscales, coordinate transformations).

Level 0 is cut into shards whose height divides a slab; a slab writes its whole shards there and its part of
the coarser levels, whose shards are halved in height with each level, so that no two slabs ever share one.
Levels too coarse for that are made from the level below when the volume is finished.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BloscCodec

from dtomo.errors import UserError
from dtomo.io.output import clear, progress_folder, writing
from dtomo.io.progress import Progress
from dtomo.io.pyramid import Shape, halved, level_factors, level_shapes
from dtomo.io.units import length_factor

CHUNK = (32, 128, 128)
SHARD = (64, 512, 512)
# Measured by benchmarks/storage.py; the table and the rule are in docs/storage.md.
COMPRESSORS: dict[str, BytesBytesCodec | None] = {
    "none": None,
    "fast": BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"),
    "small": BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle"),
}
_WRITE = {"array.write_empty_chunks": True}  # a chunk of zeros is data, not absence


@dataclasses.dataclass(frozen=True)
class OmeZarrWriter:
    """Writes one OME-Zarr store; small and picklable, each worker may hold its own.

    ``slab``: slabs begin at multiples of it and end at one or at the last slice.
    """

    path: Path
    shape: Shape
    dtype: np.dtype[Any]
    slab: int
    levels: int

    @staticmethod
    def create(
        path: Path,
        shape: Shape,
        dtype: np.dtype[Any],
        *,
        slab: int,
        voxel_size_um: Shape | tuple[float, float, float] | None,
        origin_um: tuple[float, float, float],
        attributes: dict[str, Any],
        levels: int | None = None,
        compressor: BytesBytesCodec | None = COMPRESSORS["fast"],
    ) -> "OmeZarrWriter":
        """Make the store, marked unfinished, with empty levels; what was at `path` is removed first."""
        shapes = level_shapes(shape, levels)
        writer = OmeZarrWriter(path, shape, dtype, slab, len(shapes))
        with writing(path):
            clear(path)
            writer.progress.start(path)
            group = zarr.create_group(path)
            for level, size in enumerate(shapes):
                shards, chunks = writer._layout(level, size)
                group.create_array(
                    str(level),
                    shape=size,
                    dtype=dtype,
                    shards=shards,
                    chunks=chunks,
                    compressors=compressor,
                    dimension_names=("z", "y", "x"),
                )
            group.attrs.update(
                {
                    "ome": {
                        "version": "0.5",
                        "multiscales": [multiscale(path.stem, shapes, voxel_size_um, origin_um)],
                    },
                    "dtomo": {**attributes, "complete": False},
                }
            )
        return writer

    @property
    def progress(self) -> Progress:
        """Which slabs are done."""
        return Progress(progress_folder(self.path))

    @property
    def shard_height(self) -> int:
        """Slices of a shard of level 0: divides a slab."""
        if self.slab >= self.shape[0]:
            return min(SHARD[0], self.shape[0])
        common = math.gcd(self.slab, SHARD[0])
        return common if self.slab > SHARD[0] and common >= 8 else self.slab

    def _by_slab(self, level: int) -> bool:
        """Whether a slab owns whole shards of a level."""
        return self.slab >= self.shape[0] or self.shard_height % 2**level == 0

    def _layout(self, level: int, size: Shape) -> tuple[Shape, Shape]:
        """Shards and chunks of a level; the height of a shard is a slab's share of it."""
        whole = self.slab >= self.shape[0] or not self._by_slab(level)
        height = min(16 if level else SHARD[0], size[0]) if whole else max(1, self.shard_height >> level)
        deep = math.gcd(height, CHUNK[0]) if height > CHUNK[0] or math.gcd(height, CHUNK[0]) >= 4 else height
        chunks, shards = [deep], [height]
        for axis in (1, 2):
            chunk = min(CHUNK[axis], size[axis])
            chunks.append(chunk)
            shards.append(chunk * math.ceil(min(SHARD[axis], size[axis]) / chunk))
        return (shards[0], shards[1], shards[2]), (chunks[0], chunks[1], chunks[2])

    def write_slab(self, z0: int, array: NDArray[Any]) -> None:
        """Write slices from `z0` on, ``(z, y, x)``, in every level it can, and mark them done.

        Raises
        ------
        UserError
            Borders that do not lie on shard borders (two slabs would lose each other's voxels), or a wrong
            shape.
        StoppedError
            The disk is full; the run can be resumed.
        """
        z1 = z0 + array.shape[0]
        check_slab(self, z0, array)
        self._check_borders(z0, z1)
        block = array.astype(self.dtype, copy=False)
        with writing(self.path, resumable=True), zarr.config.set(_WRITE):
            group = zarr.open_group(self.path, mode="r+")
            start = z0
            for level in range(self.levels):
                if level:
                    if not self._by_slab(level):
                        break
                    block, start = halved(block), start // 2
                _put_shards(_array(group, level), start, block)
            self.progress.mark(z0, z1, {})

    def check_slabs(self, slabs: Iterable[tuple[int, int]]) -> None:
        """Refuse slabs that would not own whole shards, before any of them is written.

        Two slabs that share a shard lose each other's voxels without a word; asked are the shards on disk.

        Raises
        ------
        UserError
            Naming the slab.
        """
        group = zarr.open_group(self.path, mode="r")
        for start, stop in slabs:
            self._check_borders(start, stop)
            for level in filter(self._by_slab, range(self.levels)):
                array = _array(group, level)
                height, first, end = (array.shards or array.chunks)[0], start >> level, -(-stop >> level)
                if first % height or (end % height and stop != self.shape[0]):
                    raise UserError(
                        f"slices {start} to {stop} do not own whole shards of level {level} of {self.path}, which are "
                        f"{height} slices high; start again with --overwrite"
                    )

    def _check_borders(self, z0: int, z1: int) -> None:
        if z0 % self.slab or (z1 % self.slab and z1 != self.shape[0]):
            raise UserError(
                f"slices {z0} to {z1} do not lie on shard borders of {self.path}: slabs there begin "
                f"at multiples of {self.slab} slices and end at one or at {self.shape[0]}"
            )

    def done(self) -> list[tuple[int, int]]:
        """(first slice, end) of every slab written."""
        return self.progress.slabs()

    def finish(self, attributes: dict[str, Any] | None = None) -> Path:
        """Make the levels still missing, add `attributes`, remove the mark.

        Raises
        ------
        UserError
            Slices that were never written.
        """
        check_whole(self, self.progress)
        with writing(self.path, resumable=True), zarr.config.set(_WRITE):
            group = zarr.open_group(self.path, mode="r+")
            for level in range(1, self.levels):
                if not self._by_slab(level):
                    _halve_level(_array(group, level - 1), _array(group, level))
            stated = dict(group.attrs["dtomo"])
            group.attrs["dtomo"] = {**stated, **(attributes or {}), "complete": True}
            self.progress.remove()
        return self.path


def check_slab(writer: Any, z0: int, array: NDArray[Any]) -> None:
    """UserError unless a slab fits into the volume and its values into the dtype."""
    fits = array.ndim == 3 and array.shape[1:] == writer.shape[1:] and array.shape[0] > 0
    if not fits or z0 < 0 or z0 + array.shape[0] > writer.shape[0]:
        raise UserError(
            f"a slab of shape {array.shape} at slice {z0} does not fit into {writer.path}, of shape {writer.shape}"
        )
    if array.dtype.kind == "c" and writer.dtype.kind != "c":
        raise UserError(f"complex values cannot be written to {writer.path}, which holds {writer.dtype}")


def check_whole(writer: Any, progress: Progress) -> None:
    """UserError naming the slices that were never written."""
    missing = progress.missing(writer.shape[0])
    if missing:
        parts = ", ".join(f"{start}:{stop}" for start, stop in missing[:4])
        raise UserError(f"{writer.path} is not complete: slices {parts} were never written; go on with --resume")


def _array(group: zarr.Group, level: int) -> zarr.Array:
    array = group[str(level)]
    assert isinstance(array, zarr.Array)
    return array


def _put_shards(array: zarr.Array, start: int, block: NDArray[Any]) -> None:
    """Write whole slices shard by shard: buffers for all shards at once would double a slab's memory."""
    _, height, width = array.shards or array.chunks
    for y in range(0, array.shape[1], height):
        for x in range(0, array.shape[2], width):
            part = (slice(y, y + height), slice(x, x + width))
            array[start : start + block.shape[0], *part] = block[:, *part]


def _halve_level(fine: zarr.Array, coarse: zarr.Array) -> None:
    """Fill a level from the one below it, shard by shard."""
    heights = coarse.shards or coarse.chunks
    steps = [2 if before > 1 else 1 for before in fine.shape]
    for corner in np.ndindex(*(math.ceil(size / height) for size, height in zip(coarse.shape, heights))):
        target = [slice(i * h, min((i + 1) * h, size)) for i, h, size in zip(corner, heights, coarse.shape)]
        source = tuple(slice(part.start * step, part.stop * step) for part, step in zip(target, steps))
        coarse[tuple(target)] = halved(np.asarray(fine[source]))


def multiscale(
    name: str, shapes: Sequence[Shape], voxel_size_um: Sequence[float] | None, origin_um: Sequence[float]
) -> dict[str, Any]:
    """The ``multiscales`` entry: axes with unit, scale and translation per level.

    The middle of a voxel of level n is the mean of the middles it was made from, so a level is shifted by
    (factor - 1) / 2 voxels of level 0: with 5.4 Å voxels 0, 2.7, 8.1 Å.
    """
    unit, size, origin = None, [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]
    if voxel_size_um is not None:
        unit = "angstrom" if max(voxel_size_um) < 0.01 else "micrometer"
        factor = length_factor("um", unit) or 1.0
        size, origin = [value * factor for value in voxel_size_um], [value * factor for value in origin_um]
    axes = [{"name": axis, "type": "space", **({"unit": unit} if unit else {})} for axis in "zyx"]
    datasets = []
    for level, factors in enumerate(level_factors(list(shapes))):
        scale = [_tidy(s * f) for s, f in zip(size, factors)]
        shift = [_tidy(o + s * (f - 1) / 2) for o, s, f in zip(origin, size, factors)]
        transforms = [{"type": "scale", "scale": scale}, {"type": "translation", "translation": shift}]
        datasets.append({"path": str(level), "coordinateTransformations": transforms})
    return {"name": name, "axes": axes, "datasets": datasets, "type": "mean"}


def _tidy(value: float) -> float:
    return float(f"{value:.12g}")
