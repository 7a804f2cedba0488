"""Ramp filters along any direction of a detector, with what each ray counts: for geometries of vectors."""

import dataclasses
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from dtomo.arrays import array_module
from dtomo.errors import UserError
from dtomo.geometry.orbits import Orbit, orbit_of
from dtomo.geometry.redundancy import Redundancy, aside
from dtomo.geometry.vectors import VectorGeometry, Vectors
from dtomo.kernels.filters import (
    WINDOWS,
    filter_lines,
    interpolation_response,
    line_continuation,
    padded_length,
    ramp_response,
)
from dtomo.threads import run_jobs

Numbers = NDArray[np.float64]

ALONG_COLUMNS = np.tan(np.deg2rad(0.1))
"""Slope of a direction up to which lines are filtered one by one."""


def filter_directions(geometry: VectorGeometry, orbit: Orbit) -> Numbers:
    """(columns, rows) to go along on the detector in each view, a unit of length in all: where the source goes.

    Along the line in which the detector meets the plane of the middle ray and the source's way.
    """
    u, v = geometry.column_step, geometry.row_step
    normal = np.cross(u, v)
    ray = geometry.source if geometry.beam == "parallel" else orbit.middle - geometry.source
    way = orbit.along - (np.sum(orbit.along * normal, 1) / np.sum(ray * normal, 1))[:, None] * ray
    square = np.sum(normal * normal, 1)
    steps = np.stack([np.sum(way * np.cross(v, normal), 1), np.sum(way * np.cross(normal, u), 1)], 1) / square[:, None]
    if geometry.beam == "fan":
        steps[:, 1] = 0
    length = np.linalg.norm(steps[:, :1] * u + steps[:, 1:] * v, axis=1, keepdims=True)
    return steps / length


@dataclasses.dataclass
class RayWeights:
    """What every pixel of a view is multiplied by before it is filtered: one table for views that are alike.

    For rays from a source: |det(way of the source, ray, plane of the filter's line)| as that plane's part of the
    volume takes it, times what the ray counts. (A. C. Kak and M. Slaney, Principles of Computerized Tomographic
    Imaging, 1988, chapter 3, for circles and upright detectors; written here for any line in any plane.)
    """

    geometry: VectorGeometry
    orbit: Orbit
    redundancy: Redundancy
    rows: tuple[int, int]

    def __post_init__(self) -> None:
        self.directions = filter_directions(self.geometry, self.orbit)
        slope = self.directions * np.linalg.norm([self.geometry.column_step, self.geometry.row_step], axis=2).T
        self.along_columns = bool((np.abs(slope[:, 1]) <= ALONG_COLUMNS * np.abs(slope[:, 0])).all())
        if self.along_columns:
            length = np.linalg.norm(self.geometry.column_step, axis=1)
            self.directions = np.stack([1 / length, 0 * length], 1)
        self._kept: tuple[Numbers, Any] | None = None

    def of_view(self, view: int) -> NDArray[np.float32]:
        """``[column, row]``, or ``[column, 1]`` where all rows are alike."""
        frame = self._frame(view)
        gram = frame @ frame.T
        if self._kept is not None and self.redundancy.each_alike:
            before, table = self._kept
            if np.allclose(gram, before, rtol=1e-9, atol=1e-9 * np.abs(gram).max()):
                return table
        table = self._table(view).astype(np.float32)
        self._kept = gram, table
        return table

    def _frame(self, view: int) -> Vectors:
        """Vectors whose products say what rays of a view weigh."""
        g, o = self.geometry, self.orbit
        far = g.detector if g.beam == "parallel" else g.detector - g.source
        return np.stack([far[view], g.column_step[view], g.row_step[view], o.along[view], self._line(view)])

    def _line(self, view: int) -> Numbers:
        """Unit vector of the filter's lines."""
        g, (a, b) = self.geometry, self.directions[view]
        line = a * g.column_step[view] + b * g.row_step[view]
        return line / np.linalg.norm(line)

    def _pixels(self, view: int) -> Vectors:
        g = self.geometry
        columns = np.arange(g.columns) - (g.columns - 1) / 2
        rows = np.arange(*self.rows) - (g.rows - 1) / 2
        if g.beam == "fan":
            rows = np.zeros(1)
        places = g.detector[view] + columns[:, None, None] * g.column_step[view]
        return places + rows[None, :, None] * g.row_step[view]

    def _table(self, view: int) -> Numbers:
        g, line, velocity = self.geometry, self._line(view), self.orbit.velocity[view]
        if g.beam == "parallel":
            if self.redundancy.each_alike:
                pixels = np.zeros((1, 1, 3))
            else:
                pixels = self._pixels(view)
            beam = g.source[view] / np.linalg.norm(g.source[view])
            square = 1 - (beam @ line) ** 2
            weight = np.full(pixels.shape[:2], abs(velocity @ line - (velocity @ beam) * (beam @ line)) / square)
        else:
            pixels = self._pixels(view)
            ray = pixels - g.source[view]
            length, on_line = np.sum(ray * ray, 2), ray @ line
            weight = np.abs((ray @ velocity) * on_line - (velocity @ line) * length)
            weight /= np.sqrt(length) * (length - on_line**2)
        counts = self.redundancy.of_rays(view, aside(g, self.orbit, view, pixels))
        return weight * counts


