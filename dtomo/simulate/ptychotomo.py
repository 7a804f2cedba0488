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

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError
from dtomo.simulate.balls import Balls, sample_of_balls
from dtomo.simulate.detector import PROJECTION, generator
from dtomo.simulate.ptycho_parts import ScanPath, focused_probe, light_diameter, scan_positions
from dtomo.simulate.ptychotomo_files import truth_arrays, write_folder, write_one

WAVELENGTH, PIXEL_SIZE = 1.409e-10, 10e-9
"""Metres: 8.8 keV, voxels of 10 nm."""
STEP = 5.0
"""Pixels, where neither a step nor an overlap is asked for."""
FILL = 0.3
"""Radius of the sample, as part of the width that light falls on: there is some vacuum at both sides."""
LEAST_FRAME = 4
"""Rows and columns."""
POSITIONS, SHIFTS = 12, 13
"""Streams of random numbers."""


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
    frame: int | None = None,
    step: float | None = None,
    overlap: float | None = None,
    scan_path: ScanPath = "grid",
    photons: float = 1e6,
    probe: ArrayLike | None = None,
    sample: Balls | None = None,
    phase: float = 1.5,
    shifts: float = 0.0,
    slices: int = 1,
    pixel_size: float = PIXEL_SIZE,
    wavelength: float = WAVELENGTH,
    seed: int = 0,
    separate: bool = False,
    overwrite: bool = False,
) -> PtychotomoTruth:
    """Write a joint scan of a sample of balls, with photon noise and the truth beside it.

    Parameters
    ----------
    output
        HDF5 file, see `dtomo.io.ptychotomo.writer`; if `separate`, a folder.
    size
        Voxels along a side of the volume; images are size × size.
    angles
        How many over a half-turn, or degrees.
    frame
        Rows and columns of a frame. Default: as the probe; else 32, but no more than half of `size`.
    step
        Pixels from one position to the next, about; each angle's scan begins elsewhere. Default: 5.
    overlap
        In place of a step: the part of the light's diameter that neighbours share, below 1; negative: none, there are
        gaps.
    scan_path
        "grid", uneven by a part of a step, or "spiral", both over all of the image.
    photons
        In a frame that meets no sample; 0: no noise, counts of 10⁶ photons as floats.
    probe
        ``(row, column)`` of frame × frame pixels, in any unit; default: a focused one. The file holds it as first
        guess.
    sample
        Default: a ball with smaller ones in it.
    phase
        Of the default sample's middle, radians.
    shifts
        Errors of the images of each angle: uniform up to so many pixels, in rows and columns.
    slices
        That the wave goes through, free space between them; 1: one projection.
    pixel_size, wavelength
        Metres.
    seed
        Of sample, positions, shifts and noise.
    separate
        Write a CXI file for each angle (which it states), ``angles.txt`` and ``probe.npy`` into a folder, and the truth
        into an HDF5 file beside it.
    overwrite
        Replace what exists.

    Raises
    ------
    UserError
        Sizes that do not fit, an output that is refused.
    """
    degrees = np.arange(angles) * 180.0 / angles if isinstance(angles, int) else np.asarray(angles, np.float64)
    if frame is None:
        frame = frame_of(size) if probe is None else len(np.atleast_1d(np.asarray(probe)))
    _refuse(size, frame, photons, degrees, slices)
    light = _light(probe, frame, photons)
    pace = _pace(step, overlap, light)
    if not 0 < pace <= size:
        raise UserError(f"the step is above 0 and at most the size, {size}; got {pace}")
    if sample is None:
        sample = _sample(size, frame, phase, seed)
    grid = [_positions(size, frame, pace, scan_path, seed, number) for number in range(len(degrees))]
    moved = generator(seed, SHIFTS).uniform(-shifts, shifts, (len(degrees), 2)) if shifts else None
    truth = PtychotomoTruth(
        path=Path(output),
        volume=sample.volume(size, size),
        probe=light[None].astype(np.complex64),
        angles=degrees,
        angle_of_frame=np.repeat(np.arange(len(degrees)), [len(part) for part in grid]),
        positions=np.concatenate(grid),
        shifts=np.zeros((len(degrees), 2)) if moved is None else moved,
        pixel_size=pixel_size,
        wavelength=wavelength,
    )
    write = write_folder if separate else write_one
    made = _frames(sample, truth, size, slices, photons, seed)
    write(truth, made, np.dtype(np.uint32 if photons else np.float32), overwrite)
    return truth


