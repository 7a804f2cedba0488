"""Volumes brought to fewer voxels by cutting their transform: binning that keeps the center and all low frequencies."""

from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from dtomo.arrays import array_module, on_device, single_precision
from dtomo.errors import UserError


def cropped_shape(shape: tuple[int, int, int], binning: int) -> tuple[int, int, int]:
    """The shape ``(z, y, x)`` of a volume after `fourier_crop`.

    Raises
    ------
    UserError
        A binning that is no whole number from 1 on, or leaves fewer than 4 voxels.
    """
    if binning != int(binning) or binning < 1:
        raise UserError(f"a binning is a whole number, 1 or more; got {binning}")
    depth, height, width = (n // int(binning) for n in shape)
    if binning > 1 and min(depth, height, width) < 4:
        raise UserError(f"a binning of {binning} leaves fewer than 4 voxels of a box {tuple(shape)}")
    return depth, height, width


def fourier_crop(volume: NDArray[Any], binning: int) -> NDArray[np.float32]:
    """A volume of fewer, larger voxels with the same low frequencies, and its center n // 2 again at n // 2.

    Parameters
    ----------
    volume
        ``(z, y, x)``, real, on the host or on a device; computed in single precision.
    binning
        How many voxels become one along each axis. Where it does not divide a side, the border is left out, as little
        as it takes: the voxels that are kept are those around the center. A length of s voxels becomes s / binning.

    Returns
    -------
    ndarray
        float32, sides ``n // binning``, where the volume lies. Means are kept: a constant stays what it is.

    Raises
    ------
    UserError
        As `cropped_shape`; a volume that is complex or has no three axes.
    """
    if volume.ndim != 3 or np.iscomplexobj(volume):
        raise UserError(f"a volume to be binned is real and has the axes (z, y, x); got the shape {volume.shape}")
    small = cropped_shape(volume.shape, binning)
    values = single_precision(volume)
    if binning == 1:
        return values
    sides = tuple(n * binning for n in small)
    starts = [n // 2 - side // 2 for n, side in zip(volume.shape, sides)]
    values = values[tuple(slice(start, start + side) for start, side in zip(starts, sides))]
    xp = array_module(values)
    fft = _fft(values)
    spectrum = fft.rfftn(values, axes=(0, 1, 2))[:, :, : small[2] // 2 + 1]
    moves: Any = 1.0 / binning**3
    for axis, (count, side) in enumerate(zip(small, sides)):
        signed = np.arange(count // 2 + 1) if axis == 2 else scipy.fft.fftfreq(count, 1 / count).round()
        if axis < 2:
            spectrum = xp.take(spectrum, xp.asarray(signed.astype(np.int64) % side), axis=axis)
        phase = np.exp(2j * np.pi * signed * (side // 2 / side - count // 2 / count))
        phase[2 * abs(signed) == count] = 0  # it would stand for two frequencies that need not be the same
        moves = moves * phase.reshape([-1 if k == axis else 1 for k in range(3)])
    return fft.irfftn(spectrum * xp.asarray(moves.astype(np.complex64)), s=small, axes=(0, 1, 2))


def _fft(array: NDArray[Any]) -> Any:
    if on_device(array):
        from cupyx.scipy import fft

        return fft
    return scipy.fft
