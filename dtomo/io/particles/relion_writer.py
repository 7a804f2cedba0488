"""Particle lists for RELION: tables that were read keep what was not changed, others are made anew."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.particles.angles import to_angles
from dtomo.io.particles.origin import Origin, Size, changed, check_places, origin_of, sizes_of
from dtomo.io.particles.particles import Particles
from dtomo.io.particles.relion import (
    ANGLES,
    BOX_ANGLES,
    CENTERED,
    COORDINATES,
    OLD_ORIGINS,
    ORIGINS,
    SCORES,
    parse_blocks,
    particle_table,
    particles_of,
    pixel_sizes,
    rotations_of,
)
from dtomo.io.particles.star import StarBlock, star_text


@dataclasses.dataclass(frozen=True)
class WritingOptions:
    """What a list does not say itself; see `dtomo.io.particles.write_particles`."""

    pixel_size: float | None = None
    binning: float = 1.0
    tomogram_sizes: Size | Mapping[str, Size] | None = None
    center_offset: float = 0.0
    box_size: int | None = None
    relion: str | None = None
    voltage: float | None = None
    spherical_aberration: float | None = None
    amplitude_contrast: float | None = None

    def __post_init__(self) -> None:
        if self.relion not in (None, "3.1", "4", "5"):
            raise UserError(f"STAR files are written for RELION 3.1, 4 or 5, not {self.relion}")
        for name in ("pixel_size", "binning", "box_size"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value > 0):
                raise UserError(f"the {name.replace('_', ' ')} is a positive number, not {value}")
        check_places(self.tomogram_sizes, self.center_offset)


def relion_bytes(particles: Particles, options: WritingOptions) -> bytes:
    """The STAR file of a list; one that was read from RELION keeps all that was not changed.

    Raises
    ------
    UserError
        Offsets or positions in ångström without pixel sizes, RELION 5 without sizes of the tomograms.
    """
    origin = origin_of(particles, "relion")
    if origin is None:
        return star_text(_new_blocks(particles, options)).encode()
    blocks = parse_blocks(origin.content, origin.where)
    table = particle_table(blocks, origin.where)
    whole = origin.index == tuple(range(len(table.rows)))
    table.rows = [list(table.rows[place]) for place in origin.index]
    kept = dataclasses.replace(origin, index=tuple(range(len(origin.index))))
    if not _update(blocks, table, particles, kept, options) and whole:
        return origin.content
    return star_text(blocks).encode()


def _update(blocks: list[StarBlock], table: StarBlock, now: Particles, origin: Origin, options: WritingOptions) -> bool:
    """Put what differs from the file into its table; whether anything did."""
    before = particles_of(blocks, origin)
    count, touched = len(now), False

    def differing(*names: str, all_of_them: bool = False) -> list[int]:
        found = np.full(count, all_of_them)
        for name in names:
            found |= changed(getattr(now, name), getattr(before, name), count)
        return np.flatnonzero(found).tolist()

    turned = differing("rotations")
    moved = differing("shifts", "voxel_sizes", all_of_them=origin.options.pytom_origin_sign)
    placed = differing("positions", all_of_them=_center_differs(table, now, origin, options))
    box = _box_matrices(table, origin)
    if turned:
        touched = True
        _put_rows(table, ANGLES, to_angles(box.transpose(0, 2, 1) @ now.rotations, "relion"), turned)
    if moved:
        touched = True
        old = OLD_ORIGINS[0] in table.labels and ORIGINS[0] not in table.labels
        _put_rows(table, OLD_ORIGINS if old else ORIGINS, _offsets(now, box, options, in_voxels=old), moved)
    if placed and now.positions is not None:
        touched = True
        _, unbinned = pixel_sizes(blocks, table, origin)
        _put_positions(table, now, unbinned, origin, options, placed)
    for name, label in _texts(table):
        rows = differing(name)
        if rows:
            touched = True
            rows = rows if label in table.labels else list(range(count))
            table.put(label, [_text(getattr(now, name)[row]) for row in rows], rows)
    return touched


def _texts(table: StarBlock) -> list[tuple[str, str]]:
    """Attributes that go into columns as they are."""
    tomogram = "rlnMicrographName" if "rlnTomoName" not in table.labels and "rlnMicrographName" in table.labels else ""
    return [
        ("files", "rlnImageName"),
        ("tomograms", tomogram or "rlnTomoName"),
        ("weights_files", "rlnCtfImage"),
        ("scores", next((name for name in SCORES if name in table.labels), SCORES[0])),
        ("halves", "rlnRandomSubset"),
        ("classes", "rlnClassNumber"),
    ]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{float(value):.9g}"
    return str(value)


def _center_differs(table: StarBlock, now: Particles, origin: Origin, options: WritingOptions) -> bool:
    centered = CENTERED[0] in table.labels and now.positions is not None
    return centered and options.center_offset != origin.options.center_offset


def _box_matrices(table: StarBlock, origin: Origin) -> NDArray[np.float64]:
    count = len(table.rows)
    if BOX_ANGLES[0] not in table.labels or origin.options.frame == "box":
        return np.tile(np.eye(3), (count, 1, 1))
    return rotations_of(table, BOX_ANGLES, origin.where)


def _put_rows(table: StarBlock, labels: tuple[str, ...], values: NDArray[np.float64], rows: list[int]) -> None:
    for axis, label in enumerate(labels):
        if label not in table.labels:
            table.put(label, [f"{value:.6f}" for value in values[:, axis]])
        else:
            table.put(label, [f"{values[row, axis]:.6f}" for row in rows], rows)


def _offsets(now: Particles, box: NDArray[np.float64], options: WritingOptions, in_voxels: bool) -> NDArray[np.float64]:
    """RELION's origins, in ångström or voxels of the box."""
    offsets = -np.einsum("nji,nj->ni", box, now.shifts)
    if in_voxels:
        return np.where(offsets == 0, 0.0, offsets)
    sizes = _voxel_sizes(now, options)
    if np.isnan(sizes[offsets.any(axis=1)]).any():
        raise UserError("RELION's offsets are in ångström, but the pixel size is not known; give it (--pixel-size)")
    return np.where(offsets == 0, 0.0, offsets * np.where(np.isnan(sizes), 1, sizes)[:, None])


