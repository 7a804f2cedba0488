"""Resolution: Fourier ring and shell correlation of two independent images or volumes of the same thing.

The correlation of a ring or shell S of Fourier space is Re Σ_S F Ḡ / √(Σ_S |F|² Σ_S |G|²) (M. van Heel, Ultramicroscopy
21 (1987) 95; G. Harauz and M. van Heel, Optik 73 (1986) 146). Where a signal has the ratio SNR to the noise of each of
the two, its expectation is SNR / (SNR + 1). What it is compared with: M. van Heel and M. Schatz, Journal of Structural
Biology 151 (2005) 250.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from dtomo.errors import UserError

THRESHOLDS = ("half-bit", "one-bit", "3-sigma", "0.143", "0.5")
"""Names of thresholds; any number is one, too."""

_BITS = {"half-bit": 0.5, "one-bit": 1.0}
_CHUNK = 2**22
"""Pixels whose rings are found at once."""


@dataclasses.dataclass(frozen=True, eq=False)
class FourierCorrelation:
    """Correlation by spatial frequency.

    Attributes
    ----------
    frequency
        Of each ring or shell, cycles per unit of `pixel_size`, float64 ``(ring,)``, ascending, up to `nyquist`.
    correlation
        From -1 to 1, float64 ``(ring,)``; 0 where one of the images has no power.
    count
        Independent points of Fourier space in the ring, those that are each other's conjugate counted too, float64
        ``(ring,)``: its pixels, or with a window fewer (a low estimate: as if the ring were broad).
    nyquist
        Largest frequency that the pixels can hold along every axis.
    """

    frequency: NDArray[np.float64]
    correlation: NDArray[np.float64]
    count: NDArray[np.float64]
    nyquist: float

    @property
    def snr(self) -> NDArray[np.float64]:
        """Ratio of signal to noise in both images together, 2 FRC / (1 - FRC), ``(ring,)``; infinite at 1."""
        with np.errstate(divide="ignore"):
            return 2 * self.correlation / (1 - self.correlation)


@dataclasses.dataclass(frozen=True)
class Resolution:
    """Where a correlation falls below a threshold.

    Attributes
    ----------
    frequency
        Of the crossing, cycles per unit of the pixel size; 0 if even the first ring lies below, the last ring's if none
        does.
    threshold
        Which.
    crossed
        Whether there is a crossing: if not, the pixels limit the resolution.
    nyquist
        See `FourierCorrelation`.
    """

    frequency: float
    threshold: str
    crossed: bool
    nyquist: float

    @property
    def period(self) -> float:
        """1 / frequency, in units of the pixel size: what is called the resolution in microscopy of molecules."""
        return 1 / self.frequency if self.frequency > 0 else float("inf")

    @property
    def half_period(self) -> float:
        """Half of `period`: what is called the resolution in X-ray imaging, where a pixel is the smallest one."""
        return self.period / 2


def fourier_correlation(
    first: NDArray[Any],
    second: NDArray[Any],
    *,
    window: NDArray[Any] | float | None = 0.1,
    pixel_size: float | Sequence[float] = 1.0,
) -> FourierCorrelation:
    """Fourier ring (2D) or shell (3D) correlation of two images or volumes that lie on top of each other.

    Their means are taken off, so that an edge of the window is no common signal, and the first ring is the first
    frequency. Rings are as wide as the frequencies of the shortest axis (in length) lie apart.

    Parameters
    ----------
    first, second
        Real or complex, of the same shape (any number of axes); see `dtomo.algorithms.alignment.align`.
    window
        What both are multiplied by: an array of their shape, or the part of each axis over which `soft_window` falls
        off at either end; None: nothing, for what repeats periodically.
    pixel_size
        Of all axes, or one for each.

    Raises
    ------
    UserError
        Shapes that differ or are too small, values that are not finite, a window without any extent.
    """
    if first.shape != second.shape or first.ndim == 0 or min(first.shape) < 4:
        raise UserError(
            f"images to be correlated have one shape of at least 4 pixels along each axis; got {first.shape} and "
            f"{second.shape}"
        )
    pitch = _pitch(pixel_size, first.ndim)
    weights = _weights(window, first.shape)
    real = not (np.iscomplexobj(first) or np.iscomplexobj(second))
    spectra = [_spectrum(image, weights, real) for image in (first, second)]
    width, rings = _rings(first.shape, pitch)
    sums = _ring_sums(spectra, first.shape, pitch, width, rings, real)[:, 1:]
    power: NDArray[np.float64] = np.sqrt(sums[1] * sums[2])
    correlation = np.clip(np.divide(sums[0], power, out=np.zeros(rings), where=power > 0), -1, 1)
    independent = 1.0 if weights is None else _independent(weights)
    frequency: NDArray[np.float64] = width * np.arange(1, rings + 1, dtype=np.float64)
    return FourierCorrelation(frequency, np.asarray(correlation, np.float64), sums[3] * independent, 0.5 / max(pitch))


def threshold_values(threshold: str | float, count: NDArray[Any]) -> NDArray[np.float64]:
    """What a correlation is compared with, by the number of points in its rings.

    Parameters
    ----------
    threshold
        "half-bit" or "one-bit" of information per point (van Heel and Schatz 2005, equation 17, with the SNR
        (2^bits - 1) / 2 of each half of the data), "3-sigma" (or another number) of correlations of noise,
        3 / √(n / 2), or a fixed value such as 0.143 (P. B. Rosenthal and R. Henderson, Journal of Molecular Biology 333
        (2003) 721).
    count
        See `FourierCorrelation.count`.

    Raises
    ------
    UserError
        No such threshold.
    """
    points = np.maximum(np.asarray(count, np.float64), 1.0)
    name = str(threshold).strip()
    if name in _BITS:
        ratio, root = (2 ** _BITS[name] - 1) / 2, np.sqrt(points)
        spread = 2 * np.sqrt(ratio) / root
        return np.asarray((ratio + spread + 1 / root) / (ratio + 1 + spread))
    try:
        value = float(name.removesuffix("-sigma"))
    except ValueError:
        value = float("nan")
    sigma = name.endswith("-sigma")
    if not (value > 0 and (sigma or value < 1)):
        raise UserError(f"{name!r} is no threshold; give one of {', '.join(THRESHOLDS)}, or a number between 0 and 1")
    return np.minimum(1.0, value / np.sqrt(points / 2)) if sigma else np.full(points.shape, value)


def resolution(curve: FourierCorrelation, threshold: str | float = "half-bit", *, stays: int = 3) -> Resolution:
    """The frequency at which a correlation falls below a threshold, and stays there.

    Not the first ring below it: a ring holds few points at low frequencies, and objects (periodic ones above all) have
    frequencies without signal, so that one or two rings may dip between others that agree well. What counts is the
    first of `stays` rings in a row; `stays` of 1 gives the first crossing, which is never later. A curve that comes
    back above the threshold beyond that is not followed, however high it rises: there noise correlates, as a mask or
    positions in common make it.

    Parameters
    ----------
    curve
        From `fourier_correlation`.
    threshold
        See `threshold_values`.
    stays
        How many rings after the crossing must lie below it (or all that there are): one alone may by chance.

    Returns
    -------
    Resolution
        Its frequency is interpolated between the two rings.
    """
    above = curve.correlation - threshold_values(threshold, curve.count)
    below = above < 0
    crossing = next((k for k in range(len(below)) if below[k : k + max(1, stays)].all()), None)
    name = str(threshold)
    if crossing is None:
        return Resolution(float(curve.frequency[-1]), name, False, curve.nyquist)
    if crossing == 0:
        return Resolution(0.0, name, True, curve.nyquist)
    before, after = float(above[crossing - 1]), float(above[crossing])
    part = before / (before - after)
    frequency = (1 - part) * curve.frequency[crossing - 1] + part * curve.frequency[crossing]
    return Resolution(float(frequency), name, True, curve.nyquist)


def soft_window(shape: Sequence[int], edge: float = 0.1) -> NDArray[np.float32]:
    """One inside, falling to zero as a raised cosine over a part of each axis at either end, float32.

    Parameters
    ----------
    shape
        Of the images.
    edge
        Part of each axis, from 0 (no window) to 0.5 (a Hann window).

    Raises
    ------
    UserError
        Another edge.
    """
    if not 0 <= edge <= 0.5:
        raise UserError(f"a window falls off over 0 to 0.5 of each axis; got {edge}")
    out = np.ones(tuple(shape), np.float32)
    for axis, size in enumerate(shape):
        distance = (np.minimum(np.arange(size), np.arange(size)[::-1]) + 0.5) / max(edge * size, 0.5)
        ramp = np.sin(np.pi / 2 * np.minimum(distance, 1)) ** 2
        out *= ramp.astype(np.float32).reshape([-1 if k == axis else 1 for k in range(len(shape))])
    return out


def soft_mask(mask: NDArray[Any], width: float = 5.0) -> NDArray[np.float32]:
    """One where a mask is True, falling to zero as a raised cosine over `width` pixels outside of it, float32."""
    from scipy.ndimage import distance_transform_edt

    distance = distance_transform_edt(~np.asarray(mask, bool))
    return np.asarray(np.cos(np.pi / 2 * np.minimum(distance / max(width, 1e-6), 1)) ** 2, np.float32)


def _pitch(pixel_size: float | Sequence[float], axes: int) -> list[float]:
    """Of each axis."""
    values = [float(value) for value in np.broadcast_to(np.asarray(pixel_size, np.float64), (axes,))]
    if not all(np.isfinite(value) and value > 0 for value in values):
        raise UserError(f"pixel sizes are positive numbers; got {pixel_size}")
    return values


def _weights(window: NDArray[Any] | float | None, shape: tuple[int, ...]) -> NDArray[Any] | None:
    if window is None:
        return None
    weights = soft_window(shape, float(window)) if np.ndim(window) == 0 else np.asarray(window)
    if weights.shape != shape or np.iscomplexobj(weights):
        raise UserError(f"a window is real and has the shape of the images, {shape}; got {weights.shape}")
    if not np.isfinite(weights).all() or not weights.any():
        raise UserError("a window has finite values, and some that are not 0")
    return weights


def _independent(weights: NDArray[Any]) -> float:
    """Part of the points of Fourier space that are independent under a window."""
    squares = np.square(weights, dtype=np.float64)
    return float(squares.sum() ** 2 / (squares.size * np.square(squares).sum()))


def _spectrum(image: NDArray[Any], weights: NDArray[Any] | None, real: bool) -> NDArray[Any]:
    """Of the image without its mean under the window; half of it if real."""
    kind = np.result_type(image.dtype, np.float32)
    values = image.astype(kind if kind.char in "fFdD" else np.float64)
    if not np.isfinite(values).all():
        raise UserError("images to be correlated have finite values; some are NaN or infinite")
    if weights is None:
        values -= values.mean(dtype=np.result_type(kind, np.float64))
    else:
        mean = (values * weights).sum(dtype=np.result_type(kind, np.float64)) / weights.sum(dtype=np.float64)
        values -= mean.astype(kind)
        values *= weights
    return np.asarray(scipy.fft.rfftn(values) if real else scipy.fft.fftn(values))


def _rings(shape: tuple[int, ...], pitch: list[float]) -> tuple[float, int]:
    """Width of a ring, and how many there are up to the smallest Nyquist frequency, but that of frequency zero."""
    width: float = 1 / min(size * length for size, length in zip(shape, pitch))
    return width, int(0.5 / max(pitch) / width + 1e-6)


def _ring_sums(
    spectra: list[NDArray[Any]], shape: tuple[int, ...], pitch: list[float], width: float, rings: int, real: bool
) -> NDArray[np.float64]:
    """Sums over each ring of Re F Ḡ, |F|², |G|² and 1, float64 ``(4, 1 + ring)``, a few planes at a time."""
    squares = []
    for axis, (size, length) in enumerate(zip(shape, pitch)):
        half = real and axis == len(shape) - 1
        frequency = (np.fft.rfftfreq if half else np.fft.fftfreq)(size, length) / width
        squares.append((frequency**2).reshape([-1 if k == axis else 1 for k in range(len(shape))]))
    twice = np.ones(spectra[0].shape[-1])
    if real:  # all columns but the first, and the last of an even number, stand for two
        twice[1 : (shape[-1] + 1) // 2] = 2
    sums = np.zeros((4, rings + 2))
    step = max(1, _CHUNK // max(1, int(np.prod(spectra[0].shape[1:]))))
    for first in range(0, shape[0], step):
        part = slice(first, first + step)
        planes = [spectrum[part] for spectrum in spectra]
        square = squares[0][part] if len(shape) > 1 or not real else squares[0][: planes[0].shape[0]][part]
        for other in squares[1:]:
            square = square + other
        ring = np.minimum(np.rint(np.sqrt(square)).astype(np.int64), rings + 1).ravel()
        weight = np.broadcast_to(twice[part] if len(shape) == 1 else twice, planes[0].shape)
        for row, values in zip(
            sums,
            (
                planes[0].real * planes[1].real + planes[0].imag * planes[1].imag,
                planes[0].real ** 2 + planes[0].imag ** 2,
                planes[1].real ** 2 + planes[1].imag ** 2,
                1.0,
            ),
        ):
            row += np.bincount(ring, (weight * values).ravel(), rings + 2)
    return sums[:, : rings + 1]
