"""Scores of candidate axes from the sinograms alone: mirror correlation, half-turn closure, first moment.

All take projections (angle, row, column) of attenuation, float32, and score every half column at once.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

from dtomo.errors import UserError
from dtomo.prep.halfturn import pair_half_turns

MAX_PAIRS = 180
"""Mirror pairs taken from a scan; more add time, not precision."""

ROUNDING = 1e-6
"""Attenuation, relative where it is above 1, that float32 cannot tell from none."""

ALIKE, FAINT = 0.15, 0.05
"""Least correlation of neighbours that is no noise; least attenuation of an object that never changes."""


@dataclasses.dataclass(frozen=True)
class Score:
    """Scores (1 is perfect, 0 no relation) at candidate axes (columns, ascending, equal steps), from so many
    lines."""

    centers: NDArray[np.float64]
    values: NDArray[np.float64]
    lines: int = 0

    def best(self) -> tuple[float, float, bool]:
        """Position of the maximum (parabola through three points), its value, whether it lies on the end."""
        index = int(np.argmax(self.values))
        at_end = index in (0, len(self.values) - 1) or not np.isfinite(self.values[[index - 1, index + 1]]).all()
        if at_end:
            return float(self.centers[index]), float(self.values[index]), True
        shift = parabola_peak(self.values[index - 1 : index + 2])
        step = self.centers[1] - self.centers[0]
        return float(self.centers[index] + shift * step), float(self.values[index]), False

    def within(self, low: float, high: float) -> "Score":
        """The scores between two columns."""
        keep = (self.centers >= low - 1e-9) & (self.centers <= high + 1e-9)
        return Score(self.centers[keep], self.values[keep], self.lines)


def parabola_peak(three: NDArray[np.float64]) -> float:
    """Offset (-0.5 … 0.5) of the extremum of a parabola through values at -1, 0, 1."""
    left, middle, right = (float(value) for value in three)
    bend = left - 2 * middle + right
    return 0.0 if bend == 0 else float(np.clip((left - right) / (2 * bend), -0.5, 0.5))


def shows_object(projections: NDArray[np.float32], angles: NDArray[np.float64]) -> bool:
    """Whether there is more in the views than noise, rounding and a faint pattern that stands still.

    What changes from view to view is alike in neighbouring views or columns if an object turns there; an object that
    does not change as it turns is seen in the mean of all views.
    """
    profile = np.asarray(projections.mean(axis=0, dtype=np.float64), np.float32)
    change = projections - profile
    change -= change.mean(axis=-1, keepdims=True)
    power = _mean_product(change, change)
    if power > (ROUNDING * max(1.0, float(np.abs(profile).max()))) ** 2:
        ordered = change[np.argsort(angles, kind="stable")]
        alike = _mean_product(ordered[1:], ordered[:-1]), _mean_product(change[..., 1:], change[..., :-1])
        if max(alike) > ALIKE * power:
            return True
    smooth = ndimage.uniform_filter1d(profile, max(profile.shape[-1] // 16, 3), axis=-1, mode="nearest")
    return float(np.ptp(smooth, axis=-1).max()) > FAINT


def _mean_product(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    return float(np.mean([np.vdot(a, b) for a, b in zip(one, other)])) / one[0].size


def nearest_half_turns(
    angles: NDArray[np.float64],
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """For every view the view nearest to half a turn later, and by how many degrees it misses that
    (signed)."""
    turn = np.mod(angles, 360.0)
    order = np.argsort(turn, kind="stable")
    ordered = turn[order]
    wanted = np.mod(turn + 180.0, 360.0)
    after = np.searchsorted(ordered, wanted) % len(order)
    both = np.stack([order[after - 1], order[after]])
    miss = np.mod(turn[both] - wanted + 180.0, 360.0) - 180.0
    nearer = np.argmin(np.abs(miss), axis=0)
    views = np.arange(len(angles))
    return views, both[nearer, views], miss[nearer, views]


def mirror_correlation(projections: NDArray[np.float32], angles: NDArray[np.float64]) -> tuple[Score, float] | None:
    """Normalised correlation of views with the mirrored views half a turn later, over their overlap.

    Reaches an axis anywhere on the detector. Full turns use all pairs (partners between two views are
    interpolated). Otherwise the pairs nearest to half a turn are used, if they miss it by at most 3.6
    degrees; both views are then moved half of that by the slope to their neighbours.

    Returns
    -------
    tuple
        The scores at half columns, and by how many degrees the pairs miss half a turn; None without a pair.
    """
    missed = 0.0
    try:
        views, before, after, weight = pair_half_turns(angles)
    except UserError:
        views, before, miss = nearest_half_turns(angles)
        missed = float(np.abs(miss).min()) if len(miss) else np.inf
        if missed > 3.6:
            return None
        # pairs that miss by up to 0.05 degrees more are as good; each pair once
        near = np.flatnonzero(np.abs(miss) <= missed + 0.05)
        views, before, miss = views[near], before[near], miss[near]
        once = np.unique(np.sort(np.stack([views, before]), axis=0), axis=1, return_index=True)[1]
        views, before, miss = views[once], before[once], miss[once]
        after, weight = before, np.zeros(len(views))
    if len(views) > MAX_PAIRS:
        chosen = np.linspace(0, len(views) - 1, MAX_PAIRS).round().astype(int)
        views, before, after, weight = views[chosen], before[chosen], after[chosen], weight[chosen]
    if missed > 1e-3:
        direct = _turned(projections, angles, views, miss / 2)
        partner = _turned(projections, angles, before, -miss / 2)
    else:
        mix = weight.astype(np.float32)[:, np.newaxis, np.newaxis]
        direct = projections[views]
        partner = projections[before] * (1 - mix) + projections[after] * mix
    values = _overlap_correlation(direct, partner[..., ::-1])
    columns = projections.shape[2]
    centers = (columns - 1 + np.arange(1 - columns, columns)) / 2
    return Score(centers, values, len(views) * projections.shape[1]), missed


def _turned(
    projections: NDArray[np.float32],
    angles: NDArray[np.float64],
    views: NDArray[np.intp],
    by: NDArray[np.float64],
) -> NDArray[np.float32]:
    """Views as they would be a few degrees on, along the straight line through the view and its
    neighbours."""
    order = np.argsort(angles, kind="stable")
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    here = place[views]
    low, high = order[np.maximum(here - 1, 0)], order[np.minimum(here + 1, len(order) - 1)]
    gap = angles[high] - angles[low]
    part = np.where(gap > 0, by / np.where(gap > 0, gap, 1), 0).astype(np.float32)
    part = np.clip(part, -1, 1)[:, np.newaxis, np.newaxis]
    return projections[views] + part * (projections[high] - projections[low])


def _overlap_correlation(direct: NDArray[np.float32], mirrored: NDArray[np.float32]) -> NDArray[np.float64]:
    """Correlation coefficient of direct[u + s] with mirrored[u] for s = 1 - N … N - 1, over all lines
    together."""
    columns = direct.shape[-1]
    lines = direct.size // columns
    mean = np.float32(0.5 * (direct.mean(dtype=np.float64) + mirrored.mean(dtype=np.float64)))
    a = (direct - mean).reshape(lines, columns)
    b = (mirrored - mean).reshape(lines, columns)
    size = fft.next_fast_len(2 * columns, real=True)
    spectrum = np.zeros(size // 2 + 1, np.complex128)
    for start in range(0, lines, 256):
        part = slice(start, start + 256)
        spectrum += np.sum(fft.rfft(a[part], size) * np.conj(fft.rfft(b[part], size)), axis=0, dtype=np.complex128)
    product = fft.irfft(spectrum, size)
    shift = np.arange(1 - columns, columns)
    product = product[shift]
    low_a, low_b = np.maximum(shift, 0), np.maximum(-shift, 0)
    overlap = columns - np.abs(shift)

    def sums(array: NDArray[np.float32], low: NDArray[Any], power: int) -> NDArray[np.float64]:
        total = np.concatenate([[0.0], np.cumsum(np.sum(array.astype(np.float64) ** power, axis=0))])
        return total[low + overlap] - total[low]

    count = overlap * lines
    sum_a, sum_b = sums(a, low_a, 1), sums(b, low_b, 1)
    var_a = sums(a, low_a, 2) - sum_a**2 / count
    var_b = sums(b, low_b, 2) - sum_b**2 / count
    # an overlap needs some width (less where many lines speak) and must hold some of the object
    least = max(3, min(columns // 8, int(np.ceil(200 / lines))))
    common = 1e-3 * (var_a + var_b).max() * overlap / columns
    usable = (overlap >= least) & (var_a > common) & (var_b > common)
    scale = np.sqrt(np.where(usable, var_a * var_b, 1))
    return np.where(usable, (product - sum_a * sum_b / count) / scale, -np.inf)


def half_turn_closure(projections: NDArray[np.float32], angles: NDArray[np.float64]) -> Score | None:
    """How smoothly the mirrored half turn continues the measured one, for evenly spaced half-turn scans.

    After N. T. Vo et al., Opt. Express 22, 19078 (2014): a sinogram over the full turn, made of the half turn
    and its mirror image about the axis, has (next to) no energy outside a double wedge of its 2-D Fourier
    transform. Here the energy is squared, so that it is a correlation in the axis's position, and one inverse
    transform scores every axis. None where the views are not evenly spaced over a half turn.
    """
    order = _even_half_turn(angles)
    if order is None:
        return None
    views, columns = len(order), projections.shape[2]
    size = fft.next_fast_len(2 * columns, real=True)
    omega = 2 * np.pi * np.arange(size // 2 + 1) / size
    harmonic = np.abs(np.fft.fftfreq(2 * views, 1 / (2 * views)))[:, np.newaxis]
    sign = np.where(harmonic % 2 == 0, np.float32(1), np.float32(-1))
    cross = np.zeros(size // 2 + 1, np.complex128)
    energy = 0.0
    for row in range(projections.shape[1]):
        sinogram = projections[order, row]
        sinogram -= np.float32(np.median(sinogram[:, [0, -1]]))
        spectrum = fft.rfft(sinogram, size, axis=1)
        for start in range(0, size // 2 + 1, 128):
            part = slice(start, start + 128)
            harmonics = fft.fft(spectrum[:, part], 2 * views, axis=0)
            harmonics *= harmonic > omega[part] * columns / 2 + 3
            # the mirrored half has conj(harmonics[-n]) times the sign and the phase exp(-2i omega center)
            opposite = np.conj(np.roll(harmonics[::-1], 1, axis=0)) * sign
            cross[part] += np.sum(np.conj(harmonics) * opposite, axis=0, dtype=np.complex128)
            energy += float(np.sum(np.square(np.abs(harmonics)), dtype=np.float64))
    if not energy > 0:
        return None
    # sum over omega of cross * exp(-2i omega center), at every half column
    values = -fft.irfft(np.conj(cross), size) * size / (2 * energy)
    centers = np.arange(2 * columns - 1) / 2
    return Score(centers, values[: 2 * columns - 1], projections.shape[1])


def _even_half_turn(angles: NDArray[np.float64]) -> NDArray[np.intp] | None:
    """Order of the views if they are evenly spaced and step on into their own mirror image, else None."""
    order = np.argsort(angles, kind="stable")
    ordered = angles[order]
    if len(order) < 8:
        return None
    step = (ordered[-1] - ordered[0]) / (len(order) - 1)
    if not step > 0 or np.abs(ordered - ordered[0] - step * np.arange(len(order))).max() > 0.2 * step:
        return None
    views = round(180.0 / step)
    if views > len(order) or abs(views * step - 180.0) > 0.2 * step:
        return None
    return order[:views]


@dataclasses.dataclass(frozen=True)
class MomentFit:
    """Axis from the centers of mass; `mass_spread` is the relative spread of the views' masses."""

    center: float
    uncertainty: float
    mass_spread: float


