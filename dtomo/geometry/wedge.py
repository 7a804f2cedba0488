"""What a tilt series covers in Fourier space: all but the missing wedge."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class Wedge:
    """Planes of the projections of a tilt series about the y axis, beam along z.

    Attributes
    ----------
    tilts
        First and last angle, degrees, from -90 to 90. A projection at tilt t is the plane of those spatial frequencies
        (kx, kz) with kz cos t = -kx sin t: a point of the sample turned by Ry(t) is projected along z.
    cutoff
        Radius beyond which nothing counts, in voxels of the transform of a box; 0: half the box.
    smooth
        Width of its soft edge, in the same unit.
    tilt_axis
        Rotation matrix ``(3, 3)`` on (x, y, z) that takes the y axis to the axis of tilting; None: y.

    Raises
    ------
    UserError
        Tilts out of range or order, a negative radius or edge, a matrix that is no rotation.
    """

    tilts: tuple[float, float] = (-60.0, 60.0)
    cutoff: float = 0.0
    smooth: float = 0.0
    tilt_axis: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        first, last = self.tilts
        if not -90 <= first <= last <= 90:
            raise UserError(f"tilts go from a first to a last angle between -90 and 90 degrees; got {first} and {last}")
        if not (self.cutoff >= 0 and self.smooth >= 0):
            raise UserError(f"cutoff and smooth edge of a wedge are not negative; got {self.cutoff} and {self.smooth}")
        axis = self.tilt_axis
        if axis is not None and not (np.shape(axis) == (3, 3) and np.allclose(axis @ axis.T, np.eye(3), atol=1e-6)):
            raise UserError("the tilt axis of a wedge is a rotation matrix of shape (3, 3)")

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Wedge):
            return NotImplemented
        own, theirs = (np.eye(3) if one.tilt_axis is None else one.tilt_axis for one in (self, other))
        numbers = (self.tilts, self.cutoff, self.smooth) == (other.tilts, other.cutoff, other.smooth)
        return bool(numbers and np.array_equal(own, theirs))

    def __hash__(self) -> int:
        return hash((self.tilts, self.cutoff, self.smooth))
