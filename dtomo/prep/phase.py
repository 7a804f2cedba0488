"""Phase retrieval from a single distance: the filter of Paganin et al., J. Microsc. 206, 33 (2002)."""

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, is_array, on_device
from dtomo.errors import UserError
from dtomo.prep import flats
from dtomo.threads import run_blocks

_KEV_METERS = 1.239841984e-9
"""Wavelength in metres times photon energy in keV (CODATA)."""
_DEVICE_BYTES = 1 << 28
"""Of a batch of frames on a device with the spectra and tables of its cosine transform, about 32 bytes a pixel."""
_UNITS = {"m": 1000.0, "cm": 10.0, "mm": 1.0, "um": 1e-3, "µm": 1e-3, "μm": 1e-3}


def millimeters(distance: float | str) -> float:
    """A distance in mm from a number (mm) or a text with unit, such as "30.8 cm"; m, cm, mm, um, µm are
    known."""
    if isinstance(distance, str):
        text = distance.strip()
        unit = text.lstrip("+-.0123456789eE ")
        number = text[: len(text) - len(unit)]
        try:
            value = float(number) * _UNITS[unit.strip() or "mm"]
        except (ValueError, KeyError):
            raise UserError(f"the distance {distance!r} is not a number with one of the units m, cm, mm, um") from None
    else:
        value = float(distance)
    if not math.isfinite(value):
        raise UserError(f"the distance {distance!r} is not finite")
    return value


def paganin_length(
    *,
    energy: float,
    distance: float | str,
    delta_beta: float | None = None,
    delta: float | None = None,
    beta: float | None = None,
    source_distance: float | str | None = None,
) -> float:
    """Length L (µm, in the plane of the object) of the filter ``1 / (1 + L² k²)``, k in radians per µm.

    Parameters
    ----------
    energy
        keV.
    distance
        Object to detector, mm or text with unit.
    delta_beta, delta, beta
        The ratio δ/β, or both parts of the refractive index 1 - δ + iβ.
    source_distance
        Source to object, mm or text with unit; None for a parallel beam. With it the effective distance is
        ``distance / M``, M the magnification ``(source_distance + distance) / source_distance``.

    Raises
    ------
    UserError
        Values that are not positive, or no material.
    """
    ratio = _ratio(delta_beta, delta, beta)
    z = millimeters(distance)
    if not (energy > 0 and math.isfinite(energy)):
        raise UserError(f"phase retrieval needs a positive photon energy in keV, not {energy}")
    if not z >= 0:
        raise UserError(f"phase retrieval needs an object-detector distance of at least 0 mm, not {z}")
    wavelength = _KEV_METERS / energy
    effective = z * 1e-3 / _magnification(z, source_distance)
    return math.sqrt(ratio * wavelength * effective / (4 * math.pi)) * 1e6


def _ratio(delta_beta: float | None, delta: float | None, beta: float | None) -> float:
    if delta_beta is None:
        if delta is None or beta is None or not beta > 0:
            raise UserError("phase retrieval needs the material: delta_beta, or delta and a positive beta")
        delta_beta = delta / beta
    if not (delta_beta > 0 and math.isfinite(delta_beta)):
        raise UserError(f"phase retrieval needs a positive ratio delta/beta, not {delta_beta}")
    return float(delta_beta)


def _magnification(distance: float, source_distance: float | str | None) -> float:
    if source_distance is None:
        return 1.0
    source = millimeters(source_distance)
    if not source > 0:
        raise UserError(f"the source-object distance must be positive, not {source} mm")
    return (source + distance) / source


def attenuation_coefficient(energy: float, beta: float) -> float:
    """Linear attenuation coefficient 4πβ/λ in 1/mm, for an energy in keV."""
    return 4 * math.pi * beta / (_KEV_METERS / energy) * 1e-3


def paganin_halo_rows(
    *,
    pixel_size: float,
    energy: float,
    distance: float | str,
    delta_beta: float | None = None,
    delta: float | None = None,
    beta: float | None = None,
    source_distance: float | str | None = None,
    tolerance: float = 1e-4,
) -> int:
    """Rows needed above and below a slab so that the filtered rows do not feel its border.

    The filter's line response falls as ``exp(-|row| / L)``; the halo ends where what is left outside is below
    `tolerance` of the contrast. Parameters as for `paganin`.
    """
    length = paganin_length(
        energy=energy,
        distance=distance,
        delta_beta=delta_beta,
        delta=delta,
        beta=beta,
        source_distance=source_distance,
    )
    pixel = _object_pixel(pixel_size, distance, source_distance)
    return math.ceil(length / pixel * math.log(1 / tolerance)) if length > 0 else 0


def _object_pixel(pixel_size: float, distance: float | str, source_distance: float | str | None) -> float:
    if not (pixel_size > 0 and math.isfinite(pixel_size)):
        raise UserError(f"phase retrieval needs a positive pixel size in µm, not {pixel_size}")
    return pixel_size / _magnification(millimeters(distance), source_distance)


