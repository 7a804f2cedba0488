"""Coarse to fine: the middle of the frames first, which tells of larger voxels, and from there to all of them.

A frame's middle of m of n pixels, along an axis, is the frame of a scan whose pixels are r = n / m times as large: the
wave ψ(r j) is the transform of the middle of the spectrum of ψ(i). So positions are divided by r, and a line integral
takes v = k Δ u of voxels r times as wide. What is found there is a start that has the coarse features at the right
places, for the price of 1 / r² of the transforms and 1 / r³ of the projections.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import zarr
from numpy.typing import NDArray

from dtomo.device import to_host
from dtomo.errors import UserError
from dtomo.io.ptycho.arranged import ArrangedFrames, Arrangement
from dtomo.ptycho.frames import to_detector_order, to_model_order
from dtomo.ptychotomo.engine import SlabPlace
from dtomo.ptychotomo.setup import JointData, least_rows
from dtomo.settings import JointSettings

LEAST = 8
"""Rows and columns of a middle that is still a frame."""

Ratio = tuple[float, float]
"""How much larger pixels are, along rows and along columns."""


def levels(data: JointData, settings: JointSettings) -> list[tuple[JointData, JointSettings]]:
    """Scans and their settings from the coarsest to the scan itself, which is the last.

    Raises
    ------
    UserError
        Frames whose middle is too small, or that have no frequency zero.
    """
    found = []
    for factor in settings.coarse:
        some = coarser(data, factor)
        ratio = ratio_of(some, data)[1]
        change: dict[str, Any] = {"epochs": settings.coarse_epochs_wanted, "coarse": ()}
        change["total_variation"] = settings.total_variation * ratio  # Σ |∇v| is 1 / ratio of that of fine voxels
        if settings.support is not None:
            change["support"] = settings.support / ratio
        found.append((some, settings.model_copy(update=change)))
    return [*found, (data, settings)]


def coarser(data: JointData, factor: float) -> JointData:
    """The scan that the middle of the frames makes, with pixels about so many times as large.

    Raises
    ------
    UserError
        See `levels`.
    """
    frames = data.frames
    if frames.near_field:
        raise UserError(
            "--coarse takes the middle of far-field frames; images of the near field have none, leave it out"
        )
    shape = frames.frame_shape
    size = tuple(round(length / factor) for length in shape)
    if min(size) < LEAST:
        raise UserError(
            f"--coarse {factor:g}: the middle of frames of {shape[0]} × {shape[1]} pixels would be {size[0]} × "
            f"{size[1]}; {LEAST} are the least, so take a smaller factor"
        )
    ratio = np.array(shape) / size
    middle = _middle(shape, (size[0], size[1]))
    window = middle[0].start, middle[0].stop, middle[1].start, middle[1].stop
    images = np.ceil((np.array(data.image_shape) - shape) / ratio - 1e-9).astype(int) + size
    pixel = frames.pixel_size
    found = dataclasses.replace(
        frames,
        source=ArrangedFrames(frames.source, Arrangement(window)),
        positions=frames.positions / ratio,
        mask=None if frames.mask is None else frames.mask[middle],
        dark=None if frames.dark is None else frames.dark[middle],
        probe=None if frames.probe is None else cropped(frames.probe, (size[0], size[1])),
        pixel_size=None if pixel is None else (pixel[0] * ratio[0], pixel[1] * ratio[1]),
    )
    axis = data.geometry.center / ratio[1]
    return JointData(found, data.angles, data.angle_of_frame, (int(images[0]), int(images[1])), float(axis))


def ratio_of(coarse: JointData, fine: JointData) -> Ratio:
    """Of their pixels."""
    (rows, columns), (high, wide) = fine.frames.frame_shape, coarse.frames.frame_shape
    return rows / high, columns / wide


def slab_rows_of(coarse: JointData, settings: JointSettings, ratio: Ratio, slab_rows: int) -> int:
    """Rows of the slabs of a coarser level: about as many slabs, where they may be that low."""
    return max(least_rows(coarse, settings), -(-slab_rows // max(1, int(ratio[0]))))


def cropped(probe: NDArray[Any], size: tuple[int, int]) -> NDArray[np.complex64]:
    """A probe ``(…, row, column)`` on larger pixels: the middle of its spectrum, with the light that it holds."""
    spectrum = np.fft.fftshift(np.fft.fft2(probe, norm="ortho"), (-2, -1))
    middle = spectrum[..., *_middle(probe.shape[-2:], size)]
    return np.fft.ifft2(np.fft.ifftshift(middle, (-2, -1)), norm="ortho").astype(np.complex64)


def finer(found: Mapping[str, Any], first: Mapping[str, Any], ratio: Ratio) -> dict[str, Any]:
    """First guesses of a level from what the coarser one found.

    Parameters
    ----------
    found
        Parameters of the coarser level, all but the volume.
    first
        First guesses of this one, kept where the coarser frames say nothing: beyond their spectrum.
    ratio
        Of their pixels.
    """
    result = dict(first)
    probe, guess = np.asarray(found["probe"]), np.asarray(first["probe"])
    spectrum = np.fft.fftshift(np.fft.fft2(guess, norm="ortho"), (-2, -1))
    middle = np.fft.fftshift(np.fft.fft2(probe, norm="ortho"), (-2, -1))
    spectrum[..., *_middle(guess.shape[-2:], probe.shape[-2:])] = middle
    result["probe"] = np.fft.ifft2(np.fft.ifftshift(spectrum, (-2, -1)), norm="ortho").astype(np.complex64)
    if "shifts" in first:
        result["shifts"] = np.asarray(found["shifts"]) * ratio
    if "ramps" in first:
        result["ramps"] = np.asarray(found["ramps"]) / ratio
    if "scale" in first:
        result["scale"] = np.asarray(found["scale"])
    if "background" in first:
        whole = to_detector_order(np.array(first["background"]))
        part = to_detector_order(np.asarray(found["background"]))
        whole[_middle(whole.shape, part.shape)] = part
        result["background"] = to_model_order(whole)
    return result


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """What a level leaves to the next.

    Attributes
    ----------
    data
        Of the level.
    parameters
        All but the volume.
    volume
        v, or the folder that it lies in.
    """

    data: JointData
    parameters: Mapping[str, Any]
    volume: "NDArray[np.complex64] | Path"

    def start(self, data: JointData) -> "FromCoarser":
        """Of the volume of a level with these data."""
        rows, columns = data.image_shape
        return FromCoarser(self.volume, (rows, columns, columns), ratio_of(self.data, data))

    def first(self, data: JointData, guesses: Mapping[str, Any]) -> dict[str, Any]:
        """First guesses of that level; `guesses`, where the coarser frames say nothing."""
        return finer(self.parameters, guesses, ratio_of(self.data, data))


@dataclasses.dataclass(frozen=True, eq=False)
class FromCoarser:
    """Start of a level: the volume of the coarser one, interpolated linearly where a slab is.

    Attributes
    ----------
    coarse
        v ``(z, y, x)``, or the folder that `KeptVolume` wrote it to.
    shape
        Of the volume ``(z, y, x)`` of this level.
    ratio
        Of their pixels.
    """

    coarse: "NDArray[np.complex64] | Path"
    shape: tuple[int, int, int]
    ratio: Ratio

    def __call__(self, place: SlabPlace) -> NDArray[np.complex64]:
        """The rows of a slab."""
        given: Any = zarr.open_array(self.coarse, mode="r") if isinstance(self.coarse, Path) else self.coarse
        width, fine = given.shape[2], self.shape[2]
        table = _linear((np.arange(fine) - (fine - 1) / 2) / self.ratio[1] + (width - 1) / 2, width)
        planes = functools.lru_cache(2)(lambda row: table @ np.asarray(given[row]) @ table.T)
        found = np.empty((place.height, fine, fine), np.complex64)
        for row in range(place.height):
            where = min((place.start + row) / self.ratio[0], given.shape[0] - 1)
            low = min(int(where), max(0, given.shape[0] - 2))
            part = np.float32(where - low)
            found[row] = (1 - part) * planes(low) if part < 1 else 0
            if part > 0:
                found[row] += part * planes(low + 1)
        found /= np.float32(self.ratio[1])
        return found


@dataclasses.dataclass(frozen=True)
class KeptVolume:
    """Writes the rows of each slab into one array on disk, from where they are; a plane is a chunk."""

    path: Path

    @classmethod
    def create(cls, path: Path, shape: tuple[int, int, int]) -> "KeptVolume":
        """An empty array, in place of what there is."""
        zarr.create_array(path, shape=shape, chunks=(1, *shape[1:]), dtype=np.complex64, overwrite=True)
        return cls(path)

    def __call__(self, place: SlabPlace, rows: NDArray[Any]) -> None:
        zarr.open_array(self.path, mode="r+")[place.start : place.stop] = to_host(rows)


def _middle(shape: tuple[int, ...], size: tuple[int, ...]) -> tuple[slice, slice]:
    """Where the middle of images lies, frequency zero upon frequency zero."""
    starts = [length // 2 - part // 2 for length, part in zip(shape, size)]
    return slice(starts[0], starts[0] + size[0]), slice(starts[1], starts[1] + size[1])


def _linear(places: NDArray[np.float64], count: int) -> Any:
    """Matrix ``(place, count)`` that interpolates between samples, constant beyond the last."""
    places = places.clip(0, count - 1)
    low = np.minimum(places.astype(np.int64), max(0, count - 2))
    part = (places - low).astype(np.float32)
    rows = np.arange(len(places))
    entries = (
        np.concatenate([1 - part, part]),
        (np.tile(rows, 2), np.concatenate([low, np.minimum(low + 1, count - 1)])),
    )
    return scipy.sparse.csr_array(entries, shape=(len(places), count))
