"""NeXus scans (NXtomo): frames told apart by ``image_key``, angles per frame, data behind external links.

Application definition: https://manual.nexusformat.org/classes/applications/NXtomo.html (image_key 0
projection, 1 flat, 2 dark, 3 invalid). Files whose groups follow a beamline's own names (an NXdata with
``signal`` and ``axes``, ``image_key`` in an NXdetector beside it) are understood too. Links whose files are
missing are passed over.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.angles import MOST_ANGLES, AngleTable, check_count
from dtomo.io.hdf5 import read_angles
from dtomo.io.hdf5_files import node, number, open_hdf5, text_attribute
from dtomo.io.reading import Reading
from dtomo.io.sources import SelectedFrames, hdf5_source
from dtomo.io.units import convert_energy, convert_length, usable

_ANGLE_NAMES = ("rotation_angle", "theta", "gts_theta_value", "phi", "omega", "angle")
_DEPTH = 6


def is_nexus(file: h5py.File) -> bool:
    """Whether some top-level group is an NXentry, or a file of that kind without classes (``entry``)."""
    return bool(_entries(file))


def _entries(file: h5py.File) -> list[str]:
    names = []
    for name in file:
        item = node(file, name)
        if isinstance(item, h5py.Group):
            kind = text_attribute(item, "NX_class") or ""
            if kind in ("NXentry", "NXsubentry") or (not kind and name.startswith("entry")):
                names.append(name)
    default = text_attribute(file, "default")
    return sorted(names, key=lambda name: name != default)


def read_nexus(path: Path, dataset: str | None = None) -> Reading:
    """An NXtomo scan, or a beamline's NeXus file with stack, angles and image_key.

    Parameters
    ----------
    path
        The main file; external links are followed relative to it.
    dataset
        The stack to take where a file holds several.

    Raises
    ------
    UserError
        No stack of frames, no projections among them, or lengths that do not match, naming datasets and
        counts.
    """
    with open_hdf5(path) as file:
        name, entry = _find_stack(file, path, dataset)
        stack = hdf5_source(file, path, name, complex_too=dataset is not None)
        reading = Reading(path, "nxtomo", stack, inputs=_files(file, path, name))
        key_name, keys = _find_image_key(file, path, name, entry, stack.shape[0])
        angles = _find_angles(file, path, name, entry, stack.shape[0])
        _split(reading, keys, key_name, angles)
        _read_instrument(file, reading, name, entry)
        return reading


def _split(reading: Reading, keys: NDArray[np.int64] | None, key_name: str, angles: AngleTable | None) -> None:
    """Projections, flats and darks by key, and the angles of the projections."""
    stack = reading.projections
    reading.found["projections"] = stack.location
    if keys is None:
        reading.warnings.append(
            f"{reading.path} has no image_key: all {stack.shape[0]} frames are taken as projections"
        )
        chosen = np.arange(stack.shape[0])
    else:
        chosen = np.flatnonzero(keys == 0)
        if not chosen.size:
            raise UserError(f"{key_name} marks none of the {keys.size} frames as a projection (image_key 0)")
        reading.found["image_key"] = key_name
        reading.projections = SelectedFrames.of(stack, chosen)
        reading.found["projections"] += f" where {key_name.rsplit(':', 1)[1]} is 0"
        for what, key in (("flats", 1), ("darks", 2)):
            index = np.flatnonzero(keys == key)
            if index.size:
                setattr(reading, what, SelectedFrames.of(stack, index))
                reading.found[what] = f"{stack.location} where image_key is {key}"
        other = int(np.sum((keys < 0) | (keys > 2)))
        if other:
            reading.warnings.append(f"{key_name} marks {other} frames as invalid or for alignment; they are left out")
    if angles is not None:
        check_count(angles, stack.shape[0], stack.location)
        reading.angles = angles.take(chosen)
        reading.found["angles"] = angles.where


def _walk(
    group: h5py.Group, prefix: str, depth: int = _DEPTH, above: tuple[h5py.Group, ...] = ()
) -> Iterator[tuple[str, h5py.Group | h5py.Dataset]]:
    """Names and items below a group, in file order, without broken links and links to a group above."""
    above = (*above, group)
    for name in group:
        item = node(group, name)
        if item is None or item in above:
            continue
        yield f"{prefix}/{name}", item
        if isinstance(item, h5py.Group) and depth > 0:
            yield from _walk(item, f"{prefix}/{name}", depth - 1, above)


def _find_stack(file: h5py.File, path: Path, dataset: str | None) -> tuple[str, str]:
    """Name of the stack and of its entry: the user's, NXtomo's place, then the likeliest by shape."""
    entries = _entries(file)
    if dataset is not None:
        if not isinstance(node(file, dataset), h5py.Dataset):
            raise UserError(f"{path} has no dataset {dataset}, or it lies behind a link to a missing file")
        name = "/" + dataset.strip("/")
        return name, next((f"/{entry}" for entry in entries if name.startswith(f"/{entry}/")), f"/{entries[0]}")
    for entry in entries:
        for name in (f"/{entry}/instrument/detector/data", f"/{entry}/tomo_entry/instrument/detector/data"):
            if _is_stack(node(file, name)):
                return name, name.rsplit("/instrument", 1)[0]
    for entry in entries:
        found = _candidates(file, entry)
        if found:
            return found[0], f"/{entry}"
    raise UserError(
        f"{path} has no stack of frames (frame, row, column){_broken(file, entries)}; "
        "name its dataset with dataset='/entry/...' (--dataset)"
    )


def _broken(file: h5py.File, entries: list[str]) -> str:
    """The missing files that ``data`` of some group is linked to, in words."""
    missing: dict[str, None] = {}
    for entry in entries:
        for _, item in _walk(file[entry], f"/{entry}"):
            link = item.get("data", getlink=True) if isinstance(item, h5py.Group) else None
            if isinstance(link, h5py.ExternalLink) and node(item, "data") is None:
                missing[link.filename] = None
    return f": data are links to {' and '.join(missing)}, which are missing or not whole" if missing else ""


def _is_stack(item: object) -> bool:
    return isinstance(item, h5py.Dataset) and item.ndim == 3 and item.dtype.kind in "uif"


def _candidates(file: h5py.File, entry: str) -> list[str]:
    """Stacks of an entry, best first: with an image_key, called the signal by an NXdata, long ones."""
    scored = []
    keys = [item.size for _, item in _walk(file[entry], f"/{entry}") if _is_key(_, item)]
    default = text_attribute(file[entry], "default")
    for name, item in _walk(file[entry], f"/{entry}"):
        if not _is_stack(item):
            continue
        parent = file[name.rsplit("/", 1)[0]]
        leaf = name.rsplit("/", 1)[1]
        is_signal = text_attribute(parent, "signal") == leaf or text_attribute(item, "signal") == "1"
        in_default = default is not None and name.startswith(f"/{entry}/{default}/")
        beside_key = isinstance(node(parent, "image_key"), h5py.Dataset)
        scored.append((beside_key, item.shape[0] in keys, in_default, is_signal, leaf == "data", item.shape[0], name))
    return [row[-1] for row in sorted(scored, key=lambda row: row[:-1], reverse=True)]


def _is_key(name: str, item: object) -> bool:
    return isinstance(item, h5py.Dataset) and name.rsplit("/", 1)[1] == "image_key" and item.dtype.kind in "uif"


def _find_image_key(
    file: h5py.File, path: Path, stack: str, entry: str, frames: int
) -> tuple[str, NDArray[np.int64] | None]:
    """The image_key beside the stack, else one of an entry with as many values as there are frames."""
    beside = stack.rsplit("/", 1)[0] + "/image_key"
    names = [beside, f"{entry}/instrument/detector/image_key", f"{entry}/data/image_key"]
    names = [name for name in names if _is_key(name, node(file, name))]
    if not names:
        named = [name for name, item in _walk(file[entry], entry) if _is_key(name, item)]
        group = stack.rsplit("/", 2)[1]
        names = sorted(named, key=lambda name: (file[name].size != frames, f"/{group}/" not in name))
    if not names:
        return "", None
    where = f"{path}:{names[0]}"
    count = file[names[0]].size
    if count != frames:
        raise UserError(f"{where} has {count} values but {path}:{stack} has {frames} frames; they must be as many")
    if frames > MOST_ANGLES:
        raise UserError(f"{path}:{stack} has {frames} frames; dtomo reads scans of up to {MOST_ANGLES}")
    keys = np.asarray(file[names[0]][()]).reshape(-1).astype(np.int64)
    control = node(file, names[0].rsplit("/", 1)[0] + "/image_key_control")
    if isinstance(control, h5py.Dataset) and control.size == frames and control.dtype.kind == "i":
        keys = np.where(np.asarray(control[()]).reshape(-1) < 0, 3, keys)  # alignment frames are no projections
    return where, keys


def _find_angles(file: h5py.File, path: Path, stack: str, entry: str, frames: int) -> AngleTable | None:
    """NXsample's rotation_angle, else what the axes of the stack's NXdata name, else one by name.

    A stack in an NXdetector belongs to the NXdata of the same name (``instrument/imaging`` to ``imaging``).
    """
    parent = stack.rsplit("/", 1)[0]
    for name in (
        f"{entry}/sample/rotation_angle",
        f"{entry}/data/rotation_angle",
        f"{parent}/rotation_angle",
    ):
        table = read_angles(file, path, name)
        if table is not None:
            return table
    leaf = "/" + parent.rsplit("/", 1)[1]
    groups = [name for name, item in _walk(file[entry], entry) if isinstance(item, h5py.Group)]
    groups = [parent, *sorted(groups, key=lambda name: not name.endswith(leaf))]
    for group in groups:
        for name in (*_axis_names(file[group]), *_ANGLE_NAMES):
            item = node(file, f"{group}/{name}")
            if isinstance(item, h5py.Dataset) and item.size == frames and item.dtype.kind in "uif":
                return read_angles(file, path, f"{group}/{name}")
    return None


def _axis_names(group: h5py.Group) -> list[str]:
    """Names of an NXdata's first axis if it is an angle, the measured value before the one that was set."""
    axes = group.attrs.get("axes")
    first = axes[0] if isinstance(axes, np.ndarray) and axes.size else axes
    if isinstance(first, bytes):
        first = first.decode("utf-8", "replace")
    if not isinstance(first, str) or first in (".", ""):
        return []
    first = first.split(":")[0]
    data = node(group, first)
    unit = text_attribute(data, "units") if data is not None else None
    if not re.search("theta|angle|rot|phi|omega", first, re.IGNORECASE) and not (unit or "").startswith(("deg", "rad")):
        return []
    return [first.removesuffix("_set"), first]


