"""Where an alignment begins: neighbouring views correlated, the mass of each view, and the axis from common lines.

All of it on views that are small: binned until they take a bounded part of memory.
"""

import dataclasses
import itertools

import numpy as np
import scipy.ndimage
from numpy.typing import NDArray

from dtomo.geometry import Alignment
from dtomo.io.sources import ArraySource
from dtomo.io.tilts import AlignedSource
from dtomo.kernels.correlation import find_shift
from dtomo.kernels.resampling import resample

STRETCH_UP_TO = 80.0
"""Degrees of tilt beyond which views are compared as they are: the stretch would be too long."""
TAPER = 0.15
"""Part of each side over which views fall to 0 before they are correlated."""
PASSES = 3
"""Of views against the mean of all, for shifts along the axis."""
UPSAMPLING = 20
"""Steps of a pixel in correlations."""
COARSE_STEP, FINE_STEPS = 3.0, (1.0, 0.25, 0.0625)
"""Degrees between trials of the axis."""


def by_correlation(views: NDArray[np.float32], alignment: Alignment, stretch: bool) -> Alignment:
    """Shifts from cross-correlations of neighbouring views, added up from the view nearest to tilt 0.

    Parameters
    ----------
    views
        Raw ``(view, row, column)``.
    alignment
        Of these views; its shifts are replaced.
    stretch
        Whether a view is stretched across the axis by the ratio of the cosines of the tilts before it is compared with
        its neighbour, as for a flat specimen.
    """
    blank = alignment.replace(shifts=np.zeros((len(alignment), 2)))
    source = AlignedSource(ArraySource(views), blank)
    images = _band_passed(source.read() * source.covered(slice(0, source.shape[1])))
    shifts = np.zeros((len(views), 2))
    cosines = np.cos(np.deg2rad(alignment.tilts))
    order = np.argsort(alignment.tilts, kind="stable")
    middle = int(np.argmin(np.abs(alignment.tilts[order])))
    for way in (order[middle::-1], order[middle:]):
        for near, far in itertools.pairwise(way):
            ratio = cosines[far] / cosines[near]
            flat = stretch and max(abs(alignment.tilts[[near, far]])) < STRETCH_UP_TO and 0.2 < ratio < 5
            ratio = ratio if flat else 1.0
            step = find_shift(images[near], _across(images[far], ratio), upsampling=UPSAMPLING).shift
            shifts[far] = shifts[near] * (1, ratio) + step * (1, ratio)
    return alignment.replace(shifts=shifts)


def _across(image: NDArray[np.float32], ratio: float) -> NDArray[np.float32]:
    """An image whose columns are drawn together by `ratio`, put back to the width of its neighbour."""
    if ratio == 1:
        return image
    rows, columns = image.shape
    matrix = np.array([[[1.0, 0], [0, ratio]]])
    offset = np.array([[0.0, (columns - 1) / 2 * (1 - ratio)]])
    return resample(image[None], matrix, offset, slice(0, rows), slice(0, columns))[0]


