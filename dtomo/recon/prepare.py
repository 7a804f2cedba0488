"""From what a scan holds to line integrals, a few rows at a time, the same bits wherever slabs begin and end."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dtomo import io, prep
from dtomo.arrays import array_module, single_precision
from dtomo.prep.flats import NormalizeReport
from dtomo.settings import ZINGERS, ReconSettings

PHASE_BAND = 64
"""Rows that the phase filter gives at once, counted from the detector's first: the same bands in every run."""


def no_lap(stage: str) -> None:
    """Nobody wants to know how long a stage took."""


def as_read(raw: io.RawSlab) -> io.RawSlab:
    """Rows stay in host memory."""
    return raw


def line_integrals(
    scan: io.Scan,
    settings: ReconSettings,
    rows: slice,
    fold_about: float | None = None,
    lap: Callable[[str], None] = no_lap,
    read: Callable[[slice], io.RawSlab] | None = None,
    arrive: Callable[[io.RawSlab], io.RawSlab] = as_read,
) -> tuple[NDArray[Any], NormalizeReport]:
    """Line integrals along the rays of some rows, ready for an algorithm.

    Of counts and transmissions: flat and dark correction with dead and hot pixels repaired, zingers, phase retrieval,
    the logarithm. Line integrals are only repaired where they are not finite. Then stripes, and views half a turn
    apart joined. What a row becomes does not depend on which rows are asked for with it: steps act on single rows, but
    for phase retrieval, which takes fixed bands of rows with a halo, also of pixels outside the crop.

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
    read
        Reads rows of `scan` in place of ``scan.read``, where no phase is retrieved.
    arrive
        Takes what was read to where it is worked on.

    Returns
    -------
    tuple
        (angle, row, column) float32, or complex64 where the scan is complex, and what was repaired.
    """
    read = _arriving(read or scan.read, arrive)
    if scan.values == "integrals":
        values, report = _finite(scan, rows, lap, read)
    elif settings.delta_beta is None:
        values, report = _transmission(scan, settings, rows, lap, read=read)
        values, logs = prep.minus_log(values, out=values)
        report += NormalizeReport(not_positive=logs.not_positive, empty_lines=logs.empty_lines)
    else:
        values, report = _retrieved(scan, settings, rows, lap, arrive)
    if stripe_method(scan, settings) != "none":
        values = _without_stripes(values)
    if fold_about is not None:
        values, _, _ = prep.fold_360(values, scan.angles, fold_about)
    lap("preparing")
    return values, report


def _arriving(
    read: Callable[[slice], io.RawSlab], arrive: Callable[[io.RawSlab], io.RawSlab]
) -> Callable[[slice], io.RawSlab]:
    return lambda rows: arrive(read(rows))


def zinger_threshold(scan: io.Scan, settings: ReconSettings) -> float:
    """Transmission by which zingers stick out: as asked for, or `ZINGERS`; 0 (never) for line integrals."""
    if scan.values == "integrals":
        return 0.0
    return ZINGERS if settings.zingers is None else settings.zingers


def stripe_method(scan: io.Scan, settings: ReconSettings) -> Literal["combined", "none"]:
    """As asked for, or "combined", or "none" for complex scans and tilt series: no column stands for a pixel."""
    return settings.stripes or ("none" if scan.is_complex or scan.tilt_series else "combined")


def _parts(values: NDArray[Any]) -> list[NDArray[np.float32]]:
    """The array itself, or copies of its real and imaginary part: filters of real numbers act on either."""
    if not np.iscomplexobj(values):
        return [values]
    return [values.real.copy(), values.imag.copy()]


def _joined(parts: list[NDArray[np.float32]], out: NDArray[Any]) -> NDArray[Any]:
    if len(parts) == 1:
        return parts[0]
    out.real, out.imag = parts
    return out


def _without_stripes(values: NDArray[Any]) -> NDArray[Any]:
    """`values` (angle, row, column), changed in place; real and imaginary part each for itself."""
    return _joined([prep.remove_stripes(part, method="combined", out=part) for part in _parts(values)], values)


