"""Shifts between images or volumes, from their cross-correlation or phase correlation, to a fraction of a pixel.

All through the array module: FFTs and matrix products, wherever the images lie; what comes to the host is a few numbers
for each image. Images are periodic; whoever does not want that pads or tapers them.

M. Guizar-Sicairos, S. T. Thurman and J. R. Fienup, Opt. Lett. 33, 156-158 (2008); C. D. Kuglin and D. C. Hines, Proc.
Int. Conf. Cybernetics and Society, 163-165 (1975).
"""

from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from dtomo.arrays import array_module, on_device, single_precision
from dtomo.errors import UserError
from dtomo.threads import get_threads

Refinement = Literal["dft", "parabola", "none"]

_COARSE = 10  # steps per pixel of the first grid
_REACH = 0.75  # pixels to both sides of the highest one, where the upsampled transform is evaluated
_FLOOR = np.float32(1e-7)  # of the strongest frequency: weaker ones are rounding, and keep less than their phase


class Match(NamedTuple):
    """Where images fit best.

    Attributes
    ----------
    shift
        In pixels, in the order of axes, float64 ``(…, dimensions)`` on the host: what the moving image is to be moved
        by to lie on the reference.
    value
        Magnitude of the correlation there, between 0 and 1: 1 for images that are the same but for a factor and the
        shift (phase correlation: for white ones). float64 ``(…)`` on the host.
    """

    shift: NDArray[np.float64]
    value: NDArray[np.float64]


def correlate(
    reference: NDArray[Any], moving: NDArray[Any], *, dimensions: int = 2, phase: bool = False
) -> NDArray[Any]:
    """Periodic correlation over the last axes, complex64: ``c[s] = sum over r of reference[r + s] conj(moving[r])``.

    Parameters
    ----------
    reference, moving
        ``(…, row, column)`` or, with 3 dimensions, ``(…, z, y, x)``, real or complex; other axes are broadcast.
    dimensions
        2 or 3: how many of the last axes are correlated.
    phase
        Let every frequency count alike (phase correlation, at most 1) instead of with its strength.

    Raises
    ------
    UserError
        Shapes that do not fit, or other dimensions.
    TypeError
        One image on the host, one on a device.
    """
    product = _product(reference, moving, dimensions, phase)
    return _transform(product, dimensions, inverse=True)


