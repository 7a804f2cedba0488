"""Joint scans on disk, as settings say they are to be read, in the form of the models."""

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io import open_volume
from dtomo.io.ptycho.given import given_array
from dtomo.io.ptychotomo import PtychotomoScan, open_ptychotomo
from dtomo.io.ptychotomo.scan import SAME_ANGLE
from dtomo.ptycho import optics
from dtomo.ptycho.plausible import check_positions
from dtomo.ptycho.setup import Data
from dtomo.ptychotomo.engine import SlabPlace
from dtomo.ptychotomo.problem import Start
from dtomo.ptychotomo.results import VOLUMES, open_parameters, volume_path
from dtomo.ptychotomo.setup import JointData
from dtomo.settings import JointSettings
from dtomo.settings.ptycho import PROBES

if TYPE_CHECKING:
    from distributed import Client


LEAST_HALVED = 4
"""Angles of a scan that halves are made of."""


@dataclasses.dataclass(frozen=True, eq=False)
class OpenedJoint:
    """A scan on disk.

    Attributes
    ----------
    scan
        As it was opened.
    data
        In the form of the models.
    """

    scan: PtychotomoScan
    data: JointData

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the user."""
        return tuple(self.scan.warnings)

    @property
    def inputs(self) -> tuple[Path, ...]:
        """Files that it lies in."""
        return tuple(self.scan.inputs)


def open_joint(settings: JointSettings, look: bool = True) -> OpenedJoint:
    """The scan of a run.

    Parameters
    ----------
    settings
        Of the run.
    look
        Whether some frames are looked at; else only metadata are read.

    Raises
    ------
    UserError
        What cannot be read, or lacks what the run needs.
    """
    probe = settings.probe if settings.probe not in PROBES else None
    scan = open_ptychotomo(
        settings.scan,
        angles=settings.angles,
        angle_unit=settings.angle_unit,
        reverse_angles=settings.reverse_angles,
        center_column=settings.center,
        origin=settings.origin,
        rotation_axis=settings.rotation_axis,
        sign=settings.sign,
        mask=settings.mask,
        probe=None if probe is None else given_array(probe, "probe", kinds="fc")[0],
        saturation=settings.saturation,
        energy=settings.energy,
        distance=None if settings.distance is None else settings.distance * 1e-3,
        detector_pixel=None if settings.pixel_size is None else settings.pixel_size * 1e-6,
        look=look,
        **settings.reading,
    )
    return OpenedJoint(scan, data_of(scan))


def data_of(scan: PtychotomoScan) -> JointData:
    """A scan in the form of the models."""
    frames = Data(
        source=scan.frames,
        positions=scan.positions,
        mask=scan.mask,
        dark=scan.background,
        probe=scan.probe,
        pixel_size=None if scan.pixel_size is None else (scan.pixel_size, scan.pixel_size),
        wavelength=scan.wavelength,
        distance=scan.distance,
        saturation=scan.saturation,
    )
    return JointData(frames, scan.angles, scan.angle_of_frame, scan.image_shape, scan.center)


def check_halves(data: JointData, settings: JointSettings) -> None:
    """Refuse halves of too few angles.

    Raises
    ------
    UserError
        So.
    """
    if settings.halves and len(data.angles) < LEAST_HALVED:
        raise UserError(
            f"--halves: each half takes two angles at least, and the scan has {len(data.angles)}; leave it out"
        )


def doubts(data: JointData, settings: JointSettings) -> tuple[str, ...]:
    """Sentences about how scan and settings fit: overlap of the probes, thickness."""
    each = np.bincount(data.angle_of_frame, minlength=len(data.angles))
    angle = int(np.argmax(each))
    chosen = data.angle_of_frame == angle
    found = list(
        check_positions(data.frames.positions[chosen], optics.probe_shape(data.frames, settings.of_one_angle()))
    )
    if not each.all():
        none = np.flatnonzero(each == 0)
        found.append(
            f"{len(none)} of {len(each)} angles have no frames, the first is number {none[0]} "
            f"({data.angles[none[0]]:g} degrees): they say nothing of the volume"
        )
    found += _twice(data.angles)
    if data.wavenumber is None:
        found.append(
            "the scan does not say its wavelength and pixel size, so delta and beta will be in radians per voxel; give "
            "--energy, --distance and --pixel-size (of the detector) for those of the refractive index"
        )
    else:
        from dtomo.ptychotomo.thickness import thickness_sentence

        sentence = thickness_sentence(data, settings.slices)
        found += [sentence] if sentence else []
    return tuple(found)


def _twice(angles: NDArray[np.float64]) -> list[str]:
    """A sentence about angles that are there more than once."""
    order = np.argsort(angles, kind="stable")
    same = np.flatnonzero(np.diff(angles[order]) < SAME_ANGLE)
    if not len(same):
        return []
    first, second = sorted(order[same[0] : same[0] + 2].tolist())
    return [
        f"{len(same)} of {len(angles)} angles are there before, such as numbers {first} and {second}, both "
        f"{angles[first]:g} degrees: leave out what is a copy"
    ]


def first_volume(data: JointData, settings: JointSettings, client: "Client | None" = None) -> Start:
    """What makes the rows of each slab of the first volume, v = k Δ u.

    Raises
    ------
    UserError
        A start that is neither a word nor a result of the same shape.
    """
    columns = data.image_shape[1]
    if settings.start == "zero":
        return functools.partial(_nothing, columns)
    if settings.start == "two-step":
        from dtomo.ptychotomo.start import two_step

        return functools.partial(rows_of, two_step(data, settings, client=client).volume)
    check_start(data, settings)
    path = Path(settings.start)
    return functools.partial(_from_result, path, float(open_parameters(path)[1]["wavenumber"] or 1.0))


def check_start(data: JointData, settings: JointSettings) -> None:
    """Refuse a start that is neither a word nor a result of the same shape.

    Raises
    ------
    UserError
        So.
    """
    if settings.start in ("zero", "two-step"):
        return
    path, columns = Path(settings.start), data.image_shape[1]
    wanted = (data.image_shape[0], columns, columns)
    for name in VOLUMES:
        if not volume_path(path, name).is_dir():
            raise UserError(f"--start {path}: give zero, two-step, or a result of this command with {wanted} voxels")
    for name in VOLUMES:
        shape = open_volume(volume_path(path, name)).shape
        if shape != wanted:
            raise UserError(f"--start {path}: {name} has {shape} voxels; {wanted} were expected")
    open_parameters(path)


def _nothing(columns: int, place: SlabPlace) -> NDArray[Any]:
    return np.zeros((place.height, columns, columns), np.complex64)


def rows_of(volume: NDArray[Any], place: SlabPlace) -> NDArray[Any]:
    """A start: the rows of a volume ``(z, y, x)`` that is held whole."""
    return np.array(volume[place.start : place.stop])


def _from_result(path: Path, wavenumber: float, place: SlabPlace) -> NDArray[Any]:
    rows = slice(place.start, place.stop)
    delta, beta = (np.asarray(open_volume(volume_path(path, name)).array[rows]) for name in VOLUMES)
    return ((-delta + 1j * beta) * wavenumber).astype(np.complex64)
