"""RELION's particle lists (STAR 3.0, 3.1, 4 and 5), with every table and column kept.

Conventions (`ParticleSet` of RELION 5): the matrix of rot, tilt, psi takes the reference to the box; where
``rlnTomoSubtomogramRot/Tilt/Psi`` are given, A_subtomogram takes the box to the tomogram, so that an orientation is
A_subtomogram A_particle. A particle lies at coordinate - A_subtomogram origin / pixel. ``rlnCoordinateX/Y/Z`` are
unbinned voxels from 0 (RELION 4), ``rlnCenteredCoordinateX/Y/ZAngst`` are ångström from the middle of the tomogram,
half its unbinned size, odd or even (RELION 5).
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError, shown
from dtomo.io.particles.angles import to_matrices
from dtomo.io.particles.origin import Origin, ReadingOptions, sizes_of
from dtomo.io.particles.particles import Particles
from dtomo.io.particles.star import StarBlock, parse_star

AXES = ("X", "Y", "Z")
ANGLES = ("rlnAngleRot", "rlnAngleTilt", "rlnAnglePsi")
BOX_ANGLES = ("rlnTomoSubtomogramRot", "rlnTomoSubtomogramTilt", "rlnTomoSubtomogramPsi")
CENTERED = tuple(f"rlnCenteredCoordinate{axis}Angst" for axis in AXES)
COORDINATES = tuple(f"rlnCoordinate{axis}" for axis in AXES)
ORIGINS = tuple(f"rlnOrigin{axis}Angst" for axis in AXES)
OLD_ORIGINS = tuple(f"rlnOrigin{axis}" for axis in AXES)
SCORES = ("rlnParticleFigureOfMerit", "rlnLCCmax")


def read_relion(path: Path, options: ReadingOptions) -> Particles:
    """A particle list; what only RELION knows is kept in `origin`.

    Raises
    ------
    UserError
        Not a STAR file with particles, values that are not numbers, a particle of an optics group there is not,
        offsets in ångström of particles whose pixel size is not known.
    """
    content = path.read_bytes()
    blocks = parse_blocks(content, str(path))
    table = particle_table(blocks, str(path))
    origin = Origin("relion", str(path), content, tuple(range(len(table.rows))), options)
    return particles_of(blocks, origin)


def parse_blocks(content: bytes, where: str) -> list[StarBlock]:
    """The blocks of a STAR file's bytes."""
    try:
        return parse_star(content.decode("utf-8"), where)
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not a STAR file: it is not text ({error.reason})") from error


def particle_table(blocks: list[StarBlock], where: str) -> StarBlock:
    """``data_particles``, or else the one table that has coordinates, images or angles of particles.

    Raises
    ------
    UserError
        There is none.
    """
    named = [block for block in blocks if block.name == "particles"]
    columns = {*COORDINATES, *CENTERED, *ANGLES, "rlnImageName"}
    likely = named or [block for block in blocks if block.is_loop and columns & set(block.labels)]
    if not likely:
        names = shown(", ".join(f"data_{block.name}" for block in blocks))
        raise UserError(f"{where} has no table of particles: it has {names}, none with coordinates, angles or images")
    return likely[0]


def optics_table(blocks: list[StarBlock]) -> StarBlock | None:
    """``data_optics``, if there is one."""
    return next((block for block in blocks if block.name == "optics"), None)


def particles_of(blocks: list[StarBlock], origin: Origin) -> Particles:
    """What the tables say of the particles that `origin` names."""
    where, options = origin.where, origin.options
    table = particle_table(blocks, where)
    if origin.index != tuple(range(len(table.rows))):
        table = StarBlock(table.name, table.labels, [table.rows[place] for place in origin.index])
    count = len(table.rows)
    voxel, unbinned = pixel_sizes(blocks, table, origin)
    box = rotations_of(table, BOX_ANGLES, where) if BOX_ANGLES[0] in table.labels else None
    if options.frame == "box":
        box = None
    rotations = rotations_of(table, ANGLES, where)
    shifts = _shifts(table, voxel, origin)
    if box is not None:
        rotations, shifts = box @ rotations, np.einsum("nij,nj->ni", box, shifts)
    tomograms = table.column("rlnTomoName") or table.column("rlnMicrographName") or [""] * count
    score = next((name for name in SCORES if name in table.labels), None)
    halves = numbers(table, "rlnRandomSubset", where) if "rlnRandomSubset" in table.labels else np.zeros(count)
    if not np.isin(halves, (0, 1, 2)).all():
        raise UserError(f"{where}: rlnRandomSubset is 1 or 2; it has {shown(sorted(set(halves.tolist())))}")
    return Particles(
        rotations,
        shifts,
        files=table.column("rlnImageName") or [],
        positions=_positions(table, voxel, unbinned, tomograms, origin),
        tomograms=tomograms,
        weights_files=table.column("rlnCtfImage") or [],
        scores=np.full(count, np.nan) if score is None else numbers(table, score, where),
        halves=halves.astype(np.int8),
        classes=table.column("rlnClassNumber") or [],
        voxel_sizes=voxel,
        origin=Origin("relion", where, origin.content, origin.index, options, _notes(blocks, table, origin)),
    )


