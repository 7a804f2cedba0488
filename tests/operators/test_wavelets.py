"""Laws of wavelet transforms, and their filters against closed forms."""

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.operators import WaveletTransform
from dtomo.operators.wavelets import daubechies
from tests import laws


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(
    ("shape", "options"),
    [((3, 16, 16), {}), ((2, 13, 22), {"moments": 3}), ((9, 7, 10), {"moments": 1, "dimensions": 3, "levels": 2})],
    ids=str,
)
def test_laws(shape, options, dtype):
    operator = WaveletTransform(shape, dtype=dtype, **options)
    assert len(operator.corners) > 1
    laws.check_linear(operator)
    laws.check_adjoint(operator)
    laws.check_dtype_and_shape(operator)
    laws.check_refusals(operator)
    laws.check_keeps_input(operator)
    laws.check_layouts(operator)
    laws.check_threads(operator)
    x = laws.draw(shape, dtype)
    for apply, back in ((operator.forward, operator.adjoint), (operator.adjoint, operator.forward)):
        assert laws.norm(back(apply(x)) - x) < 2e-6 * laws.norm(x)
        assert laws.norm(apply(x)) == pytest.approx(laws.norm(x), rel=1e-6)


def test_filters():
    np.testing.assert_allclose(daubechies(1), [np.sqrt(0.5)] * 2, rtol=1e-12)
    root = np.sqrt(3)
    np.testing.assert_allclose(daubechies(2), np.array([1 + root, 3 + root, 3 - root, 1 - root]) / np.sqrt(32))
    for moments in range(1, 9):
        low = daubechies(moments)
        high = low[::-1] * (-1) ** np.arange(2 * moments)
        for shift in range(moments):
            product = low[2 * shift :] @ low[: len(low) - 2 * shift]
            assert product == pytest.approx(float(shift == 0), abs=1e-7)
        for power in range(moments):
            assert abs(high @ np.linspace(-1, 1, len(high)) ** power) < 1e-6


def test_polynomials_have_no_fine_part_away_from_the_borders():
    line = np.linspace(-1, 1, 64, dtype=np.float32)
    volume = np.broadcast_to(line**2 + line[:, None], (1, 64, 64))
    fine = WaveletTransform(volume.shape, 3, 1).forward(volume)
    assert np.abs(fine[0, 32:60, :28]).max() < 1e-5
    assert np.abs(fine[0, :28, 32:60]).max() < 1e-5


def test_flat_volumes_are_coarse():
    transform = WaveletTransform((2, 12, 12), 1, 2)
    found = transform.forward(np.ones((2, 12, 12), np.float32))
    np.testing.assert_allclose(found[:, :3, :3], 4, rtol=1e-6)
    found[:, :3, :3] = 0
    assert np.abs(found).max() < 1e-6


@pytest.mark.parametrize("options", [{"moments": 0}, {"moments": 9}, {"levels": 0}, {"dimensions": 1}], ids=str)
def test_refused(options):
    with pytest.raises(UserError, match="vanishing moments"):
        WaveletTransform((3, 8, 8), **options)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.parametrize("shape", [(5, 33, 14), (130, 9, 12), (4, 40, 301)])
def test_kernels_have_the_bits_of_array_operations(dtype, dimensions, shape, monkeypatch):
    """Where the innermost axis is long enough, whichever it is."""
    operator = WaveletTransform(shape, 2, 3, dimensions, dtype)
    for name, volume in laws.layouts(laws.draw(shape, dtype)):
        found = [operator.forward(volume), operator.adjoint(volume)]
        with monkeypatch.context() as without:
            without.setattr("dtomo.operators.wavelets._SHORTEST", 10**9)
            expected = [operator.forward(volume), operator.adjoint(volume)]
        for one, two in zip(found, expected):
            assert np.array_equal(one, two), name
