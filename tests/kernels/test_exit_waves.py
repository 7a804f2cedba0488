"""Products of probe and object against slices of the object; their adjoints by the definition."""

import numpy as np
import pytest

from dtomo.kernels import exit_waves
from tests import laws

DTYPES = pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
SIZES = pytest.mark.parametrize(("frames", "layers", "modes"), [(1, 1, 1), (5, 1, 3), (4, 2, 1), (3, 2, 3)])
PATCH, SHAPE = (5, 7), (14, 13)


def corners(frames):
    found = np.random.default_rng(1).integers(0, np.subtract(SHAPE, PATCH) + 1, (frames, 2))
    found[0] = 0
    found[-1] = np.subtract(SHAPE, PATCH)
    return found


def arrays(frames, layers, modes, shared, dtype):
    probes = laws.draw((1 if shared else frames, modes, *PATCH), dtype)
    return probes, laws.draw((layers, *SHAPE), dtype, 1), laws.draw((frames, layers, modes, *PATCH), dtype, 2)


@DTYPES
@SIZES
@pytest.mark.parametrize("shared", [True, False])
def test_products_and_their_adjoints(frames, layers, modes, shared, dtype):
    probes, image, changes = arrays(frames, layers, modes, shared, dtype)
    places = corners(frames)
    patches = np.stack([image[:, r : r + PATCH[0], c : c + PATCH[1]] for r, c in places])
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == np.complex64 else {"rtol": 1e-13, "atol": 1e-13}
    waves = exit_waves.product(probes, image, places)
    assert waves.dtype == dtype
    assert np.allclose(waves, probes[:, None] * patches[:, :, None], **close)
    assert np.array_equal(exit_waves.under(image, places, PATCH), patches)
    for_object = np.empty((frames, layers, *PATCH), dtype)
    exit_waves.object_products(probes, changes, for_object)
    assert np.allclose(for_object, (np.conj(probes[:, None]) * changes).sum(2), **close)
    total = np.ones((modes, *PATCH), dtype)
    exit_waves.probe_sum(image, places, changes, total)
    expected = (np.conj(patches[:, :, None]) * changes).sum(1)
    assert np.allclose(total, 1 + expected.sum(0), **close)
    assert np.allclose(exit_waves.probe_products(image, places, changes.copy()), expected, **close)


def test_the_adjoint_identity():
    probes, image, changes = arrays(4, 2, 3, False, np.complex128)
    places = corners(4)
    scalar = np.vdot(exit_waves.product(probes, image, places), changes)
    for_object = np.empty((4, 2, *PATCH), complex)
    exit_waves.object_products(probes, changes, for_object)
    patches = exit_waves.under(image, places, PATCH)
    assert np.vdot(patches, for_object) == pytest.approx(scalar, rel=1e-12)
    assert np.vdot(probes, exit_waves.probe_products(image, places, changes)) == pytest.approx(scalar, rel=1e-12)


def test_arrays_that_may_only_be_read():
    probes, image, changes = arrays(2, 1, 1, False, np.complex64)
    expected = exit_waves.product(probes, image, corners(2))
    for array in (probes, image, changes):
        array.flags.writeable = False
    assert np.array_equal(exit_waves.product(probes, image, corners(2)), expected)
    out = np.empty((2, 1, *PATCH), np.complex64)
    exit_waves.object_products(probes, changes, out)
    assert np.isfinite(out).all()
