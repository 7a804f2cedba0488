"""One round of reprojection alignment: reconstruct, project again, register each view to its reprojection.

A task has a band of rows of all views: it reads and resamples them, reconstructs its slices in a few iterations,
projects them, and hands back eight sums for each view. The bands are the same in every run and their sums are added in
their order, so that the result has the same bits on any number of workers; no volume leaves its task.

Volumes are held positive where samples are: without that a volume explains views that have drifted smoothly over the
tilts nearly as well, most of all in a missing wedge, and rounds follow whatever else the views do not agree in.

Reprojection alignment: M. Guizar-Sicairos et al., Optics Express 19 (2011) 21345; D. Gürsoy et al., Scientific Reports
7 (2017) 11818.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dtomo.distributed import queue
from dtomo.distributed.slabs import Slab
from dtomo.distributed.sums import tree_sum
from dtomo.geometry import Alignment, ParallelBeam
from dtomo.io.tilts import AlignedSource
from dtomo.kernels.registration import registration_sums
from dtomo.threads import using_threads

if TYPE_CHECKING:
    from distributed import Client

BAND = 64
"""Rows of a band."""
ITERATIONS, SIGNED_ITERATIONS = 20, 8
"""Of FISTA with a volume that is nowhere negative, and of conjugate gradients for any: few, so that a misplaced view is
not yet explained by the volume."""
DAMPING = 1e-3
"""Of the largest curvature of a view, added to those of its shifts: flat views stay where they are."""


@dataclasses.dataclass(frozen=True, eq=False)
class Round:
    """What the tasks of a round share: small, sent to each worker once.

    Attributes
    ----------
    views
        Aligned as the round finds them, and binned.
    iterations
        Of the reconstruction; None: `ITERATIONS` or `SIGNED_ITERATIONS`.
    thickness
        Voxels of the volume along y, binned; None: as many as columns.
    threads
        Of a worker; None: as they are.
    signed
        Whether the volume may be negative.
    """

    views: AlignedSource
    iterations: int | None = None
    thickness: int | None = None
    threads: int | None = None
    signed: bool = False

    @property
    def geometry(self) -> ParallelBeam:
        """Of the aligned views."""
        views = self.views
        return ParallelBeam(views.alignment.tilts, views.shape[2], views.axis, height=self.thickness)

    def bands(self) -> list[Slab]:
        """Bands of about `BAND` rows, which depend on their number alone."""
        rows = self.views.shape[1]
        edges = np.linspace(0, rows, max(1, round(rows / BAND)) + 1).round().astype(int).tolist()
        return [Slab(k, first, last) for k, (first, last) in enumerate(itertools.pairwise(edges))]


@dataclasses.dataclass(frozen=True, eq=False)
class Fit:
    """What a round found out.

    Attributes
    ----------
    sums
        float64 ``(view, 8)``, see `dtomo.kernels.registration.registration_sums`, of shifts in binned pixels.
    """

    sums: NDArray[np.float64]

    @property
    def misfit(self) -> float:
        """Norm of what the reprojections miss of the views, over the norm of the views."""
        return float(np.sqrt(self.sums[:, 5].sum() / max(self.sums[:, 6].sum(), 1e-300)))

    @property
    def is_empty(self) -> bool:
        """Whether the views hold nothing where they were seen."""
        return not self.sums[:, 6].any()

    def steps(self) -> NDArray[np.float64]:
        """How each view is to be moved, ``(view, 2)``, binned pixels."""
        s = self.sums
        matrix = np.stack([np.stack([s[:, 0], s[:, 1]], 1), np.stack([s[:, 1], s[:, 2]], 1)], 1)
        floor = DAMPING * np.maximum(s[:, 0], s[:, 2]) + 1e-300
        return np.asarray(
            np.linalg.solve(matrix + floor[:, None, None] * np.eye(2), s[:, 3:5, None])[..., 0], np.float64
        )


def evaluate(job: Round, client: "Client | None" = None, done: Callable[[int], None] | None = None) -> Fit:
    """A round on a cluster, or here.

    Parameters
    ----------
    job
        What to do.
    client
        Of a cluster; None: this process does it.
    done
        Called with 1 after each band.

    Raises
    ------
    UserError
        Views that cannot be read.
    dtomo.distributed.queue.TaskFailed
        A band that kills its workers.
    """
    bands = job.bands()
    found: dict[int, NDArray[np.float64]] = {}

    def take(band: Slab, sums: NDArray[np.float64]) -> None:
        found[band.index] = sums
        if done is not None:
            done(1)

    run_bands(client, _band, job, bands, take)
    return Fit(np.asarray(tree_sum([found[band.index] for band in bands])))


def run_bands(
    client: "Client | None",
    function: Callable[[Any, Any], Any],
    shared: Any,
    items: Sequence[Any],
    take: Callable[[Any, Any], None],
) -> None:
    """``function(shared, item)`` of each item, on a cluster or here."""
    if client is not None:
        queue.run_tasks(client, function, shared, items, take)
        return
    for item in items:
        take(item, function(shared, item))


def _band(job: Round, band: Slab) -> NDArray[np.float64]:
    """The sums of a band of rows."""
    with using_threads(job.threads):
        done = reproject(job, band)
        return registration_sums(done.data, done.again, done.covered)


class Reprojected(NamedTuple):
    """Aligned views of a band, which of their pixels were seen, the volume from them, and what that looks like."""

    data: NDArray[np.float32]
    covered: NDArray[np.bool_]
    volume: NDArray[np.float32]
    again: NDArray[np.float32]


def reproject(job: Round, band: Slab) -> Reprojected:
    """Reconstruct a band of rows and project it again."""
    from dtomo import algorithms
    from dtomo.operators import ParallelProjector

    data = job.views.read(rows=band.rows)
    covered = job.views.covered(band.rows)
    operator = ParallelProjector(job.geometry, len(band))
    weights = None if covered.all() else covered.astype(np.float32)
    if job.signed:
        found = algorithms.cgls(operator, data, iterations=job.iterations or SIGNED_ITERATIONS, weights=weights)
    else:
        iterations = job.iterations or ITERATIONS
        found = algorithms.fista(operator, data, iterations=iterations, weights=weights, lower=0.0)
    return Reprojected(data, covered, found.solution, operator.forward(found.solution))


def without_gauge(shifts: NDArray[np.float64], tilts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shifts without what a shift of the sample does: a constant along the axis, and cos and sin across it.

    A constant across the axis stays: it says where the axis is.
    """
    found = np.array(shifts, np.float64)
    found[:, 0] -= found[:, 0].mean()
    return _without(found, tilts, constant=False)


def _without(shifts: NDArray[np.float64], tilts: NDArray[np.float64], constant: bool) -> NDArray[np.float64]:
    turn = np.deg2rad(tilts)
    table = np.stack([np.cos(turn), np.sin(turn), np.ones_like(turn)][: 3 if constant else 2], 1)
    shifts[:, 1] -= table @ np.linalg.lstsq(table, shifts[:, 1], rcond=None)[0]
    return shifts


def moved(alignment: Alignment, steps: NDArray[np.float64]) -> Alignment:
    """An alignment after steps of its shifts (raw pixels), but for the gauge and the position of the axis.

    The position is found apart (`dtomo.align.axis`).
    """
    own = _without(np.array(steps, np.float64), alignment.tilts, constant=True)
    return alignment.replace(shifts=without_gauge(alignment.shifts + own, alignment.tilts))
