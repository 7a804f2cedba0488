"""What is known of the volume beside the data: total variation, signs of δ and β, where there is something at all."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module
from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.kernels.differences import total_variation, total_variation_gradient
from dtomo.ptychotomo.engine import SlabPlace

UNIT = (1.0, 1.0, 1.0)


@dataclasses.dataclass(frozen=True)
class VolumeConstraints:
    """Penalties and projections of the volume v = k Δ (-δ + iβ).

    Attributes
    ----------
    total_variation
        Strength of Σ √(|∂z|² + |∂y|² + |∂x|² + smoothing²), of complex differences, in units of the loss (counts where
        it is that of amplitudes); 0: none. L. I. Rudin, S. Osher and E. Fatemi, Physica D 60 (1992) 259, smoothed.
    smoothing
        Differences below it are not edges, radians per voxel.
    signs
        δ and β are not negative: Re v ≤ 0 and Im v ≥ 0.
    support
        Radius of the cylinder about the axis, in voxels, outside of which there is nothing; None: everywhere.

    Raises
    ------
    UserError
        Numbers out of range.
    """

    total_variation: float = 0.0
    smoothing: float = 1e-4
    signs: bool = False
    support: float | None = None

    def __post_init__(self) -> None:
        if not (np.isfinite(self.total_variation) and self.total_variation >= 0 and self.smoothing > 0):
            raise UserError(
                "the strength of the total variation is from 0 and its smoothing above 0; got "
                f"{self.total_variation} and {self.smoothing}"
            )
        if self.support is not None and not self.support > 0:
            raise UserError(f"the support is a radius above 0 voxels; got {self.support}")

    @property
    def planes(self) -> int:
        """Planes of the neighbours that `penalize` needs."""
        return 1 if self.total_variation else 0

    def penalize(
        self,
        volume: NDArray[Any],
        gradient: NDArray[Any],
        above: NDArray[Any] | None,
        below: NDArray[Any] | None,
        part: float = 1.0,
    ) -> float:
        """Add ∂penalty/∂v̄ of a slab to a gradient ``(z, y, x)``, and return the slab's part of the penalty.

        Parameters
        ----------
        volume, gradient
            ``(z, y, x)``, complex.
        above, below
            Planes ``(1, y, x)`` of the volume before and after the slab; None at its ends.
        part
            Of the penalty that is taken: that of the angles that the gradient is of.
        """
        if not self.total_variation:
            return 0.0
        strength = self.total_variation * part
        first, last = (None if plane is None else plane[0] for plane in (above, below))
        slope = total_variation_gradient(volume, UNIT, self.smoothing, before=first, after=last)
        factor = gradient.real.dtype.type(0.5 * strength)
        in_pieces(lambda g, s: np.add(g, factor * s, out=g), gradient, slope)
        return part * self.value(volume, below)

    def value(self, volume: NDArray[Any], below: NDArray[Any] | None) -> float:
        """The slab's part of the penalty; see `penalize`."""
        if not self.total_variation:
            return 0.0
        last = None if below is None else below[0]
        return self.total_variation * float(total_variation(volume, UNIT, self.smoothing, after=last).sum())

    def project(self, place: SlabPlace, volume: NDArray[Any]) -> None:
        """Put a slab to the nearest volume that is allowed, in place."""
        if self.signs:
            in_pieces(_signs, volume)
        if self.support is not None:
            volume *= _cylinder(volume, self.support)


def _signs(v: NDArray[Any]) -> None:
    np.minimum(v.real, 0, out=v.real)
    np.maximum(v.imag, 0, out=v.imag)


def _cylinder(volume: NDArray[Any], radius: float) -> NDArray[Any]:
    xp = array_module(volume)
    _, height, width = volume.shape
    y, x = xp.arange(height) - (height - 1) / 2, xp.arange(width) - (width - 1) / 2
    return (y[:, None] ** 2 + x**2 <= radius**2).astype(volume.real.dtype)
