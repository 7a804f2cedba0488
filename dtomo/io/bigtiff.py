"""Volumes as TIFF: one BigTIFF of uncompressed pages with OME metadata written, any TIFF stack read."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import tifffile

from dtomo.errors import UserError
from dtomo.io.units import length_factor

_WRITABLE = ("int8", "int16", "int32", "uint8", "uint16", "uint32", "float32", "float64")


def tiff_dtype(path: Path, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype TIFF stores voxels in (float16 as float32); UserError for those others do not read."""
    if dtype == np.float16:
        return np.dtype(np.float32)
    if dtype.name not in _WRITABLE:
        raise UserError(f"{path}: TIFF volumes cannot hold {dtype}; write OME-Zarr, or convert to float32")
    return dtype


def create_bigtiff(
    path: Path, shape: Sequence[int], dtype: np.dtype[Any], voxel_size_um: Sequence[float] | None
) -> tuple[int, np.dtype[Any]]:
    """A BigTIFF of the full size with its headers; the data are holes, to be filled by ``pwrite``.

    Parameters
    ----------
    shape, voxel_size_um
        (z, y, x); µm, kept as OME metadata.

    Returns
    -------
    tuple
        Offset of the data in bytes, and the dtype they are stored in.

    Raises
    ------
    UserError
        A dtype TIFF readers do not know.
    """
    dtype = tiff_dtype(path, dtype)
    metadata: dict[str, Any] = {"axes": "ZYX"}
    if voxel_size_um is not None:
        for axis, size in zip("ZYX", voxel_size_um):
            metadata |= {f"PhysicalSize{axis}": float(f"{size:.9g}"), f"PhysicalSize{axis}Unit": "µm"}
    offset, _ = tifffile.imwrite(
        path,
        shape=tuple(shape),
        dtype=dtype,
        bigtiff=True,
        ome=True,
        byteorder="<",
        photometric="minisblack",
        metadata=metadata,
        returnoffset=True,
    )
    return int(offset), dtype


def tiff_voxel_size(path: Path) -> tuple[float, float, float] | None:
    """(z, y, x) in µm from OME or ImageJ metadata, or None."""
    with tifffile.TiffFile(path) as file:
        if file.is_ome and file.ome_metadata:
            return _from_ome(file.ome_metadata)
        if file.is_imagej:
            return _from_imagej(file)
    return None


def _from_ome(text: str) -> tuple[float, float, float] | None:
    try:
        root = ElementTree.fromstring(text)  # (the standard parser resolves no external entities)
    except ElementTree.ParseError:
        return None
    pixels = next((item for item in root.iter() if item.tag.endswith("}Pixels")), None)
    if pixels is None:
        return None
    sizes = []
    for axis in "ZYX":
        value = pixels.get(f"PhysicalSize{axis}")
        factor = length_factor(pixels.get(f"PhysicalSize{axis}Unit", "µm"), "um")
        if value is None or factor is None or not re.fullmatch(r"[\d.eE+-]+", value):
            return None
        sizes.append(float(f"{float(value) * factor:.9g}"))
    return (sizes[0], sizes[1], sizes[2]) if min(sizes) > 0 else None


def _from_imagej(file: tifffile.TiffFile) -> tuple[float, float, float] | None:
    metadata = file.imagej_metadata or {}
    unit = str(metadata.get("unit", "")).replace("\\u00B5", "µ")
    factor = length_factor(unit, "um")
    tags = file.pages.first.tags
    if factor is None or "XResolution" not in tags or "YResolution" not in tags:
        return None
    x, y = (tags[name].value for name in ("XResolution", "YResolution"))
    if not x[0] or not y[0] or not x[1] or not y[1]:
        return None
    sizes = (float(metadata.get("spacing", x[1] / x[0])), y[1] / y[0], x[1] / x[0])
    z, y_size, x_size = (float(f"{size * factor:.9g}") for size in sizes)
    return z, y_size, x_size
