"""The geometry of a scan as a group of its HDF5 file: the vectors of each view, the detector and the volume."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dtomo.errors import UserError
from dtomo.geometry import VectorGeometry
from dtomo.io.hdf5_files import node, text_attribute
from dtomo.io.units import convert_length

GROUP = "/geometry"
VECTORS = ("source", "detector", "column_step", "row_step")


def geometry_items(geometry: VectorGeometry, unit: str = "mm") -> dict[str, Any]:
    """Datasets of the group ``/geometry``, as `write_dxchange` takes them: name -> value or (value, unit).

    Parameters
    ----------
    unit
        Of the geometry's lengths.
    """
    parallel = geometry.beam == "parallel"
    items: dict[str, Any] = {"beam": geometry.beam, "shape": np.array(geometry.shape, np.int64)}
    items |= {
        name: getattr(geometry, name) if parallel and name == "source" else (getattr(geometry, name), unit)
        for name in VECTORS
    }
    items |= {"voxel": (np.array(geometry.voxel), unit), "middle": (np.array(geometry.middle), unit)}
    return {f"{GROUP}/{name}": value for name, value in items.items()}


def read_geometry(file: h5py.File, path: Path, shape: tuple[int, int, int]) -> VectorGeometry | None:
    """The geometry that an HDF5 file holds, lengths in millimetres; None if there is none.

    Parameters
    ----------
    shape
        ``(view, row, column)`` of the projections.

    Raises
    ------
    UserError
        A group that lacks something, holds what is no geometry, or one of another number of views.
    """
    group = node(file, GROUP)
    if not isinstance(group, h5py.Group) or not isinstance(node(group, "beam"), h5py.Dataset):
        return None
    where = f"{path}:{GROUP}"
    values: dict[str, Any] = {}
    for name in ("beam", "shape", *VECTORS, "voxel", "middle"):
        data = node(group, name)
        if not isinstance(data, h5py.Dataset) or data.shape is None or data.size > 12 * max(shape[0], 1):
            raise UserError(f"{where} has no {name}, which a geometry needs")
        value = data[()]
        if name == "beam":
            values[name] = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
            continue
        unit = text_attribute(data, "units")
        factor = 1.0 if unit is None else convert_length(1.0, unit, "mm", f"{where}/{name}")
        values[name] = value if name == "shape" else np.asarray(value, np.float64) * factor
    try:
        geometry = VectorGeometry(**values, rows=shape[1], columns=shape[2])
    except UserError as wrong:
        raise UserError(f"{where}: {wrong}") from None
    if geometry.views not in (1, shape[0]):
        raise UserError(f"{where} has {geometry.views} views, but there are {shape[0]} projections")
    return geometry if geometry.views == shape[0] else geometry.of_views(np.zeros(shape[0], np.int64))