def frame_of(size: int) -> int:
    """Rows and columns of a frame where none are asked for: neighbours have room beside one another."""
    return max(LEAST_FRAME, min(32, size // 2))


def _light(probe: ArrayLike | None, frame: int, photons: float) -> NDArray[np.complex128]:
    """The probe, its squares in photons."""
    light = focused_probe(frame) if probe is None else np.asarray(probe, np.complex128)
    if light.shape != (frame, frame) or not np.isfinite(light).all() or not np.abs(light).any():
        raise UserError(f"the probe has shape {light.shape}; {(frame, frame)} finite numbers were expected")
    return np.asarray(light * np.sqrt((photons or 1e6) / (np.abs(light) ** 2).sum()))


def _pace(step: float | None, overlap: float | None, light: NDArray[np.complex128]) -> float:
    """Pixels from one position to the next."""
    if overlap is None:
        return STEP if step is None else step
    if step is not None:
        raise UserError("step and overlap say the same; give one of them")
    if not overlap < 1:
        raise UserError(f"the overlap is a part of the light's diameter, below 1; got {overlap}")
    return (1 - overlap) * light_diameter(light[None])


def _sample(size: int, frame: int, phase: float, seed: int) -> Balls:
    return sample_of_balls(size, FILL * (size - 0.7 * frame), phase=phase, seed=seed)


def expected_images(truth: PtychotomoTruth, size: int, angle: int, phase: float = 1.5, seed: int = 0) -> Any:
    """The transmission of a thin sample at one angle ``(row, column)``, of a scan made with these."""
    sample = _sample(size, truth.probe.shape[-1], phase, seed)
    return _images(sample, size, float(truth.angles[angle]), 1)[0]


def _refuse(size: int, frame: int, photons: float, degrees: NDArray[np.float64], slices: int) -> None:
    if frame < LEAST_FRAME or size < frame:
        raise UserError(f"frames have at least {LEAST_FRAME} pixels and fit into images of {size}; got {frame}")
    if not 0 <= photons < 1e9 or len(degrees) < 2 or slices < 1:
        raise UserError(
            f"photons are from 0 to below 1e9, angles 2 at least, slices 1 at least; got {photons}, {len(degrees)} and "
            f"{slices}"
        )
    if degrees.ndim != 1 or not np.isfinite(degrees).all():
        raise UserError("angles are finite numbers of degrees, or how many there are")


def _positions(size: int, frame: int, step: float, path: ScanPath, seed: int, angle: int) -> NDArray[np.float64]:
    """Positions that cover the image, begun anywhere and a little uneven."""
    random, room = generator(seed, POSITIONS, angle), size - frame
    begins = random.uniform(0, min(step, room + 1e-9), 2)
    if path == "spiral":
        turn = random.uniform(0, 2 * np.pi)
        reach = room / np.sqrt(2) + 2 * step
        points = scan_positions(int(np.ceil(np.pi * (reach / step) ** 2)), step, path, seed)
        points = points @ [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]] + room / 2
        points += begins - min(step, room) / 2
        inside = points[((points >= 0) & (points <= room)).all(1)]
        return inside if len(inside) else points[:1].clip(0, room)
    if path != "grid":
        raise UserError(f"there is no scan path {path!r}; choose spiral or grid")
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


def read_ptychotomo_truth(path: str | os.PathLike[str]) -> PtychotomoTruth:
    """The truth of a simulated joint scan: in the file, or beside the folder.

    Raises
    ------
    UserError
        There is none.
    """
    return PtychotomoTruth(path=Path(path), **truth_arrays(Path(path)))


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
