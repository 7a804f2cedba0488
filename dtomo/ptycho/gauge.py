"""What the data of a scan cannot tell, fixed by convention after a run, and removed before two results are compared.

`fixed` changes no intensity: it turns probe modes into orthogonal ones, centers the probe, moves a phase ramp (and,
where every frame has its own scale, an exponential of the amplitude) from the object into the probe, scales the object
to a mean |T|² of one under the light, and its mean phase to zero. `aligned` brings one object to the gauge of another.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module
from dtomo.device import to_host
from dtomo.errors import UserError
from dtomo.ptycho.curvatures import illumination
from dtomo.ptycho.modes import orthogonal

ALIGNMENTS = 12
"""Gauss-Newton steps at most."""

TAPER = (3, 11)
"""Pixels beyond the region between which an image fades before it is shifted."""

ROUNDS = 4
"""How often slopes of the amplitude are taken away: with them the probe moves, and the light they are weighted with."""

CENTERINGS = 4
"""How often the probe is centered: |P|² has twice the frequencies of P, a sub-pixel shift does not shift it exactly."""


def fixed(parameters: Mapping[str, Any], *, exponential: bool = False, near_field: bool = False) -> dict[str, Any]:
    """The same result in the gauge of this module, new arrays.

    Intensities stay as they are as far as the probe is zero at the border of its array: what wraps around it is moved
    over the object, and a ramp breaks there. In the near field nothing is centered (the detector sees where the probe
    is) and the ramp stays (its probes reach the border); so does that of an object of several slices.

    Parameters
    ----------
    parameters
        Of a `dtomo.ptycho.model.PtychoModel`; unknown names are passed through.
    exponential
        Whether the object is u, with T = exp(i u).
    near_field
        Whether the detector is in the near field.
    """
    result = orthogonal(parameters)
    for _ in range(ROUNDS if "scale" in parameters else 1):
        if not near_field:
            result = centered(result, exponential=exponential)
            if result["object"].shape[1] == 1:
                result = without_ramp(result, exponential=exponential)
    # slopes of the amplitude leave modes not quite orthogonal, and ramps move the phase of their brightest pixels
    return orthogonal(scaled(result, exponential=exponential))


def centered(parameters: Mapping[str, Any], *, exponential: bool = False) -> dict[str, Any]:
    """The probe's middle of mass at pixel (rows // 2, columns // 2), as first guesses; positions move the other way.

    The object's pixels stay where they are, but it grows (by vacuum) where frames now reach beyond it.
    """
    result = dict(parameters)
    for _ in range(CENTERINGS):
        shift = _off_middle(result["probe"])
        if max(map(abs, shift)) < 1e-4:
            break
        for name in ("probe", "variable_probe"):
            if name in result:
                result[name] = fourier_shifted(result[name], shift)
        result["positions"] = result["positions"] - array_module(result["positions"]).asarray(shift)
    return _grown(result, exponential)


def without_ramp(parameters: Mapping[str, Any], *, exponential: bool = False) -> dict[str, Any]:
    """No phase ramp in the object, as its mean phase step from pixel to pixel says, weighted by the light there.

    Where frames have scales of their own, the amplitude loses its exponential slope as well.
    """
    light = illumination(parameters)
    waves = transmission(parameters["object"], exponential)[:, 0]
    slopes = np.asarray(_phase_slopes(waves, light), complex) * 1j
    if "scale" in parameters:
        slopes = slopes + _amplitude_slopes(waves, light)
    return _ramp_moved(parameters, slopes, exponential)


def scaled(parameters: Mapping[str, Any], *, exponential: bool = False) -> dict[str, Any]:
    """Mean |T|² under the light, and mean square of the scales, are one, the mean phase of T zero.

    The probe then has the power of the data: without background, the mean sum of a frame.
    """
    result = dict(parameters)
    light = illumination(parameters)
    waves = transmission(parameters["object"], exponential).prod(axis=1)
    power = float((light * (waves.real**2 + waves.imag**2).sum(axis=0)).sum(dtype=np.float64))
    size = (power / float(light.sum(dtype=np.float64))) ** 0.5
    phase = float(np.angle(complex((light * waves[0]).sum(dtype=np.complex128))))
    result["object"] = _times(parameters["object"], complex(np.exp(-1j * phase)) / size, exponential)
    factor = size
    if "scale" in parameters:
        mean = float((parameters["scale"] ** 2).mean(dtype=np.float64)) ** 0.5
        result["scale"] = parameters["scale"] / parameters["scale"].dtype.type(mean)
        factor *= mean
    for name in ("probe", "variable_probe"):
        if name in result:
            result[name] = result[name] * result[name].real.dtype.type(factor)
    return result


def aligned(image: NDArray[Any], reference: NDArray[Any], region: NDArray[Any] | None = None) -> NDArray[Any]:
    """An object in the gauge of a reference: shifted (below a pixel, too), times a ramp and a complex factor.

    The nearest such image in the mean square, by Gauss-Newton steps from the whole pixel that correlates best.

    Parameters
    ----------
    image, reference
        Complex ``(row, column)``, of one shape, on the host.
    region
        Where they are compared, boolean ``(row, column)``; default: everywhere.

    Raises
    ------
    UserError
        Shapes that differ, or no region.
    """
    region = np.ones(reference.shape, bool) if region is None else np.asarray(region, bool)
    if not image.shape == reference.shape == region.shape or image.ndim != 2 or not region.any():
        raise UserError(
            f"two images (row, column) and a region of one shape are compared, the region not empty; got "
            f"{image.shape}, {reference.shape} and {region.shape}"
        )
    waves, target = np.asarray(image, complex), np.asarray(reference, complex)
    slopes = [np.array(phase_slopes(one, region)) for one in (waves, target)]
    flat = waves * np.exp(-1j * _plane(slopes[0], waves.shape))
    shift = _coarse_shift(flat, target * np.exp(-1j * _plane(slopes[1], waves.shape)), region)
    flat = _tapered(np.roll(flat, shift.astype(int), (0, 1)), region)
    found, least, shift, slope = waves, np.inf, np.zeros(2), slopes[1]
    for _ in range(ALIGNMENTS):
        moved = fourier_shifted(flat, (shift[0], shift[1])) * np.exp(1j * _plane(slope, waves.shape))
        factor = np.vdot(moved[region], target[region]) / max(np.vdot(moved[region], moved[region]).real, 1e-300)
        off = float(np.linalg.norm((target - factor * moved)[region]))
        if off < least:
            found, least = factor * moved, off
        by_shift, by_slope = _gauss_newton(factor * moved, target, region)
        shift, slope = shift + by_shift, slope + by_slope
        if np.abs(by_shift).max() < 1e-5:
            break
    return found.astype(image.dtype, copy=False)


def error(image: NDArray[Any], reference: NDArray[Any], region: NDArray[Any] | None = None) -> float:
    """Relative root mean square of the difference to a reference, once `aligned` to it: |x − y| / |y| in the region."""
    region = np.ones(reference.shape, bool) if region is None else np.asarray(region, bool)
    difference = (aligned(image, reference, region) - reference)[region].astype(complex)
    return float(np.linalg.norm(difference) / np.linalg.norm(reference[region].astype(complex)))


def position_error(positions: NDArray[Any], reference: NDArray[Any], *, affine: bool = False) -> float:
    """Root mean square distance to reference positions ``(frame, 2)``, in pixels, but for a common shift.

    Parameters
    ----------
    positions, reference
        On the host.
    affine
        Leave out an affine map of the positions, too: scale, rotation and shear, which an object can follow.
    """
    there = np.asarray(reference, float)
    difference = np.asarray(positions, float) - there
    terms = np.ones((len(there), 1))
    if affine:
        terms = np.hstack([terms, there - there.mean(axis=0)])
    difference = difference - terms @ np.linalg.lstsq(terms, difference, rcond=None)[0]
    return float(np.sqrt((difference**2).sum(axis=1).mean()))


def transmission(waves: NDArray[Any], exponential: bool) -> NDArray[Any]:
    """T of an object of the model."""
    return np.exp(1j * waves).astype(waves.dtype, copy=False) if exponential else waves


def fourier_shifted(waves: NDArray[Any], shift: tuple[float, float]) -> NDArray[Any]:
    """f(x − shift) ``(…, row, column)``, periodic, by the phases of its spectrum; whole pixels exactly."""
    whole = tuple(int(np.rint(part)) for part in shift)
    waves = np.roll(waves, whole, (-2, -1))
    for axis, part in zip((-2, -1), (shift[0] - whole[0], shift[1] - whole[1])):
        if part:
            frequencies = array_module(waves).fft.fftfreq(waves.shape[axis])
            phases = np.exp(-2j * np.pi * part * frequencies)
            phases = phases[:, None] if axis == -2 else phases
            waves = np.fft.ifft(np.fft.fft(waves, axis=axis) * phases, axis=axis).astype(waves.dtype, copy=False)
    return waves


def phase_slopes(waves: NDArray[Any], weights: NDArray[Any] | None = None) -> tuple[float, float]:
    """Mean phase step to the next row and column, radians, of images ``(…, row, column)``."""
    light = array_module(waves).ones(waves.shape[-2:]) if weights is None else weights
    return _phase_slopes(waves, light)


def _phase_slopes(waves: NDArray[Any], light: NDArray[Any]) -> tuple[float, float]:
    down = (waves[..., 1:, :] * waves[..., :-1, :].conj() * np.minimum(light[1:], light[:-1])).sum(dtype=complex)
    right = (waves[..., 1:] * waves[..., :-1].conj() * np.minimum(light[:, 1:], light[:, :-1])).sum(dtype=complex)
    return float(np.angle(complex(down))), float(np.angle(complex(right)))


def _amplitude_slopes(waves: NDArray[Any], light: NDArray[Any]) -> NDArray[np.float64]:
    """Slopes of ln |T| of the first mode along rows and columns, by weighted least squares, on the host."""
    amplitude = np.asarray(to_host(np.abs(waves[0])), float)
    weights = np.asarray(to_host(light), float)
    weights = np.where(amplitude > 0.1 * np.average(amplitude, weights=weights), weights, 0)
    rows, columns = np.indices(weights.shape)
    roots = np.sqrt(weights).ravel()
    terms = np.stack([np.ones(weights.size), rows.ravel(), columns.ravel()], 1) * roots[:, None]
    values = np.log(np.where(weights > 0, amplitude, 1)).ravel() * roots
    return np.linalg.lstsq(terms, values, rcond=None)[0][1:]


def _ramp_moved(parameters: Mapping[str, Any], slopes: NDArray[np.complex128], exponential: bool) -> dict[str, Any]:
    """exp(slopes · x) taken from the object and given to the probe; scales take what depends on the frame alone."""
    result = dict(parameters)
    ramp = _exponent(parameters["object"], slopes)
    if exponential:
        result["object"] = parameters["object"] + (1j * ramp).astype(parameters["object"].dtype)
    else:
        result["object"] = parameters["object"] * np.exp(-ramp).astype(parameters["object"].dtype)
    for name in ("probe", "variable_probe"):
        if name in result:
            factor = np.exp(_exponent(result[name], slopes)).astype(result[name].dtype)
            result[name] = result[name] * factor
    if "scale" in result and slopes.real.any():
        growth = np.exp(np.asarray(to_host(result["positions"]), float) @ slopes.real)
        scale = result["scale"]
        result["scale"] = scale * array_module(scale).asarray(growth, scale.dtype)
    return result


def _exponent(image: NDArray[Any], slopes: NDArray[np.complex128]) -> NDArray[Any]:
    """slopes · (row, column) of an image's pixels."""
    xp = array_module(image)
    rows, columns = (xp.arange(size, dtype=float) for size in image.shape[-2:])
    return complex(slopes[0]) * rows[:, None] + complex(slopes[1]) * columns


