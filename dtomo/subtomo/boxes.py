"""Boxes of particles: in files of their own, in one store, or where they lie in their tomograms."""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io import open_volume
from dtomo.io.particles import Particles

STORE = ".zarr:"
"""Between the name of a store of boxes and the number of a particle in it: ``particles.zarr:17``."""


LEAST, MOST = 1e-12, 1e12
"""Spread and size of values that single precision can transform and square."""
LOOKED_AT = 64
"""Files whose size is looked at to find that of a list's boxes."""


class BrokenBoxError(UserError):
    """A box that cannot be read or used; the particle is left out."""


@dataclasses.dataclass(frozen=True)
class Boxes:
    """Where the boxes of the particles of a list lie; small, and any process can read.

    Attributes
    ----------
    files
        Of each particle: a volume, or ``STORE.zarr:NUMBER``; empty if they are cut from tomograms.
    size
        Voxels along a side.
    tomograms
        Volumes, by number.
    tomogram_of
        Number of each particle's tomogram.
    corners
        Voxel of the tomogram that is voxel [0, 0, 0] of each box, ``(z, y, x)``.
    """

    files: tuple[str, ...]
    size: int
    tomograms: tuple[str, ...] = ()
    tomogram_of: tuple[int, ...] = ()
    corners: tuple[tuple[int, int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.files) or len(self.corners)

    def read(self, number: int) -> NDArray[np.float32]:
        """The box ``(z, y, x)`` of a particle, as it is stored but for its dtype.

        Raises
        ------
        BrokenBoxError
            A file that is missing, damaged or of another size, a box that leaves its tomogram, values that are no
            real and finite numbers, one value everywhere, or values beyond single precision.
        """
        try:
            box = self._cut(number) if self.corners else _read(self.files[number])
        except BrokenBoxError:
            raise
        except (ValueError, RuntimeError, OSError) as error:  # decoders of stores raise the first two
            raise BrokenBoxError(f"{self.name(number)} cannot be read ({error})") from error
        if box.shape != (self.size,) * 3:
            raise BrokenBoxError(f"{self.name(number)} has {box.shape} voxels; {self.size}³ were expected")
        values = real_values(box, self.name(number))
        if values.max() - values.min() < LEAST:
            raise BrokenBoxError(f"{self.name(number)} holds one value everywhere")
        return values

    def name(self, number: int) -> str:
        """For messages."""
        if self.corners:
            return f"particle {number} in {self.tomograms[self.tomogram_of[number]]}"
        return self.files[number]

    def missing(self) -> list[int]:
        """Numbers of the particles whose file is not there, or whose box leaves its tomogram; nothing is read."""
        if not self.corners:
            return [k for k, name in enumerate(self.files) if not Path(_store(name)[0]).exists()]
        shapes = [open_volume(path).shape for path in self.tomograms]
        return [
            k
            for k, corner in enumerate(self.corners)
            if any(
                first < 0 or first + self.size > length for first, length in zip(corner, shapes[self.tomogram_of[k]])
            )
        ]

    def _cut(self, number: int) -> NDArray[np.generic]:
        z, y, x = self.corners[number]
        volume, size = open_volume(self.tomograms[self.tomogram_of[number]]), self.size
        spans = [slice(first, first + size) for first in (z, y, x)]
        if any(span.start < 0 or span.stop > length for span, length in zip(spans, volume.shape)):
            raise BrokenBoxError(f"{self.name(number)}: the box leaves the tomogram of {volume.shape} voxels")
        return volume.source.read(*spans)


def boxes_of_files(particles: Particles, folder: Path) -> Boxes:
    """Boxes in files; names that are not absolute are relative to `folder`, where the list lies.

    Raises
    ------
    UserError
        Particles without files, or none that can be read.
    """
    files = []
    for number, name in enumerate(particles.files):
        if not name:
            raise UserError(
                f"particle {number} of the list names no file; give --tomograms to cut boxes from, or files"
            )
        files.append(_found(name, folder))
    name, shape = _usual_shape(files)
    if len(set(shape)) != 1:
        raise UserError(f"{name} has {shape} voxels; boxes of particles are cubes")
    return Boxes(tuple(files), shape[0])


def _usual_shape(files: list[str]) -> tuple[str, tuple[int, ...]]:
    """The shape that most of the files have, the first of those alike, and a file that has it; only some are opened."""
    found: dict[str, tuple[int, ...]] = {}
    some = files[:: max(1, len(files) // LOOKED_AT)]
    for number, name in enumerate([*some, *files]):
        if found and number >= len(some):
            break
        with contextlib.suppress(ValueError, RuntimeError, OSError):  # it is left out when particles are read
            found[name] = _shape(name)
    if not found:
        raise UserError(
            f"none of the {len(files)} files of the list can be read, the first is {files[0] if files else ''}"
        )
    usual = Counter(found.values()).most_common(1)[0][0]
    return next(name for name, shape in found.items() if shape == usual), usual


def real_values(box: NDArray[np.generic], name: str) -> NDArray[np.float32]:
    """A volume as float32, in one piece.

    Raises
    ------
    BrokenBoxError
        Values that are complex, no finite numbers, or too large to be transformed in single precision.
    """
    if np.iscomplexobj(box):
        raise BrokenBoxError(f"{name} holds complex values; real ones were expected")
    values: NDArray[np.float32] = np.ascontiguousarray(box, np.float32)
    if not np.isfinite(values).all():
        raise BrokenBoxError(f"{name} holds values that are no finite numbers")
    largest = max(values.max(), -values.min())
    if largest > MOST:
        raise BrokenBoxError(f"{name} holds values up to {largest:.3g}, more than {MOST:g}; scale it")
    return values


def boxes_in_tomograms(particles: Particles, tomograms: dict[str, str], size: int) -> tuple[Boxes, Particles]:
    """Boxes about the positions of a list, and the list with what positions are off whole voxels in its shifts.

    Parameters
    ----------
    particles
        With positions, in voxels of the tomograms.
    tomograms
        Volume of each name in the list; ``{"": path}`` for all.
    size
        Voxels along a side of a box.

    Raises
    ------
    UserError
        No positions, or a tomogram that is not given.
    """
    if particles.positions is None:
        raise UserError("the list has no positions of its particles; they are needed to cut boxes from tomograms")
    numbers: dict[str, int] = {}
    numbers_of = []
    for name in particles.tomograms:
        path = tomograms.get(name, tomograms.get(""))
        if path is None:
            raise UserError(f"the list has particles of the tomogram {name!r}; say where it lies with --tomograms")
        numbers_of.append(numbers.setdefault(path, len(numbers)))
    nearest = np.rint(particles.positions).astype(np.int64)
    corners = nearest[:, ::-1] - size // 2
    boxes = Boxes((), size, tuple(numbers), tuple(numbers_of), tuple(tuple(map(int, corner)) for corner in corners))  # type: ignore[misc]
    moved = dataclasses.replace(
        particles, shifts=particles.shifts + particles.positions - nearest, positions=nearest.astype(np.float64)
    )
    return boxes, moved


def read_weights(path: str, size: int) -> NDArray[np.float32]:
    """CTF² of a particle in the order of `numpy.fft.rfftn` ``(z, y, x // 2 + 1)``.

    A file of half a transform (RELION's) has frequency zero at [0, 0, 0]; one of a whole box has it in the middle.

    Raises
    ------
    BrokenBoxError
        Another shape.
    """
    try:
        found = real_values(_read(path), path)
    except (ValueError, RuntimeError, OSError) as error:
        raise BrokenBoxError(str(error)) from error
    half = size, size, size // 2 + 1
    if found.shape == (size,) * 3:
        found = np.fft.ifftshift(found)[:, :, : half[2]]
    if found.shape != half:
        raise BrokenBoxError(f"{path} has shape {found.shape}; weights of a box of {size}³ voxels were expected")
    return np.ascontiguousarray(found)


def _read(name: str) -> NDArray[np.generic]:
    path, number = _store(name)
    if number is None:
        return open_volume(path).source.read(slice(None))
    import zarr

    store = zarr.open_array(path, mode="r")
    if not 0 <= number < store.shape[0]:
        raise BrokenBoxError(f"{path} holds {store.shape[0]} particles, there is no particle {number}")
    return np.asarray(store[number])


def _shape(name: str) -> tuple[int, ...]:
    """Of a box; nothing but a header is read."""
    path, number = _store(name)
    if number is None:
        return tuple(open_volume(path).shape)
    import zarr

    return tuple(zarr.open_array(path, mode="r").shape[1:])


def _store(name: str) -> tuple[str, int | None]:
    path, found, number = name.rpartition(STORE)
    if not found or not number.isdigit():
        return name, None
    return path + STORE[:-1], int(number)


def _found(name: str, folder: Path) -> str:
    """An absolute name: as it stands, else from the folder of the list or one of those above it that has the file."""
    path, number = _store(name)
    places: Sequence[Path] = (folder, *list(folder.parents)[:3])
    for place in () if Path(path).is_absolute() else places:
        if (place / path).exists():
            path = str(place / path)
            break
    else:
        path = str(folder / path)
    return path if number is None else f"{path}:{number}"
