"""What a tilt series covers in Fourier space: all but the missing wedge."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError
from dtomo.kernels.wedges import checked_rotation, wedge_weights


@dataclasses.dataclass(frozen=True, eq=False)
class Wedge:
    """Planes of the projections of a tilt series about the y axis, beam along z.

    Attributes
    ----------
    tilts
        First and last angle, degrees, from -90 to 90. A projection at tilt t is the plane of those spatial frequencies
        (kx, kz) with kz cos t = kx sin t: the sample is turned by Ry(t) (active, so that z goes to x for a small
        positive t) and projected along z onto u = x cos t + z sin t.
    cutoff
        Radius beyond which nothing counts, in voxels of the transform of a box; 0: half the box.
    smooth
        Width of the soft edge of the wedge, in the same unit, within what is missing.
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

    def weights(
        self, shape: tuple[int, int, int], rotation: ArrayLike | None = None, *, like: Any = None
    ) -> NDArray[np.float32]:
        """How much each frequency of a box counts.

        Parameters
        ----------
        shape
            ``(z, y, x)`` of the box.
        rotation
            Of a volume that was turned after it was measured (active, on (x, y, z)), and its wedge with it: for a
            particle with x_particle = R x_reference that was brought into the reference's frame, Rᵀ. None: unturned.
        like
            An array on the device where the weights are wanted; else they lie on the host.

        Returns
        -------
        ndarray
            float32 ``(z, y, x // 2 + 1)`` in the order of ``rfftn``, from 0 to 1.

        Raises
        ------
        UserError
            A rotation that is none.
        """
        turned = checked_rotation(rotation)
        if self.tilt_axis is not None:
            turned = turned @ self.tilt_axis
        return wedge_weights(shape, self.tilts, self.cutoff, self.smooth, turned, like)
