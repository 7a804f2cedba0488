"""Open volumes lazily: OME-Zarr 0.4 and 0.5, plain Zarr, MRC, EM, TIFF, HDF5."""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import zarr

from dtomo.errors import UserError
from dtomo.io.bigtiff import tiff_voxel_size
from dtomo.io.damage import DAMAGE, too_large
from dtomo.io.em import HEADER_BYTES, looks_like_em, read_em_header
from dtomo.io.hdf5 import list_stacks
from dtomo.io.hdf5_files import open_hdf5
from dtomo.io.heads import head_of, refuse_missing
from dtomo.io.mrc import looks_like_mrc, read_mrc_header
from dtomo.io.output import progress_folder
from dtomo.io.scan import FrameView
from dtomo.io.sources import HDF5Source, MrcSource, Source, ZarrSource, hdf5_source
from dtomo.io.tiff import is_tiff, tiff_source
from dtomo.io.units import length_factor
from dtomo.io.zarr_store import is_zarr, refuse_broken_store

if TYPE_CHECKING:
    import dask.array as da

_BLOCK = 64 * 2**20


@dataclasses.dataclass(frozen=True, eq=False)
class Volume:
    """A volume ``(z, y, x)`` on disk.

    Attributes
    ----------
    path, format
        Where and what: "zarr", "mrc", "em", "tiff", "hdf5".
    source
        Reads slices: ``source.read(slice(z0, z1))``.
    array
        The same, lazy.
    voxel_size, origin, unit
        (z, y, x) in `unit` ("micrometer", "angstrom", …), or None if unknown.
    attributes
        What dtomo noted when it wrote it.
    complete
        Always True for what `open_volume` lets pass; False only with ``unfinished=True``.
    warnings
        Sentences for the user.
    """

    path: Path
    format: str
    source: Source
    voxel_size: tuple[float, float, float] | None = None
    unit: str | None = None
    origin: tuple[float, float, float] = (0.0, 0.0, 0.0)
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    complete: bool = True
    warnings: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int, int]:
        """(z, y, x)"""
        return self.source.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the voxels"""
        return self.source.dtype

    @property
    def array(self) -> "da.Array":
        """Lazy ``(z, y, x)`` in slabs of whole slices; its graph holds the path, never the voxels."""
        import dask.array as da
        from dask.base import tokenize

        z, y, x = self.shape
        view = FrameView(self.source, (0, y, 0, x), 1)
        height = max(1, min(z, 64, _BLOCK // max(1, y * x * self.dtype.itemsize)))
        name = "volume-" + tokenize(self.source)
        meta = np.empty((0, 0, 0), self.dtype)
        return da.from_array(view, chunks=(height, y, x), name=name, asarray=False, meta=meta)

    @property
    def voxel_size_um(self) -> tuple[float, float, float] | None:
        """(z, y, x) in µm, or None."""
        return self._in_um(self.voxel_size)

    @property
    def origin_um(self) -> tuple[float, float, float]:
        """Place of voxel (0, 0, 0) in µm; zero if the unit is unknown."""
        return self._in_um(self.origin) or (0.0, 0.0, 0.0)

    def _in_um(self, values: tuple[float, float, float] | None) -> tuple[float, float, float] | None:
        factor = length_factor(self.unit or "", "um")
        if values is None or factor is None:
            return None
        z, y, x = (float(f"{value * factor:.12g}") for value in values)
        return z, y, x

    def isotropic_voxel_size(self) -> float | None:
        """The one size of the voxels in `unit`, or None if unknown.

        Raises
        ------
        UserError
            Sizes along z, y and x that differ by more than 0.1 %: they are never averaged.
        """
        if self.voxel_size is None:
            return None
        if max(self.voxel_size) > min(self.voxel_size) * 1.001:
            sizes = " × ".join(f"{size:g}" for size in self.voxel_size[::-1])
            raise UserError(
                f"{self.path} has voxels of {sizes} {self.unit} (x, y, z), which are not cubes; resample it first"
            )
        return self.voxel_size[0]


def open_volume(path: str | os.PathLike[str], *, level: int = 0, unfinished: bool = False) -> Volume:
    """Open a volume by its content; nothing but metadata is read.

    Parameters
    ----------
    path
        OME-Zarr or Zarr store, MRC, EM, TIFF (file or folder of slices), or HDF5 as ``FILE.h5:/dataset``.
    level
        Level of an OME-Zarr store; 0 is the finest.
    unfinished
        Let an unfinished output pass (to look at it).

    Raises
    ------
    UserError
        Missing, unfinished, truncated, or not a volume.
    """
    text = os.fspath(path)
    name, _, dataset = text.rpartition(":/")
    if name and not Path(text).exists():
        return _open_hdf5(Path(name), "/" + dataset)
    path = Path(text)
    if progress_folder(path).is_dir() and not unfinished:
        raise UserError(f"{path} is unfinished; finish it with --resume, then open it")
    refuse_missing(path)
    if path.is_dir():
        refuse_broken_store(path)
        if is_zarr(path):
            return _open_zarr(path, level, unfinished)
        return Volume(path, "tiff", tiff_source(path))
    head = head_of(path)
    if h5py.is_hdf5(path):
        return _open_hdf5(path, None)
    if is_tiff(head):
        source = tiff_source(path)
        size = tiff_voxel_size(path)
        return Volume(path, "tiff", source, size, None if size is None else "micrometer")
    if looks_like_em(path):
        return _open_em(path)
    if looks_like_mrc(path):
        return _open_mrc(path)
    raise UserError(f"{path} is not a volume dtomo knows: expected OME-Zarr, MRC, EM, TIFF or HDF5")


def _open_em(path: Path) -> Volume:
    found = read_em_header(path)
    dtype = found.stored.newbyteorder("=")
    return Volume(path, "em", MrcSource(path, HEADER_BYTES, found.stored.str, found.shape, dtype))


def _open_mrc(path: Path) -> Volume:
    found = read_mrc_header(path)
    size = found.voxel_size
    return Volume(
        path,
        "mrc",
        found.source,
        size,
        None if size is None else "angstrom",
        found.origin,
        warnings=found.warnings,
    )


def _open_hdf5(path: Path, dataset: str | None) -> Volume:
    with open_hdf5(path) as file:
        if dataset is None:
            stacks: list[str] = []
            file.visititems(lambda name, item: stacks.append("/" + name) if _is_stack(item) else None)
            if len(stacks) != 1:
                raise UserError(f"{path} has {list_stacks(file)}: name one as {path}:/DATASET")
            dataset = stacks[0]
        elif dataset not in file:
            raise UserError(f"{path} has no dataset {dataset}; it has {list_stacks(file)}")
        source: HDF5Source = hdf5_source(file, path, dataset, complex_too=True)
    return Volume(path, "hdf5", source)


def _is_stack(item: object) -> bool:
    return isinstance(item, h5py.Dataset) and item.ndim == 3


def _open_zarr(path: Path, level: int, unfinished: bool) -> Volume:
    try:
        return _describe_zarr(path, zarr.open(path, mode="r"), level, unfinished)
    except UserError:
        raise
    except MemoryError as error:
        raise too_large(path, error) from error
    except (*DAMAGE, zarr.errors.BaseZarrError) as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        raise UserError(f"{path} cannot be read as Zarr or OME-Zarr ({reason}); its metadata are damaged") from error


def _describe_zarr(path: Path, item: zarr.Array | zarr.Group, level: int, unfinished: bool) -> Volume:
    if isinstance(item, zarr.Array):
        return Volume(path, "zarr", _zarr_source(path, "", item))
    attributes = dict(item.attrs)
    ome: Any = attributes.get("ome", attributes)
    scales = ome.get("multiscales") if isinstance(ome, dict) else None
    if not scales:
        arrays, groups = (sorted(name for name, _ in members) for members in (item.arrays(), item.groups()))
        inside = f"arrays {arrays}" + (f", groups {groups}" if groups else "")
        raise UserError(f"{path} is a Zarr group without OME metadata ({inside}); open one of these")
    own: Any = attributes.get("dtomo", {})
    complete = bool(own.get("complete", True))
    if not complete and not unfinished:
        raise UserError(f"{path} is unfinished; finish it with --resume, then open it")
    noted = {name: value for name, value in own.items() if name != "complete"}
    return _from_multiscale(path, item, scales[0], level, noted, complete)


def _from_multiscale(
    path: Path,
    group: zarr.Group,
    scales: dict[str, Any],
    level: int,
    attributes: dict[str, Any],
    complete: bool,
) -> Volume:
    datasets = scales["datasets"]
    if not 0 <= level < len(datasets):
        raise UserError(f"{path} has levels 0 to {len(datasets) - 1}, there is no level {level}")
    name = datasets[level]["path"]
    array = group.get(name)
    if not isinstance(array, zarr.Array):
        raise UserError(f"{path} lacks the array {name} that its metadata name")
    scale, shift = [1.0] * array.ndim, [0.0] * array.ndim
    for step in [
        *datasets[level].get("coordinateTransformations", []),
        *scales.get("coordinateTransformations", []),
    ]:
        if step["type"] == "scale":
            scale = [a * float(b) for a, b in zip(scale, step["scale"], strict=True)]
            shift = [a * float(b) for a, b in zip(shift, step["scale"], strict=True)]
        elif step["type"] == "translation":
            shift = [a + float(b) for a, b in zip(shift, step["translation"], strict=True)]
    axes = scales.get("axes", [])
    unit = axes[-1].get("unit") if axes and isinstance(axes[-1], dict) else None
    return Volume(
        path,
        "zarr",
        _zarr_source(path, name, array),
        (scale[-3], scale[-2], scale[-1]) if unit else None,
        unit,
        (shift[-3], shift[-2], shift[-1]),
        attributes,
        complete,
    )


def _zarr_source(path: Path, name: str, array: zarr.Array) -> ZarrSource:
    shape = (1, *array.shape) if array.ndim == 2 else array.shape
    if len(shape) < 3 or any(size != 1 for size in shape[:-3]) or 0 in shape or array.dtype.kind not in "uifc":
        raise UserError(f"{path / name} holds {array.dtype} of shape {array.shape}; a volume has three axes (z, y, x)")
    return ZarrSource(path, name, shape[-3:], array.dtype.newbyteorder("="))
