"""A step of Adam in one pass, against the same written out, in every layout."""

from typing import Any

import numpy as np
import pytest

from dtomo.kernels.moments import adam_step
from dtomo.threads import using_threads

KEPT = (0.9, 0.99)


def noise(seed: int, dtype: Any, shape: tuple[int, ...] = (7, 33, 150)) -> Any:
    values = np.random.default_rng(seed).standard_normal((2, *shape))
    return (values[0] + 1j * values[1]).astype(dtype) if np.dtype(dtype).kind == "c" else values[0].astype(dtype)


def written_out(z: Any, m: Any, v: Any, g: Any, steps: int, rate: float, epsilon: float) -> tuple[Any, Any, Any]:
    z, m, g = (array.astype(np.complex128) for array in (z, m, g))
    m = KEPT[0] * m + (1 - KEPT[0]) * g
    v = KEPT[1] * v.astype(np.float64) + (1 - KEPT[1]) * np.abs(g) ** 2
    change = m / (1 - KEPT[0] ** steps) / (np.sqrt(v / (1 - KEPT[1] ** steps)) + epsilon)
    return z - rate * change, m, v


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128, np.float32, np.float64])
@pytest.mark.parametrize("layout", ["as it is", "z innermost", "gaps", "mixed"])
def test_a_step(dtype: Any, layout: str) -> None:
    real = np.zeros(0, dtype).real.dtype
    z, m, g = (noise(seed, dtype) for seed in range(3))
    v = np.abs(noise(3, real))
    if layout != "as it is":
        z, m, v, g = (np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 0, -1)), -1, 0) for a in (z, m, v, g))
    if layout == "gaps":
        z, m, v, g = (np.repeat(a, 2, axis=1)[:, ::2] for a in (z, m, v, g))
    if layout == "mixed":
        g = np.ascontiguousarray(g)
    g.flags.writeable = False
    expected = written_out(z, m, v, g, 3, 0.01, 1e-3)
    adam_step(z, m, v, g, kept=KEPT, steps=3, rate=0.01, epsilon=1e-3)
    tolerance = 2e-6 if real == np.float32 else 1e-13
    for ours, theirs in zip((z, m, v), expected):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_without_a_rate_only_moments_change() -> None:
    z, m, g = (noise(seed, np.complex64) for seed in range(3))
    v, before = np.abs(noise(3, np.float32)), (z.copy(), m.copy())
    adam_step(z, m, v, g, kept=KEPT, steps=1, rate=0.0, epsilon=1e-3)
    np.testing.assert_array_equal(z, before[0])
    assert np.abs(m - before[1]).max() > 0


def test_bits_do_not_depend_on_threads() -> None:
    found = []
    for threads in (1, 3):
        z, m, g = (noise(seed, np.complex64, (40, 60, 70)) for seed in range(3))
        v = np.abs(noise(3, np.float32, (40, 60, 70)))
        with using_threads(threads):
            adam_step(z, m, v, g, kept=KEPT, steps=2, rate=0.1, epsilon=1e-6)
        found.append(z.tobytes() + m.tobytes() + v.tobytes())
    assert found[0] == found[1]
