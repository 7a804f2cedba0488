"""A joint scan whose volume, probe and shifts are known exactly, made without the model's code.

The sample is made of balls, whose projections are chords in closed form: the image of an angle knows no voxels. Frames
are the squares of plain FFTs; the probe is moved by fractions of a pixel in Fourier space. For thick samples the wave
goes through many slices with free space between them.
"""

import dataclasses
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError
from dtomo.io.hdf5_files import open_hdf5
from dtomo.io.ptychotomo.writer import write_ptychotomo
from dtomo.simulate.detector import PROJECTION, generator
from dtomo.simulate.ptycho_parts import focused_probe

GROUP = "dtomo_truth"
"""HDF5 group that holds the truth."""

WAVELENGTH, PIXEL_SIZE, DISTANCE = 1.409e-10, 10e-9, 2.0
"""Metres: 8.8 keV, voxels of 10 nm, and a detector at 2 m."""
FINE = 4
"""Samples along each side of a pixel that an image is the mean of."""
FILL = 0.3
"""Radius of the sample, as part of the width that light falls on: there is some vacuum at both sides."""
BALLS, POSITIONS, SHIFTS = 11, 12, 13
"""Streams of random numbers."""


@dataclasses.dataclass(frozen=True, eq=False)
class Balls:
    """A sample: balls of uniform material, whose refractive indices add up.

    Attributes
    ----------
    middles
        ``(ball, 3)``: z, y, x in voxels from the middle of the volume.
    radii
        ``(ball,)``, voxels.
    values
        v = k Δ (-δ + iβ) of each, complex128 ``(ball,)``, radians per voxel.
    """

    middles: NDArray[np.float64]
    radii: NDArray[np.float64]
    values: NDArray[np.complex128]

    def volume(self, rows: int, columns: int) -> NDArray[np.complex64]:
        """v of each voxel ``(z, y, x)``: edges as wide as a voxel, in the middle of which the ball ends."""
        found = np.zeros((rows, columns, columns), np.complex64)
        for (z, y, x), radius, value in zip(self.middles, self.radii, self.values):
            spans = [
                _span(place + (count - 1) / 2, radius + 1, count)
                for place, count in ((z, rows), (y, columns), (x, columns))
            ]
            grids = np.ix_(*(np.arange(span.start, span.stop) for span in spans))
            offsets = [
                grid - (count - 1) / 2 - place for grid, place, count in zip(grids, (z, y, x), (rows, columns, columns))
            ]
            distance = np.sqrt(sum(offset**2 for offset in offsets))
            found[tuple(spans)] += value * np.clip(radius - distance + 0.5, 0, 1)
        return found

    def projection(
        self, rows: int, columns: int, angle: float, depths: tuple[float, float] = (-np.inf, np.inf)
    ) -> NDArray[np.complex128]:
        """∫ v along the beam ``(row, column)``, of the part between two depths (voxels, from the axis)."""
        found = np.zeros((rows, columns), np.complex128)
        turn = np.deg2rad(angle)
        inside = (np.arange(FINE) + 0.5) / FINE - 0.5
        for (z, y, x), radius, value in zip(self.middles, self.radii, self.values):
            across, depth = x * np.cos(turn) + y * np.sin(turn), -x * np.sin(turn) + y * np.cos(turn)
            down, along = (
                _span(place + (count - 1) / 2, radius + 1, count) for place, count in ((z, rows), (across, columns))
            )
            v = (np.arange(down.start, down.stop)[:, None] + inside).ravel() - (rows - 1) / 2 - z
            u = (np.arange(along.start, along.stop)[:, None] + inside).ravel() - (columns - 1) / 2 - across
            half = np.sqrt((radius**2 - v[:, None] ** 2 - u**2).clip(0))
            chord = np.minimum(depth + half, depths[1]) - np.maximum(depth - half, depths[0])
            chord = chord.clip(0) * (half > 0)
            shape = (down.stop - down.start, FINE, along.stop - along.start, FINE)
            found[down, along] += value * chord.reshape(shape).mean((1, 3))
        return found


def _span(middle: float, reach: float, count: int) -> slice:
    first = min(max(0, int(np.floor(middle - reach))), count)
    return slice(first, max(first, min(count, int(np.ceil(middle + reach)) + 1)))


