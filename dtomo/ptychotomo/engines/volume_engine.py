"""What solvers share whose images are exp(i A v): the gradient of the volume, what is refined from when on, bounds."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, empty_aligned
from dtomo.errors import UserError
from dtomo.ptychotomo.constraints import VolumeConstraints
from dtomo.ptychotomo.engine import Common, JointEngine, Local, SlabPlace

if TYPE_CHECKING:
    from dtomo.ptychotomo.model import JointModel

REFINED = ("volume", "probe", "shifts", "ramps", "scale", "background")

CHUNK = 64
"""Rows of the volume that derivatives are projected back to at a time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class VolumeEngine(JointEngine):
    """A solver that follows gradients of the volume.

    Attributes
    ----------
    refine
        Names among `REFINED`.
    start
        Epoch from which on something is refined, by name; default 0.
    constraints
        Of the volume.
    reach
        Pixels that shifts may go from where they began.

    Raises
    ------
    UserError
        Names that nothing has, or numbers out of range.
    """

    model: "JointModel"
    refine: tuple[str, ...] = ("volume", "probe")
    start: Mapping[str, int] = dataclasses.field(default_factory=dict)
    subsets: int = 1
    constraints: VolumeConstraints = dataclasses.field(default_factory=VolumeConstraints)
    reach: float = 8.0
    planes: int = dataclasses.field(init=False)

    prepared: ClassVar[tuple[str, ...]] = ("gradient",)
    gathered: ClassVar[tuple[str, ...]] = ("gradient",)
    arrays: ClassVar[tuple[tuple[str, type], ...]] = (("gradient", np.complex64),)
    """What a slab holds beside the volume, all of its shape."""
    image_arrays: ClassVar[tuple[tuple[str, type], ...]] = ()
    """What it holds of the shape of the images of all angles."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "planes", self.constraints.planes)
        for name in (*self.refine, *self.start):
            if name not in REFINED:
                raise UserError(f"{name} is not refined; choose among {', '.join(REFINED)}")
        if not self.refine:
            raise UserError("nothing is to be refined; name one parameter at least, as volume")
        if self.subsets < 1 or self.subsets > self.model.angles:
            raise UserError(f"there are from 1 to {self.model.angles} subsets of the angles; got {self.subsets}")

    @classmethod
    def bytes_per_voxel(cls, total_variation: bool = False) -> int:
        """Of the volume and all that a slab holds of its shape, with a total variation or without."""
        return 8 + sum(np.dtype(dtype).itemsize for _, dtype in cls.arrays)

    @classmethod
    def bytes_per_pixel(cls) -> int:
        """Of all that a slab holds of the shape of the images, for a pixel at an angle."""
        return sum(np.dtype(dtype).itemsize for _, dtype in cls.image_arrays)

    def begin_slab(self, place: SlabPlace, volume: NDArray[Any]) -> Local:
        """The volume with z innermost in memory, and room of its shape."""
        local = {"volume": z_innermost(volume)}
        for name, dtype in self.arrays:
            local[name] = zeros_like(local["volume"], dtype)
        self.constraints.project(place, local["volume"])
        return local

    def begin_common(self, parameters: Mapping[str, Any]) -> Common:
        """The parameters, and how far the run has come in epochs."""
        missing = [name for name in self.refine if name != "volume" and name not in parameters]
        if missing:
            raise UserError(f"{missing[0]} is to be refined but has no first guess; give one, or do not refine it")
        common: Common = {"parameters": dict(parameters), "seen": 0.0}
        if "shifts" in self.refine:
            common["first_shifts"] = np.array(parameters["shifts"])
        return common

    def refined(self, common: Common) -> tuple[str, ...]:
        """Names of what is refined at present."""
        epoch = self.epoch(common)
        return tuple(name for name in self.refine if epoch >= self.start.get(name, 0))

    def epoch(self, common: Common) -> int:
        """Number of the present epoch."""
        return int(common["seen"] + 1e-6)

    def wanted(self, common: Common) -> tuple[str, ...]:
        """Of what is refined."""
        return tuple("images" if name == "volume" else name for name in self.refined(common))

    def prepare(self, place: SlabPlace, local: Local, common: Common) -> None:
        """An empty gradient."""
        local["gradient"][...] = 0

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
        """Project back some rows at a time, and add."""
        for first in range(rows.start, rows.stop, CHUNK):
            last = min(first + CHUNK, rows.stop)
            part = slice(first - rows.start, last - rows.start)
            found = self.model.derivative(images[:, :, part], derivatives[:, :, part], angles)
            local["gradient"][first:last] += found

    def seen(self, common: Common, sums: Mapping[str, Any]) -> None:
        """So much more of an epoch is done."""
        common["seen"] = float(common["seen"]) + float(sums["fraction"])

    def bounded(self, common: Common) -> None:
        """Shifts within their reach."""
        if "first_shifts" in common:
            shifts, first = common["parameters"]["shifts"], common["first_shifts"]
            common["parameters"]["shifts"] = np.clip(shifts, first - self.reach, first + self.reach)


def z_innermost(volume: NDArray[Any]) -> NDArray[Any]:
    """A volume ``(z, y, x)``, complex64, with z innermost in memory; a copy where it lies otherwise."""
    inside = np.moveaxis(volume, 0, -1)
    xp = array_module(volume)
    return np.moveaxis(xp.ascontiguousarray(inside, np.complex64), -1, 0)


def zeros_like(volume: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Of the shape and layout of a volume with z innermost."""
    slices, height, width = volume.shape
    out = empty_aligned((height, width, slices), dtype, array_module(volume))
    out[...] = 0
    return np.moveaxis(out, -1, 0)
