"""Dask arrays whose chunks lie on a device: the same as chunks in host memory, and the chunks stay on the device."""

import dask.array as da
import numpy as np
import pytest

from dtomo import ParallelBeam, recon
from dtomo.device import to_device

ANGLES, ROWS, COLUMNS = 6, 5, 8
BEAM = ParallelBeam(np.arange(ANGLES) * 30.0, COLUMNS, center=3.2)
OPTIONS = {"fbp": {}, "sirt": {"iterations": 2}, "cgls": {"iterations": 2}}

pytestmark = pytest.mark.usefixtures("few_threads")


@pytest.fixture
def projections():
    return np.random.default_rng(3).random((ANGLES, ROWS, COLUMNS), np.float32)


def chunked(projections, chunks):
    """A Dask array whose chunks lie on the device."""
    return da.from_array(to_device(projections), chunks=chunks, asarray=False)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("name", OPTIONS)
def test_slabs_of_a_device(cupy, projections, name, dtype):
    data = (projections + (1j * projections[::-1] if dtype == np.complex64 else 0)).astype(dtype)
    solve, options = getattr(recon, name), OPTIONS[name]
    expected = solve(data, BEAM, **options)
    lazy = solve(chunked(data, (ANGLES, 2, COLUMNS)), BEAM, **options)
    assert isinstance(lazy._meta, cupy.ndarray)
    assert (lazy.dtype, lazy.chunks[0]) == (dtype, (2, 2, 1))
    found = lazy.compute(scheduler="synchronous")
    assert isinstance(found, cupy.ndarray)
    assert found.dtype == dtype
    np.testing.assert_allclose(found.get(), expected, atol=1e-5 * np.abs(expected).max())


def test_chunks_along_the_angles_are_joined_on_the_device(cupy, projections):
    lazy = recon.fbp(chunked(projections, (3, 5, 4)), BEAM)
    found = lazy.compute(scheduler="synchronous")
    assert isinstance(found, cupy.ndarray)
    expected = recon.fbp(projections, BEAM)
    np.testing.assert_allclose(found.get(), expected, atol=1e-5 * np.abs(expected).max())


def test_counts_become_single_precision_on_the_device(cupy, projections):
    counts = (1000 * projections).astype(np.uint16)
    found = recon.fbp(chunked(counts, (ANGLES, 5, COLUMNS)), BEAM).compute(scheduler="synchronous")
    assert isinstance(found, cupy.ndarray)
    assert found.dtype == np.float32
    expected = recon.fbp(counts, BEAM)
    np.testing.assert_allclose(found.get(), expected, atol=1e-5 * np.abs(expected).max())


def test_chunks_brought_to_the_device_on_the_way(cupy, projections):
    host = da.from_array(projections, chunks=(ANGLES, 2, COLUMNS))
    lazy = recon.fbp(host.map_blocks(to_device, dtype=np.float32, meta=cupy.empty((0, 0, 0), np.float32)), BEAM)
    back = lazy.map_blocks(lambda block: block.get(), dtype=np.float32, meta=np.empty((0, 0, 0), np.float32))
    expected = recon.fbp(projections, BEAM)
    found = back.compute(scheduler="synchronous")
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
