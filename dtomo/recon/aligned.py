"""Line integrals of a scan as a source, and scans whose views are aligned as they are read.

Aligned views are interpolated once, on their way from the file to a slab. The other way, projectors along each view's
own rays (`dtomo.geometry.tilt_series`), interpolates nothing, but its slabs depend on one another where shifts along
the axis differ, and it is many times slower than the projector of one axis, which all algorithms share.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo import io
from dtomo.errors import UserError
from dtomo.geometry import Alignment
from dtomo.io.sources import Frames, frame_index
from dtomo.io.tilts import AlignedSource, read_alignment
from dtomo.settings import ReconSettings


@dataclasses.dataclass(frozen=True, eq=False)
class PreparedSource:
    """Line integrals of a scan, ``(view, row, column)`` float32, prepared as they are read.

    Flat and dark correction, dead pixels, zingers and the logarithm, as `dtomo recon` does; no stripe removal, which
    needs all views at once.

    Parameters
    ----------
    scan
        Neither cropped nor binned.
    settings
        Of the preparation.
    """

    scan: io.Scan
    settings: ReconSettings

    @property
    def shape(self) -> tuple[int, int, int]:
        """(view, row, column)"""
        return self.scan.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32"""
        return np.dtype(np.float32)

    @property
    def location(self) -> str:
        """That of the projections."""
        return self.scan.projection_source.location

    def read(
        self, frames: Frames = slice(None), rows: slice = slice(None), columns: slice = slice(None)
    ) -> NDArray[np.float32]:
        """Line integrals; rows and columns are plain start:stop.

        Raises
        ------
        UserError
            As the scan does.
        """
        from dtomo.recon.prepare import line_integrals

        scan = self.scan.select(frame_index(frames, self.shape[0], self.location))
        across = slice(*columns.indices(self.shape[2])[:2])
        if scan.values == "integrals":  # every pixel for itself
            scan = scan.crop(columns=across)
            across = slice(None)
        values, _ = line_integrals(scan, self.settings, slice(*rows.indices(self.shape[1])[:2]))
        return np.asarray(values[:, :, across])


def prepared(scan: io.Scan, settings: ReconSettings) -> PreparedSource:
    """The views of a scan that can be aligned.

    Raises
    ------
    UserError
        Complex views; counts without flats.
    """
    if scan.is_complex:
        raise UserError(f"{scan.path} holds complex numbers; only real views are aligned")
    if scan.flat_source is None and scan.values == "counts":
        raise UserError(
            f"{scan.path} has no flats: give them with --flats, or say --values transmission or --values integrals"
        )
    plain = settings.model_copy(update={"stripes": "none", "delta_beta": None})
    return PreparedSource(dataclasses.replace(scan, tilt_series=True), plain)


def aligned_as_asked(scan: io.Scan, settings: ReconSettings) -> io.Scan:
    """A scan aligned by the file that the settings name, or as it is.

    Raises
    ------
    UserError
        A file that is no alignment, or of other views; a scan that is no plain parallel beam.
    """
    if settings.alignment is None:
        return scan
    if scan.geometry is not None:
        raise UserError(f"--alignment is for parallel beams, but {scan.path} says where source and detector lie")
    alignment = read_alignment(settings.alignment, scan.angles, scan.shape[1:])
    put = aligned_scan(scan, alignment, settings)
    return dataclasses.replace(put, inputs=(*scan.inputs, settings.alignment))


def aligned_scan(scan: io.Scan, alignment: Alignment, settings: ReconSettings) -> io.Scan:
    """A scan of line integrals whose views are aligned as they are read; the axis is where the alignment says.

    Parameters
    ----------
    scan
        As it was aligned: not cropped, not binned.
    alignment
        Of its views.
    settings
        Of the preparation before.

    Raises
    ------
    UserError
        Another number or size of views.
    """
    source = AlignedSource(prepared(scan, settings), alignment)
    return dataclasses.replace(
        scan, projection_source=source, flat_source=None, dark_source=None, angles=alignment.tilts,
        center=source.axis, values="integrals", window=None, tilt_series=True, tilt_axis=0.0, geometry=None,
        found={**scan.found, "center": "the alignment", "angles": "the alignment"},
    )  # fmt: skip
