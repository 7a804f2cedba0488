"""Cubic boxes in Fourier space: transforms, shells, and rotations that keep what a box holds up to its Nyquist sphere.

Spectra are those of ``numpy.fft.rfftn``, ``(z, y, x // 2 + 1)``, of a box ``(z, y, x)`` with its center at n // 2.
Radii are in voxels of the transform: radius r is the period n / r voxels, and n / 2 the Nyquist frequency.

A rotation interpolates with cubic B-splines on a grid that zeros around the spectrum make finer. The spectrum is
divided by that of the B-spline, sinc⁴ (M. Unser, IEEE Signal Process. Mag. 16 (6), 22-38 (1999)), so that nothing below
the Nyquist frequency is damped; what remains are images of it around the multiples of the finer sampling frequency,
of which only those that fold back into the sphere stay: 0.7 % of the amplitude at two thirds of the Nyquist frequency
with a grid 1.5 times as fine, 0.2 % with one twice as fine, 6 % on the grid itself.
"""

from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import ArrayLike, NDArray

from dtomo.arrays import array_module, on_device
from dtomo.errors import UserError
from dtomo.kernels.rotation import rotate
from dtomo.threads import get_threads

OVERSAMPLING = 1.5
"""How much finer the grid is that rotations interpolate on."""


def on_host(array: Any) -> NDArray[Any]:
    """The array in host memory; one that is there is returned as it is."""
    return array.get() if on_device(array) else np.asarray(array)


def check_box(volume: NDArray[Any], what: str) -> int:
    """Voxels along a side of a cubic box.

    Raises
    ------
    UserError
        `what` is no cube of at least 4 voxels.
    """
    if volume.ndim != 3 or len(set(volume.shape)) > 1 or volume.shape[0] < 4:
        raise UserError(
            f"{what} is a cubic box (z, y, x) of at least 4 voxels along a side, not of shape {volume.shape}"
        )
    return int(volume.shape[0])


