"""Whether the positions of a scan can be meant: what cannot work is refused, what might not is said."""

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from dtomo.errors import UserError

LOOKED_AT = 4096
"""Positions whose neighbours are looked for."""
HARDLY = 0.7
"""Distance of neighbours, as part of a frame, from which on they hardly overlap."""
SMALLEST = 2.0
"""Pixels that a scan spans at least, if its unit is right."""
_ADVICE = "check their unit (--position-unit), --energy, --distance and --pixel-size"


def check_positions(positions: NDArray[np.float64], probe_shape: tuple[int, int]) -> tuple[str, ...]:
    """Sentences about positions that might be wrong.

    Parameters
    ----------
    positions
        Row and column in object pixels ``(frame, 2)``.
    probe_shape
        Rows and columns of the probe.

    Raises
    ------
    UserError
        One frame alone, positions that are all the same or not finite, or none that overlap.
    """
    if not np.isfinite(positions).all():
        raise UserError("positions are finite numbers; correct them, or leave their frames out (--exclude-frames)")
    if len(positions) < 2:
        raise UserError("ptychography takes several frames that overlap; the scan has one")
    span = np.ptp(positions, axis=0)
    said = f"the {len(positions)} positions of the scan"
    if not span.any():
        raise UserError(f"{said} are all the same, so nothing tells probe from object; give others (--positions)")
    apart = neighbours_apart(positions, probe_shape)
    rows, columns = probe_shape
    if apart > 1:
        raise UserError(
            f"{said} span {span[0]:.3g} × {span[1]:.3g} pixels of the object and lie farther apart than the "
            f"{rows} × {columns} pixels of a frame, so no frames overlap; {_ADVICE}"
        )
    if apart > HARDLY:
        return (
            f"neighbouring frames lie {100 * apart:.0f} % of their size apart and hardly overlap; unless the probe "
            f"fills the frame, {_ADVICE}",
        )
    if span.max() < SMALLEST:
        return (f"{said} span no more than {span[0]:.2g} × {span[1]:.2g} pixels of the object; {_ADVICE}",)
    return ()


def neighbours_apart(positions: NDArray[np.float64], probe_shape: tuple[int, int]) -> float:
    """Distance to the nearest other position along the axis where it is larger, in frames: the median.

    Parameters
    ----------
    positions, probe_shape
        See `check_positions`.
    """
    places = np.unique(positions / np.array(probe_shape), axis=0)
    chosen = places[:: -(-len(places) // LOOKED_AT)]
    return float(np.median(cKDTree(places).query(chosen, k=2, p=np.inf)[0][:, 1]))
