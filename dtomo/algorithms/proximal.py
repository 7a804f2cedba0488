"""What is known of a volume, as proximal maps: bounds, total variation, wavelets, nuclear norm, denoisers.

A prior of one's own is a subclass of `Proximal` with one function. Sparse voxels, whole::

    class Sparse(Proximal):
        separable = True

        def __init__(self, strength):
            self.strength = strength

        def apply(self, x, step):
            return np.sign(x) * np.maximum(abs(x) - self.strength * step, 0)
"""

import abc
import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module
from dtomo.device import to_host
from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.operators import Differences, LinearOperator, Masked


class Proximal(abc.ABC):
    """A function g of volumes by its proximal map.

    Attributes
    ----------
    separable
        Whether the map of a slice ``(y, x)`` depends on that slice alone.
    keeps_bounds
        Whether the map, once bound to bounds and a mask, keeps them by itself.
    """

    separable: bool = False
    keeps_bounds: bool = False

    @abc.abstractmethod
    def apply(self, x: NDArray[Any], step: Any) -> NDArray[Any]:
        """The u with the least ``½ ‖u - x‖² + step g(u)``.

        Parameters
        ----------
        x
            ``(z, y, x)``, float32 or complex64; may be written over.
        step
            A number, or one for each slice, ``(slices, 1, 1)``, where the prior is separable.

        Returns
        -------
        ndarray
            Of the shape and dtype of `x`.
        """

    def value(self, x: NDArray[Any]) -> float | None:
        """g(x), where there is such a number."""
        return None

    def bind(self, operator: LinearOperator, bounds: "Bounds") -> "Proximal":
        """A copy for one problem: its volumes are those that the operator takes, within these bounds."""
        return copy.copy(self)

    def kept(self) -> dict[str, Any]:
        """Arrays that the next application begins from; what a checkpoint holds of the prior."""
        return {}

    def go_on_from(self, kept: dict[str, Any]) -> None:
        """Take them from a checkpoint.

        Raises
        ------
        UserError
            It is of another prior.
        """
        if kept:
            raise UserError(
                f"the checkpoint holds {', '.join(kept)} of another prior than {type(self).__name__}; "
                "remove it to begin anew"
            )


def check_prior(prior: Any) -> None:
    """Refuse what is no prior."""
    if prior is not None and not isinstance(prior, Proximal):
        hint = "; wrap a function in dtomo.algorithms.Denoiser" if callable(prior) else ""
        raise UserError(f"`prior` is a dtomo.algorithms.Proximal, not {type(prior).__name__}{hint}")


def check_strength(strength: float, what: str) -> None:
    """Refuse a strength that is none."""
    if not 0 <= strength < np.inf:
        raise UserError(f"the strength of {what} is a number from 0; got {strength}")


class Nothing(Proximal):
    """g = 0."""

    separable = True

    def apply(self, x: NDArray[Any], step: Any) -> NDArray[Any]:
        """The same."""
        return x

    def value(self, x: NDArray[Any]) -> float:
        """0"""
        return 0.0


@dataclasses.dataclass(frozen=True)
class Bounds(Proximal):
    """g is 0 between the bounds and infinite elsewhere; ``Bounds(0)``: nothing negative. Real volumes only."""

    lower: float | None = None
    upper: float | None = None
    separable = True

    def apply(self, x: NDArray[Any], step: Any) -> NDArray[Any]:
        """Clipped, in place."""
        if (self.lower, self.upper) != (None, None):
            in_pieces(self.clip, x)
        return x

    def clip(self, part: NDArray[Any]) -> None:
        """The same of a piece."""
        if self.lower is not None:
            np.maximum(part, np.float32(self.lower), out=part)
        if self.upper is not None:
            np.minimum(part, np.float32(self.upper), out=part)

    def value(self, x: NDArray[Any]) -> float:
        """0 or infinity."""
        inside = (self.lower is None or x.min() >= self.lower) and (self.upper is None or x.max() <= self.upper)
        return 0.0 if inside else np.inf


