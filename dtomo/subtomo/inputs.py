"""Everything a run of alignment reads before it begins: list, boxes, mask, references; checked, in one frame."""

import dataclasses
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.geometry.wedge import Wedge
from dtomo.io import open_volume
from dtomo.io.particles import Particles, read_particles, reading_notes
from dtomo.settings import AlignSettings
from dtomo.subtomo.align import Poses
from dtomo.subtomo.boxes import LEAST, Boxes, boxes_in_tomograms, boxes_of_files, real_values
from dtomo.subtomo.refine import Particle
from dtomo.subtomo.rotations import local_rotations, uniform_rotations
from dtomo.subtomo.symmetry import symmetry_group
from dtomo.yaml_text import load_yaml

SOFT = 0.06
"""Part of the box over which a sphere's edge falls off."""
FEWEST = 4
"""Particles of a run."""
LEAST_RADIUS = 3
"""Of a mask, voxels."""


@dataclasses.dataclass(frozen=True, eq=False)
class Inputs:
    """What a run begins with.

    Attributes
    ----------
    particles
        As they were read, what is not whole voxels of its positions in its shifts.
    poses
        Of its particles, each in a half.
    fixed
        What does not change.
    references
        Volumes, one for each class; none: the average of the list.
    suffix
        Of the list's file, which results are written with.
    files
        That were read.
    warnings
        Sentences for the user.
    """

    particles: Particles
    poses: Poses
    fixed: Particle
    references: list[NDArray[np.float32]]
    suffix: str
    files: tuple[Path, ...]
    warnings: tuple[str, ...] = ()


def open_inputs(settings: AlignSettings) -> Inputs:
    """Read and check the inputs; of the boxes, only whether they are there.

    Raises
    ------
    UserError
        What is missing, damaged, or does not fit the rest.
    """
    symmetry_group(settings.symmetry)
    particles = read_particles(settings.scan)
    if len(particles) < FEWEST:
        raise UserError(f"{settings.scan} holds {len(particles)} particles; {FEWEST} at least make two halves")
    boxes, particles, warnings = _boxes(settings, particles)
    warnings += reading_notes(particles)
    lost = boxes.missing()
    if len(lost) > len(particles) - FEWEST:
        raise UserError(
            f"{len(lost)} of the {len(particles)} particles of {settings.scan} have no box that is there, the first is "
            f"{boxes.name(lost[0])}"
        )
    if lost:
        names = ", ".join(boxes.name(number) for number in lost[:3])
        warnings.append(f"{len(lost)} of {len(particles)} particles have no box and are left out: {names}")
    pixel = _pixel_size(settings, particles, boxes)
    if settings.binning > 1 and boxes.size // settings.binning < 16:
        raise UserError(f"--binning {settings.binning} leaves {boxes.size // settings.binning} voxels of {boxes.size}")
    mask = _mask(settings, boxes.size, pixel)
    references = [_reference(path, boxes.size, pixel, warnings) for path in settings.reference]
    halves = particle_halves(particles.halves, settings.halves, settings.seed)
    _check_poses(particles, boxes, halves)
    wedge = None if settings.tilts is None else Wedge(settings.tilts)
    weights = tuple(
        name or one or wedge for name, one in zip(_absolute(particles.weights_files, settings.scan), particles.wedges)
    )
    if all(one is None for one in weights):
        warnings.append("the list says of no particle which tilts it was seen at; no wedge is allowed for (--tilts)")
    count = len(particles)
    poses = Poses(
        np.asarray(particles.rotations, np.float64),
        np.asarray(particles.shifts, np.float64),
        np.full(count, np.nan),
        np.zeros(count, np.int64),
        halves,
        np.ones(count, bool),
    )
    files = [settings.scan, *map(Path, settings.reference), *([Path(settings.mask)] if settings.mask else [])]
    fixed = Particle(boxes, weights, mask, pixel, poses)
    return Inputs(particles, poses, fixed, references, settings.scan.suffix, tuple(files), tuple(warnings))


