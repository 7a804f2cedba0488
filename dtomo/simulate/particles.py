"""Subtomograms whose orientations are known: particles with a missing wedge, a CTF and noise, and their lists.

A particle is the map, turned and shifted; white noise is added to it, and what the tilt series does not see is taken
out of both. With a CTF: map × CTF + noise, the whole times CTF once more, as programs of subtomogram averaging expect
it, and CTF² in what was seen as its weights. Every random number is keyed by the seed and the number of the particle.
"""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from dtomo.errors import UserError
from dtomo.geometry.wedge import Wedge
from dtomo.io.output import check_output, writing
from dtomo.io.particles import Particles, write_particles
from dtomo.io.volumes import store_volume
from dtomo.simulate.detector import generator
from dtomo.simulate.particle_maps import built_map, ctf, read_map
from dtomo.subtomo.fourier import forward, inverse, turned

POSES, NOISE, ERRORS, HALVES, PLACES = range(31, 36)
"""Streams of random numbers."""
ARRAYS = ("rotations", "shifts", "halves", "defocus", "positions")
NUMBERS = ("pixel_size", "snr", "noise")
LENS: dict[str, Any] = {"voltage": 300.0, "spherical_aberration": 2.7, "amplitude_contrast": 0.07}
TRUTH = "truth.npz"
TOMOGRAM = "tomogram.mrc"


@dataclasses.dataclass(frozen=True, eq=False)
class ParticlesTruth:
    """What simulated particles were made from.

    Attributes
    ----------
    path
        The folder: ``reference.mrc``, ``mask.mrc``, ``particles/``, ``weights/`` (with a CTF), lists ``particles`` and
        ``truth``, each as ``.xml`` and ``.star``.
    reference
        The map, float32 ``(z, y, x)``.
    rotations, shifts
        True ones ``(particle, 3, 3)`` and ``(particle, 3)``, as in `dtomo.io.particles.Particles`.
    halves
        1 or 2.
    defocus
        Of each particle, µm; NaN without a CTF.
    positions
        ``(particle, 3)``, voxels (x, y, z): centers of the boxes in the tomogram; ``(0, 3)`` without one.
    tilts
        First and last, degrees.
    pixel_size
        Ångström.
    snr, noise
        Ratio asked for, and standard deviation of the noise.
    """

    path: Path
    reference: NDArray[np.float32]
    rotations: NDArray[np.float64]
    shifts: NDArray[np.float64]
    halves: NDArray[np.int8]
    defocus: NDArray[np.float64]
    positions: NDArray[np.float64]
    tilts: tuple[float, float]
    pixel_size: float
    snr: float
    noise: float

    @property
    def wedge(self) -> Wedge:
        """What the tilt series covers."""
        return Wedge(self.tilts)


