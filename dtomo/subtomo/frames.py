"""Two averages of one thing, each in a frame of its own: how the frames lie to each other.

Halves that are aligned apart drift: nothing holds their frames together. Before their FSC is taken, one is brought into
the other's frame, by one rigid motion that is told to the user; no particle changes its half.

The motion is found by Gauss-Newton steps on the squared difference under a mask, linear in a rotation vector and a
shift, with the contrast and the offset fitted along; first at low frequencies (B. D. Lucas and T. Kanade, Proc. IJCAI
1981, 674-679).
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from dtomo.errors import UserError
from dtomo.kernels.rotation import rotate, spline_coefficients
from dtomo.subtomo.filters import low_pass
from dtomo.subtomo.fourier import check_box, forward, inverse, on_host, turned

STEPS = 25
"""Gauss-Newton steps at each resolution, at most."""
ENOUGH = 1e-4
"""Voxels: a step that moves the rim by less is the last one."""


@dataclasses.dataclass(frozen=True, eq=False)
class Frame:
    """Where another frame lies: what is at x in the first is at R (x - c) + c + s in the second, c = n // 2.

    Attributes
    ----------
    rotation, shift
        R ``(3, 3)`` and s ``(3,)`` in voxels, on (x, y, z).
    before, after
        Correlation of the two averages under the mask, as they are and brought into one frame.
    """

    rotation: NDArray[np.float64]
    shift: NDArray[np.float64]
    before: float
    after: float

    @property
    def angle(self) -> float:
        """Degrees between the frames."""
        return float(np.rad2deg(Rotation.from_matrix(self.rotation).magnitude()))

    @property
    def distance(self) -> float:
        """Voxels between their centers."""
        return float(np.linalg.norm(self.shift))

    def brought(self, second: NDArray[Any]) -> NDArray[np.float32]:
        """A volume of the second frame ``(z, y, x)``, in the first, float32, where it lies."""
        size = check_box(second, "a volume")
        return inverse(turned(forward(second), self.rotation, self.shift, 2.0), size)

    def poses(
        self, rotations: NDArray[np.float64], shifts: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Rotations ``(k, 3, 3)`` and shifts ``(k, 3)`` of particles, told in the second frame, as of the first."""
        return rotations @ self.rotation, shifts + rotations @ self.shift


def frame_between(
    first: NDArray[Any], second: NDArray[Any], mask: NDArray[Any] | None = None, *, radius: float | None = None
) -> Frame:
    """How the frame of one average lies to that of another, to within half a period of what they have in common.

    Parameters
    ----------
    first, second
        Cubic boxes ``(z, y, x)``, in host memory or on a device.
    mask
        Same shape, from 0 to 1; None: the sphere in the box.
    radius
        Frequencies to be used, in voxels of the transform: those that both have in common; default: half of Nyquist's.

    Raises
    ------
    UserError
        Shapes that differ, an empty mask.
    """
    one, two = (on_host(volume) for volume in (first, second))
    size = check_box(one, "an average")
    window = _sphere(size) if mask is None else on_host(mask)
    if two.shape != one.shape or window.shape != one.shape or not window.any():
        raise UserError(f"averages and a mask that is not empty have one shape; got {one.shape}, {two.shape}")
    reach = min(size / 4 if radius is None else radius, size / 2)
    rotation, shift = np.eye(3), np.zeros(3)
    coarse = max(reach / 4, min(4.0, reach))
    for limit in sorted({coarse, (coarse + reach) / 2, reach}):
        pair = [low_pass(volume, size / limit, 1.0) for volume in (one, two)]
        rotation, shift = _refined(pair[0], pair[1], window, rotation, shift)
    before = _correlation(pair[0], pair[1], window)
    after = _correlation(pair[0], _at(spline_coefficients(pair[1]), rotation, shift), window)
    if after < before:
        rotation, shift, after = np.eye(3), np.zeros(3), before
    return Frame(rotation, shift, before, after)


def _refined(
    first: NDArray[Any],
    second: NDArray[Any],
    window: NDArray[Any],
    rotation: NDArray[np.float64],
    shift: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rotation and shift that let the second look most like the first, from a guess on."""
    inside = window > 1e-3 * window.max()
    weight = window[inside].astype(np.float64)
    place = np.argwhere(inside)[:, ::-1] - np.array(window.shape) // 2  # x, y, z
    target = first[inside].astype(np.float64) * weight
    coefficients = spline_coefficients(second)
    best, value = (rotation, shift), _correlation(first, _at(coefficients, rotation, shift), window)
    for _ in range(STEPS):
        present = _at(coefficients, *best)
        slopes = np.stack([slope[inside] for slope in _gradient(present)], 1)
        columns = np.concatenate(
            [present[inside][:, None], np.ones((len(place), 1)), slopes, np.cross(place, slopes)], 1
        ).astype(np.float64)
        columns *= weight[:, None]
        found = np.linalg.lstsq(columns.T @ columns, columns.T @ target, rcond=1e-12)[0]
        if not found[0] > 0:
            break
        step, turn = found[2:5] / found[0], found[5:] / found[0]
        length = 1.0
        while length > 0.1:
            moved = best[1] + best[0] @ (length * step)
            other = best[0] @ Rotation.from_rotvec(length * turn).as_matrix(), moved
            agreement = _correlation(first, _at(coefficients, *other), window)
            if agreement > value:
                break
            length /= 2
        else:
            break
        best, value = other, agreement
        if length * (np.linalg.norm(step) + np.linalg.norm(turn) * len(window) / 2) < ENOUGH:
            break
    return best


def _at(coefficients: NDArray[Any], rotation: NDArray[np.float64], shift: NDArray[np.float64]) -> NDArray[Any]:
    """The second volume in the first's frame, interpolated."""
    center = (coefficients.shape[0] // 2,) * 3
    return rotate(coefficients, rotation.T, -rotation.T @ shift, order=3, center=center, coefficients=True)


def _gradient(volume: NDArray[Any]) -> list[NDArray[Any]]:
    """Slopes along x, y and z, per voxel."""
    return [np.gradient(volume, axis=axis) for axis in (2, 1, 0)]


def _correlation(one: NDArray[Any], two: NDArray[Any], window: NDArray[Any]) -> float:
    """Pearson's, weighted by the square of a window."""
    weight = np.square(window, dtype=np.float64)
    total = weight.sum()
    a, b = (volume - (weight * volume).sum() / total for volume in (one, two))
    spread = np.sqrt((weight * a * a).sum() * (weight * b * b).sum())
    return float((weight * a * b).sum() / spread) if spread > 0 else 0.0


def _sphere(size: int) -> NDArray[np.float32]:
    """One in the ball that the box holds, with a soft rim."""
    steps = np.square(np.arange(size) - size // 2)
    radius = np.sqrt(steps[:, None, None] + steps[:, None] + steps)
    return np.clip((size / 2 - 1 - radius) / 3, 0, 1).astype(np.float32)
