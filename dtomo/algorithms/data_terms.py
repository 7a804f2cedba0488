"""How residuals count: least squares, and terms that outliers do not rule; weights of photon counts."""

import abc
import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module
from dtomo.errors import UserError


class DataTerm(abc.ABC):
    """``Σ w φ(|r|)`` of residuals ``r = A x - b`` with φ ≈ ½ r² where r is small.

    A term of one's own is a subclass with `loss` and `slope`; φ'' is at most 1 everywhere, so that the step of least
    squares is right for it.

    Attributes
    ----------
    convex
        Whether φ is. Where it is not, `fista` takes plain gradient steps, which never go up.
    """

    convex: bool = True

    @abc.abstractmethod
    def loss(self, residual: NDArray[Any]) -> NDArray[np.float32]:
        """φ(|r|) of each residual, real."""

    @abc.abstractmethod
    def slope(self, residual: NDArray[Any]) -> None:
        """Put φ'(|r|) r / |r| in the place of each r."""

    def value(self, residual: NDArray[Any], weights: NDArray[Any] | None = None) -> float:
        """``Σ w φ(|r|)`` in float64."""
        loss = self.loss(residual)
        return float((loss if weights is None else loss * weights).sum(dtype=np.float64))


@dataclasses.dataclass(frozen=True)
class LeastSquares(DataTerm):
    """``½ |r|²``: noise is Gaussian, with variances of 1 / w."""

    def loss(self, residual: NDArray[Any]) -> NDArray[np.float32]:
        """See `DataTerm`."""
        return np.float32(0.5) * _squared(residual)

    def slope(self, residual: NDArray[Any]) -> None:
        """See `DataTerm`."""


@dataclasses.dataclass(frozen=True)
class Huber(DataTerm):
    """``½ |r|²`` up to `width`, beyond it ``width (|r| - width / 2)``: outliers pull no harder than that.

    Parameters
    ----------
    width
        In units of the residuals: one to two standard deviations of good data.

    Raises
    ------
    UserError
        A width that is not positive.

    Notes
    -----
    P. J. Huber, Ann. Math. Stat. 35, 73-101 (1964).
    """

    width: float

    def __post_init__(self) -> None:
        if not 0 < self.width < np.inf:
            raise UserError(f"the width of Huber's term is above 0, in units of the residuals; got {self.width}")

    def loss(self, residual: NDArray[Any]) -> NDArray[np.float32]:
        """See `DataTerm`."""
        size, width = np.abs(residual), np.float32(self.width)
        inside = np.minimum(size, width)
        return inside * (size - np.float32(0.5) * inside)

    def slope(self, residual: NDArray[Any]) -> None:
        """See `DataTerm`."""
        if np.iscomplexobj(residual):
            residual *= np.float32(self.width) / np.maximum(np.abs(residual), np.float32(self.width))
        else:
            np.clip(residual, -np.float32(self.width), np.float32(self.width), out=residual)


@dataclasses.dataclass(frozen=True)
class StudentT(DataTerm):
    """``½ c² log(1 + |r|² / c²)`` with ``c² = freedom · scale²``: far outliers have no pull at all.

    The negative logarithm of Student's t distribution, up to the factor ``(freedom + 1) scale² / freedom``. It is not
    convex: begin from a solution of `Huber` or of least squares.

    Parameters
    ----------
    scale
        Standard deviation of good data, in units of the residuals.
    freedom
        Degrees of freedom; the fewer, the more outliers are expected.

    Raises
    ------
    UserError
        Numbers that are not positive.

    Notes
    -----
    K. L. Lange, R. J. A. Little and J. M. G. Taylor, J. Am. Stat. Assoc. 84, 881-896 (1989).
    """

    scale: float
    freedom: float = 4.0
    convex = False

    def __post_init__(self) -> None:
        if not (0 < self.scale < np.inf and 0 < self.freedom < np.inf):
            raise UserError(f"scale and freedom of Student's t are above 0; got {self.scale} and {self.freedom}")

    @property
    def _square(self) -> np.float32:
        return np.float32(self.freedom * self.scale**2)

    def loss(self, residual: NDArray[Any]) -> NDArray[np.float32]:
        """See `DataTerm`."""
        return np.float32(0.5) * self._square * np.log1p(_squared(residual) / self._square)

    def slope(self, residual: NDArray[Any]) -> None:
        """See `DataTerm`."""
        residual /= 1 + _squared(residual) / self._square


def photon_weights(counts: NDArray[Any], readout: float = 0.0) -> NDArray[np.float32]:
    """1 / variance of line integrals ``-log(counts / flat)`` of so many photons: about `counts` itself.

    Parameters
    ----------
    counts
        Photons in each pixel (not detector units: divide by the gain), of any shape.
    readout
        Standard deviation of the detector's noise, in photons.

    Returns
    -------
    ndarray
        float32 of that shape: ``counts² / (counts + readout²)``, and 0 where no photon (or nothing finite) came.

    Raises
    ------
    UserError
        Noise that is negative or not finite.

    Notes
    -----
    K. Sauer and C. Bouman, IEEE Trans. Signal Process. 41, 534-548 (1993): the second order of the Poisson likelihood
    about the data; with noise of the readout by propagation of its variance through the logarithm.
    """
    if not 0 <= readout < np.inf:
        raise UserError(f"the noise of the readout is a standard deviation in photons from 0; got {readout}")
    xp = array_module(counts)
    values = xp.asarray(counts, dtype=np.float32)
    good = xp.isfinite(values) & (values > 0)
    photons = xp.where(good, values, np.float32(1))
    return xp.where(good, photons * (photons / (photons + np.float32(readout) ** 2)), np.float32(0))


def _squared(values: NDArray[Any]) -> NDArray[Any]:
    return values.real**2 + values.imag**2 if np.iscomplexobj(values) else values * values
