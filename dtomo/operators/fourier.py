"""Filtered back projection by the central slice theorem."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.kernels import nufft
from dtomo.kernels.filters import padded_length
from dtomo.kernels.layout import projections_inside_out
from dtomo.operators.filtering import Padding, check_padding, filter_responses
from dtomo.operators.projection import check_projections


def fourier_backproject(
    projections: NDArray[Any],
    geometry: ParallelBeam,
    name: str = "ramp",
    *,
    cutoff: float = 1.0,
    padding: Padding = "edge",
) -> NDArray[Any]:
    """Filter projections ``(angle, row, column)`` and sum them at every voxel, ``(z, y, x)``, in Fourier space.

    The same as `filter_projections` and `backproject`, without interpolation between columns: the work grows with
    the square of the width instead of its cube.

    Raises
    ------
    UserError
        Projections that do not fit the geometry, unknown filter or padding; projections on a device without cuFINUFFT.
    """
    projections = check_projections(projections, geometry)
    extend = check_padding(padding)
    xp = array_module(projections)
    if not nufft.spectra_can_be_summed(projections):
        raise UserError(
            "summing slices in Fourier space on a GPU takes cufinufft, which is not installed or does not load; "
            "install dtomo[cuda12], or take the method 'backprojection'"
        )
    if not -_reach(geometry) < geometry.center < geometry.columns - 1 + _reach(geometry):
        return xp.zeros((projections.shape[1], geometry.height, geometry.width), projections.dtype)
    length = padded_length(max(geometry.columns, -(-_span(geometry) // 2)))
    lanes = projections_inside_out(projections).view(np.float32)
    out = nufft.fourier_backproject(
        lanes, filter_responses(geometry, name, cutoff, length, xp), geometry.radians, geometry.center, geometry.pitch,
        (geometry.height, geometry.width), length, extend,
    )  # fmt: skip
    return np.moveaxis(out.view(projections.dtype), -1, 0)


def _reach(geometry: ParallelBeam) -> float:
    """Columns between the axis and the farthest voxel."""
    return float(np.hypot(geometry.width, geometry.height) / 2 / geometry.pitch + 1)


def _span(geometry: ParallelBeam) -> int:
    """Columns of a line, detector in the middle, that every voxel falls on: a shorter one would repeat in the slice."""
    reach, center = _reach(geometry), geometry.center
    beyond = max(reach - center, center + reach - (geometry.columns - 1), 0)
    return geometry.columns + 2 * int(np.ceil(beyond))
