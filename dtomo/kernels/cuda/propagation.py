"""Spectra of waves on CUDA devices: transfer functions with phases of each frame, and derivatives by them."""

from typing import Any

import numpy as np
from numba import cuda

from dtomo.kernels.cuda.compiling import cuda_kernel

THREADS = (32, 8)  # of a block: along columns, and along rows

_TYPES = ("complex64", "complex128")


def turn(spectra: Any, function: Any, row_phases: Any, column_phases: Any, adjoint: bool) -> None:
    """`dtomo.kernels.propagation.turn` of ``(frame, wave, row, column)``; phases of no frame: 1."""
    frames, waves, rows, columns = spectra.shape
    blocks = -(-columns // THREADS[0]), -(-rows // THREADS[1]), frames * waves
    _turn.launch(blocks, spectra, function, row_phases, column_phases, int(adjoint))


def slopes(psi: Any, changes: Any, ways: Any, row_frequencies: Any, column_frequencies: Any, out: Any) -> None:
    """`dtomo.kernels.propagation.slopes` of ``(frame, wave, row, column)``: columns first, then their sums."""
    import cupy

    frames, _, _, columns = psi.shape
    sums = cupy.empty((3, frames, columns), np.float64)
    _slopes.launch((-(-columns // THREADS[0]), -(-frames // THREADS[1])), psi, changes, ways, row_frequencies, sums)
    sums[2] *= column_frequencies
    factors = cupy.asarray(np.array([-2, -4 * np.pi, -4 * np.pi]))
    out[...] = sums.sum(2).T * factors


@cuda_kernel(
    *(f"void({t}[:, :, :, ::1], {t}[:, ::1], {t}[:, ::1], {t}[:, ::1], int64)" for t in _TYPES), threads=THREADS
)
def _turn(spectra, function, row_phases, column_phases, adjoint):  # type: ignore[no-untyped-def]
    frames, waves, rows, columns = spectra.shape
    phased = row_phases.shape[0] > 0
    c0, r0, wave0 = cuda.grid(3)
    across, down, on = cuda.gridsize(3)
    for number in range(wave0, frames * waves, on):
        frame, wave = number // waves, number % waves
        for r in range(r0, rows, down):
            for c in range(c0, columns, across):
                factor = function[r, c]
                if phased:
                    factor *= row_phases[frame, r] * column_phases[frame, c]
                if adjoint:
                    factor = factor.conjugate()
                spectra[frame, wave, r, c] *= factor


@cuda_kernel(
    *(f"void({t}[:, :, :, ::1], {t}[:, :, :, ::1], float64[:, ::1], float64[::1], float64[:, :, ::1])" for t in _TYPES),
    threads=THREADS,
)
def _slopes(psi, changes, ways, row_frequencies, sums):  # type: ignore[no-untyped-def]
    """``sums[:, frame, column]``: over waves and rows, in their order, in float64."""
    frames, waves, rows, columns = psi.shape
    c0, frame0 = cuda.grid(2)
    across, down = cuda.gridsize(2)
    for frame in range(frame0, frames, down):
        for c in range(c0, columns, across):
            along, moved, all_ = np.float64(0), np.float64(0), np.float64(0)
            for wave in range(waves):
                for r in range(rows):
                    p, x = psi[frame, wave, r, c], changes[frame, wave, r, c]
                    part = np.float64(x.real * p.imag - x.imag * p.real)
                    along += ways[r, c] * part
                    moved += row_frequencies[r] * part
                    all_ += part
            sums[0, frame, c], sums[1, frame, c], sums[2, frame, c] = along, moved, all_
