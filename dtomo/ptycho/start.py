"""First guesses of all that is reconstructed: object, probe and its modes, background, and where the object lies.

All of it follows from the frames, the positions and a seed. The probe from the mean pattern is the one of P. Thibault
et al., Ultramicroscopy 109 (2009) 338: in the far field the root of the mean pattern is nearly the modulus of the
probe's Fourier transform; its phase is flat, or that of a probe out of focus.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from dtomo.errors import UserError
from dtomo.io.sources import Source
from dtomo.ptycho.engine import Parameters

FRAMES = 256
"""Frames, evenly spread over the scan, that the mean pattern is taken of."""
PADDING, PADDING_IF_MOVED = 8, 24
"""Pixels around what the probes cover; the second where positions are refined."""
FURTHER_MODES = 0.1
"""Power of the further modes of the probe together, as part of the whole."""
FURTHER_OBJECTS = 0.05
"""Modulus of further modes of the object."""
ROUGHNESS = 0.05
"""Standard deviation of the phases of a rough object, in radians."""
WIDEST = 10
"""Width of a probe out of focus in units of its array, if all its frequencies had light: mostly the outer have none."""
BACKGROUND = 0.01
"""Background where nothing is known of it, as part of the mean pattern's mean."""


@dataclasses.dataclass(frozen=True, eq=False)
class Pattern:
    """What frames look like on average.

    Attributes
    ----------
    mean
        Intensity ``(row, column)``, float64, in detector order; where the mask has no pixel, that of the nearest one.
    photons
        Its sum: of a frame on average.
    """

    mean: NDArray[np.float64]

    @property
    def photons(self) -> float:
        """Of a frame on average."""
        return float(self.mean.sum())