def _finite(
    scan: io.Scan, rows: slice, lap: Callable[[str], None], read: Callable[[slice], io.RawSlab]
) -> tuple[NDArray[Any], NormalizeReport]:
    """Line integrals as stored, in single precision; what is not finite takes the line between its neighbours."""
    raw = read(rows).projections
    lap("reading")
    with np.errstate(over="ignore"):  # what single precision cannot hold is repaired like what is infinite
        values = single_precision(raw)
    pixels = values.shape[1] * values.shape[2]
    good = np.isfinite(values)
    if good.all():
        return values, NormalizeReport(pixels=pixels, values=values.size)
    values[~good] = complex(np.nan, np.nan) if scan.is_complex else np.nan
    repaired = [prep.normalize(part) for part in _parts(values)]
    values = _joined([part for part, _ in repaired], values)
    values[~good.any(axis=2)] = 0  # a line without one usable value
    return values, repaired[0][1]


def _transmission(
    scan: io.Scan,
    settings: ReconSettings,
    rows: slice,
    lap: Callable[[str], None],
    counted: tuple[slice, slice] = (slice(None), slice(None)),
    *,
    read: Callable[[slice], io.RawSlab],
) -> tuple[NDArray[np.float32], NormalizeReport]:
    """Counts over open beam (angle, row, column), single outliers replaced.

    Pixels are reported of the rows and columns `counted` (of those read), values of all.
    """
    raw = read(rows)
    lap("reading")
    flats, darks = (None, None) if scan.normalized else (raw.flats, raw.darks)
    bad = None if flats is None else prep.find_bad_pixels(flats, darks)
    values, report = prep.normalize(raw.projections, flats, darks, bad_pixels=bad)
    del raw
    if bad is not None:
        report = dataclasses.replace(report, pixels=bad[counted].size, dead_pixels=int(bad[counted].sum()))
    if threshold := zinger_threshold(scan, settings):
        values, _ = prep.remove_outliers(values, threshold=threshold, kind="bright", out=values)
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


def full_detector(scan: io.Scan) -> tuple[io.Scan, int, int]:
    """The scan with the whole detector, binned alike, and the numbers there of the scan's first row and column."""
    top, _, left, _ = scan.window or (0, 0, 0, 0)
    shifts, window = [], []
    for start, size in zip((top, left), scan.projection_source.shape[1:]):
        shift, first = divmod(start, scan.binning)
        shifts.append(shift)
        window += [first, first + (size - first) // scan.binning * scan.binning]
    whole = dataclasses.replace(scan, window=(window[0], window[1], window[2], window[3]))
    return whole, shifts[0], shifts[1]


def phase_bands(scan: io.Scan, settings: ReconSettings, rows: slice) -> list[tuple[slice, slice]]:
    """Bands of the phase filter that hold `rows` of the scan, and what is read for each: rows of `full_detector`."""
    whole, shift, _ = full_detector(scan)
    height = whole.shape[1]
    halo = prep.paganin_halo_rows(**phase_options(scan, settings))
    bands = []
    for first in range((rows.start + shift) // PHASE_BAND * PHASE_BAND, rows.stop + shift, PHASE_BAND):
        last = min(first + PHASE_BAND, height)
        bands.append((slice(first, last), slice(max(0, first - halo), min(height, last + halo))))
    return bands


def _retrieved(
    scan: io.Scan,
    settings: ReconSettings,
    rows: slice,
    lap: Callable[[str], None],
    arrive: Callable[[io.RawSlab], io.RawSlab],
) -> tuple[NDArray[np.float32], NormalizeReport]:
    """Attenuation by phase retrieval, band by band."""
    options = phase_options(scan, settings)
    whole, shift, left = full_detector(scan)
    read_whole = _arriving(whole.read, arrive)
    start, stop = rows.start + shift, rows.stop + shift
    columns = slice(left, left + scan.shape[2])
    out: NDArray[np.float32] | None = None
    report = NormalizeReport()
    for band, read in phase_bands(scan, settings, rows):
        first, last = max(start, band.start), min(stop, band.stop)
        wanted = slice(first - read.start, last - read.start)
        values, found = _transmission(whole, settings, read, lap, (wanted, columns), read=read_whole)
        values = prep.paganin(values, halo=(band.start - read.start, read.stop - band.stop), **options)
        if out is None:
            shape = (len(scan.angles), stop - start, scan.shape[2])
            out = array_module(values).empty(shape, np.float32)
        assert out is not None
        out[:, first - start : last - start] = values[:, first - band.start : last - band.start, columns]
        report += found
    assert out is not None
    return out, report
