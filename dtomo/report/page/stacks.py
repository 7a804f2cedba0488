"""Slices of a volume in three planes as small pictures, from the coarsest level that is large enough."""

import base64
import dataclasses
import io as memory
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, features

from dtomo.errors import UserError
from dtomo.io import Volume, open_volume
from dtomo.report.scales import bar_length, gray_range

ENOUGH = 200
"""Voxels along the longest side of a level that is large enough; half of it, where such a level is above `VOXELS`."""
VOXELS = 20_000_000
"""Voxels up to which a level is read whole; of larger ones some slices, so that about as many are kept in memory."""
STREAMED = 2**30
"""Bytes read of those, at most about."""
SIDE = 360
"""Pixels of a picture along its longest side, at most."""
BYTES = 900_000
"""Of the pictures of a plane together, about."""
_BAND = 2**26
_MOST, _LEAST = 64, 12
_QUALITY = 82


@dataclasses.dataclass(frozen=True)
class Plane:
    """Pictures of slices across one axis.

    Attributes
    ----------
    axis
        That they lie along: "z".
    sides
        Names of the upright and the level axis of a picture: ("y", "x").
    size
        Voxels of level 0 along these; what is drawn keeps their proportions.
    length
        Voxels of level 0 along `axis`.
    at
        Slice of level 0 in the middle of what each picture shows.
    step
        Length of a voxel along `axis` in µm; None if unknown.
    proportion
        Width over height of a picture as it is to be shown.
    bar
        Part of the width, and label, of a scale bar; None if lengths are unknown.
    pictures
        Addresses that hold their data (``data:image/…``).
    """

    axis: str
    sides: tuple[str, str]
    size: tuple[int, int]
    length: int
    at: tuple[int, ...]
    step: float | None
    proportion: float
    bar: tuple[float, str] | None
    pictures: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Stack:
    """A volume as the page shows it.

    Attributes
    ----------
    name, unit
        What is shown, and the unit of its values.
    planes
        xy, xz and yz; of a single slice xy alone.
    limits
        Values of black and white.
    counts, edges
        Histogram of the values that were read.
    mean, deviation, least, most
        Of these values.
    source
        What was read, in words.
    """

    name: str
    unit: str
    planes: tuple[Plane, ...]
    limits: tuple[float, float]
    counts: NDArray[np.integer]
    edges: NDArray[np.float64]
    mean: float
    deviation: float
    least: float
    most: float
    source: str


def stacks_of(path: Path | str, name: str = "volume", unit: str = "") -> list[Stack]:
    """The pictures of a volume on disk; of a complex one magnitude and phase.

    Raises
    ------
    UserError
        There is no volume at `path`, or it cannot be read.
    """
    levels = levels_of(path)
    finest, level = levels[0], _chosen(levels)
    volume = levels[level]
    array, source = _read(volume)
    shown = f"level {level} of {path.name if isinstance(path, Path) else path}" if level else "the volume itself"
    said = f"{shown}, {source}" if source else shown
    spacing = finest.voxel_size_um
    if array.dtype.kind == "c":
        parts = [(f"{name}, magnitude", np.abs(array), unit), (f"{name}, phase", np.angle(array), "rad")]
        return [_stack(part, finest.shape, spacing, title, of, said) for title, part, of in parts]
    return [_stack(array, finest.shape, spacing, name, unit, said)]


def stack_of_array(
    array: NDArray[Any],
    name: str,
    unit: str = "",
    spacing: Sequence[float] | None = None,
    axes: Sequence[str] = ("z", "y", "x"),
    *,
    flat: bool = False,
) -> Stack:
    """The pictures of an array in memory.

    Parameters
    ----------
    array
        ``(z, y, x)``, real.
    name, unit
        What it is, and the unit of its values.
    spacing
        (z, y, x) in µm; None if unknown.
    axes
        Names of the axes.
    flat
        Leave out planes that cut the first axis.
    """
    plain = np.asarray(array, np.float32)
    return _stack(plain, array.shape, spacing, name, unit, "all values", axes, flat=flat)


def levels_of(path: Path | str) -> list[Volume]:
    """All levels of a volume on disk, the finest first; one for formats without levels.

    Raises
    ------
    UserError
        There is no volume at `path`.
    """
    levels = [open_volume(path)]
    while levels[0].format == "zarr":
        try:
            levels.append(open_volume(path, level=len(levels)))
        except UserError:
            break
        if levels[-1].shape == levels[-2].shape and levels[-1].source == levels[-2].source:
            return levels[:-1]  # a single array, whatever the level
    return levels


def _chosen(levels: Sequence[Volume]) -> int:
    """The coarsest level that is large enough, and not too large to be read."""
    level = max(place for place, one in enumerate(levels) if not place or max(one.shape) >= ENOUGH)
    coarser = level + 1
    if math.prod(levels[level].shape) > VOXELS and coarser < len(levels) and max(levels[coarser].shape) >= ENOUGH // 2:
        return coarser
    return level


