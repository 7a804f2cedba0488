"""The direction and the position of the axis: where reprojections fit best.

With the few iterations of a round the volume is not yet the best one, so that the derivative of the misfit at fixed
volume vanishes elsewhere than the misfit is least (0.3 pixels off for 8 iterations of conjugate gradients on the tests'
phantom). So the derivatives are those of the misfit itself, by differences.
"""

from collections.abc import Callable

import numpy as np

from dtomo.align.reprojection import Fit, moved, without_gauge
from dtomo.geometry import Alignment

ANGLE_REACHES = (8.0, 2.0, 0.5)
"""Degrees to both sides of the direction that are tried."""
POSITION_REACHES = (2.0, 1.0)
"""Pixels to both sides of the position that are tried; over less, noise and interpolation tell more than the axis."""
TRIES, ROUNDS = 4, 2
"""Steps at each reach, and rounds of shifts at each trial of a direction."""

Evaluate = Callable[[Alignment], Fit]


def minimum(misfit: Callable[[float], float], begin: float, reaches: tuple[float, ...]) -> float:
    """Where a misfit is least: Newton's steps with derivatives by differences over ever smaller reaches.

    Parameters
    ----------
    misfit
        Called with numbers rounded to 1e-4; each but once.
    begin
        Where to begin.
    reaches
        Differences are taken over; no step is longer.
    """
    known: dict[float, float] = {}

    def squared(value: float) -> float:
        value = round(value, 4)
        if value not in known:
            known[value] = misfit(value) ** 2
        return known[value]

    best = round(begin, 4)
    for reach in reaches:
        for _ in range(TRIES):
            low, middle, high = (squared(best + step) for step in (-reach, 0, reach))
            bend = low - 2 * middle + high
            step = 0.5 * (low - high) / bend * reach if bend > 0 else reach * float(np.sign(low - high))
            best = round(best + float(np.clip(step, -reach, reach)), 4)
            if abs(step) <= reach:
                break
    squared(best)
    return min(known, key=known.__getitem__)


def turned(alignment: Alignment, evaluate: Evaluate, binning: int, again: bool = False) -> tuple[Alignment, float]:
    """The alignment turned to where its reprojections fit best, shifts settled at each trial; and its misfit.

    Parameters
    ----------
    alignment
        Shifts and axis, both nearly right.
    evaluate
        A round of reprojection.
    binning
        Of that round.
    again
        Whether the direction was refined before, so that it is near.
    """
    known: dict[float, tuple[float, Alignment]] = {}
    mean = float(alignment.axis_angles.mean())

    def misfit(angle: float) -> float:
        at = alignment.replace(axis_angles=alignment.axis_angles + (angle - mean))
        for _ in range(ROUNDS):
            at = moved(at, evaluate(at).steps() * binning)
        known[angle] = evaluate(at).misfit, at
        return known[angle][0]

    best = known[minimum(misfit, mean, ANGLE_REACHES[-1:] if again else ANGLE_REACHES)]
    return best[1], best[0]


def put_across(alignment: Alignment, evaluate: Evaluate, binning: int) -> tuple[Alignment, float, float]:
    """The alignment with all views moved across the axis to where their reprojections fit best; by how many pixels; and
    the misfit there.

    It is the axis that is tried elsewhere: views that are moved are interpolated, and smoother between pixels.
    Parameters are those of `turned`.
    """
    known: dict[float, float] = {}

    def misfit(pixels: float) -> float:
        known[pixels] = evaluate(alignment.replace(axis=alignment.axis - pixels * binning)).misfit
        return known[pixels]

    best = minimum(misfit, 0.0, POSITION_REACHES)
    pixels = best * binning
    shifts = without_gauge(alignment.shifts + np.array([0.0, pixels]), alignment.tilts)
    return alignment.replace(shifts=shifts), pixels, known[best]
