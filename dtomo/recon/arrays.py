"""Reconstruction of arrays: NumPy in, NumPy out; CuPy in, CuPy out; Dask in, Dask out with one task per slab."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, is_array, on_device, single_precision
from dtomo.distributed.slabs import SLAB
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam

if TYPE_CHECKING:
    import dask.array

Array: TypeAlias = "NDArray[Any] | dask.array.Array"


def fbp(projections: Array, geometry: ParallelBeam, **options: Any) -> Array:
    """Filtered back projection of line integrals.

    Parameters
    ----------
    projections
        (angle, row, column), attenuation (the negative logarithm): NumPy, CuPy, or Dask with chunks of either. Other
        dtypes than float32 and complex64 are brought to these.
    geometry
        The beam; every row is reconstructed alike.
    **options
        `filter`, `method`, `padding` of `dtomo.algorithms.fbp`.

    Returns
    -------
    array
        (z, y, x), attenuation per pixel, float32 or complex64, of the kind that was given; a Dask array has one
        block per slab of rows.

    Raises
    ------
    UserError
        Shapes that do not fit the geometry, or an unknown option.
    """
    return _reconstruct(_fbp, projections, geometry, options)


def sirt(projections: Array, geometry: ParallelBeam, *, iterations: int = 20, **options: Any) -> Array:
    """Simultaneous iterative reconstruction (SIRT); arguments as for `fbp`.

    `options` are those of `dtomo.algorithms.sirt`, which also returns the history of residuals.
    """
    return _reconstruct(_sirt, projections, geometry, {"iterations": iterations, **options})


def cgls(projections: Array, geometry: ParallelBeam, *, iterations: int = 20, **options: Any) -> Array:
    """Least squares by conjugate gradients (CGLS); arguments as for `fbp`.

    `options` are those of `dtomo.algorithms.cgls`, which also returns the history of residuals.
    """
    return _reconstruct(_cgls, projections, geometry, {"iterations": iterations, **options})


def mlem(projections: Array, geometry: ParallelBeam, *, iterations: int = 50, **options: Any) -> Array:
    """Maximum likelihood of emission counts (MLEM); arguments as for `fbp`, `projections` are counts.

    `options` are those of `dtomo.algorithms.mlem`, which also returns the history of residuals.
    """
    return _reconstruct(_mlem, projections, geometry, {"iterations": iterations, **options})


def tv(projections: Array, geometry: ParallelBeam, *, strength: float, iterations: int = 200, **options: Any) -> Array:
    """Least squares with total variation (primal-dual hybrid gradient); arguments as for `fbp`.

    `options` are those of `dtomo.algorithms.tv`, which also returns the history of residuals. The variation couples
    slices, so a Dask array, whose blocks are solved one by one, needs ``spacing=(y, x)``: each slice by itself.

    Raises
    ------
    UserError
        As `fbp`; a Dask array without such a spacing.
    """
    if not is_array(projections) and hasattr(projections, "numblocks") and len(options.get("spacing", (1, 1, 1))) != 2:
        raise UserError(
            "total variation couples the slices of a volume, but blocks of a Dask array are solved one by one; give "
            "spacing=(1, 1) for slices by themselves, or a NumPy array"
        )
    return _reconstruct(_tv, projections, geometry, {"strength": strength, "iterations": iterations, **options})


def _reconstruct(
    solve: Callable[..., NDArray[Any]], projections: Array, geometry: ParallelBeam, options: dict[str, Any]
) -> Array:
    if not isinstance(geometry, ParallelBeam):
        raise UserError(f"the second argument is a geometry (dtomo.ParallelBeam), not {type(geometry).__name__}")
    if not hasattr(projections, "numblocks"):
        projections = _numbers(projections)
    _refuse_unknown(solve, options)
    expected = (len(geometry.angles), geometry.columns)
    if projections.ndim != 3 or (projections.shape[0], projections.shape[2]) != expected:
        raise UserError(
            f"projections of shape {projections.shape} do not fit a geometry of {expected[0]} angles and "
            f"{expected[1]} columns; the order is (angle, row, column)"
        )
    if projections.shape[1] == 0:
        raise UserError("the projections have no rows")
    if is_array(projections):
        return solve(single_precision(projections), geometry, **options)
    if options.get("checkpoints") is not None:
        raise UserError(
            "checkpoints are of one problem, but each block of a Dask array is one of its own; "
            "dtomo.recon.run keeps checkpoints slab by slab"
        )
    return _lazily(solve, projections, geometry, options)


def _numbers(projections: Any) -> NDArray[Any]:
    try:
        array = projections if on_device(projections) else np.asarray(projections)
    except ValueError as error:
        raise UserError(f"the projections are no array: {error}") from None
    if array.dtype.kind not in "biufc":
        raise UserError(f"the projections are numbers (angle, row, column), not {type(projections).__name__}")
    return array


def _refuse_unknown(solve: Callable[..., NDArray[Any]], options: dict[str, Any]) -> None:
    from dtomo import algorithms

    name = solve.__name__.strip("_")
    known = list(inspect.signature(getattr(algorithms, name)).parameters)[2:]
    for option in options:
        if option not in known:
            raise UserError(f"{name} has no option {option!r}; it has {', '.join(known)}")


def _lazily(
    solve: Callable[..., NDArray[Any]], projections: Any, geometry: ParallelBeam, options: dict[str, Any]
) -> Any:
    """One task per block of rows; the geometry is one node of the graph, so that it travels once."""
    import dask
    import dask.array as da

    rows_only = projections.numblocks[0] == projections.numblocks[2] == 1
    whole = projections.rechunk({0: -1, 1: projections.chunks[1] if rows_only else SLAB, 2: -1})
    dtype = np.complex64 if np.issubdtype(projections.dtype, np.complexfloating) else np.float32
    shared = dask.delayed((geometry, options), name=f"geometry-{dask.base.tokenize(geometry.key, options)}", pure=True)
    return da.blockwise(
        _block,
        "zyx",
        whole,
        "azc",
        new_axes={"y": geometry.height, "x": geometry.width},
        concatenate=True,
        dtype=dtype,
        meta=array_module(projections._meta).empty((0, 0, 0), dtype),
        token=solve.__name__.strip("_"),
        solve=solve,
        shared=shared,
    )


def _block(block: NDArray[Any], solve: Callable[..., NDArray[Any]], shared: tuple[Any, dict[str, Any]]) -> NDArray[Any]:
    geometry, options = shared
    return solve(single_precision(block), geometry, **options)


def _fbp(projections: NDArray[Any], geometry: ParallelBeam, **options: Any) -> NDArray[Any]:
    from dtomo import algorithms

    return algorithms.fbp(projections, geometry, **options)


def _sirt(projections: NDArray[Any], geometry: ParallelBeam, **options: Any) -> NDArray[Any]:
    from dtomo import algorithms

    return algorithms.sirt(_projector(projections, geometry), projections, **options).solution


def _cgls(projections: NDArray[Any], geometry: ParallelBeam, **options: Any) -> NDArray[Any]:
    from dtomo import algorithms

    return algorithms.cgls(_projector(projections, geometry), projections, **options).solution


def _mlem(projections: NDArray[Any], geometry: ParallelBeam, **options: Any) -> NDArray[Any]:
    from dtomo import algorithms

    return algorithms.mlem(_projector(projections, geometry), projections, **options).solution


def _tv(projections: NDArray[Any], geometry: ParallelBeam, **options: Any) -> NDArray[Any]:
    from dtomo import algorithms

    return algorithms.tv(_projector(projections, geometry), projections, **options).solution


def _projector(projections: NDArray[Any], geometry: ParallelBeam) -> Any:
    from dtomo.operators import ParallelProjector

    return ParallelProjector(geometry, projections.shape[1], projections.dtype, like=projections)
