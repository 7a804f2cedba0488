"""Raw scans of a phantom by other beams than a plain parallel one, with their geometry in the file."""

import dataclasses
import os
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError
from dtomo.geometry import VectorGeometry, cone_beam, fan_beam, laminography, tilt_series
from dtomo.io import write_dxchange
from dtomo.io.geometry_group import geometry_items
from dtomo.simulate.detector import beam, camera
from dtomo.simulate.phantoms import Phantom, named
from dtomo.simulate.rays import ray_integrals, unit_of, voxel_values
from dtomo.simulate.scans import ABSORPTION, ScanTruth, _Setup, computed_ahead, refuse_sizes

Kind = Literal["cone", "helix", "fan", "laminography", "tilt-series"]

TILT = 30.0
"""Of the axis of laminography, degrees."""
TILTS = 60.0
"""A tilt series goes from minus so many degrees to so many."""
MAGNIFICATION, FAR = 1.5, 3.0
"""Of a cone or fan beam; distance from source to axis, in widths of the volume."""


@dataclasses.dataclass(frozen=True, eq=False)
class GeometryTruth(ScanTruth):
    """What a simulated scan with a geometry was made from; values of the phantom are per millimetre.

    Attributes
    ----------
    geometry
        Of the scan, lengths in millimetres.
    """

    geometry: VectorGeometry | None = None

    def volume(self, rows: Any = None, width: int | None = None) -> NDArray[Any]:
        """The true volume ``(z, y, x)`` float32, attenuation per millimetre, on the voxels of the geometry."""
        assert self.geometry is not None
        assert isinstance(self.phantom, Phantom)
        whole = voxel_values(self.phantom, self.geometry)
        return whole if rows is None else whole[rows]

    def projection(self, number: int) -> NDArray[Any]:
        """Exact line integrals ``(row, column)`` of one frame, without noise."""
        assert self.geometry is not None
        assert isinstance(self.phantom, Phantom)
        return ray_integrals(
            self.phantom, self.geometry, unit=unit_of(self.geometry), fine=2, views=slice(number, number + 1)
        )[0]


