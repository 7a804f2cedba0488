"""The split of the total variation in ADMM: differences of the volume, held to w by a dual μ, w by a soft threshold.

With w = soft(∇v + μ, r) and μ' = μ + ∇v - w, μ' is ∇v + μ cut to the length r (J. J. Moreau's decomposition): μ alone
is kept. The volume sees τ |∇v' - w + μ'|², linearised about v: 2 τ Re⟨∇ᵀ(2 μ' - μ), d⟩ + 12 τ |d|² at most, as |∇|² ≤
12 (E. Esser, X. Zhang and T. F. Chan, SIAM J. Imaging Sci. 3 (2010) 1015). So it needs no planes of v', and none of μ
but the plane before the slab, which each slab follows for itself from the planes of v it is given.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, empty_aligned
from dtomo.kernels.differences import differences, negative_divergence
from dtomo.ptychotomo.engine import Local, SlabPlace

UNIT = (1.0, 1.0, 1.0)


@dataclasses.dataclass(eq=False)
class Walk:
    """Down the rows of a slab: its arrays, and z component of 2 μ' - μ of the row before."""

    local: Local
    before: NDArray[Any] | None


@dataclasses.dataclass(frozen=True)
class Edges:
    """Of a step.

    Attributes
    ----------
    weight
        τ, in units of the loss.
    radius
        r = β / 2τ, the length that μ is cut to.
    kept
        What μ is multiplied by before, where τ has changed.
    """

    weight: float
    radius: float
    kept: float = 1.0

    @staticmethod
    def begin(place: SlabPlace, volume: NDArray[Any]) -> Local:
        """μ of a slab ``(component, z, y, x)``, z innermost, and of the plane before it."""
        slices, height, width = volume.shape
        own = empty_aligned((3, height, width, slices), volume.dtype, array_module(volume))
        own[...] = 0
        found = {"edges": np.moveaxis(own, -1, 1)}
        if place.index:
            found["edges_before"] = array_module(volume).zeros((3, 1, height, width), volume.dtype)
        return found

    def walk(self, local: Local, above: NDArray[Any] | None) -> Walk:
        """Begin with the plane above the slab, as its own slab does."""
        if above is None:
            return Walk(local, None)
        now, _ = self._follow(local["edges_before"], above, local["volume"][:1])
        return Walk(local, now[0, 0])

    def step(self, walk: Walk, rows: slice, after: NDArray[Any] | None) -> tuple[NDArray[Any], float]:
        """New μ of some rows; ∇ᵀ(2 μ' - μ) there, and Σ |∇v - w|².

        Parameters
        ----------
        walk
            Rows have to come in their order.
        rows
            Of the slab.
        after
            The plane ``(1, y, x)`` of the volume after them; None where it ends.
        """
        ahead, apart = self._follow(walk.local["edges"][:, rows], walk.local["volume"][rows], after)
        pull = negative_divergence(ahead, UNIT, before=walk.before, ends=False)
        walk.before = ahead[0, -1].copy()
        return pull, apart

    def _follow(
        self, dual: NDArray[Any], volume: NDArray[Any], after: NDArray[Any] | None
    ) -> tuple[NDArray[Any], float]:
        """Change μ in place; 2 μ' - μ, and Σ |μ' - μ|²."""
        dual *= np.float32(self.kept)
        new = differences(volume, UNIT, after=None if after is None else after[0])
        new += dual
        length = np.sqrt((new.real**2 + new.imag**2).sum(0))
        new *= np.minimum(1, np.float32(self.radius) / np.maximum(length, np.float32(1e-30)))
        change = new - dual
        apart = sum(float((one.real**2 + one.imag**2).sum(dtype=np.float64)) for one in np.moveaxis(change, 1, 0))
        dual[...] = new
        new += change
        return new, apart
