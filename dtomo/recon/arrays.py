"""Reconstruction of arrays: NumPy in, NumPy out; CuPy in, CuPy out; Dask in, Dask out with one task per slab."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, is_array, on_device, single_precision
from dtomo.distributed.slabs import SLAB
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam, VectorGeometry
from dtomo.recon.coupled import solve_lazily

if TYPE_CHECKING:
    import dask.array

Array: TypeAlias = "NDArray[Any] | dask.array.Array"


def fbp(projections: Array, geometry: ParallelBeam | VectorGeometry, **options: Any) -> Array:
    """Filtered back projection of line integrals.

    Parameters
    ----------
    projections
        (angle, row, column), attenuation (the negative logarithm): NumPy, CuPy, or Dask with chunks of either. Other
        dtypes than float32 and complex64 are brought to these.
    geometry
        The beam; every row is reconstructed alike. The iterative algorithms also take a `VectorGeometry` (cone, fan,
        laminography, tilt series). Its rays join the slices: of a Dask array each worker has a slab of the volume
        (`slabs` of them, an option more; the bits depend on their number alone) and exchanges rows of projections with
        the others. With a client of a cluster that is done when the function is called; without one it is a single
        task.
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


def sirt(projections: Array, geometry: ParallelBeam | VectorGeometry, *, iterations: int = 20, **options: Any) -> Array:
    """Simultaneous iterative reconstruction (SIRT); arguments as for `fbp`.

    `options` are those of `dtomo.algorithms.sirt`, which also returns the history of residuals, and `coarse`: as all
    iterative algorithms here, it can begin on voxels so many times as large, for instance ``coarse=(4, 2)``
    (`dtomo.algorithms.coarse_to_fine`).
    """
    return _iterative("sirt", projections, geometry, {"iterations": iterations, **options})


def os_sart(
    projections: Array, geometry: ParallelBeam | VectorGeometry, *, iterations: int = 10, **options: Any
) -> Array:
    """SIRT with ordered subsets of the views (OS-SART); arguments as for `fbp`.

    `options` are those of `dtomo.algorithms.os_sart`, which also returns the history of residuals, and `coarse`.
    """
    return _iterative("os_sart", projections, geometry, {"iterations": iterations, **options})


def cgls(projections: Array, geometry: ParallelBeam | VectorGeometry, *, iterations: int = 20, **options: Any) -> Array:
    """Least squares by conjugate gradients (CGLS); arguments as for `fbp`.

    `options` are those of `dtomo.algorithms.cgls`, which also returns the history of residuals, and `coarse`.
    """
    return _iterative("cgls", projections, geometry, {"iterations": iterations, **options})


def lsqr(projections: Array, geometry: ParallelBeam | VectorGeometry, *, iterations: int = 20, **options: Any) -> Array:
    """Least squares by bidiagonalisation (LSQR); arguments as for `fbp`.

    `options` are those of `dtomo.algorithms.lsqr`, which also returns the history of residuals, and `coarse`.
    """
    return _iterative("lsqr", projections, geometry, {"iterations": iterations, **options})


def mlem(projections: Array, geometry: ParallelBeam | VectorGeometry, *, iterations: int = 50, **options: Any) -> Array:
    """Maximum likelihood of emission counts (MLEM); arguments as for `fbp`, `projections` are counts.

    `options` are those of `dtomo.algorithms.mlem`, which also returns the history of residuals, and `coarse`.
    """
    return _iterative("mlem", projections, geometry, {"iterations": iterations, **options})


def osem(projections: Array, geometry: ParallelBeam | VectorGeometry, *, iterations: int = 10, **options: Any) -> Array:
    """MLEM with ordered subsets of the views (OSEM); arguments as for `mlem`.

    `options` are those of `dtomo.algorithms.osem`, which also returns the history of residuals, and `coarse`.
    """
    return _iterative("osem", projections, geometry, {"iterations": iterations, **options})


def tv(
    projections: Array,
    geometry: ParallelBeam | VectorGeometry,
    *,
    strength: float,
    iterations: int = 200,
    **options: Any,
) -> Array:
    """Total variation with a data term (primal-dual hybrid gradient); arguments as for `fbp`.

    `options` are those of `dtomo.algorithms.tv`, which also returns the history of residuals, and `coarse`. The
    variation joins slices, and slabs of a Dask array go on in one another as with a `VectorGeometry`; with
    ``spacing=(y, x)`` each slice is a problem of its own.
    """
    given = {"strength": strength, "iterations": iterations, **options}
    joined = len(options.get("spacing", (1, 1, 1))) != 2
    return _iterative("tv", projections, geometry, given, joined=joined)


