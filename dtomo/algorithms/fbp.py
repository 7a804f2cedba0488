"""Filtered back projection."""

from typing import Any, Literal

from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.operators import backproject, filter_projections, fourier_backproject
from dtomo.operators.filtering import Padding

Method = Literal["auto", "backprojection", "nufft"]

NUFFT_FROM = 1400
"""Slices of this width and more are summed in Fourier space by "auto": measured, see benchmarks/fbp.py."""


def fbp(
    projections: NDArray[Any],
    geometry: ParallelBeam,
    *,
    filter: str = "ramp",
    cutoff: float = 1.0,
    method: Method = "auto",
    padding: Padding = "edge",
    overwrite: bool = False,
) -> NDArray[Any]:
    """Filtered back projection of parallel-beam projections.

    Parameters
    ----------
    projections
        Line integrals ``(angle, row, column)``, real or complex.
    geometry
        Angles, axis, detector and slice size. Uneven and repeated angles are weighted by what they stand for.
    filter, cutoff
        One of `dtomo.operators.FILTERS`; the fraction of the Nyquist frequency where its window ends.
    method
        "backprojection" interpolates filtered lines at every voxel, "nufft" sums their spectra; "auto" takes the
        faster one at this size.
    padding
        "edge" continues truncated projections smoothly, "zero" does not.
    overwrite
        The projections may be destroyed, which spares memory of their size.

    Returns
    -------
    Volume ``(z, y, x)``, float32 or complex64, per voxel length.

    Raises
    ------
    UserError
        Projections that do not fit the geometry, or an unknown filter, method or padding.

    Notes
    -----
    A. C. Kak and M. Slaney, Principles of Computerized Tomographic Imaging (1988), chapter 3. A slice has the same
    bits alone, in any slab and on any number of threads.
    """
    if method not in ("auto", "backprojection", "nufft"):
        raise UserError(f"the method of filtered back projection is auto, backprojection or nufft, not {method!r}")
    if method == "nufft" or (method == "auto" and min(geometry.width, geometry.height) >= NUFFT_FROM):
        return fourier_backproject(projections, geometry, filter, cutoff=cutoff, padding=padding)
    filtered = filter_projections(projections, geometry, filter, cutoff=cutoff, padding=padding, overwrite=overwrite)
    return backproject(filtered, geometry)
