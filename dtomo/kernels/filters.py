"""Filters of filtered back projection, and their application line by line."""

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from dtomo.arrays import empty_aligned, on_device
from dtomo.threads import run_jobs

WINDOWS = {
    "ramp": lambda f: np.ones_like(f),
    "shepp-logan": lambda f: np.sinc(f / 2),
    "cosine": lambda f: np.cos(np.pi * f / 2),
    "hamming": lambda f: 0.54 + 0.46 * np.cos(np.pi * f),
    "hann": lambda f: 0.5 + 0.5 * np.cos(np.pi * f),
    "parzen": lambda f: np.where(f <= 0.5, 1 - 6 * f**2 * (1 - f), 2 * (1 - f) ** 3),
}
"""Windows on the ramp by name; the argument is the frequency over the cut-off, 0 to 1."""


def padded_length(columns: int) -> int:
    """Length to which lines are padded, so that the ramp does not wrap around: at least twice as long."""
    return int(scipy.fft.next_fast_len(2 * columns, real=True))


def ramp_response(
    length: int, window: str = "ramp", cutoff: float = 1.0, reach: int | None = None
) -> NDArray[np.float64]:
    """Real frequency response (as `rfft` orders it) of the band-limited ramp for lines of `length` samples.

    The transform of the sampled kernel 1/4, -1/(pi n)^2 for odd n (A. C. Kak and M. Slaney, Principles of
    Computerized Tomographic Imaging, 1988, eq. 3.61), which keeps the mean right, times a window. `cutoff` is the
    fraction of the Nyquist frequency at which the window ends. With `reach` the kernel is no longer than so many
    samples, fewer than `length`.
    """
    n = np.minimum(np.arange(length), length - np.arange(length))
    kernel = np.where(n % 2 == 1, -1 / (np.pi * np.maximum(n, 1)) ** 2, 0.0)
    kernel[0] = 0.25
    if reach is not None:
        kernel[2 * n > reach] = 0
    f = np.arange(length // 2 + 1) / (length / 2) / cutoff
    return np.where(f <= 1, WINDOWS[window](np.minimum(f, 1)), 0.0) * np.fft.rfft(kernel).real


def interpolation_response(length: int) -> NDArray[np.float64]:
    """What makes linear interpolation between samples come closest to the band-limited line, in the mean square.

    3 sinc²(f) / (2 + cos 2πf): the projection onto linear splines (M. Unser, IEEE Signal Processing Magazine 16(6),
    22-38, 1999), f in cycles per sample, as `rfft` orders it. Without it interpolation damps fine detail.
    """
    f = np.arange(length // 2 + 1) / length
    return 3 * np.sinc(f) ** 2 / (2 + np.cos(2 * np.pi * f))


def edge_fall(width: int) -> NDArray[np.float32]:
    """What is left of the edge value at distances 1 … width beyond the edge: a squared cosine from 1 to 0."""
    return (np.cos(np.pi / 2 * np.arange(1, width + 1) / (width + 1)) ** 2).astype(np.float32)


def line_continuation(columns: int, length: int, extend: bool) -> NDArray[np.float32]:
    """Factors ``[place]`` of a line in the middle of `length` samples: 1 on the detector, as `pad_lines` beyond it."""
    left = (length - columns) // 2
    right = length - columns - left
    ends = (edge_fall(left)[::-1], edge_fall(right)) if extend else (np.zeros(left), np.zeros(right))
    return np.concatenate([ends[0], np.ones(columns), ends[1]]).astype(np.float32)


def pad_lines(lines: NDArray[np.float32], padded: NDArray[np.float32], extend: bool) -> int:
    """Copy ``lines[k, column, z]`` into the middle of ``padded[k, :, z]``; returns where column 0 lies.

    Beyond the detector the lines are 0, or fall from their edge values to 0 (`extend`).
    """
    columns, length = lines.shape[1], padded.shape[1]
    left = (length - columns) // 2
    stop = left + columns
    padded[:, left:stop] = lines
    if extend:
        np.multiply(lines[:, :1], edge_fall(left)[::-1, None], out=padded[:, :left])
        np.multiply(lines[:, -1:], edge_fall(length - stop)[:, None], out=padded[:, stop:])
    else:
        padded[:, :left] = 0
        padded[:, stop:] = 0
    return left


def filter_lines(
    lines: NDArray[np.float32],
    responses: NDArray[np.float32],
    length: int,
    extend: bool,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """``lines[angle, column, z]`` convolved along columns; ``responses[angle, frequency]`` as `rfft` orders it.

    `out` may be the lines themselves. On a device if the arrays lie there: see `kernels.cuda.filters`.
    """
    if on_device(lines):
        from dtomo.kernels.cuda.filters import filter_lines as filter_on_device

        return filter_on_device(lines, responses, length, extend, out)
    angles, columns, slices = lines.shape
    out = empty_aligned(lines.shape) if out is None else out

    def work(span: tuple[int, int]) -> None:
        padded = np.empty((1, length, slices), np.float32)
        for k in range(*span):
            left = pad_lines(lines[k : k + 1], padded, extend)
            spectrum = scipy.fft.rfft(padded, axis=1, workers=1)
            spectrum *= responses[k, None, :, None][0]
            out[k] = scipy.fft.irfft(spectrum, length, axis=1, workers=1)[0, left : left + columns]

    run_jobs(work, angles)
    return out