def _read(volume: Volume) -> tuple[NDArray[Any], str]:
    """The voxels; of what is too large some slices, averaged over neighbours in them. And what was done, in words."""
    depth, rows, columns = volume.shape
    kind = np.complex64 if volume.dtype.kind == "c" else np.float32
    if depth * rows * columns <= VOXELS:
        return np.asarray(volume.source.read()).astype(kind, copy=False), ""
    factor = max(1, math.ceil(max(rows, columns) / (1.5 * SIDE)))
    kept, read = VOXELS * factor**2 // (rows * columns), STREAMED // (rows * columns * volume.dtype.itemsize)
    picked = np.unique(np.linspace(0, depth - 1, min(depth, max(3, min(kept, read)))).round().astype(int))
    slices = np.stack([_averaged(volume, int(z), factor).astype(kind, copy=False) for z in picked])
    return slices, f"{len(picked)} of its {depth} slices" + (f", averaged over {factor} × {factor}" * (factor > 1))


def _averaged(volume: Volume, z: int, factor: int) -> NDArray[Any]:
    """One slice, averaged over `factor` × `factor` voxels (what is over at the ends is left out), band by band."""
    _, rows, columns = volume.shape
    high = max(1, _BAND // (columns * volume.dtype.itemsize * factor)) * factor
    wide = columns // factor
    bands = []
    for first in range(0, rows // factor * factor, high):
        last = min(first + high, rows // factor * factor)
        band = np.asarray(volume.source.read(slice(z, z + 1), slice(first, last)))[0, :, : wide * factor]
        bands.append(band.reshape(-1, factor, wide, factor).mean((1, 3), dtype=np.result_type(band, np.float32)))
    return np.concatenate(bands)


def _stack(
    array: NDArray[Any],
    shape: Sequence[int],
    spacing: Sequence[float] | None,
    name: str,
    unit: str,
    source: str,
    axes: Sequence[str] = ("z", "y", "x"),
    *,
    flat: bool = False,
) -> Stack:
    finite = np.isfinite(array)
    values = array.reshape(-1) if finite.all() else array[finite]
    if not values.size:
        values = np.zeros(1, np.float32)
    unit = "" if unit == "1" else unit
    some = values[:: max(1, values.size // 4_000_000)]
    black, white = gray_range([some], 0.5, 99.8)
    limits = black + 0.0, white + 0.0  # no -0
    low, high = gray_range([some], 0.01, 99.99)
    margin = max(0.05 * (high - low), 1e-4 * max(abs(low), abs(high)))  # float32 has no room for narrower bars
    counts, edges = np.histogram(values, bins=160, range=(low - margin, high + margin))
    across = (0, 1, 2) if array.shape[0] > 1 and not flat else (0,)
    planes = tuple(_plane(array, axis, shape, spacing, limits, axes) for axis in across)
    if flat:
        planes = tuple(dataclasses.replace(plane, step=None) for plane in planes)
    return Stack(
        name, unit, planes, limits, counts, edges.astype(np.float64), float(values.mean(dtype=np.float64)),
        float(values.std(dtype=np.float64)), float(values.min()) + 0.0, float(values.max()) + 0.0, source,
    )  # fmt: skip


def _plane(
    array: NDArray[Any],
    axis: int,
    shape: Sequence[int],
    spacing: Sequence[float] | None,
    limits: tuple[float, float],
    names: Sequence[str],
) -> Plane:
    up, across = (other for other in range(3) if other != axis)
    lengths = spacing or (1.0, 1.0, 1.0)
    width, height = shape[across] * lengths[across], shape[up] * lengths[up]
    proportion = min(8.0, max(1 / 4, width / height))
    there = array.shape[axis]
    middle = _picture(array, axis, there // 2, proportion, limits)
    count = min(there, _MOST, max(_LEAST, BYTES // len(middle)))
    picked = np.unique(np.append(np.linspace(0, there - 1, count).round().astype(int), there // 2))
    at = ((picked + 0.5) * shape[axis] / there - 0.5).round().astype(int)
    return Plane(
        axis=names[axis],
        sides=(names[up], names[across]),
        size=(shape[up], shape[across]),
        length=shape[axis],
        at=tuple(int(place) for place in at),
        step=None if spacing is None else float(spacing[axis]),
        proportion=proportion,
        bar=None if spacing is None else _bar(width),
        pictures=tuple(_picture(array, axis, int(place), proportion, limits) for place in picked),
    )


def _bar(width: float) -> tuple[float, str]:
    length, label = bar_length(width, 1.0)
    return length / width, label


def _picture(array: NDArray[Any], axis: int, place: int, proportion: float, limits: tuple[float, float]) -> str:
    """One slice as an address that holds it: gray from black to white, its longest side at most `SIDE` pixels."""
    image = np.take(array, place, axis)
    gray = (np.nan_to_num(image, nan=limits[0]) - limits[0]) / (limits[1] - limits[0])
    levels = (np.clip(gray, 0, 1) * 255).round().astype(np.uint8)
    drawn = Image.fromarray(levels)
    longest = max(levels.shape)
    if longest > SIDE:
        size = (max(1, round(drawn.width * SIDE / longest)), max(1, round(drawn.height * SIDE / longest)))
        drawn = drawn.resize(size, Image.Resampling.BOX)
    kind = "webp" if features.check("webp") else "jpeg"
    file = memory.BytesIO()
    drawn.save(file, kind, quality=_QUALITY, method=2)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