def _band_passed(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Without what is coarser than an eighth of a side and finer than about two pixels; 0 towards the edges."""
    out = np.empty_like(images)
    window = np.ones(images.shape[1:], np.float32)
    for axis, size in enumerate(images.shape[1:]):
        edge = np.minimum(np.arange(size), np.arange(size)[::-1]) / max(TAPER * size, 1)
        fall = np.sin(np.pi / 2 * np.minimum(edge, 1)) ** 2
        window *= fall[:, None] if axis == 0 else fall
    wide = max(images.shape[1:]) / 8
    for k, image in enumerate(images):
        fine = scipy.ndimage.gaussian_filter(image, 0.8, mode="nearest")
        fine -= scipy.ndimage.gaussian_filter(image, wide, mode="nearest")
        out[k] = fine * window
    return out


def by_mass(views: NDArray[np.float32], alignment: Alignment) -> Alignment:
    """Shifts from the mass of views: along the axis a slice has the same at all tilts, across it the middle moves so
    as that of a body does.

    Right where the whole sample is seen, with nothing but empty space (0) beside it.
    """
    blank = alignment.replace(shifts=np.zeros((len(alignment), 2)))
    data = AlignedSource(ArraySource(views), blank).read()
    return alignment.replace(shifts=np.stack([_along(data.sum(2, dtype=np.float64)), _beside(data, alignment)], 1))


def _along(profiles: NDArray[np.float64]) -> NDArray[np.float64]:
    """How profiles ``(view, row)`` are to be moved to lie on their mean."""
    shifts = np.zeros(len(profiles))
    for _ in range(PASSES):
        at = _shifted(profiles, shifts)
        mean = at.mean(0)
        images = [np.gradient(item, axis=-1).astype(np.float32)[..., None] for item in (mean, at)]
        shifts += find_shift(*images, upsampling=UPSAMPLING).shift[:, 0]
        shifts -= np.median(shifts)
    return shifts


def _shifted(profiles: NDArray[np.float64], shifts: NDArray[np.float64]) -> NDArray[np.float64]:
    place = np.arange(profiles.shape[1])
    return np.stack([np.interp(place - by, place, one) for one, by in zip(profiles, shifts)])


def _beside(data: NDArray[np.float32], alignment: Alignment) -> NDArray[np.float64]:
    lines = data.sum(1, dtype=np.float64)
    mass = lines.sum(1)
    middle = (lines * np.arange(data.shape[2])).sum(1) / np.where(np.abs(mass) < 1e-300, 1, mass)
    turn = np.deg2rad(alignment.tilts)
    table = np.stack([np.cos(turn), np.sin(turn)], 1)
    path = table @ np.linalg.lstsq(table, middle - alignment.axis, rcond=None)[0]
    found = alignment.axis + path - middle
    return np.asarray(np.clip(found, -data.shape[2], data.shape[2]))


@dataclasses.dataclass(frozen=True)
class AxisSearch:
    """Where the axis was looked for, and how well each place explains the views.

    Attributes
    ----------
    angle
        Degrees, from rows towards columns, between -45 and 135: where the views agree best.
    angles, scores
        Trials in ascending order, and what the views disagree by there, as part of what they hold.
    """

    angle: float
    angles: NDArray[np.float64]
    scores: NDArray[np.float64]


def find_axis(views: NDArray[np.float32], around: float | None = None, reach: float = 10.0) -> AxisSearch:
    """The direction of the axis from common lines: summed across the axis, all views are one profile, but for a shift.

    Parameters
    ----------
    views
        Raw ``(view, row, column)``, empty space 0.
    around
        Degrees; None: all directions. Which way along a line the axis points the views cannot tell: from -45 (nearer
        to rows) to 135 degrees.
    reach
        Degrees to both sides of `around`.
    """
    first, last = (-45.0, 135.0 - COARSE_STEP) if around is None else (around - reach, around + reach)
    tried = {angle: _disagreement(views, angle) for angle in np.arange(first, last + 1e-9, COARSE_STEP)}
    for step in FINE_STEPS:
        best = min(tried, key=tried.__getitem__)
        last_step = COARSE_STEP if step == FINE_STEPS[0] else 4 * step
        for angle in best + np.arange(-last_step, last_step + step / 2, step):
            if angle not in tried:
                tried[float(angle)] = _disagreement(views, float(angle))
    angles = np.array(sorted(tried))
    return AxisSearch(float(min(tried, key=tried.__getitem__)), angles, np.array([tried[angle] for angle in angles]))


def _disagreement(views: NDArray[np.float32], angle: float) -> float:
    """Variance of the slopes of the profiles along an axis, moved onto each other, over that of their mean.

    Within a circle, so that all directions see one part of the views.
    """
    count, rows, columns = views.shape
    size = min(rows, columns)
    source = AlignedSource(
        ArraySource(views), Alignment(np.zeros(count), (rows, columns), None, angle, None, (size, size))
    )
    place = np.arange(size) - (size - 1) / 2
    circle = np.clip((size / 2 - np.hypot(place[:, None], place)) / max(0.1 * size, 1), 0, 1).astype(np.float32)
    profiles = (source.read() * circle).sum(2, dtype=np.float64)
    profiles = scipy.ndimage.gaussian_filter1d(profiles, 1.0, axis=1)
    at = np.gradient(_shifted(profiles, _along(profiles)), axis=1)
    inner = at[:, size // 8 : size - size // 8]
    mean = inner.mean(0)
    return float(((inner - mean) ** 2).mean() / max(mean.var(), 1e-300))