def _read_instrument(file: h5py.File, reading: Reading, stack: str, entry: str) -> None:
    """Pixel size, distances, energy and axis, with the units NXtomo gives them where none is stated."""
    detector = stack.rsplit("/", 1)[0]
    sample = f"{entry}/sample"
    widths = (f"{place}/x_pixel_size" for place in (sample, detector, f"{entry}/instrument/detector"))
    reading.pixel_size = _length(file, reading, "pixel_size", tuple(widths), "um")
    other = _length(file, reading, "row_size", (f"{sample}/y_pixel_size", f"{detector}/y_pixel_size"), "um")
    reading.found.pop("row_size", None)
    if reading.pixel_size and other and abs(other / reading.pixel_size - 1) > 1e-3:
        reading.warnings.append(
            f"{reading.path}: pixels are {reading.pixel_size:g} µm wide and {other:g} µm high; the width is used"
        )
    reading.sample_detector_distance = _length(
        file,
        reading,
        "sample_detector_distance",
        (f"{detector}/distance", f"{entry}/instrument/detector/distance"),
        "mm",
    )
    reading.source_sample_distance = _length(
        file, reading, "source_sample_distance", (f"{entry}/instrument/source/distance",), "mm"
    )
    for name in (f"{entry}/instrument/beam/incident_energy", f"{entry}/beam/incident_energy",
                 f"{entry}/instrument/monochromator/energy"):  # fmt: skip
        value = number(file, name)
        if value is not None and usable(value[0]):
            reading.energy = convert_energy(value[0], value[1] or "keV", f"{reading.path}:{name}")
            reading.found["energy"] = f"{reading.path}:{name}"
            break
    value = number(file, f"{detector}/x_rotation_axis_pixel_position")
    if value is not None and value[0] != 0:
        reading.center = (reading.projections.shape[2] - 1) / 2 + value[0]
        reading.found["center"] = (
            f"{reading.path}:{detector}/x_rotation_axis_pixel_position (from the detector's middle)"
        )


def _length(file: h5py.File, reading: Reading, what: str, names: tuple[str, ...], to: str) -> float | None:
    for name in names:
        value = number(file, name)
        if value is None or value[0] == 0:
            continue
        where = f"{reading.path}:{name}"
        reading.found[what] = where
        return convert_length(abs(value[0]), value[1] or "m", to, where)
    return None


def _files(file: h5py.File, path: Path, stack: str) -> list[Path]:
    """The main file and the one the stack really lies in."""
    return list(dict.fromkeys([path, Path(file[stack].file.filename)]))
