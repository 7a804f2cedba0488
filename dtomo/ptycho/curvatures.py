"""How strongly the loss curves along each parameter: light that fell on the object, frames that saw the probe.

For the loss of amplitudes, Σ (√S − √I)², a step of the gradient divided by these takes every frame to its nearest wave
of the measured amplitudes, where the parameter is on its own; for others they are of the right order. Frames are taken
at whole pixels and slices as one: enough for step lengths and preconditioners.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from dtomo.arrays import array_module
from dtomo.device import to_host
from dtomo.threads import get_threads

Arrays = Mapping[str, Any]


def illumination(parameters: Arrays, index: NDArray[np.int64] | None = None) -> NDArray[Any]:
    """Σ over frames and modes of |P|² at each pixel of the object ``(row, column)``, never negative.

    Parameters
    ----------
    parameters
        Of a `dtomo.ptycho.model.PtychoModel`.
    index
        Which frames; default: all.
    """
    corners, power = _corners(parameters, index), _power(parameters["probe"])
    transform = _RealTransform(corners)
    found = transform.inverse(transform.forward(corners) * transform.forward(power))
    return found.clip(min=0)


def coverage(parameters: Arrays, index: NDArray[np.int64] | None = None, *, exponential: bool = False) -> NDArray[Any]:
    """Σ over frames and object modes of |T|² at each pixel of the probe ``(row, column)``, never negative.

    Parameters
    ----------
    parameters
        Of a `dtomo.ptycho.model.PtychoModel`.
    index
        Which frames; default: all.
    exponential
        Whether the object is u, with T = exp(i u).
    """
    rows, columns = parameters["probe"].shape[-2:]
    corners, power = _corners(parameters, index), transmission_power(parameters, exponential)
    transform = _RealTransform(corners)
    found = transform.inverse(transform.forward(corners).conj() * transform.forward(power))
    return found[:rows, :columns].clip(min=0)


def transmission_power(parameters: Arrays, exponential: bool = False) -> NDArray[Any]:
    """|T|² of all slices together, summed over modes, ``(row, column)``; T = exp(i u) if `exponential`."""
    waves = parameters["object"]
    power = np.exp(-2 * waves.imag) if exponential else waves.real**2 + waves.imag**2
    return power.prod(axis=1).sum(axis=0)


def curvatures(parameters: Arrays, names: tuple[str, ...], *, exponential: bool = False) -> dict[str, Any]:
    """Curvatures of parameters, by name, in a form that broadcasts against them: all but the distance.

    h with ∂L/∂z̄ ≈ h (z − ẑ) for complex parameters, dL/dx ≈ h (x − x̂) for real ones.
    """
    return {name: _CURVATURES[name](parameters, exponential) for name in names}


class _RealTransform:
    """FFTs of images no larger than one, on the next larger size that is quick: nothing wraps around that is used."""

    def __init__(self, image: NDArray[Any]) -> None:
        self._shape = image.shape
        self._padded = [scipy.fft.next_fast_len(size, real=True) for size in image.shape]
        self._on_host = array_module(image) is np

    def forward(self, image: NDArray[Any]) -> Any:
        if self._on_host:
            return scipy.fft.rfft2(image, self._padded, workers=get_threads())
        return np.fft.rfft2(image, self._padded)

    def inverse(self, spectrum: Any) -> NDArray[Any]:
        if self._on_host:
            found = scipy.fft.irfft2(spectrum, self._padded, workers=get_threads(), overwrite_x=True)
        else:
            found = np.fft.irfft2(spectrum, self._padded)
        return found[: self._shape[0], : self._shape[1]]


def _corners(parameters: Arrays, index: NDArray[np.int64] | None) -> NDArray[Any]:
    """Intensity of the probe at each whole position ``(row, column)``, where the object lies."""
    rows, columns = parameters["object"].shape[-2:]
    positions = np.rint(np.asarray(to_host(parameters["positions"]))).astype(np.int64)
    weights = np.ones(len(positions)) if "scale" not in parameters else to_host(parameters["scale"]).astype(float) ** 2
    if index is not None:
        positions, weights = positions[index], weights[index]
    flat = positions[:, 0] * columns + positions[:, 1]
    found = np.bincount(flat, weights, minlength=rows * columns).reshape(rows, columns)
    return array_module(parameters["object"]).asarray(found, parameters["object"].real.dtype)


def _power(waves: NDArray[Any]) -> NDArray[Any]:
    """Σ over all but rows and columns of |z|²."""
    return (waves.real**2 + waves.imag**2).reshape(-1, *waves.shape[-2:]).sum(axis=0)


def _of_object(parameters: Arrays, exponential: bool) -> Any:
    return illumination(parameters)


def _of_probe(parameters: Arrays, exponential: bool) -> Any:
    return coverage(parameters, exponential=exponential)


def _of_variable_probe(parameters: Arrays, exponential: bool) -> Any:
    weights = parameters["probe_weights"]
    mean = (weights.real**2 + weights.imag**2).mean(axis=0)
    return mean[:, None, None, None] * coverage(parameters, exponential=exponential) + _LEAST * len(weights)


def _of_weights(parameters: Arrays, exponential: bool) -> Any:
    waves = parameters["variable_probe"]
    return (waves.real**2 + waves.imag**2).sum(axis=(-3, -2, -1)) * _mean_transmission(parameters, exponential) + _LEAST


def _of_scale(parameters: Arrays, exponential: bool) -> Any:
    return 2 * float(_power(parameters["probe"]).sum()) * _mean_transmission(parameters, exponential)


def _of_positions(parameters: Arrays, exponential: bool) -> Any:
    """Of rows and columns: what a shift of the probe by one pixel changes of the wave."""
    found = []
    for axis in (-2, -1):
        change = parameters["probe"] - np.roll(parameters["probe"], 1, axis)
        found.append(2 * float(_power(change).sum()) * _mean_transmission(parameters, exponential))
    return array_module(parameters["positions"]).asarray(found)


def _of_background(parameters: Arrays, exponential: bool) -> Any:
    return 2.0 * len(parameters["positions"])


def _mean_transmission(parameters: Arrays, exponential: bool) -> float:
    """Mean of |T|² over the probe."""
    light = _power(parameters["probe"])
    seen = float((coverage(parameters, exponential=exponential) * light).sum()) / len(parameters["positions"])
    return max(seen / max(float(light.sum()), _LEAST), _LEAST)


_LEAST = 1e-30
_CURVATURES: dict[str, Callable[[Arrays, bool], Any]] = {
    "object": _of_object,
    "probe": _of_probe,
    "variable_probe": _of_variable_probe,
    "probe_weights": _of_weights,
    "background": _of_background,
    "scale": _of_scale,
    "positions": _of_positions,
}