def named_geometry(
    kind: Kind, size: int, *, rows: int | None = None, angles: int | ArrayLike | None = None, voxel: float = 1.0
) -> tuple[VectorGeometry, NDArray[np.float64]]:
    """A usual geometry for a volume of `size` voxels along x and y, and its angles in degrees.

    Parameters
    ----------
    kind
        "cone": magnified 1.5 times, over a whole turn. "helix": two turns, in each of which source and detector go
        along half the volume. "fan": a slice for each row. "laminography": an axis that leans 30 degrees, over a whole
        turn. "tilt-series": tilts from -60 to 60 degrees.
    rows
        Slices of the volume; default `size`, of laminography and tilt series a quarter of it.
    angles
        A number of them, or a list in degrees; default ``pi / 2 * size`` for each half-turn.
    voxel
        Its size.
    """
    if kind not in get_args(Kind):
        raise UserError(f"there is no geometry {kind!r} to simulate; there are {', '.join(get_args(Kind))}")
    flat = kind in ("laminography", "tilt-series")
    deep = (max(1, size // 4) if flat else size) if rows is None else rows
    degrees = _angles(kind, size, angles)
    columns = size + size // 6
    shape = (deep, size, size)
    distances = {"source_axis": FAR * size * voxel, "source_detector": FAR * MAGNIFICATION * size * voxel}
    pixel = MAGNIFICATION * voxel
    if kind == "fan":
        made = fan_beam(degrees, columns, slices=deep, pixel=pixel, shape=shape, voxel=voxel, **distances)
    elif kind == "laminography":
        high = int(np.ceil(deep * np.cos(np.deg2rad(TILT)) + size * np.sin(np.deg2rad(TILT)))) + 2
        made = laminography(degrees, high, columns, tilt=TILT, pixel=voxel, shape=shape)
    elif kind == "tilt-series":
        made = tilt_series(degrees, columns, columns, shape=shape, pixel=voxel)
    else:
        high = int(np.ceil(deep * (1 + 0.5 / FAR))) + 2
        rise = 0.0 if kind == "cone" else deep / 2 * voxel
        made = cone_beam(degrees, high, columns, pixel=pixel, shape=shape, voxel=voxel, rise=rise, **distances)
        if kind == "helix":
            middle = rise * float(degrees.min() + degrees.max()) / 720
            made = made.replace(middle=(0.0, 0.0, 0.0), **_lower(made, middle))
    return made, degrees


def _lower(geometry: VectorGeometry, height: float) -> dict[str, Any]:
    """Source and detector so much lower: the volume in the middle of their way."""
    down = np.array([0.0, 0.0, height])
    return {"source": geometry.source - down, "detector": geometry.detector - down}


def _angles(kind: Kind, size: int, angles: int | ArrayLike | None) -> NDArray[np.float64]:
    span, turns = {"tilt-series": (2 * TILTS, TILTS / 90), "helix": (720.0, 4.0)}.get(kind, (360.0, 2.0))
    if angles is None:
        angles = max(3, round(np.pi / 2 * size * turns))
    values: NDArray[np.float64] = np.asarray(angles, np.float64)
    if values.ndim:
        return values
    count = int(values)
    if count < 1 or count != float(values):
        raise UserError(f"a scan needs a whole, positive number of angles; got {angles}")
    if kind == "tilt-series":
        return np.linspace(-TILTS, TILTS, count, dtype=np.float64)
    return np.arange(count, dtype=np.float64) * (span / count)


def simulate_geometry_scan(
    path: str | os.PathLike[str],
    kind: Kind | VectorGeometry,
    *,
    size: int = 128,
    rows: int | None = None,
    angles: int | ArrayLike | None = None,
    photons: float = 20000,
    flats: int = 20,
    darks: int = 20,
    rings: bool = True,
    dead_pixels: float = 3e-4,
    zingers: float = 1e-5,
    dark_level: float = 100.0,
    pixel_size: float = 2.0,
    energy: float | None = 25.0,
    phantom: str | Phantom = "head",
    seed: int = 0,
    overwrite: bool = False,
    dtype: Any = np.uint16,
) -> GeometryTruth:
    """Write a raw Data Exchange scan of a phantom with a geometry, which the file holds in its group ``/geometry``.

    Parameters
    ----------
    path
        HDF5 file to write.
    kind, size, rows, angles
        See `named_geometry`; or a geometry of one's own, lengths in millimetres (then `angles` are only written down).
    pixel_size
        Size of a voxel, micrometres.
    phantom
        "head" or "sample", or a phantom with values per millimetre; its unit fills the volume in x and y.
    photons, flats, darks, rings, dead_pixels, zingers, dark_level, energy, seed, overwrite, dtype
        As for `simulate_scan`.

    Returns
    -------
    GeometryTruth
        What the scan was made from.

    Raises
    ------
    UserError
        As `simulate_scan`; no such geometry.
    """
    if Path(path).exists() and not overwrite:
        raise UserError(f"{path} exists; choose another name or ask to overwrite it")
    if isinstance(kind, VectorGeometry):
        geometry, degrees = kind, np.zeros(kind.views) if angles is None else np.asarray(angles, np.float64)
        if degrees.shape != (geometry.views,):
            raise UserError(f"{degrees.size} angles for a geometry of {geometry.views} views; give one for each view")
    else:
        refuse_sizes(size, rows or size, size, pixel_size=pixel_size, energy=energy)
        geometry, degrees = named_geometry(kind, size, rows=rows, angles=angles, voxel=pixel_size * 1e-3)
    truth = GeometryTruth(
        Path(path), _absorbing(phantom, geometry), geometry.shape[2], geometry.shape[0], geometry.columns,
        (geometry.columns - 1) / 2, degrees, pixel_size, geometry,
    )  # fmt: skip
    shape = (geometry.rows, geometry.columns)
    dtype = np.dtype(dtype)
    setup = _Setup(
        truth, camera(shape, seed, rings, dead_pixels, dark_level), beam(shape, seed), photons, zingers, seed, dtype
    )
    write_dxchange(
        path,
        frames=computed_ahead(setup.projection, geometry.views),
        shape=(geometry.views, *shape),
        dtype=dtype,
        flats=np.stack([setup.flat(n, flats) for n in range(flats)]) if flats else None,
        darks=np.stack([setup.dark(n) for n in range(darks)]) if darks else None,
        angles=degrees,
        pixel_size=pixel_size,
        energy=energy,
        extra={**geometry_items(geometry), "/simulation/ellipsoids": truth.phantom.table},  # type: ignore[union-attr]
        overwrite=overwrite,
    )
    return truth


def _absorbing(phantom: str | Phantom, geometry: VectorGeometry) -> Phantom:
    """The phantom with values per length of the geometry; a named one absorbs ABSORPTION along its longest path."""
    if isinstance(phantom, Phantom):
        return phantom
    shape = named(phantom)
    longest = shape.projections(np.arange(0, 180, 15), 64, slices=5).max() / 64 * float(min(geometry.lengths[1:]))
    return shape.scaled(ABSORPTION / float(longest))
