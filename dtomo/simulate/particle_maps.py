"""What simulated particles are made of: a map from a file, brought to a box and a pixel size, or one that is built."""

import os
from pathlib import Path

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.volumes import open_volume
from dtomo.simulate.detector import generator
from dtomo.subtomo.fourier import forward, inverse, resized

MAP = 30
"""Stream of random numbers."""
FINEST = 0.9
"""Voxels: width of the narrowest Gaussian of a built map, nothing of which lies beyond the Nyquist frequency."""
CLOSE = 0.005
"""How far the pixel size of a resampled map may lie from the one asked for, as a part of it."""


def built_map(size: int, seed: int = 0) -> NDArray[np.float32]:
    """A particle without any symmetry, Gaussians along a random walk and an arm, in a box, float32 ``(z, y, x)``.

    It fills a sphere of radius 0.32 × `size`; its middle of mass lies near the center, n // 2.
    """
    random = generator(seed, MAP)
    reach = 0.32 * size
    place, places = np.zeros(3), list[NDArray[np.float64]]()
    while len(places) < 90:
        step = random.standard_normal(3)
        there = place + step / np.linalg.norm(step) * 0.09 * size
        if np.linalg.norm(there) < 0.78 * reach:
            place = there
            places.append(there)
    spots = np.array(places)
    spots -= spots.mean(0)
    arm = np.array([0.62, -0.35, 0.7]) * np.linspace(0.5, 0.95, 8)[:, None] * reach
    spots = np.concatenate([spots, arm])
    widths = np.concatenate([random.uniform(0.022, 0.045, 90), np.full(8, 0.03)]) * size
    widths = np.maximum(widths, FINEST)
    heights = np.concatenate([random.uniform(0.5, 1.5, 90), np.full(8, 1.2)])
    steps = np.arange(size) - size // 2
    x, y, z = (np.exp(-((steps - spots[:, axis, None]) ** 2) / (2 * widths[:, None] ** 2)) for axis in range(3))
    return np.einsum("p,pz,py,px->zyx", heights, z, y, x, optimize=True).astype(np.float32)


def read_map(
    path: str | os.PathLike[str], box: int | None, pixel_size: float | None
) -> tuple[NDArray[np.float32], float]:
    """A map from a file in a cubic box at a pixel size, and that size.

    Parameters
    ----------
    path
        Any volume dtomo opens, voxels as long as they are wide; its center is n // 2.
    box
        Voxels along a side; default: those of the file, at its pixel size the whole of it.
    pixel_size
        Ångström; the map is resampled in Fourier space if the file has another. Default: that of the file.

    Raises
    ------
    UserError
        A file that is no such volume, a pixel size that nobody knows.
    """
    volume = open_volume(path)
    values = np.asarray(volume.source.read(), np.float32)
    if not np.isfinite(values).all() or values.std() == 0:
        raise UserError(f"{path} holds no particle: its values are all the same, or not finite")
    known = volume.isotropic_voxel_size()
    if known is not None and volume.unit != "angstrom":
        size_um = volume.voxel_size_um
        known = None if size_um is None else size_um[0] * 1e4
    if pixel_size is None and known is None:
        raise UserError(f"{path} states no voxel size; give the pixel size in ångström")
    own = known or float(pixel_size or 0)
    wanted = pixel_size or own
    if not wanted > 0:
        raise UserError(f"the pixel size is a positive number of ångström, not {pixel_size}")
    background = float(np.median(np.concatenate([face.ravel() for face in (values[0], values[-1])])))
    cube = _centered(values, max(values.shape), background)
    if abs(own / wanted - 1) > 1e-6:
        cube = _resampled(cube, own, wanted, background, path)
    return _centered(cube, box or len(cube), background) - np.float32(background), wanted


def _resampled(
    cube: NDArray[np.float32], own: float, wanted: float, background: float, path: str | os.PathLike[str]
) -> NDArray[np.float32]:
    """At another pixel size, through the spectrum of a box a little larger whose length is a whole number of pixels."""
    size = len(cube)
    sizes = np.arange(size, size + 64)
    pixels = np.rint(sizes * own / wanted)
    errors = np.abs(sizes * own / wanted - pixels) / np.maximum(pixels, 1)
    good = np.flatnonzero((errors < CLOSE / 10) & (pixels >= 4))
    best = int(good[0]) if len(good) else int(np.argmin(errors))
    if errors[best] > CLOSE or pixels[best] < 4:
        raise UserError(f"{Path(path)} with voxels of {own:g} Å cannot be brought to {wanted:g} Å")
    large, small = int(sizes[best]), int(pixels[best])
    spectrum = resized(forward(_centered(cube, large, background)), large, small)
    return inverse(spectrum, small) * np.float32((small / large) ** 3)


def _centered(values: NDArray[np.float32], size: int, background: float) -> NDArray[np.float32]:
    """Cut or padded to a cube, n // 2 staying where it is."""
    found = np.full((size,) * 3, background, np.float32)
    into, out_of = [], []
    for length in values.shape:
        offset = size // 2 - length // 2
        first, last = max(0, offset), min(size, offset + length)
        into.append(slice(first, last))
        out_of.append(slice(first - offset, last - offset))
    found[tuple(into)] = values[tuple(out_of)]
    return found


def ctf(size: int, pixel_size: float, defocus: float, voltage: float = 300.0) -> NDArray[np.float32]:
    """Contrast transfer of a microscope at the frequencies of a box's spectrum, the same all around, float32.

    Parameters
    ----------
    size, pixel_size
        Voxels along a side, and ångström.
    defocus
        µm, positive: underfocus. Spherical aberration is 2.7 mm, amplitude contrast 0.07.
    voltage
        kV.

    Notes
    -----
    sin χ with χ = π λ s² (defocus - Cs λ² s² / 2) + arcsin 0.07: positive at low frequencies (J. Frank,
    Three-Dimensional Electron Microscopy of Macromolecular Assemblies, 2006, chapter 2).
    """
    volts = voltage * 1e3
    wavelength = 12.2643 / np.sqrt(volts * (1 + 0.978466e-6 * volts))  # Å
    full, half = (np.square(axis / pixel_size) for axis in (scipy.fft.fftfreq(size), scipy.fft.rfftfreq(size)))
    square = full[:, None, None] + full[:, None] + half
    phase = np.pi * wavelength * square * (defocus * 1e4 - 2.7e7 * wavelength**2 * square / 2)
    return np.sin(phase + np.arcsin(0.07)).astype(np.float32)
