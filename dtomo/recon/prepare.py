"""From raw counts to line integrals, a few rows at a time, the same bits wherever slabs begin and end."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo import io, prep
from dtomo.prep.flats import NormalizeReport
from dtomo.settings import ReconSettings

PHASE_BAND = 64
"""Rows that the phase filter gives at once, counted from the detector's first: the same bands in every run."""


def no_lap(stage: str) -> None:
    """Nobody wants to know how long a stage took."""


def line_integrals(
    scan: io.Scan,
    settings: ReconSettings,
    rows: slice,
    fold_about: float | None = None,
    lap: Callable[[str], None] = no_lap,
) -> tuple[NDArray[np.float32], NormalizeReport]:
    """Attenuation along the rays of some rows, ready for an algorithm.

    Flat and dark correction with dead and hot pixels repaired, zingers, phase retrieval, the logarithm,
    stripes, views half a turn apart joined. What a row becomes does not depend on which rows are asked for
    with it: steps act on single rows, but for phase retrieval, which takes fixed bands of rows with a halo, also of
    rows outside the crop.

    Parameters
    ----------
    scan
        Cropped and binned.
    settings
        What is to be done.
    rows
        ``start:stop``.
    fold_about
        Column of the axis of a full turn to be folded; None: no folding.
    lap
        Called with ``"reading"`` and ``"preparing"`` when such a stage ends.

    Returns
    -------
    (angle, row, column) float32, and what was repaired.
    """
    if settings.delta_beta is None:
        values, report = _transmission(scan, settings, rows, lap)
        values, logs = prep.minus_log(values, out=values)
        report += NormalizeReport(not_positive=logs.not_positive, empty_lines=logs.empty_lines)
    else:
        values, report = _retrieved(scan, settings, rows, lap)
    if settings.stripes != "none":
        values = prep.remove_stripes(values, method=settings.stripes, out=values)
    if fold_about is not None:
        values, _, _ = prep.fold_360(values, scan.angles, fold_about)
    lap("preparing")
    return values, report


def _transmission(
    scan: io.Scan,
    settings: ReconSettings,
    rows: slice,
    lap: Callable[[str], None],
    counted: slice = slice(None),
) -> tuple[NDArray[np.float32], NormalizeReport]:
    """Counts over open beam (angle, row, column), single outliers replaced.

    Pixels are reported of the rows `counted` (of those read), values of all.
    """
    raw = scan.read(rows)
    lap("reading")
    flats, darks = (None, None) if scan.normalized else (raw.flats, raw.darks)
    bad = None if flats is None else prep.find_bad_pixels(flats, darks)
    values, report = prep.normalize(raw.projections, flats, darks, bad_pixels=bad)
    del raw
    if bad is not None:
        report = dataclasses.replace(report, pixels=bad[counted].size, dead_pixels=int(bad[counted].sum()))
    if settings.zingers:
        values, _ = prep.remove_outliers(values, threshold=settings.zingers, kind="bright", out=values)
    return values, report


def phase_options(scan: io.Scan, settings: ReconSettings) -> dict[str, Any]:
    """Keywords of `prep.paganin` and `prep.paganin_halo_rows`."""
    return {
        "pixel_size": scan.pixel_size,
        "energy": scan.energy,
        "distance": scan.sample_detector_distance,
        "source_distance": scan.source_sample_distance,
        "delta_beta": settings.delta_beta,
    }


def full_height(scan: io.Scan) -> tuple[io.Scan, int]:
    """The scan with all rows of the detector, binned alike, and the number there of the scan's first row."""
    top, _, left, right = scan.window or (0, 0, 0, 0)
    shift, first = divmod(top, scan.binning)
    rows = (scan.projection_source.shape[1] - first) // scan.binning
    return dataclasses.replace(scan, window=(first, first + rows * scan.binning, left, right)), shift


def phase_bands(scan: io.Scan, settings: ReconSettings, rows: slice) -> list[tuple[slice, slice]]:
    """Bands of the phase filter that hold `rows` of the scan, and what is read for each: rows of `full_height`."""
    tall, shift = full_height(scan)
    height = tall.shape[1]
    halo = prep.paganin_halo_rows(**phase_options(scan, settings))
    bands = []
    for first in range((rows.start + shift) // PHASE_BAND * PHASE_BAND, rows.stop + shift, PHASE_BAND):
        last = min(first + PHASE_BAND, height)
        bands.append((slice(first, last), slice(max(0, first - halo), min(height, last + halo))))
    return bands


def _retrieved(
    scan: io.Scan, settings: ReconSettings, rows: slice, lap: Callable[[str], None]
) -> tuple[NDArray[np.float32], NormalizeReport]:
    """Attenuation by phase retrieval, band by band."""
    options = phase_options(scan, settings)
    tall, shift = full_height(scan)
    start, stop = rows.start + shift, rows.stop + shift
    out = np.empty((len(scan.angles), stop - start, scan.shape[2]), np.float32)
    report = NormalizeReport()
    for band, read in phase_bands(scan, settings, rows):
        first, last = max(start, band.start), min(stop, band.stop)
        wanted = slice(first - read.start, last - read.start)
        values, found = _transmission(tall, settings, read, lap, wanted)
        values = prep.paganin(values, halo=(band.start - read.start, read.stop - band.stop), **options)
        out[:, first - start : last - start] = values[:, first - band.start : last - band.start]
        report += found
    return out, report
