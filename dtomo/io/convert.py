"""Volumes and scans from one format to another, slab by slab and frame by frame."""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import DtomoError, StoppedError, UserError
from dtomo.io.dxchange_writer import write_dxchange
from dtomo.io.em import copy_em_header
from dtomo.io.hdf5 import CENTER, SOURCE_SAMPLE
from dtomo.io.output import check_output, unlocked_at_end
from dtomo.io.scan import Scan
from dtomo.io.section_file import SectionFileWriter
from dtomo.io.volumes import VoxelSize, create_volume, open_volume, stored_dtype, volume_format
from dtomo.io.zarr_store import write_zarr_scan

_SLAB_BYTES = 256 * 2**20


def slab_for(shape: tuple[int, int, int], itemsize: int, limit: int = _SLAB_BYTES) -> int:
    """Slices of a slab of at most about `limit` bytes: a power of two from 1 to 64."""
    fitting = max(1, limit // max(1, shape[1] * shape[2] * itemsize))
    return min(64, 2 ** int(math.log2(fitting)))


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    voxel_size_um: VoxelSize = None,
    overwrite: bool = False,
) -> Path:
    """Copy a volume into the format of the target's suffix; memory holds one slab (about 256 MB).

    Parameters
    ----------
    source
        Any volume `open_volume` reads.
    target
        ``.zarr``, ``.mrc``, ``.em`` or ``.tif``; from EM to EM the header goes along.
    voxel_size_um
        In place of what the source says.
    overwrite
        Replace an existing output.

    Raises
    ------
    UserError
        The source cannot be opened or the output is refused; see `open_volume` and `create_volume`.
    StoppedError
        The source turned out to be damaged, or the disk or the memory full, when the output had been begun.
    """
    volume_format(target)
    volume = open_volume(source)
    dtype = stored_dtype(target, volume.dtype)
    slab = slab_for(volume.shape, dtype.itemsize)
    writer = create_volume(
        target,
        volume.shape,
        dtype,
        voxel_size_um=volume.voxel_size_um if voxel_size_um is None else voxel_size_um,
        origin_um=volume.origin_um,
        attributes={"converted_from": str(volume.path)},
        slab=slab,
        overwrite=overwrite,
        inputs=[volume.path],
    )
    with unlocked_at_end(target), _unfinished(target):
        if volume.format == "em" and isinstance(writer, SectionFileWriter) and writer.format == "em":
            copy_em_header(volume.path, writer.part)
        for start in range(0, volume.shape[0], slab):
            writer.write_slab(start, volume.source.read(slice(start, start + slab)))
        return writer.finish()


@contextlib.contextmanager
def _unfinished(target: str | os.PathLike[str]) -> Iterator[None]:
    """What goes wrong after the output was begun."""
    try:
        yield
    except (DtomoError, MemoryError) as error:
        what = str(error).split("; what is done is kept")[0] if isinstance(error, DtomoError) else "no memory is left"
        raise StoppedError(f"{what}; {target} is unfinished: start again with --overwrite") from error


def convert_scan(scan: Scan, target: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write a scan, as cropped and binned, as Data Exchange (``.h5``) or Zarr (``.zarr``), frame by frame.

    Raises
    ------
    UserError
        Another suffix, or the output is refused.
    """
    suffix = Path(target).suffix.lower()
    if suffix not in (".h5", ".hdf5", ".hdf", ".zarr"):
        raise UserError(f"{target}: scans are written as .h5 (Data Exchange) or .zarr, not as {suffix!r}")
    check_output(target, inputs=scan.inputs, overwrite=overwrite)
    references = [None if frames is None else frames.compute(scheduler="sync") for frames in (scan.flats, scan.darks)]
    stated = {"center": scan.center, "source_sample_distance": scan.source_sample_distance}
    stated = {name: value for name, value in stated.items() if value is not None}
    common: dict[str, Any] = {
        "frames": _frames(scan),
        "shape": scan.shape,
        "dtype": scan.dtype if scan.binning == 1 else np.complex64 if scan.is_complex else np.float32,
        "flats": references[0],
        "darks": references[1],
        "angles": scan.angles,
        "pixel_size": scan.pixel_size,
        "energy": scan.energy,
        "sample_detector_distance": scan.sample_detector_distance,
        "overwrite": overwrite,
    }
    if suffix == ".zarr":
        return write_zarr_scan(Path(target), extra={**stated, "values": scan.values}, **common)
    places: dict[str, Any] = {"center": CENTER[0], "source_sample_distance": SOURCE_SAMPLE[0]}
    extra = {places[name]: (value, "pixels" if name == "center" else "mm") for name, value in stated.items()}
    return write_dxchange(target, extra=extra, **common)


def _frames(scan: Scan, batch: int = 16) -> Iterator[NDArray[Any]]:
    """Projections one after the other, read a few at a time."""
    for start in range(0, scan.shape[0], batch):
        yield from scan.read(angles=slice(start, start + batch)).projections
