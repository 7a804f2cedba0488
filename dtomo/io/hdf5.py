"""HDF5 scans in the Data Exchange layout, and any other HDF5 file whose dataset the user names.

Layout: F. De Carlo et al., "Scientific data exchange: a schema for HDF5-based storage of raw and analyzed
data", J. Synchrotron Rad. 21 (2014) 1224; places of pixel size and energy as beamlines of the Advanced
Photon Source use them.
"""

from pathlib import Path

import h5py
import numpy as np

from dtomo.errors import UserError
from dtomo.io.angles import MOST_ANGLES, AngleTable
from dtomo.io.angles import angle_unit as known_angle_unit
from dtomo.io.geometry_group import GROUP, read_geometry
from dtomo.io.hdf5_files import node, number, open_hdf5, text_attribute
from dtomo.io.reading import Reading
from dtomo.io.sources import HDF5Source, Source, hdf5_source
from dtomo.io.units import convert_energy, convert_length, usable

_MEASURED = "/measurement/instrument"
PIXEL_SIZE = (
    f"{_MEASURED}/detection_system/objective/resolution",
    f"{_MEASURED}/detector/actual_pixel_size_x",
    f"{_MEASURED}/detector/actual_pixel_size",
)
DETECTOR_PIXEL = f"{_MEASURED}/detector/pixel_size_x"
MAGNIFICATION = f"{_MEASURED}/detection_system/objective/magnification"
ENERGY = (f"{_MEASURED}/monochromator/energy", f"{_MEASURED}/source/beam_energy", "/measurement/energy")
SAMPLE_DETECTOR = (
    f"{_MEASURED}/detector_motor_stack/setup/camera_distance",
    f"{_MEASURED}/camera_motor_stack/setup/camera_distance",
    f"{_MEASURED}/detector/distance",
    f"{_MEASURED}/detector_distance",
)
SOURCE_SAMPLE = (f"{_MEASURED}/source/distance", f"{_MEASURED}/source_distance")
CENTER = ("/exchange/center", "/exchange/rotation_axis", "/process/acquisition/rotation/center")


def is_dxchange(file: h5py.File) -> bool:
    """Whether the file holds ``/exchange/data``."""
    return isinstance(node(file, "/exchange/data"), h5py.Dataset)


def read_dxchange(path: Path) -> Reading:
    """A Data Exchange scan: ``/exchange/data``, ``data_white``, ``data_dark``, ``theta``, what is measured.

    Raises
    ------
    UserError
        Naming the dataset that is missing, empty, or of a wrong shape.
    """
    with open_hdf5(path) as file:
        if not is_dxchange(file):
            raise UserError(f"{path} has no dataset /exchange/data, so it is not a Data Exchange scan")
        reading = Reading(path, "dxchange", hdf5_source(file, path, "/exchange/data", complex_too=True), inputs=[path])
        reading.found["projections"] = f"{path}:/exchange/data"
        reading.flats = _reference(file, reading, ("data_white", "data_flat"), "flats")
        reading.darks = _reference(file, reading, ("data_dark",), "darks")
        reading.angles = read_angles(file, path, "/exchange/theta")
        if reading.angles is not None:
            reading.found["angles"] = reading.angles.where
        read_measured(file, reading)
        reading.geometry = read_geometry(file, path, reading.projections.shape)
        if reading.geometry is not None:
            reading.found["geometry"] = f"{path}:{GROUP}"
        return reading


def _reference(file: h5py.File, reading: Reading, names: tuple[str, ...], what: str) -> Source | None:
    for name in names:
        data = node(file, f"/exchange/{name}")
        if not isinstance(data, h5py.Dataset) or data.shape is None:
            continue
        where = f"{reading.path}:/exchange/{name}"
        if data.size == 0:
            reading.warnings.append(f"{where} holds no {what}: its shape is {data.shape}")
            continue
        reading.found[what] = where
        return hdf5_source(file, reading.path, f"/exchange/{name}")
    return None


