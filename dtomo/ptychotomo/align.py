"""Shifts of the images of single angles against one another, before they are put together.

First guesses: along the axis the mass of a row is the same at all angles, across it the middle of the mass moves as a
point of the sample does. Then reprojection: the volume from the shifted projections is projected again, and each
projection is registered to its own (M. Guizar-Sicairos et al., Optics Express 19 (2011) 21345; D. Gürsoy et al.,
Scientific Reports 7 (2017) 11818).
"""

import numpy as np
import scipy.ndimage
from numpy.typing import NDArray

from dtomo.algorithms.fbp import fbp
from dtomo.geometry import ParallelBeam
from dtomo.operators.projection import ParallelProjector

ROUNDS = 8
"""Of reprojection."""
FINEST = 20
"""Parts of a pixel that a registration tells."""


def align_projections(
    projections: NDArray[np.float32],
    geometry: ParallelBeam,
    *,
    rounds: int = ROUNDS,
    most: float = 8.0,
    radius: float | None = None,
) -> NDArray[np.float64]:
    """How far each projection is shifted.

    Parameters
    ----------
    projections
        ``(angle, row, column)``, real, zero beside the sample.
    geometry
        Of the angles.
    rounds
        Of reprojection.
    most
        Pixels that a shift may have.
    radius
        Of the sample about the axis, voxels; None: unknown.

    Returns
    -------
    ndarray
        ``(angle, 2)``, rows and columns: projection(x) is that of the sample at x + shift. Shifts that a shift of the
        whole sample would do as well are taken out.
    """
    data = np.asarray(projections, np.float32)
    shifts = np.stack([_by_rows(data), _by_columns(data, geometry)], 1).clip(-most, most)
    for _ in range(rounds):
        moved = np.stack([scipy.ndimage.shift(one, by, order=1) for one, by in zip(data, shifts)])
        volume = fbp(moved, geometry)
        if radius is not None:
            y, x = (np.arange(n) - (n - 1) / 2 for n in volume.shape[1:])
            volume = volume * (y[:, None] ** 2 + x**2 <= radius**2)
        again = ParallelProjector(geometry, len(volume)).forward(volume.astype(np.float32))
        steps = np.array([_registered(ours, theirs) for ours, theirs in zip(again, moved)])
        shifts = without_sample_shift((shifts + steps).clip(-most, most), geometry)
    return shifts


def without_sample_shift(shifts: NDArray[np.float64], geometry: ParallelBeam) -> NDArray[np.float64]:
    """Shifts without what a shift of the sample, or of the axis, does: a constant, and cos and sin in columns."""
    turn = geometry.radians
    table = np.stack([np.ones_like(turn), np.cos(turn), np.sin(turn)], 1)
    found = np.array(shifts, np.float64)
    found[:, 0] -= found[:, 0].mean()
    found[:, 1] -= table @ np.linalg.lstsq(table, found[:, 1], rcond=None)[0]
    return found


def _registered(reference: NDArray[np.float32], moving: NDArray[np.float32]) -> NDArray[np.float64]:
    from skimage.registration import phase_cross_correlation

    found, *_ = phase_cross_correlation(reference, moving, upsample_factor=FINEST, normalization=None)
    return np.asarray(found, np.float64)


def _by_rows(data: NDArray[np.float32]) -> NDArray[np.float64]:
    """From the mass of rows, each angle against the mean of all, again and again."""
    profiles = data.sum(2, dtype=np.float64)
    shifts = np.zeros(len(data))
    for _ in range(5):
        moved = np.stack([scipy.ndimage.shift(one, by, order=1) for one, by in zip(profiles, shifts)])
        mean = moved.mean(0)
        shifts += [_registered(mean[:, None], one[:, None])[0] for one in moved]
        shifts -= shifts.mean()
    return shifts


def _by_columns(data: NDArray[np.float32], geometry: ParallelBeam) -> NDArray[np.float64]:
    """From the middle of the mass: what a point of the sample does not explain."""
    mass = data.sum((1, 2), dtype=np.float64)
    middle = (data.sum(1, dtype=np.float64) * np.arange(data.shape[2])).sum(1) / np.where(mass == 0, 1, mass)
    turn = geometry.radians
    table = np.stack([np.ones_like(turn), np.cos(turn), np.sin(turn)], 1)
    expected = table @ np.linalg.lstsq(table, middle, rcond=None)[0]
    return np.asarray(expected - middle)
