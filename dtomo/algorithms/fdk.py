"""Filtered back projection of cone and fan beams, of tilted beams and of limited angles (FDK and its relatives)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import on_device, single_precision
from dtomo.errors import UserError
from dtomo.geometry import VectorGeometry
from dtomo.geometry.orbits import orbit_of
from dtomo.geometry.redundancy import missing_side, redundancy_of
from dtomo.operators.directed import RayWeights, check_filter, filter_views
from dtomo.operators.filtering import Padding, check_padding
from dtomo.operators.voxels import add_backprojection, lines_of, rows_seen, voxel_volume

FDK_BLOCK = 32
"""Views that are filtered and back-projected at once."""


def fdk(
    projections: NDArray[Any],
    geometry: VectorGeometry,
    *,
    filter: str = "ramp",
    cutoff: float = 1.0,
    padding: Padding = "edge",
    slices: tuple[int, int] | None = None,
    first_row: int = 0,
) -> NDArray[Any]:
    """Filtered back projection of any beam whose source goes round on a circle, or along an arc.

    Cone beam: FDK, exact in the plane of the circle. Fan beam, parallel beam, laminography and tilt series about one
    axis: filtered back projection, with weights for uneven and limited angles, for arcs longer than half a turn (what
    is measured twice counts once) and for detectors that lie aside in a whole turn (half-fan). Turned detectors have
    the weights of their own planes; where the way of the source does not go along the rows of pixels, projections are
    filtered in two dimensions along it.

    Parameters
    ----------
    projections
        Line integrals ``(view, row, column)``, real or complex.
    geometry
        Where source and detector lie in each view, and the volume.
    filter, cutoff
        Window on the ramp (`dtomo.operators.FILTERS` but "none"); the fraction of the Nyquist frequency where it ends.
    padding
        "edge" continues truncated projections smoothly, "zero" does not.
    slices, first_row
        Only slices (first, last + 1) of the volume; `projections` may then begin with another row of the detector and
        hold only the rows that these are seen in (`dtomo.operators.rows_seen`).

    Returns
    -------
    array
        Volume ``(z, y, x)``, float32 or complex64, per unit of length of the geometry.

    Raises
    ------
    UserError
        Projections that do not fit, an unknown filter or padding, a source that does not go round on a circle, a
        volume that reaches behind it, a detector that does not see the axis.

    Notes
    -----
    L. A. Feldkamp, L. C. Davis and J. W. Kress, J. Opt. Soc. Am. A 1, 612-619 (1984). A voxel has the same bits in any
    slab and on any number of threads, where projections are filtered line by line.
    """
    check_fdk(projections, geometry, filter=filter, cutoff=cutoff, padding=padding, slices=slices, first_row=first_row)
    extend = check_padding(padding)
    slices = (0, geometry.shape[0]) if slices is None else slices
    projections = single_precision(projections if on_device(projections) else np.asarray(projections))
    orbit = orbit_of(geometry)
    redundancy = redundancy_of(geometry, orbit)
    lacking = missing_side(geometry, redundancy)
    geometry = geometry.with_columns(*lacking)
    weights = RayWeights(geometry, orbit, redundancy, (first_row, first_row + projections.shape[1]))
    parts = [projections.real, projections.imag] if projections.dtype.kind == "c" else [projections]
    volumes = [voxel_volume(geometry, slices, projections) for _ in parts]
    for start in range(0, geometry.views, FDK_BLOCK):
        views = range(start, min(start + FDK_BLOCK, geometry.views))
        for part, volume in zip(parts, volumes):
            lines = lines_of(part[start : views.stop], lacking)
            filter_views(lines, weights, views, filter, cutoff, extend)
            add_backprojection(lines, volume, geometry, slice(start, views.stop), slices, first_row)
    volume = volumes[0] if len(parts) == 1 else volumes[0] + np.complex64(1j) * volumes[1]
    return np.moveaxis(volume, -1, 0)


def check_fdk(
    projections: Any,
    geometry: VectorGeometry,
    *,
    filter: str = "ramp",
    cutoff: float = 1.0,
    padding: Padding = "edge",
    slices: tuple[int, int] | None = None,
    first_row: int = 0,
) -> None:
    """Refuse what `fdk` cannot do, by what shape says; arguments and errors as there. Nothing is computed."""
    if not isinstance(geometry, VectorGeometry):
        raise UserError(
            f"fdk takes a geometry of vectors (dtomo.geometry.cone_beam, ...), not {type(geometry).__name__}; for a "
            "ParallelBeam there is fbp"
        )
    check_filter(filter, cutoff)
    check_padding(padding)
    if slices is not None and not 0 <= slices[0] < slices[1] <= geometry.shape[0]:
        raise UserError(f"slices are (first, last + 1) of {geometry.shape[0]}, not {slices}")
    shape, views, columns = np.shape(projections), geometry.views, geometry.columns
    last = first_row + (shape[1] if len(shape) == 3 else 0)
    fits = len(shape) == 3 and (shape[0], shape[2]) == (views, columns) and 0 <= first_row < last <= geometry.rows
    if not fits or (slices is None and shape[1] != geometry.rows):
        raise UserError(
            f"projections of shape {shape} do not fit a geometry of {views} views, {geometry.rows} rows and {columns} "
            "columns; the order of axes is (view, row, column)"
        )
    rows_seen(geometry, (0, geometry.shape[0]))
    redundancy_of(geometry, orbit_of(geometry))