def particle_halves(given: NDArray[np.int8], how: str, seed: int) -> NDArray[np.int8]:
    """Halves of a list that has them, else new ones.

    Parameters
    ----------
    given
        1 or 2, or 0 where there is none yet.
    how
        "random" (as many in each), or "parity" of the index: the first is in half 1.
    seed
        Of the random ones.

    Raises
    ------
    UserError
        All in one half.
    """
    known = given > 0
    if known.any():
        if not known.all():
            raise UserError(
                f"{int((~known).sum())} of {len(given)} particles of the list are in no half; give all or none"
            )
        if len(set(given.tolist())) == 1:
            raise UserError(f"all particles of the list are in half {given[0]}; two are compared")
        return given.astype(np.int8)
    halves = np.arange(len(given)) % 2 + 1
    return (halves if how == "parity" else np.random.default_rng(seed).permutation(halves)).astype(np.int8)


def check_search(settings: AlignSettings, size: int, pixel: float) -> None:
    """Refuse rotations and frequencies that there are none of in boxes of `size` voxels of `pixel` Å.

    Raises
    ------
    UserError
        So.
    """
    if settings.global_iterations:
        uniform_rotations(settings.global_increment, settings.symmetry)
    if settings.global_iterations < settings.iterations:
        local_rotations(np.eye(3), settings.angle_shells, settings.angle_increment, kind=settings.rotation_set)
    coarsest = size * pixel
    for option, value in (("--low-pass", settings.low_pass), ("--finest", settings.finest)):
        if value is not None and value >= coarsest:
            raise UserError(
                f"{option} {value:g} Å leaves nothing of a box of {size} voxels of {pixel:g} Å; "
                f"give less than {coarsest:g}"
            )
    for option, value in (("--low-pass", settings.low_pass), ("--high-pass", settings.high_pass)):
        least = 2 * pixel * (settings.binning if option == "--high-pass" else 1)
        if value is not None and value < least:
            raise UserError(f"{option} {value:g} Å is finer than two voxels, {least:g} Å; give a larger one")


def _check_poses(particles: Particles, boxes: Boxes, halves: NDArray[np.int8]) -> None:
    """Refuse shifts that leave the box, and boxes that lie in both halves: these would agree by themselves."""
    far = np.flatnonzero(np.abs(particles.shifts).max(1) > boxes.size / 2)
    if len(far):
        shift = ", ".join(f"{value:g}" for value in particles.shifts[far[0]])
        raise UserError(
            f"shifts of {len(far)} particles lead out of their boxes of {boxes.size} voxels, the first is "
            f"{boxes.name(far[0])} with {shift}; check the pixel size and binning that the list was written for"
        )
    half_of: dict[object, int] = {}
    for number, half in enumerate(halves.tolist()):
        place = (boxes.tomogram_of[number], boxes.corners[number]) if boxes.corners else boxes.files[number]
        if half_of.setdefault(place, half) != half:
            raise UserError(
                f"{boxes.name(number)} stands more than once in the list, in both halves, which would agree by "
                "themselves; take one of them out, or say in the list which half they are all in"
            )


def _reference(path: str, size: int, pixel: float, warnings: list[str]) -> NDArray[np.float32]:
    volume = _box(path, size, "--reference")
    if volume.max() - volume.min() < LEAST:
        raise UserError(f"--reference {path} holds one value everywhere; there is nothing to compare")
    said = open_volume(path).voxel_size_um
    if said is not None and abs(said[0] * 1e4 / pixel - 1) > 0.02:
        warnings.append(f"--reference {path} says voxels of {said[0] * 1e4:g} Å; it is taken to have {pixel:g} Å")
    return volume


