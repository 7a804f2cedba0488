"""A raw scan as a beamline writes it, of a phantom that is known exactly."""

import dataclasses
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError
from dtomo.io import write_dxchange
from dtomo.io.zarr_store import is_zarr
from dtomo.simulate.detector import (
    DARK,
    FLAT,
    FULL_SCALE,
    PROJECTION,
    Beam,
    Camera,
    beam,
    camera,
    generator,
    largest_count,
)
from dtomo.simulate.phantoms import Phantom, named
from dtomo.threads import available_cores

if TYPE_CHECKING:
    from dtomo.simulate.complex_scans import ComplexPhantom

GROUP = "simulation"
"""HDF5 group that holds the truth."""

MOST_THREADS, WORKING = 4, 40
"""Threads that simulate frames, and bytes per pixel that each takes meanwhile."""

ABSORPTION = 2.0
"""Attenuation along the longest path, natural logarithm: an eighth of the light comes through."""


@dataclasses.dataclass(frozen=True, eq=False)
class ScanTruth:
    """What a simulated scan was made from.

    Attributes
    ----------
    path
        The scan.
    phantom
        With values in attenuation per pixel; real and imaginary part of a complex scan.
    size, slices
        The volume is (slices, size, size) voxels of the size of a detector pixel.
    columns, center
        Detector width and column of the rotation axis.
    angles
        Degrees.
    pixel_size
        Micrometres, or None.
    """

    path: Path
    phantom: "Phantom | ComplexPhantom"
    size: int
    slices: int
    columns: int
    center: float
    angles: NDArray[np.float64]
    pixel_size: float | None

    def volume(self, rows: slice | Sequence[int] | None = None, width: int | None = None) -> NDArray[Any]:
        """The true volume (z, y, x) float32 (complex64) in attenuation per pixel, or some of its slices.

        `width` other than `size` adds or cuts a margin about the axis: a reconstruction is often as wide as
        the detector.
        """
        return self.phantom.volume(self.size, self.slices, rows, width)

    def projection(self, number: int) -> NDArray[Any]:
        """Exact line integrals (row, column) of one frame, without noise."""
        return self.phantom.projections(self.angles[number], self.size, self.columns, self.center, self.slices)[0]


def simulate_scan(
    path: str | os.PathLike[str],
    *,
    size: int = 256,
    rows: int | None = None,
    angles: int | ArrayLike | None = None,
    center: float | None = None,
    photons: float = 20000,
    flats: int = 20,
    darks: int = 20,
    rings: bool = True,
    dead_pixels: float = 3e-4,
    zingers: float = 1e-5,
    dark_level: float = 100.0,
    pixel_size: float | None = 2.0,
    energy: float | None = 25.0,
    full_turn: bool = False,
    phantom: str | Phantom = "sample",
    columns: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
    dtype: Any = np.uint16,
) -> ScanTruth:
    """Write a raw Data Exchange HDF5 scan of a phantom, frame by frame, with what real scans suffer from.

    Photon statistics, a beam that is uneven and drifts, a dark level, rings from pixels whose response
    changed after the flats, dead and hot pixels, zingers, and an axis that is not in the middle. The same
    arguments give the same counts. Memory is that of a few frames.

    Parameters
    ----------
    path
        HDF5 file to write.
    size
        Width of the object's slices in voxels, which are as wide as detector pixels.
    rows
        Detector rows, hence slices; default `size`.
    angles
        A number of them, evenly over half a turn (or a whole one with `full_turn`) without its end, or a list
        in degrees; default ``pi / 2 * size`` (twice that for a full turn).
    center
        Column of the rotation axis; default some pixels right of the middle, at no whole number.
    photons
        Mean number of photons per pixel in the middle of the open beam.
    flats, darks
        Number of frames; 0 leaves them out. Half of the flats are taken before the scan, half after.
    rings
        Whether some pixels change their response after the flats.
    dead_pixels
        Part of the pixels that are dead or hot.
    zingers
        Part of the pixels of a frame that are hit by a stray quantum.
    dark_level
        Counts without light.
    pixel_size
        Micrometres; None leaves it out.
    energy
        keV; None leaves it out.
    full_turn
        360 instead of 180 degrees. With `center` near an edge this is a half-acquisition scan.
    phantom
        "sample", "head", or a phantom whose values are attenuations per pixel.
    columns
        Detector width; default 7/6 of `size`.
    seed
        For the noise, the camera and the beam.
    overwrite
        Replace a file that exists.
    dtype
        Of the counts: uint8, uint16, uint32 or float32.

    Raises
    ------
    UserError
        Sizes or counts that make no scan, or one of frames too large for the memory; a file that exists.
    """
    rows = size if rows is None else rows
    columns = size + size // 6 if columns is None else columns
    dtype = np.dtype(dtype)
    if Path(path).exists() and not overwrite:
        raise UserError(f"{path} exists; choose another name or ask to overwrite it")
    refuse_sizes(size, rows, columns, center=center, pixel_size=pixel_size, energy=energy)
    if flats < 0 or darks < 0 or seed < 0:
        raise UserError(f"flats, darks and seed cannot be negative; got {flats}, {darks} and {seed}")
    _check_counts(photons, dead_pixels, zingers, dark_level, dtype)
    _check_memory(rows, columns, flats + darks, dtype)
    degrees = chosen_angles(angles, size, full_turn)
    center = default_center(size, columns) if center is None else center
    truth = ScanTruth(Path(path), _attenuation(phantom, size), size, rows, columns, float(center), degrees, pixel_size)
    shape = (rows, columns)
    setup = _Setup(
        truth,
        camera(shape, seed, rings, dead_pixels, dark_level),
        beam(shape, seed),
        photons,
        zingers,
        seed,
        dtype,
    )
    write_dxchange(
        path,
        frames=computed_ahead(setup.projection, len(degrees)),
        shape=(len(degrees), rows, columns),
        dtype=dtype,
        flats=np.stack([setup.flat(n, flats) for n in range(flats)]) if flats else None,
        darks=np.stack([setup.dark(n) for n in range(darks)]) if darks else None,
        angles=degrees,
        pixel_size=pixel_size,
        energy=energy,
        extra=_stored(truth),
        overwrite=overwrite,
    )
    return truth