def sample_of_balls(size: int, radius: float, *, phase: float = 1.5, seed: int = 0) -> Balls:
    """A ball with smaller ones in it, some denser and some hollow, δ and β not in proportion.

    Parameters
    ----------
    size
        Voxels along a side of the volume.
    radius
        Of the large ball, voxels.
    phase
        Of its middle, radians.
    seed
        Of the small ones.
    """
    random = generator(seed, BALLS)
    large = radius
    step = phase / (2 * large)
    middles, radii, values = [np.zeros(3)], [large], [step * (-1 + 0.1j)]
    for _ in range(40):
        radius = random.uniform(0.06, 0.25) * large
        direction = random.standard_normal(3)
        place = direction / np.linalg.norm(direction) * (large - radius - 1) * random.uniform(0, 1) ** (1 / 3)
        middles.append(place)
        radii.append(radius)
        if random.uniform() < 0.5:
            values.append(step * (0.9 - 0.09j))  # nearly hollow
        else:
            values.append(step * (-random.uniform(0.5, 1.5) + random.uniform(0.02, 0.3) * 1j))
    return Balls(np.array(middles), np.array(radii), np.array(values))


@dataclasses.dataclass(frozen=True, eq=False)
class PtychotomoTruth:
    """What a simulated joint scan was made from.

    Attributes
    ----------
    path
        The scan.
    volume
        v = k Δ (-δ + iβ) ``(z, y, x)``, complex64, radians per voxel.
    probe
        ``(mode, row, column)``, its squares in photons.
    angles
        Degrees.
    angle_of_frame, positions
        As stated in the file.
    shifts
        ``(angle, 2)``: a frame of the angle saw the image at its stated position plus this, pixels.
    pixel_size, wavelength
        Metres.
    """

    path: Path
    volume: NDArray[np.complex64]
    probe: NDArray[np.complex64]
    angles: NDArray[np.float64]
    angle_of_frame: NDArray[np.int64]
    positions: NDArray[np.float64]
    shifts: NDArray[np.float64]
    pixel_size: float
    wavelength: float

    @property
    def wavenumber(self) -> float:
        """k Δ."""
        return 2 * np.pi / self.wavelength * self.pixel_size


def simulate_ptychotomo(
    output: str | os.PathLike[str],
    size: int = 64,
    *,
    angles: int | ArrayLike = 60,
    frame: int = 32,
    step: float = 5.0,
    photons: float = 1e6,
    probe: ArrayLike | None = None,
    phase: float = 1.5,
    shifts: float = 0.0,
    slices: int = 1,
    pixel_size: float = PIXEL_SIZE,
    wavelength: float = WAVELENGTH,
    seed: int = 0,
    overwrite: bool = False,
) -> PtychotomoTruth:
    """Write a joint scan of a sample of balls, with photon noise and the truth beside it.

    Parameters
    ----------
    output
        HDF5 file, see `dtomo.io.ptychotomo.writer`.
    size
        Voxels along a side of the volume; images are size × size.
    angles
        How many over a half-turn, or degrees.
    frame
        Rows and columns of a frame.
    step
        Pixels from one position to the next, about; each angle's grid begins elsewhere.
    photons
        In a frame that meets no sample; 0: no noise, counts of 10⁶ photons as floats.
    probe
        ``(row, column)`` of frame × frame pixels, in any unit; default: a focused one. The file holds it as first
        guess.
    phase
        Of the sample's middle, radians.
    shifts
        Errors of the images of each angle: uniform up to so many pixels, in rows and columns.
    slices
        That the wave goes through, free space between them; 1: one projection.
    pixel_size, wavelength
        Metres.
    seed
        Of sample, positions, shifts and noise.
    overwrite
        Replace a file that exists.

    Raises
    ------
    UserError
        Sizes that do not fit, an output that is refused.
    """
    degrees = np.arange(angles) * 180.0 / angles if isinstance(angles, int) else np.asarray(angles, np.float64)
    _refuse(size, frame, step, photons, len(degrees), slices)
    light = focused_probe(frame) if probe is None else np.asarray(probe, np.complex128)
    if light.shape != (frame, frame) or not np.isfinite(light).all() or not np.abs(light).any():
        raise UserError(f"the probe has shape {light.shape}; {(frame, frame)} finite numbers were expected")
    light = light * np.sqrt((photons or 1e6) / (np.abs(light) ** 2).sum())
    sample = _sample(size, frame, phase, seed)
    grid = [_positions(size, frame, step, seed, number) for number in range(len(degrees))]
    positions = np.concatenate(grid)
    angle_of_frame = np.repeat(np.arange(len(degrees)), [len(part) for part in grid])
    errors = (
        generator(seed, SHIFTS).uniform(-shifts, shifts, (len(degrees), 2)) if shifts else np.zeros((len(degrees), 2))
    )
    truth = PtychotomoTruth(
        path=Path(output),
        volume=sample.volume(size, size),
        probe=light[None].astype(np.complex64),
        angles=degrees,
        angle_of_frame=angle_of_frame,
        positions=positions,
        shifts=errors,
        pixel_size=pixel_size,
        wavelength=wavelength,
    )
    made = _frames(sample, truth, size, slices, photons, seed)
    write_ptychotomo(
        output,
        made,
        angles=degrees,
        angle_of_frame=angle_of_frame,
        positions=positions,
        image_shape=(size, size),
        frame_shape=(frame, frame),
        dtype=np.uint32 if photons else np.float32,
        probe=truth.probe,
        attributes={"pixel_size": pixel_size, "wavelength": wavelength, "distance": DISTANCE},
        overwrite=overwrite,
        more=lambda file: _write_truth(file, truth),
    )
    return truth