def numbers(table: StarBlock, label: str, where: str) -> NDArray[np.float64]:
    """A column as numbers.

    Raises
    ------
    UserError
        Text that is no number, or there is no such column.
    """
    texts = table.column(label)
    if texts is None:
        raise UserError(f"{where}: data_{table.name} has no column _{label}")
    try:
        return np.array(texts, np.float64)
    except ValueError as error:
        raise UserError(f"{where}: _{label} of data_{table.name} holds {shown(error)}, expected numbers") from error


def pixel_sizes(
    blocks: list[StarBlock], table: StarBlock, origin: Origin
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each particle, ångström: a voxel of its box, an unbinned voxel of its tomogram; NaN: not known."""
    where, options = origin.where, origin.options
    count = len(table.rows)
    voxel, unbinned = np.full(count, np.nan), np.full(count, np.nan)
    optics = optics_table(blocks)
    if optics is not None and "rlnOpticsGroup" in table.labels:
        rows = _groups(optics, table, where)
        if "rlnTomoTiltSeriesPixelSize" in optics.labels:
            unbinned = numbers(optics, "rlnTomoTiltSeriesPixelSize", where)[rows]
        if "rlnImagePixelSize" in optics.labels:
            voxel = numbers(optics, "rlnImagePixelSize", where)[rows]
        elif "rlnTomoSubtomogramBinning" in optics.labels:
            voxel = unbinned * numbers(optics, "rlnTomoSubtomogramBinning", where)[rows]
    if np.isnan(voxel).all() and "rlnPixelSize" in table.labels:
        voxel = numbers(table, "rlnPixelSize", where)
    if np.isnan(voxel).all() and {"rlnDetectorPixelSize", "rlnMagnification"} <= set(table.labels):
        magnification = numbers(table, "rlnMagnification", where)
        if (magnification > 0).all():
            voxel = numbers(table, "rlnDetectorPixelSize", where) * 1e4 / magnification
    if options.binning is not None:
        if np.isnan(unbinned).all():
            unbinned = (voxel if options.pixel_size is None else options.pixel_size) / options.binning + 0 * voxel
        voxel = unbinned * options.binning
    if options.pixel_size is not None:
        voxel = np.full(count, options.pixel_size)
        unbinned = voxel / options.binning if options.binning else unbinned
    voxel = np.where(np.isnan(voxel), unbinned, voxel)
    unbinned = np.where(np.isnan(unbinned), voxel, unbinned)
    for name, sizes in (("a box", voxel), ("a tilt series", unbinned)):
        if np.isinf(sizes).any() or (sizes <= 0).any():
            raise UserError(f"{where}: the pixel size of {name} is a positive number of ångström, not {sizes.min():g}")
    return voxel, unbinned


def _groups(optics: StarBlock, table: StarBlock, where: str) -> NDArray[np.int64]:
    """Row of each particle's optics group."""
    names = optics.column("rlnOpticsGroup") or []
    places = {name: row for row, name in enumerate(names)}
    wanted = table.column("rlnOpticsGroup") or []
    missing = sorted(set(wanted) - set(places))
    if missing:
        raise UserError(f"{where}: particles have the optics group {shown(missing[0])}, which data_optics lacks")
    return np.array([places[name] for name in wanted], np.int64)


def rotations_of(table: StarBlock, labels: tuple[str, ...], where: str) -> NDArray[np.float64]:
    """Matrices of three columns; those there are not count as zero."""
    zeros = np.zeros(len(table.rows))
    angles = [numbers(table, label, where) if label in table.labels else zeros for label in labels]
    try:
        return to_matrices(np.stack(angles, axis=1), "relion")
    except UserError as error:
        raise UserError(f"{where}: _{labels[0]} and its fellows: {error}") from error


def _shifts(table: StarBlock, voxel: NDArray[np.float64], origin: Origin) -> NDArray[np.float64]:
    """Shifts in voxels, in the box."""
    in_angstrom = any(label in table.labels for label in ORIGINS)
    labels = ORIGINS if in_angstrom else OLD_ORIGINS
    columns = [
        numbers(table, label, origin.where) if label in table.labels else np.zeros(len(table.rows)) for label in labels
    ]
    offsets = np.stack(columns, axis=1)
    if not np.isfinite(offsets).all():
        raise UserError(f"{origin.where}: _{labels[0]} and its fellows are finite numbers; some are not")
    if in_angstrom:
        if np.isnan(voxel[offsets.any(axis=1)]).any():
            raise UserError(f"{origin.where} gives offsets in ångström but no pixel size; give it (--pixel-size)")
        offsets = np.where(offsets == 0, 0.0, offsets / voxel[:, None])
    return np.where(offsets == 0, 0.0, offsets if origin.options.pytom_origin_sign else -offsets)


def _positions(
    table: StarBlock,
    voxel: NDArray[np.float64],
    unbinned: NDArray[np.float64],
    tomograms: list[str],
    origin: Origin,
) -> NDArray[np.float64] | None:
    """Positions in voxels of the box's size; see the module."""
    where, options = origin.where, origin.options
    scale = np.where(np.isnan(voxel), 1.0, voxel / unbinned)[:, None]
    if CENTERED[0] in table.labels:
        centered = np.stack([numbers(table, label, where) for label in CENTERED], axis=1)
        middle = sizes_of(options.tomogram_sizes, tomograms) / 2 + options.center_offset
        found = (centered / unbinned[:, None] + middle) / scale
        return None if np.isnan(found).all() else found
    if COORDINATES[0] not in table.labels:
        return None
    zeros = np.zeros(len(table.rows))
    columns = [numbers(table, label, where) if label in table.labels else zeros for label in COORDINATES]
    return np.stack(columns, axis=1) / scale


def _notes(blocks: list[StarBlock], table: StarBlock, origin: Origin) -> tuple[str, ...]:
    options = origin.options
    sign = "+origin, as PyTom's converter writes them" if options.pytom_origin_sign else "-origin"
    notes = [f"rotations are RELION's rot, tilt, psi (the transpose of intrinsic ZYZ); shifts are {sign}"]
    if BOX_ANGLES[0] in table.labels:
        frame = "left out (orientations in the box)" if options.frame == "box" else "put before (in the tomogram)"
        notes.append(f"rlnTomoSubtomogramRot/Tilt/Psi are {frame}")
    if CENTERED[0] in table.labels:
        middle = f"size/2 {options.center_offset:+g}" if options.center_offset else "size/2 (what RELION extracts by)"
        if options.tomogram_sizes is None:
            notes.append("positions are from the middle of tomograms of unknown size, so they are not known")
        else:
            notes.append(f"coordinates are ångström from the middle of the tomogram, {middle}, unbinned voxels")
    elif COORDINATES[0] in table.labels:
        notes.append("coordinates are unbinned voxels from 0, as of RELION 4")
    general = next((block for block in blocks if block.name == "general"), None)
    stacks = None if general is None else general.column("rlnTomoSubTomosAre2DStacks")
    if stacks == ["1"]:
        notes.append("images are stacks of projections, which are not subtomograms: extract those from the tomograms")
    return tuple(notes)


def read_tomogram_sizes(path: Path) -> dict[str, tuple[float, float, float]]:
    """Unbinned sizes (x, y, z) by name of RELION's ``tomograms.star``.

    Raises
    ------
    UserError
        No table with ``rlnTomoName`` and ``rlnTomoSizeX/Y/Z``.
    """
    labels = [f"rlnTomoSize{axis}" for axis in AXES]
    blocks = parse_blocks(path.read_bytes(), str(path))
    table = next((block for block in blocks if {"rlnTomoName", *labels} <= set(block.labels)), None)
    if table is None:
        raise UserError(f"{path} has no table with rlnTomoName and rlnTomoSizeX, Y and Z; give tomograms.star")
    sizes = np.stack([numbers(table, label, str(path)) for label in labels], axis=1)
    return {name: (x, y, z) for name, (x, y, z) in zip(table.column("rlnTomoName") or [], sizes.tolist())}