def _voxel_sizes(now: Particles, options: WritingOptions) -> NDArray[np.float64]:
    sizes = now.voxel_sizes
    return sizes if options.pixel_size is None else np.where(np.isnan(sizes), options.pixel_size, sizes)


def _put_positions(
    table: StarBlock,
    now: Particles,
    unbinned: NDArray[np.float64],
    origin: Origin,
    options: WritingOptions,
    rows: Iterable[int],
) -> None:
    assert now.positions is not None
    sizes = np.where(np.isnan(now.voxel_sizes), 1.0, now.voxel_sizes)
    pixel = np.where(np.isnan(unbinned), 1.0, unbinned)
    places = now.positions * (sizes / pixel)[:, None]
    if CENTERED[0] in table.labels:
        known = options.tomogram_sizes if options.tomogram_sizes is not None else origin.options.tomogram_sizes
        places = _centered(places, pixel, sizes_of(known, now.tomograms), options.center_offset)
        _put_rows(table, CENTERED, places, list(rows))
    else:
        _put_rows(table, COORDINATES, places, list(rows))


def _centered(
    places: NDArray[np.float64], pixel: NDArray[np.float64], sizes: NDArray[np.float64], offset: float
) -> NDArray[np.float64]:
    """Ångström from the middle of the tomogram, of unbinned voxels."""
    if np.isnan(sizes[~np.isnan(places).any(axis=1)]).any():
        raise UserError(
            "RELION 5 counts positions from the middle of the tomogram: give its unbinned size (--tomogram-size), "
            "or write for RELION 4"
        )
    return (places - (sizes / 2 + offset)) * pixel[:, None]