class Support(Proximal):
    """g is 0 for volumes that are 0 where the mask is False, and infinite for others.

    Parameters
    ----------
    mask
        True where there may be something; broadcasts to the volume.
    """

    separable = True

    def __init__(self, mask: NDArray[Any]) -> None:
        self.mask = mask

    def apply(self, x: NDArray[Any], step: Any) -> NDArray[Any]:
        """0 outside, in place."""
        x *= array_module(x).asarray(self.mask, dtype=bool)
        return x

    def value(self, x: NDArray[Any]) -> float:
        """0 or infinity."""
        return np.inf if (x * ~array_module(x).asarray(self.mask, dtype=bool)).any() else 0.0


class Denoiser(Proximal):
    """Any function that takes a volume and returns a better one, in the place of a proximal map (plug and play).

    Parameters
    ----------
    function
        Takes ``(z, y, x)`` and returns the same shape: a filter, a neural network. Where `with_step` is True it takes
        the step too, and should smooth the more the larger that is.
    separable
        Whether it treats each slice by itself.
    with_step
        See `function`.

    Notes
    -----
    S. V. Venkatakrishnan, C. A. Bouman and B. Wohlberg, IEEE GlobalSIP 2013, 945-948; with proximal gradients: U. S.
    Kamilov, H. Mansour and B. Wohlberg, IEEE Signal Process. Lett. 24, 1872-1876 (2017). What comes out is where data
    and denoiser agree; it minimises something only if the denoiser is a proximal map.
    """

    def __init__(
        self, function: Callable[..., NDArray[Any]], *, separable: bool = False, with_step: bool = False
    ) -> None:
        if not callable(function):
            raise UserError(f"a denoiser is a function of a volume, not {type(function).__name__}")
        self.function, self.separable, self.with_step = function, separable, with_step

    def apply(self, x: NDArray[Any], step: Any) -> NDArray[Any]:
        """What the function returns, in the dtype and layout of `x`."""
        found = self.function(x, step) if self.with_step else self.function(x)
        xp = array_module(x)
        if np.shape(found) != x.shape:
            raise UserError(f"the denoiser returned an array of shape {np.shape(found)}, not {x.shape}")
        if np.iscomplexobj(found) and not np.iscomplexobj(x):
            raise UserError("the denoiser returned complex numbers for a real volume")
        out = xp.empty_like(x)
        out[...] = found
        return out


_MOST, _EACH = 5, 50
"""Steps on the dual field in one application of total variation, and iterations after which they are one more."""