def find_shift(
    reference: NDArray[Any],
    moving: NDArray[Any],
    *,
    dimensions: int = 2,
    phase: bool = False,
    refinement: Refinement = "dft",
    upsampling: int = 100,
) -> Match:
    """The shift that brings moving images onto their reference.

    Parameters
    ----------
    reference, moving, dimensions, phase
        As for `correlate`.
    refinement
        "dft" evaluates the correlation around its highest pixel on a grid `upsampling` times as fine (exact for
        band-limited images); "parabola" takes the vertex through the neighbours along each axis; "none" whole pixels.
    upsampling
        Steps per pixel of "dft".

    Raises
    ------
    UserError
        As `correlate`; an unknown refinement; images that hold values that are no finite numbers.
    """
    if refinement not in ("dft", "parabola", "none"):
        raise UserError(f"a shift is refined by dft, parabola or none, not {refinement!r}")
    if upsampling != int(upsampling) or upsampling < 1:
        raise UserError(f"the upsampling is a whole number of steps per pixel, not {upsampling}")
    product = _product(reference, moving, dimensions, phase)
    shape = product.shape[-dimensions:]
    outer = product.shape[:-dimensions]
    product = product.reshape(-1, *shape)
    magnitude = abs(_transform(product, dimensions, inverse=True)).reshape(len(product), -1)
    peaks = _host(magnitude.argmax(1))
    values = _at(magnitude, peaks[:, None])[:, 0]
    if not np.isfinite(values).all():
        raise UserError("the images hold values that are no finite numbers (or are too large to be correlated)")
    index = np.stack(np.unravel_index(peaks, shape), 1)
    shift = np.where(index > np.array(shape) // 2, index - np.array(shape), index).astype(np.float64)
    if refinement == "parabola":
        shift += _vertices(magnitude, index, shape)
    elif refinement == "dft":
        moved, values = _upsampled(product, shift, upsampling)
        shift += moved
    shift[:, np.array(shape) == 1] = 0
    scale = np.float64(1) if phase else _norms(reference, dimensions) * _norms(moving, dimensions)
    value = values.reshape(outer) / np.maximum(scale, 1e-300)
    return Match(shift.reshape(*outer, dimensions), np.minimum(value, 1.0))


def _product(reference: NDArray[Any], moving: NDArray[Any], dimensions: int, phase: bool) -> NDArray[Any]:
    """Spectrum of the correlation."""
    if dimensions not in (2, 3):
        raise UserError(f"images have 2 dimensions and volumes 3, not {dimensions}")
    shapes = reference.shape[-dimensions:], moving.shape[-dimensions:]
    if len(shapes[0]) != dimensions or shapes[0] != shapes[1] or 0 in shapes[0]:
        raise UserError(f"images of shapes {reference.shape} and {moving.shape} are not of one size in {dimensions}D")
    try:
        np.broadcast_shapes(reference.shape, moving.shape)
    except ValueError:
        raise UserError(f"sets of images of shapes {reference.shape} and {moving.shape} do not match") from None
    array_module(reference, moving)
    spectra = [_transform(single_precision(image), dimensions) for image in (reference, moving)]
    product = spectra[0] * np.conj(spectra[1])
    if phase:
        strength = abs(product)
        most = strength.max(axis=tuple(range(-dimensions, 0)), keepdims=True)
        product /= np.maximum(strength, np.maximum(most * _FLOOR, np.float32(1e-30)))
    return product


def _transform(array: NDArray[Any], dimensions: int, inverse: bool = False) -> NDArray[Any]:
    """FFT over the last axes, complex64."""
    axes = tuple(range(-dimensions, 0))
    if array_module(array) is np:
        function = scipy.fft.ifftn if inverse else scipy.fft.fftn
        return function(array, axes=axes, workers=get_threads())
    from cupyx.scipy import fft

    return (fft.ifftn if inverse else fft.fftn)(array, axes=axes)


def _host(array: Any) -> NDArray[Any]:
    return array.get() if on_device(array) else array


def _at(magnitude: NDArray[Any], places: NDArray[np.int64]) -> NDArray[np.float64]:
    """Values of each image ``(image, pixel)`` at some pixels ``(image, k)``, on the host."""
    xp = array_module(magnitude)
    return _host(xp.take_along_axis(magnitude, xp.asarray(places), 1)).astype(np.float64)


def _vertices(magnitude: NDArray[Any], index: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """How far the vertices of parabolas lie from the highest pixels, ``(image, axis)``."""
    found = np.zeros(index.shape)
    for axis, size in enumerate(shape):
        if size < 3:
            continue
        neighbours = np.repeat(index[:, None], 3, 1)
        neighbours[:, :, axis] = (neighbours[:, :, axis] + (-1, 0, 1)) % size
        places = np.asarray(np.ravel_multi_index(tuple(np.moveaxis(neighbours, -1, 0)), shape))
        low, middle, high = _at(magnitude, places).T
        bend = low - 2 * middle + high
        found[:, axis] = np.where(bend < 0, 0.5 * (low - high) / np.where(bend < 0, bend, 1), 0)
    return np.clip(found, -0.5, 0.5)


def _upsampled(
    product: NDArray[Any], shift: NDArray[np.float64], upsampling: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Where the upsampled correlation is highest, from the whole shifts ``(image, axis)`` on; and the values there.

    On a coarse grid around the highest pixel first, then on the fine one around the highest place of the coarse one.
    """
    half, stride = int(np.ceil(_REACH * upsampling)), max(1, upsampling // _COARSE)
    moved = np.zeros(shift.shape, np.int64)  # in steps of 1 / upsampling
    for reach, step in ((half // stride, stride), (2 * stride, 1)):
        steps = np.arange(-reach, reach + 1) * step
        best, values = _highest(product, shift + moved / upsampling, steps / upsampling)
        moved += steps[best]
        if stride == 1:
            break
    return moved / upsampling, values


def _highest(
    product: NDArray[Any], middle: NDArray[np.float64], steps: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Numbers of the steps from `middle` where the correlation is highest ``(image, axis)``, and its values there."""
    xp = array_module(product)
    shape = product.shape[1:]
    data = product
    for axis in reversed(range(len(shape))):
        places = middle[:, axis, None, None] + steps  # (image, 1, step)
        waves = np.exp(2j * np.pi * np.fft.fftfreq(shape[axis])[:, None] * places).astype(np.complex64)
        waves = waves.reshape(len(waves), *[1] * (len(shape) - 2), *waves.shape[1:])
        data = np.moveaxis(xp.matmul(data, xp.asarray(waves)), -1, 1)
    magnitude = abs(data).reshape(len(product), -1)
    peaks = _host(magnitude.argmax(1))
    values = _at(magnitude, peaks[:, None])[:, 0] / np.prod(shape)
    return np.stack(np.unravel_index(peaks, (len(steps),) * len(shape)), 1), values


def _norms(images: NDArray[Any], dimensions: int) -> NDArray[np.float64]:
    """Euclidean norm of each image, on the host."""
    squares = images.real.astype(np.float64) ** 2 + images.imag.astype(np.float64) ** 2
    return np.sqrt(_host(squares.sum(axis=tuple(range(-dimensions, 0)))))