def first_moment(projections: NDArray[np.float32], angles: NDArray[np.float64], ring: float = 0.0) -> MomentFit | None:
    """The centers of mass of the views of an object inside the field lie on a sinusoid about the axis.

    `ring` is the standard deviation of what single columns have in all views, whose lever shifts the axis
    unseen. Air (the mean of the medians of both edges) is subtracted. None where the angles do not
    determine a sinusoid or there is no mass.
    """
    views, _, columns = projections.shape
    theta = np.deg2rad(angles)
    design = np.stack([np.ones(views), np.cos(theta), np.sin(theta)], axis=1)
    if views < 4 or columns < 8 or np.linalg.cond(design) > 1e3:
        return None
    edge = max(columns // 25, 2)
    column = np.arange(columns, dtype=np.float64)
    middle = (columns - 1) / 2
    outer = np.stack([projections[..., :edge], projections[..., -edge:]])
    air = np.median(outer, axis=-1).mean(axis=0, dtype=np.float64)
    mass = projections.sum(axis=-1, dtype=np.float64) - columns * air
    lever = projections.astype(np.float64) @ (column - middle)
    usable = np.median(mass, axis=0) > 0
    if not usable.any():
        return None
    weights = np.median(mass, axis=0)[usable]
    mass, lever = mass[:, usable], lever[:, usable]
    spread = float(np.average(np.std(mass, axis=0) / weights, weights=weights))
    position = lever / weights
    coefficients = np.linalg.lstsq(design, position, rcond=None)[0]
    residual = position - design @ coefficients
    misfit = float(np.average(np.std(residual, axis=0), weights=weights))
    # neighbours that deviate alike: not noise, but an object that leaves the field
    power = np.sum(residual**2, axis=0)
    alike = np.sum(residual[1:] * residual[:-1], axis=0) / np.where(power > 0, power, 1)
    systematic = float(np.clip(np.average(alike, weights=weights), 0, 1)) ** 2
    gain = float(np.sqrt(np.linalg.inv(design.T @ design)[0, 0] / len(weights)))
    center = float(np.average(coefficients[0], weights=weights)) + middle
    unseen = ring * float(np.sqrt(np.sum((column - middle) ** 2) / len(weights))) / float(weights.mean())
    return MomentFit(center, misfit * (gain + 4 * systematic) + unseen, spread)


def edges_change(projections: NDArray[np.float32]) -> tuple[bool, bool]:
    """Whether the left and the right edge columns change over the views by more than a tenth of what all do.

    Air does not: such an object leaves the field on that side.
    """
    edge = max(projections.shape[2] // 50, 1)
    limit = 0.1 * float(np.std(projections, dtype=np.float64))

    def change(columns: NDArray[np.float32]) -> float:
        level = columns.mean(axis=-1)
        return float(np.std(level - level.mean(axis=0), dtype=np.float64))

    return change(projections[..., :edge]) > limit, change(projections[..., -edge:]) > limit
