"""Zingers and hot pixels replaced, in each detector row by itself: on the CPU and on devices with the same bits."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, on_device
from dtomo.errors import UserError
from dtomo.prep import flats, line_kernels
from dtomo.threads import run_blocks

_DEVICE_VALUES = 1 << 24
"""In a work buffer on a device: 64 MiB."""


def remove_outliers(
    projections: NDArray[Any],
    *,
    threshold: float,
    kind: Literal["bright", "dark", "both"] = "bright",
    out: NDArray[np.float32] | None = None,
) -> tuple[NDArray[np.float32], int]:
    """Replace single hot pixels and zingers by the median of their 3 x 3 neighbours in the sinogram.

    Neighbours are (angle, column) in the same detector row, so nothing crosses to another slice, and a column
    that is hot in all frames goes too. Works on counts, transmission (zingers are bright) or attenuation
    (zingers are dark). Peak memory: a float32 copy of the input
    without `out`; on a device three views or 64 MiB more. Values that are not finite stay.

    Parameters
    ----------
    projections
        (angle, row, column), any real dtype; adjacent frames must be adjacent views.
    threshold
        A value is replaced when it differs from the median by more than this, in the units of the data.
    kind
        Which outliers to replace.
    out
        Where the result goes, float32; may be the projections themselves.

    Returns
    -------
    tuple
        (angle, row, column) float32, and how many values were replaced.
    """
    if not threshold > 0:
        raise UserError(f"the threshold of outliers must be positive, not {threshold}")
    if kind not in ("bright", "dark", "both"):
        raise UserError(f"outliers are bright, dark or both, not {kind!r}")
    projections = flats._projections(projections)
    result = flats._output(out, projections.shape, array_module(projections, out))
    if on_device(projections):
        return result, _device_outliers(projections, threshold, kind, result)

    def block(start: int, stop: int) -> int:
        rows = np.ascontiguousarray(projections[:, start:stop], np.float32)
        cleaned = np.empty_like(rows)
        count = line_kernels.replace_outliers(rows, np.float32(threshold), kind != "dark", kind != "bright", cleaned)
        result[:, start:stop] = cleaned
        return int(count)

    values = projections.shape[0] * projections.shape[2]
    return result, sum(run_blocks(block, projections.shape[1], max(flats._BLOCK_VALUES // values, 1)))


def _device_outliers(projections: Any, threshold: float, kind: str, result: Any) -> int:
    """Some views at a time, with copies of their neighbours: `result` may be the projections."""
    from dtomo.kernels.cuda import lines

    angles, rows, columns = projections.shape
    step = min(max(_DEVICE_VALUES // (rows * columns) - 2, 1), angles)
    views = array_module(projections).empty((step + 2, rows, columns), np.float32)
    views[0] = projections[0]
    count: Any = 0
    for start in range(0, angles, step):
        stop = min(start + step, angles)
        size = stop - start
        views[1 : size + 1] = projections[start:stop]
        views[size + 1] = projections[min(stop, angles - 1)]
        count = count + lines.replace_outliers(
            views[: size + 2], threshold, kind != "dark", kind != "bright", result[start:stop]
        )
        views[0] = views[size]  # of the next ones the view before, as it was
    return int(count)