def read_angles(file: h5py.File, path: Path, name: str) -> AngleTable | None:
    """The angles of a dataset with the unit it states; None if there is no such dataset."""
    data = node(file, name)
    if not isinstance(data, h5py.Dataset):
        return None
    where = f"{path}:{name}"
    if data.shape is None or data.dtype.kind not in "uif":
        raise UserError(f"{where} holds {data.dtype}, expected one angle per frame")
    if data.size > MOST_ANGLES:
        raise UserError(f"{where} has {data.size} values, which cannot be one angle per frame")
    values = np.asarray(data[()], np.float64)
    if values.ndim > 1 and values.size != max(values.shape):
        raise UserError(f"{where} has shape {values.shape}, expected one angle per frame")
    unit = text_attribute(data, "units") or text_attribute(data, "unit")
    return AngleTable(values.reshape(-1), known_angle_unit(unit, where), where)


def read_measured(file: h5py.File, reading: Reading) -> None:
    """Fill in pixel size, energy, distances and axis where the file states them."""
    reading.pixel_size = _length(file, reading, "pixel_size", PIXEL_SIZE, "um")
    if reading.pixel_size is None:
        reading.pixel_size = _length(file, reading, "pixel_size", (DETECTOR_PIXEL,), "um")
        magnification = number(file, MAGNIFICATION)
        if reading.pixel_size is not None and magnification is not None and usable(magnification[0]):
            reading.pixel_size /= magnification[0]
            reading.found["pixel_size"] += f" divided by {MAGNIFICATION} = {magnification[0]:g}"
    reading.sample_detector_distance = _length(file, reading, "sample_detector_distance", SAMPLE_DETECTOR, "mm")
    reading.source_sample_distance = _length(file, reading, "source_sample_distance", SOURCE_SAMPLE, "mm")
    for name in ENERGY:
        value = number(file, name)
        if value is not None and usable(value[0]):
            where = f"{reading.path}:{name}"
            reading.energy = convert_energy(value[0], value[1] or "keV", where)
            reading.found["energy"] = where
            break
    for name in CENTER:
        value = number(file, name)
        if value is not None:
            reading.center, reading.found["center"] = value[0], f"{reading.path}:{name}"
            break


def _length(file: h5py.File, reading: Reading, what: str, names: tuple[str, ...], to: str) -> float | None:
    for name in names:
        value = number(file, name)
        if value is None or not usable(value[0]):
            continue
        where = f"{reading.path}:{name}"
        reading.found[what] = where
        unit = value[1] or ""
        if unit.strip().lower() in ("", "pixels", "unknown"):
            unit = to
            reading.warnings.append(f"{where} has no unit: {value[0]:g} is taken as {to}")
        return convert_length(value[0], unit, to, where)
    return None


def read_named_dataset(path: Path, dataset: str) -> Reading:
    """Projections from the dataset the user names; everything else is the user's to give."""
    with open_hdf5(path) as file:
        if not isinstance(node(file, dataset), h5py.Dataset):
            raise UserError(f"{path} has no dataset {dataset}; it has {list_stacks(file)}")
        source = hdf5_source(file, path, dataset, complex_too=True)
    return Reading(path, "hdf5", source, found={"projections": source.location}, inputs=[path])


def reference_dataset(path: Path, dataset: str) -> HDF5Source:
    """Flats or darks from a dataset the user names."""
    with open_hdf5(path) as file:
        if not isinstance(node(file, dataset), h5py.Dataset):
            raise UserError(f"{path} has no dataset {dataset}; it has {list_stacks(file)}")
        return hdf5_source(file, path, dataset)


def list_stacks(file: h5py.File, limit: int = 6) -> str:
    """The three-dimensional datasets of a file, in words, for messages."""
    names: list[str] = []

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and item.ndim == 3:
            names.append(f"/{name} {item.shape}")

    file.visititems(visit)
    if not names:
        return "no three-dimensional dataset"
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
