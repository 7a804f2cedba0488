"""Problems whose slabs depend on one another: solved by a party for each slab, on the workers of a cluster.

Rays of a cone beam or of laminography cross slabs, and so does total variation in three dimensions. What a party does
is `solve`; what it has of arrays is cut here.
"""

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import is_array, single_precision
from dtomo.distributed.slabs import SLAB
from dtomo.distributed.together import Party
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam, VectorGeometry
from dtomo.kernels.layout import projections_inside_out
from dtomo.operators import LinearOperator, Peers, SlabLayout, SlabProjector, SlicesProjector, even_slabs

if TYPE_CHECKING:
    from distributed import Client

Span = tuple[int, int]

OF_ROWS = ("weights", "background")
"""Options that are arrays which broadcast to projections."""
OF_SLICES = ("initial", "mask")
"""Those that broadcast to the volume."""


@dataclasses.dataclass(frozen=True)
class Coupled:
    """A problem in slabs: geometry, slices of each slab, and rows of the detector that go with them.

    Attributes
    ----------
    geometry
        Of the whole; with a `ParallelBeam` rows are slices.
    slabs, rows
        (first, last + 1) of each party.
    dtype
        Of the volume: float32 or complex64.
    """

    geometry: VectorGeometry | ParallelBeam
    slabs: tuple[Span, ...]
    rows: tuple[Span, ...]
    dtype: str = "float32"

    @classmethod
    def of(cls, geometry: VectorGeometry | ParallelBeam, slabs: tuple[Span, ...], dtype: Any = np.float32) -> "Coupled":
        """With the rows that go with the slabs; raises as `SlabLayout.of`."""
        rows = slabs if isinstance(geometry, ParallelBeam) else SlabLayout.of(geometry, slabs).rows
        return cls(geometry, slabs, rows, np.dtype(dtype).name)

    def operator(self, peers: Peers) -> LinearOperator:
        """What a party has of the projector."""
        if isinstance(self.geometry, ParallelBeam):
            first, last = self.slabs[peers.number]
            return SlicesProjector(self.geometry, last - first, peers, self.dtype)
        return SlabProjector(SlabLayout(self.geometry, self.slabs, self.rows), peers, self.dtype)

    @property
    def volume(self) -> tuple[int, int, int]:
        """Shape of the whole."""
        return (self.slabs[-1][1], *self.shape(0)[1:])

    @property
    def voxel(self) -> tuple[float, float, float]:
        """Size of a voxel along z, y, x; 1 in a parallel beam, whose values are those per voxel."""
        return (1.0, 1.0, 1.0) if isinstance(self.geometry, ParallelBeam) else self.geometry.voxel

    def shape(self, number: int) -> tuple[int, int, int]:
        """Of a party's slab."""
        g, (first, last) = self.geometry, self.slabs[number]
        return (last - first, *((g.height, g.width) if isinstance(g, ParallelBeam) else g.shape[1:]))


def solve(party: Party, shared: tuple[Coupled, str, dict[str, Any]], own: dict[str, Any]) -> NDArray[Any]:
    """A party's slab of the solution: ``algorithms.NAME`` on its part of the problem."""
    from dtomo import algorithms

    problem, name, options = shared
    options = options | {key: value for key, value in own.items() if key not in ("data", "noise")}
    if "noise" in own:
        options["stop"] = dataclasses.replace(options["stop"], noise=own["noise"])
    callback = options.pop("callback", None)

    def told(iteration: int, norms: NDArray[np.float64]) -> bool:
        if party.number == 0:
            party.report((iteration, float(norms[0])))
        return callback is not None and bool(party.first(party.number == 0 and callback(iteration, norms)))

    solver = getattr(algorithms, name)
    return np.asarray(solver(problem.operator(party), own["data"], callback=told, **options).solution)


def check_options(name: str, options: dict[str, Any]) -> None:
    """Refuse what slabs cannot have.

    Raises
    ------
    UserError
        Larger voxels to begin with, checkpoints, a prior that joins slices and is not total variation.
    """
    from dtomo.algorithms import TotalVariation

    if options.get("coarse"):
        raise UserError(
            f"{name} of a Dask array does not begin on larger voxels; leave out `coarse`, or give `initial`"
        )
    if options.get("checkpoints") is not None:
        raise UserError("checkpoints of a Dask array are kept by dtomo.recon.run alone")
    prior = options.get("prior")
    if prior is not None and not prior.separable and not isinstance(prior, TotalVariation):
        raise UserError(
            f"{type(prior).__name__} joins all slices, and a Dask array is solved in slabs; take TotalVariation or a "
            "prior that treats each slice by itself, or give a NumPy array"
        )