def _times(waves: NDArray[Any], factor: complex, exponential: bool) -> NDArray[Any]:
    """An object with T times a factor; of several slices the first."""
    changed = waves.copy()
    if exponential:
        changed[:, 0] += waves.dtype.type(-1j * np.log(factor))
    else:
        changed[:, 0] *= waves.dtype.type(factor)
    return changed


def _plane(slopes: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """slopes · (row, column), from the middle."""
    rows, columns = (np.arange(size) - (size - 1) / 2 for size in shape)
    return slopes[0] * rows[:, None] + slopes[1] * columns


def _coarse_shift(image: NDArray[Any], target: NDArray[Any], region: NDArray[Any]) -> NDArray[np.float64]:
    """Whole pixels that `image` is to be shifted by to correlate best with `target`."""
    spectra = [np.fft.fft2(np.where(region, one - one[region].mean(), 0)) for one in (image, target)]
    height = np.abs(np.fft.ifft2(spectra[0].conj() * spectra[1]))
    peak = np.array(np.unravel_index(int(height.argmax()), height.shape), float)
    sizes = np.array(height.shape)
    return np.where(peak > sizes / 2, peak - sizes, peak)


def _tapered(image: NDArray[Any], region: NDArray[Any]) -> NDArray[Any]:
    """The image in the region and near it, fading to its mean: what is beyond must not ring into a sub-pixel shift."""
    from scipy.ndimage import distance_transform_edt

    if region.all():
        return image
    beyond = (distance_transform_edt(~region) - TAPER[0]) / (TAPER[1] - TAPER[0])
    weights = np.cos(np.pi / 2 * beyond.clip(0, 1)) ** 2
    mean = image[region].mean()
    return mean + weights * (image - mean)


def _gauss_newton(
    moved: NDArray[Any], target: NDArray[Any], region: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Changes of shift (one pixel at most) and slopes that bring `moved` nearer to `target`."""
    planes = [_plane(np.array(unit), moved.shape) for unit in ((1.0, 0.0), (0.0, 1.0))]
    terms = [moved, 1j * moved, *(-part for part in np.gradient(moved)), *(1j * plane * moved for plane in planes)]
    columns = np.stack([term[region] for term in terms], 1)
    left = target[region] - moved[region]
    solution = np.linalg.lstsq(np.vstack([columns.real, columns.imag]), np.hstack([left.real, left.imag]), rcond=None)[
        0
    ]
    return np.clip(solution[2:4], -1, 1), solution[4:6]


def _off_middle(probe: NDArray[Any]) -> tuple[float, float]:
    """Shift that brings the middle of mass to the middle of the array; it may lie across the border."""
    power = (probe.real**2 + probe.imag**2).sum(axis=0)
    shift = []
    for axis in (0, 1):
        size = probe.shape[-2 + axis]
        profile = np.asarray(to_host(power.sum(axis=1 - axis)), float)
        turns = np.angle(profile @ np.exp(2j * np.pi * (np.arange(size) - size // 2) / size)) / (2 * np.pi)
        shift.append(float(-turns * size))
    return shift[0], shift[1]


def _grown(parameters: dict[str, Any], exponential: bool) -> dict[str, Any]:
    """The object with vacuum where frames reach beyond it."""
    positions = np.asarray(to_host(parameters["positions"]))
    shape, patch = parameters["object"].shape[-2:], parameters["probe"].shape[-2:]
    before = [max(0, -int(np.floor(low))) for low in positions.min(axis=0)]
    after = [max(0, int(np.ceil(last)) + p - n) for last, p, n in zip(positions.max(axis=0), patch, shape)]
    if not any(before + after):
        return parameters
    widths = ((0, 0), (0, 0), (before[0], after[0]), (before[1], after[1]))
    vacuum = 0 if exponential else 1
    moved = parameters["positions"] + array_module(parameters["positions"]).asarray(before, float)
    return {**parameters, "object": np.pad(parameters["object"], widths, constant_values=vacuum), "positions": moved}
