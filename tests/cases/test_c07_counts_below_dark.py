"""C07: unsigned counts below the dark level must not wrap; every integer type gives the same float32."""

import numpy as np
import pytest

from dtomo.prep import normalize


@pytest.mark.parametrize("dtype", ["uint16", ">u2", "uint32", "int32", "float32", "float64", "int64", "uint64"])
def test_counts_below_dark(dtype):
    projection = np.array([[[100, 600, 1102]]], dtype)
    dark, flat = np.full((1, 3), 102, dtype), np.full((1, 3), 1102, dtype)
    result, report = normalize(projection, flat, dark)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result[0, 0], [-0.002, 0.498, 1.0], atol=1e-7)
    assert np.array_equal(result, normalize(projection.astype("u2"), flat.astype("u2"), dark.astype("u2"))[0])
    assert report.repaired == 0