def solve_lazily(
    name: str, projections: Any, geometry: VectorGeometry | ParallelBeam, options: dict[str, Any], slabs: int | None
) -> Any:
    """A Dask array of the solution, its blocks where they were made.

    With a client of a cluster the problem is solved now, on its workers; without one it is a single task, which is
    computed with the array.

    Parameters
    ----------
    name
        Of the algorithm.
    projections
        Dask array (view, row, column).
    geometry
        Of them.
    options
        Of the algorithm; arrays may be Dask's.
    slabs
        How many; None: one for each worker.

    Raises
    ------
    UserError
        Options that slabs cannot have, or more slabs than slices or rows.
    """
    import dask.array as da

    check_options(name, options)
    dtype = np.dtype(np.complex64 if np.issubdtype(projections.dtype, np.complexfloating) else np.float32)
    depth = geometry.shape[0] if isinstance(geometry, VectorGeometry) else projections.shape[1]
    client = _client()
    if client is None:
        return _single_task(name, projections, geometry, options, (depth, dtype))
    workers = max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
    count = min(workers, depth, projections.shape[1]) if slabs is None else slabs
    if count != int(count) or not 1 <= count <= depth:
        raise UserError(f"the number of slabs is a whole number from 1 to that of the slices, {depth}; got {slabs}")
    problem = Coupled.of(geometry, even_slabs(depth, int(count)), dtype)
    parts = _solve_on(client, problem, name, projections, options)
    blocks = [da.from_delayed(part, problem.shape(n), dtype=dtype) for n, part in enumerate(parts)]
    return da.concatenate(blocks)


def _client() -> "Client | None":
    """The client that Dask's arrays are computed with, if there is one."""
    if "distributed" not in sys.modules:
        return None
    from dask.base import get_scheduler
    from distributed import Client

    scheduler = get_scheduler()
    found = getattr(scheduler, "__self__", None)
    return found if isinstance(found, Client) else None


def _solve_on(client: "Client", problem: Coupled, name: str, projections: Any, options: dict[str, Any]) -> list[Any]:
    """Futures of the slabs.

    Raises
    ------
    Exception
        What the algorithm raised.
    """
    from dtomo.distributed.crews import run_crews
    from dtomo.distributed.queue import TaskFailed

    stop: Any = options.get("stop")
    noise: Any = getattr(stop, "noise", None)
    cut = {key: options[key] for key in (*OF_ROWS, *OF_SLICES) if _has_axes(options.get(key))}
    cut |= {"noise": noise} if _has_axes(noise) else {}
    rest = {key: value for key, value in options.items() if key not in cut}
    if "noise" in cut:
        rest["stop"] = dataclasses.replace(stop, noise=1.0)  # each party puts its own in
    views, columns = projections.shape[0], projections.shape[2]

    def own(homes: tuple[str, ...]) -> list[Any]:
        found = []
        for number, home in enumerate(homes):
            data = _rows(projections, problem.rows[number], (views, projections.shape[1], columns))
            given = {"data": client.submit(_arranged, _future(client, data, home), workers=[home], pure=False)}
            for key, array in cut.items():
                along_z = key in OF_SLICES
                span, shape = (problem.slabs, problem.volume) if along_z else (problem.rows, projections.shape)
                given[key] = _future(client, _rows(array, span[number], shape, 0 if along_z else 1), home)
            found.append(client.submit(dict, workers=[home], pure=False, **given))
        return found

    try:
        return run_crews(client, solve, (problem, name, rest), len(problem.slabs), own=own)
    except TaskFailed as failed:
        raise failed.cause from None


def _has_axes(value: Any) -> bool:
    return getattr(value, "ndim", 0) > 0


def _rows(array: Any, span: Span, shape: tuple[int, ...], axis: int = 1) -> Any:
    """Rows (axis 1) or slices (axis 0) of an array that broadcasts to that shape."""
    place = axis - (len(shape) - np.ndim(array))
    if place < 0 or array.shape[place] == 1:
        return array
    return array[(slice(None),) * place + (slice(*span),)]


def _future(client: "Client", array: Any, home: str) -> Any:
    """Of an array, on a worker."""
    if is_array(array) or not hasattr(array, "numblocks"):
        return client.scatter([np.asarray(array)], workers=[home], hash=False)[0]
    whole = array.rechunk(-1).to_delayed().item()
    return client.compute(whole, workers=[home], allow_other_workers=True)


def _arranged(data: NDArray[Any]) -> NDArray[Any]:
    """In the dtype and layout that operators take without a copy."""
    return np.swapaxes(projections_inside_out(single_precision(data)), 1, 2)


def _single_task(
    name: str, projections: Any, geometry: Any, options: dict[str, Any], made: tuple[int, np.dtype[Any]]
) -> Any:
    """The whole as one task."""
    import dask
    import dask.array as da

    from dtomo import recon

    depth, dtype = made
    inside = (geometry.height, geometry.width) if isinstance(geometry, ParallelBeam) else geometry.shape[1:]
    whole = dask.delayed(getattr(recon, name), pure=False)(projections, geometry, **options)
    return da.from_delayed(whole, (depth, *inside), dtype=dtype).rechunk({0: min(SLAB, depth)})
