"""What a tilt series covers in Fourier space, as weights of the frequencies of a box."""

from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import ArrayLike, NDArray

from dtomo.arrays import array_module
from dtomo.errors import UserError

_ON_THE_EDGE = 1e-6  # voxels of the transform: rounding of what lies on the border, which is kept


def frequencies(shape: tuple[int, int, int]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Spatial frequencies (z, y, x) in cycles per voxel, in the order of ``rfftn``: three axes that broadcast."""
    depth, height, width = shape
    along_z, along_y = scipy.fft.fftfreq(depth), scipy.fft.fftfreq(height)
    return along_z[:, None, None], along_y[None, :, None], scipy.fft.rfftfreq(width)[None, None, :]


def checked_rotation(rotation: ArrayLike | None) -> NDArray[np.float64]:
    """A rotation matrix ``(3, 3)``; the identity for None.

    Raises
    ------
    UserError
        It is none.
    """
    matrix = np.eye(3) if rotation is None else np.asarray(rotation, np.float64)
    if matrix.shape != (3, 3) or not np.allclose(matrix @ matrix.T, np.eye(3), atol=1e-4) or np.linalg.det(matrix) < 0:
        raise UserError(
            f"a rotation is a matrix (3, 3) whose transpose is its inverse, without mirroring; got {matrix}"
        )
    return matrix


def wedge_weights(
    shape: tuple[int, int, int],
    tilts: tuple[float, float],
    cutoff: float = 0.0,
    smooth: float = 0.0,
    rotation: ArrayLike | None = None,
    like: Any = None,
) -> NDArray[np.float32]:
    """1 where a projection of the tilt range has its plane, 0 in the missing wedge.

    A projection at tilt t is the plane kz cos t = kx sin t. Frequencies are counted in voxels of the transform of a
    box whose side is the shortest of `shape`: k is `side` times the frequency in cycles per voxel.

    Parameters
    ----------
    shape
        ``(z, y, x)`` of the box.
    tilts
        First and last tilt, degrees.
    cutoff
        Radius in voxels beyond which the weight is 0, sharply; 0, and all that is larger: half the side (Nyquist).
    smooth
        Width in voxels of a soft edge: the weight falls linearly from 1 on the border of the wedge to 0 at that
        distance from it, within what is missing.
    rotation
        Turns the wedge (active, on (x, y, z)): the weight at k is that of the unturned wedge at ``rotationᵀ k``, as for
        a volume that was turned by `rotation`.
    like
        An array on the device where the weights are wanted; else they lie on the host.

    Returns
    -------
    ndarray
        float32 ``(z, y, x // 2 + 1)`` in the order of ``rfftn``.

    Raises
    ------
    UserError
        A rotation that is none.
    """
    xp = array_module(like)
    back = checked_rotation(rotation).T
    side = min(shape)
    z, y, x = (xp.asarray(axis * side) for axis in frequencies(shape))
    middle, half = np.deg2rad(np.mean(tilts)), np.deg2rad((tilts[1] - tilts[0]) / 2)
    along = back[0] * np.cos(middle) + back[2] * np.sin(middle)  # on the plane of the middle tilt
    across = back[2] * np.cos(middle) - back[0] * np.sin(middle)  # perpendicular to it
    near = abs(along[2] * z + along[1] * y + along[0] * x) * float(np.sin(half))
    missing = abs(across[2] * z + across[1] * y + across[0] * x) * float(np.cos(half)) - near
    if smooth > 0:
        weights = np.clip(1 - missing / smooth, 0, 1)
    else:
        weights = (missing <= _ON_THE_EDGE).astype(np.float32)
    radius = min(cutoff, side / 2) if cutoff > 0 else side / 2
    inside = z**2 + y**2 + x**2 <= (radius + _ON_THE_EDGE) ** 2
    return xp.ascontiguousarray((weights * inside).astype(np.float32))
