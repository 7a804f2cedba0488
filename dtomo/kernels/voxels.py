"""Voxel-driven back projection of flat detectors, where the arrays lie."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, on_device
from dtomo.kernels import voxels_cpu


def backproject(
    projections: Any,
    volume: Any,
    matrices: NDArray[np.float64],
    *,
    plain: bool = False,
    first: int = 0,
    slices: int | None = None,
    first_row: int = 0,
    threads: int | None = None,
) -> None:
    """Add to every voxel what is seen in each view where it is, over the square of its depth.

    Parameters
    ----------
    projections
        ``[view, column, row]``, C-contiguous float32; linearly interpolated, 0 beyond the detector.
    volume
        ``[y, x, z]``, C-contiguous float32, slices `first`, … of the whole volume. The sums are added to it.
    matrices
        ``(views, 3, 4)``: times (x, y, z, 1), numbers of a voxel in the whole volume, they give (column · w, row · w,
        w). w is positive in the volume; voxels get their part over w².
    plain
        The second number is the row, not the row times w.
    slices
        How many the whole volume has, if the array is a part of it.
    first_row
        The row of the whole detector that is the first in the array.
    threads
        On the host: how many at most.

    Raises
    ------
    TypeError
        One array lies on the host and the other on a device.
    """
    array_module(projections, volume)
    if on_device(volume):
        from dtomo.kernels.cuda import voxels

        return voxels.backproject(projections, volume, matrices, plain, first, slices, first_row)
    voxels_cpu.backproject(
        projections, volume, matrices, plain=plain, first=first, slices=slices, first_row=first_row, threads=threads
    )
