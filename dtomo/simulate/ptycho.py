"""A ptychographic scan whose object, probe and positions are known exactly."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.hdf5_files import new_hdf5, open_hdf5
from dtomo.io.output import check_output
from dtomo.io.ptycho.cxi import DEFAULT_DIRECTIONS, DETECTOR, ENTRY, GEOMETRY, SOURCE
from dtomo.io.ptycho.reading import PLANCK_LIGHT
from dtomo.simulate.detector import PROJECTION, generator
from dtomo.simulate.ptycho_parts import (
    Aperture,
    ScanPath,
    defocus_of,
    diffuser_probe,
    focused_probe,
    light_diameter,
    mode_powers,
    scan_positions,
    transmission,
    with_modes,
)
from dtomo.simulate.scans import MOST_THREADS, computed_ahead

GROUP = "dtomo_truth"
"""HDF5 group that holds the truth."""

WAVELENGTH = 1.409e-10
"""Metres: 8.8 keV."""
PIXEL_SIZE, NEAR_PIXEL_SIZE = 10e-9, 100e-9
"""Of the object, metres, in the far field and in the near field."""
DETECTOR_PIXEL, NEAR_DETECTOR_PIXEL = 75e-6, 1e-6
FRESNEL_NUMBER = 0.04
"""Of a pixel, pixel² / (wavelength · distance), in the near field."""
MARGIN = 4
"""Pixels of the object beyond what frames cover."""
OFFSETS = 3
"""Stream of random numbers for the errors of positions."""


@dataclasses.dataclass(frozen=True, eq=False)
class PtychoTruth:
    """What a simulated scan was made from.

    Attributes
    ----------
    path
        The scan.
    object
        Transmission ``(row, column)``, complex64.
    probe
        Incoherent modes ``(mode, row, column)``, complex64; the sum of their squares is the photons of a frame that
        meets no object.
    positions
        True row and column of the object pixel under pixel [0, 0] of the probe, ``(frame, 2)``.
    stated_positions
        What the file says, in the same pixels.
    background
        Counts per frame ``(row, column)`` that have nothing to do with the object, in the order of the detector.
    pixel_size, wavelength
        Of the object, and of the light; metres.
    distance
        Sample to detector, metres.
    source_distance
        Point source to sample in the near field, metres; None: the detector is in the far field.
    defocus
        Of the probe in the far field, metres: how far the light has gone on from its focus; None in the near field.
    seed
        Of the noise.
    """

    path: Path
    object: NDArray[np.complex64]
    probe: NDArray[np.complex64]
    positions: NDArray[np.float64]
    stated_positions: NDArray[np.float64]
    background: NDArray[np.float32]
    pixel_size: float
    wavelength: float
    distance: float
    source_distance: float | None
    defocus: float | None
    seed: int

    @property
    def near_field(self) -> bool:
        """Whether frames are magnified images."""
        return self.source_distance is not None

    @property
    def magnification(self) -> float:
        """Of the near field, (z₁ + z₂) / z₁; 1 in the far field."""
        return 1.0 if self.source_distance is None else 1 + self.distance / self.source_distance

    @property
    def parameters(self) -> dict[str, Any]:
        """The truth as parameters of a `dtomo.ptycho.model.PtychoModel`: no gradient but noise is left at it."""
        square = np.sqrt(self.background if self.near_field else np.fft.ifftshift(self.background))
        parameters = {
            "object": self.object[None, None],
            "probe": self.probe,
            "positions": self.positions,
            "background": square,
        }
        if self.near_field:
            parameters["distance"] = np.array(self.distance / self.magnification)
        return parameters

    def expected(self, number: int) -> NDArray[np.float64]:
        """Mean counts ``(row, column)`` of a frame as the detector sees it, without noise."""
        size = self.probe.shape[-1]
        row, column = (int(place) for place in np.floor(self.positions[number]))
        part = self.positions[number] - (row, column)
        waves = _shifted(self.probe.astype(np.complex128), part) * self.object[row : row + size, column : column + size]
        if self.near_field:
            images = np.fft.fft2(_shifted(waves, -part)) * self._free_space()
            return np.asarray((np.abs(np.fft.ifft2(images)) ** 2).sum(0) + self.background)
        far = (np.abs(np.fft.fft2(waves, norm="ortho")) ** 2).sum(0)
        return np.asarray(np.fft.fftshift(far) + self.background)

    def counts(self, number: int) -> NDArray[np.int64]:
        """The frame with its photon noise, the same whenever it is asked for."""
        return generator(self.seed, PROJECTION, number).poisson(self.expected(number))

    def object_at(self, positions: NDArray[Any], shape: tuple[int, int]) -> NDArray[np.complex64]:
        """The object as a reconstruction has it that counts positions otherwise, to a whole pixel.

        Parameters
        ----------
        positions
            Of the reconstruction, ``(frame, 2)``: the true ones but for a common shift.
        shape
            Of its object ``(row, column)``; where the truth has no pixel there is vacuum.
        """
        row, column = (int(step) for step in np.rint((np.asarray(positions) - self.positions).mean(0)))
        out = np.ones(shape, np.complex64)
        rows = slice(max(0, row), min(shape[0], row + self.object.shape[0]))
        columns = slice(max(0, column), min(shape[1], column + self.object.shape[1]))
        out[rows, columns] = self.object[
            rows.start - row : rows.stop - row, columns.start - column : columns.stop - column
        ]
        return out

    def _free_space(self) -> NDArray[np.complex128]:
        """Angular spectrum of the way to the detector, at the scale of the object."""
        frequency = np.fft.fftfreq(self.probe.shape[-1], self.pixel_size)
        square = frequency[:, None] ** 2 + frequency**2
        z = self.distance / self.magnification
        along = -square * self.wavelength / (1 + np.sqrt(1 - square * self.wavelength**2))  # √(λ⁻² − f²) − 1/λ
        return np.asarray(np.exp(2j * np.pi * z * along))


def _shifted(waves: NDArray[Any], step: NDArray[np.float64]) -> NDArray[Any]:
    """f(x − step) by its spectrum, periodic."""
    rows, columns = (np.exp(-2j * np.pi * np.fft.fftfreq(n) * s) for n, s in zip(waves.shape[-2:], step))
    return np.asarray(np.fft.ifft2(np.fft.fft2(waves) * rows[:, None] * columns))


def simulate_ptycho(
    path: str | os.PathLike[str],
    *,
    size: int = 128,
    positions: int = 400,
    modes: int = 2,
    photons: float = 1e5,
    position_error: float = 0.0,
    background: float = 0.0,
    near_field: bool = False,
    aperture: Aperture = "circle",
    scan_path: ScanPath = "spiral",
    overlap: float = 0.8,
    seed: int = 0,
    overwrite: bool = False,
) -> PtychoTruth:
    """Write a ptychographic scan as CXI, frame by frame, with photon noise.

    The object has two pictures with structure of all sizes in its phase and amplitude; the probe is what a lens makes
    out of its focus. The same arguments give the same counts. Memory is that of a few frames and the object.

    Parameters
    ----------
    path
        CXI file to write; the truth is in its group ``dtomo_truth``.
    size
        Rows and columns of frames, hence of the probe.
    positions
        Frames.
    modes
        Incoherent modes of the probe, each of a quarter of the power of the one before.
    photons
        Mean number of photons that come through the object, per frame.
    position_error
        Root mean square distance, in pixels of the object, of the positions in the file from the true ones.
    background
        Mean counts per pixel and frame that come from elsewhere; they rise from 0.7 to 1.3 times that across the rows.
    near_field
        Frames are magnified images behind the object, lit through a diffuser, instead of patterns far away.
    aperture
        Of the lens: "circle", "rectangle" or "zone plate".
    scan_path
        "spiral" (turned by the golden angle) or "grid" (with positions off it at random).
    overlap
        Part of the probe's diameter that neighbouring frames share; of its area, 0.8 are three quarters.
    seed
        Of the object, the scan and the noise.
    overwrite
        Replace a file that exists.

    Raises
    ------
    UserError
        Numbers that make no scan or an object too large for the memory; an output that is refused.
    """
    _check(size, positions, modes, photons, position_error, background, overlap, seed, aperture)
    probe = diffuser_probe(size, seed) if near_field else focused_probe(size, aperture)
    probe = with_modes(probe, mode_powers(modes))
    step = max(1.0, (1 - overlap) * light_diameter(probe))
    _check_memory(positions, step, size)
    true = scan_positions(positions, step, scan_path, seed)
    error = np.random.default_rng([seed, OFFSETS]).normal(0, position_error / np.sqrt(2), true.shape)
    least = np.minimum(true, true + error).min(0)
    true = true - np.floor(least) + MARGIN
    extent = np.ceil(np.maximum(true, true + error).max(0)).astype(int) + size + MARGIN
    pixel = NEAR_PIXEL_SIZE if near_field else PIXEL_SIZE
    distance, source = _distances(size, near_field)
    image = transmission((int(extent[0]), int(extent[1])), seed)
    rise = np.broadcast_to(np.linspace(0.7, 1.3, size)[:, None] * background, (size, size)).astype(np.float32)
    probe = probe * np.sqrt(photons / _mean_power(image, probe, true))
    truth = PtychoTruth(
        Path(path),
        image,
        probe.astype(np.complex64),
        true,
        true + error,
        rise,
        pixel,
        WAVELENGTH,
        distance,
        source,
        None if near_field else defocus_of(size) * pixel**2 / WAVELENGTH,
        seed,
    )
    _write(truth, overwrite)
    return truth


def _check(
    size: int,
    positions: int,
    modes: int,
    photons: float,
    position_error: float,
    background: float,
    overlap: float,
    seed: int,
    aperture: str,
) -> None:
    if size < 16 or positions < 1 or not 1 <= modes <= 36:
        raise UserError(
            f"a simulated scan has frames of 16 or more pixels, a position or more and 1 to 36 modes; got size {size}, "
            f"positions {positions} and modes {modes}"
        )
    if not (np.isfinite(photons) and 0 < photons <= 1e12):
        raise UserError(f"the photons of a frame are a positive number up to 1e12; got {photons}")
    for name, value in (("position error", position_error), ("background", background), ("seed", seed)):
        if not (np.isfinite(value) and 0 <= value < 1e9):
            raise UserError(f"the {name} is a number from 0; got {value}")
    if not 0 <= overlap < 1:
        raise UserError(f"the overlap of neighbouring frames lies between 0 and 1; got {overlap}")
    if aperture not in ("circle", "rectangle", "zone plate"):
        raise UserError(f"there is no aperture {aperture!r}; choose circle, rectangle or zone plate")


def _check_memory(positions: int, step: float, size: int) -> None:
    """The object while it is made, positions, and frames that threads work on."""
    import psutil

    across = step * 1.2 * positions**0.5 + size
    needed = 48 * across**2 + 200 * positions + 2 * MOST_THREADS * 200 * size**2
    free = psutil.virtual_memory().available
    if needed > free:
        raise UserError(
            f"simulating {positions} positions on an object about {across:.0f} pixels wide takes {needed / 1e9:.3g} GB "
            f"of memory, but {free / 1e9:.3g} GB are free; choose fewer positions or a smaller size"
        )


def _distances(size: int, near_field: bool) -> tuple[float, float | None]:
    """Sample to detector, and point source to sample if near, metres."""
    if not near_field:
        return PIXEL_SIZE * size * DETECTOR_PIXEL / WAVELENGTH, None
    magnification = NEAR_DETECTOR_PIXEL / NEAR_PIXEL_SIZE
    distance = magnification * NEAR_PIXEL_SIZE**2 / (WAVELENGTH * FRESNEL_NUMBER)
    return distance, distance / (magnification - 1)


def _mean_power(image: NDArray[Any], probe: NDArray[Any], positions: NDArray[np.float64]) -> float:
    """Light that comes through, mean over the frames, at the nearest pixels."""
    light, size = (np.abs(probe) ** 2).sum(0), probe.shape[-1]
    passed = np.abs(image) ** 2
    places = np.rint(positions).astype(int)
    return float(np.mean([(light * passed[r : r + size, c : c + size]).sum() for r, c in places]))


def _write(truth: PtychoTruth, overwrite: bool) -> None:
    count, size = len(truth.positions), truth.probe.shape[-1]
    chosen = np.unique(np.linspace(0, count - 1, 8).astype(int))
    brightest = max(float(truth.expected(int(number)).max()) for number in chosen)
    dtype = np.dtype(np.uint16 if 2 * brightest + 100 < 2**16 else np.uint32)
    target = check_output(truth.path, overwrite=overwrite, bytes_needed=count * size**2 * dtype.itemsize)
    largest = 2 ** (8 * dtype.itemsize) - 1

    def frame(number: int) -> NDArray[Any]:
        return np.minimum(truth.counts(number), largest).astype(dtype)

    pixel = NEAR_DETECTOR_PIXEL if truth.near_field else DETECTOR_PIXEL
    steps = truth.stated_positions * truth.pixel_size
    with new_hdf5(target) as file:
        file["cxi_version"] = 150
        detector = file.create_group(DETECTOR)
        data = detector.create_dataset("data", (count, size, size), dtype)
        for number, counts in enumerate(computed_ahead(frame, count)):
            data[number] = counts
        detector["distance"] = truth.distance
        detector["x_pixel_size"], detector["y_pixel_size"] = pixel, pixel
        detector["mask"] = np.zeros((size, size), np.uint32)
        file[f"{SOURCE}/wavelength"] = truth.wavelength
        file[f"{SOURCE}/energy"] = PLANCK_LIGHT / truth.wavelength
        if truth.source_distance is not None:
            file[f"{SOURCE}/distance"] = -truth.source_distance  # before the sample
        file[f"{GEOMETRY}/translation"] = -steps @ DEFAULT_DIRECTIONS.T  # the sample's motion
        file[f"{ENTRY}/data_1/translation"] = h5py.SoftLink(f"/{GEOMETRY}/translation")
        file[f"{ENTRY}/data_1/data"] = h5py.SoftLink(f"/{DETECTOR}/data")
        _put_truth(file.create_group(GROUP), truth)
        file.flush()


def _put_truth(group: h5py.Group, truth: PtychoTruth) -> None:
    for field in dataclasses.fields(truth):
        value = getattr(truth, field.name)
        if field.name != "path" and value is not None:
            group[field.name] = value


def read_ptycho_truth(path: str | os.PathLike[str]) -> PtychoTruth:
    """What a simulated ptychographic scan was made from, as stored in it.

    Raises
    ------
    UserError
        The file is missing, is no HDF5, or was not written by `simulate_ptycho`.
    """
    path = Path(path)
    with open_hdf5(path) as file:
        if not isinstance(file.get(GROUP), h5py.Group):
            raise UserError(f"{path} was not simulated by dtomo: it holds no group '{GROUP}' with the truth")
        stored = {name: data[()] for name, data in file[GROUP].items()}
    for name in ("pixel_size", "wavelength", "distance", "source_distance", "defocus"):
        stored[name] = float(stored[name]) if name in stored else None
    return PtychoTruth(path=path, **stored | {"seed": int(stored["seed"])})
