"""What two half averages have in common, and how far: FSC without and with a mask, corrected for the mask.

A mask correlates by itself: it carries what the halves share at low frequencies to all others. How much is seen from
the same halves with their phases made random beyond a frequency, where nothing is common to them but the mask: with
FSC_t of the masked halves and FSC_n of the masked, randomised ones, FSC = (FSC_t - FSC_n) / (1 - FSC_n)
(S. Chen et al., Ultramicroscopy 135 (2013) 24, equation 4). Phases are random from where the FSC without a mask first
falls below 0.8; two shells on, where the mask reaches no longer, the correction begins.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.algorithms.resolution import (
    FourierCorrelation,
    Resolution,
    fourier_correlation,
    resolution,
    threshold_values,
)
from dtomo.errors import UserError
from dtomo.subtomo.fourier import check_box, forward, inverse, on_host, radii

THRESHOLD = 0.143
"""Of the FSC of two halves (P. B. Rosenthal and R. Henderson, Journal of Molecular Biology 333 (2003) 721)."""
RANDOM_BELOW = 0.8
NOISE = "2-sigma"
"""Of correlations of noise, with as many independent points as a shell has under the mask."""
BEGIN = 2
"""Shells beyond the first random one where the correction begins."""


@dataclasses.dataclass(frozen=True, eq=False)
class HalfCurve:
    """Correlation of two halves by spatial frequency; curves are of `fourier_correlation`, radius 1 first.

    Attributes
    ----------
    unmasked
        Of the halves as they are.
    masked, randomized, corrected
        Under the mask; with random phases, under it; and with the part of the mask taken out. None without a mask.
    random_from
        Radius (shell) from which phases were random; None: none were, and `corrected` is `masked`.
    resolution
        Where `best` falls below the threshold and stays there (three shells). Where a shell holds so few points that
        noise reaches higher, as in small boxes and under masks, what counts is two standard deviations of noise, 0.5 at
        most.
    first_crossing
        Where it falls below it for the first time: never finer. Where the two differ, some frequencies in between are
        not resolved.
    significant
        Where the FSC without a mask falls below three standard deviations of that of noise, and stays there. A
        resolution finer than this one rests on the mask alone.
    pixel_size
        Ångström, if it was given so.
    """

    unmasked: FourierCorrelation
    masked: FourierCorrelation | None
    randomized: FourierCorrelation | None
    corrected: FourierCorrelation | None
    random_from: int | None
    resolution: Resolution
    first_crossing: Resolution
    significant: Resolution
    pixel_size: float

    @property
    def best(self) -> FourierCorrelation:
        """The corrected curve, or without a mask the unmasked one."""
        return self.unmasked if self.corrected is None else self.corrected

    @property
    def frequency(self) -> NDArray[np.float64]:
        """Of each shell, cycles per unit of the pixel size."""
        return self.unmasked.frequency

    def columns(self) -> dict[str, NDArray[np.float64]]:
        """For tables and plots: ``radius``, ``frequency``, and each curve there is, by name."""
        found = {"radius": np.arange(1.0, len(self.frequency) + 1), "frequency": self.frequency}
        for name in ("unmasked", "masked", "randomized", "corrected"):
            curve = getattr(self, name)
            if curve is not None:
                found[name] = curve.correlation
        return found


def half_curve(
    first: NDArray[Any],
    second: NDArray[Any],
    mask: NDArray[Any] | None = None,
    pixel_size: float = 1.0,
    *,
    threshold: float = THRESHOLD,
    seed: int = 0,
) -> HalfCurve:
    """FSC of two half averages that were made independently of one another, and the resolution it means.

    Parameters
    ----------
    first, second
        Cubic boxes ``(z, y, x)``, in one frame (`dtomo.subtomo.frames`); in host memory or on a device.
    mask
        Same shape, from 0 to 1, soft; None: none. A sphere or an outline of the particle.
    pixel_size
        Ångström.
    threshold
        Of the resolution.
    seed
        Of the random phases.

    Raises
    ------
    UserError
        Shapes that differ, values that are not finite, an empty mask.
    """
    one, two = on_host(first), on_host(second)
    check_box(one, "a half average")
    if one.shape != two.shape or (mask is not None and mask.shape != one.shape):
        raise UserError(
            f"half averages and their mask have one shape; got {one.shape}, {two.shape}"
            + ("" if mask is None else f" and {mask.shape}")
        )
    unmasked = fourier_correlation(one, two, window=None, pixel_size=pixel_size)
    masked = randomized = corrected = None
    start: int | None = None
    if mask is not None:
        window = on_host(mask).astype(np.float32)
        masked = fourier_correlation(one, two, window=window, pixel_size=pixel_size)
        corrected = masked
        below = np.flatnonzero(unmasked.correlation < RANDOM_BELOW)
        if len(below):
            start = int(below[0]) + 1
            noisy = [randomized_beyond(volume, start, [seed, k]) for k, volume in enumerate((one, two))]
            randomized = fourier_correlation(noisy[0], noisy[1], window=window, pixel_size=pixel_size)
            corrected = _corrected(masked, randomized, start)
    best = unmasked if corrected is None else corrected
    return HalfCurve(
        unmasked, masked, randomized, corrected, start, _resolution(best, threshold),
        _resolution(best, threshold, stays=1), resolution(unmasked, "3-sigma"), pixel_size,
    )  # fmt: skip


def _resolution(curve: FourierCorrelation, threshold: float, stays: int = 3) -> Resolution:
    """Where the curve falls below the threshold, or where noise reaches higher, below that (0.5 at most)."""
    limit = np.maximum(threshold, np.minimum(0.5, threshold_values(NOISE, curve.count)))
    lowered = dataclasses.replace(curve, correlation=curve.correlation - limit + threshold)
    return resolution(lowered, threshold, stays=stays)


def randomized_beyond(volume: NDArray[Any], radius: float, seed: int | list[int] = 0) -> NDArray[np.float32]:
    """A box with its amplitudes, but with random phases from a radius of Fourier space on, float32.

    Phases are those of the spectrum of white noise: as random as can be, and of a real box.
    """
    size = check_box(volume, "a volume")
    spectrum = forward(volume)
    noise = forward(np.random.default_rng(seed).standard_normal(volume.shape, dtype=np.float32))
    random = np.abs(spectrum) * (noise / np.maximum(np.abs(noise), 1e-20))
    return inverse(np.where(radii(size) >= radius - 0.5, random, spectrum), size)


def _corrected(masked: FourierCorrelation, random: FourierCorrelation, start: int) -> FourierCorrelation:
    """FSC_true: that under the mask up to the shell where the correction begins."""
    total, noise = masked.correlation, random.correlation
    true = np.divide(total - noise, 1 - noise, out=np.zeros_like(total), where=noise < 1)
    begins = np.arange(1, len(total) + 1) >= start + BEGIN
    return dataclasses.replace(masked, correlation=np.clip(np.where(begins, true, total), -1, 1))
