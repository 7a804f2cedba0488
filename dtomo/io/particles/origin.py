"""Where a particle list comes from: what its writer needs to leave untouched what nobody changed."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.particles.particles import Particles

Size = tuple[float, float, float]


@dataclasses.dataclass(frozen=True)
class ReadingOptions:
    """What a file does not say itself; see `dtomo.io.particles.read_particles`."""

    pixel_size: float | None = None
    binning: float | None = None
    tomogram_sizes: Size | Mapping[str, Size] | None = None
    center_offset: float = 0.0
    pytom_origin_sign: bool = False
    frame: str = "tomogram"
    particle_names: str | None = None

    def __post_init__(self) -> None:
        for name in ("pixel_size", "binning"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UserError(f"the {name.replace('_', ' ')} is a positive number, not {value}")
        check_places(self.tomogram_sizes, self.center_offset)
        if self.frame not in ("tomogram", "box"):
            raise UserError(f"orientations are those in the tomogram or in the box; got the frame {self.frame!r}")
        if self.particle_names is not None and "#" not in self.particle_names:
            raise UserError(
                f"names of particles have # where the number goes, such as particle_#####.em; got {self.particle_names}"
            )


def check_places(sizes: Size | Mapping[str, Size] | None, center_offset: float) -> None:
    """UserError unless sizes of tomograms are three positive numbers and the offset is a number."""
    if not math.isfinite(center_offset):
        raise UserError(f"the center offset is a number of voxels, such as 0 or -1, not {center_offset}")
    for size in sizes.values() if isinstance(sizes, Mapping) else [] if sizes is None else [sizes]:
        if len(size) != 3 or not all(math.isfinite(length) and length > 0 for length in size):
            raise UserError(f"the size of a tomogram is three positive numbers (x, y, z), not {tuple(size)}")


def sizes_of(sizes: Size | Mapping[str, Size] | None, tomograms: Sequence[str]) -> NDArray[np.float64]:
    """Size (x, y, z) of each particle's tomogram in unbinned voxels, ``(particle, 3)``; NaN: not known."""
    nothing = (math.nan,) * 3
    each = [(sizes.get(name, nothing) if isinstance(sizes, Mapping) else sizes or nothing) for name in tomograms]
    return np.array(each, np.float64).reshape(-1, 3)


@dataclasses.dataclass(frozen=True)
class Origin:
    """The file a list was read from.

    Attributes
    ----------
    format
        "pytom", "relion", "dynamo" or "motl".
    where
        Its path, for messages.
    content
        All of it.
    index
        Which of its particles these are.
    options
        How it was read.
    notes
        Sentences for the user: which convention was read, what is not known.
    """

    format: str
    where: str
    content: bytes
    index: tuple[int, ...]
    options: ReadingOptions
    notes: tuple[str, ...] = ()

    def selected(self, index: Sequence[int]) -> "Origin":
        """Of some of the particles."""
        return dataclasses.replace(self, index=tuple(self.index[i] for i in index))


def origin_of(particles: Particles, format: str) -> Origin | None:
    """The origin of a list, if it is of that format.

    Raises
    ------
    UserError
        It belongs to another number of particles.
    """
    origin = particles.origin
    if not isinstance(origin, Origin) or origin.format != format:
        return None
    if len(origin.index) != len(particles):
        raise UserError(
            f"the list has {len(particles)} particles, but what its file said is kept of {len(origin.index)}: "
            "take particles out with Particles.selected"
        )
    return origin


def changed(now: Any, before: Any, count: int) -> NDArray[np.bool_]:
    """Which of `count` particles have another value than before (NaN is NaN, None is None)."""
    if now is None or before is None:
        return np.full(count, now is not before)
    if isinstance(now, np.ndarray):
        same = (now == before) | ((now != now) & (before != before))
        return ~same.all(axis=tuple(range(1, same.ndim)))
    return np.array([a != b for a, b in zip(now, before, strict=True)], bool)


def numbered(pattern: str, number: int) -> str:
    """A name with `number` in place of the first run of ``#``, with at least as many digits."""
    start = pattern.index("#")
    digits = len(pattern[start:]) - len(pattern[start:].lstrip("#"))
    return f"{pattern[:start]}{number:0{digits}d}{pattern[start + digits :]}"
