"""What all solvers of joint ptycho-tomography are: functions on a slab of the volume, and one on sums over slabs.

A run goes through passes. In each, a slab first takes over what the sums of the last pass decided (`prepare`), makes
the images of its rows (`images`: transmissions, one for each angle), meets the frames with them, takes in the
derivatives (`gather`), and ends the pass (`absorb`), which gives sums; their tree sum goes into what all slabs share
(`advance`, once). Only borders of images, derivatives of borders and these sums move between slabs. Which slabs there
are does not depend on the workers, so neither do the bits.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dtomo.ptychotomo.model import JointModel

Local = dict[str, Any]
"""Arrays of a slab by name; ``"volume"`` (z, y, x) complex is one of them. They may be changed in place."""

Common = dict[str, Any]
"""What all slabs share: ``"parameters"`` (probe, shifts, … by name), ``"phase"``, and what else the engine keeps."""


@dataclasses.dataclass(frozen=True)
class SlabPlace:
    """Where a slab lies in the volume.

    Attributes
    ----------
    index
        Number of the slab.
    start, stop
        Rows of the volume, which are rows of all images.
    rows
        Of the whole volume.
    """

    index: int
    start: int
    stop: int
    rows: int

    @property
    def height(self) -> int:
        """Rows of the slab."""
        return self.stop - self.start


class JointEngine(abc.ABC):
    """A solver for one model; a value that is pickled to the workers.

    Attributes
    ----------
    model
        Of projections, probes and detector.
    subsets
        Ordered subsets of the angles: an epoch is a step for each of them.
    planes
        Planes of the volume of each neighbour that `absorb` is given (regularisers in 3-D).
    prepared, gathered
        Names of the slab's arrays that `prepare` and `gather` change; `absorb` may change all. What is not changed is
        not written back where slabs lie in files.
    """

    model: "JointModel"
    subsets: int = 1
    planes: int = 0
    prepared: ClassVar[tuple[str, ...]] = ()
    gathered: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def begin_slab(self, place: SlabPlace, volume: NDArray[Any]) -> Local:
        """The slab's arrays before the first pass; `volume` is the slab's own copy."""

    @abc.abstractmethod
    def begin_common(self, parameters: Mapping[str, Any]) -> Common:
        """What slabs share before the first pass; `parameters` are all but the volume."""

    def wanted(self, common: Common) -> tuple[str, ...]:
        """What the present pass derives the loss by: "images", and names of parameters; nothing: the loss alone."""
        return ("images", "probe")

    def more(self, common: Common) -> bool:
        """After `advance`: whether the same angles are to be met again before the step is over."""
        return False

    @abc.abstractmethod
    def prepare(self, place: SlabPlace, local: Local, common: Common) -> None:
        """Take over what the last `advance` decided."""

    def point(self, place: SlabPlace, local: Local, common: Common, rows: slice) -> NDArray[Any]:
        """Rows of the volume ``(z, y, x)`` that the present pass is about."""
        return local["volume"][rows]

    def images(
        self, place: SlabPlace, local: Local, common: Common, angles: NDArray[np.int64], rows: slice
    ) -> NDArray[Any]:
        """Transmissions ``(angle, slice, row, column)`` of some angles and some of the slab's rows (slab's numbers)."""
        return self.model.transmissions(self.point(place, local, common, rows), angles)

    @abc.abstractmethod
    def gather(
        self,
        place: SlabPlace,
        local: Local,
        common: Common,
        angles: NDArray[np.int64],
        rows: slice,
        images: NDArray[Any],
        derivatives: NDArray[Any],
    ) -> None:
        """Take in ∂L/∂T̄ of some angles and rows, at the images that `images` gave for them.

        Called for the slab's rows, and once more for those at its borders which frames of the neighbours see: what is
        taken in is added.
        """

    @abc.abstractmethod
    def absorb(
        self,
        place: SlabPlace,
        local: Local,
        common: Common,
        above: NDArray[Any] | None,
        below: NDArray[Any] | None,
    ) -> dict[str, Any]:
        """End the pass on a slab, when all derivatives are in; sums for `advance` (numbers, arrays, dicts of them).

        Parameters
        ----------
        place, local, common
            The slab's.
        above, below
            The last `planes` planes of the volume of the slab before, as they were before this pass ended, and the
            first ones of the slab after; None at the ends of the volume.
        """

    @abc.abstractmethod
    def advance(self, common: Common, sums: Mapping[str, Any]) -> Common:
        """What slabs share after the pass.

        Parameters
        ----------
        common
            As it was; its arrays may be changed in place.
        sums
            ``"loss"``, ``"count"``, ``"losses"`` ``(angle,)`` and ``"gradients"`` (by parameter) of all frames of the
            pass; under ``"slabs"`` the sum of what `absorb` gave; ``"angles"``: those of the pass, and ``"fraction"``:
            which part of all they are.
        """

    def volume(self, place: SlabPlace, local: Local, common: Common) -> NDArray[Any]:
        """The slab of the result, ``(z, y, x)``."""
        return local["volume"]

    def parameters(self, common: Common) -> dict[str, Any]:
        """The other results."""
        return dict(common["parameters"])