def fista(
    projections: Array, geometry: ParallelBeam | VectorGeometry, *, iterations: int = 100, **options: Any
) -> Array:
    """Proximal gradients with momentum (FISTA) for any data term and prior; arguments as for `fbp`.

    `options` are those of `dtomo.algorithms.fista`, which also returns the history of residuals, and `coarse`. Of
    priors that join slices a Dask array takes `TotalVariation` alone.

    Raises
    ------
    UserError
        As `fbp`; a Dask array with another prior that joins slices.
    """
    joined = not getattr(options.get("prior"), "separable", True)
    return _iterative("fista", projections, geometry, {"iterations": iterations, **options}, joined=joined)


def _in_blocks(projections: Any) -> bool:
    return not is_array(projections) and hasattr(projections, "numblocks")


def _iterative(
    name: str,
    projections: Array,
    geometry: ParallelBeam | VectorGeometry,
    options: dict[str, Any],
    *,
    joined: bool = False,
) -> Array:
    """`joined`: slices are no problems of their own."""
    return _reconstruct(_SOLVERS[name], projections, geometry, options, joined=joined)


def _reconstruct(
    solve: Callable[..., NDArray[Any]],
    projections: Array,
    geometry: ParallelBeam | VectorGeometry,
    options: dict[str, Any],
    *,
    joined: bool = False,
) -> Array:
    if isinstance(geometry, VectorGeometry):
        return _whole(solve, projections, geometry, options)
    if not isinstance(geometry, ParallelBeam):
        raise UserError(f"the second argument is a geometry (dtomo.ParallelBeam), not {type(geometry).__name__}")
    if not hasattr(projections, "numblocks"):
        projections = _numbers(projections)
    slabs = options.pop("slabs", None) if joined and _in_blocks(projections) else None
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
    if joined:
        return solve_lazily(_name(solve), projections, geometry, options, slabs)
    if options.get("checkpoints") is not None:
        raise UserError(
            "checkpoints are of one problem, but each block of a Dask array is one of its own; "
            "dtomo.recon.run keeps checkpoints slab by slab"
        )
    return _lazily(solve, projections, geometry, options)


def _whole(
    solve: Callable[..., NDArray[Any]], projections: Any, geometry: VectorGeometry, options: dict[str, Any]
) -> Array:
    """Rays of any geometry: they join the slices, so the whole problem is solved at once, or in slabs that exchange."""
    if _name(solve) == "fbp":
        raise UserError("fbp takes a ParallelBeam; for other geometries there is dtomo.recon.fdk")
    blocks = _in_blocks(projections)
    slabs = options.pop("slabs", None) if blocks else None
    projections = projections if blocks else _numbers(projections)
    _refuse_unknown(solve, options)
    expected = (geometry.views, geometry.rows, geometry.columns)
    if projections.shape != expected:
        raise UserError(
            f"projections of shape {projections.shape} do not fit a geometry of {expected[0]} views, {expected[1]} "
            f"rows and {expected[2]} columns; the order is (view, row, column)"
        )
    if blocks:
        return solve_lazily(_name(solve), projections, geometry, options, slabs)
    return solve(single_precision(projections), geometry, **options)


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

    name = _name(solve)
    known = list(inspect.signature(getattr(algorithms, name)).parameters)[2:]
    known += [] if name == "fbp" else ["coarse"]
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
        token=_name(solve),
        solve=solve,
        shared=shared,
    )


def _block(block: NDArray[Any], solve: Callable[..., NDArray[Any]], shared: tuple[Any, dict[str, Any]]) -> NDArray[Any]:
    geometry, options = shared
    return solve(single_precision(block), geometry, **options)


def _fbp(projections: NDArray[Any], geometry: ParallelBeam, **options: Any) -> NDArray[Any]:
    from dtomo import algorithms

    return algorithms.fbp(projections, geometry, **options)


def _solved(
    projections: NDArray[Any], geometry: ParallelBeam | VectorGeometry, *, solver: str, **options: Any
) -> NDArray[Any]:
    from dtomo import algorithms
    from dtomo.operators import LinearOperator, ParallelProjector, RayProjector

    solve = getattr(algorithms, solver)
    operator: LinearOperator
    if isinstance(geometry, VectorGeometry):
        operator = RayProjector(geometry, projections.dtype)
    else:
        operator = ParallelProjector(geometry, projections.shape[1], projections.dtype, like=projections)
    coarse = options.pop("coarse", ())
    if coarse:
        return algorithms.coarse_to_fine(solve, operator, projections, factors=coarse, **options).solution
    return solve(operator, projections, **options).solution


def _name(solve: Callable[..., NDArray[Any]]) -> str:
    return solve.keywords["solver"] if isinstance(solve, partial) else "fbp"


_SOLVERS = {
    name: partial(_solved, solver=name) for name in ("sirt", "os_sart", "cgls", "lsqr", "mlem", "osem", "tv", "fista")
}
