"""Waves through free space: unitary transforms, transfer functions, and derivatives by distance and shifts.

The angular spectrum method (J. W. Goodman, Introduction to Fourier Optics, section 3.10): over a distance d a wave's
spectrum is multiplied by H(f) = exp(i κ(f) d), with κ = 2π (√(1/λ² - f²) - 1/λ), or -πλf² where it is paraxial. The
carrier exp(2πi d/λ) is left out: no intensity depends on it, and it costs digits. Evanescent waves (f > 1/λ) are zero.
Waves are exp(+ikz). Spectra have frequency zero at [0, 0].
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, on_device, writeable_view
from dtomo.kernels.compiling import kernel
from dtomo.threads import run_jobs


def fourier(waves: NDArray[Any], xp: Any, *, inverse: bool, overwrite: bool = True) -> NDArray[Any]:
    """Unitary transform of the last two axes; in one thread: callers share out.

    Parameters
    ----------
    waves
        ``(…, row, column)``, complex.
    xp
        Where they lie: NumPy or CuPy.
    inverse
        Back to space.
    overwrite
        The memory of `waves` may be used.
    """
    if xp is np:
        import scipy.fft as fft
    else:
        import cupyx.scipy.fft as fft
    transform = fft.ifft2 if inverse else fft.fft2
    result: NDArray[Any] = transform(waves, norm="ortho", overwrite_x=overwrite)
    return result


def wavenumbers(
    shape: tuple[int, int], pixel_size: tuple[float, float], wavelength: float, paraxial: bool = False
) -> NDArray[np.float64]:
    """κ ``(row, column)`` in radians per length; NaN for evanescent waves.

    Parameters
    ----------
    shape
        Rows and columns.
    pixel_size
        Height and width of a pixel, in any length.
    wavelength
        In the same.
    paraxial
        To second order in the angle.
    """
    rows, columns = (np.fft.fftfreq(count, size) for count, size in zip(shape, pixel_size))
    square = (wavelength * rows[:, None]) ** 2 + (wavelength * columns) ** 2
    if paraxial:
        return -np.pi / wavelength * square
    root = np.sqrt(np.where(square <= 1, 1 - square, np.nan))
    return -2 * np.pi / wavelength * square / (1 + root)


def transfer(kappa: NDArray[np.float64], distance: float, dtype: Any) -> NDArray[Any]:
    """H ``(row, column)`` for `wavenumbers`, zero where these are NaN; complex64 or complex128."""
    return np.where(np.isnan(kappa), 0, np.exp(1j * distance * np.nan_to_num(kappa))).astype(dtype)


def turn(
    spectra: NDArray[Any],
    function: NDArray[Any],
    row_phases: NDArray[Any] | None = None,
    column_phases: NDArray[Any] | None = None,
    *,
    adjoint: bool = False,
) -> None:
    """Multiply spectra by a transfer function and by phases of each frame, in place.

    Parameters
    ----------
    spectra
        ``(frame, …, row, column)``, complex, C-contiguous.
    function
        H ``(row, column)``, of the same dtype.
    row_phases, column_phases
        ``(frame, row)`` and ``(frame, column)``, of the same dtype; None: 1.
    adjoint
        By the conjugates.
    """
    xp = array_module(spectra, function)
    rows, columns = spectra.shape[-2:]
    flat = spectra.reshape(len(spectra), -1, rows, columns)
    if row_phases is None or column_phases is None:
        row_phases, column_phases = xp.zeros((0, rows), spectra.dtype), xp.zeros((0, columns), spectra.dtype)
    arrays = [writeable_view(xp.ascontiguousarray(array)) for array in (function, row_phases, column_phases)]
    if on_device(spectra):
        from dtomo.kernels.cuda import propagation as device

        device.turn(flat, arrays[0], arrays[1], arrays[2], adjoint)
        return
    run_jobs(lambda span: _turn(span, flat, *arrays, adjoint), len(flat))


def slopes(spectra: NDArray[Any], changes: NDArray[Any], kappa: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    """What a loss changes by with the distance, and with a shift of each frame against the sense of rows and columns.

    Parameters
    ----------
    spectra
        Ψ ``(frame, …, row, column)``, complex, C-contiguous: spectra of the waves on the detector.
    changes
        ∂L/∂Ψ̄, of the same shape.
    kappa
        From `wavenumbers`, on the host.
    out
        float64 ``(frame, 3)``: is set to dL/dd, and dL/ds where the waves are shifted by -s pixels, rows and columns.
    """
    xp = array_module(spectra, changes, out)
    rows, columns = spectra.shape[-2:]
    ways, down, across = (
        xp.asarray(table) for table in (np.nan_to_num(kappa), np.fft.fftfreq(rows), np.fft.fftfreq(columns))
    )
    psi, change = (array.reshape(len(array), -1, rows, columns) for array in (spectra, changes))
    if on_device(spectra):
        from dtomo.kernels.cuda import propagation as device

        device.slopes(psi, change, ways, down, across, out)
        return
    run_jobs(lambda span: _slopes(span, psi, change, ways, down, across, out), len(psi))


@kernel
def _turn(jobs, spectra, function, row_phases, column_phases, adjoint):  # type: ignore[no-untyped-def]
    _, waves, rows, columns = spectra.shape
    phased = row_phases.shape[0] > 0
    factors = np.empty(columns, spectra.dtype)
    for frame in range(jobs[0], jobs[1]):
        for r in range(rows):
            for c in range(columns):
                factors[c] = function[r, c]
            if phased:
                for c in range(columns):
                    factors[c] *= row_phases[frame, r] * column_phases[frame, c]
            if adjoint:
                for c in range(columns):
                    factors[c] = np.conj(factors[c])
            for wave in range(waves):
                target = spectra[frame, wave, r]
                for c in range(columns):
                    target[c] *= factors[c]


@kernel
def _slopes(jobs, psi, changes, ways, row_frequencies, column_frequencies, out):  # type: ignore[no-untyped-def]
    _, waves, rows, columns = psi.shape
    along, down, across = np.empty(columns), np.empty(columns), np.empty(columns)
    for frame in range(jobs[0], jobs[1]):
        along[:], down[:], across[:] = 0.0, 0.0, 0.0
        for wave in range(waves):
            for r in range(rows):
                p, x, way, frequency = psi[frame, wave, r], changes[frame, wave, r], ways[r], row_frequencies[r]
                for c in range(columns):
                    part = np.float64(x[c].real * p[c].imag - x[c].imag * p[c].real)
                    along[c] += way[c] * part
                    down[c] += frequency * part
                    across[c] += part
        out[frame, 0], out[frame, 1], out[frame, 2] = 0.0, 0.0, 0.0
        for c in range(columns):
            out[frame, 0] -= 2 * along[c]
            out[frame, 1] -= 4 * np.pi * down[c]
            out[frame, 2] -= 4 * np.pi * column_frequencies[c] * across[c]
