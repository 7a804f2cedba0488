"""What is shown of an alignment: a view beside its reprojection, and slices of the volume, binned to a bounded size."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.align.driver import Options
from dtomo.align.reprojection import Fit, Round, reproject, run_bands
from dtomo.align.views import Coarse, Work
from dtomo.distributed.slabs import Slab
from dtomo.distributed.sums import tree_sum
from dtomo.geometry import Alignment
from dtomo.io.tilts import AlignedSource
from dtomo.kernels.registration import registration_sums
from dtomo.threads import using_threads

SIDE = 256
"""Pixels of the shorter side of what is shown, at least, unless views are smaller."""
SLICES = (0.25, 0.5, 0.75)
"""Where slices across the axis are taken, as parts of the rows."""


@dataclasses.dataclass(frozen=True, eq=False)
class Shown:
    """Pictures of an alignment, all float32.

    Attributes
    ----------
    view, again
        The view nearest to tilt 0, aligned, and its reprojection, ``(row, column)``.
    slices
        By row of the aligned, binned views: ``(y, x)``.
    along
        Through the axis: ``(z, x)`` and ``(z, y)``.
    tilt, binning
        Of the view in degrees, and of everything.
    misfit
        Of all reprojections, as `dtomo.align.reprojection.Fit` has it.
    """

    view: NDArray[np.float32]
    again: NDArray[np.float32]
    slices: dict[int, NDArray[np.float32]]
    along: tuple[NDArray[np.float32], NDArray[np.float32]]
    tilt: float
    binning: int
    misfit: float


def show(work: Work, coarse: Coarse, alignment: Alignment, options: Options) -> Shown:
    """Reconstruct once more, as a round does, and keep a few planes; the bands of the volume stay where they are."""
    binning = options.finest
    while min(alignment.size) // (2 * binning) >= SIDE:
        binning *= 2
    thick = None if options.thickness is None else max(1, options.thickness // binning)
    held = coarse.has(binning)
    views = coarse.source(alignment, binning) if held else AlignedSource(work.raw, alignment, binning)
    job = Round(views, options.iterations, thick, None if held else work.threads, bool(options.signed))
    bands = job.bands()
    rows = views.shape[1]
    wanted = tuple(sorted({int(part * rows) for part in SLICES}))
    nearest = int(np.argmin(np.abs(alignment.tilts)))
    found: dict[int, Any] = {}

    def take(band: Slab, planes: Any) -> None:
        found[band.index] = planes

    run_bands(None if held else work.client, _planes, (job, wanted, nearest), bands, take)
    parts = [found[band.index] for band in bands]
    view, again, along_x, along_y = (np.concatenate([part[k] for part in parts]) for k in range(4))
    slices = {row: plane for part in parts for row, plane in part[4].items()}
    misfit = Fit(np.asarray(tree_sum([part[5] for part in parts]))).misfit
    return Shown(view, again, slices, (along_x, along_y), float(alignment.tilts[nearest]), binning, misfit)


def _planes(shared: tuple[Round, tuple[int, ...], int], band: Slab) -> Any:
    job, wanted, nearest = shared
    with using_threads(job.threads):
        done = reproject(job, band)
        sums = registration_sums(done.data, done.again, done.covered)
    volume = done.volume
    own = {row: np.array(volume[row - band.start]) for row in wanted if band.start <= row < band.stop}
    middle = volume.shape[1] // 2, volume.shape[2] // 2
    planes = (done.data[nearest], done.again[nearest], volume[:, middle[0]], volume[:, :, middle[1]])
    return (*(np.ascontiguousarray(plane) for plane in planes), own, sums)
