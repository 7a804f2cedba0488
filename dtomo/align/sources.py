"""Views ready to be aligned: line integrals of a scan, and scans whose views are aligned as they are read."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo import io
from dtomo.errors import UserError
from dtomo.geometry import Alignment
from dtomo.io.sources import Frames, frame_index
from dtomo.io.tilts import AlignedSource
from dtomo.settings import ReconSettings

HISTOGRAM = 128
"""Bins in which the value of empty space is looked for."""
LOOKED_AT = 2**16
"""Pixels of a view that are looked at for it."""


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


def empty_level(view: NDArray[Any]) -> float:
    """The value of empty space in a view: the middle of what lies in the fullest part of its histogram.

    Where the sample fills the view it is the commonest value of the sample, which does as well: an alignment needs
    what stands out.
    """
    step = max(1, int(np.sqrt(view.size / LOOKED_AT)))
    values = view[::step, ::step].astype(np.float64).ravel()
    values = values[np.isfinite(values)]
    if not values.size:
        return 0.0
    low, high = np.percentile(values, [0.5, 99.5])
    if not high > low:
        return float(low)
    counts, edges = np.histogram(values, HISTOGRAM, (low, high))
    fullest = int(counts.argmax())
    inside = values[(values >= edges[fullest]) & (values <= edges[fullest + 1])]
    return float(np.median(inside))
