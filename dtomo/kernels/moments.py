"""A step of Adam in one pass over memory: four arrays are read and three written, and nothing is made on the way.

D. P. Kingma and J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1; for complex numbers with
one real second moment, of |g|².
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, on_device, writeable_view
from dtomo.elementwise import in_pieces
from dtomo.kernels.compiling import kernel
from dtomo.threads import run_jobs

PIECE = 1 << 15
"""Numbers that a thread takes at a time."""


def adam_step(
    values: NDArray[Any],
    first: NDArray[Any],
    second: NDArray[Any],
    gradient: NDArray[Any],
    *,
    kept: tuple[float, float],
    steps: int,
    rate: float,
    epsilon: float,
) -> None:
    """m ← β₁m + (1 - β₁)g, v ← β₂v + (1 - β₂)|g|², z ← z - rate m̂ / (√v̂ + ε), in place.

    Parameters
    ----------
    values, first
        z and m, real or complex, of one shape.
    second
        v, real, of that shape.
    gradient
        g, of the shape of z; not changed.
    kept
        β₁ and β₂.
    steps
        How many this one makes; m̂ and v̂ are m and v over 1 - β to its power.
    rate, epsilon
        See above; with a rate of 0 only the moments change.
    """
    bias = 1 - kept[0] ** steps, 1 - kept[1] ** steps
    if on_device(values) or not _alike(values, first, second, gradient):

        def step(z: Any, m: Any, v: Any, g: Any) -> None:
            _by_arrays(z, m, v, g, kept, bias, rate, epsilon)

        in_pieces(step, values, first, second, gradient)
        return
    real = second.dtype.type
    numbers = tuple(map(real, (*kept, 1 - kept[0], 1 - kept[1], rate / bias[0], 1 / bias[1], epsilon)))
    flat = [_flat(array) for array in (values, first, second, writeable_view(gradient))]
    work = _complex_step if np.iscomplexobj(values) else _real_step
    if np.iscomplexobj(values):
        flat = [array.view(second.dtype) if k != 2 else array for k, array in enumerate(flat)]
    count = second.size

    def jobs(span: tuple[int, int]) -> None:
        work(span[0] * PIECE, min(span[1] * PIECE, count), *flat, *numbers)

    run_jobs(jobs, -(-count // PIECE))


def _alike(*arrays: NDArray[Any]) -> bool:
    """Whether all lie in memory in one and the same order, without gaps."""
    order = np.argsort([-stride for stride in arrays[0].strides], kind="stable")
    return all(array.transpose(order).flags.c_contiguous for array in arrays) and arrays[3].dtype == arrays[0].dtype


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    order = np.argsort([-stride for stride in array.strides], kind="stable")
    return array.transpose(order).reshape(-1)


def _by_arrays(
    z: Any, m: Any, v: Any, g: Any, kept: tuple[float, float], bias: tuple[float, float], rate: float, epsilon: float
) -> None:
    xp = array_module(z)
    m *= kept[0]
    m += (1 - kept[0]) * g
    v *= kept[1]
    v += (1 - kept[1]) * (g.real**2 + g.imag**2 if np.iscomplexobj(g) else g**2)
    if rate:
        z -= (rate / bias[0]) * m / (xp.sqrt(v / bias[1]) + epsilon)


@kernel
def _complex_step(start, stop, z, m, v, g, first, second, first_rest, second_rest, rate, scale, epsilon):  # type: ignore[no-untyped-def]
    for i in range(start, stop):
        a, b = g[2 * i], g[2 * i + 1]
        p = first * m[2 * i] + first_rest * a
        q = first * m[2 * i + 1] + first_rest * b
        s = second * v[i] + second_rest * (a * a + b * b)
        m[2 * i], m[2 * i + 1], v[i] = p, q, s
        length = rate / (np.sqrt(s * scale) + epsilon)
        z[2 * i] -= length * p
        z[2 * i + 1] -= length * q


@kernel
def _real_step(start, stop, z, m, v, g, first, second, first_rest, second_rest, rate, scale, epsilon):  # type: ignore[no-untyped-def]
    for i in range(start, stop):
        p = first * m[i] + first_rest * g[i]
        s = second * v[i] + second_rest * g[i] * g[i]
        m[i], v[i] = p, s
        z[i] -= rate / (np.sqrt(s * scale) + epsilon) * p
