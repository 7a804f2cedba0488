"""How far out of focus the probe of a far-field scan is, told by short trials.

The mean pattern says how strong the frequencies of the probe are, but not their phases. Beams are mostly out of focus,
so that neighbouring frames overlap; a probe in focus is then far too small a first guess. A quadratic phase c |f|²
spreads it to the width w with w² = w₀² + (c σ / π)², σ the standard deviation of its frequencies along an axis. Widths
that suit the distance between frames, and both signs, are tried on some frames around the middle of the scan.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from dtomo.io.sources import SelectedFrames
from dtomo.ptycho import driver, start
from dtomo.ptycho.engines.lsqml import LeastSquaresML
from dtomo.ptycho.frames import to_model_order
from dtomo.ptycho.model import PtychoModel
from dtomo.ptycho.setup import Data

FRAMES, EPOCHS, BATCH = 48, 6, 8
PIXELS = 2**21
"""Of the frames of a trial, where they are large."""
WIDTHS = (0.4, 0.75, 1.3)
"""Standard deviations of the light along an axis that are tried, in units of the distance between neighbours."""
BETTER = 0.95
"""Part of the loss in focus that another probe must stay below."""


def focus_phase(data: Data, pattern: start.Pattern, seed: int = 0) -> NDArray[np.float64] | None:
    """Phase of the probe's Fourier transform ``(row, column)`` in detector order; None: flat is as good.

    Parameters
    ----------
    data
        A far-field scan.
    pattern
        Its mean pattern.
    seed
        Of the batches.
    """
    rows, columns = data.frame_shape
    count = min(FRAMES, len(data.positions), max(12, PIXELS // (rows * columns)))
    if count < 4:
        return None
    chosen = np.sort(cKDTree(data.positions).query(np.median(data.positions, axis=0), k=count)[1])
    spacing = float(np.median(cKDTree(data.positions[chosen]).query(data.positions[chosen], k=2)[0][:, 1]))
    flat = _trial(data, pattern, chosen, None, seed)
    best, least = None, BETTER * flat
    for curvature in curvatures(pattern.mean, spacing):
        phase = curvature * _square(data.frame_shape)
        loss = _trial(data, pattern, chosen, phase, seed)
        if loss < least:
            best, least = phase, loss
    return best


def curvatures(mean: NDArray[np.float64], spacing: float) -> list[float]:
    """Those to be tried: c of c |f|², f in cycles per pixel.

    Parameters
    ----------
    mean
        Mean pattern in detector order.
    spacing
        Pixels between neighbouring frames.
    """
    frequencies = [np.fft.fftshift(np.fft.fftfreq(size)) for size in mean.shape]
    total = mean.sum()
    spread = math.sqrt(sum(float(mean.sum(1 - axis) @ f**2) for axis, f in enumerate(frequencies)) / total / 2)
    intensity = np.abs(start.probe_from_pattern(mean)) ** 2
    row, column = (np.arange(size) - size // 2 for size in mean.shape)
    narrow = float((intensity * (row[:, None] ** 2 + column**2)).sum() / intensity.sum() / 2)
    found = []
    for width in (part * spacing for part in WIDTHS):
        if width**2 > 1.2 * narrow and width < min(mean.shape) / 6:
            found.append(math.pi * math.sqrt(width**2 - narrow) / max(spread, 1e-6))
    return [sign * value for value in found for sign in (1.0, -1.0)]


def _square(shape: tuple[int, int]) -> NDArray[np.float64]:
    row, column = (np.fft.fftshift(np.fft.fftfreq(size)) for size in shape)
    return np.asarray(row[:, None] ** 2 + column**2)


def _trial(
    data: Data, pattern: start.Pattern, chosen: NDArray[np.int64], phase: NDArray[np.float64] | None, seed: int
) -> float:
    """Loss of the last epoch."""
    probe = start.probe_modes(start.probe_from_pattern(pattern.mean, phase), 1, pattern.photons)
    place = start.place_object(data.positions[chosen], data.frame_shape)
    parameters = start.first_parameters(probe, place, start.first_object(place.shape))
    mask = None if data.mask is None else to_model_order(data.mask)
    model = PtychoModel(data.frame_shape, mask=mask, saturation=data.saturation)
    engine = LeastSquaresML(model=model, batch=BATCH, momentum=0.0)
    source = SelectedFrames.of(data.source, chosen)
    loss = float(driver.run(engine, source, parameters, EPOCHS, seed=seed).losses[-1])
    return loss if math.isfinite(loss) else math.inf
