"""Any other HDF5 file: frames and positions by name, or found by the names that programs give them."""

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.hdf5 import list_stacks
from dtomo.io.hdf5_files import node, number, open_hdf5, text_attribute
from dtomo.io.ptycho.reading import PtychoReading, small_array, wavelength_of
from dtomo.io.sources import hdf5_source
from dtomo.io.units import convert_energy, convert_length, usable

FRAMES = ("dp", "data", "frames", "diffraction", "diffraction_patterns", "patterns", "intensities", "ptychogram")
POSITIONS = ("positions", "position", "probe_positions", "scan_positions", "translation", "translations", "scan")
"""Row and column of each frame, ``(frame, 2)``."""
METRES = ("encoder",)
"""The same in metres: PtyLab's."""
PAIRS = (
    ("probe_position_y_m", "probe_position_x_m", "m"),
    ("positions_y", "positions_x", None),
    ("position_y", "position_x", None),
    ("pos_y", "pos_x", None),
    ("posy", "posx", None),
    ("ppY", "ppX", "m"),
)
"""Names of rows and of columns, with the unit that programs write them in."""
WAVELENGTH = ("wavelength", "lambda")
ENERGY = ("energy", "photon_energy", "beam_energy")
DISTANCE = ("distance", "detector_distance", "zo")
PIXEL = ("detector_pixel_size", "pixel_size", "x_pixel_size", "dxd")
MASK = ("mask", "good_pixels")
PROBE = ("probe", "probe_guess", "illumination")
DEEPEST = 4
MOST_GROUPS = 1000


def read_hdf5(path: Path, dataset: str | None = None) -> PtychoReading:
    """Frames and what lies beside them.

    Parameters
    ----------
    path
        The file.
    dataset
        Of the frames; default: the one of `FRAMES`, or the only one with three axes.

    Raises
    ------
    UserError
        Frames that are missing or ambiguous, units that are not known.
    """
    with open_hdf5(path) as file:
        name = _frames_name(file, path, dataset)
        reading = PtychoReading(path, "hdf5", hdf5_source(file, path, name), inputs=[path])
        reading.found["frames"] = f"{path}:{name}"
        groups = _groups(file, name)
        _read_positions(groups, reading)
        _read_numbers(groups, reading)
        _read_images(groups, reading)
    return reading


def stack_name(file: h5py.File) -> str | None:
    """The dataset of frames by its name, or the only one with three axes; None if that leaves it open."""
    stacks: list[str] = []

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and item.ndim == 3 and item.dtype.kind in "uif":
            stacks.append(f"/{name}")

    file.visititems(visit)
    named = [stack for known in FRAMES for stack in stacks if stack.rsplit("/", 1)[1] == known]
    if named and (len(named) == 1 or named[0].rsplit("/", 1)[1] != named[1].rsplit("/", 1)[1]):
        return named[0]
    return stacks[0] if len(stacks) == 1 else None


def _frames_name(file: h5py.File, path: Path, dataset: str | None) -> str:
    if dataset is not None:
        name = "/" + dataset.strip("/")
        if not isinstance(node(file, name), h5py.Dataset):
            raise UserError(f"{path} has no dataset {name}; it has {list_stacks(file)}")
        return name
    found = stack_name(file)
    if found is None:
        raise UserError(f"{path} has {list_stacks(file)}: name the frames with dataset=... (--dataset)")
    return found


def _groups(file: h5py.File, frames: str) -> list[h5py.Group]:
    """The group of the frames first, those above it, then all others, not deep ones."""
    parts = frames.strip("/").split("/")[:-1]
    nearest = [file["/".join(parts[:count])] if count else file for count in range(len(parts), -1, -1)]
    known = {group.name for group in nearest}
    return nearest + [group for group in _below(file, 0) if group.name not in known][:MOST_GROUPS]


def _below(group: h5py.Group, depth: int) -> Iterator[h5py.Group]:
    for name in group:
        item = node(group, name)
        if isinstance(item, h5py.Group) and depth < DEEPEST:
            yield item
            yield from _below(item, depth + 1)


