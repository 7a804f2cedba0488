"""Round lengths and gray ranges, for pictures of any kind."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def gray_range(images: Sequence[NDArray[Any]], low: float = 0.5, high: float = 99.7) -> tuple[float, float]:
    """Gray values of black and white for all images: percentiles of what is finite, never equal."""
    values = np.concatenate([image[np.isfinite(image)].ravel() for image in images]) if images else np.zeros(0)
    if not values.size:
        return 0.0, 1.0
    black, white = (float(v) for v in np.percentile(values, [low, high]))
    if not white > black:
        black, white = float(values.min()), float(values.max())
    return (black, white) if white > black else (black - 0.5, black + 0.5)


def bar_length(pixels: float, pixel_size: float) -> tuple[float, str]:
    """Length in pixels of a scale bar of a round length near a fifth of the width, and its label.

    `pixel_size` in micrometres.
    """
    wanted = pixels * pixel_size / 5
    power = 10.0 ** math.floor(math.log10(wanted))
    length = power * max(step for step in (1, 2, 5) if step * power <= wanted * (1 + 1e-9))
    for unit, size in (("m", 1e6), ("mm", 1e3), ("µm", 1.0), ("nm", 1e-3)):
        if length >= size or unit == "nm":
            return length / pixel_size, f"{length / size:g} {unit}"
    raise AssertionError("unreachable")