@dataclasses.dataclass(frozen=True, eq=False)
class _Setup:
    """All that a frame depends on but its number."""

    truth: ScanTruth
    camera: Camera
    beam: Beam
    photons: float
    zingers: float
    seed: int
    dtype: np.dtype

    @property
    def conversion(self) -> float:
        """Counts per photon: 1, or less where the counts would not fit."""
        return min(1.0, FULL_SCALE * largest_count(self.dtype) / self.photons)

    def _light(self, time: float) -> NDArray[np.float64]:
        return self.photons * self.beam.light(time) * self.camera.gain

    def _expose(self, photons: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.generic]:
        return self.camera.expose(photons, self.conversion, self.dtype, rng)

    def dark(self, number: int) -> NDArray[np.generic]:
        rng = generator(self.seed, DARK, number)
        return self._expose(np.zeros(self.camera.gain.shape), rng)

    def flat(self, number: int, count: int) -> NDArray[np.generic]:
        time = 0.0 if number < (count + 1) // 2 else 1.0
        return self._expose(self._light(time), generator(self.seed, FLAT, number))

    def projection(self, number: int) -> NDArray[np.generic]:
        rng = generator(self.seed, PROJECTION, number)
        light = self._light((number + 0.5) / len(self.truth.angles)) * self.camera.change
        light *= np.exp(-self.truth.projection(number))
        for _ in range(rng.poisson(self.zingers * light.size)):
            row, column = rng.integers(light.shape[0]), rng.integers(light.shape[1])
            light[row, column : column + rng.integers(1, 3)] += self.photons * rng.uniform(0.5, 3)
        return self._expose(light, rng)


def computed_ahead(make: Callable[[int], NDArray[np.generic]], count: int) -> Iterator[NDArray[np.generic]]:
    """make(0), make(1), … in order, computed by threads a few frames ahead of who takes them."""
    threads = min(MOST_THREADS, available_cores())
    with ThreadPoolExecutor(threads) as pool:
        waiting = deque(pool.submit(make, n) for n in range(min(2 * threads, count)))
        for n in range(len(waiting), count + len(waiting)):
            yield waiting.popleft().result()
            if n < count:
                waiting.append(pool.submit(make, n))


def default_center(size: int, columns: int) -> float:
    """Column of the axis: some pixels right of the middle, at no whole number."""
    return round((columns - 1) / 2 + 0.0284 * size, 2)


def refuse_sizes(
    size: int,
    rows: int,
    columns: int,
    *,
    center: float | None = None,
    pixel_size: float | None = None,
    energy: float | None = None,
) -> None:
    """UserError for what makes no scan."""
    if size < 16 or rows < 1 or columns < 16:
        raise UserError(
            f"a simulated scan needs a size and columns of 16 or more and a row; "
            f"got size {size}, columns {columns} and rows {rows}"
        )
    if center is not None and not np.isfinite(center):
        raise UserError(f"the center must be a column of the detector; got {center}")
    for name, value in (("pixel size", pixel_size), ("energy", energy)):
        if value is not None and not (np.isfinite(value) and value > 0):
            raise UserError(f"the {name} must be positive; got {value}")


