"""What is done with a back projection piece by piece, as `LinearOperator.adjoint_into` hands it out."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.kernels import updates


def add_scaled(
    update: NDArray[Any],
    volume: NDArray[Any],
    factor: NDArray[Any],
    lower: float | None = None,
    upper: float | None = None,
) -> None:
    """``volume += update factor``, then within bounds; `update` may be written over."""
    if updates.suits(volume, update, factor):
        updates.add(volume, update, factor, -np.inf if lower is None else lower, np.inf if upper is None else upper)
        return
    update *= factor
    volume += update
    if lower is not None:
        np.maximum(volume, np.float32(lower), out=volume)
    if upper is not None:
        np.minimum(volume, np.float32(upper), out=volume)


def multiply_scaled(
    update: NDArray[Any], volume: NDArray[Any], factor: NDArray[Any], going: Any = None, *, kept: bool = False
) -> None:
    """``volume *= update factor``, where `going` says, or everywhere; `update` may be written over.

    With `kept`, what has a factor of 0 stays as it is.
    """
    if going is None and updates.suits(volume, update, factor):
        updates.multiply(volume, update, factor, kept)
        return
    update *= factor
    if kept:
        going = (factor > 0) if going is None else going & (factor > 0)
    if going is None:
        volume *= update
    else:
        np.copyto(volume, volume * update, where=going)


def step_ahead(
    slope: NDArray[Any],
    volume: NDArray[Any],
    previous: NDArray[Any],
    ahead: Any,
    step: Any,
    lower: float | None = None,
    upper: float | None = None,
) -> None:
    """``y - step slope`` within bounds, with ``y = volume + ahead (volume - previous)``, in the place of the slope."""
    if updates.lies_alike(slope, volume, previous, step):
        low, high = -np.inf if lower is None else lower, np.inf if upper is None else upper
        updates.step_ahead(slope, volume, previous, step, ahead, low, high)
        return
    slope *= -step
    slope += volume * (1 + ahead)
    slope -= previous * ahead
    if lower is not None:
        np.maximum(slope, np.float32(lower), out=slope)
    if upper is not None:
        np.minimum(slope, np.float32(upper), out=slope)
