"""Filtered back projection of any geometry: NumPy in, NumPy out; CuPy in, CuPy out; Dask in, one task per slab."""

from typing import Any

import numpy as np

from dtomo import algorithms
from dtomo.arrays import array_module, single_precision
from dtomo.distributed.slabs import SLAB
from dtomo.errors import UserError
from dtomo.geometry import VectorGeometry
from dtomo.operators.directed import needs_all_rows
from dtomo.operators.voxels import rows_seen
from dtomo.recon.arrays import Array


def fdk(projections: Array, geometry: VectorGeometry, **options: Any) -> Array:
    """Filtered back projection of a cone or fan beam, of laminography or of a tilt series.

    Parameters
    ----------
    projections
        (view, row, column), line integrals: NumPy, CuPy, or Dask with chunks of either. Other dtypes than float32 and
        complex64 are brought to these.
    geometry
        Source, detector and volume: `dtomo.geometry.cone_beam` and its like.
    **options
        `filter`, `cutoff`, `padding` of `dtomo.algorithms.fdk`.

    Returns
    -------
    array
        (z, y, x), attenuation per unit of length of the geometry, float32 or complex64, of the kind that was given. Of
        a Dask array each slab of 64 slices is a task, which takes the rows of the detector that it is seen in.

    Raises
    ------
    UserError
        Shapes that do not fit, an unknown option, a source that does not go round on a circle.
    """
    for option in options:
        if option not in ("filter", "cutoff", "padding"):
            raise UserError(f"fdk has no option {option!r}; it has filter, cutoff and padding")
    algorithms.check_fdk(projections, geometry, **options)
    if not hasattr(projections, "numblocks"):
        return algorithms.fdk(projections, geometry, **options)
    return _lazily(projections, geometry, options)


def _lazily(projections: Any, geometry: VectorGeometry, options: dict[str, Any]) -> Any:
    import dask
    import dask.array as da

    dtype = np.complex64 if np.issubdtype(projections.dtype, np.complexfloating) else np.float32
    shared = dask.delayed((geometry, options), name=f"geometry-{dask.base.tokenize(geometry.key, options)}", pure=True)
    meta = array_module(projections._meta).empty((0, 0, 0), dtype)
    whole, slabs = needs_all_rows(geometry), []
    for start in range(0, geometry.shape[0], SLAB):
        stop = min(start + SLAB, geometry.shape[0])
        first, last = (0, geometry.rows) if whole else rows_seen(geometry, (start, stop))
        part = projections[:, first:last].rechunk(-1).to_delayed().item()
        volume = dask.delayed(_slab, pure=True)(part, shared, (start, stop), first)
        slabs.append(da.from_delayed(volume, (stop - start, *geometry.shape[1:]), meta=meta))
    return da.concatenate(slabs)


def _slab(projections: Any, shared: tuple[VectorGeometry, dict[str, Any]], slices: tuple[int, int], row: int) -> Any:
    geometry, options = shared
    return algorithms.fdk(single_precision(projections), geometry, slices=slices, first_row=row, **options)
