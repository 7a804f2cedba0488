"""Views of a phantom that have moved, with an axis that lies anywhere; made without the package's own interpolation."""

import functools

import numpy as np
import scipy.ndimage

from dtomo.simulate.phantoms import sample

HALF_TURN = np.arange(0.0, 180.0, 3.0)
TILTS = np.arange(-76.0, 77.0, 4.0)


@functools.cache
def _still(angles, size, margin):
    """Views of a larger field than needed, so that what moves in is real: rows go on beyond the views."""
    tilts = np.array(angles)
    wide, high = size + 2 * margin, size + 2 * margin
    return sample(0, 120).projections(tilts, size=size, columns=wide, center=(wide - 1) / 2, slices=high)


def moved_views(angles, size=48, most=6.0, noise=0.01, seed=0, axis_angle=0.0):
    """Views ``(view, row, column)``, and by how much each is to be moved to be aligned.

    With an axis angle the scene is turned about the middle of the view, by a spline of order 5.
    """
    margin = int(most) + 8 + (size // 3 if axis_angle else 0)
    random = np.random.default_rng(seed)
    shifts = random.uniform(-most, most, (len(angles), 2))
    still = _still(tuple(float(angle) for angle in angles), size, margin)
    turn = np.deg2rad(axis_angle)
    matrix = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])  # raw pixels to aligned ones
    middle = (np.array(still.shape[1:]) - 1) / 2
    views = []
    for view, shift in zip(still, shifts):
        offset = middle - matrix @ middle + shift
        views.append(scipy.ndimage.affine_transform(view, matrix, offset, order=5, mode="nearest"))
    cut = slice(margin, -margin)
    found = np.stack(views)[:, cut, cut].astype(np.float32)
    found += random.normal(0, noise * found.max(), found.shape).astype(np.float32)
    return found, shifts


def rms(shifts, truth, angles):
    """Pixels along and across the axis, but for what a shift of the sample does."""
    turn = np.deg2rad(angles)
    table = np.stack([np.cos(turn), np.sin(turn)], 1)
    apart = np.asarray(shifts) - truth
    apart[:, 0] -= apart[:, 0].mean()
    apart[:, 1] -= table @ np.linalg.lstsq(table, apart[:, 1], rcond=None)[0]
    return np.sqrt((apart**2).mean(0))
