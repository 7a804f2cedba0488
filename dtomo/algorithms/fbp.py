"""Filtered back projection."""

from typing import Any, Literal

from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.operators import backproject, filter_projections, fourier_backproject, spectra_can_be_summed
from dtomo.operators.filtering import Padding

Method = Literal["auto", "backprojection", "nufft"]

# Seconds on one core of a server of 2023 (measured with many and with few angles, at 512 to 2048 voxels).
_BACKPROJECTING = 1 / 15e9
"""Per voxel and angle."""
_TRANSFORMING, _PER_VOXEL = 50e-9, 20e-9
"""Of the non-uniform transform: per frequency of all lines, and per voxel."""
_WORTH_IT = 1.4
"""Fourier space is taken where it is so much faster: it takes more memory, and its error is a little larger."""


def sums_spectra(geometry: ParallelBeam, method: Method = "auto") -> bool:
    """Whether slices are summed in Fourier space, by how long both ways take for so many angles of that width.

    For as many angles as a full sampling takes, from about 1300 voxels on. It depends on nothing but the geometry, so
    that a slice has the same bits in every slab and run, and the same method on CPUs and GPUs; where both ways take
    equally long on a GPU has not been measured.
    """
    if method != "auto":
        return method == "nufft"
    voxels, angles = geometry.width * geometry.height, len(geometry.angles)
    transform = voxels * _PER_VOXEL + angles * (geometry.columns + 1) * _TRANSFORMING
    return voxels * angles * _BACKPROJECTING > _WORTH_IT * transform


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
        faster one for that width and number of angles. On a GPU "nufft" takes cufinufft; without it "auto" is
        "backprojection".
    padding
        "edge" continues truncated projections smoothly, "zero" does not.
    overwrite
        The projections may be destroyed, which spares memory of their size.

    Returns
    -------
    array
        Volume ``(z, y, x)``, float32 or complex64, per voxel length.

    Raises
    ------
    UserError
        Projections that do not fit the geometry, or an unknown filter, method or padding; "nufft" on a GPU without
        cufinufft.

    Notes
    -----
    A. C. Kak and M. Slaney, Principles of Computerized Tomographic Imaging (1988), chapter 3. A slice has the same
    bits alone, in any slab and on any number of threads. On a GPU this holds for "backprojection" as far as cuFFT
    treats all lines of a batch alike; cufinufft adds in no fixed order, so that the last bits may differ.
    """
    if method not in ("auto", "backprojection", "nufft"):
        raise UserError(f"the method of filtered back projection is auto, backprojection or nufft, not {method!r}")
    if sums_spectra(geometry, method) and (method == "nufft" or spectra_can_be_summed(projections)):
        return fourier_backproject(projections, geometry, filter, cutoff=cutoff, padding=padding)
    filtered = filter_projections(projections, geometry, filter, cutoff=cutoff, padding=padding, overwrite=overwrite)
    return backproject(filtered, geometry)