class TotalVariation(Proximal):
    """``strength · Σ |D x|``, with D the differences along each axis by the size of a voxel, within bounds.

    Parameters
    ----------
    strength
        From 0; in units of ``A x`` times its unit of length.
    spacing
        Size of a voxel along z, y, x, in any unit; along y and x only: each slice by itself.
    kind
        "isotropic": |D x| is the length of the vector of differences at a voxel; "anisotropic": the sum of their
        magnitudes.
    inner
        Iterations for each application; they go on from where the last application ended. None: within a solver 1 in
        each of its first 50 iterations, 2 in each of the next 50, and so on up to 5; by itself 5. More of them where
        the operator does little, as in denoising.

    Raises
    ------
    UserError
        A strength or number of iterations that is none.

    Notes
    -----
    A. Beck and M. Teboulle, IEEE Trans. Image Process. 18, 2419-2434 (2009): accelerated projected gradients on the
    dual problem, with step ``1 / ‖D‖²``, ``‖D‖² ≤ 4 Σ 1 / spacing²``. Proximal gradients with momentum converge as
    fast with maps that are not exact, as long as their errors fall: M. Schmidt, N. Le Roux and F. Bach, NIPS 2011,
    1458-1466. Here the field settles as the solution does, and the steps become more (measured: at any number of
    iterations up to 400 the objective is as low as with 5 steps in each, to 1 part in 10000 of itself).
    """

    keeps_bounds = True

    def __init__(
        self,
        strength: float,
        spacing: tuple[float, ...] = (1.0, 1.0, 1.0),
        kind: Literal["isotropic", "anisotropic"] = "isotropic",
        inner: int | None = None,
    ) -> None:
        check_strength(strength, "the total variation")
        if kind not in ("isotropic", "anisotropic"):
            raise UserError(f"the total variation is isotropic or anisotropic, not {kind!r}")
        if inner is not None and (inner < 1 or inner != int(inner)):
            raise UserError(f"the inner iterations of the total variation are a whole number from 1; got {inner}")
        self.strength, self.spacing, self.kind, self.inner = strength, tuple(spacing), kind, inner
        self.applied: int | None = None
        self.bounds, self.mask = Bounds(), None
        self.field: NDArray[Any] | None = None
        self.differences: Differences | None = None

    @property
    def separable(self) -> bool:  # type: ignore[override]
        """Whether differences are taken within slices only."""
        return len(self.spacing) == 2

    def bind(self, operator: LinearOperator, bounds: Bounds) -> "TotalVariation":
        """See `Proximal`."""
        if len(operator.shape_in) != 3:
            raise UserError(f"total variation is of volumes (z, y, x); the operator takes {operator.shape_in}")
        bound = copy.copy(self)
        bound.bounds, bound.field, bound.differences = bounds, None, operator.differences(self.spacing)
        bound.applied = 0
        bound.mask = operator.mask if isinstance(operator, Masked) else None
        return bound

    def kept(self) -> dict[str, Any]:
        """The dual variable, and how often the map was applied."""
        return {} if self.field is None else {"field": self.field, "applied": self.applied}

    def go_on_from(self, kept: dict[str, Any]) -> None:
        """See `Proximal`."""
        self.field, self.applied = kept.get("field"), int(kept.get("applied", 0))

    def value(self, x: NDArray[Any]) -> float:
        """See `Proximal`."""
        field = self._operator(x).forward(x)
        squares = _squared(field)
        lengths = np.sqrt(squares.sum(0) if self.kind == "isotropic" else squares)
        return self.strength * float(lengths.sum(dtype=np.float64))

    def apply(self, x: NDArray[Any], step: Any) -> NDArray[Any]:
        """See `Proximal`."""
        strengths = self.strength * np.asarray(to_host(step), np.float64).reshape(-1)
        factor = per_slice(x, self.strength, step)
        operator = self._operator(x)
        if self.field is None:
            self.field = operator.field(x)
        steps = self._steps()
        field, theta = self.field, 1.0
        ahead = field if steps == 1 else field.copy(order="K")
        upward = _inverse(strengths * operator.step_bound)
        for number in range(steps):
            primal = self._primal(x, ahead, factor)
            following = (1 + math.sqrt(1 + 4 * theta**2)) / 2
            momentum = (theta - 1) / following if number < steps - 1 else 0.0
            field, ahead = operator.ascend(
                field, ahead, primal, upward, limit=1.0, momentum=momentum, isotropic=self.kind == "isotropic"
            )
            theta = following
        self.field = field
        return self._primal(x, field, factor)

    def _steps(self) -> int:
        """Of this application."""
        if self.inner is not None:
            return int(self.inner)
        if self.applied is None:
            return _MOST
        self.applied += 1
        return min(_MOST, 1 + (self.applied - 1) // _EACH)

    def _primal(self, x: NDArray[Any], field: NDArray[Any], factor: Any) -> NDArray[Any]:
        """``x - factor Dᴴ field``, within bounds."""
        out = self._operator(x).relaxed(x, field, factor, (self.bounds.lower, self.bounds.upper))
        if self.mask is not None:
            in_pieces(lambda o, m: np.multiply(o, m, out=o), out, self.mask)
        return out

    def _operator(self, x: NDArray[Any]) -> Differences:
        if self.differences is None or self.differences.shape_in != x.shape or self.differences.dtype != x.dtype:
            self.differences = Differences(x.shape, self.spacing, x.dtype, array_module(x) is not np)
        return self.differences


def per_slice(x: NDArray[Any], strength: float, step: Any) -> Any:
    """``strength step``: a number, or one for each slice ``(slices, 1, 1)`` where the volume lies, float32."""
    numbers = strength * np.asarray(to_host(step), np.float64).reshape(-1)
    if numbers.size == 1:
        return np.float32(numbers[0])
    return array_module(x).asarray(numbers.astype(np.float32).reshape(-1, *(1,) * (x.ndim - 1)))


def _inverse(values: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.where(values > 0, 1 / np.where(values > 0, values, 1), 0).astype(np.float32)


def _squared(values: NDArray[Any]) -> NDArray[Any]:
    return values.real**2 + values.imag**2 if np.iscomplexobj(values) else values * values
