"""`dtomo.recon.fdk` of NumPy and Dask arrays."""

import dask
import dask.array as da
import numpy as np
import pytest

import dtomo
from dtomo.errors import UserError
from dtomo.geometry import cone_beam, tilt_series
from tests import laws

ANGLES = np.arange(0, 360, 15.0)
CONE = cone_beam(ANGLES, 150, 11, source_axis=100, source_detector=150, shape=(140, 7, 9))
TILTS = tilt_series(ANGLES[:9], 20, 21, shape=(70, 12, 13), axis_angle=20)


@pytest.mark.parametrize("geometry", [CONE, TILTS], ids=["cone", "tilts"])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_dask_arrays_give_the_same_slab_by_slab(geometry, dtype):
    projections = laws.draw((geometry.views, geometry.rows, geometry.columns), dtype)
    expected = dtomo.recon.fdk(projections, geometry, filter="hann")
    chunks = da.from_array(projections, chunks=(5, 7, 10))
    found = dtomo.recon.fdk(chunks, geometry, filter="hann")
    assert found.chunks[0] == ((64, 64, 12) if geometry is CONE else (64, 6))
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found.compute(scheduler="threads"), expected)


def test_a_slab_reads_only_the_rows_it_is_seen_in():
    seen = []

    def rows(block, block_info=None):
        seen.append(block_info[0]["array-location"][1][0])
        return block

    projections = da.zeros((CONE.views, CONE.rows, CONE.columns), dtype=np.float32, chunks=(-1, 10, -1))
    found = dtomo.recon.fdk(projections.map_blocks(rows, dtype=np.float32), CONE)
    with dask.config.set(scheduler="synchronous"):
        found.blocks[0].compute()
    assert 0 in seen
    assert max(seen) < 90


def test_what_does_not_fit_is_refused_before_anything_is_computed():
    chunks = da.zeros((CONE.views, CONE.rows, CONE.columns), chunks=50)
    for wrong, options, sentence in (
        (chunks[1:], {}, "do not fit a geometry"),
        (chunks, {"padding": "wide"}, "padding is"),
        (chunks, {"method": "nufft"}, "no option 'method'"),
    ):
        with pytest.raises(UserError, match=sentence):
            dtomo.recon.fdk(wrong, CONE, **options)
