"""What a tilt series with a contrast transfer function (CTF) for each tilt passes on: weights of a box's frequencies.

Each projection has a plane through the origin of Fourier space, one voxel of the transform thick to both sides and
falling linearly, since the box is about as large as the particle. Where planes overlap their values are averaged.

B. Turoňová et al., J. Struct. Biol. 199, 187-195 (2017); T. Grant and N. Grigorieff, eLife 4, e06980 (2015), for the
loss of signal with exposure.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.arrays import array_module
from dtomo.errors import UserError
from dtomo.kernels.wedges import checked_rotation, frequencies


def wavelength(voltage: float) -> float:
    """Of electrons, in ångström; voltage in kV. With the relativistic mass.

    Raises
    ------
    UserError
        A voltage that is not positive.
    """
    if not voltage > 0:
        raise UserError(f"a voltage is a positive number of kV; got {voltage}")
    volts = voltage * 1e3
    return float(12.2642597 / np.sqrt(volts * (1 + 0.978475598e-6 * volts)))


def transfer(
    squared: Any, defocus: Any, voltage: float, cs: float, amplitude_contrast: float, phase_shift: float = 0.0
) -> Any:
    """The CTF, positive at low frequencies: ``sin(χ + asin(A))`` with ``χ = π λ k² (Δ - Cs λ² k² / 2)``.

    Parameters
    ----------
    squared
        k², in 1/Å².
    defocus
        Δ in Å, positive under focus; of the direction of k where there is astigmatism.
    voltage, cs, amplitude_contrast, phase_shift
        kV, mm, from 0 to 1, degrees.
    """
    length = wavelength(voltage)
    xp = array_module(squared)
    chi = np.pi * length * squared * (defocus - 0.5 * cs * 1e7 * length**2 * squared)
    return xp.sin(chi + np.arcsin(amplitude_contrast) + np.deg2rad(phase_shift))


def ctf_weights(
    shape: tuple[int, int, int],
    tilts: ArrayLike,
    defocus: ArrayLike,
    voltage: float,
    cs: float,
    amplitude_contrast: float,
    pixel_size: float,
    *,
    astigmatism: ArrayLike = 0.0,
    azimuth: ArrayLike = 0.0,
    phase_shift: float = 0.0,
    exposures: ArrayLike | None = None,
    power: int = 1,
    tilt_axis: ArrayLike | None = None,
    rotation: ArrayLike | None = None,
    like: Any = None,
) -> NDArray[np.float32]:
    """Weights of a tilt series with its CTFs.

    Parameters
    ----------
    shape
        ``(z, y, x)`` of the box.
    tilts
        Degrees, ``(tilt,)``, as of `dtomo.geometry.wedge.Wedge`: projected onto u = x cos t + z sin t and y.
    defocus
        Mean defocus at the particle, Å, positive under focus; one number, or one for each tilt.
    voltage, cs, amplitude_contrast
        kV, mm, from 0 to 1.
    pixel_size
        Of the box, Å.
    astigmatism, azimuth
        Half the difference of the largest and the smallest defocus, Å, and the direction of the largest, degrees from
        u towards y; one number, or one for each tilt.
    phase_shift
        Of a phase plate, degrees.
    exposures
        Electrons per Å² that the sample had received when each tilt was taken; None: no loss of signal.
    power
        1: the CTF with its sign, what a reference is multiplied by to look like a particle; 2: its square, what an
        average of particles that were multiplied by their CTF is divided by.
    tilt_axis, rotation, like
        As for `Wedge` and `Wedge.weights`.

    Returns
    -------
    ndarray
        float32 ``(z, y, x // 2 + 1)`` in the order of ``rfftn``, 0 where no projection has its plane, and beyond half
        the side.

    Raises
    ------
    UserError
        Numbers that do not fit the tilts, or make no sense.
    """
    angles = np.atleast_1d(np.asarray(tilts, np.float64))
    columns = [np.asarray(values, np.float64) for values in (defocus, astigmatism, azimuth)]
    if angles.ndim != 1 or not angles.size or any(c.shape not in ((), angles.shape) for c in columns):
        raise UserError(f"defocus, astigmatism and azimuth are one number, or one for each of {angles.size} tilts")
    if power not in (1, 2) or not pixel_size > 0 or not 0 <= amplitude_contrast <= 1:
        raise UserError("a CTF volume has the power 1 or 2, a positive pixel size, and amplitude contrast from 0 to 1")
    doses = np.zeros(angles.shape) if exposures is None else np.asarray(exposures, np.float64)
    if doses.shape != angles.shape or not (doses >= 0).all():
        raise UserError(f"exposures are not negative, one for each of {angles.size} tilts; got {doses.tolist()}")
    xp = array_module(like)
    axes = [xp.asarray(axis / pixel_size) for axis in frequencies(shape)[::-1]]
    back = (checked_rotation(rotation) @ checked_rotation(tilt_axis)).T
    x, y, z = (row[0] * axes[0] + row[1] * axes[1] + row[2] * axes[2] for row in back)
    voxel = 1 / (min(shape) * pixel_size)
    total, count = xp.zeros(x.shape), xp.zeros(x.shape)
    rows = zip(angles, *(np.broadcast_to(c, angles.shape) for c in columns), doses)
    for tilt, mean, difference, direction, dose in rows:
        cosine, sine = float(np.cos(np.deg2rad(tilt))), float(np.sin(np.deg2rad(tilt)))
        near = xp.maximum(1 - abs(z * cosine - x * sine) / voxel, 0)
        across = x * cosine + z * sine
        squared = across**2 + y**2
        twice = 2 * (xp.arctan2(y, across) - float(np.deg2rad(direction)))
        value = transfer(squared, mean + difference * xp.cos(twice), voltage, cs, amplitude_contrast, phase_shift)
        if dose > 0:
            value = value * _left_of(squared, dose)
        total += near * value**power
        count += near
    inside = x**2 + y**2 + z**2 <= (0.5 / pixel_size * (1 + 1e-9)) ** 2
    found = total / xp.maximum(count, 1) * inside
    return xp.ascontiguousarray(found.astype(np.float32))


def _left_of(squared: Any, dose: float) -> Any:
    """Amplitude that is left after an exposure: critical exposures of Grant and Grigorieff, at 300 kV."""
    xp = array_module(squared)
    critical = 0.24499 * xp.maximum(squared, 1e-12) ** (-1.6649 / 2) + 2.8141
    return xp.exp(-dose / (2 * critical))
