"""Phantoms of ellipsoids seen along the rays of any geometry of vectors, in closed form, and on its voxels.

A ray P + t D, in coordinates in which an ellipsoid is the unit ball, q + t e, lies in it over
``2 |D| sqrt((q·e)² - |e|² (|q|² - 1)) / |e|²``. No projector of dtomo takes part.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dtomo.geometry import VectorGeometry
from dtomo.simulate.phantoms import FILL, Phantom

Numbers = NDArray[np.float64]


def unit_of(geometry: VectorGeometry) -> float:
    """Length of a phantom's unit that fills the volume of a geometry in x and y, as `Phantom` fills its slices."""
    return FILL * float(min(geometry.lengths[1:])) / 2


def ray_integrals(
    phantom: Phantom,
    geometry: VectorGeometry,
    *,
    unit: float | None = None,
    fine: int = 1,
    views: slice | None = None,
) -> NDArray[np.float32]:
    """Line integrals of a phantom about the origin along the rays of a geometry.

    Parameters
    ----------
    phantom
        With values per unit of length.
    geometry
        Rays to the middles of pixels.
    unit
        Length of the phantom's unit; default `unit_of` the geometry.
    fine
        Rays along each side of a pixel, evenly apart, that it is the mean of; 1: through its middle.
    views
        Some of the views.

    Returns
    -------
    array
        (view, row, column) float32.
    """
    unit = unit_of(geometry) if unit is None else unit
    chosen = geometry if views is None else geometry.of_views(views)
    out = np.zeros((chosen.views, chosen.rows, chosen.columns))
    inside = (np.arange(fine) + 0.5) / fine - 0.5
    matrices = chosen.matrices()
    for value, middle, to_ball in _balls(phantom, unit):
        box = middle + np.linalg.inv(to_ball) @ (2.0 * np.indices((2, 2, 2)).reshape(3, 8) - 1)
        for view in range(chosen.views):
            rows, columns = _spans(matrices[view], box, chosen)
            if rows.start >= rows.stop or columns.start >= columns.stop:
                continue
            for down in inside:
                for across in inside:
                    r, c = np.arange(rows.start, rows.stop) + down, np.arange(columns.start, columns.stop) + across
                    start, ray = _rays(chosen, view, r, c)
                    q, e = (start - middle[:, 0]) @ to_ball.T, ray @ to_ball.T
                    square, along = np.sum(e * e, 2), np.sum(q * e, 2)
                    under = along**2 - square * (np.sum(q * q, 2) - 1)
                    chord = 2 * np.sqrt(np.maximum(under, 0)) / square * np.linalg.norm(ray, axis=2)
                    out[view, rows, columns] += value / fine**2 * chord
    return out.astype(np.float32)


def voxel_values(
    phantom: Phantom, geometry: VectorGeometry, *, unit: float | None = None, fine: int = 3
) -> NDArray[np.float32]:
    """A phantom about the origin on the voxels of a geometry, ``(z, y, x)``: means of `fine`³ points of each."""
    unit = unit_of(geometry) if unit is None else unit
    out = np.zeros(geometry.shape, np.float32)
    size, inside = np.array(geometry.voxel)[::-1], (np.arange(fine) + 0.5) / fine - 0.5
    first = np.array(geometry.middle) - (np.array(geometry.shape)[::-1] - 1) / 2 * size
    for value, middle, to_ball in _balls(phantom, unit):
        reach = np.linalg.norm(np.linalg.inv(to_ball), axis=1)
        low = np.floor((middle[:, 0] - reach - first) / size).astype(int)
        high = np.ceil((middle[:, 0] + reach - first) / size).astype(int) + 1
        low, high = np.clip(low, 0, geometry.shape[::-1]), np.clip(high, 0, geometry.shape[::-1])
        if (low >= high).any():
            continue
        x, y, z = (
            first[k] + size[k] * (np.arange(low[k], high[k])[:, None] + inside).ravel() - middle[k, 0] for k in range(3)
        )
        flat = x[None, :, None] * to_ball[:, 0] + y[:, None, None] * to_ball[:, 1]
        for k in range(high[2] - low[2]):
            share = np.zeros((len(y), len(x)))
            for height in z[k * fine : (k + 1) * fine]:
                share += np.sum((flat + height * to_ball[:, 2]) ** 2, 2) < 1
            share = share.reshape(high[1] - low[1], fine, high[0] - low[0], fine).sum((1, 3)) / fine**3
            out[low[2] + k, low[1] : high[1], low[0] : high[0]] += (value * share).astype(np.float32)
    return out


def _balls(phantom: Phantom, unit: float) -> Iterator[tuple[float, Numbers, Numbers]]:
    """Value, middle (x, y, z) as a column, and the matrix that makes an ellipsoid the unit ball, of each."""
    for value, a, b, c, x, y, z, turn in phantom.table:
        cosine, sine = np.cos(np.deg2rad(turn)), np.sin(np.deg2rad(turn))
        turned = np.array([[cosine, sine, 0], [-sine, cosine, 0], [0, 0, 1]])
        yield value, unit * np.array([[x], [y], [z]]), turned / (unit * np.array([[a], [b], [c]]))


def _spans(matrix: Numbers, box: Numbers, geometry: VectorGeometry) -> tuple[slice, slice]:
    """Rows and columns that a box of points ``(3, 8)`` may be seen in."""
    column, row, depth = matrix @ np.vstack([box, np.ones(box.shape[1])])
    if (depth <= 1e-6).any():
        return slice(0, geometry.rows), slice(0, geometry.columns)
    row = row if geometry.beam == "fan" else row / depth
    found = []
    for places, count in ((row, geometry.rows), (column / depth, geometry.columns)):
        low, high = np.clip([np.floor(places.min()), np.ceil(places.max()) + 1], 0, count)
        found.append(slice(int(low), int(high)))
    return found[0], found[1]


def _rays(geometry: VectorGeometry, view: int, rows: Numbers, columns: Numbers) -> tuple[Numbers, Numbers]:
    """Points and directions ``(row, column, 3)`` of rays."""
    g = geometry
    down = (rows - (g.rows - 1) / 2)[:, None, None] * g.row_step[view]
    pixels = g.detector[view] + down + (columns - (g.columns - 1) / 2)[:, None] * g.column_step[view]
    if g.beam == "parallel":
        return pixels, np.broadcast_to(g.source[view], pixels.shape)
    return pixels, pixels - (g.source[view] + down if g.beam == "fan" else g.source[view])
