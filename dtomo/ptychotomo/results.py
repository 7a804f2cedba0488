"""Results of joint reconstructions: a folder with δ and β as OME-Zarr volumes, and all else as arrays of a Zarr group.

==================== ====================================================================================
``delta.zarr``       δ ``(z, y, x)``, float32; radians per voxel where the lengths of the scan are not known
``beta.zarr``        β, likewise
``probe``            ``(mode, row, column)``, or one for each angle in front
``angles``           degrees
``loss_history``     loss per pixel of each epoch
``shifts, ramps``    ``(angle, 2)``, pixels, and radians per pixel
``scale``            ``(angle,)``
``background``       counts ``(row, column)``, frequency zero in the middle
``fsc``              ``(3, shell)``: frequency, correlation, voxels; of two halves of the angles
==================== ====================================================================================
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dtomo import __version__
from dtomo.algorithms.resolution import FourierCorrelation
from dtomo.device import to_host
from dtomo.errors import UserError
from dtomo.io.output import progress_folder
from dtomo.io.volumes import create_volume
from dtomo.ptychotomo.driver import JointResult
from dtomo.ptychotomo.engine import SlabPlace
from dtomo.ptychotomo.setup import JointData
from dtomo.ptychotomo.signs import moments
from dtomo.settings import JointSettings

VOLUMES = ("delta", "beta")
HIGHEST = 64
"""Rows of a shard, where the volume is one slab."""
_ARRAYS = ("probe", "shifts", "ramps", "scale")


def volume_path(output: Path, name: str) -> Path:
    """Of δ or β."""
    return output / f"{name}.zarr"


def create_volumes(output: Path, data: JointData, slab_rows: int) -> dict[str, Any]:
    """Writers of δ and β, marked unfinished."""
    rows, columns = data.image_shape
    pixel = data.frames.pixel_size
    output.mkdir(exist_ok=True)
    return {
        name: create_volume(
            volume_path(output, name),
            (rows, columns, columns),
            np.float32,
            voxel_size_um=None if pixel is None else pixel[1] * 1e6,
            slab=slab_rows if slab_rows < rows else min(rows, HIGHEST),
            overwrite=True,
        )
        for name in VOLUMES
    }


@dataclasses.dataclass(frozen=True, eq=False)
class WriteSlab:
    """Writes δ and β of a slab from where it is; returns its moments, see `dtomo.ptychotomo.signs`.

    Attributes
    ----------
    writers
        By name, see `create_volumes`.
    wavenumber
        k Δ, radians per voxel for each unit of the refractive index.
    """

    writers: Mapping[str, Any]
    wavenumber: float

    def __call__(self, place: SlabPlace, rows: NDArray[Any]) -> NDArray[np.float64]:
        volume = to_host(rows)
        for name, writer in self.writers.items():
            for first in range(0, place.height, writer.slab):
                part = volume[first : first + writer.slab]
                values = -part.real if name == "delta" else part.imag
                writer.write_slab(place.start + first, (values / np.float32(self.wavenumber)).astype(np.float32))
        return moments(volume)


@dataclasses.dataclass(frozen=True)
class Middle:
    """What a slab has of the middle of -Re v, at most `size` voxels along a side."""

    size: int

    def __call__(self, place: SlabPlace, rows: NDArray[Any]) -> NDArray[np.float32]:
        spans = [_middle(count, self.size) for count in (place.rows, *rows.shape[1:])]
        first, last = max(spans[0].start, place.start), min(spans[0].stop, place.stop)
        own = slice(first - place.start, max(first, last) - place.start)
        return np.ascontiguousarray(-to_host(rows[own, spans[1], spans[2]]).real)


def _middle(count: int, size: int) -> slice:
    first = max(0, (count - size) // 2)
    return slice(first, first + min(count, size))


def write_parameters(
    output: Path,
    result: JointResult,
    data: JointData,
    settings: JointSettings,
    curve: FourierCorrelation | None = None,
) -> None:
    """Everything but the volumes, into the group that holds them."""
    group = zarr.open_group(output, mode="a", zarr_format=3)
    arrays: dict[str, Any] = {"angles": data.angles, "loss_history": result.losses}
    arrays |= {name: result.parameters[name] for name in _ARRAYS if name in result.parameters}
    if "background" in result.parameters:
        square = np.asarray(result.parameters["background"]) ** 2
        arrays["background"] = square if data.frames.near_field else np.fft.fftshift(square)
    if curve is not None:
        arrays["fsc"] = np.stack([curve.frequency, curve.correlation, curve.count]).astype(np.float64)
    for name, values in arrays.items():
        array = np.ascontiguousarray(values)
        group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=array.shape or (1,))[...] = array
    group.attrs["dtomo"] = {
        "kind": "ptychotomo",
        "version": __version__,
        "settings": settings.plain(),
        "epochs": result.epochs,
        "unit": "1" if data.wavenumber is not None else "radians per voxel",
        "wavenumber": data.wavenumber,
    }


def open_parameters(output: Path) -> tuple[zarr.Group, dict[str, Any]]:
    """The arrays that `write_parameters` wrote, and its attributes.

    Raises
    ------
    UserError
        No result of ``dtomo ptychotomo``, or one that is unfinished.
    """
    if progress_folder(output).exists():
        raise UserError(f"{output} is unfinished; finish it with --resume, then open it")
    noted: Any = None
    if (output / "zarr.json").is_file():
        group = zarr.open_group(output, mode="r")
        noted = group.attrs.get("dtomo")
    if not isinstance(noted, dict) or noted.get("kind") != "ptychotomo":
        raise UserError(f"{output} is no result of dtomo ptychotomo; give the folder that one wrote")
    return group, noted


def read_parameters(output: Path) -> dict[str, Any]:
    """What `write_parameters` wrote, by name, and ``"attributes"``; raises as `open_parameters`."""
    group, noted = open_parameters(output)
    found: dict[str, Any] = {name: np.asarray(array[...]) for name, array in group.arrays()}
    return {**found, "attributes": noted}
