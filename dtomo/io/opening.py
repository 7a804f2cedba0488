"""``open``: recognise a scan by its content, read it, put the user's word on top, and check that all fits."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike

from dtomo.errors import UserError
from dtomo.io.angles import AngleTable, check_count, given_angles, split_entries, to_degrees
from dtomo.io.angles import angle_unit as known_angle_unit
from dtomo.io.hdf5 import is_dxchange, list_stacks, read_dxchange, read_named_dataset, reference_dataset
from dtomo.io.hdf5_files import open_hdf5
from dtomo.io.heads import head_of, refuse_missing
from dtomo.io.mrc import looks_like_mrc, read_mrc_header, read_mrc_scan
from dtomo.io.nexus import is_nexus, read_nexus
from dtomo.io.probing import is_black, looks_normalized, suspicious_darks, suspicious_flats
from dtomo.io.ptycho.cxi import is_cxi
from dtomo.io.ptycho.ptyd import is_ptyd
from dtomo.io.reading import Reading
from dtomo.io.scan import Scan, Values
from dtomo.io.sources import ArraySource, Source, npy_source
from dtomo.io.tiff import is_tiff, nearby_angle_files, read_tiff, reference_source
from dtomo.io.tilts.series import SIGN
from dtomo.io.tilts.warp import NEGATED
from dtomo.io.zarr_store import is_zarr, read_zarr_scan, refuse_broken_store, stated_values

NPY = b"\x93NUMPY"
"""How NPY files begin."""

FramesGiven = ArrayLike | str | os.PathLike[str] | Source


def open(
    path: str | os.PathLike[str],
    *,
    angles: ArrayLike | str | os.PathLike[str] | None = None,
    angle_unit: str | None = None,
    flats: FramesGiven | None = None,
    darks: FramesGiven | None = None,
    pixel_size: float | None = None,
    energy: float | None = None,
    sample_detector_distance: float | None = None,
    source_sample_distance: float | None = None,
    center: float | None = None,
    dataset: str | None = None,
    values: Values | None = None,
    normalized: bool | None = None,
    skip_flats: Sequence[int] = (),
    skip_darks: Sequence[int] = (),
) -> Scan:
    """Open a scan: Data Exchange HDF5, NXtomo, TIFF frames, Zarr, an MRC stack or a NPY file, told by content.

    Only metadata, angles and a few rows of flats and darks are read; frames are read when a task asks for
    them. What is given here counts more than what the file says.

    Parameters
    ----------
    path
        File, folder of TIFF frames, or Zarr store.
    angles
        Degrees (a range of less than 20 needs `angle_unit`), or a text, CSV or NPY file, which may be
        followed by the entries to take: ``"angles.txt[10:101]"``. One per projection.
    angle_unit
        "degrees" or "radians"; needed where the file states none and the range could be either.
    flats, darks
        Array ``(frame, row, column)`` or ``(row, column)``, a file or folder (TIFF, MRC, NPY), or
        ``"file.h5:/dataset"``.
    pixel_size, energy, sample_detector_distance, source_sample_distance
        µm, keV, mm, mm.
    center
        Column of the rotation axis; pixel k has its middle at k.
    dataset
        Projections of an HDF5 file that holds several stacks or follows no known layout.
    values
        What the projections hold: "counts", "transmission" (counts over the open beam already), or "integrals" (line
        integrals: the logarithm is taken, or they are phases; real or complex). Only counts need flats and darks.
        None: what the file says; complex numbers are integrals; floating-point numbers in the range of transmissions
        without flats are transmissions; all others are counts.
    normalized
        True is short for "transmission", False for "counts".
    skip_flats, skip_darks
        Frames to leave out by index, counted from 0.

    Returns
    -------
    Scan

    Raises
    ------
    UserError
        A file that is missing, truncated or of an unknown kind, no angles, angles that do not match the
        frames or are not finite, an ambiguous unit, flats given for line integrals; each names the file, the dataset
        and both counts.
    """
    values = _asked_values(values, normalized)
    if values == "integrals" and (flats is not None or darks is not None):
        raise UserError(f"line integrals (--values integrals) need no flats and darks; leave them out for {path}")
    reading = _read(Path(path), dataset, angles is not None)
    table = _angles(reading, angles, angle_unit)
    degrees, notes = to_degrees(table)
    if isinstance(angles, str | os.PathLike) or angles is None:  # numbers are degrees, as documented above
        reading.warnings += notes
    for what, given in (("flats", flats), ("darks", darks)):
        if given is not None:
            source = _reference(given, what)
            setattr(reading, what, source)
            reading.found[what] = f"given: {source.location}"
            if isinstance(given, str | os.PathLike):
                reading.inputs.append(Path(os.fspath(given).rsplit(":/", 1)[0]))
    _put_given(
        reading,
        pixel_size=pixel_size,
        energy=energy,
        center=center,
        sample_detector_distance=sample_detector_distance,
        source_sample_distance=source_sample_distance,
    )
    scan = _scan(reading, degrees)
    scan = scan.without(flats=skip_flats, darks=skip_darks)
    return _checked(scan, values)


def _asked_values(values: Values | None, normalized: bool | None) -> Values | None:
    if normalized is None:
        return values
    named: Values = "transmission" if normalized else "counts"
    if values not in (None, named):
        raise UserError(f"values={values!r} and normalized={normalized} contradict each other; give one of them")
    return named


def recognise(path: Path, dataset: str | None = None) -> str:
    """The format of a scan by its content: "dxchange", "nxtomo", "hdf5", "tiff", "zarr", "mrc" or "npy".

    Raises
    ------
    UserError
        Nothing there, empty, or a kind of file that holds no scan.
    """
    refuse_missing(path)
    if path.is_dir():
        refuse_broken_store(path)
        return "zarr" if is_zarr(path) else "tiff"
    head = head_of(path)
    if h5py.is_hdf5(path):
        return _recognise_hdf5(path, dataset)
    if is_tiff(head):
        return "tiff"
    if head.startswith(NPY):
        return "npy"
    if path.suffix.lower() not in (".h5", ".hdf5", ".hdf", ".nxs", ".tif", ".tiff") and looks_like_mrc(path):
        return "mrc"
    raise UserError(
        f"{path} is not a scan dtomo knows: expected HDF5 (Data Exchange, NXtomo), TIFF, MRC, NPY, "
        "a folder of TIFF frames or a Zarr store"
    )


def _recognise_hdf5(path: Path, dataset: str | None) -> str:
    with open_hdf5(path) as file:
        if dataset is not None and not is_nexus(file):
            return "hdf5"
        if is_dxchange(file):
            return "dxchange"
        if is_nexus(file):
            return "nxtomo"
        if is_cxi(file) or is_ptyd(file):
            raise UserError(
                f"{path} is a ptychographic scan ({'cxi' if is_cxi(file) else 'ptyd'}): reconstruct it with dtomo "
                "ptycho, or open it with dtomo.io.ptycho.open_ptycho"
            )
        raise UserError(
            f"{path} is HDF5 but neither Data Exchange (/exchange/data) nor NXtomo (an NXentry); it "
            f"has {list_stacks(file)}: "
            "name the projections with dataset=... (--dataset) and give angles"
        )


def _read(path: Path, dataset: str | None, angles_given: bool) -> Reading:
    kind = recognise(path, dataset)
    if kind == "dxchange":
        return read_dxchange(path)
    if kind == "nxtomo":
        return read_nexus(path, dataset)
    if kind == "hdf5":
        return read_named_dataset(path, str(dataset))
    if dataset is not None:
        raise UserError(f"{path} is not HDF5, so it has no dataset {dataset}")
    if kind == "tiff":
        return read_tiff(path)
    if kind == "npy":
        return Reading(path, "npy", npy_source(path), found={"projections": str(path)}, inputs=[path])
    return read_zarr_scan(path) if kind == "zarr" else read_mrc_scan(path, angles_given)


def _angles(reading: Reading, given: Any, unit: str | None) -> AngleTable:
    frames = reading.projections.shape[0]
    if given is not None:
        table = given_angles(given, unit)
        if isinstance(given, str | os.PathLike):
            reading.inputs.append(split_entries(given)[0])
        reading.found["angles"] = f"given: {table.where}"
        if table.where.lower().split("[")[0].endswith((".tlt", ".rawtlt", "tiltangle")):
            reading.found["angles"] += f", {SIGN}"
            reading.tilt_series = reading.format == "mrc"
        reading.tilt_series |= reading.format == "mrc" and NEGATED in table.where
    elif reading.angles is not None:
        table = reading.angles
        if unit is not None:
            table = dataclasses.replace(table, unit=known_angle_unit(unit, "angle_unit"))
            reading.found["angles"] += f" (taken as {table.unit})"
    else:
        near = nearby_angle_files(reading.path)
        hint = f", such as {near[0]}" if near else ""
        raise UserError(
            f"{reading.path} has no angles for its {frames} projections; give them with angles=... "
            f"(--angles FILE){hint}"
        )
    check_count(table, frames, reading.found["projections"])
    return table


def _reference(given: Any, what: str) -> Source:
    """Flats or darks as the user gave them."""
    if isinstance(given, Source):
        return given
    if not isinstance(given, str | os.PathLike):
        try:
            return ArraySource(np.asarray(given), f"the {what} given")
        except ValueError as error:
            raise UserError(f"the {what} given are not an array of numbers ({error})") from error
    text = os.fspath(given)
    name, _, dataset = text.rpartition(":/")
    if name and not Path(text).exists():
        return reference_dataset(Path(name), "/" + dataset)
    path = Path(text)
    refuse_missing(path, f" for the {what}")
    if path.is_dir():
        return reference_source(path)
    if path.suffix.lower() == ".npy":
        return npy_source(path)
    head = head_of(path)
    if is_tiff(head):
        return reference_source(path)
    if h5py.is_hdf5(path):
        raise UserError(f"{path} is HDF5: name the dataset of the {what} as {path}:/exchange/data_white")
    if looks_like_mrc(path):
        return read_mrc_header(path).source
    raise UserError(f"{path} holds no frames dtomo can read as {what}; give TIFF, MRC, NPY or FILE.h5:/dataset")


def _put_given(reading: Reading, **values: float | None) -> None:
    for name, value in values.items():
        if value is None:
            continue
        if not np.isfinite(value) or (name != "center" and value <= 0):
            raise UserError(f"{name} must be a positive number, not {value}")
        setattr(reading, name, float(value))
        reading.found[name] = "given"
        reading.warnings = [note for note in reading.warnings if not (name == "pixel_size" and "voxel size" in note)]


def _scan(reading: Reading, degrees: np.ndarray[Any, np.dtype[np.float64]]) -> Scan:
    return Scan(
        path=reading.path,
        format=reading.format,
        projection_source=reading.projections,
        flat_source=reading.flats,
        dark_source=reading.darks,
        angles=degrees,
        center=reading.center,
        pixel_size=reading.pixel_size,
        energy=reading.energy,
        sample_detector_distance=reading.sample_detector_distance,
        source_sample_distance=reading.source_sample_distance,
        geometry=reading.geometry,
        values="integrals" if reading.projections.dtype.kind == "c" else "counts",
        found=reading.found,
        warnings=tuple(reading.warnings),
        inputs=tuple(dict.fromkeys(reading.inputs)),
        tilt_series=reading.tilt_series,
        tilt_axis=reading.tilt_axis,
    )


def _checked(scan: Scan, values: Values | None) -> Scan:
    """Warn of missing, swapped and suspicious flats and darks; settle what the projections hold."""
    notes = list(scan.warnings)
    if values is None and scan.format == "zarr":
        values = stated_values(scan.path)
    if values is None and scan.is_complex:
        values = "integrals"
        notes.append(f"{scan.path} holds complex numbers: taken as line integrals")
    if values is None and scan.tilt_series and scan.flat_source is None:
        values = "integrals"
        notes.append(
            f"{scan.path} is a tilt series: its values are taken as line integrals (mass-thickness); say otherwise "
            "with values=... (--values)"
        )
    if values == "integrals":
        return _without_references(dataclasses.replace(scan, values=values, warnings=tuple(notes)))
    if values is None and scan.flat_source is None:
        if looks_normalized(scan):
            values = "transmission"
            notes.append(
                f"{scan.path} has no flats, and its values are those of transmissions: taken as already normalised"
            )
        else:
            notes.append(
                f"{scan.path} has no flats: give them with flats=... (--flats), or say values='transmission' "
                "(--normalized) or values='integrals' (--values integrals)"
            )
    values = values or "counts"
    if values == "counts" and scan.flat_source is not None:
        if scan.dark_source is None:
            notes.append(f"{scan.path} has no darks: 0 is taken as the dark level")
        bright, dim = suspicious_darks(scan), suspicious_flats(scan)
        if bright:
            notes.append(_named("darks", bright, scan.dark_source, "as bright as the flats", "skip_darks"))
        elif dim:
            notes.append(_named("flats", dim, scan.flat_source, "as dark as the darks", "skip_flats"))
        if is_black(scan.flat_source):
            raise UserError(f"every flat of {scan.flat_source.location} is 0; give flats with flats=... (--flats)")
    return dataclasses.replace(scan, values=values, warnings=tuple(notes))


def _without_references(scan: Scan) -> Scan:
    """Line integrals without the flats and darks that lie beside them."""
    there = [name for name, source in (("flats", scan.flat_source), ("darks", scan.dark_source)) if source is not None]
    if not there:
        return scan
    note = f"the {' and '.join(there)} of {scan.path} are left aside: line integrals need none"
    return dataclasses.replace(scan, flat_source=None, dark_source=None, warnings=(*scan.warnings, note))


def _named(what: str, index: list[int], source: Source | None, how: str, option: str) -> str:
    numbers = ", ".join(map(str, index[:10])) + (" …" if len(index) > 10 else "")
    where = source.location if source is not None else ""
    flag = option.replace("_", "-")
    return f"{where}: {what} number {numbers} are {how}; leave them out with {option} (--{flag})"