def simulate_particles(
    output: str | os.PathLike[str],
    reference: str | os.PathLike[str] | NDArray[np.floating] | None = None,
    count: int = 200,
    *,
    box: int | None = None,
    pixel_size: float | None = None,
    snr: float = 0.05,
    tilts: tuple[float, float] = (-60.0, 60.0),
    defocus: tuple[float, float] | None = None,
    shifts: float = 2.0,
    angle_error: float = 0.0,
    shift_error: float = 0.0,
    tomogram: tuple[int, int, int] | None = None,
    seed: int = 0,
    overwrite: bool = False,
) -> ParticlesTruth:
    """Write subtomograms of a map, their lists for PyTom and RELION, and the truth.

    Parameters
    ----------
    output
        Folder, made here.
    reference
        File of a map, or a cubic box ``(z, y, x)``; default: an asymmetric one of Gaussians.
    count
        Particles.
    box
        Voxels along a side; default: those of the map, 48 of the built one.
    pixel_size
        Ångström; default: that of the file, 5 for others.
    snr
        Variance of the particle over the box by that of the noise in a voxel, before the missing wedge; 0: noise alone,
        of the map's variance; infinite: no noise.
    tilts
        First and last tilt, degrees.
    defocus
        Least and most, µm: each particle has a CTF of its own; default: none.
    shifts
        Particles lie up to so many voxels off the middle of their box, along each axis.
    angle_error, shift_error
        Of what ``particles.xml`` and ``.star`` state: degrees, about random axes; voxels, in random directions. Their
        halves are the true ones.
    tomogram
        Size ``(z, y, x)`` of one that all particles lie in, apart from one another: subtomograms are cut from it.
    seed
        Of everything random.
    overwrite
        Replace a simulation in that folder.

    Raises
    ------
    UserError
        Numbers that do not fit, a map or an output that is refused.
    """
    _refuse(count, snr, shifts, angle_error, shift_error, defocus if tomogram is None else None)
    if tomogram is not None and defocus is not None:
        raise UserError("particles of a simulated tomogram have no CTF; leave the defocus or the tomogram out")
    volume, pixel = _map(reference, box, pixel_size, seed)
    size = len(volume)
    spread = float(volume.std(dtype=np.float64))
    noise = 0.0 if np.isinf(snr) else spread if snr == 0 else spread / np.sqrt(snr)
    poses, halves = generator(seed, POSES), np.arange(count) % 2 + 1
    truth = ParticlesTruth(
        path=Path(output),
        reference=volume,
        rotations=Rotation.random(count, random_state=poses).as_matrix(),
        shifts=poses.uniform(-shifts, shifts, (count, 3)),
        halves=generator(seed, HALVES).permutation(halves).astype(np.int8),
        defocus=np.full(count, np.nan) if defocus is None else poses.uniform(*defocus, count),
        positions=np.empty((0, 3)) if tomogram is None else _places(tomogram, size, count, seed),
        tilts=(float(Wedge(tilts).tilts[0]), float(tilts[1])),
        pixel_size=pixel,
        snr=float(snr),
        noise=noise,
    )
    folder = _folder(truth.path, count * 4 * size**3, overwrite)
    _write(folder, truth, tomogram, seed)
    for name, errors in (("particles", (angle_error, shift_error)), ("truth", (0.0, 0.0))):
        listed = _listed(truth, seed, *errors)
        write_particles(folder / f"{name}.xml", listed)
        write_particles(folder / f"{name}.star", listed, box_size=len(volume), **LENS)
    kept = {name: getattr(truth, name) for name in (*ARRAYS, *NUMBERS, "reference", "tilts")}
    with writing(folder / TRUTH):
        np.savez(folder / TRUTH, **kept)
    return truth


def read_particles_truth(folder: str | os.PathLike[str]) -> ParticlesTruth:
    """The truth of simulated particles, from their folder.

    Raises
    ------
    UserError
        The folder holds none.
    """
    place = Path(folder) / TRUTH
    if not place.is_file():
        raise UserError(f"{folder} holds no truth of simulated particles ({TRUTH}); was the simulation interrupted?")
    with np.load(place) as file:
        found: dict[str, Any] = {name: file[name] for name in (*ARRAYS, "reference")}
        found |= {name: float(file[name]) for name in NUMBERS}
        first, last = file["tilts"].tolist()
    return ParticlesTruth(path=Path(folder), tilts=(first, last), **found)


def simulated_particle(truth: ParticlesTruth, number: int, seed: int) -> NDArray[np.float32]:
    """Subtomogram of one particle ``(z, y, x)``; the noise is that of the seed."""
    size = len(truth.reference)
    seen = truth.wedge.weights((size, size, size))
    spectrum = _signal(truth, number)
    noise = generator(seed, NOISE, number).standard_normal((size,) * 3, dtype=np.float32)
    transfer = np.float32(1)
    if np.isfinite(truth.defocus[number]):
        transfer = ctf(size, truth.pixel_size, truth.defocus[number])  # type: ignore[assignment]
    return inverse((spectrum * transfer + forward(noise * np.float32(truth.noise))) * transfer * seen, size)


