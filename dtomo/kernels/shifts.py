"""Probes of single frames: shifted by fractions of a pixel, scaled, and mixed (OPR); and the adjoint of all that.

A shift by d pixels multiplies the spectrum by exp(-2πi f d), in rows and columns apart. Spectra come in and spectra go
out, so that the probe is transformed once for a block of frames. Unshifted probes are mixed just so, with phases of 1.

Orthogonal probe relaxation: M. Odstrcil et al., Optics Express 24 (2016) 8360.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, empty_aligned, writeable_view
from dtomo.kernels.compiling import kernel
from dtomo.threads import run_jobs


class Mixture(NamedTuple):
    """Probe of frame j: s_j exp(-2πi (f·d_j)) (P + Σ_k w_jk V_k); all in one precision, where the model computes.

    Attributes
    ----------
    base
        P ``(mode, row, column)``, complex.
    variable
        V ``(rank, mode, row, column)``; rank may be 0.
    weights
        w ``(frame, rank)``, complex.
    scale
        s ``(frame,)``, real.
    row_phases, column_phases
        ``(frame, row)`` and ``(frame, column)``, complex; see `phases`.
    """

    base: NDArray[Any]
    variable: NDArray[Any]
    weights: NDArray[Any]
    scale: NDArray[Any]
    row_phases: NDArray[Any]
    column_phases: NDArray[Any]

    def of(self, frames: slice) -> "Mixture":
        """Of some of the frames."""
        return Mixture(self.base, self.variable, *(array[frames] for array in self[2:]))


def phases(fractions: NDArray[np.float64], size: int, dtype: Any) -> NDArray[Any]:
    """Phases of a shift along one axis, ``(frame, frequency)``, with frequency zero first.

    Parameters
    ----------
    fractions
        By how many pixels, float64 ``(frame,)``, where the result is wanted.
    size
        Pixels of the axis.
    dtype
        complex64 or complex128.
    """
    xp = array_module(fractions)
    angles = (-2 * np.pi * fractions[:, None] * xp.fft.fftfreq(size)).astype(np.zeros(0, dtype).real.dtype)
    return (xp.cos(angles) + 1j * xp.sin(angles)).astype(dtype, copy=False)


def mix(mixture: Mixture) -> NDArray[Any]:
    """Probes of the frames, ``(frame, mode, row, column)``, in the space of the mixture's base."""
    xp = array_module(*mixture)
    out = empty_aligned((len(mixture.scale), *mixture.base.shape), mixture.base.dtype, xp)
    if xp is not np:
        from dtomo.kernels.cuda import shifts as device

        device.mix(Mixture(*map(xp.ascontiguousarray, mixture)), out)
        return out
    arrays = [writeable_view(array) for array in mixture]
    run_jobs(lambda span: _mix(span, *arrays, out), len(out))
    return out


class MixtureSums(NamedTuple):
    """Gradients by what a mixture is made of, of some frames; arrays without elements are not wanted.

    Attributes
    ----------
    base, variable
        Sums over the frames, in their order, are added here.
    weights
        complex128 ``(frame, rank)``.
    tables
        float64 ``(frame, 3)``: dL/ds, and dL/dd along rows and columns.
    """

    base: NDArray[Any]
    variable: NDArray[Any]
    weights: NDArray[np.complex128]
    tables: NDArray[np.float64]


def unmix(gradients: NDArray[Any], mixture: Mixture, sums: MixtureSums) -> None:
    """The adjoint of `mix`, and the derivatives by weights, scale and fractions.

    Parameters
    ----------
    gradients
        Derivatives by the conjugates of what `mix` gave, ``(frame, mode, row, column)``.
    mixture
        As it was mixed.
    sums
        Where the results go.
    """
    xp = array_module(gradients, *mixture)
    frequencies = [xp.fft.fftfreq(size) for size in gradients.shape[-2:]]
    if xp is not np:
        from dtomo.kernels.cuda import shifts as device

        given = xp.ascontiguousarray(gradients), Mixture(*map(xp.ascontiguousarray, mixture))
        device.unmix(*given, (frequencies[0], frequencies[1]), sums)
        return
    _unmix(gradients, *(writeable_view(array) for array in mixture), *frequencies, *sums)


@kernel
def _mix(jobs, base, variable, weights, scale, row_phases, column_phases, out):  # type: ignore[no-untyped-def]
    _, modes, rows, columns = out.shape
    ranks = weights.shape[1]
    for frame in range(jobs[0], jobs[1]):
        across = column_phases[frame]
        for mode in range(modes):
            for r in range(rows):
                factor = row_phases[frame, r] * scale[frame]
                source, target = base[mode, r], out[frame, mode, r]
                if ranks == 0:
                    for c in range(columns):
                        target[c] = source[c] * (factor * across[c])
                else:
                    for c in range(columns):
                        target[c] = source[c]
                    for k in range(ranks):
                        weight, change = weights[frame, k], variable[k, mode, r]
                        for c in range(columns):
                            target[c] += weight * change[c]
                    for c in range(columns):
                        target[c] *= factor * across[c]


@kernel
def _unmix(  # type: ignore[no-untyped-def]
    gradients, base, variable, weights, scale, row_phases, column_phases,
    row_frequencies, column_frequencies, base_sum, variable_sum, weight_sums, tables,
):  # fmt: skip
    frames, modes, rows, columns = gradients.shape
    ranks = weights.shape[1]
    turned, own = np.empty(columns, base.dtype), np.empty(columns, base.dtype)
    real, down, imaginary = np.empty(columns), np.empty(columns), np.empty(columns)
    for frame in range(frames):
        across, factor = column_phases[frame], scale[frame]
        real[:], down[:], imaginary[:] = 0.0, 0.0, 0.0
        for mode in range(modes):
            for r in range(rows):
                phase, source = row_phases[frame, r], gradients[frame, mode, r]
                for c in range(columns):
                    turned[c] = np.conj(phase * across[c]) * source[c]
                if base_sum.size:
                    target = base_sum[mode, r]
                    for c in range(columns):
                        target[c] += factor * turned[c]
                if variable_sum.size:
                    for k in range(ranks):
                        weight, target = np.conj(weights[frame, k]) * factor, variable_sum[k, mode, r]
                        for c in range(columns):
                            target[c] += weight * turned[c]
                if weight_sums.size:
                    for k in range(ranks):
                        change = variable[k, mode, r]
                        total = 0j
                        for c in range(columns):
                            total += np.conj(change[c]) * turned[c]
                        weight_sums[frame, k] += total * factor
                if tables.size:
                    for c in range(columns):
                        own[c] = base[mode, r, c]
                    for k in range(ranks):
                        weight, change = weights[frame, k], variable[k, mode, r]
                        for c in range(columns):
                            own[c] += weight * change[c]
                    frequency = row_frequencies[r]
                    for c in range(columns):
                        part = turned[c].real * own[c].imag - turned[c].imag * own[c].real
                        real[c] += turned[c].real * own[c].real + turned[c].imag * own[c].imag
                        imaginary[c] += part
                        down[c] += frequency * part
        if tables.size:
            tables[frame, 0], tables[frame, 1], tables[frame, 2] = 0.0, 0.0, 0.0
            for c in range(columns):
                tables[frame, 0] += 2 * real[c]
                tables[frame, 1] += 4 * np.pi * factor * down[c]
                tables[frame, 2] += 4 * np.pi * factor * column_frequencies[c] * imaginary[c]