def _new_blocks(now: Particles, options: WritingOptions) -> list[StarBlock]:
    version = options.relion or ("5" if options.tomogram_sizes is not None else "4")
    count = len(now)
    sizes = _voxel_sizes(now, options)
    columns: dict[str, list[str]] = {}
    columns["rlnTomoName" if version != "3.1" else "rlnMicrographName"] = now.tomograms
    if now.positions is not None:
        unbinned = np.where(np.isnan(sizes), 1.0, sizes) / options.binning
        places = now.positions * options.binning
        if version == "5":
            if np.isnan(sizes).any():
                raise UserError("RELION 5's positions are in ångström, but the pixel size is not known (--pixel-size)")
            places = _centered(places, unbinned, sizes_of(options.tomogram_sizes, now.tomograms), options.center_offset)
        columns |= _number_columns(CENTERED if version == "5" else COORDINATES, places)
    columns |= _number_columns(ANGLES, to_angles(now.rotations, "relion"))
    columns |= _number_columns(ORIGINS, _offsets(now, np.tile(np.eye(3), (count, 1, 1)), options, in_voxels=False))
    for name, label in (("files", "rlnImageName"), ("weights_files", "rlnCtfImage"), ("classes", "rlnClassNumber")):
        if any(getattr(now, name)):
            columns[label] = getattr(now, name)
    if "rlnClassNumber" in columns:
        columns["rlnClassNumber"] = _class_numbers(now.classes)
    if now.halves.any():
        columns["rlnRandomSubset"] = [_text(int(half)) for half in now.halves]
    if not np.isnan(now.scores).all():
        columns[SCORES[0]] = [_text(float(score)) for score in now.scores]
    groups, optics = _optics(sizes, version, options)
    columns["rlnOpticsGroup"] = groups
    comment = "# version 50001" if version == "5" else "# version 30001"
    particles = StarBlock("particles", list(columns), [], True, [comment])
    blank = StarBlock("", [], [[] for _ in range(count)])
    for label, values in columns.items():
        blank.put(label, values)
    particles.rows = blank.rows
    optics.comments = [comment]
    return [optics, particles]


def _number_columns(labels: tuple[str, ...], values: NDArray[np.float64]) -> dict[str, list[str]]:
    return {label: [f"{value:.6f}" for value in values[:, axis]] for axis, label in enumerate(labels)}


def _class_numbers(classes: list[str]) -> list[str]:
    """RELION's classes are whole numbers from 1: numbers stay, other names are counted."""
    if all(name.lstrip("-").isdigit() for name in classes):
        return classes
    names = {name: str(number) for number, name in enumerate(sorted(set(classes)), 1)}
    return [names[name] for name in classes]


def _optics(sizes: NDArray[np.float64], version: str, options: WritingOptions) -> tuple[list[str], StarBlock]:
    """The optics group of each particle, one for each pixel size, and their table."""
    texts = ["" if np.isnan(size) else f"{size:.9g}" for size in sizes]
    kinds = list(dict.fromkeys(texts)) or [""]
    groups = [str(kinds.index(text) + 1) for text in texts]
    labels = ["rlnOpticsGroup", "rlnOpticsGroupName"]
    rows = [[str(number), f"opticsGroup{number}"] for number in range(1, len(kinds) + 1)]
    table = StarBlock("optics", labels, rows)
    if all(kinds):
        table.put("rlnImagePixelSize", kinds)
        if version != "3.1":
            table.put("rlnTomoTiltSeriesPixelSize", [f"{float(kind) / options.binning:.9g}" for kind in kinds])
            table.put("rlnTomoSubtomogramBinning", [f"{options.binning:.9g}"] * len(kinds))
    table.put("rlnImageDimensionality", ["3"] * len(kinds))
    for label, value in (
        ("rlnImageSize", options.box_size),
        ("rlnVoltage", options.voltage),
        ("rlnSphericalAberration", options.spherical_aberration),
        ("rlnAmplitudeContrast", options.amplitude_contrast),
    ):
        if value is not None:
            table.put(label, [f"{value:g}"] * len(kinds))
    return groups, table
