"""What a detector sees of waves on CUDA devices: losses and weights, one thread for each pixel of each frame."""

import math
from typing import Any

from numba import cuda

from dtomo.kernels.cuda.compiling import cuda_kernel

THREADS = (32, 8)  # of a block: along columns, and along rows

_TYPES = (("complex64", "float32"), ("complex128", "float64"))


def residual(waves: Any, counts: Any, kind: int, detector: Any, constants: tuple[Any, ...]) -> tuple[Any, Any]:
    """Weights w and losses of ``(frame, row, column)``; the waves ``(frame, mode, row, column)`` become w Q.

    Parameters
    ----------
    waves
        Q.
    counts
        I, of the waves' precision, 0 where the pixel is bad.
    kind
        Number of the loss.
    detector
        See `dtomo.kernels.detection.Detector`.
    constants
        Saturation, least intensity and what is added in logarithms, of the waves' precision.
    """
    import cupy

    frames, _, rows, columns = waves.shape
    weights, losses = cupy.empty(counts.shape, counts.dtype), cupy.empty(counts.shape, counts.dtype)
    blocks = -(-columns // THREADS[0]), -(-rows // THREADS[1]), frames
    _residual.launch(blocks, waves, counts, kind, detector.good, detector.background, *constants, weights, losses)
    return weights, losses


@cuda_kernel(
    *(
        f"void({z}[:, :, :, ::1], {x}[:, :, ::1], int64, boolean[:, ::1], {x}[:, ::1], {x}, {x}, {x}, "
        f"{x}[:, :, ::1], {x}[:, :, ::1])"
        for z, x in _TYPES
    ),
    threads=THREADS,
)
def _residual(  # type: ignore[no-untyped-def]
    waves, counts, kind, good, background, saturation, tiny, epsilon, weights, losses
):
    frames, modes, rows, columns = waves.shape
    real = background.dtype.type
    c0, r0, frame0 = cuda.grid(3)
    across, down, on = cuda.gridsize(3)
    for frame in range(frame0, frames, on):
        for r in range(r0, rows, down):
            for c in range(c0, columns, across):
                seen = background[r, c]
                for mode in range(modes):
                    q = waves[frame, mode, r, c]
                    seen += q.real * q.real + q.imag * q.imag
                seen = max(seen, tiny)
                measured = counts[frame, r, c]
                if (not good[r, c]) or (measured >= saturation and seen > measured):
                    weight, loss = real(0), real(0)
                elif kind == 0:
                    weight = real(1) - real(math.sqrt(measured / seen))
                    loss = seen * weight * weight
                elif kind == 1:
                    weight = seen - measured
                    loss = weight * weight
                    weight += weight
                else:
                    weight = real(1) - measured / (seen + epsilon)
                    loss = seen - measured - measured * real(math.log((seen + epsilon) / (measured + epsilon)))
                for mode in range(modes):
                    waves[frame, mode, r, c] *= weight
                weights[frame, r, c], losses[frame, r, c] = weight, loss
