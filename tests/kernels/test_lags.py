"""Correlation at a few lags against the whole inverse transform."""

import numpy as np
import pytest

from dtomo.kernels.lags import correlate_at, waves_of
from dtomo.kernels.matching_parts import whole_rows


@pytest.mark.parametrize("shape", [(6, 5, 8), (5, 6, 7)])
def test_all_frequencies_count_as_in_the_inverse_transform(shape):
    """The one of half the samples, which even sides have, once and not twice; lags need not fill vectors."""
    random = np.random.default_rng(0)
    one, two = random.standard_normal(shape), random.standard_normal((2, *shape))
    first, second = (np.fft.rfftn(values, axes=(-3, -2, -1)).astype(np.complex64) for values in (one, two))
    lags = np.arange(-2, 3), np.arange(-1, 3), np.arange(-2, 1)
    found = correlate_at(first, second, whole_rows(shape), waves_of(shape, shape[2] // 2 + 1, lags))
    whole = np.fft.irfftn(first * second.conj(), shape, axes=(-3, -2, -1))
    assert found.shape == (2, 5, 4, 3)
    np.testing.assert_allclose(found, whole[(slice(None), *np.ix_(*lags))], rtol=1e-4, atol=1e-3)
