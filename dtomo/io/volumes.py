"""Volumes: one interface for writing them slab by slab and for opening them lazily, whatever the format."""

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dtomo.errors import UserError, shown
from dtomo.io.bigtiff import tiff_dtype
from dtomo.io.em import em_dtype
from dtomo.io.mrc import mrc_dtype
from dtomo.io.ome_zarr import COMPRESSORS, OmeZarrWriter
from dtomo.io.output import check_output, progress_folder, unlocked_at_end, writing
from dtomo.io.progress import Progress
from dtomo.io.section_file import SectionFileWriter
from dtomo.io.volume_reader import Volume, open_volume

if TYPE_CHECKING:
    import dask.array as da

__all__ = [
    "Volume",
    "VolumeWriter",
    "create_volume",
    "open_volume",
    "open_writer",
    "volume_format",
    "written_bytes",
]

VoxelSize = float | tuple[float, float, float] | None
_FORMATS = {".zarr": "zarr", ".mrc": "mrc", ".map": "mrc", ".rec": "mrc", ".em": "em", ".tif": "tiff", ".tiff": "tiff"}


class VolumeWriter(Protocol):
    """Writes a volume ``(z, y, x)`` slab by slab; picklable, any process may write any slab, once."""

    @property
    def path(self) -> Path:
        """The output."""
        ...

    @property
    def shape(self) -> tuple[int, int, int]:
        """(z, y, x)"""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the voxels"""
        ...

    @property
    def slab(self) -> int:
        """Slabs begin at multiples of this many slices."""
        ...

    def write_slab(self, z0: int, array: NDArray[Any]) -> None:
        """Write slices from `z0` on and mark them done."""
        ...

    def check_slabs(self, slabs: Iterable[tuple[int, int]]) -> None:
        """UserError if two of these (first slice, end) would write to one shard; asked before the first is written."""
        ...

    def done(self) -> list[tuple[int, int]]:
        """(first slice, end) of every slab written."""
        ...

    def finish(self, attributes: dict[str, Any] | None = None) -> Path:
        """Complete the output and remove its mark."""
        ...


def volume_format(path: str | os.PathLike[str]) -> str:
    """ "zarr", "mrc", "em" or "tiff" by the suffix; UserError for any other."""
    suffix = Path(path).suffix.lower()
    if suffix not in _FORMATS:
        raise UserError(
            f"{path}: the output's suffix {suffix or '(none)'!r} is not known; use .zarr, .mrc, .em or .tif"
        )
    return _FORMATS[suffix]


def stored_dtype(path: str | os.PathLike[str], dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype the format of `path` keeps voxels in; UserError if it cannot hold them."""
    kind = volume_format(path)
    if kind == "zarr":
        if dtype.kind not in "uifc":
            raise UserError(f"{path}: a volume holds numbers, not {dtype}")
        return dtype
    by_format = {"mrc": mrc_dtype, "em": em_dtype, "tiff": tiff_dtype}
    return by_format[kind](Path(path), dtype)


def written_bytes(
    path: str | os.PathLike[str],
    shape: Iterable[int],
    dtype: DTypeLike = np.float32,
    levels: int | None = None,
) -> int:
    """Bytes an output takes at most: the voxels, and with OME-Zarr its coarser levels (an eighth each)."""
    voxels = math.prod(shape) * np.dtype(dtype).itemsize
    return voxels * 8 // 7 if volume_format(path) == "zarr" and levels != 1 else voxels


def check_levels(path: str | os.PathLike[str], levels: int | None) -> None:
    """UserError unless the format of `path` can have that many levels (None: as many as it likes)."""
    if levels is not None and levels < 1:
        raise UserError(f"{path}: a volume has at least 1 level, not {levels}")
    if levels is not None and levels > 1 and volume_format(path) != "zarr":
        raise UserError(f"{path}: only OME-Zarr (.zarr) has coarser levels; leave --levels {levels} out")


def check_compression(path: str | os.PathLike[str], compression: str | None) -> None:
    """UserError unless the format of `path` has that compression (None: its default)."""
    if compression is None:
        return
    if compression not in COMPRESSORS:
        raise UserError(f"compression is {', '.join(COMPRESSORS)}; got {shown(repr(compression))}")
    if compression != "none" and volume_format(path) != "zarr":
        raise UserError(f"{path}: only OME-Zarr (.zarr) is compressed; leave --compression {compression} out")


