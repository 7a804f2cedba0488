"""The same slice with the axis at several columns, to judge by eye."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dtomo import io, prep
from dtomo.errors import UserError
from dtomo.recon.prepare import line_integrals
from dtomo.recon.scans import Axis, geometry_of, is_folded
from dtomo.recon.slab import solve
from dtomo.settings import ReconSettings


def trial_slices(
    scan: io.Scan, settings: ReconSettings, centers: Sequence[float], row: int | None = None
) -> list[tuple[float, NDArray[np.float32]]]:
    """(center, slice (y, x)) for each center that lies on the detector; of complex scans the main part.

    Parameters
    ----------
    scan
        Cropped and binned, see `open_scan`.
    centers
        Columns of the detector as the file has it.
    row
        Row of `scan`; default the middle one.

    Raises
    ------
    UserError
        A row outside the scan, or no center on the detector.
    """
    _, rows, columns = scan.shape
    row = rows // 2 if row is None else row
    if not 0 <= row < rows:
        raise UserError(f"--row {row}: the scan has rows 0 to {rows - 1}")
    axes = [Axis.on_detector(center, settings, "tried") for center in centers]
    inside = [axis for axis in axes if 0 <= axis.column <= columns - 1]
    if not inside:
        raise UserError(f"none of the columns {centers[0]:g} to {centers[-1]:g} is on the detector")
    plain, _ = line_integrals(scan, settings, slice(row, row + 1))
    data = prep.main_part(plain) if scan.is_complex else plain
    trials = []
    for axis in inside:
        folded = is_folded(scan, axis.column, settings)
        geometry = geometry_of(scan, axis.column, folded)
        if folded:
            integrals, _, _ = prep.fold_360(data, scan.angles, axis.column)
        else:
            integrals = data
        volume, _ = solve(integrals, geometry, settings)
        size = min(columns, geometry.width)
        trials.append((axis.detector_column, _middle(volume[0], size)))
    return trials


def _middle(image: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """The middle `size` × `size` pixels: folded slices differ in width with the axis."""
    first = (image.shape[0] - size) // 2
    return np.ascontiguousarray(image[first : first + size, first : first + size])