def _read_positions(groups: list[h5py.Group], reading: PtychoReading) -> None:
    count = reading.frames.shape[0]
    for group in groups:
        for row, column, unit in PAIRS:
            pair = [item for name in (row, column) if (item := _per_frame(group, name, (count,))) is not None]
            if len(pair) == 2:
                table = np.stack([np.asarray(item[()], np.float64) for item in pair], 1)
                where = f"{reading.path}:{pair[0].name}, {pair[1].name}"
                _put_positions(reading, table, _unit(pair[0]) or unit, where)
                return
        for name in POSITIONS + METRES:
            item = _per_frame(group, name, (count, 2))
            if item is not None:
                unit = _unit(item) or ("m" if name in METRES else None)
                _put_positions(reading, np.asarray(item[()], np.float64), unit, f"{reading.path}:{item.name}")
                return
    reading.unfit = _other_counts(groups, reading)


def _other_counts(groups: list[h5py.Group], reading: PtychoReading) -> str | None:
    """What would be positions, if it had one for each frame."""
    for group in groups:
        for name in (*POSITIONS, *METRES, *(name for pair in PAIRS for name in pair[:2] if name is not None)):
            item = node(group, name)
            if isinstance(item, h5py.Dataset) and item.ndim in (1, 2) and item.dtype.kind in "iuf":
                return f"{reading.path}:{item.name} has shape {item.shape}"
    return None


def _per_frame(group: h5py.Group, name: str, shape: tuple[int, ...]) -> h5py.Dataset | None:
    item = node(group, name)
    fits = isinstance(item, h5py.Dataset) and item.shape == shape and item.dtype.kind in "iuf"
    return item if fits else None


def _unit(item: h5py.Dataset) -> str | None:
    return text_attribute(item, "units") or text_attribute(item, "unit")


def _put_positions(reading: PtychoReading, table: NDArray[np.float64], unit: str | None, where: str) -> None:
    reading.position_unit = unit
    reading.put("positions", table, where)


def _first(groups: list[h5py.Group], names: tuple[str, ...]) -> tuple[float, str | None, str] | None:
    for group in groups:
        for name in names:
            value = number(group, name)
            if value is not None and usable(value[0]):
                return value[0], value[1], f"{group.name.rstrip('/')}/{name}"
    return None


def _read_numbers(groups: list[h5py.Group], reading: PtychoReading) -> None:
    """Lengths are metres and energies keV where the file names no unit."""
    path = reading.path
    wavelength, energy = _first(groups, WAVELENGTH), _first(groups, ENERGY)
    if wavelength is not None:
        value, unit, name = wavelength
        reading.put("wavelength", convert_length(value, unit or "m", "m", f"{path}:{name}"), f"{path}:{name}")
    elif energy is not None:
        value, unit, name = energy
        keV = convert_energy(value, unit or "keV", f"{path}:{name}")
        reading.put("wavelength", wavelength_of(keV), f"{path}:{name} (energy)")
    distance = _first(groups, DISTANCE)
    if distance is not None:
        value, unit, name = distance
        reading.put("distance", convert_length(value, unit or "m", "m", f"{path}:{name}"), f"{path}:{name}")
    pixel = _first(groups, PIXEL)
    if pixel is not None:
        value, unit, name = pixel
        size = convert_length(value, unit or "m", "m", f"{path}:{name}")
        reading.put("detector_pixel", (size, size), f"{path}:{name}")


def _read_images(groups: list[h5py.Group], reading: PtychoReading) -> None:
    shape = reading.frames.shape[1:]
    for group in groups:
        for name in MASK:
            item = node(group, name)
            if reading.mask is None and isinstance(item, h5py.Dataset) and item.shape == shape:
                where = f"{reading.path}:{item.name}"
                mask = small_array(group, name, where, kinds="uibf")
                assert mask is not None
                reading.put("mask", mask > 0, f"{where} (above 0 is good)")
        for name in PROBE:
            item = node(group, name)
            if reading.probe is None and isinstance(item, h5py.Dataset) and item.shape[-2:] == shape:
                where = f"{reading.path}:{item.name}"
                probe = small_array(group, name, where, kinds="cuif")
                if probe is not None and probe.dtype.kind == "c":
                    reading.put("probe", probe.reshape(-1, *shape).astype(np.complex64), where)
