"""C16: a sum of gradients keeps its imaginary part through tree, message and checkpoint.

On one, two and three workers of a cluster: `test_c16_imaginary_parts_are_kept` in ``tests/fitting/test_fit.py``; an
imaginary volume and object: ``tests/ptychotomo/test_engines.py``, ``tests/ptycho/test_object_probe_engines.py``.
"""

import itertools

import numpy as np
import pytest
from distributed.protocol import deserialize, serialize

from dtomo.distributed.sums import partial_sums, sum_of_parts
from dtomo.fitting.travel import packed, unpacked
from dtomo.io import Checkpoints

TARGETS = (1 + 2j + 0.1 * np.random.default_rng(0).standard_normal((7, 2)) @ (1, 1j)).astype(np.complex64)
TARGETS += np.complex64(1 + 2j) - TARGETS.mean()


def _travelled(value):
    """As Dask sends it, and as fits send theirs."""
    return unpacked(packed(deserialize(*serialize(value)), "the gradient"))


def _gradient(z, workers):
    """∂/∂z̄ of Σ |z - target|², of neighbouring blocks on each worker."""
    blocks = [(number, {"z": z - TARGETS[number : number + 1]}) for number in range(7)]
    bounds = np.linspace(0, 7, workers + 1).round().astype(int)
    parts = [_travelled(partial_sums(blocks[a:b], 7)) for a, b in itertools.pairwise(bounds)]
    return sum_of_parts(parts, 7)["z"]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_c16_split_sums_come_to_1_plus_2i(workers, tmp_path):
    z = np.zeros(1, np.complex64)
    for step in range(40):
        gradient = _gradient(z, workers)
        assert (gradient.dtype, gradient.shape) == (np.complex64, (1,))
        one = _gradient(z, 1)
        np.testing.assert_allclose([gradient.real, gradient.imag], [one.real, one.imag], atol=1e-6)
        z = z - np.float32(0.5 / 7) * gradient
        if step == 5:  # the run is cut short here, and goes on
            Checkpoints(tmp_path / "kept").save({"z": z})
            z = Checkpoints(tmp_path / "kept").load().state["z"]
    assert z.dtype == np.complex64
    np.testing.assert_allclose(z, 1 + 2j, atol=1e-6)