def mean_pattern(
    source: Source,
    mask: NDArray[np.bool_] | None = None,
    arrange: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
    frames: NDArray[np.integer[Any]] | None = None,
) -> Pattern:
    """The mean of `FRAMES` frames, evenly spread over the scan.

    Parameters
    ----------
    source
        Frames ``(frame, row, column)``.
    mask
        Good pixels ``(row, column)``; default: all. What other pixels hold is never looked at.
    arrange
        What is done to frames as they are read (crops, flips); it gives detector order.
    frames
        Numbers of those to choose from; default: all.

    Raises
    ------
    UserError
        The mask leaves no pixel, or nothing but zeros.
    """
    numbers = np.arange(source.shape[0]) if frames is None else np.asarray(frames)
    step = -(-len(numbers) // FRAMES)
    chosen = numbers[::step]
    total: NDArray[np.float64] | None = None
    for first in range(0, len(chosen), 16):
        images = source.read(frames=chosen[first : first + 16])
        images = images if arrange is None else arrange(images)
        part = np.where(np.ones(images.shape[1:], bool) if mask is None else mask, images, 0).sum(0, dtype=np.float64)
        total = part if total is None else total + part
    assert total is not None
    mean = np.maximum(total / len(chosen), 0)
    if mask is not None and not mask.all():
        if not mask.any():
            raise UserError(f"the mask of {source.location} leaves no pixel of the frames; is it inverted?")
        nearest = ndimage.distance_transform_edt(~mask, return_distances=False, return_indices=True)
        mean = mean[tuple(nearest)]
    if not np.isfinite(mean).all() or not mean.sum() > 0:
        raise UserError(f"the frames of {source.location} hold no counts, or some that are not finite; mask them")
    return Pattern(mean)


def probe_from_pattern(mean: NDArray[np.float64], phase: NDArray[np.float64] | None = None) -> NDArray[np.complex128]:
    """The inverse Fourier transform of the root of the mean pattern, in the middle.

    Parameters
    ----------
    mean
        Intensity ``(row, column)`` in detector order.
    phase
        Of the probe's Fourier transform in detector order, in radians; default: flat.
    """
    amplitude = np.sqrt(mean) * (1 if phase is None else np.exp(1j * phase))
    return np.asarray(np.fft.fftshift(np.fft.ifft2(np.fft.ifftshift(amplitude), norm="ortho")), np.complex128)


def defocus_phase(
    shape: tuple[int, int], pixel: tuple[float, float], wavelength: float, defocus: float
) -> NDArray[np.float64]:
    """Phase by which `defocus` changes the Fourier transform of a probe: −π λ z |f|², in detector order.

    Parameters
    ----------
    shape
        Rows and columns.
    pixel
        Height and width of an object pixel; same unit as the other two.
    wavelength, defocus
        Lengths; the focus lies `defocus` before the sample.

    Raises
    ------
    UserError
        So far out of focus that the probe is `WIDEST` times as wide as its array.
    """
    widest = WIDEST * min(n * size**2 for n, size in zip(shape, pixel, strict=True)) / wavelength
    if not abs(defocus) <= widest:
        raise UserError(
            f"a probe {defocus * 1e6:.4g} µm out of focus is far wider than its {shape[0]} × {shape[1]} pixels, which "
            f"take {widest * 1e6:.3g} µm at most; --defocus is in µm"
        )
    rows, columns = (np.fft.fftshift(np.fft.fftfreq(n, size)) for n, size in zip(shape, pixel, strict=True))
    return np.asarray(-np.pi * wavelength * defocus * (rows[:, None] ** 2 + columns**2), np.float64)


def round_aperture(shape: tuple[int, int], diameter: float) -> NDArray[np.complex128]:
    """A disk around pixel (N // 2, M // 2), one pixel soft at its edge.

    Raises
    ------
    UserError
        It does not fit the frame.
    """
    if not 0 < diameter <= min(shape):
        raise UserError(f"--aperture is up to {min(shape)} pixels wide, as the probe; got {diameter:g}")
    row, column = (np.arange(n) - n // 2 for n in shape)
    radius = np.hypot(row[:, None], column)
    return np.clip(diameter / 2 - radius + 0.5, 0, 1).astype(np.complex128)


def scaled(probe: NDArray[Any], photons: float) -> NDArray[Any]:
    """The same with Σ |P|² over everything equal to `photons`: with an object of ones, so many are seen."""
    power = float(np.sum(np.abs(probe.astype(np.complex128)) ** 2))
    if not power > 0 or not math.isfinite(power):
        raise UserError("the first probe is zero or not finite everywhere; give another one with --probe")
    return probe * math.sqrt(photons / power)


def orthogonal_modes(probe: NDArray[Any], modes: int) -> NDArray[np.complex128]:
    """`probe` and further modes orthogonal to it, each with the power of `probe`.

    They are the probe times low powers of row and column about its middle, made orthogonal (Hermite's functions, if
    the probe is a Gaussian).

    Parameters
    ----------
    probe
        ``(row, column)``.
    modes
        How many in all.
    """
    intensity = np.abs(probe) ** 2
    power = float(intensity.sum())
    places = []
    for axis in (0, 1):
        line = np.arange(probe.shape[axis], dtype=np.float64)
        weights = intensity.sum(1 - axis) / power
        middle = float(weights @ line)
        width = max(0.5, math.sqrt(float(weights @ (line - middle) ** 2)))
        # bounded: far from the probe, where it is weak, powers would carry all the weight
        places.append(np.tanh((line - middle) / (2 * width)))
    found: list[NDArray[np.complex128]] = []
    order = 0
    while len(found) < modes and order < 64:
        for first in range(order, -1, -1):
            mode = probe * (places[0] ** first)[:, None] * places[1] ** (order - first)
            for _ in range(2):  # twice is enough
                for other in found:
                    mode = mode - other * (np.vdot(other, mode) / power)
            size = float(np.sum(np.abs(mode) ** 2))
            if size > 1e-12 * power and len(found) < modes:
                found.append(np.asarray(mode * math.sqrt(power / size), np.complex128))
        order += 1
    if len(found) < modes:
        raise UserError(f"a probe of {probe.shape[0]} × {probe.shape[1]} pixels has no {modes} modes; give fewer")
    return np.stack(found)


def mode_powers(modes: int, further: float = FURTHER_MODES) -> NDArray[np.float64]:
    """Powers of the modes of a probe, descending, with sum 1: the first has 1 − `further`, each next half as much."""
    if modes == 1:
        return np.ones(1)
    falling = 0.5 ** np.arange(modes - 1)
    return np.concatenate([[1 - further], further * falling / falling.sum()])


def probe_modes(probe: NDArray[Any], modes: int, photons: float | None) -> NDArray[np.complex64]:
    """The modes that a reconstruction begins with.

    Parameters
    ----------
    probe
        One mode ``(row, column)`` or several ``(mode, row, column)``; what is missing is added, what is too much left
        out.
    modes
        How many.
    photons
        Sum of all their intensities; None: as it is.
    """
    given = probe[None] if probe.ndim == 2 else probe
    result = np.asarray(given[:modes], np.complex128)
    if len(result) < modes:
        powers = mode_powers(modes)
        more = orthogonal_modes(result[0], modes)[len(result) :] * np.sqrt(powers[len(result) :, None, None])
        result = np.concatenate([result * math.sqrt(powers[: len(result)].sum()), more])
    return np.asarray(result if photons is None else scaled(result, photons), np.complex64)


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """Where an object lies.

    Attributes
    ----------
    shape
        Its rows and columns.
    positions
        Of the probes on it ``(frame, 2)``, in its pixels.
    origin
        Row and column that its pixel [0, 0] has among the positions that were given; whole numbers.
    """

    shape: tuple[int, int]
    positions: NDArray[np.float64]
    origin: tuple[int, int]


def place_object(positions: NDArray[Any], probe_shape: tuple[int, int], padding: int = PADDING) -> Place:
    """Room for all probes, and `padding` pixels around them.

    The positions move by whole pixels, so their fractions stay as they were.

    Parameters
    ----------
    positions
        Of pixel [0, 0] of the probe at each frame, row and column in object pixels ``(frame, 2)``.
    probe_shape
        Rows and columns.
    padding
        Pixels.

    Raises
    ------
    UserError
        Positions that are not finite, or lie so far apart that their unit must be wrong.
    """
    positions = np.asarray(positions, np.float64)
    if not len(positions) or not np.isfinite(positions).all():
        raise UserError("the positions of the scan are not all finite numbers, or there are none")
    first = np.floor(positions.min(axis=0)).astype(np.int64) - padding
    last = np.ceil(positions.max(axis=0)).astype(np.int64) + 1 + padding
    size = last - first + np.asarray(probe_shape)
    if size.max() > 200_000:
        raise UserError(
            f"the positions span {size[0]} × {size[1]} pixels of the object; check their unit (--position-unit), "
            "--distance, --energy and --pixel-size"
        )
    return Place((int(size[0]), int(size[1])), positions - first, (int(first[0]), int(first[1])))


def first_object(
    shape: tuple[int, int],
    *,
    modes: int = 1,
    slices: int = 1,
    exponential: bool = False,
    rough: bool = False,
    seed: int = 0,
) -> NDArray[np.complex64]:
    """An object that lets everything through ``(mode, slice, row, column)``.

    Parameters
    ----------
    shape
        Rows and columns.
    modes, slices
        How many; further modes are weak and random, so that they differ.
    exponential
        Whether it is u of exp(iu) and not the transmission.
    rough
        Whether it has weak random phases, a few pixels wide.
    seed
        Of what is random.
    """
    random = np.random.default_rng([seed, 7])
    result = np.full((modes, slices, *shape), 0 if exponential else 1, np.complex64)
    if rough:
        phases = ndimage.gaussian_filter(random.standard_normal(shape, np.float32), 1.5, mode="wrap")
        phases *= ROUGHNESS / max(float(phases.std()), 1e-30)
        result[0, 0] = phases if exponential else np.exp(1j * phases)
    for mode in range(1, modes):
        noise = random.standard_normal((2, *shape), np.float32)
        weak = FURTHER_OBJECTS * (noise[0] + 1j * noise[1]) / math.sqrt(2)
        result[mode, 0] = -1j * np.log(FURTHER_OBJECTS) + weak if exponential else weak
    return result


def first_background(
    pattern: Pattern, dark: NDArray[Any] | None, mask: NDArray[np.bool_] | None = None
) -> NDArray[np.float32]:
    """Its root ``(row, column)`` in detector order, from dark counts, or even and weak.

    It does not start at zero, where the gradient of its square vanishes.
    """
    least = BACKGROUND * float(pattern.mean.mean())
    even = np.full(pattern.mean.shape, least)
    values = even if dark is None else np.maximum(np.asarray(dark, np.float64), 1e-3 * least)
    values = np.where(np.isfinite(values), values, least)
    if mask is not None:
        values = np.where(mask, values, least)
    return np.sqrt(values).astype(np.float32)


def first_parameters(
    probe: NDArray[np.complex64],
    place: Place,
    obj: NDArray[np.complex64],
    *,
    rank: int = 0,
    background: NDArray[np.float32] | None = None,
    scale: bool = False,
    distance: float | None = None,
) -> Parameters:
    """Everything by name, as `dtomo.ptycho.model.PtychoModel` takes it.

    Parameters
    ----------
    probe
        ``(mode, row, column)``.
    place
        Of the object, with positions.
    obj
        ``(mode, slice, row, column)``.
    rank
        Of the variable probe: modes orthogonal to the first, whose weights start at zero.
    background
        Root, in model order; None: there is none.
    scale
        Whether frames have amplitudes of their own.
    distance
        In the near field.
    """
    frames = len(place.positions)
    parameters: Parameters = {"object": obj, "probe": probe, "positions": place.positions}
    if rank:
        further = orthogonal_modes(np.asarray(probe[0], np.complex128), rank + 1)[1:]
        variable = np.zeros((rank, *probe.shape), np.complex64)
        variable[:, 0] = further
        parameters["variable_probe"] = variable
        parameters["probe_weights"] = np.zeros((frames, rank), np.complex64)
    if background is not None:
        parameters["background"] = background
    if scale:
        parameters["scale"] = np.ones(frames, np.float32)
    if distance is not None:
        parameters["distance"] = np.asarray(distance, np.float64)
    return parameters
