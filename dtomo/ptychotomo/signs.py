"""Whether a volume looks as if its frames had been read with the wrong sign of the waves.

Frames of waves exp(-ikz) that are taken for exp(+ikz) give the same absorption, but phases of the other sign: -δ in
place of δ, up to a constant that no intensities tell. So the mean of δ says nothing, but materials that absorb more are
denser: δ and β rise together, and with the wrong sign one falls where the other rises.
"""

import numpy as np
from numpy.typing import NDArray

from dtomo.device import to_host

AGAINST = -0.1
"""Correlation of δ and β below which the sign is doubted: from 0.33 to 0.55 were found with the right one, and from
-0.45 to -0.17 with the wrong one (simulated balls, with and without the constraint of signs)."""


def moments(volume: NDArray[np.complexfloating]) -> NDArray[np.float64]:
    """Sums that the correlation of δ and β follows from: of 1, δ, β, δ², β², δβ; those of slabs are added.

    Parameters
    ----------
    volume
        Some planes of -δ + iβ ``(z, y, x)``, in any unit. Only the cylinder that all images hold counts.
    """
    planes, height, width = volume.shape
    y, x = np.ogrid[:height, :width]
    inside = np.hypot(y - (height - 1) / 2, x - (width - 1) / 2) <= (width - 1) / 2
    found = np.zeros(6)
    for plane in range(planes):
        values = to_host(volume[plane])[inside]
        delta, beta = -values.real.astype(np.float64), values.imag.astype(np.float64)
        found += (len(values), delta.sum(), beta.sum(), delta @ delta, beta @ beta, delta @ beta)
    return found


def wrong_sign(sign: int) -> str:
    """A sentence for frames that seem to be of the other sign than this one, 1 or -1."""
    waves = "exp(-ikz)" if sign == 1 else "exp(+ikz)"
    return (
        f"δ falls where β rises: the frames may be of waves {waves}, or turned over; try --sign {-sign}, or flip them"
    )


def correlation(sums: NDArray[np.float64]) -> float:
    """Of δ and β, from -1 to 1; 0 where one of them is the same everywhere.

    Parameters
    ----------
    sums
        Of `moments`, over the whole volume.
    """
    count, delta, beta, delta2, beta2, both = sums / max(1.0, sums[0])
    spread = (delta2 - delta**2) * (beta2 - beta**2)
    return float((both - delta * beta) / np.sqrt(spread)) if count and spread > 0 else 0.0
