"""Continue projections beyond the detector's edges, for objects wider than the detector."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, is_array
from dtomo.errors import UserError

ExtensionMode = Literal["taper", "edge", "zero"]
"""How projections go on beyond the edge."""


def extension_width(columns: int) -> int:
    """Columns to add on each side before the ramp filter: three eighths of the detector.

    Tapered over this width, a disc whose radius is 1.5 times half the detector comes out flat to 1 % (rim
    over middle 0.96); radii of 1.1 and 2 times give 0.74 and 1.14; without extension 1.32, 1.97 and 2.39 for
    1.1, 1.5 and 2 times.
    """
    return max(3 * int(columns) // 8, 1)


def extension_weights(width: int, mode: ExtensionMode = "taper") -> NDArray[np.float32]:
    """Factor of the edge value at distances 1, 2 … `width` from the edge, (width,) float32.

    "taper" falls as a squared cosine from 1 to 0; "edge" is 1; "zero" is 0.
    """
    if mode == "zero":
        return np.zeros(width, np.float32)
    if mode == "edge":
        return np.ones(width, np.float32)
    if mode != "taper":
        raise UserError(f"projections are extended by taper, edge or zero, not by {mode!r}")
    distance = np.arange(1, width + 1) / (width + 1)
    return (np.cos(np.pi / 2 * distance) ** 2).astype(np.float32)


def extend(
    projections: NDArray[Any],
    left: int,
    right: int,
    mode: ExtensionMode = "taper",
    *,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Attenuation with `left` and `right` columns more, continued from its edge columns.

    An object fully inside the field has zeros at the edges, and is continued by zeros: nothing changes for
    it. The axis of rotation moves to ``center + left``. Each line is treated by itself.

    Parameters
    ----------
    projections
        (…, column), real.
    left, right
        Columns to add.
    mode
        See `extension_weights`.
    out
        float32 array (…, left + column + right) to write to.

    Returns
    -------
    array
        (…, left + column + right) float32, where the projections lie. Peak memory: the result.
    """
    data = projections if is_array(projections) else np.asarray(projections)
    xp = array_module(data, out)
    if data.ndim < 1 or data.shape[-1] < 1 or left < 0 or right < 0:
        raise UserError(f"cannot extend projections of shape {data.shape} by {left} and {right} columns")
    shape = (*data.shape[:-1], left + data.shape[-1] + right)
    if out is None:
        out = xp.empty(shape, np.float32)
        assert out is not None
    elif out.shape != shape or out.dtype != np.float32:
        raise UserError(f"the output must be float32 of shape {shape}, not {out.dtype} of shape {out.shape}")
    stop = left + data.shape[-1]
    out[..., left:stop] = data
    before, behind = extension_weights(left, mode)[::-1], extension_weights(right, mode)
    np.multiply(out[..., left : left + 1], xp.asarray(before), out=out[..., :left])
    np.multiply(out[..., stop - 1 : stop], xp.asarray(behind), out=out[..., stop:])
    return out
