"""Scans that are one Zarr array, without a group around it."""

import numpy as np
import pytest
import zarr

import dtomo
from dtomo.errors import UserError


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(("dtype", "values"), [(np.float32, "integrals"), (np.complex64, "integrals"), ("<u2", None)])
def test_a_single_array_is_a_scan(tmp_path, zarr_format, dtype, values):
    data = (np.random.default_rng(0).random((12, 3, 5)) * 900).astype(dtype)
    zarr.create_array(tmp_path / "scan.zarr", data=data, chunks=(4, 3, 5), zarr_format=zarr_format)
    scan = dtomo.open(tmp_path / "scan.zarr", angles=np.arange(0, 180, 15.0), values=values)
    assert scan.shape == (12, 3, 5)
    assert scan.format == "zarr"
    assert np.array_equal(scan.read(slice(1, 3)).projections, data[:, 1:3])
    assert np.array_equal(scan.projections.compute(), data)


def test_a_single_array_without_angles_is_refused(tmp_path):
    zarr.create_array(tmp_path / "scan.zarr", data=np.ones((12, 3, 5), np.float32))
    with pytest.raises(UserError, match="angles"):
        dtomo.open(tmp_path / "scan.zarr")