def _sample(size: int, frame: int, phase: float, seed: int) -> Balls:
    return sample_of_balls(size, FILL * (size - 0.7 * frame), phase=phase, seed=seed)


def expected_images(truth: PtychotomoTruth, size: int, angle: int, phase: float = 1.5, seed: int = 0) -> Any:
    """The transmission of a thin sample at one angle ``(row, column)``, of a scan made with these."""
    sample = _sample(size, truth.probe.shape[-1], phase, seed)
    return _images(sample, size, float(truth.angles[angle]), 1)[0]


def _refuse(size: int, frame: int, step: float, photons: float, angles: int, slices: int) -> None:
    if frame < 4 or size < frame:
        raise UserError(f"frames have at least 4 pixels and fit into images of {size}; got {frame}")
    if not 0 < step <= size:
        raise UserError(f"the step is above 0 and at most the size, {size}; got {step}")
    if not 0 <= photons < 1e9 or angles < 2 or slices < 1:
        raise UserError(
            f"photons are from 0 to below 1e9, angles 2 at least, slices 1 at least; got {photons}, {angles} and "
            f"{slices}"
        )


def _positions(size: int, frame: int, step: float, seed: int, angle: int) -> NDArray[np.float64]:
    """A grid that covers the image, begun anywhere and a little uneven, row by row."""
    random, room = generator(seed, POSITIONS, angle), size - frame
    begins = random.uniform(0, min(step, room + 1e-9), 2)
    rows, columns = (np.arange(begin, room + 1e-9, step) for begin in begins)
    grid = np.stack(np.meshgrid(rows, columns, indexing="ij"), -1).reshape(-1, 2)
    return np.asarray((grid + random.uniform(-0.15, 0.15, grid.shape) * step).clip(0, room))


def _frames(
    sample: Balls, truth: PtychotomoTruth, size: int, slices: int, photons: float, seed: int
) -> Iterator[NDArray[Any]]:
    number = 0
    for angle, degrees in enumerate(truth.angles):
        images = _images(sample, size, float(degrees), slices)
        for position in truth.positions[truth.angle_of_frame == angle] + truth.shifts[angle]:
            counts = expected_counts(truth, images, position, size / slices)
            if photons:
                yield generator(seed, PROJECTION, number).poisson(counts).astype(np.uint32)
            else:
                yield counts.astype(np.float32)
            number += 1


