"""Highest places of scores over lags, to a fraction of a voxel."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, on_device


def allowed_lags(lags: tuple[NDArray[Any], NDArray[Any], NDArray[Any]], most: float | None) -> NDArray[np.bool_]:
    """Which lags ``(z, y, x)`` are no longer than `most` voxels; None: all."""
    z, y, x = np.meshgrid(*lags, indexing="ij", sparse=True)
    length = z * z + y * y + x * x
    return np.ones(length.shape, np.bool_) if most is None else length <= most * most * (1 + 1e-12)


def highest(scores: NDArray[Any], allowed: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The highest allowed place of each map, moved to the vertex of the parabola along each axis.

    Parameters
    ----------
    scores
        ``(map, z, y, x)``; maps go on periodically, which matters where a highest place lies on the border.
    allowed
        ``(z, y, x)``, with the scores.

    Returns
    -------
    values, places
        On the host: float64 ``(map,)``, those at whole places, and ``(map, 3)`` (z, y, x), counted from place 0.
    """
    xp = array_module(scores, allowed)
    shape = scores.shape[1:]
    flat = xp.where(allowed, scores, -xp.inf).reshape(len(scores), -1)
    best = xp.argmax(flat, axis=1)
    index = np.stack(np.unravel_index(_host(best), shape), 1)
    steps = np.concatenate([np.zeros((1, 3), int), -np.eye(3, dtype=int), np.eye(3, dtype=int)])
    around = (index[:, None] + steps) % np.array(shape)
    places = np.asarray(np.ravel_multi_index(tuple(np.moveaxis(around, -1, 0)), shape))
    found = _host(xp.take_along_axis(scores.reshape(len(scores), -1), xp.asarray(places), 1)).astype(np.float64)
    middle, low, high = found[:, :1], found[:, 1:4], found[:, 4:]
    bend = 2 * middle - low - high
    vertex = np.where(bend > 0, 0.5 * (high - low) / np.where(bend > 0, bend, 1), 0)
    vertex[:, np.array(shape) < 3] = 0
    return found[:, 0], index + np.clip(vertex, -0.5, 0.5)


def shortened(shifts: NDArray[np.float64], most: float | None) -> NDArray[np.float64]:
    """Vectors ``(…, 3)`` that are longer than `most`, brought to that length."""
    if most is None:
        return shifts
    length = np.linalg.norm(shifts, axis=-1, keepdims=True)
    return shifts * np.minimum(1, most / np.maximum(length, 1e-300))


def _host(array: Any) -> NDArray[Any]:
    return array.get() if on_device(array) else array
