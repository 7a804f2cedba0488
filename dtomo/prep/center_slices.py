"""Score of candidate axes from what they do to the slice: a wrong axis leaves negative attenuation behind.

A light filtered back projection at some thousand points of the slice, not at every voxel, is enough to judge
it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import fft

from dtomo.prep.halfturn import fold_360
from dtomo.prep.padding import extend
from dtomo.threads import run_blocks

Reconstruct = Callable[[NDArray[np.float32], NDArray[np.float64], float], NDArray[np.float32]]
"""(sinogram (angle, column), angles in degrees, center) -> slice (y, x)."""

_POINTS = 2500
_MAX_VIEWS = 720
_CUTOFF = 0.25


@njit(nogil=True, cache=True, error_model="numpy")
def _back_project(sinogram: Any, cosine: Any, sine: Any, weights: Any, center: float, x: Any, y: Any, out: Any) -> None:
    """Sum over the angles of the filtered (angle, column) at the points' columns, linear between columns."""
    columns = sinogram.shape[1]
    out[:] = 0
    for k in range(sinogram.shape[0]):
        line = sinogram[k]
        for j in range(x.size):
            u = x[j] * cosine[k] + y[j] * sine[k] + center
            left = np.int64(np.floor(u))
            if left >= 0 and left + 1 < columns:
                part = np.float32(u - left)
                out[j] += weights[k] * (line[left] + part * (line[left + 1] - line[left]))


def filtered(sinogram: NDArray[np.float32]) -> NDArray[np.float32]:
    """Ramp filter with a Hann window up to half the Nyquist frequency along the last axis; edges continued,
    so that a constant gives nothing."""
    columns = sinogram.shape[-1]
    size = fft.next_fast_len(3 * columns, real=True)
    left = (size - columns) // 2
    padded = extend(sinogram, left, size - columns - left)
    frequency = np.arange(size // 2 + 1) / size
    window = np.where(frequency < _CUTOFF, np.cos(np.pi / 2 * frequency / _CUTOFF) ** 2, 0)
    response = (frequency * window).astype(np.float32)
    spectrum = fft.rfft(padded, axis=-1)
    spectrum *= response
    return np.ascontiguousarray(fft.irfft(spectrum, size, axis=-1)[..., left : left + columns])


def angle_weights(angles: NDArray[np.float64]) -> NDArray[np.float32]:
    """Half the gap to the neighbours on either side, modulo half a turn, in radians: repeated angles share
    theirs."""
    turn = np.mod(angles, 180.0)
    order = np.argsort(turn, kind="stable")
    gaps = np.diff(turn[order], append=turn[order[0]] + 180.0)
    weights = np.empty(len(angles))
    weights[order] = 0.5 * (gaps + np.roll(gaps, 1))
    return np.deg2rad(weights).astype(np.float32)


def sunflower(radius: float, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points that fill a disc evenly, at irregular distances from any grid."""
    k = np.arange(count) + 0.5
    r = radius * np.sqrt(k / count)
    phi = k * np.pi * (3 - np.sqrt(5.0))
    return r * np.cos(phi), r * np.sin(phi)


def _negative_part(values: NDArray[np.float32]) -> float:
    total = float(np.sum(np.abs(values), dtype=np.float64))
    return float(-np.sum(np.minimum(values, 0), dtype=np.float64)) / total if total > 0 else 0.0


def _flatness(values: NDArray[np.float32]) -> float:
    """Minus the variance: least where nothing is blurred. A wrong axis turns each point of a full-turn scan
    into a ring."""
    return -float(np.var(values, dtype=np.float64))


def slice_faults(
    projections: NDArray[np.float32],
    angles: NDArray[np.float64],
    centers: NDArray[np.float64],
    *,
    full_turn: bool,
    radius: float,
    reconstruct: Reconstruct | None = None,
) -> NDArray[np.float64]:
    """What is wrong with the slices that each candidate axis gives; the right axis gives the least.

    Half turn: the share of negative attenuation (0 … 0.5). Full turn: minus the variance.

    Parameters
    ----------
    projections
        (angle, row, column) attenuation.
    centers
        Candidates; multiples of one half, so that no candidate is smoothed by interpolation more than
        another.
    full_turn
        The views are a full turn.
    radius
        Points are taken up to this distance from the axis, the same for all candidates.
    reconstruct
        Use this instead of the light back projection.

    Returns
    -------
    (candidate,) float64.
    """
    fault = _flatness if full_turn else _negative_part
    rows = range(projections.shape[1])
    if reconstruct is not None:
        return np.array(
            [
                np.mean([fault(_disc(reconstruct, projections[:, row], angles, c, radius)) for row in rows])
                for c in centers
            ]
        )
    if len(angles) > _MAX_VIEWS:
        chosen = np.linspace(0, len(angles) - 1, _MAX_VIEWS).round().astype(int)
        projections, angles = projections[chosen], angles[chosen]
    x, y = sunflower(radius, _POINTS)
    ready = [filtered(np.ascontiguousarray(projections[:, row])) for row in rows]
    theta = np.deg2rad(angles)
    weights = angle_weights(angles)

    def score(start: int, stop: int) -> float:
        values = np.empty(x.size, np.float32)
        parts = []
        for sinogram in ready:
            _back_project(sinogram, np.cos(theta), np.sin(theta), weights, float(centers[start]), x, y, values)
            parts.append(fault(values))
        return float(np.mean(parts))

    return np.array(run_blocks(score, len(centers), 1))


def _disc(
    reconstruct: Reconstruct,
    sinogram: NDArray[np.float32],
    angles: NDArray[np.float64],
    center: float,
    radius: float,
) -> NDArray[np.float32]:
    """The values of a whole slice within the radius."""
    image = np.asarray(reconstruct(np.ascontiguousarray(sinogram), angles, float(center)))
    height, width = image.shape
    y, x = np.ogrid[:height, :width]
    inside = (y - (height - 1) / 2) ** 2 + (x - (width - 1) / 2) ** 2 <= radius**2
    return np.asarray(image[inside])


def folded_mass_spread(
    projections: NDArray[np.float32], angles: NDArray[np.float64], centers: NDArray[np.float64]
) -> NDArray[np.float64]:
    """How much the mass of the views varies over the angles when a full-turn scan is folded about each
    candidate axis.

    The mass of an object inside the (folded) field is the same from every side; a wrong axis adds or leaves
    out the strip about the axis. Relative variance, averaged over the rows, (candidate,) float64.
    """
    if len(angles) > 2 * _MAX_VIEWS:
        stride = len(angles) // _MAX_VIEWS
        projections, angles = projections[::stride], angles[::stride]

    def spread(start: int, stop: int) -> float:
        folded, _, _ = fold_360(projections, angles, float(centers[start]))
        mass = folded.sum(axis=2, dtype=np.float64)
        return float(np.mean(np.var(mass, axis=0) / np.maximum(np.mean(mass, axis=0) ** 2, 1e-30)))

    return np.array(run_blocks(spread, len(centers), 1))
