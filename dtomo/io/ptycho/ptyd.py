"""Prepared scans of ptypy (.ptyd): frames in chunks, positions of the probe in metres, energy in keV.

Layout: B. Enders and P. Thibault, "A computational framework for ptychographic reconstructions", Proc. R. Soc. A 472
(2016) 20160640, and ptypy's documentation of its data file. ``weights`` above 0 are good pixels.
"""

from pathlib import Path

import h5py
import numpy as np

from dtomo.errors import UserError
from dtomo.io.hdf5_files import node, open_hdf5
from dtomo.io.ptycho.joined import JoinedFrames
from dtomo.io.ptycho.reading import PtychoReading, small_array, stated, wavelength_of
from dtomo.io.sources import HDF5Source, hdf5_source

CHUNKS = "chunks"
TOGETHER = 2**24
"""Pixels of weights that are read at once."""


def is_ptyd(file: h5py.File) -> bool:
    """Whether the file has chunks and what ptypy notes of them."""
    return isinstance(node(file, CHUNKS), h5py.Group) and isinstance(node(file, "meta"), h5py.Group)


def read_ptyd(path: Path) -> PtychoReading:
    """A file of ptypy's prepared data; chunks may be links to other files.

    Raises
    ------
    UserError
        Naming the chunk that is missing or does not fit.
    """
    with open_hdf5(path) as file:
        chunks = _chunks(file, path)
        parts = tuple(_frames(file, path, chunk) for chunk in chunks)
        reading = PtychoReading(path, "ptyd", JoinedFrames.of(parts), motion="probe", inputs=[path])
        reading.found["frames"] = f"{path}:/{CHUNKS}/…/data ({len(parts)} chunks)"
        for chunk in chunks:
            linked = file.get(f"{CHUNKS}/{chunk}", getlink=True)
            if isinstance(linked, h5py.ExternalLink):
                reading.inputs.append((path.parent / linked.filename).resolve())
        _read_meta(file, reading)
        _read_positions(file, reading, chunks, parts)
        _read_weights(file, reading, chunks, parts)
    return reading


def _chunks(file: h5py.File, path: Path) -> list[str]:
    names = [name for name in file[CHUNKS] if name.isdigit()]
    if not names:
        raise UserError(f"{path} has no chunks of frames in /{CHUNKS}; ptypy has not written any yet")
    return sorted(names, key=int)


def _frames(file: h5py.File, path: Path, chunk: str) -> HDF5Source:
    name = f"/{CHUNKS}/{chunk}/data"
    if not isinstance(node(file, name), h5py.Dataset):
        link = file.get(f"{CHUNKS}/{chunk}", getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise UserError(f"{path}: chunk {chunk} is a link to {link.filename}, which is missing; copy it beside it")
        raise UserError(f"{path} has no frames at {name}; ptypy has not written them, or the file is damaged")
    return hdf5_source(file, path, name)


def _read_meta(file: h5py.File, reading: PtychoReading) -> None:
    path = reading.path
    energy = stated(file, "meta/energy")  # not noted: ptypy stores None as 0
    length = stated(file, "info/lam")
    if energy is not None:
        reading.put("wavelength", wavelength_of(energy), f"{path}:/meta/energy")
    elif length is not None:
        reading.put("wavelength", length, f"{path}:/info/lam")
    distance = stated(file, "meta/distance")
    if distance is not None:
        reading.put("distance", distance, f"{path}:/meta/distance")
    size = small_array(file, "meta/psize", f"{path}:/meta/psize")
    if size is not None and size.size in (1, 2) and np.isfinite(size).all() and (size > 0).all():
        height, width = (float(value) for value in np.broadcast_to(size.reshape(-1), 2))
        reading.put("detector_pixel", (height, width), f"{path}:/meta/psize")
    kind = node(file, "info/propagation")
    if isinstance(kind, h5py.Dataset) and kind.shape == () and kind.dtype.kind in "OS":
        text = kind[()]
        word = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
        reading.put("near_field", word.strip().lower() == "nearfield", f"{path}:/info/propagation")
    center = small_array(file, "meta/center", f"{path}:/meta/center")
    middle = np.array(reading.frames.shape[1:]) // 2
    if center is not None and center.size == 2 and np.abs(center.reshape(2) - middle).max() > 1:
        row, column = center.reshape(2)
        reading.warnings.append(
            f"{path}:/meta/center is ({row:g}, {column:g}), not the middle of the frames ({middle[0]}, {middle[1]}), "
            "which is taken; say otherwise with center=..."
        )


def _read_positions(file: h5py.File, reading: PtychoReading, chunks: list[str], parts: tuple[HDF5Source, ...]) -> None:
    found = []
    for chunk, part in zip(chunks, parts):
        name = f"{CHUNKS}/{chunk}/positions"
        where = f"{reading.path}:/{name}"
        positions = small_array(file, name, where)
        if positions is None:
            return
        if positions.shape != (part.shape[0], 2):
            raise UserError(
                f"{where} has shape {positions.shape}, but there are {part.shape[0]} frames; ({part.shape[0]}, 2) was "
                "expected"
            )
        found.append(np.asarray(positions, np.float64))
    reading.put("positions", np.concatenate(found), f"{reading.path}:/{CHUNKS}/…/positions")
    reading.position_unit = "m"


def _read_weights(file: h5py.File, reading: PtychoReading, chunks: list[str], parts: tuple[HDF5Source, ...]) -> None:
    """Pixels good in every frame."""
    shape = reading.frames.shape[1:]
    good = np.ones(shape, bool)
    differ = seen = False
    for chunk, part in zip(chunks, parts):
        weights = node(file, f"{CHUNKS}/{chunk}/weights")
        if not isinstance(weights, h5py.Dataset) or weights.shape != part.shape:
            continue
        together = max(1, TOGETHER // (shape[0] * shape[1]))
        for start in range(0, part.shape[0], together):
            there = weights[start : start + together] > 0
            differ |= bool((there != (good if seen else there[0])).any())
            good &= there.all(0)
            seen = True
    where = f"{reading.path}:/{CHUNKS}/…/weights"
    if not seen:
        for name in ("meta/weight2d", "info/weight2d"):
            image = small_array(file, name, f"{reading.path}:/{name}", kinds="uifb")
            if image is not None and image.shape == shape:
                good, seen, where = image > 0, True, f"{reading.path}:/{name}"
                break
    if differ:
        reading.warnings.append(f"{where} differ from frame to frame: only pixels good in all of them are used")
    if seen:
        reading.put("mask", np.asarray(good, bool), where)
