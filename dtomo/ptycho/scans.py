"""Scans on disk, as settings say they are to be read, in the form of the models."""

import dataclasses
import os
from pathlib import Path
from typing import Any

from dtomo.errors import UserError
from dtomo.io.ptycho.given import given_array
from dtomo.io.ptycho.opening import open_ptycho
from dtomo.io.ptycho.scan import PtychoScan
from dtomo.ptycho import optics
from dtomo.ptycho.plausible import check_positions
from dtomo.ptycho.setup import Data
from dtomo.settings import PtychoSettings
from dtomo.settings.ptycho import PROBES


@dataclasses.dataclass(frozen=True, eq=False)
class Opened:
    """A scan on disk.

    Attributes
    ----------
    scan
        As it was opened.
    data
        In the form of the models.
    doubts
        Sentences about how these fit.
    """

    scan: PtychoScan
    data: Data
    doubts: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the user."""
        return self.scan.warnings + self.doubts

    @property
    def inputs(self) -> tuple[Path, ...]:
        """Files that it lies in."""
        return self.scan.inputs


def open(path: str | os.PathLike[str], **options: Any) -> Data:  # as dtomo.open
    """A scan for `dtomo.ptycho.reconstruct`.

    Parameters
    ----------
    path
        CXI, ptypy ``.ptyd``, a NumPy archive, or HDF5 with positions.
    **options
        Of `dtomo.io.ptycho.opening.open_ptycho`.

    Raises
    ------
    UserError
        What cannot be read, or lacks what a reconstruction needs.
    """
    return data_of(open_ptycho(path, **options))


def data_of(scan: PtychoScan) -> Data:
    """A scan in the form of the models.

    Raises
    ------
    UserError
        Positions in metres without what tells the size of an object pixel.
    """
    distance = scan.distance
    if distance is not None and scan.near_field:
        distance /= scan.magnification
    return Data(
        source=scan.frames,
        positions=scan.positions_in_pixels(),
        mask=scan.mask,
        dark=scan.background,
        probe=scan.probe,
        pixel_size=scan.object_pixel_size,
        wavelength=scan.wavelength,
        distance=distance,
        saturation=scan.saturation,
        basis=scan.object_basis,
        near_field=scan.near_field,
    )


def open_data(settings: PtychoSettings, look: bool = True) -> Opened:
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
    scan = open_ptycho(
        settings.scan,
        dataset=settings.dataset,
        positions=settings.positions,
        position_unit=settings.position_unit,
        motion=settings.motion,
        swap_axes=settings.swap_axes,
        flip_rows=settings.flip_rows,
        flip_columns=settings.flip_columns,
        flip_frames=settings.flip_frames,
        center=settings.center,
        crop=settings.crop,
        exclude=settings.exclude_frames,
        mask=settings.mask,
        background=settings.dark,
        probe=None if probe is None else given_array(probe, "probe", kinds="fc")[0],
        saturation=settings.saturation,
        energy=settings.energy,
        distance=None if settings.distance is None else settings.distance * 1e-3,
        detector_pixel=None if settings.pixel_size is None else settings.pixel_size * 1e-6,
        near_field=settings.near_field,
        magnification=settings.magnification,
        look=look,
    )
    data = data_of(scan)
    return Opened(scan, data, check_positions(data.positions, optics.probe_shape(data, settings)))


def check_orientation(data: Data, settings: PtychoSettings) -> str:
    """Try all ways round of the positions; a line about what fits best.

    Raises
    ------
    UserError
        Another way round fits clearly better, the scan has too few frames, or they are of the near field.
    """
    from dtomo.ptycho.orientation import Way, check

    if data.near_field:
        raise UserError("--check-orientation is for the far field; leave it out, and look at the pictures")
    ranking = check(data.source, data.positions, mask=data.mask, probe=data.probe, pixel_size=data.pixel_size)
    if ranking.right is False:
        given = Way(settings.swap_axes, settings.flip_rows, settings.flip_columns)
        raise UserError(f"{ranking}; give {ranking.advice(given)}, or leave --check-orientation out")
    return str(ranking)