def _images(sample: Balls, size: int, degrees: float, slices: int) -> NDArray[np.complex128]:
    """Transmissions of the slices ``(slice, row, column)``, in the order of the beam."""
    borders = np.linspace(-size / 2, size / 2, slices + 1)
    borders[0], borders[-1] = -np.inf, np.inf
    spans = itertools.pairwise(borders)
    return np.stack([np.exp(1j * sample.projection(size, size, degrees, span)) for span in spans])


def expected_counts(
    truth: PtychotomoTruth, images: NDArray[np.complex128], position: NDArray[np.float64], thickness: float
) -> NDArray[np.float64]:
    """Mean counts ``(row, column)`` of a frame, frequency zero in the middle.

    Parameters
    ----------
    truth
        Its probe and lengths.
    images
        Transmissions of the slices ``(slice, row, column)``.
    position
        Row and column of pixel [0, 0] of the probe, pixels.
    thickness
        Of a slice, voxels.
    """
    frame = truth.probe.shape[-1]
    room = np.array(images.shape[-2:]) - frame
    row, column = np.floor(position + 0.5).astype(int).clip(0, room)
    part = position - (row, column)
    f = np.fft.fftfreq(frame)
    moved = np.exp(-2j * np.pi * (part[0] * f[:, None] + part[1] * f))
    wave = np.fft.ifft2(np.fft.fft2(truth.probe[0].astype(np.complex128)) * moved)
    square = (f[:, None] ** 2 + f**2) / truth.pixel_size**2
    inverse = 1 / truth.wavelength**2
    space = np.exp(2j * np.pi * thickness * truth.pixel_size * (np.sqrt((inverse - square).clip(0)) - inverse**0.5))
    for number, image in enumerate(images):
        if number:
            wave = np.fft.ifft2(np.fft.fft2(wave) * space)
        wave = wave * image[row : row + frame, column : column + frame]
    return np.asarray(np.fft.fftshift(np.abs(np.fft.fft2(wave, norm="ortho")) ** 2))


def _write_truth(file: h5py.File, truth: PtychotomoTruth) -> None:
    group = file.create_group(GROUP)
    for name in ("volume", "probe", "shifts"):
        group[name] = getattr(truth, name)


def read_ptychotomo_truth(path: str | os.PathLike[str]) -> PtychotomoTruth:
    """The truth in a simulated joint scan.

    Raises
    ------
    UserError
        A file without it.
    """
    with open_hdf5(Path(path)) as file:
        if GROUP not in file:
            raise UserError(f"{path} holds no truth: it was not simulated by dtomo")
        group = file[GROUP]
        arrays = {name: np.asarray(group[name]) for name in ("volume", "probe", "shifts")}
        stated = {name: np.asarray(file[name]) for name in ("angles", "angle_of_frame", "positions")}
        lengths = {name: float(file.attrs[name]) for name in ("pixel_size", "wavelength")}
    given: dict[str, Any] = {**arrays, **stated, **lengths}
    return PtychotomoTruth(path=Path(path), **given)


def resampled_probe(probe: ArrayLike, size: int, band: float = 0.5) -> NDArray[np.complex128]:
    """A probe on fewer pixels that are larger: the middle of its spectrum, in the middle of that of the result.

    Waves behind the sample then hold frequencies that the pixels of the sample can: with a probe that fills its band
    they would not, and images could not be moved by parts of a pixel.

    Parameters
    ----------
    probe
        ``(row, column)``, square.
    size
        Rows and columns wanted.
    band
        Part of the result's spectrum, along each side, that the light fills. Power is 1.
    """
    wide = np.asarray(probe, np.complex128)
    kept = 2 * round(size * band / 2)
    if wide.ndim != 2 or wide.shape[0] != wide.shape[1] or not 2 <= kept <= min(size, len(wide)):
        raise UserError(f"a square probe of at least {kept} × {kept} pixels was expected; got {wide.shape}")
    spectrum = np.fft.fftshift(np.fft.fft2(wide))
    first, place = len(wide) // 2 - kept // 2, size // 2 - kept // 2
    found = np.zeros((size, size), np.complex128)
    found[place : place + kept, place : place + kept] = spectrum[first : first + kept, first : first + kept]
    moved = np.fft.ifft2(np.fft.ifftshift(found))
    return np.asarray(moved / np.sqrt((np.abs(moved) ** 2).sum()))
