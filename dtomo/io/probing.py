"""A look at a few pixels of a scan, bounded whatever the size and number of its frames."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dtomo.io.scan import Scan
from dtomo.io.sources import Source

MOST_VALUES = 2**22
"""Values read at once."""
MOST_FRAMES = 2**12
"""Flats or darks looked at; of more, as many evenly spaced ones."""
_BANDS = 16
_WIDEST = 2**16


def suspicious_darks(scan: Scan, rows: int = 16) -> list[int]:
    """Darks as bright as the flats, by index: their mean lies nearer to the flats' than to the darkest's.

    Means are over `rows` rows in the middle of the detector, and over the middle columns where all would be
    too many.
    """
    if scan.dark_source is None or scan.flat_source is None:
        return []
    (_, flats), (index, darks) = (_frame_means(scan, source, rows) for source in (scan.flat_source, scan.dark_source))
    flat, dark = float(np.median(flats)), float(darks.min())
    limit = 0.8 * flat if dark >= 0.8 * flat else (flat + dark) / 2
    return [int(number) for number in index[darks >= limit]]


def suspicious_flats(scan: Scan, rows: int = 16) -> list[int]:
    """Flats as dark as the darks, by index: frames taken with the shutter closed."""
    if scan.dark_source is None or scan.flat_source is None:
        return []
    (index, flats), (_, darks) = (_frame_means(scan, source, rows) for source in (scan.flat_source, scan.dark_source))
    limit = float(darks.min()) + 0.25 * (float(np.median(flats)) - float(darks.min()))
    return [int(number) for number in index[flats < limit]]


def is_black(source: Source) -> bool:
    """Whether the middle row of every frame and the first frame hold nothing but 0.

    Of a frame of more than 64 million pixels, bands are looked at instead.
    """
    index = _some_frames(source)
    _, rows, columns = source.shape
    row = rows // 2
    if source.read(index, slice(row, row + 1), _middle(0, columns, MOST_VALUES // len(index))).any():
        return False
    return not any(source.read(slice(0, 1), *window).any() for window in _windows(rows, columns))


def looks_normalized(scan: Scan) -> bool:
    """Floating-point values within the range of transmissions, in three rows of three projections."""
    if scan.dtype.kind != "f":
        return False
    count, rows, columns = scan.shape
    frames = sorted({0, count // 2, count - 1})
    some = scan.projection_source.read(frames, _middle(0, rows, 3), _middle(0, columns, MOST_VALUES // 9))
    some = some[np.isfinite(some)]
    return bool(some.size and some.min() > -0.5 and some.max() < 3 and some.max() > 0.01)


def _some_frames(source: Source) -> NDArray[np.int64]:
    count = source.shape[0]
    return np.linspace(0, count - 1, min(count, MOST_FRAMES)).round().astype(np.int64)


def _middle(start: int, stop: int, most: int) -> slice:
    """The middle of a range, at most `most` long and at least 1."""
    length = max(1, min(stop - start, most))
    first = start + (stop - start - length) // 2
    return slice(first, first + length)


def _windows(rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Bands that cover a frame, or of a larger one, evenly spaced ones of its middle columns."""
    across = _middle(0, columns, _WIDEST)
    height = max(1, MOST_VALUES // (across.stop - across.start))
    starts = range(0, rows, height)
    chosen = starts if len(starts) <= _BANDS else np.linspace(0, rows - height, _BANDS).astype(int).tolist()
    for start in chosen:
        yield slice(start, min(rows, start + height)), across


def _frame_means(scan: Scan, source: Source, rows: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Numbers of the frames looked at, and the mean of each."""
    top, bottom, left, right = scan.window or (0, 0, 0, 0)
    middle = (top + bottom) // 2
    band = slice(max(top, middle - rows // 2), min(bottom, middle + (rows + 1) // 2 + 1))
    index = _some_frames(source)
    columns = _middle(left, right, MOST_VALUES // (len(index) * (band.stop - band.start)))
    frames = source.read(index, band, columns)
    return index, np.nanmean(frames.reshape(len(frames), -1), axis=1, dtype=np.float64)
