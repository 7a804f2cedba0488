"""What a detector sees of waves, how far that is from what it measured, and the weights that gradients are made of.

With S = Σ |Q|² + b² (over all modes; b the background's root) and I the measured counts, a loss of a pixel and its
derivative w = dL/dS are

- amplitude: (√S - √I)², w = 1 - √I/√S;
- intensity: (S - I)², w = 2 (S - I);
- poisson: S - I - I ln((S + ε)/(I + ε)), w = 1 - I/(S + ε): minus the logarithm of the likelihood, zero where S = I.

The gradient with respect to the conjugate of Q is w Q (P. Thibault and M. Guizar-Sicairos, "Maximum-likelihood
refinement for coherent diffractive imaging", New Journal of Physics 14 (2012) 063004).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, on_device, writeable_view
from dtomo.errors import UserError
from dtomo.kernels.compiling import kernel

LOSSES = ("amplitude", "intensity", "poisson")

EPSILON = 1e-6
"""Counts added to the intensities in logarithms: a pixel without light may have counts."""

_TINY = 1e-20  # least intensity: its root and the ratio to it stay within float32


class Detector(NamedTuple):
    """What is known of the detector's pixels, where the waves are.

    Attributes
    ----------
    loss
        One of `LOSSES`.
    good
        bool ``(row, column)``: pixels that count.
    background
        b² ``(row, column)``, of the waves' precision.
    saturation
        Counts from which on a pixel is only required to have at least as many; infinity: none.
    """

    loss: str
    good: NDArray[np.bool_]
    background: NDArray[Any]
    saturation: float


def intensities(waves: NDArray[Any], background: NDArray[Any]) -> NDArray[Any]:
    """S of every frame, ``(frame, row, column)``.

    Parameters
    ----------
    waves
        On the detector, ``(frame, …, row, column)``.
    background
        b² ``(row, column)``.
    """
    flat = waves.reshape(len(waves), -1, *waves.shape[-2:])
    return background + (flat.real**2 + flat.imag**2).sum(1)


def residual(
    waves: NDArray[Any], measured: NDArray[Any], detector: Detector, derivative: NDArray[Any] | None = None
) -> float:
    """The loss of some frames, in float64; the waves become w Q.

    Parameters
    ----------
    waves
        Q ``(frame, …, row, column)``, complex, contiguous; overwritten.
    measured
        I ``(frame, row, column)``, any real dtype. What is not good is not looked at.
    detector
        See `Detector`.
    derivative
        ``(row, column)``, of the waves' precision: Σ w over the frames, in their order, is added to it.
    """
    if detector.loss not in LOSSES:
        raise UserError(f"the loss is one of {', '.join(LOSSES)}; got {detector.loss!r}")
    if not waves.flags.c_contiguous:
        raise ValueError("the waves are changed in place and so must be C-contiguous")
    flat = waves.reshape(len(waves), -1, *waves.shape[-2:])
    kind = LOSSES.index(detector.loss)
    real = flat.real.dtype.type
    constants = real(min(detector.saturation, np.finfo(real).max)), real(_TINY), real(EPSILON)
    if on_device(waves):
        from dtomo.kernels.cuda import detection as device

        counts = array_module(waves, measured).where(detector.good, measured, 0).astype(real)
        weights, losses = device.residual(flat, counts, kind, detector, constants)
        if derivative is not None:
            derivative += weights.sum(0)
        return float(losses.sum(dtype=np.float64))
    sums = np.zeros((0, 0), flat.real.dtype) if derivative is None else derivative
    frames = writeable_view(np.ascontiguousarray(measured))
    saturation, *others = constants
    background, good = writeable_view(detector.background), writeable_view(detector.good)
    return float(_residual(flat, frames, kind, good, background, saturation, (others[0], others[1]), sums))


@kernel
def _logarithms(x, bits):  # type: ignore[no-untyped-def]
    """Natural logarithms of positive numbers, in place; of float32 by their binary exponents, in vectors.

    With x = 2^e m, √½ ≤ m < √2 and t = (m - 1)/(m + 1), ln m = 2 (t + t³/3 + t⁵/5 + …) to 1e-9.
    """
    if x.itemsize == 8:
        for k in range(x.size):
            x[k] = np.log(x[k])
        return
    root = np.int32(0x3F3504F3)  # √½ as float32
    mantissas, one, ln2 = bits.view(np.float32), np.float32(1), np.float32(0.6931471805599453)
    third, fifth, seventh, ninth = np.float32(1 / 3), np.float32(1 / 5), np.float32(1 / 7), np.float32(1 / 9)
    given = x.view(np.int32)
    for k in range(x.size):
        bits[k] = np.int32(np.int32(np.int32(given[k] - root) & np.int32(0x7FFFFF)) + root)
    for k in range(x.size):
        exponent = np.float32(np.int32(np.int32(given[k] - root) >> np.int32(23)))
        t = (mantissas[k] - one) / (mantissas[k] + one)
        q = t * t
        series = one + q * (third + q * (fifth + q * (seventh + q * ninth)))
        x[k] = exponent * ln2 + (t + t) * series


@kernel
def _residual(waves, measured, kind, good, background, saturation, constants, derivative):  # type: ignore[no-untyped-def]
    frames, modes, rows, columns = waves.shape
    tiny, epsilon = constants
    zero, one = tiny - tiny, tiny / tiny  # of the waves' precision, so that nothing becomes float64
    w, s = np.empty(columns, background.dtype), np.empty(columns, background.dtype)
    value, ratio = np.empty(columns, background.dtype), np.empty(columns, background.dtype)
    bits = np.empty(columns, np.int32)
    total = np.zeros(columns, np.float64)
    for frame in range(frames):
        for r in range(rows):
            counts, use = measured[frame, r], good[r]
            for c in range(columns):
                s[c] = background[r, c]
            for mode in range(modes):
                q = waves[frame, mode, r]
                for c in range(columns):
                    s[c] += q[c].real * q[c].real + q[c].imag * q[c].imag
            for c in range(columns):
                s[c] = max(s[c], tiny)
            if kind == 0:
                for c in range(columns):
                    i = background.dtype.type(counts[c]) if use[c] else zero
                    v = one - np.sqrt(i / s[c])
                    v = zero if (not use[c]) or (i >= saturation and s[c] > i) else v
                    w[c] = v
                    total[c] += s[c] * v * v
            elif kind == 1:
                for c in range(columns):
                    i = background.dtype.type(counts[c]) if use[c] else zero
                    v = s[c] - i
                    v = zero if (not use[c]) or (i >= saturation and s[c] > i) else v
                    w[c] = v + v
                    total[c] += v * v
            else:
                for c in range(columns):
                    i = background.dtype.type(counts[c]) if use[c] else zero
                    free = (not use[c]) or (i >= saturation and s[c] > i)
                    v = one - i / (s[c] + epsilon)
                    w[c] = zero if free else v
                    value[c] = zero if free else s[c] - i
                    ratio[c] = (s[c] + epsilon) / (i + epsilon)
                    s[c] = zero if free else i
                _logarithms(ratio, bits)
                for c in range(columns):
                    total[c] += value[c] - s[c] * ratio[c]
            for mode in range(modes):
                q = waves[frame, mode, r]
                for c in range(columns):
                    q[c] *= w[c]
            if derivative.size:
                for c in range(columns):
                    derivative[r, c] += w[c]
    loss = 0.0
    for c in range(columns):
        loss += total[c]
    return loss