def sphere(size: int, radius: float, soft: float) -> NDArray[np.float32]:
    """A mask: 1 within a radius of the center n // 2 (voxels), falling as a cosine over `soft` voxels beyond."""
    z, y, x = np.ogrid[:size, :size, :size]
    distance = np.sqrt(sum((one - size // 2) ** 2.0 for one in (z, y, x)))
    fall = np.clip((distance - radius) / max(soft, 1e-6), 0, 1)
    return np.asarray(0.5 + 0.5 * np.cos(np.pi * fall), np.float32)


def _boxes(settings: AlignSettings, particles: Particles) -> tuple[Boxes, Particles, list[str]]:
    if settings.tomograms is None:
        return boxes_of_files(particles, settings.scan.resolve().parent), particles, []
    assert settings.box is not None
    return (*boxes_in_tomograms(particles, tomograms_of(settings.tomograms), settings.box), [])


def tomograms_of(path: Path) -> dict[str, str]:
    """Volumes by the names that lists have for them: a YAML table ``name: file``, or one volume for all.

    Raises
    ------
    UserError
        Neither.
    """
    if path.suffix.lower() not in (".yaml", ".yml"):
        open_volume(path)
        return {"": str(path)}
    try:
        table = load_yaml(path.read_text("utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the table of tomograms {path}") from error
    if not isinstance(table, dict) or not table:
        raise UserError(f"{path} must hold names of tomograms and their volumes, such as 'ts_01: ts_01.mrc'")
    found = {}
    for name, file in table.items():
        place = path.parent / str(file)
        open_volume(place)
        found[str(name)] = str(place)
    return found


def _pixel_size(settings: AlignSettings, particles: Particles, boxes: Boxes) -> float:
    if settings.pixel_size is not None:
        return settings.pixel_size
    sizes = particles.voxel_sizes[np.isfinite(particles.voxel_sizes)]
    if len(sizes):
        if sizes.max() > sizes.min() * 1.001:
            raise UserError(
                f"the list has particles with voxels from {sizes.min():g} to {sizes.max():g} Å; align those of one "
                "size, or say with --pixel-size which it is"
            )
        return float(sizes[0])
    first = next((name for name in (boxes.files or boxes.tomograms) if Path(name).exists()), None)
    found = None if first is None else open_volume(first).voxel_size_um
    if found is None or max(found) > min(found) * 1.001 or found[0] <= 0:
        raise UserError("neither the list nor the boxes say the size of a voxel; give --pixel-size in Å")
    return found[0] * 1e4


def _mask(settings: AlignSettings, size: int, pixel: float) -> NDArray[np.float32]:
    if settings.mask is None:
        assert settings.particle_diameter is not None
        radius = settings.particle_diameter / pixel / 2
        soft = SOFT * size
        if radius + soft > size / 2:
            soft = max(2.0, size / 2 - radius)
        if radius < LEAST_RADIUS or radius > size / 2:
            raise UserError(
                f"a particle of {settings.particle_diameter:g} Å is {2 * radius:.1f} voxels of {pixel:g} Å wide; boxes "
                f"have {size}: check --particle-diameter and --pixel-size"
            )
        return sphere(size, radius, soft)
    mask = _box(settings.mask, size, "--mask")
    if mask.sum(dtype=np.float64) < 4 / 3 * np.pi * LEAST_RADIUS**3 and (mask > 0.5).any():
        raise UserError(
            f"--mask {settings.mask} holds {(mask > 0.5).sum()} voxels, too few to compare; take a larger one"
        )
    if mask.min() < -1e-3 or mask.max() > 1 + 1e-3 or not (mask > 0.5).any():
        raise UserError(
            f"--mask {settings.mask} holds values from {mask.min():g} to {mask.max():g}; a mask goes from 0 to 1"
        )
    return mask.clip(0, 1)


def _box(path: str, size: int, option: str) -> NDArray[np.float32]:
    volume = open_volume(path)
    if volume.shape != (size,) * 3:
        raise UserError(f"{option} {path} has {volume.shape} voxels; the boxes of the particles have {size}³")
    return real_values(volume.source.read(slice(None)), f"{option} {path}")


def _absolute(names: list[str], scan: Path) -> list[str | None]:
    folder = scan.resolve().parent
    return [None if not name else name if Path(name).is_absolute() else str(folder / name) for name in names]
