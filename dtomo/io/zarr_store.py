"""Scans in a Zarr store.

Layout (version 1): a group with the attribute ``dtomo_scan`` = 1 (not needed for reading) and the arrays

- ``projections`` (angle, row, column), raw counts, transmissions or (real or complex) line integrals
- ``flats``, ``darks`` (frame, row, column) or (row, column), optional
- ``angles`` (angle,), float64, attribute ``units``: "degrees" or "radians"

and the group attributes ``pixel_size`` (µm), ``energy`` (keV), ``sample_detector_distance``,
``source_sample_distance`` (mm), ``center`` (column), ``values`` ("counts", "transmission" or "integrals"; also
``normalized``, true for transmissions), each optional.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import zarr
from numpy.typing import ArrayLike, DTypeLike, NDArray
from zarr.codecs import BloscCodec

from dtomo.errors import UserError
from dtomo.io.angles import MOST_ANGLES, AngleTable, angle_unit
from dtomo.io.damage import DAMAGE, too_large
from dtomo.io.output import check_output, clear, progress_folder, unlocked_at_end, writing
from dtomo.io.progress import Progress
from dtomo.io.reading import Reading
from dtomo.io.scan import Values
from dtomo.io.sources import ZarrSource, check_frames

CHUNK = (32, 64, 1024)
"""Angles, rows and columns of a chunk of a scan written here: slabs of 64 rows are read in whole ones."""
_METADATA = ("pixel_size", "energy", "sample_detector_distance", "source_sample_distance", "center")


def is_zarr(path: Path) -> bool:
    """Whether a folder is a Zarr store, version 2 or 3."""
    return any((path / name).is_file() for name in ("zarr.json", ".zgroup", ".zarray"))


def refuse_broken_store(path: Path) -> None:
    """UserError for a folder that is a Zarr store by its name only."""
    if path.suffix.lower() == ".zarr" and not is_zarr(path):
        held = "it is empty" if not any(path.iterdir()) else "it has none of zarr.json, .zgroup, .zarray"
        raise UserError(f"{path} is not a Zarr store: {held}; copy the whole store again")


def read_zarr_scan(path: Path) -> Reading:
    """A scan in the layout above.

    Raises
    ------
    UserError
        No array ``projections``, or arrays of a wrong shape, naming them.
    """
    if progress_folder(path).is_dir():
        raise UserError(f"{path} is unfinished: its writing was interrupted; write it again")
    if _is_array(path):
        return _read_array(path)
    with _opened_group(path) as group:
        return _read(path, group)


def _is_array(path: Path) -> bool:
    """Whether a store is one array, without a group around it."""
    try:
        return isinstance(zarr.open(path, mode="r"), zarr.Array)
    except (*DAMAGE, zarr.errors.BaseZarrError) as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(f"{path} cannot be read as Zarr ({reason}); its metadata are damaged") from error


def _read_array(path: Path) -> Reading:
    """Projections alone; the angles are given."""
    data = zarr.open_array(path, mode="r")
    shape = (1, *data.shape) if data.ndim == 2 else data.shape
    check_frames(shape, data.dtype, str(path), complex_too=True)
    source = ZarrSource(path, "", shape, data.dtype.newbyteorder("="))
    return Reading(path, "zarr", source, found={"projections": str(path)}, inputs=[path])


def _read(path: Path, group: zarr.Group) -> Reading:
    names = sorted(name for name, _ in group.arrays())
    if "projections" not in names:
        kind = "an OME-Zarr volume" if "ome" in group.attrs or "multiscales" in group.attrs else f"arrays {names}"
        raise UserError(f"{path} has no array 'projections' but {kind}, so it is not a scan")
    reading = Reading(path, "zarr", _source(path, group, "projections"), inputs=[path])
    reading.found["projections"] = f"{path}/projections"
    for what in ("flats", "darks"):
        if what in names and group[what].size:
            setattr(reading, what, _source(path, group, what))
            reading.found[what] = f"{path}/{what}"
    if "angles" in names:
        where = f"{path}/angles"
        data = group["angles"]
        if data.ndim != 1 or data.dtype.kind not in "uif":
            raise UserError(f"{where} holds {data.dtype} of shape {data.shape}, expected one angle per projection")
        unit = data.attrs.get("units", data.attrs.get("unit"))
        if data.size > MOST_ANGLES:
            raise UserError(f"{where} has {data.size} values, which cannot be one angle per projection")
        reading.angles = AngleTable(np.asarray(data[:], np.float64), angle_unit(_text(unit), where), where)
        reading.found["angles"] = where
    for name in _METADATA:
        value = group.attrs.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(f"{path}: the attribute {name} is {value!r}, expected a number")
        setattr(reading, name, float(value))
        reading.found[name] = f"{path}: attribute {name}"
    return reading


def stated_values(path: Path) -> Values | None:
    """What the store says that its projections hold; None if it does not say.

    Raises
    ------
    UserError
        Something else than "counts", "transmission" or "integrals".
    """
    if _is_array(path):
        return None
    with _opened_group(path) as group:
        stated = group.attrs.get("values")
        if stated is None:
            return "transmission" if group.attrs.get("normalized") is True else None
        for known in get_args(Values):
            if stated == known:
                return known
        raise UserError(f"{path}: the attribute values is {stated!r}, expected {' or '.join(get_args(Values))}")


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


@contextlib.contextmanager
def _opened_group(path: Path) -> Iterator[zarr.Group]:
    try:
        yield zarr.open_group(path, mode="r")
    except UserError:
        raise
    except MemoryError as error:
        raise too_large(path, error) from error
    except (*DAMAGE, zarr.errors.BaseZarrError) as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        raise UserError(f"{path} cannot be opened as a Zarr group ({reason})") from error


def _source(path: Path, group: zarr.Group, name: str) -> ZarrSource:
    data = group[name]
    if not isinstance(data, zarr.Array):
        raise UserError(f"{path}/{name} is a group, expected an array of frames")
    shape = (1, *data.shape) if data.ndim == 2 else data.shape
    check_frames(shape, data.dtype, f"{path}/{name}", complex_too=name == "projections")
    return ZarrSource(path, name, shape, data.dtype.newbyteorder("="))


@contextlib.contextmanager
def new_zarr_scan(
    path: Path | str,
    *,
    shape: tuple[int, int, int],
    dtype: DTypeLike,
    angles: ArrayLike,
    flats: ArrayLike | None = None,
    darks: ArrayLike | None = None,
    pixel_size: float | None = None,
    energy: float | None = None,
    sample_detector_distance: float | None = None,
    extra: dict[str, Any] | None = None,
    overwrite: bool = False,
) -> Iterator[zarr.Array]:
    """A new scan in the layout above; gives its array of projections (angle, row, column), to be filled.

    Chunks hold 32 angles, 64 rows and 1024 columns: whole ones are to be written. The store is marked unfinished
    until the end of the ``with``, and stays so after an error. Parameters that are not named here are those of
    `write_dxchange`.

    Parameters
    ----------
    shape, dtype
        Of the projections.
    extra
        Further group attributes (JSON values).

    Raises
    ------
    UserError
        The output is refused, or shape, dtype and angles make no scan.
    """
    path, dtype = Path(path), np.dtype(dtype)
    check_frames(shape, dtype, f"{path}/projections", complex_too=True)
    values = np.asarray(angles, np.float64)
    if values.shape != (shape[0],):
        raise UserError(f"{values.size} angles for {shape[0]} projections; give one per projection")
    needed = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    path = check_output(path, overwrite=overwrite, bytes_needed=needed)
    with writing(path), unlocked_at_end(path):
        clear(path)
        progress = Progress(progress_folder(path))
        progress.start(path)
        group = zarr.create_group(path)
        chunks = tuple(min(most, size) for most, size in zip(CHUNK, shape))
        store = group.create_array(
            "projections", shape=shape, dtype=dtype, chunks=chunks, compressors=BloscCodec(cname="lz4")
        )
        yield store
        for name, data in (("flats", flats), ("darks", darks)):
            if data is not None:
                array = np.asarray(data)
                array = array[None] if array.ndim == 2 else array
                group.create_array(name, data=array, chunks=(1, *array.shape[1:]))
        group.create_array("angles", data=values).attrs["units"] = "degrees"
        metadata = {
            "pixel_size": pixel_size,
            "energy": energy,
            "sample_detector_distance": sample_detector_distance,
        }
        stated = {name: value for name, value in metadata.items() if value is not None}
        group.attrs.update({"dtomo": {"complete": True}, **(extra or {}), **stated, "dtomo_scan": 1})
        progress.remove()


def write_zarr_scan(
    path: Path | str, *, frames: Iterable[NDArray[Any]], shape: tuple[int, int, int], **options: Any
) -> Path:
    """Write a scan in the layout above, frame by frame; memory holds 32 frames at a time.

    `options` are those of `new_zarr_scan`.
    """
    with new_zarr_scan(path, shape=shape, **options) as store:
        count = 0
        for batch in _batches(frames, store.chunks[0]):
            store[count : count + len(batch)] = batch
            count += len(batch)
        if count != shape[0]:
            raise UserError(f"{count} frames were given where shape says {shape[0]}")
    return Path(path)


def _batches(frames: Iterable[NDArray[Any]], size: int) -> Iterable[NDArray[Any]]:
    batch: list[NDArray[Any]] = []
    for frame in frames:
        batch.append(frame)
        if len(batch) == size:
            yield np.stack(batch)
            batch = []
    if batch:
        yield np.stack(batch)