def check_filter(name: str, cutoff: float) -> None:
    """Refuse what is no filter."""
    if name not in WINDOWS:
        raise UserError(f"there is no filter {name!r}; choose one of {', '.join(WINDOWS)}")
    if not 0 < cutoff <= 1:
        raise UserError(
            f"the cut-off of a filter is a fraction of the Nyquist frequency, above 0 and at most 1, not {cutoff}"
        )


def filter_views(lines: Any, weights: RayWeights, views: range, name: str, cutoff: float, extend: bool) -> None:
    """Weigh and filter ``lines[view, column, row]`` of some views, in place.

    Where the filter goes along columns, line by line; else every view with a filter of its own in two dimensions.
    """
    xp, geometry = array_module(lines), weights.geometry
    for view, image in zip(views, lines):
        image *= xp.asarray(weights.of_view(view) * np.float32(weights.redundancy.radians[view]))
    lengths = np.linalg.norm(geometry.column_step, axis=1)[views.start : views.stop]
    length = padded_length(geometry.columns)
    if weights.along_columns:
        shape = ramp_response(length, name, cutoff) * interpolation_response(length)
        filter_lines(lines, xp.asarray((shape / lengths[:, None]).astype(np.float32)), length, extend, out=lines)
        return
    size = (length, padded_length(lines.shape[2]))

    def work(span: tuple[int, int]) -> None:
        for k in range(*span):
            response = plane_response(weights, views[k], size, name, cutoff)
            lines[k] = filter_plane(lines[k], xp.asarray(response), size, extend)

    if xp is np:
        run_jobs(work, len(views))
    else:
        work((0, len(views)))


def plane_response(
    weights: RayWeights, view: int, size: tuple[int, int], name: str, cutoff: float
) -> NDArray[np.float32]:
    """Response ``[column frequency, row frequency]`` (as `rfft2` orders it) of the ramp along a view's direction.

    With what makes up for linear interpolation, along it as well.
    """
    g = weights.geometry
    u, v = g.column_step[view], g.row_step[view]
    steps = np.array([[u @ u, u @ v], [u @ v, v @ v]])
    a, b = np.linalg.solve(steps, np.array([u, v]) @ weights._line(view))
    columns, rows = np.fft.fftfreq(size[0]), np.fft.rfftfreq(size[1])
    pixel = 1 / np.hypot(a, b)
    frequency = np.minimum(np.abs(columns[:, None] * a + rows * b) * pixel, 0.5)
    # a line of the filter's kernel, as long as it may be without meeting itself around the corner
    reach = int(min(n / max(abs(share) * pixel, 1e-9) for n, share in zip(size, (a, b))))
    fine = 16 * reach
    ramp = ramp_response(fine, name, cutoff, reach) * interpolation_response(fine)
    return (np.interp(frequency, np.arange(len(ramp)) / fine, ramp) / pixel).astype(np.float32)


def filter_plane(image: Any, response: Any, size: tuple[int, int], extend: bool) -> Any:
    """One view ``[column, row]`` convolved in both directions, continued beyond the detector as `filter_lines` does."""
    xp = array_module(image)
    left = [(n - m) // 2 for n, m in zip(size, image.shape)]
    padded = xp.pad(image, [(k, n - m - k) for k, n, m in zip(left, size, image.shape)], mode="edge")
    for axis in range(2):
        fall = xp.asarray(line_continuation(image.shape[axis], size[axis], extend))
        padded *= fall[:, None] if axis == 0 else fall
    fft = scipy.fft if xp is np else xp.fft
    options = {"workers": 1} if xp is np else {}
    found = fft.irfft2(fft.rfft2(padded, **options) * response, size, **options)
    return found[left[0] : left[0] + image.shape[0], left[1] : left[1] + image.shape[1]]


def needs_all_rows(geometry: VectorGeometry) -> bool:
    """Whether projections are filtered in two dimensions, so that a slab needs more rows than it is seen in."""
    orbit = orbit_of(geometry)
    redundancy = Redundancy(geometry.beam, orbit, orbit.angles, 0.0, 0.0, 0.0, 0.0, 1.0)
    return not RayWeights(geometry, orbit, redundancy, (0, 1)).along_columns
