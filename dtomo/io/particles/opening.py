"""Particle lists read and written, whatever program they are for."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dtomo.errors import UserError
from dtomo.io.output import replaced
from dtomo.io.particles.dynamo import dynamo_bytes, read_dynamo
from dtomo.io.particles.motl import is_motl, motl_bytes, read_motl
from dtomo.io.particles.origin import Origin, ReadingOptions
from dtomo.io.particles.particles import Particles
from dtomo.io.particles.pytom import pytom_bytes, read_pytom
from dtomo.io.particles.relion import read_relion
from dtomo.io.particles.relion_writer import WritingOptions, relion_bytes

_READERS = {"pytom": read_pytom, "relion": read_relion, "dynamo": read_dynamo, "motl": read_motl}
_SUFFIXES = {".xml": "pytom", ".star": "relion", ".tbl": "dynamo", ".em": "motl"}
PROGRAMS = {"pytom": "PyTom XML", "relion": "RELION STAR", "dynamo": "Dynamo table", "motl": "AV3 motive list"}
"""Names of the formats, for people."""
_LACKS = {
    "pytom": {"voxel_sizes": "pixel sizes"},
    "relion": {"wedges": "missing wedges"},
    "dynamo": {"files": "names of files", "halves": "halves", "weights_files": "files of weights"},
    "motl": {
        "files": "names of files",
        "halves": "halves",
        "weights_files": "files of weights",
        "wedges": "missing wedges",
        "voxel_sizes": "pixel sizes",
    },
}


def particle_format(path: str | os.PathLike[str]) -> str:
    """ "pytom" (.xml), "relion" (.star), "dynamo" (.tbl) or "motl" (.em), by the suffix; UserError for any other."""
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise UserError(
            f"{path}: particle lists are .xml (PyTom), .star (RELION), .tbl (Dynamo) or .em (AV3), "
            f"not {suffix or '(no suffix)'}"
        )
    return _SUFFIXES[suffix]


def recognise_particles(path: str | os.PathLike[str]) -> str | None:
    """The format of a file that is a particle list by its suffix (and, for .em, by its shape), or None."""
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES or not Path(path).is_file():
        return None
    try:
        return None if suffix == ".em" and not is_motl(Path(path)) else _SUFFIXES[suffix]
    except UserError:
        return None


def read_particles(path: str | os.PathLike[str], *, format: str | None = None, **options: Any) -> Particles:
    """Read a particle list.

    Parameters
    ----------
    path, format
        The file, and its format if the suffix does not tell: "pytom", "relion", "dynamo", "motl".
    **options
        As below.

    Other Parameters
    ----------------
    pixel_size : float
        Voxel of the boxes and of the tomogram that positions count in, ångström, in place of what the file says.
    binning : float
        How many unbinned voxels one of those is wide; default: as the file says, else 1.
    tomogram_sizes : tuple or mapping
        Unbinned size (x, y, z) of the tomograms in voxels, or a mapping of it by their names: where RELION 5 counts
        positions from. Without it they are not known.
    center_offset : float
        Unbinned voxels that the middle RELION 5's positions count from lies beyond size/2: 0 as RELION extracts, -1
        for files of programs that take size/2 - 1.
    pytom_origin_sign : bool
        The file is of PyTom's own converter, which writes RELION's origins with the sign of PyTom's shifts.
    frame : str
        "tomogram" (default): orientations and shifts are those in the tomogram; "box": those in RELION's boxes, which
        it extracts turned by ``rlnTomoSubtomogramRot/Tilt/Psi``.
    particle_names : str
        Names of the subtomograms of lists that only number them, ``#`` for digits; for Dynamo ``particle_#####.em``.

    Returns
    -------
    Particles
        The list; ``origin.notes`` says in sentences how it was read.

    Raises
    ------
    UserError
        Missing, damaged or of another format; see the readers.
    """
    place = Path(path)
    if not place.is_file():
        raise UserError(f"there is no file {path}")
    kind = format or particle_format(place)
    if kind not in _READERS:
        raise UserError(f"formats of particle lists are {', '.join(_READERS)}; got {kind}")
    try:
        return _READERS[kind](place, ReadingOptions(**options))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error


def write_particles(
    path: str | os.PathLike[str],
    particles: Particles,
    *,
    format: str | None = None,
    overwrite: bool = False,
    inputs: Iterable[str | os.PathLike[str]] = (),
    **options: Any,
) -> Path:
    """Write a particle list; a file appears once it is whole.

    What was read in the same format and not changed since is written as it was.

    Parameters
    ----------
    path, format
        The file, and its format if the suffix does not tell.
    overwrite
        Replace a file that exists.
    inputs
        Files that are never replaced.
    **options
        As below.

    Other Parameters
    ----------------
    pixel_size : float
        Ångström, for particles that have none.
    binning : float
        How many unbinned voxels a voxel of theirs is wide (RELION counts positions in unbinned ones); default 1.
    tomogram_sizes, center_offset : tuple or mapping, and float
        As in `read_particles`: where RELION 5's positions count from.
    box_size, voltage, spherical_aberration, amplitude_contrast : float
        For RELION's optics table: voxels, kV, mm, a fraction.
    relion : str
        "3.1", "4" or "5"; default: 5 if sizes of the tomograms are given, else 4.

    Raises
    ------
    UserError
        The file cannot be written, or the format needs what the list does not say.
    """
    target = Path(path)
    kind = format or particle_format(target)
    if kind not in _READERS:
        raise UserError(f"formats of particle lists are {', '.join(_READERS)}; got {kind}")
    given = WritingOptions(**options)
    if not target.parent.is_dir():
        raise UserError(f"the folder {target.parent} for {target.name} does not exist; create it first")
    if target.is_dir():
        raise UserError(f"{target} is a folder; give the list another name")
    if any(target.exists() and Path(item).exists() and target.samefile(item) for item in inputs):
        raise UserError(f"{target} is the list that is read; give the output another name")
    if target.exists() and not overwrite:
        raise UserError(f"{target} exists; give another name, or replace it with --overwrite")
    if kind == "pytom":
        content = pytom_bytes(particles)
    elif kind == "relion":
        content = relion_bytes(particles, given)
    elif kind == "dynamo":
        content = dynamo_bytes(particles, given.pixel_size)
    else:
        content = motl_bytes(particles, target)
    with replaced(target) as part:
        part.write_bytes(content)
    return target


def reading_notes(particles: Particles) -> tuple[str, ...]:
    """Sentences on how a list was read: which convention, what is not known."""
    return particles.origin.notes if isinstance(particles.origin, Origin) else ()


def what_is_lost(particles: Particles, format: str) -> tuple[str, ...]:
    """What a format has no place for, of that which this list holds."""
    lost = []
    for name, words in _LACKS[format].items():
        value = getattr(particles, name)
        if isinstance(value, np.ndarray):
            there = bool((value != 0).any() and not np.isnan(value.astype(float)).all())
        else:
            there = any(value)
        if there:
            lost.append(words)
    origin = particles.origin
    if isinstance(origin, Origin) and origin.format != format:
        lost.append(f"what only a {PROGRAMS[origin.format]} can say")
    return tuple(lost)
