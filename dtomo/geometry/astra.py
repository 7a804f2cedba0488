"""Geometries from and to the dicts of the ASTRA Toolbox; ASTRA itself is not needed.

ASTRA's volumes are ``(z, y, x)`` arrays, its slices ``(y, x)``. In three dimensions all coordinates grow with the
index, as here. In two dimensions its y axis points up, so that row 0 of a slice has the largest y: y changes sign.
Its projections are ``(row, view, column)`` (sinograms ``(view, column)``), dtomo's ``(view, row, column)``.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dtomo.errors import UserError
from dtomo.geometry.vectors import VectorGeometry, Vectors

_FLAT = {"parallel": "parallel", "parallel_vec": "parallel", "fanflat": "fan", "fanflat_vec": "fan"}
_DEEP = {"parallel3d": "parallel", "parallel3d_vec": "parallel", "cone": "cone", "cone_vec": "cone"}


def from_astra(projections: Mapping[str, Any], volume: Mapping[str, Any]) -> VectorGeometry:
    """The geometry that ASTRA's dicts describe.

    Parameters
    ----------
    projections
        Of ``astra.create_proj_geom``: parallel, parallel_vec, fanflat, fanflat_vec, parallel3d, parallel3d_vec, cone or
        cone_vec.
    volume
        Of ``astra.create_vol_geom``.

    Returns
    -------
    VectorGeometry
        Of two dimensions: one row and one slice, as high as a voxel is wide.

    Raises
    ------
    UserError
        A detector that is not flat (cyl_cone_vec), a matrix (sparse_matrix), or dicts that lack something.
    """
    kind = projections.get("type")
    if kind not in _FLAT and kind not in _DEEP:
        known = ", ".join((*_FLAT, *_DEEP))
        raise UserError(f"a geometry of ASTRA of type {kind!r} has no flat detector; there are {known}")
    try:
        return _flat(kind, projections, volume) if kind in _FLAT else _deep(kind, projections, volume)
    except KeyError as missing:
        raise UserError(f"the geometry of ASTRA of type {kind} has no {missing}") from None


def _window(volume: Mapping[str, Any], names: str) -> tuple[list[int], list[float], list[float]]:
    """Voxels, their size and the middle along x, y (and z)."""
    counts = {"X": "GridColCount", "Y": "GridRowCount", "Z": "GridSliceCount"}
    option = volume.get("option", {})
    sizes, steps, middles = [], [], []
    for name in names:
        count = int(volume[counts[name]])
        low, high = (
            float(option.get(f"Window{end}{name}", sign * count / 2)) for end, sign in (("Min", -1), ("Max", 1))
        )
        sizes.append(count)
        steps.append((high - low) / count)
        middles.append((low + high) / 2)
    return sizes, steps, middles


def _table(projections: Mapping[str, Any], width: int) -> Vectors:
    found = np.atleast_2d(np.array(projections["Vectors"], np.float64))
    if found.ndim != 2 or found.shape[1] != width:
        raise UserError(
            f"the vectors of ASTRA's {projections['type']} are {width} numbers of each view, not {found.shape}"
        )
    return found


def _circle(kind: str, projections: Mapping[str, Any]) -> tuple[Vectors, Vectors, Vectors]:
    """(source or direction, detector, unit of columns), ``(views, 3)``, of a geometry that is given by angles."""
    theta = np.ravel(np.array(projections["ProjectionAngles"], np.float64))
    beam = np.stack([-np.sin(theta), np.cos(theta), 0 * theta], 1)
    across = np.stack([np.cos(theta), np.sin(theta), 0 * theta], 1)
    if kind.startswith("parallel"):
        return beam, 0 * beam, across
    near, far = float(projections["DistanceOriginSource"]), float(projections["DistanceOriginDetector"])
    return -near * beam, far * beam, across


def _flat(kind: str, projections: Mapping[str, Any], volume: Mapping[str, Any]) -> VectorGeometry:
    if kind.endswith("_vec"):
        table = _table(projections, 6)
        source, detector, across = (np.pad(table[:, k : k + 2], ((0, 0), (0, 1))) for k in (0, 2, 4))
    else:
        source, detector, across = _circle(kind, projections)
        across = across * float(projections["DetectorWidth"])
    (width, height), (dx, dy), (x, y) = _window(volume, "XY")
    upside = np.array([1, -1, 1])
    return VectorGeometry(
        "parallel" if _FLAT[kind] == "parallel" else "fan", source * upside, detector * upside, across * upside,
        np.array([0, 0, dx]), 1, int(projections["DetectorCount"]), (1, height, width), (dx, dy, dx), (x, -y, 0.0),
    )  # fmt: skip


def _deep(kind: str, projections: Mapping[str, Any], volume: Mapping[str, Any]) -> VectorGeometry:
    if kind.endswith("_vec"):
        table = _table(projections, 12)
        source, detector, across, down = (table[:, k : k + 3] for k in (0, 3, 6, 9))
    else:
        source, detector, across = _circle(kind, projections)
        across = across * float(projections["DetectorSpacingX"])
        down = np.array([[0, 0, float(projections["DetectorSpacingY"])]])
    (width, height, depth), (dx, dy, dz), middle = _window(volume, "XYZ")
    return VectorGeometry(
        "cone" if _DEEP[kind] == "cone" else "parallel", source, detector, across, down,
        int(projections["DetectorRowCount"]), int(projections["DetectorColCount"]), (depth, height, width),
        (dz, dy, dx), (middle[0], middle[1], middle[2]),
    )  # fmt: skip


def to_astra(geometry: VectorGeometry) -> tuple[dict[str, Any], dict[str, Any]]:
    """ASTRA's dicts of a geometry: what ``astra.create_proj_geom`` and ``astra.create_vol_geom`` would return.

    Returns
    -------
    (projections, volume)
        cone_vec or parallel3d_vec; for a fan, and for one row and one slice of a parallel beam in the plane z = 0,
        fanflat_vec or parallel_vec, of one slice.

    Raises
    ------
    UserError
        A fan that is not in the plane of the slices, which ASTRA does not have.
    """
    g = geometry
    tables = (g.source, g.detector, g.column_step)
    scale = 1e-9 * max(*(float(np.abs(table).max()) for table in tables[1:]), max(g.voxel))
    level = all(float(np.abs(table[:, 2]).max()) <= scale for table in tables)
    if g.beam == "fan" and (not level or np.abs(g.row_step[:, :2]).max() > scale):
        raise UserError("ASTRA has fans in the plane of the slices alone; this one is tilted")
    if g.beam == "fan" or (g.beam == "parallel" and level and g.rows == g.shape[0] == 1):
        upside = np.array([1, -1])
        vectors = np.hstack([table[:, :2] * upside for table in tables])
        kind = "fanflat_vec" if g.beam == "fan" else "parallel_vec"
        return {"type": kind, "DetectorCount": g.columns, "Vectors": vectors}, _volume(g, flat=True)
    kind = "cone_vec" if g.beam == "cone" else "parallel3d_vec"
    return {
        "type": kind, "DetectorRowCount": g.rows, "DetectorColCount": g.columns,
        "Vectors": np.hstack([*tables, g.row_step]),
    }, _volume(g, flat=False)  # fmt: skip


def _volume(geometry: VectorGeometry, flat: bool) -> dict[str, Any]:
    depth, height, width = geometry.shape
    middle = np.array(geometry.middle) * ([1, -1, 1] if flat else [1, 1, 1])
    half = geometry.lengths[::-1] / 2
    found: dict[str, Any] = {"GridRowCount": height, "GridColCount": width}
    if not flat:
        found["GridSliceCount"] = depth
    found["option"] = {
        f"Window{end}{name}": float(middle[k] + sign * half[k])
        for k, name in enumerate("XY" if flat else "XYZ")
        for end, sign in (("Min", -1), ("Max", 1))
    }
    return found
