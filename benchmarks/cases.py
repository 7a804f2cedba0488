"""The data that all packages get: an exact phantom and its line integrals; none projects its own input."""

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from dtomo.simulate.phantoms import head


@dataclasses.dataclass(frozen=True)
class Case:
    """Slices around the middle of the head, and pi/2 times as many angles over half a turn as columns.

    A pixel (row, column) lies at x = column - center, y = row - center; a ray at angle t meets the detector
    at column x cos t + y sin t + center. `center` is where a package puts its axis, so that a convention of
    half a pixel costs it no error.
    """

    size: int
    slices: int
    center: float

    @property
    def angles(self) -> NDArray[np.float64]:
        """Radians, without the end of the half turn."""
        return np.linspace(0, np.pi, round(np.pi / 2 * self.size), endpoint=False)

    @property
    def _rows(self) -> slice:
        first = (self.size - self.slices) // 2
        return slice(first, first + self.slices)

    @property
    def volume(self) -> NDArray[np.float32]:
        """(slices, y, x)."""
        return _volume(self)

    @property
    def sinograms(self) -> NDArray[np.float32]:
        """(slices, angle, column)."""
        return _sinograms(self)

    @property
    def inside(self) -> NDArray[np.bool_]:
        """The pixels (y, x) in which errors are measured."""
        y, x = np.mgrid[: self.size, : self.size] - self.center
        return x**2 + y**2 < (0.48 * self.size) ** 2

    def rms_error(self, reconstruction: NDArray[np.float32]) -> float:
        """RMS difference to the phantom in the circle, in units of the phantom (skull 1, brain 0.2)."""
        difference = (reconstruction - self.volume[: len(reconstruction)])[:, self.inside]
        return float(np.sqrt(np.mean(difference**2, dtype=np.float64)))

    def projection_error(self, sinograms: NDArray[np.float32]) -> float:
        """Relative difference (in norm) to the exact line integrals."""
        exact = self.sinograms[: len(sinograms)]
        return float(np.linalg.norm(sinograms - exact) / np.linalg.norm(exact))


@functools.lru_cache(2)
def _volume(case: Case) -> NDArray[np.float32]:
    return head().volume(case.size, case.size, case._rows, middle=case.center)


@functools.lru_cache(2)
def _sinograms(case: Case) -> NDArray[np.float32]:
    degrees = np.rad2deg(case.angles)
    lines = head().projections(degrees, case.size, center=case.center, slices=case.size, rows=case._rows)
    return np.ascontiguousarray(lines.transpose(1, 0, 2))
