"""Alignment of arrays in memory and of scans: the functions of `dtomo.align`."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo import io
from dtomo.align.axis import minimum
from dtomo.align.driver import Options, align_views
from dtomo.align.reprojection import Round, evaluate
from dtomo.align.views import Work
from dtomo.errors import UserError
from dtomo.geometry import Alignment, ParallelBeam
from dtomo.io.sources import ArraySource, Source
from dtomo.io.tilts import AlignedSource
from dtomo.recon.aligned import prepared
from dtomo.settings import ReconSettings

if TYPE_CHECKING:
    from distributed import Client

COARSE_COLUMNS, COARSE_STEP, EDGE = 64, 3, 0.1
"""Columns that binned views have at least, where the axis is looked for first; those between trials; the part of the
detector at each side where it is not looked for."""
FAR = 3.9
"""Times the first reach: an axis that is found so far away was still on its way."""


def align(
    views: NDArray[Any] | io.Scan,
    tilts: ArrayLike | None = None,
    *,
    begin: Alignment | None = None,
    client: "Client | None" = None,
    **options: Any,
) -> Alignment:
    """Shifts (and the direction of the axis) of views of one object, by reprojection.

    Parameters
    ----------
    views
        ``(view, row, column)`` line integrals, empty space 0; or a scan.
    tilts
        Degrees, one for each view; of a scan its own if not given.
    begin
        What is known: the axis, shifts (with ``start="none"``), levels. Default: the axis along rows.
    client
        Of a cluster, for views that this process does not hold binned.
    options
        Of `dtomo.align.Options`: start, rounds, finest, iterations, axis, stretch, thickness, signed.

    Returns
    -------
    Alignment
        Its shifts have no mean along the axis, and no part that goes with cos or sin of the tilt across it (a shift of
        the sample); the axis lies in the middle.

    Raises
    ------
    UserError
        Numbers that do not match, unknown options, views with nothing in them.
    """
    unknown = set(options) - set(Options.__dataclass_fields__)
    if unknown:
        raise UserError(
            f"an alignment has no option {min(unknown)!r}; it has {', '.join(Options.__dataclass_fields__)}"
        )
    source, angles = _source(views, tilts if tilts is not None or begin is None else begin.tilts)
    known = Alignment(angles, source.shape[1:]) if begin is None else begin
    if len(known) != source.shape[0] or known.shape != source.shape[1:]:
        raise UserError(f"the alignment to begin with is of {len(known)} views of {known.shape}, not {source.shape}")
    return align_views(Work(source, client), known, Options(**options)).alignment


def aligned(views: NDArray[Any], alignment: Alignment) -> NDArray[np.float32]:
    """Views ``(view, row, column)`` as an alignment puts them, in one cubic interpolation.

    Raises
    ------
    UserError
        Another number or size of views.
    """
    return AlignedSource(ArraySource(np.asarray(views)), alignment).read()


def refine_center(
    views: NDArray[Any] | io.Scan,
    geometry: ParallelBeam,
    *,
    iterations: int | None = None,
    signed: bool = False,
    reaches: tuple[float, ...] = (2.0, 1.0),
    client: "Client | None" = None,
) -> float:
    """The column of the axis at which the gradient of the reprojection residual vanishes.

    Columns all over the detector are tried on binned views first; then Newton's steps follow, with derivatives of the
    residual by differences. Each residual is that of its own reconstruction.

    Parameters
    ----------
    views
        ``(view, row, column)`` line integrals, or a scan.
    geometry
        Its center is where the search begins.
    iterations
        Of the reconstruction; None: 20, or 8 if `signed`.
    signed
        Whether the sample is negative in places.
    reaches
        Pixels over which the differences are taken, one after the other.
    client
        Of a cluster; None: this process does it.

    Raises
    ------
    UserError
        Views that do not match the geometry, or hold nothing; no column at which the residual is least.
    """
    source, angles = _source(views, geometry.angles)
    if source.shape[2] != geometry.columns:
        raise UserError(f"the geometry has {geometry.columns} columns, but the views have {source.shape[2]}")

    def misfit(center: float, binning: int = 1) -> float:
        at = Alignment(angles, source.shape[1:], axis=center)
        fit = evaluate(Round(AlignedSource(source, at, binning), iterations, signed=signed), client)
        if fit.is_empty:
            raise UserError(f"{source.location}: the views hold nothing but 0; no axis can be found")
        return fit.misfit

    columns, binning = source.shape[2], 1
    while columns // (2 * binning) >= COARSE_COLUMNS:
        binning *= 2
    step = COARSE_STEP * binning
    tried = {geometry.center: misfit(geometry.center, binning)}
    for column in np.arange(columns * EDGE, columns * (1 - EDGE), step).tolist():
        tried[column] = misfit(column, binning)
    near = minimum(lambda at: misfit(at, binning), min(tried, key=tried.__getitem__), (step, 2.0 * binning))
    found = minimum(misfit, near, reaches)
    if not columns * EDGE < found < columns * (1 - EDGE) or abs(found - near) > FAR * reaches[0]:
        raise UserError(
            f"{source.location}: no column of the axis explains the views better than those beside it (last "
            f"{found:.2f}); look for it with dtomo center"
        )
    return found


def _source(views: NDArray[Any] | io.Scan, tilts: ArrayLike | None) -> tuple[Source, NDArray[np.float64]]:
    if isinstance(views, io.Scan):
        return prepared(views, ReconSettings(scan=views.path, output="none")), np.asarray(
            views.angles if tilts is None else tilts, np.float64
        )
    data = np.asarray(views)
    if tilts is None:
        raise UserError("views need tilts, in degrees, one for each")
    if data.ndim != 3 or data.dtype.kind not in "iuf":
        raise UserError(f"views are real numbers (view, row, column), not {data.dtype} of shape {data.shape}")
    angles = np.asarray(tilts, np.float64)
    if angles.shape != data.shape[:1]:
        raise UserError(f"{angles.size} tilts for {len(data)} views; give one for each")
    return ArraySource(data, "the views given"), angles