def _check_memory(rows: int, columns: int, references: int, dtype: np.dtype) -> None:
    """The camera, the frames that threads work on, and flats and darks twice, while they are stacked."""
    import psutil

    threads = min(MOST_THREADS, available_cores())
    per_pixel = 20 + threads * (WORKING + 2 * dtype.itemsize) + 2 * references * dtype.itemsize
    needed, free = rows * columns * per_pixel, psutil.virtual_memory().available
    if needed > free:
        raise UserError(
            f"simulating {rows} rows of {columns} columns takes {needed / 1e9:.3g} GB of memory, but {free / 1e9:.3g} "
            "GB are free; choose a smaller size, or fewer rows"
        )


def _check_counts(photons: float, dead_pixels: float, zingers: float, dark_level: float, dtype: np.dtype) -> None:
    if not (np.isfinite(photons) and photons > 0):
        raise UserError(f"the number of photons per pixel must be positive; got {photons}")
    if not (0 <= dead_pixels < 0.5 and 0 <= zingers < 0.5):
        raise UserError(f"the parts of dead pixels and zingers lie between 0 and 0.5; got {dead_pixels} and {zingers}")
    if dtype.name not in ("uint8", "uint16", "uint32", "float32"):
        raise UserError(f"counts are written as uint8, uint16, uint32 or float32, not {dtype.name}")
    if not 0 <= dark_level < (1 - FULL_SCALE) * largest_count(dtype):
        raise UserError(f"a dark level of {dark_level} leaves no room for light in {dtype.name}")


def chosen_angles(angles: int | ArrayLike | None, size: int, full_turn: bool) -> NDArray[np.float64]:
    """Degrees."""
    turns = 2 if full_turn else 1
    if angles is None:
        angles = round(np.pi / 2 * size) * turns
    values = np.asarray(angles, np.float64)
    if values.ndim == 0:
        if not np.isfinite(values) or values < 1 or values != round(float(values)):
            raise UserError(f"a scan needs a whole, positive number of angles; got {angles}")
        return np.asarray(np.arange(int(values)) * (180.0 * turns / int(values)), np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise UserError("angles are a number of them or a list of finite degrees")
    return values


def _attenuation(phantom: str | Phantom, size: int) -> Phantom:
    """The phantom in attenuation per pixel; a named one absorbs ABSORPTION along its longest path."""
    if isinstance(phantom, Phantom):
        return phantom
    shape = named(phantom)
    longest = shape.projections(np.arange(0, 180, 15), 64, slices=5).max() * size / 64
    return shape.scaled(ABSORPTION / float(longest))


def _stored(truth: ScanTruth) -> dict[str, Any]:
    """The truth as datasets of the scan's file."""
    assert isinstance(truth.phantom, Phantom)
    stored: dict[str, Any] = {
        # value (attenuation per pixel), half axes a b c, middle x y z, turn in degrees: see Phantom
        "ellipsoids": truth.phantom.table,
        "size": truth.size,
        "center": truth.center,
    }
    if truth.pixel_size is not None:
        stored["pixel_size"] = (truth.pixel_size, "micron")
    return {f"/{GROUP}/{name}": value for name, value in stored.items()}


def read_truth(path: str | os.PathLike[str]) -> ScanTruth:
    """What a simulated scan was made from, as stored in it.

    Raises
    ------
    UserError
        The file is missing, is no HDF5, or was not written by `simulate_scan`.
    """
    path = Path(path)
    if is_zarr(path):
        from dtomo.simulate.complex_scans import read_complex_truth

        return read_complex_truth(path)
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    if not h5py.is_hdf5(path):
        raise UserError(f"{path} is no HDF5 file, so it is no scan simulated by dtomo")
    with h5py.File(path, "r") as file:
        if GROUP not in file:
            raise UserError(f"{path} was not simulated by dtomo: it holds no group '{GROUP}' with the truth")
        group = file[GROUP]
        _, rows, columns = file["exchange/data"].shape
        return ScanTruth(
            path,
            Phantom(group["ellipsoids"][()]),
            int(group["size"][()]),
            rows,
            columns,
            float(group["center"][()]),
            file["exchange/theta"][()].astype(np.float64),
            float(group["pixel_size"][()]) if "pixel_size" in group else None,
        )


def truth_slice(path: str | os.PathLike[str], row: int, width: int | None = None) -> NDArray[Any]:
    """The true slice (y, x) float32 (complex64) behind a detector row of a simulated scan, in attenuation per pixel.

    `width` sets the size of the picture, about the axis; default the `size` the scan was simulated with.
    """
    truth = read_truth(path)
    if not -truth.slices <= row < truth.slices:
        raise UserError(f"{path} has rows 0 to {truth.slices - 1}; row {row} is none of them")
    return truth.volume([row % truth.slices], width)[0]
