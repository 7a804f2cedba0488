"""Filters of averages: by what two halves have in common, low-pass, sharpened; and what follows from a resolution.

All are gains over the radius in Fourier space, of cubic boxes ``(z, y, x)``. Resolutions are periods, in the unit of
the pixel size (ångström).

P. B. Rosenthal and R. Henderson, Journal of Molecular Biology 333 (2003) 721: FSC-weighting and sharpening.
"""

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.algorithms.resolution import FourierCorrelation, Resolution
from dtomo.arrays import array_module
from dtomo.errors import UserError
from dtomo.subtomo.fourier import by_radius, check_box, forward, inverse, on_host, radii, shell_means

START_RESOLUTION = 60.0
"""Ångström: what a start reference is low-passed to, so that the halves share nothing finer."""
EDGE = 0.15
"""Part of a low-pass's radius over which it falls off, at least one voxel of the transform."""


def filtered(volume: NDArray[Any], gains: ArrayLike) -> NDArray[np.float32]:
    """A box whose spectrum is multiplied by a curve over the radii 0, 1, 2 …, 0 beyond its end; float32."""
    size = check_box(volume, "a volume")
    return inverse(forward(volume) * by_radius(gains, size, array_module(volume)), size)


def low_pass(volume: NDArray[Any], resolution: float, pixel_size: float) -> NDArray[np.float32]:
    """A box without anything finer than a resolution: the gain falls as a raised cosine to 0 there.

    Parameters
    ----------
    volume
        Cubic box ``(z, y, x)``, in host memory or on a device.
    resolution, pixel_size
        In one unit.

    Raises
    ------
    UserError
        Numbers that are not positive, a box that is none.
    """
    size = check_box(volume, "a volume")
    reach = radius_of(resolution, size, pixel_size)
    fall = np.clip((reach - radii(size)) / max(1.0, EDGE * reach), 0, 1)
    gain = (np.sin(np.pi / 2 * fall) ** 2).astype(np.float32)
    return inverse(forward(volume) * array_module(volume).asarray(gain), size)


def start_reference(
    volume: NDArray[Any], pixel_size: float, resolution: float = START_RESOLUTION
) -> NDArray[np.float32]:
    """A reference for the first alignment, low-passed: both halves get it, so nothing finer may come from it.

    `resolution` is coarser than two voxels; see `low_pass`.
    """
    if resolution < 2 * pixel_size:
        raise UserError(
            f"a start reference is low-passed to a resolution coarser than two voxels, {2 * pixel_size:g}; "
            f"got {resolution:g}"
        )
    return low_pass(volume, resolution, pixel_size)


def radius_of(resolution: float, size: int, pixel_size: float) -> float:
    """Radius in voxels of the transform of a box of `size` voxels, of a resolution.

    Raises
    ------
    UserError
        Numbers that are not positive.
    """
    if not (resolution > 0 and pixel_size > 0):
        raise UserError(f"a resolution and a pixel size are positive numbers; got {resolution} and {pixel_size}")
    return size * pixel_size / resolution


def fsc_gains(
    curve: FourierCorrelation, found: Resolution, of: Literal["half", "both"] = "both"
) -> NDArray[np.float64]:
    """Correlation of an average with the truth, as gains over the radii 0, 1, 2 …

    Parameters
    ----------
    curve
        FSC of the two halves, radius 1 first.
    found
        Where it falls below its threshold: beyond, the gain falls to 0 over a fifth of that radius, at least two.
    of
        "half": of one half, √FSC; "both": of the average of both, √(2 FSC / (1 + FSC)).
    """
    common = np.clip(np.concatenate([[1.0], curve.correlation]), 0, 1)
    gains = np.sqrt(common if of == "half" else 2 * common / (1 + common))
    if not found.crossed:
        return gains
    width = float(curve.frequency[0])  # of a shell
    last = found.frequency / width
    fall = np.clip(1 - (np.arange(len(gains)) - last) / max(2.0, last / 5), 0, 1)
    return np.asarray(np.where(np.arange(len(gains)) <= last, gains, gains * fall**2))


def fsc_filtered(
    volume: NDArray[Any], curve: FourierCorrelation, found: Resolution, of: Literal["half", "both"] = "both"
) -> NDArray[np.float32]:
    """An average (of one half, or of both) weighted by its correlation with the truth; see `fsc_gains`."""
    return filtered(volume, fsc_gains(curve, found, of))


