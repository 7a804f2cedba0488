"""CXI files of ptychography, as CDTools, SHARP and beamlines write them.

Format: F. R. N. C. Maia, "The Coherent X-ray Imaging Data Bank", Nature Methods 9 (2012) 854. Positions are the
*sample's* motion (x, y, z) in metres; they are taken along the rows and columns of the detector, which without
``basis_vectors`` run along −y and −x. ``mask`` is a bit field: 0 and exactly 0x1000 (there is signal) are good.
"""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.hdf5_files import node, number, open_hdf5
from dtomo.io.ptycho.reading import PLANCK_LIGHT, PtychoReading, small_array, stated
from dtomo.io.sources import hdf5_source
from dtomo.io.units import convert_energy, usable

ENTRY = "entry_1"
INSTRUMENT = f"{ENTRY}/instrument_1"
DETECTOR = f"{INSTRUMENT}/detector_1"
SOURCE = f"{INSTRUMENT}/source_1"
GEOMETRY = f"{ENTRY}/sample_1/geometry_1"
FRAMES = (f"{ENTRY}/data_1/data", f"{DETECTOR}/data")
PER_FRAME = (f"{ENTRY}/data_1", GEOMETRY, DETECTOR)
"""Where positions and intensities are looked for, in this order."""
SIGNAL = 0x00001000
"""Bit of a mask that says that a pixel has signal."""
DEFAULT_DIRECTIONS = np.array([[0.0, -1.0], [-1.0, 0.0], [0.0, 0.0]])
"""A row runs along −y, a column along −x."""
MOST_ENERGY = 1e-10
"""Joules: photons of 0.6 GeV."""


def is_cxi(file: h5py.File) -> bool:
    """Whether the file has the groups of CXI."""
    return any(isinstance(node(file, name), h5py.Group) for name in (f"{ENTRY}/data_1", INSTRUMENT))


def read_cxi(path: Path, dataset: str | None = None) -> PtychoReading:
    """A CXI file.

    Parameters
    ----------
    path
        The file.
    dataset
        Of the frames, where it is none of `FRAMES`.

    Raises
    ------
    UserError
        Naming the dataset that is missing, or what is wrong with it.
    """
    with open_hdf5(path) as file:
        name = _frames_name(file, path, dataset)
        reading = PtychoReading(path, "cxi", hdf5_source(file, path, "/" + name), motion="sample", inputs=[path])
        reading.found["frames"] = f"{path}:/{name}"
        _read_light(file, reading)
        _read_detector(file, reading)
        _read_images(file, reading)
        _read_positions(file, reading)
        _read_intensities(file, reading)
    return reading


def _frames_name(file: h5py.File, path: Path, dataset: str | None) -> str:
    for name in FRAMES if dataset is None else (dataset.strip("/"),):
        if isinstance(node(file, name), h5py.Dataset):
            return name
    looked = " or ".join(f"/{name}" for name in FRAMES) if dataset is None else dataset
    raise UserError(f"{path} has no frames at {looked}; name them with dataset=... (--dataset)")


def _read_light(file: h5py.File, reading: PtychoReading) -> None:
    wavelength = stated(file, f"{SOURCE}/wavelength", reading.warnings)
    if wavelength is not None:
        reading.put("wavelength", wavelength, f"{reading.path}:/{SOURCE}/wavelength")
        return
    name = f"{SOURCE}/energy"
    energy = number(file, name)
    if energy is None or not usable(energy[0]):
        stated(file, name, reading.warnings)
        return
    where = f"{reading.path}:/{name}"
    joules = energy[0]
    if energy[1] and energy[1].strip().lower() not in ("j", "joule", "joules"):
        joules = convert_energy(energy[0], energy[1], where) * 1.602176634e-16
    if joules > MOST_ENERGY:
        raise UserError(f"{where} is {energy[0]:g}, which cannot be joules as CXI has it; give energy=... (--energy)")
    reading.put("wavelength", PLANCK_LIGHT / joules, f"{where} (energy)")


def _read_detector(file: h5py.File, reading: PtychoReading) -> None:
    """Pixel size, directions of rows and columns, distance."""
    name = f"{DETECTOR}/basis_vectors"
    basis = small_array(file, name, f"{reading.path}:/{name}")
    if basis is not None:
        _put_basis(reading, np.asarray(basis, np.float64), f"{reading.path}:/{name}")
    else:
        width, height = (stated(file, f"{DETECTOR}/{axis}_pixel_size", reading.warnings) for axis in "xy")
        height, width = height or width, width or height
        if height is not None and width is not None:
            reading.put("detector_pixel", (height, width), f"{reading.path}:/{DETECTOR}/x_pixel_size, y_pixel_size")
        reading.directions = DEFAULT_DIRECTIONS
    distance = stated(file, f"{DETECTOR}/distance", reading.warnings)
    if distance is not None:
        reading.put("distance", distance, f"{reading.path}:/{DETECTOR}/distance")
    else:
        _distance_by_corner(file, reading)
    source = number(file, f"{SOURCE}/distance")
    if source is not None and usable(abs(source[0])):
        reading.put("source_distance", abs(source[0]), f"{reading.path}:/{SOURCE}/distance")