def _signal(truth: ParticlesTruth, number: int) -> NDArray[np.complex64]:
    """Spectrum of the map in the pose of a particle."""
    rotation, shift = truth.rotations[number], truth.shifts[number]
    spectrum = forward(truth.reference) * np.float32(truth.snr > 0)
    found: NDArray[np.complex64] = turned(spectrum, rotation.T, -rotation.T @ shift, 2.0, mean_outside=False)
    return found


def _refuse(
    count: int, snr: float, shifts: float, angle: float, shift: float, defocus: tuple[float, float] | None
) -> None:
    if count < 1:
        raise UserError(f"there is at least 1 particle, not {count}")
    if not snr >= 0:
        raise UserError(f"the signal-to-noise ratio is not negative (0: noise alone); got {snr}")
    if not (shifts >= 0 and shift >= 0 and 0 <= angle <= 180):
        raise UserError("shifts and errors are not negative, and an error of the angle is at most 180 degrees")
    if defocus is not None and not 0 < defocus[0] <= defocus[1] < 100:
        raise UserError(f"the defocus lies between two positive numbers of µm; got {defocus[0]:g} and {defocus[1]:g}")


def _map(
    reference: str | os.PathLike[str] | NDArray[np.floating] | None,
    box: int | None,
    pixel_size: float | None,
    seed: int,
) -> tuple[NDArray[np.float32], float]:
    """The map in its box, and the pixel size."""
    if box is not None and box < 8:
        raise UserError(f"a box has at least 8 voxels along a side, not {box}")
    if isinstance(reference, str | os.PathLike):
        return read_map(reference, box, pixel_size)
    if pixel_size is not None and not pixel_size > 0:
        raise UserError(f"the pixel size is a positive number of ångström, not {pixel_size}")
    volume = built_map(box or 48, seed) if reference is None else np.asarray(reference, np.float32)
    if volume.ndim != 3 or len(set(volume.shape)) > 1 or (box is not None and len(volume) != box) or not volume.std():
        raise UserError(f"the reference is a cubic box (z, y, x) with a particle in it, not of shape {volume.shape}")
    return volume, pixel_size or 5.0


def _places(shape: tuple[int, int, int], box: int, count: int, seed: int) -> NDArray[np.float64]:
    """Whole voxels (x, y, z) for the centers of boxes that lie in a tomogram and do not meet."""
    if min(shape) < box:
        raise UserError(f"a tomogram of {shape} voxels (z, y, x) is smaller than the box, {box}")
    random, found = generator(seed, PLACES), np.empty((0, 3))
    low, high = box // 2, np.array(shape[::-1]) - (box - box // 2)
    for _ in range(400 * count):
        place = random.integers(low, high + 1).astype(np.float64)
        if not (np.abs(found - place).max(1, initial=0) < box).any():
            found = np.concatenate([found, place[None]])
        if len(found) == count:
            return found
    raise UserError(
        f"a tomogram of {shape} voxels (z, y, x) does not hold {count} boxes of {box} apart from one another; "
        "make it larger, or take fewer particles"
    )


def _folder(path: Path, needed: int, overwrite: bool) -> Path:
    """The folder of the output, with what is to be replaced gone."""
    if os.path.lexists(path) and not (path.is_dir() and (overwrite or not any(path.iterdir()))):
        raise UserError(f"{path} exists; give another name, or a folder of a simulation with --overwrite")
    if path.is_dir() and any(path.iterdir()) and not (path / "reference.mrc").is_file():
        raise UserError(f"{path} is no folder of a simulation, so it is not overwritten; give another name")
    check_output(path / "reference.mrc" if path.is_dir() else path, overwrite=overwrite, bytes_needed=needed)
    with writing(path):
        for place in (path, path / "particles", path / "weights"):
            place.mkdir(exist_ok=True)
        for old in (*path.glob("particles/particle_*.mrc"), *path.glob("weights/weights_*.mrc"), path / TRUTH):
            old.unlink(missing_ok=True)
        for name in (TOMOGRAM, *(f"{kind}.{end}" for kind in ("particles", "truth") for end in ("xml", "star"))):
            (path / name).unlink(missing_ok=True)
    return path


