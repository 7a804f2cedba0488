"""What frames see of an object: where they lie on it, and what solvers that are not gradients look at."""

import dataclasses
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.arrays import on_device
from dtomo.errors import UserError
from dtomo.kernels.patches import Cover, cover


@dataclasses.dataclass(frozen=True, eq=False)
class Places:
    """Where some frames lie: whole pixels, and what is left for a shift of the probe.

    Attributes
    ----------
    corners
        Row and column of the object's pixel nearest to where pixel [0, 0] of the probe is, int64 ``(frame, 2)``, on
        the host.
    fractions
        What the probe is shifted by beyond that, float64 ``(frame, 2)``, -0.5 … 0.5, on the host.
    patch
        Rows and columns of a frame.
    """

    corners: NDArray[np.int64]
    fractions: NDArray[np.float64]
    patch: tuple[int, int]

    @property
    def origin(self) -> tuple[int, int]:
        """First pixel of the smallest window that holds all frames."""
        first = self.corners.min(0)
        return int(first[0]), int(first[1])

    @property
    def extent(self) -> tuple[int, int]:
        """Rows and columns of that window."""
        size = self.corners.max(0) - self.corners.min(0) + self.patch
        return int(size[0]), int(size[1])

    def cover(self, xp: Any) -> Cover:
        """Which frames cover which pixels of the window, made once for these corners."""
        relative = self.corners - self.origin
        device = 0 if xp is np else xp.cuda.Device().id + 1
        return _cover(relative.tobytes(), self.patch, self.extent, device)


@lru_cache(maxsize=1024)
def _cover(corners: bytes, patch: tuple[int, int], shape: tuple[int, int], device: int) -> Cover:
    xp: Any = np
    if device:
        import cupy

        xp = cupy
    return cover(np.frombuffer(corners, np.int64).reshape(-1, 2), patch, shape, xp)


def places(positions: ArrayLike, patch: tuple[int, int], shape: tuple[int, int], subpixel: bool = True) -> Places:
    """Cut positions into whole pixels and fractions; positions that reach beyond the object are moved to its border.

    Parameters
    ----------
    positions
        Row and column of each frame ``(frame, 2)``, float64, on the host or a device.
    patch, shape
        Rows and columns of a frame and of the object.
    subpixel
        False: fractions are dropped.
    """
    given: Any = positions.get() if on_device(positions) else positions  # type: ignore[union-attr]
    room = np.array(shape, np.float64) - patch
    inside = np.clip(np.asarray(given, np.float64), 0, room)
    corners = np.floor(inside + 0.5)
    fractions = inside - corners if subpixel else np.zeros_like(inside)
    return Places(corners.astype(np.int64), fractions, patch)


def object_shape(
    positions: ArrayLike, probe_shape: tuple[int, int], padding: int = 0
) -> tuple[tuple[int, int], NDArray[np.float64]]:
    """Size of an object that holds all frames, and the positions on it.

    Parameters
    ----------
    positions
        Row and column of each frame ``(frame, 2)`` in object pixels, from anywhere.
    probe_shape
        Rows and columns of the probe.
    padding
        Pixels around, for positions that move.

    Returns
    -------
    shape
        Rows and columns of the object.
    positions
        Moved by whole pixels, float64.

    Raises
    ------
    UserError
        No positions, or ones that are not finite, or a negative padding.
    """
    given = np.asarray(positions, np.float64)
    if given.ndim != 2 or given.shape[1:] != (2,) or not len(given) or not np.isfinite(given).all():
        raise UserError(
            f"positions are a row and a column, finite numbers, for each of at least one frame; got shape {given.shape}"
        )
    if padding < 0:
        raise UserError(f"the padding of an object is a number of pixels from 0; got {padding}")
    moved = given - np.floor(given.min(0)) + padding
    rows, columns = np.ceil(moved.max(0)).astype(int) + probe_shape + padding
    return (int(rows), int(columns)), moved


@dataclasses.dataclass(frozen=True, eq=False)
class Views:
    """What some frames see, for solvers that are not gradients; arrays lie where the model computes.

    Attributes
    ----------
    indices
        Numbers of the frames, int64, on the host.
    places
        Where they lie; `places.corners` are whole pixels.
    probes
        Probe of each frame (shifted, scaled, mixed) ``(frame, mode, row, column)``; of length 1 along frames where all
        have the same.
    patches
        Transmission of the object under each frame ``(frame, object mode, slice, row, column)``.
    waves
        Exit waves ``(frame, object mode, mode, row, column)``.
    """

    indices: NDArray[np.int64]
    places: Places
    probes: NDArray[Any]
    patches: NDArray[Any]
    waves: NDArray[Any]

    @property
    def corners(self) -> NDArray[np.int64]:
        """Row and column of the object's pixel under pixel [0, 0] of each frame, int64 ``(frame, 2)``, on the host."""
        return self.places.corners

    def __len__(self) -> int:
        return len(self.indices)