def _put_basis(reading: PtychoReading, basis: NDArray[np.float64], where: str) -> None:
    if basis.shape == (2, 3):
        basis = basis.T
    sizes = np.linalg.norm(basis, axis=0) if basis.shape == (3, 2) else np.zeros(2)
    if not (np.isfinite(basis).all() and (sizes > 0).all()):
        raise UserError(f"{where} has shape {basis.shape}; two vectors (x, y, z), not zero, were expected: (3, 2)")
    directions = basis / sizes
    if abs(directions[:, 0] @ directions[:, 1]) > 1e-3:
        reading.warnings.append(f"{where}: rows and columns are not at right angles; frames are taken as if they were")
    reading.put("detector_pixel", (float(sizes[0]), float(sizes[1])), where)
    reading.directions = directions


def _distance_by_corner(file: h5py.File, reading: PtychoReading) -> None:
    """From the position of the detector's corner, along the detector's normal."""
    name = f"{DETECTOR}/corner_position"
    corner = small_array(file, name, f"{reading.path}:/{name}")
    if corner is None or corner.size != 3 or reading.directions is None:
        return
    normal = np.cross(reading.directions[:, 0], reading.directions[:, 1])
    distance = abs(float(corner.reshape(3) @ normal)) / float(np.linalg.norm(normal))
    if usable(distance):
        reading.put("distance", distance, f"{reading.path}:/{name}")


def _read_images(file: h5py.File, reading: PtychoReading) -> None:
    """Mask, dark counts, efficiency."""
    shape = reading.frames.shape[1:]
    name = f"{DETECTOR}/mask"
    field = small_array(file, name, f"{reading.path}:/{name}", kinds="uib")
    if field is not None:
        mask = good_pixels(field)
        if field.shape == reading.frames.shape:
            reading.warnings.append(
                f"{reading.path}:/{name} has a mask for each frame: only pixels good in all of them are used"
            )
            mask = np.asarray(mask.all(0))
        reading.put("mask", _fitting(mask, shape, f"{reading.path}:/{name}"), f"{reading.path}:/{name}")
    name = f"{DETECTOR}/data_dark"
    dark = small_array(file, name, f"{reading.path}:/{name}")
    if dark is not None:
        stack = np.asarray(dark, np.float64).reshape(-1, *dark.shape[-2:])
        there = np.isfinite(stack)
        mean = np.where(there, stack, 0).sum(0) / np.maximum(there.sum(0), 1)
        reading.put("background", _fitting(mean, shape, f"{reading.path}:/{name}"), f"{reading.path}:/{name}")
    name = f"{DETECTOR}/qe_mask"
    if isinstance(node(file, name), h5py.Dataset):
        reading.warnings.append(f"{reading.path}:/{name} (efficiency of the pixels) is not used")


def good_pixels(field: NDArray[Any]) -> NDArray[np.bool_]:
    """Good pixels by a CXI mask: those with no bit, or with the bit of signal alone."""
    return np.asarray((field == 0) | (field == SIGNAL), bool)


def _fitting(image: NDArray[Any], shape: tuple[int, int], where: str) -> NDArray[Any]:
    if image.shape != shape:
        raise UserError(f"{where} has shape {image.shape}, but frames have {shape}; they must be the same")
    return image


def _read_positions(file: h5py.File, reading: PtychoReading) -> None:
    """Metres along rows and columns of the detector, of the sample's motion."""
    for group in PER_FRAME:
        name = f"{group}/translation"
        where = f"{reading.path}:/{name}"
        moves = small_array(file, name, where)
        if moves is None:
            continue
        if moves.ndim != 2 or moves.shape[1] not in (2, 3):
            raise UserError(f"{where} has shape {moves.shape}; x, y, z of each frame were expected: (frame, 3)")
        along = np.zeros((len(moves), 3))
        along[:, :2] = moves[:, :2]
        directions = DEFAULT_DIRECTIONS if reading.directions is None else reading.directions
        with np.errstate(invalid="ignore"):  # what is not finite is refused later, unless the frame is left out
            along[:, 2] = along[:, :2] @ _slope(file, reading.path)
            reading.put("positions", along @ directions, where)
        reading.position_unit = "m"
        return


def _slope(file: h5py.File, path: Path) -> NDArray[np.float64]:
    """How far along z the sample's surface goes for x and for y: the sample moves within it."""
    normal = np.array([0.0, 0.0, 1.0])
    where = f"{path}:/{GEOMETRY}/orientation"
    orientation = small_array(file, f"{GEOMETRY}/orientation", where)
    if orientation is not None and orientation.size in (6, 9):
        x, y = np.asarray(orientation, np.float64).reshape(-1, 3)[:2]
        normal = np.cross(x, y)
    given = small_array(file, f"{GEOMETRY}/surface_normal", f"{path}:/{GEOMETRY}/surface_normal")
    if given is not None and given.size == 3:
        normal, where = np.asarray(given, np.float64).reshape(3), f"{path}:/{GEOMETRY}/surface_normal"
    if not abs(normal[2]) > 1e-6 * float(np.linalg.norm(normal)):
        if where.endswith(
            "orientation"
        ):  # turned by 90 degrees, as in tomography: scanned across the beam all the same
            return np.zeros(2)
        raise UserError(f"{where}: the sample's surface holds the beam, which no position along it can be told from")
    return np.asarray(-normal[:2] / normal[2], np.float64)


def _read_intensities(file: h5py.File, reading: PtychoReading) -> None:
    for group in PER_FRAME:
        name = f"{group}/intensities"
        values = small_array(file, name, f"{reading.path}:/{name}")
        if values is not None:
            reading.put("intensities", np.asarray(values, np.float64).reshape(-1), f"{reading.path}:/{name}")
            return
