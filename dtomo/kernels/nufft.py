"""Filtered back projection in Fourier space: central slices summed by a non-uniform FFT (FINUFFT)."""

import threading
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import finufft
import numpy as np
import scipy.fft
from numpy.typing import NDArray

from dtomo.arrays import array_module, empty_aligned, on_device
from dtomo.kernels.filters import pad_lines
from dtomo.threads import run_jobs

TOLERANCE = 1e-4
UPSAMPLING = 1.25
_AT_ONCE = 2**20
"""Samples whose places are computed at a time, in double precision: about 100 bytes each."""


@dataclass(frozen=True)
class CentralSlices:
    """Where the spectra of lines lie in the spectrum of a slice, and what they are multiplied by.

    Attributes
    ----------
    points
        Frequencies along y and x, radians per voxel, of all samples, angle by angle; float32.
    factor
        ``[angle, frequency]``, complex64: filter, share of a frequency in the sum, and shift to the axis. Frequencies
        that a grid of voxels cannot hold are left out.
    """

    points: tuple[Any, Any]
    factor: Any


def central_slices(
    responses: Any, radians: Any, center: float, pitch: float, size: tuple[int, int], columns: int, length: int
) -> CentralSlices:
    """Samples of lines of `columns` in the middle of `length`, for slices of a size; on the device of the responses."""
    xp = array_module(responses)
    height, width = size
    left = (length - columns) // 2
    omega = 2 * np.pi * np.arange(length // 2 + 1) / length
    kept = int(np.searchsorted(omega / pitch, np.pi, side="right"))
    omega = omega[:kept]
    share = np.full(kept, 2.0 / length)
    share[0] = 1.0 / length
    if kept == length // 2 + 1 and length % 2 == 0:
        share[-1] = 1.0 / length
    scaled = xp.asarray(omega / pitch)
    omega, share, radians = (xp.asarray(a) for a in (omega, share, radians))
    across, down = np.cos(radians), np.sin(radians)
    x, y = (xp.empty((len(radians), kept), np.float32) for _ in range(2))
    factor = xp.empty(x.shape, np.complex64)
    step = max(1, _AT_ONCE // kept)
    for part in (slice(k, k + step) for k in range(0, len(radians), step)):
        kx, ky = (xp.outer(direction[part], scaled) for direction in (across, down))
        moved = kx * (width // 2 - (width - 1) / 2) + ky * (height // 2 - (height - 1) / 2)
        factor[part] = responses[part, :kept] * share * np.exp(1j * (omega * (left + center) + moved))
        for target, k in ((x, kx), (y, ky)):
            target[part] = np.mod(k + np.pi, 2 * np.pi).astype(np.float32) - np.float32(np.pi)
    return CentralSlices((y.ravel(), x.ravel()), factor)


def spectra_can_be_summed(lines: Any) -> bool:
    """Whether the transform is there for arrays like this one: on a device it takes cuFINUFFT, which is optional."""
    if not on_device(lines):
        return True
    from dtomo.kernels.cuda.nufft import library

    return library() is not None


def installed_for_devices() -> bool:
    """Whether cuFINUFFT is installed here; nothing is loaded, and whether it loads is not known."""
    return find_spec("cufinufft") is not None


def fourier_backproject(
    lines: NDArray[np.float32],
    responses: NDArray[np.float32],
    radians: NDArray[np.float64],
    center: float,
    pitch: float,
    size: tuple[int, int],
    length: int,
    extend: bool,
) -> NDArray[np.float32]:
    """Filter ``lines[angle, column, z]`` and sum them over angles at every voxel: ``[y, x, z]``.

    The half spectrum of every line, filtered, is a set of samples of the slice's spectrum (central slice theorem);
    a type-1 transform sums them exactly (to a relative 1e-4) at all voxels. One slice is one transform on one thread,
    so its bits depend on nothing else; for arrays on a device see `kernels.cuda.nufft`.
    """
    samples = central_slices(responses, radians, center, pitch, size, lines.shape[1], length)
    if on_device(lines):
        from dtomo.kernels.cuda.nufft import sum_slices

        return sum_slices(lines, samples, size, length, extend, TOLERANCE)
    return _sum_slices(lines, samples, size, length, extend)


def _sum_slices(
    lines: NDArray[np.float32], samples: CentralSlices, size: tuple[int, int], length: int, extend: bool
) -> NDArray[np.float32]:
    """Slices side by side on the threads of the host."""
    angles, _, slices = lines.shape
    kept = samples.factor.shape[1]
    out = empty_aligned((*size, slices))
    local = threading.local()

    def work(span: tuple[int, int]) -> None:
        if not hasattr(local, "plan"):
            local.plan = finufft.Plan(
                1, size, eps=TOLERANCE, isign=1, dtype="complex64", nthreads=1, upsampfac=UPSAMPLING
            )
            local.plan.setpts(*samples.points)
        padded = np.empty((angles, length, 1), np.float32)
        for z in range(*span):
            pad_lines(lines[:, :, z : z + 1], padded, extend)
            spectrum = scipy.fft.rfft(padded[..., 0], axis=1, workers=1)[:, :kept]
            out[:, :, z] = local.plan.execute((spectrum * samples.factor).ravel()).real

    run_jobs(work, slices)
    return out
