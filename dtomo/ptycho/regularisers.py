"""What is known of object and probe beside the data: penalties added to the loss, and projections after an update.

All solvers go through one value, `Constraints`: those that follow gradients add `Constraints.penalties` to the loss of
a step, those that do not take a step along them; all of them project afterwards. Values of penalties are sums over
pixels in float64, gradients ∂L/∂z̄ for complex arrays and dL/dx for real ones, as those of the model.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module
from dtomo.errors import UserError

Arrays = Mapping[str, Any]


class Penalty(abc.ABC):
    """A term of the loss that depends on one parameter."""

    parameter: str = "object"

    @abc.abstractmethod
    def value_and_gradient(self, array: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        """Value, and gradient in the array's dtype and shape."""


class Projection(abc.ABC):
    """Puts a parameter to the nearest one that is allowed."""

    parameters: tuple[str, ...] = ("object",)

    @abc.abstractmethod
    def __call__(self, array: NDArray[Any]) -> NDArray[Any]:
        """A new array of the same shape and dtype; the same one if it is allowed as it is."""


@dataclasses.dataclass(frozen=True)
class TotalVariation(Penalty):
    """strength · Σ (√(|∂ᵣz|² + |∂꜀z|² + smoothing²) − smoothing), of each mode and slice.

    Differences to the next pixel; 0 at the last row and column. L. I. Rudin, S. Osher and E. Fatemi, Physica D 60
    (1992) 259, smoothed, with complex differences.

    Attributes
    ----------
    strength
        In units of the loss: counts where the loss is that of amplitudes.
    smoothing
        Differences below it are not edges.
    parameter
        Whose.
    """

    strength: float
    smoothing: float = 0.01
    parameter: str = "object"

    def __post_init__(self) -> None:
        _positive("strength of the total variation", self.strength, zero=True)
        _positive("smoothing of the total variation", self.smoothing)

    def value_and_gradient(self, array: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        """See `Penalty`."""
        down, right = _differences(array)
        edges = np.sqrt(_power(down) + _power(right) + self.smoothing**2)
        value = self.strength * float((edges - self.smoothing).sum(dtype=np.float64))
        factor = self.strength * (0.5 if np.iscomplexobj(array) else 1.0)
        weights = (factor / edges).astype(edges.dtype, copy=False)
        return value, _negative_divergence(down * weights, right * weights)


@dataclasses.dataclass(frozen=True)
class Smoothness(Penalty):
    """strength · Σ (|∂ᵣz|² + |∂꜀z|²), of each mode and slice (A. N. Tikhonov, on the gradient).

    Attributes
    ----------
    strength
        In units of the loss.
    parameter
        Whose.
    """

    strength: float
    parameter: str = "object"

    def __post_init__(self) -> None:
        _positive("strength of the smoothness", self.strength, zero=True)

    def value_and_gradient(self, array: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        """See `Penalty`."""
        down, right = _differences(array)
        value = self.strength * float((_power(down) + _power(right)).sum(dtype=np.float64))
        factor = self.strength * (1 if np.iscomplexobj(array) else 2)
        return value, factor * _negative_divergence(down, right)


@dataclasses.dataclass(frozen=True)
class AmplitudeLimit(Projection):
    """No transmission above `most`: |T| ≤ most, the phase stays.

    Attributes
    ----------
    most
        Largest modulus of T.
    exponential
        Whether the object is u, with T = exp(i u).
    """

    most: float = 1.0
    exponential: bool = False

    def __post_init__(self) -> None:
        _positive("limit of the amplitude", self.most)

    def __call__(self, array: NDArray[Any]) -> NDArray[Any]:
        """See `Projection`."""
        if self.exponential:
            return (array.real + 1j * np.maximum(array.imag, -np.log(self.most))).astype(array.dtype, copy=False)
        return array / np.maximum(np.abs(array) / self.most, 1).astype(array.real.dtype, copy=False)


@dataclasses.dataclass(frozen=True)
class PhaseOnly(Projection):
    """An object that absorbs nothing: |T| = 1, the phase stays (0 where T is 0).

    Attributes
    ----------
    exponential
        Whether the object is u, with T = exp(i u).
    """

    exponential: bool = False

    def __call__(self, array: NDArray[Any]) -> NDArray[Any]:
        """See `Projection`."""
        if self.exponential:
            return array.real.astype(array.dtype)
        modulus = np.abs(array)
        none = modulus == 0
        return np.where(none, array.dtype.type(1), array / np.where(none, modulus.dtype.type(1), modulus))


@dataclasses.dataclass(frozen=True)
class ProbeSupport(Projection):
    """The probe is zero outside a circle about its middle, pixel (rows // 2, columns // 2).

    Attributes
    ----------
    radius
        Pixels.
    """

    radius: float
    parameters: tuple[str, ...] = ("probe", "variable_probe")

    def __post_init__(self) -> None:
        _positive("radius of the probe's support", self.radius)

    def __call__(self, array: NDArray[Any]) -> NDArray[Any]:
        """See `Projection`."""
        rows, columns = array.shape[-2:]
        return _inside(array, (rows // 2, columns // 2), self.radius)


@dataclasses.dataclass(frozen=True)
class FourierSupport(Projection):
    """The far field of the probe is zero outside a circle about frequency zero: a lens that lets nothing else pass.

    Attributes
    ----------
    radius
        Pixels of the far field.
    """

    radius: float
    parameters: tuple[str, ...] = ("probe", "variable_probe")

    def __post_init__(self) -> None:
        _positive("radius of the probe's support in the far field", self.radius)

    def __call__(self, array: NDArray[Any]) -> NDArray[Any]:
        """See `Projection`."""
        rows, columns = array.shape[-2:]
        spectrum = np.fft.fftshift(np.fft.fft2(array), (-2, -1))
        inside = _inside(spectrum, (rows // 2, columns // 2), self.radius)
        return np.fft.ifft2(np.fft.ifftshift(inside, (-2, -1))).astype(array.dtype, copy=False)


@dataclasses.dataclass(frozen=True)
class ProbePower(Projection):
    """The power of all modes of the probe together is known.

    Attributes
    ----------
    power
        Σ |P|², in the units of the counts of a frame.
    """

    power: float
    parameters: tuple[str, ...] = ("probe",)

    def __post_init__(self) -> None:
        _positive("power of the probe", self.power)

    def __call__(self, array: NDArray[Any]) -> NDArray[Any]:
        """See `Projection`."""
        found = float(_power(array).sum(dtype=np.float64))
        return array if found == 0 else array * array.real.dtype.type((self.power / found) ** 0.5)


@dataclasses.dataclass(frozen=True)
class Constraints:
    """All that is known beside the data.

    Attributes
    ----------
    penalties
        Added to the loss of the whole scan.
    projections
        Applied after each update, in this order.
    """

    penalties: tuple[Penalty, ...] = ()
    projections: tuple[Projection, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.penalties or self.projections)

    def value(self, parameters: Arrays) -> float:
        """Sum of the penalties."""
        return sum((term.value_and_gradient(parameters[term.parameter])[0] for term in self.penalties), 0.0)

    def penalized(self, parameters: Arrays, gradients: Arrays, fraction: float = 1.0) -> tuple[float, dict[str, Any]]:
        """Value of the penalties, and the gradients with theirs added.

        Parameters
        ----------
        parameters
            Where.
        gradients
            Of the data's loss, whole arrays by name; only these get a penalty's.
        fraction
            Part of the scan's frames that this loss is of: penalties count as much in small batches.
        """
        total, summed = 0.0, dict(gradients)
        for term in self.penalties:
            if term.parameter in summed:
                value, gradient = term.value_and_gradient(parameters[term.parameter])
                total += fraction * value
                summed[term.parameter] = summed[term.parameter] + fraction * gradient
        return total, summed

    def project(self, parameters: dict[str, Any], changed: tuple[str, ...] | None = None) -> None:
        """Put parameters where they may be, in place of the entries of the dict; `changed`: only these."""
        for projection in self.projections:
            for name in projection.parameters:
                if name in parameters and (changed is None or name in changed):
                    parameters[name] = projection(parameters[name])


def _differences(array: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """To the next row and column, zero at the last."""
    down, right = np.zeros_like(array), np.zeros_like(array)
    down[..., :-1, :] = array[..., 1:, :] - array[..., :-1, :]
    right[..., :-1] = array[..., 1:] - array[..., :-1]
    return down, right


def _negative_divergence(down: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """The adjoint of `_differences`."""
    out = -(down + right)
    out[..., 1:, :] += down[..., :-1, :]
    out[..., 1:] += right[..., :-1]
    return out


def _power(array: NDArray[Any]) -> NDArray[Any]:
    return array.real**2 + array.imag**2


def _inside(array: NDArray[Any], middle: tuple[float, float], radius: float) -> NDArray[Any]:
    """The array with zeros outside a circle."""
    xp = array_module(array)
    rows, columns = (xp.arange(size) - center for size, center in zip(array.shape[-2:], middle))
    return array * (rows[:, None] ** 2 + columns**2 <= radius**2).astype(array.real.dtype)


def _positive(what: str, value: float, zero: bool = False) -> None:
    if not np.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise UserError(f"the {what} is a {'number from 0' if zero else 'positive number'}; got {value}")
