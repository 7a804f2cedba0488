"""Probes of single frames on CUDA devices: mixed and shifted, and the adjoint of that; see `dtomo.kernels.shifts`."""

from typing import Any

import numpy as np
from numba import cuda

from dtomo.kernels.cuda.compiling import cuda_kernel
from dtomo.kernels.shifts import Mixture, MixtureSums

THREADS = (32, 8)  # of a block: along columns, and along rows

_TYPES = (("complex64", "float32"), ("complex128", "float64"))
_MIXTURE = "{z}[:, :, ::1], {z}[:, :, :, ::1], {z}[:, ::1], {x}[::1], {z}[:, ::1], {z}[:, ::1]"


def _signatures(arguments: str) -> list[str]:
    return [f"void({arguments.format(z=z, x=x)})" for z, x in _TYPES]


def mix(mixture: Mixture, out: Any) -> None:
    """`dtomo.kernels.shifts.mix` into `out`."""
    frames, modes, rows, columns = out.shape
    _mix.launch(_blocks(columns, rows, frames * modes), *mixture, out)


def unmix(gradients: Any, mixture: Mixture, frequencies: tuple[Any, Any], sums: MixtureSums) -> None:
    """`dtomo.kernels.shifts.unmix`: sums over frames pixel by pixel, those of a frame by columns and then over these.

    Parameters
    ----------
    gradients, mixture, sums
        As there.
    frequencies
        Of rows and columns, float64.
    """
    import cupy

    frames, modes, rows, columns = gradients.shape
    ranks = len(mixture.variable)
    if sums.base.size or sums.variable.size:
        _add_frames.launch(_blocks(columns, rows, modes), gradients, *mixture[2:], sums.base, sums.variable)
    if sums.tables.size or sums.weights.size:
        tables = cupy.empty((3, frames, columns), np.float64)
        weights = cupy.empty((ranks if sums.weights.size else 0, frames, columns), np.complex128)
        blocks = -(-columns // THREADS[0]), -(-frames // THREADS[1])
        _add_pixels.launch(blocks, gradients, *mixture, frequencies[0], tables, weights)
        scale = mixture.scale.astype(np.float64)
        if sums.weights.size:
            sums.weights[...] = weights.sum(2).T * scale[:, None]
        if sums.tables.size:
            tables[2] *= frequencies[1]
            real, down, across = tables.sum(2)
            sums.tables[:, 0], sums.tables[:, 1], sums.tables[:, 2] = (
                2 * real, 4 * np.pi * scale * down, 4 * np.pi * scale * across,
            )  # fmt: skip


def _blocks(columns: int, rows: int, layers: int) -> tuple[int, int, int]:
    return -(-columns // THREADS[0]), -(-rows // THREADS[1]), layers


@cuda_kernel(*_signatures(_MIXTURE + ", {z}[:, :, :, ::1]"), threads=THREADS)
def _mix(base, variable, weights, scale, row_phases, column_phases, out):  # type: ignore[no-untyped-def]
    frames, modes, rows, columns = out.shape
    ranks = weights.shape[1]
    c0, r0, mode0 = cuda.grid(3)
    across, down, on = cuda.gridsize(3)
    for number in range(mode0, frames * modes, on):
        frame, mode = number // modes, number % modes
        for r in range(r0, rows, down):
            factor = row_phases[frame, r] * scale[frame]
            for c in range(c0, columns, across):
                own = base[mode, r, c]
                for k in range(ranks):
                    own += weights[frame, k] * variable[k, mode, r, c]
                out[frame, mode, r, c] = own * (factor * column_phases[frame, c])


@cuda_kernel(
    *_signatures(
        "{z}[:, :, :, ::1], {z}[:, ::1], {x}[::1], {z}[:, ::1], {z}[:, ::1], {z}[:, :, ::1], {z}[:, :, :, ::1]"
    ),
    threads=THREADS,
)
def _add_frames(  # type: ignore[no-untyped-def]
    gradients, weights, scale, row_phases, column_phases, base_sum, variable_sum
):
    """Over frames, in their order."""
    frames, modes, rows, columns = gradients.shape
    c0, r0, mode0 = cuda.grid(3)
    across, down, on = cuda.gridsize(3)
    ranks = variable_sum.shape[0] if variable_sum.size else 0
    for mode in range(mode0, modes, on):
        for r in range(r0, rows, down):
            for c in range(c0, columns, across):
                for k in range(-1 if base_sum.size else 0, ranks):
                    total = base_sum[mode, r, c] if k < 0 else variable_sum[k, mode, r, c]
                    for frame in range(frames):
                        phase = (row_phases[frame, r] * column_phases[frame, c]).conjugate()
                        part = phase * gradients[frame, mode, r, c] * scale[frame]
                        total += part if k < 0 else weights[frame, k].conjugate() * part
                    if k < 0:
                        base_sum[mode, r, c] = total
                    else:
                        variable_sum[k, mode, r, c] = total


@cuda_kernel(
    *_signatures("{z}[:, :, :, ::1], " + _MIXTURE + ", float64[::1], float64[:, :, ::1], complex128[:, :, ::1]"),
    threads=THREADS,
)
def _add_pixels(  # type: ignore[no-untyped-def]
    gradients, base, variable, weights, scale, row_phases, column_phases, row_frequencies, tables, weight_sums
):
    """``tables[:, frame, column]`` and ``weight_sums[:, frame, column]``: over modes and rows, in float64."""
    frames, modes, rows, columns = gradients.shape
    ranks = weights.shape[1]
    c0, frame0 = cuda.grid(2)
    across, down = cuda.gridsize(2)
    for frame in range(frame0, frames, down):
        for c in range(c0, columns, across):
            real, moved, imaginary = np.float64(0), np.float64(0), np.float64(0)
            for k in range(weight_sums.shape[0]):
                weight_sums[k, frame, c] = 0
            for mode in range(modes):
                for r in range(rows):
                    phase = (row_phases[frame, r] * column_phases[frame, c]).conjugate()
                    turned, own = phase * gradients[frame, mode, r, c], base[mode, r, c]
                    for k in range(ranks):
                        own += weights[frame, k] * variable[k, mode, r, c]
                    for k in range(weight_sums.shape[0]):
                        weight_sums[k, frame, c] += variable[k, mode, r, c].conjugate() * turned
                    part = np.float64(turned.real * own.imag - turned.imag * own.real)
                    real += np.float64(turned.real * own.real + turned.imag * own.imag)
                    moved += row_frequencies[r] * part
                    imaginary += part
            tables[0, frame, c], tables[1, frame, c], tables[2, frame, c] = real, moved, imaginary