def paganin(
    transmission: NDArray[Any],
    *,
    pixel_size: float,
    energy: float,
    distance: float | str,
    delta_beta: float | None = None,
    delta: float | None = None,
    beta: float | None = None,
    source_distance: float | str | None = None,
    output: Literal["attenuation", "thickness"] = "attenuation",
    halo: tuple[int, int] = (0, 0),
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Projected attenuation, or thickness, of an object of one material, from propagated intensity.

    The transmission is divided in Fourier space by ``1 + L² k²``, with the frames continued by mirror images
    on all sides (a cosine transform), then the negative logarithm is taken.

    The result's rows depend on rows further away: give slabs with a halo (`paganin_halo_rows`), which
    `halo` cuts off again. Slabs then agree to the tolerance of the halo, not to the bit; the bits are the
    same for the same rows, whatever the number of threads. Peak memory: the float32 result and three frames
    per thread; on a device eight frames, or 256 MiB if that is more. There the result agrees with the CPU's to the
    rounding of float32 transforms.

    Parameters
    ----------
    transmission
        (angle, row, column), flat-corrected intensity, all finite.
    pixel_size
        Detector pixel in µm. In cone beam it is divided by the magnification here.
    energy
        keV.
    distance
        Object to detector, mm or text with unit ("30.8 cm").
    delta_beta, delta, beta
        The ratio δ/β, or δ and β.
    source_distance
        Source to object, mm or text with unit; None: parallel beam.
    output
        "attenuation": µ·t, to be reconstructed like any -ln of transmission. "thickness": t in µm (needs
        `beta`).
    halo
        Rows at the top and bottom to leave out of the result.
    out
        Contiguous float32 array for the result.

    Returns
    -------
    array
        (angle, row - halo, column) float32.

    Raises
    ------
    UserError
        Physical values that are missing or not positive, values that are not finite, a halo larger than the
        slab.
    """
    data = transmission if is_array(transmission) else np.asarray(transmission)
    if data.ndim != 3 or 0 in data.shape or data.dtype.kind not in "buif":
        raise UserError(f"phase retrieval needs real data (angle, row, column), not {data.dtype} of shape {data.shape}")
    length = paganin_length(
        energy=energy,
        distance=distance,
        delta_beta=delta_beta,
        delta=delta,
        beta=beta,
        source_distance=source_distance,
    )
    scale = np.float32(1)
    if output == "thickness":
        if beta is None or not beta > 0:
            raise UserError("the thickness needs beta; without it ask for the attenuation")
        scale = np.float32(1000 / attenuation_coefficient(energy, beta))
    elif output != "attenuation":
        raise UserError(f"phase retrieval gives attenuation or thickness, not {output!r}")
    angles, rows, columns = data.shape
    top, bottom = (int(count) for count in halo)
    if top < 0 or bottom < 0 or top + bottom >= rows:
        raise UserError(f"a halo of {top} and {bottom} rows leaves nothing of {rows} rows")
    shape = (angles, rows - top - bottom, columns)
    xp = array_module(data, out)
    result = flats._output(out, shape, xp)
    response = _response(rows, columns, length / _object_pixel(pixel_size, distance, source_distance), xp)

    def block(start: int, stop: int) -> None:
        for k in range(start, stop):
            result[k] = _filtered(data[k], response)[top : rows - bottom]

    if on_device(data):
        _filter_on_device(data, response, top, result)
    else:
        run_blocks(block, angles, 1)
    flats.minus_log(result, out=result)
    result *= scale
    return result


def _response(rows: int, columns: int, length: float, xp: Any = np) -> NDArray[np.float32]:
    """The filter at the frequencies of the cosine transform; `length` in pixels."""
    row = np.pi * xp.arange(rows) / rows
    column = np.pi * xp.arange(columns) / columns
    k2 = row[:, np.newaxis] ** 2 + column[np.newaxis] ** 2
    response: NDArray[np.float32] = (1 / (1 + length**2 * k2)).astype(np.float32)
    return response


def _filtered(frame: NDArray[Any], response: NDArray[np.float32]) -> NDArray[np.float32]:
    from scipy import fft

    single = np.array(frame, np.float32)
    if not np.isfinite(single).all():
        raise _not_finite(int((~np.isfinite(single)).sum()))
    spectrum = fft.dctn(single, norm="ortho", overwrite_x=True, workers=1)
    spectrum *= response
    return np.asarray(fft.idctn(spectrum, norm="ortho", overwrite_x=True, workers=1))


def _filter_on_device(data: Any, response: Any, top: int, result: Any) -> None:
    """Frames filtered in batches of one size, so that one plan for each axis transforms all of them."""
    from cupyx.scipy import fft

    xp = array_module(data)
    angles, rows, columns = data.shape
    size = min(max(_DEVICE_BYTES // (32 * rows * columns), 1), angles)
    bad: Any = 0
    for start in range(0, angles, size):
        stop = min(start + size, angles)
        frames = xp.zeros((size, rows, columns), np.float32)
        frames[: stop - start] = data[start:stop]
        bad = bad + (~np.isfinite(frames)).sum()
        spectra = fft.dctn(frames, norm="ortho", axes=(1, 2), overwrite_x=True)
        spectra *= response
        frames = fft.idctn(spectra, norm="ortho", axes=(1, 2), overwrite_x=True)
        result[start:stop] = frames[: stop - start, top : top + result.shape[1]]
    if bad := int(bad):
        raise _not_finite(bad)


def _not_finite(count: int) -> UserError:
    return UserError(f"phase retrieval met {count} values that are not finite; normalize first")