def create_volume(
    path: str | os.PathLike[str],
    shape: tuple[int, int, int],
    dtype: DTypeLike = np.float32,
    *,
    voxel_size_um: VoxelSize = None,
    origin_um: tuple[float, float, float] = (0.0, 0.0, 0.0),
    attributes: dict[str, Any] | None = None,
    slab: int = 64,
    overwrite: bool = False,
    resume: bool = False,
    inputs: Iterable[str | os.PathLike[str]] = (),
    levels: int | None = None,
    compression: str | None = None,
) -> VolumeWriter:
    """Create an output, marked unfinished, by its suffix: OME-Zarr 0.5, MRC, EM or BigTIFF.

    Until it is finished or this process ends, other processes may not resume or replace it.

    Parameters
    ----------
    path
        ``.zarr``, ``.mrc`` (``.map``, ``.rec``), ``.em`` or ``.tif`` (``.tiff``).
    shape, dtype
        (z, y, x); of the voxels.
    voxel_size_um
        One number or (z, y, x), µm; None if unknown. EM files do not keep it.
    origin_um
        Place (z, y, x) of voxel (0, 0, 0), kept by OME-Zarr and MRC.
    attributes
        What the output was made with (JSON values), kept by OME-Zarr under ``dtomo``; a resumed run must
        have the same.
    slab
        Slices per slab: slabs begin at its multiples. OME-Zarr shards are cut to it; 8 or more is advisable.
    overwrite, resume, inputs
        See `check_output`; a resumed output keeps the slabs done.
    levels
        Levels of OME-Zarr, at most; None: until no side exceeds 256; 1: none but the volume itself.
    compression
        Of OME-Zarr, without loss: "none", "fast" (None: this one) or "small"; other formats have none.

    Raises
    ------
    UserError
        The output is refused, or differs from the one to be resumed.
    """
    kind = volume_format(path)
    size = tuple(int(n) for n in shape)
    if len(size) != 3 or min(size) < 1 or slab < 1:
        raise UserError(
            f"{path}: a volume needs a shape (z, y, x) of positive sizes and slabs of at least 1, not {shape}, {slab}"
        )
    dtype = np.dtype(dtype).newbyteorder("=")
    check_levels(path, levels)
    check_compression(path, compression)
    spacing = _spacing(path, voxel_size_um)
    stored = stored_dtype(path, dtype)
    target = check_output(
        path,
        inputs=inputs,
        overwrite=overwrite,
        resume=resume,
        bytes_needed=written_bytes(path, size, stored, levels),
    )
    settings = {
        "format": kind,
        "shape": list(size),
        "dtype": dtype.name,
        "slab": slab,
        "voxel_size_um": spacing and list(spacing),
        "origin_um": list(origin_um),
        "attributes": attributes or {},
        "levels": levels,
        "compression": compression or ("fast" if kind == "zarr" else "none"),
    }
    progress = Progress(progress_folder(target))
    if resume and progress.settings() is not None:
        _same_settings(target, progress.settings() or {}, settings)
        with writing(target):
            progress.start(target)
        return open_writer(target)
    writer: OmeZarrWriter | SectionFileWriter
    if kind == "zarr":
        writer = OmeZarrWriter.create(
            target,
            size,
            dtype,
            slab=slab,
            voxel_size_um=spacing,
            origin_um=origin_um,
            attributes=attributes or {},
            levels=levels,
            compressor=COMPRESSORS[compression or "fast"],
        )
        progress.save_settings({**settings, "writer": {"levels": writer.levels}})
    else:
        writer = SectionFileWriter.create(
            target, size, dtype, format=kind, slab=slab, voxel_size_um=spacing, origin_um=origin_um
        )
        progress.save_settings({**settings, "writer": {"stored": writer.stored.name, "offset": writer.offset}})
    return writer


def open_writer(path: str | os.PathLike[str]) -> VolumeWriter:
    """The writer of an unfinished output, from its path alone.

    Raises
    ------
    UserError
        There is no unfinished output at `path`.
    """
    target = Path(os.path.realpath(path))
    settings = Progress(progress_folder(target)).settings()
    if settings is None:
        raise UserError(f"{path} is not an unfinished dtomo output; create it first")
    try:
        shape, dtype, own = tuple(settings["shape"]), np.dtype(settings["dtype"]), settings["writer"]
        if settings["format"] == "zarr":
            return OmeZarrWriter(target, shape, dtype, settings["slab"], own["levels"])
        return SectionFileWriter(
            target, shape, dtype, settings["slab"], settings["format"], np.dtype(own["stored"]), own["offset"]
        )
    except (KeyError, TypeError) as error:
        raise UserError(f"the settings beside {path} are not what dtomo wrote; start again with --overwrite") from error


def _spacing(path: str | os.PathLike[str], voxel_size_um: VoxelSize) -> tuple[float, float, float] | None:
    if voxel_size_um is None:
        return None
    values = np.broadcast_to(np.asarray(voxel_size_um, np.float64), 3)
    if not np.isfinite(values).all() or values.min() <= 0:
        raise UserError(f"{path}: the voxel size must be positive, in µm, not {voxel_size_um}")
    return float(values[0]), float(values[1]), float(values[2])


def _same_settings(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    for name, value in now.items():
        old = before.get(name)
        if name == "attributes":
            old = old or {}
            differing = [key for key in {*old, *value} if old.get(key) != _plain(value.get(key))]
            if differing:
                key = sorted(differing)[0]
                raise UserError(
                    f"{path} was begun with {key} = {old.get(key)!r}, not {value.get(key)!r}: "
                    "resume with the same settings, or start again with --overwrite"
                )
        elif old != value:
            raise UserError(
                f"{path} was begun with {name} {old}, not {value}: resume with the same settings, or "
                "start again with --overwrite"
            )


def _plain(value: Any) -> Any:
    """A value as JSON would give it back."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def store_volume(array: "da.Array | NDArray[Any]", path: str | os.PathLike[str], **options: Any) -> Path:
    """Write a whole array, plain or Dask, in slabs; irregular Dask chunks are brought to slabs first.

    `options` are those of `create_volume`.
    """
    if not hasattr(array, "dask"):
        array = np.asarray(array)
    writer = create_volume(path, array.shape, array.dtype, **options)
    with unlocked_at_end(path):
        if not isinstance(array, np.ndarray):
            import dask

            regular = array.rechunk({0: writer.slab, 1: -1, 2: -1})
            starts = np.cumsum([0, *regular.chunks[0][:-1]])
            writer.check_slabs((int(start), int(start) + size) for start, size in zip(starts, regular.chunks[0]))
            blocks = regular.to_delayed().reshape(-1)
            dask.compute(*(dask.delayed(writer.write_slab)(int(start), block) for start, block in zip(starts, blocks)))
        else:
            for start in range(0, array.shape[0], writer.slab):
                writer.write_slab(start, np.asarray(array[start : start + writer.slab]))
        return writer.finish()