def _write(folder: Path, truth: ParticlesTruth, tomogram: tuple[int, int, int] | None, seed: int) -> None:
    """All volumes."""
    size = len(truth.reference)
    _store(folder / "reference.mrc", truth.reference, truth)
    _store(folder / "mask.mrc", soft_sphere(size, 0.42 * size, 0.06 * size), truth)
    seen = truth.wedge.weights((size,) * 3)
    particles: Iterator[NDArray[np.float32]]
    if tomogram is None:
        particles = (simulated_particle(truth, number, seed) for number in range(len(truth.rotations)))
    else:
        whole = _tomogram(truth, tomogram, seed)
        _store(folder / TOMOGRAM, whole, truth)
        particles = (_cut(whole, place, size) for place in truth.positions)
    for number, particle in enumerate(particles):
        _store(folder / f"particles/particle_{number:05d}.mrc", particle, truth)
        if np.isfinite(truth.defocus[number]):
            weights = ctf(size, truth.pixel_size, truth.defocus[number]) ** 2 * seen
            _store(folder / f"weights/weights_{number:05d}.mrc", weights, truth)
    if not np.isfinite(truth.defocus).any():
        (folder / "weights").rmdir()


def _store(path: Path, volume: NDArray[np.float32], truth: ParticlesTruth) -> None:
    store_volume(volume, path, voxel_size_um=truth.pixel_size * 1e-4, overwrite=True, slab=volume.shape[0])


def _tomogram(truth: ParticlesTruth, shape: tuple[int, int, int], seed: int) -> NDArray[np.float32]:
    """All particles in one volume, with noise, and without what the tilt series does not see."""
    size = len(truth.reference)
    whole = generator(seed, NOISE).standard_normal(shape, dtype=np.float32) * np.float32(truth.noise)
    for number, place in enumerate(truth.positions):
        _cut(whole, place, size)[...] += inverse(_signal(truth, number), size)
    spectrum = np.fft.rfftn(whole) * truth.wedge.weights(shape)
    return np.fft.irfftn(spectrum, shape, axes=(0, 1, 2)).astype(np.float32)


def _cut(whole: NDArray[np.float32], place: NDArray[np.float64], size: int) -> NDArray[np.float32]:
    """The box about a place (x, y, z), a view."""
    z, y, x = (int(value) - size // 2 for value in place[::-1])
    return whole[z : z + size, y : y + size, x : x + size]


def _listed(truth: ParticlesTruth, seed: int, angle_error: float, shift_error: float) -> Particles:
    """The list of the particles, their poses with errors."""
    random, count = generator(seed, ERRORS), len(truth.rotations)
    axes, ways = random.standard_normal((2, count, 3))
    turns = axes / np.linalg.norm(axes, axis=1, keepdims=True) * np.deg2rad(angle_error)
    moves = ways / np.linalg.norm(ways, axis=1, keepdims=True) * shift_error
    with_ctf, placed = np.isfinite(truth.defocus).any(), len(truth.positions) > 0
    return Particles(
        rotations=truth.rotations @ Rotation.from_rotvec(turns).as_matrix(),
        shifts=truth.shifts + moves,
        files=[f"particles/particle_{number:05d}.mrc" for number in range(count)],
        positions=truth.positions if placed else None,
        tomograms=[TOMOGRAM if placed else "tomogram"] * count,
        wedges=[truth.wedge] * count,
        weights_files=[f"weights/weights_{number:05d}.mrc" for number in range(count)] if with_ctf else [],
        halves=truth.halves,
        voxel_sizes=np.full(count, truth.pixel_size),
    )


def soft_sphere(size: int, radius: float, edge: float) -> NDArray[np.float32]:
    """One within a radius of the center n // 2, falling to 0 as a raised cosine over an edge outside of it, float32."""
    steps = np.square(np.arange(size) - size // 2)
    distance = np.sqrt(steps[:, None, None] + steps[:, None] + steps)
    fall = np.clip((distance - radius) / max(edge, 1e-6), 0, 1)
    return np.asarray(np.cos(np.pi / 2 * fall) ** 2, np.float32)