def box_of(spectrum: NDArray[Any]) -> int:
    """Voxels along a side of the cubic box that a spectrum is of."""
    size = int(spectrum.shape[0])
    if spectrum.shape != (size, size, size // 2 + 1):
        raise UserError(f"the spectrum of a cubic box has shape (n, n, n // 2 + 1), not {spectrum.shape}")
    return size


def forward(volume: NDArray[Any]) -> NDArray[Any]:
    """Spectrum of a real box, complex64, where it lies."""
    values = volume.astype(np.float32, copy=False)
    if not on_device(values):
        return np.asarray(scipy.fft.rfftn(values, workers=get_threads()))
    from cupyx.scipy import fft

    return fft.rfftn(values)


def inverse(spectrum: NDArray[Any], size: int) -> NDArray[Any]:
    """Box ``(size, size, size)``, float32, of a spectrum."""
    shape = (size, size, size)
    if not on_device(spectrum):
        return np.asarray(scipy.fft.irfftn(spectrum, shape, workers=get_threads()))
    from cupyx.scipy import fft

    return fft.irfftn(spectrum, shape)


def radii(size: int) -> NDArray[np.float32]:
    """Distance from frequency zero of each point of a spectrum, float32 on the host."""
    full, half = (np.square(scipy.fft.fftfreq(size, 1 / size)), np.square(np.arange(size // 2 + 1.0)))
    return np.sqrt(full[:, None, None] + full[:, None] + half).astype(np.float32)


def shell_means(values: NDArray[Any]) -> NDArray[np.float64]:
    """Mean of a real spectrum over each shell of width 1, float64 ``(n // 2 + 1,)`` on the host, radius 0 first."""
    host = on_host(values)
    size = box_of(host)
    shell = np.rint(radii(size)).astype(np.int64).ravel()
    weight = np.ones(size // 2 + 1)
    weight[1 : (size + 1) // 2] = 2  # these stand for two
    each = np.broadcast_to(weight, host.shape).ravel()
    sums = np.bincount(shell, each * host.ravel())
    return np.asarray((sums / np.bincount(shell, each))[: size // 2 + 1])


def by_radius(gains: ArrayLike, size: int, xp: Any = np) -> NDArray[Any]:
    """A curve over radii 0, 1, 2 … at each point of a spectrum: linear in between, 0 beyond its end, float32."""
    curve = np.asarray(gains, np.float64)
    found = np.interp(radii(size), np.arange(len(curve)), curve, right=0.0)
    return xp.asarray(found.astype(np.float32))


def turned(
    spectrum: NDArray[Any],
    rotation: ArrayLike,
    shift: ArrayLike = (0.0, 0.0, 0.0),
    oversampling: float = OVERSAMPLING,
    *,
    mean_outside: bool = True,
) -> NDArray[Any]:
    """A box brought back: what lies at ``R (p - c) + c + s`` in it comes to p, its center c = n // 2.

    Parameters
    ----------
    spectrum
        Of the box, complex64; beyond the Nyquist sphere nothing is taken from it, or put into the result.
    rotation, shift
        R ``(3, 3)`` and s ``(3,)`` in voxels, on (x, y, z); on the host.
    oversampling
        See `OVERSAMPLING`.
    mean_outside
        What was outside the box comes in as its mean, which then stays what it was; else as 0.

    Returns
    -------
    ndarray
        Spectrum, complex64, where the other one lies.
    """
    xp, size = array_module(spectrum), box_of(spectrum)
    fine = 2 * int(scipy.fft.next_fast_len(int(np.ceil(oversampling * size / 2)), real=True))
    inside = xp.asarray(radii(size) < size / 2)
    wide = resized(spectrum * inside, size, fine)
    if mean_outside:
        wide[0, 0, 0] = 0
    for axis, flat in enumerate(_splines(size, fine)):
        wide *= xp.asarray(flat.reshape([-1 if k == axis else 1 for k in range(3)]))
    matrix, moved = np.asarray(rotation, np.float64), np.asarray(shift, np.float64)
    volume = rotate(
        inverse(wide, fine), matrix.T, -(matrix.T @ moved) * (fine / size), order=3, center=(fine // 2,) * 3,
        coefficients=True,
    )  # fmt: skip
    found = resized(forward(volume), fine, size) * inside
    if mean_outside:
        found[0, 0, 0] = spectrum[0, 0, 0]
    return found


def turned_weights(weights: NDArray[Any], rotation: ArrayLike) -> NDArray[Any]:
    """Weights of each frequency for the box that `turned` returns: at k those at R k, by linear interpolation, float32.

    Parameters
    ----------
    weights
        Real spectrum ``(n, n, n // 2 + 1)``, the same at k and -k.
    rotation
        R ``(3, 3)``, on the host.
    """
    xp, size = array_module(weights), box_of(weights)
    reach = size // 2 + 1
    steps = np.clip(np.arange(-reach, reach + 1), -(size // 2), size // 2)
    half = steps[reach:]
    first = xp.asarray(np.stack([steps % size, -steps % size]))
    upper = weights[first[0]][:, first[0]][:, :, xp.asarray(half)]
    lower = weights[first[1]][:, first[1]][:, :, xp.asarray(half[:0:-1])]
    whole = xp.concatenate([lower, upper], axis=2)
    found = rotate(whole, np.asarray(rotation, np.float64).T, order=1, center=(reach,) * 3)
    back = xp.asarray(np.rint(scipy.fft.fftfreq(size, 1 / size)).astype(np.int64) + reach)
    return found[back][:, back][:, :, reach : reach + size // 2 + 1] * xp.asarray(radii(size) < size / 2)


def resized(spectrum: NDArray[Any], size: int, other: int) -> NDArray[Any]:
    """Spectrum of a box of `other` voxels along a side that holds the same frequencies as one of `size` voxels.

    Its center, n // 2, stays the center; values are to be multiplied by (other / size)³.
    """
    xp = array_module(spectrum)
    found = xp.zeros((other, other, other // 2 + 1), np.complex64)
    least = min(size, other)
    low, high = (least + 1) // 2, least // 2  # frequencies from 0 on, and below 0
    width = least // 2 + 1
    for into_z, from_z in ((slice(low), slice(low)), (slice(other - high, other), slice(size - high, size))):
        for into_y, from_y in ((slice(low), slice(low)), (slice(other - high, other), slice(size - high, size))):
            found[into_z, into_y, :width] = spectrum[from_z, from_y, :width]
    offset = (size // 2) / size - (other // 2) / other
    if offset:
        for axis in range(3):
            frequency = np.arange(other // 2 + 1) if axis == 2 else scipy.fft.fftfreq(other, 1 / other)
            wave = np.exp(2j * np.pi * frequency * offset).astype(np.complex64)
            found *= xp.asarray(wave.reshape([-1 if k == axis else 1 for k in range(3)]))
    return found


def _splines(size: int, fine: int) -> list[NDArray[np.float32]]:
    """One over the spectrum of a cubic B-spline, along each axis, where a box of `size` has frequencies; else 0."""
    found = []
    for axis in range(3):
        frequency = np.arange(fine // 2 + 1) if axis == 2 else scipy.fft.fftfreq(fine, 1 / fine)
        flat = np.where(np.abs(frequency) <= size / 2, np.sinc(frequency / fine) ** -4.0, 0)
        found.append(flat.astype(np.float32))
    return found
