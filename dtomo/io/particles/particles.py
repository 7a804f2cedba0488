"""A list of particles, whatever program it comes from."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.geometry.wedge import Wedge


@dataclasses.dataclass(eq=False)
class Particles:
    """Subtomograms with their orientations: x_particle = R (x_reference - c) + c + s, with the box center c = n // 2.

    Attributes
    ----------
    rotations
        R ``(particle, 3, 3)``, active, on (x, y, z).
    shifts
        s ``(particle, 3)``, voxels (x, y, z) of the unbinned box.
    files
        Of each subtomogram, as the list names them (relative to it, or absolute); "" where there is none.
    positions
        ``(particle, 3)``: voxels (x, y, z), from 0, of the box center in the tomogram; None: not known. The tomogram
        has the particle's voxel size; a particle whose place alone is not known has NaN.
    tomograms
        Name of each particle's tomogram; "" where there is none.
    wedges
        Of each; None: nothing is missing, or it is not known.
    weights_files
        Volumes of weights in Fourier space (CTF²) of each; "" where there is none.
    scores
        Of the last alignment, float64; NaN: none.
    halves
        1 or 2, int8; 0: not in a half yet.
    classes
        Name of each one's class; "" where there is none.
    voxel_sizes
        Ångström; NaN: not known.
    origin
        What a format needs to write the list back as it was: its own affair.
    """

    rotations: NDArray[np.float64]
    shifts: NDArray[np.float64]
    files: list[str] = dataclasses.field(default_factory=list)
    positions: NDArray[np.float64] | None = None
    tomograms: list[str] = dataclasses.field(default_factory=list)
    wedges: list[Wedge | None] = dataclasses.field(default_factory=list)
    weights_files: list[str] = dataclasses.field(default_factory=list)
    scores: NDArray[np.float64] = dataclasses.field(default_factory=lambda: np.empty(0))
    halves: NDArray[np.int8] = dataclasses.field(default_factory=lambda: np.empty(0, np.int8))
    classes: list[str] = dataclasses.field(default_factory=list)
    voxel_sizes: NDArray[np.float64] = dataclasses.field(default_factory=lambda: np.empty(0))
    origin: Any = None

    def __post_init__(self) -> None:
        count = len(self.rotations)
        if self.rotations.shape != (count, 3, 3) or self.shifts.shape != (count, 3):
            raise UserError(
                "particles have rotations of shape (particle, 3, 3) and shifts of shape (particle, 3); got "
                f"{self.rotations.shape} and {self.shifts.shape}"
            )
        for name, nothing in (
            ("files", ""),
            ("tomograms", ""),
            ("wedges", None),
            ("weights_files", ""),
            ("classes", ""),
        ):
            if not len(getattr(self, name)):
                setattr(self, name, [nothing] * count)
        for name, empty, dtype in (("scores", np.nan, float), ("halves", 0, np.int8), ("voxel_sizes", np.nan, float)):
            if not len(getattr(self, name)):
                setattr(self, name, np.full(count, empty, dtype))
        lists = ("files", "tomograms", "wedges", "weights_files", "scores", "halves", "classes", "voxel_sizes")
        for name in lists if self.positions is None else (*lists, "positions"):
            if len(getattr(self, name)) != count:
                raise UserError(f"there are {count} particles, but {len(getattr(self, name))} {name.replace('_', ' ')}")

    def __len__(self) -> int:
        return len(self.rotations)

    def selected(self, index: Iterable[int]) -> "Particles":
        """Some of the particles, in this order; their list can still be written back as it was.

        Parameters
        ----------
        index
            Whole numbers from 0, or one Boolean for each particle.
        """
        chosen = np.asarray(list(index))
        places = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.int64)
        values: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                values[field.name] = value[places]
            elif isinstance(value, list):
                values[field.name] = [value[place] for place in places.tolist()]
        origin = self.origin
        if hasattr(origin, "selected"):
            origin = origin.selected(places.tolist())
        return dataclasses.replace(self, **values, origin=origin)