def sharpened(
    volume: NDArray[Any], pixel_size: float, b_factor: float, resolution: float | None = None
) -> NDArray[np.float32]:
    """A box whose amplitudes are multiplied by exp(-B s² / 4).

    Parameters
    ----------
    volume
        Cubic box ``(z, y, x)``.
    pixel_size
        Ångström.
    b_factor
        B in Å², negative: sharper; as RELION has it.
    resolution
        Low-pass afterwards: beyond it there is noise alone, which a sharpening would blow up.

    Raises
    ------
    UserError
        A B factor that is no finite number, or so strong that the finest frequency would be all there is left.
    """
    size = check_box(volume, "a volume")
    finest = 0.5 / pixel_size if resolution is None else min(0.5 / pixel_size, 1 / resolution)
    if not (math.isfinite(b_factor) and abs(b_factor) * finest**2 / 4 < 30):
        raise UserError(f"a B factor of {b_factor} Å² changes amplitudes by more than exp(30); give a smaller one")
    square = np.square(np.arange(size // 2 + 1) / (size * pixel_size))
    found = filtered(volume, np.exp(-b_factor * square / 4))
    return found if resolution is None else low_pass(found, resolution, pixel_size)


def b_factor(volume: NDArray[Any], pixel_size: float, resolution: float, coarsest: float = 10.0) -> float:
    """B in Å² of the amplitudes of a box, from a straight line through ln F over s² (Guinier); negate it to sharpen.

    Parameters
    ----------
    volume
        Cubic box ``(z, y, x)``.
    pixel_size
        Ångström.
    resolution, coarsest
        Where the line begins and ends, Å: proteins fall off alike beyond 10 Å.

    Raises
    ------
    UserError
        Fewer than three shells between the two.
    """
    frequency, amplitude = amplitudes(volume, pixel_size)
    used = (frequency >= 1 / coarsest) & (frequency <= 1 / resolution) & (amplitude > 0)
    if used.sum() < 3:
        raise UserError(
            f"a B factor needs at least three shells between {coarsest:g} and {resolution:g} Å; there are {used.sum()}"
        )
    slope = np.polyfit(frequency[used] ** 2, np.log(amplitude[used]), 1)[0]
    return float(-4 * slope)


def amplitudes(volume: NDArray[Any], pixel_size: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Frequencies (cycles per unit of the pixel size) and root mean square amplitudes of the shells, radius 0 first."""
    size = check_box(volume, "a volume")
    spectrum = forward(on_host(volume))
    power = shell_means(spectrum.real.astype(np.float64) ** 2 + spectrum.imag.astype(np.float64) ** 2)
    return np.arange(len(power)) / (size * pixel_size), np.sqrt(power)


def with_amplitudes(
    volume: NDArray[Any], pixel_size: float, frequency: ArrayLike, amplitude: ArrayLike
) -> NDArray[np.float32]:
    """A box whose shells get the amplitudes of a curve, such as one of X-ray scattering or of an atomic model.

    Parameters
    ----------
    volume
        Cubic box ``(z, y, x)``; its mean stays.
    pixel_size
        In the unit of the curve.
    frequency, amplitude
        The curve, ascending in frequency, linear in between; beyond its ends, nothing is left.

    Raises
    ------
    UserError
        A curve that is none.
    """
    given, wanted = np.asarray(frequency, np.float64), np.asarray(amplitude, np.float64)
    if given.ndim != 1 or given.shape != wanted.shape or len(given) < 2 or not (np.diff(given) > 0).all():
        raise UserError("a curve of amplitudes is two lists of one length, frequencies ascending")
    if not (np.isfinite(wanted).all() and (wanted >= 0).all()):
        raise UserError("amplitudes of a curve are finite and not negative")
    own, present = amplitudes(volume, pixel_size)
    target = np.interp(own, given, wanted, left=0, right=0)
    gains = np.divide(target, present, out=np.zeros_like(target), where=present > 0)
    gains[0] = 1
    return filtered(volume, gains)


def adaptive_increment(resolution: float, diameter: float, part: float = 1.0) -> float:
    """Angle in degrees over which a particle of a diameter is to be sampled at a resolution: resolution / diameter.

    Parameters
    ----------
    resolution, diameter
        In one unit. Turned by the angle, the rim of the particle moves by half of the resolution.
    part
        Factor.

    Raises
    ------
    UserError
        Numbers that are not positive and finite.
    """
    if not (resolution > 0 and diameter > 0 and part > 0 and math.isfinite(resolution)):
        raise UserError(
            f"an increment needs a finite resolution and a diameter, both positive; got {resolution} and {diameter}"
        )
    return float(np.rad2deg(part * resolution / diameter))
